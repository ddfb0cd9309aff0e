package group

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Envoy 1.36 lists its extensions in another order after each start: the Node is the same.
func TestANodeIsTheSameInWhateverOrderItsExtensionsAre(t *testing.T) {
	node := func(extensions ...string) *corev3.Node {
		n := &corev3.Node{Id: "web-1"}
		for _, name := range extensions {
			n.Extensions = append(n.Extensions, &corev3.Extension{Name: name})
		}
		return n
	}
	if hashNode(node("a", "b", "c")) != hashNode(node("c", "a", "b")) {
		t.Error("another order makes another Node")
	}
	for _, other := range []*corev3.Node{node("a", "b"), node("a", "b", "d"), node("a", "b", "c", "d"), {Id: "web-2"}} {
		if hashNode(other) == hashNode(node("a", "b", "c")) {
			t.Errorf("%v is taken for the same", other)
		}
	}
	n := node("a")
	if hashNode(n); len(n.Extensions) != 1 {
		t.Error("the Node was changed")
	}
}
