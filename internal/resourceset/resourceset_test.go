package resourceset

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

func resources(url string, names ...string) (out []*xds.Resource) {
	for _, name := range names {
		out = append(out, &xds.Resource{Type: url, Name: name, Version: "1"})
	}
	return out
}

func TestEqualResourcesAreOneSet(t *testing.T) {
	p := NewPool(1)
	s := p.Intern(resources(xds.ClusterType, "a", "b"))
	if p.Intern(resources(xds.ClusterType, "b", "a")) != s {
		t.Error("the same resources in another order are another set")
	}
	for name, other := range map[string][]*xds.Resource{
		"one less": resources(xds.ClusterType, "a"), "one more": resources(xds.ClusterType, "a", "b", "c"),
		"another name": resources(xds.ClusterType, "a", "c"), "another type": resources(xds.EndpointType, "a", "b"),
		"another version": {{Type: xds.ClusterType, Name: "a", Version: "1"}, {Type: xds.ClusterType, Name: "b", Version: "2"}},
	} {
		o := p.Intern(other)
		if o == s || !o.equals(other) {
			t.Errorf("%s: the set is that of others", name)
		}
	}
	if i, ok := s.Index("b"); !ok || s.At(i).Name != "b" || s.Len() != 2 {
		t.Error("the set lost a resource")
	}
	if _, ok := s.Index("c"); ok {
		t.Error("the set has a resource that nobody added")
	}
	var none *Set
	if _, ok := none.Index("a"); ok || none.Len() != 0 || none.Resources() != nil {
		t.Error("a nil set is not empty")
	}
	runtime.KeepAlive(s)
}

func TestAForgottenSetIsNotKept(t *testing.T) {
	p := NewPool(1)
	for i := range 10 * DefaultMin {
		p.Intern(resources(xds.ClusterType, fmt.Sprint(i)))
		if i%DefaultMin == 0 {
			runtime.GC()
		}
	}
	if n := len(p.sets); n > 4*DefaultMin {
		t.Errorf("%d sets are remembered that nobody uses", n)
	}
}
