package config

import (
	"fmt"
	"testing"
)

// Whoever asks for documents names any namespace: nothing is kept of one that has none.
func TestIndex_KeepsNoListOfANamespaceWithoutDocuments(t *testing.T) {
	var x Index
	document := func(namespace string) *Config {
		return &Config{Meta: Meta{Key: Key{VirtualService, namespace, "web"}}}
	}
	x.Put(document("shop"))
	x.Put(document("evil"))
	x.List(VirtualService, "")
	x.List(VirtualService, "shop")
	x.List(VirtualService, "evil")
	x.Remove(document("evil").Meta.Key)
	for i := range 1000 {
		if list := x.List(VirtualService, fmt.Sprintf("nowhere-%d", i)); len(list) != 0 {
			t.Fatalf("%v", list)
		}
		x.List(Kind("nothing"), fmt.Sprintf("nowhere-%d", i))
		x.List(VirtualService, "evil")
	}
	x.List(VirtualService, "")
	if got := len(x.kinds[VirtualService].lists); got != 2 || len(x.kinds) != 1 {
		t.Errorf("%d lists of %d kinds are kept, want all documents and those of shop", got, len(x.kinds))
	}
	x.Put(document("evil"))
	if list := x.List(VirtualService, "evil"); len(list) != 1 {
		t.Errorf("%v", list)
	}
}
