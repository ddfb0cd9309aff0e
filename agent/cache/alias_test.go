package cache

import (
	"maps"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// protocol.md 3.15: a resource that a client found by an alias is cached under its own name, and
// removed under it.
func TestAWatchOfAnAliasIsNotifiedOfTheResource(t *testing.T) {
	c := New(Config{})
	w := c.Watch("client")
	w.Subscribe(xds.VirtualHostType, false, []string{"rc/host"}, nil)
	heard := func() []string {
		names := make(map[string]bool)
		read(w, func(_ Snapshot, changed []xds.Change) {
			for _, ch := range changed {
				for _, n := range ch.Names {
					names[n] = true
				}
			}
		})
		return slices.Sorted(maps.Keys(names))
	}
	vh := &xds.Resource{
		Type: xds.VirtualHostType, Name: "rc/vh", Version: "1", Extra: &xds.Extra{Aliases: []string{"rc/host"}},
		Body: &anypb.Any{TypeUrl: xds.VirtualHostType},
	}
	c.Apply(xds.Update{Source: "s", Type: xds.VirtualHostType, Resources: []*xds.Resource{vh}}, nil)
	if got := heard(); !slices.Equal(got, []string{"rc/host", "rc/vh"}) {
		t.Errorf("when it comes: %v", got)
	}
	c.Apply(xds.Update{Source: "s", Type: xds.VirtualHostType, Removed: []string{"rc/vh"}}, nil)
	if got := heard(); !slices.Equal(got, []string{"rc/host", "rc/vh"}) {
		t.Errorf("when it goes: %v", got)
	}
	read(w, func(s Snapshot, _ []xds.Change) {
		if !s.Lookup(xds.VirtualHostType, "rc/vh").NotFound {
			t.Error("that it is gone must be known under its name")
		}
	})
}

func TestABodyIsFoundByTheNameInWhateverFormItComes(t *testing.T) {
	c := New(Config{})
	put(c, xds.ClusterType, "a@1", "xdstp://authority/envoy.config.cluster.v3.Cluster/c?a=1&b=2@1")
	for name, found := range map[string]bool{
		"a": true, "b": false,
		"xdstp://authority/envoy.config.cluster.v3.Cluster/c?a=1&b=2": true,
		"xdstp://authority/envoy.config.cluster.v3.Cluster/c?b=2&a=1": true,
	} {
		body := c.Body(xds.ClusterType, []byte(name))
		if (body != nil) != found || found && body != item(c, xds.ClusterType, xds.CanonicalName(name)).Current.Body {
			t.Errorf("%s: %v", name, body)
		}
	}
	if c.Body(xds.ListenerType, []byte("a")) != nil {
		t.Error("of another type")
	}
}
