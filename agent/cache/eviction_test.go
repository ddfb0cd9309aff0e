package cache

import (
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// design.md I11: only resources without a subscription enter the LRU.
func TestTheLeastRecentUnreferencedResourceIsEvicted(t *testing.T) {
	c := New(Config{MaxUnreferenced: 2})
	w := watch(c, "a", xds.EndpointType, "a", "b", "c", "kept")
	put(c, xds.EndpointType, "a@1", "b@1", "c@1", "kept@1")
	for _, name := range []string{"a", "b", "c"} {
		w.Subscribe(xds.EndpointType, false, nil, []string{name})
	}
	holds(t, c, xds.EndpointType, "b@1", "c@1", "kept@1")
	// A resource with a subscription leaves the LRU.
	w.Subscribe(xds.EndpointType, false, []string{"b"}, nil)
	put(c, xds.EndpointType, "x@1", "y@1", "z@1")
	holds(t, c, xds.EndpointType, "b@1", "kept@1", "y@1", "z@1")
}

// design.md I2: a resource that was evicted without a subscription is not reported as removed when
// the wildcard is subscribed to again.
func TestAnEvictedResourceIsUnknownAndNotRemoved(t *testing.T) {
	c := New(Config{MaxUnreferenced: 2})
	w, in := watch(c, "x", xds.ClusterType, "*"), c.Subscriptions()
	in.Changes()
	complete(c, xds.ClusterType, "a@1", "b@1", "c@1")
	knows(t, c, xds.ClusterType, xds.Complete)
	w.Subscribe(xds.ClusterType, false, nil, nil)
	in.Changes()
	// A SotW source cannot give up the legacy wildcard, so it goes on sending everything.
	complete(c, xds.ClusterType, "a@1", "b@1", "c@1")
	holds(t, c, xds.ClusterType, "b@1", "c@1")
	knows(t, c, xds.ClusterType, xds.Partial)
	subscribe(w, xds.ClusterType, "*")
	if got := in.Changes(); len(got) != 1 || !got[0].Wildcard || got[0].Complete {
		t.Errorf("taken: %+v", got)
	}
}

func TestASubscribedResourceIsNeverEvicted(t *testing.T) {
	names := numbered("n", 50)
	var all []string
	for _, n := range names {
		all = append(all, n+"@1")
	}
	for _, test := range []struct {
		name string
		want func(c *Cache)
	}{
		{"by name", func(c *Cache) { watch(c, "a", xds.ClusterType, names...) }},
		{"by a wildcard", func(c *Cache) { watch(c, "a", xds.ClusterType, "*") }},
		{"by a leased name", func(c *Cache) { watch(c, "a", xds.ClusterType, names...).Close(nil) }},
		{"by a leased wildcard", func(c *Cache) { watch(c, "a", xds.ClusterType, "*").Close(nil) }},
		{"by prefetching", func(c *Cache) { c.Prefetch(xds.ClusterType, "*") }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := New(Config{MaxUnreferenced: 2})
			test.want(c)
			put(c, xds.ClusterType, all...)
			if got := len(c.Resources(xds.ClusterType)); got != len(names) {
				t.Errorf("%d of %d are held", got, len(names))
			}
			if n := c.unreferenced.Len(); n > 0 {
				t.Errorf("%d are in the LRU", n)
			}
		})
	}
}

func TestAnAliasKeepsItsResource(t *testing.T) {
	c := New(Config{MaxUnreferenced: 1})
	w := watch(c, "a", xds.VirtualHostType, "host")
	apply(c, xds.Update{Type: xds.VirtualHostType, Resources: []*xds.Resource{res(xds.VirtualHostType, "v@1", "host")}})
	put(c, xds.VirtualHostType, "x@1", "y@1")
	holds(t, c, xds.VirtualHostType, "v@1", "y@1")
	w.Subscribe(xds.VirtualHostType, false, nil, []string{"host"})
	holds(t, c, xds.VirtualHostType, "v@1")
	put(c, xds.VirtualHostType, "z@1")
	holds(t, c, xds.VirtualHostType, "z@1")
	if it := item(c, xds.VirtualHostType, "host"); it.Current != nil {
		t.Errorf("the alias of what was evicted leads to %v", it.Current)
	}
}

// A resource that its source sends without a subscription cannot be asked for again.
func TestWhatASourceTellsUnaskedIsNeverEvicted(t *testing.T) {
	c := New(Config{MaxUnreferenced: 1})
	apply(c, xds.Update{Type: xds.EndpointType, Resources: resources(xds.EndpointType, []string{"a@1", "b@1", "c@1"}), KeepUnsubscribed: true})
	if n := c.unreferenced.Len(); n > 0 {
		t.Errorf("%d are in the LRU", n)
	}
	put(c, xds.EndpointType, "x@1", "y@1")
	holds(t, c, xds.EndpointType, "a@1", "b@1", "c@1", "y@1")
	// Until another source takes it over.
	put(c, xds.EndpointType, "a@1")
	holds(t, c, xds.EndpointType, "a@1", "b@1", "c@1")
}

// The bound is on all types together.
func TestAWildcardThatIsGivenUpLeavesABoundedRest(t *testing.T) {
	c := New(Config{MaxUnreferenced: 2})
	w := watch(c, "a", xds.ClusterType, "*", "odc")
	complete(c, xds.ClusterType, "a@1", "b@1", "c@1", "odc@1")
	put(c, xds.EndpointType, "e@1")
	w.Subscribe(xds.ClusterType, false, nil, nil)
	clusters, endpoints := len(c.Resources(xds.ClusterType)), len(c.Resources(xds.EndpointType))
	if clusters != 3 || endpoints != 0 {
		t.Errorf("%d clusters and %d endpoints, want odc and two of the others", clusters, endpoints)
	}
	if item(c, xds.ClusterType, "odc").Current == nil {
		t.Errorf("what is still wanted went")
	}
}

func TestWhatIsRemovedLeavesTheLRU(t *testing.T) {
	c := New(Config{MaxUnreferenced: 2})
	put(c, xds.EndpointType, "a@1", "b@1")
	apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"a"}})
	put(c, xds.EndpointType, "c@1")
	holds(t, c, xds.EndpointType, "b@1", "c@1")
	if n := c.unreferenced.Len(); n != 2 {
		t.Errorf("%d in the LRU", n)
	}
}
