package cache

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

func seedOf(typeURL string, list ...string) (out []*xds.Resource) {
	for _, r := range resources(typeURL, list) {
		own := *r
		own.UpstreamVersion = ""
		out = append(out, &own)
	}
	return out
}

var wildcards = []string{xds.ClusterType, xds.ListenerType}

func TestASeedIsServedAtOnceAndNotAsAccepted(t *testing.T) {
	c := New(Config{})
	changes := make(chan struct{}, 1)
	j := c.Journal(changes, true)
	w := watch(c, "x", xds.ClusterType, "*")
	subscribe(w, xds.EndpointType, "a")
	if !c.Unconfigured() {
		t.Error("an Envoy would not wait")
	}
	changed(w)
	if n := c.RestoreSeed(append(seedOf(xds.ClusterType, "a@1"), seedOf(xds.EndpointType, "a@1")...), wildcards); n != 2 {
		t.Errorf("%d were restored", n)
	}
	wantChanged(t, w, "CDS *", "EDS a")
	knows(t, c, xds.ClusterType, xds.Partial)
	wantStatus(t, c, xds.ClusterType, "a", xds.Pending, "")
	if c.Unconfigured() {
		t.Error("an Envoy would wait")
	}
	// The disk has nothing of it yet.
	b := j.Take()
	if len(b.Resources) != 2 || b.Resources[0].Accepted || b.Facts[Fact{Kind: KnownFact, Type: xds.ClusterType}] != state.Yes {
		t.Errorf("%+v", b)
	}
	j.Done(nil)
	// No source is told that the cache has versions of it.
	held(t, c, "one", xds.ClusterType, map[string]string{"a": ""})
	// Until a source says what there is.
	complete(c, xds.ClusterType, "b@1")
	holds(t, c, xds.ClusterType, "b@1")
}

func TestWhatIsKnownComesBeforeASeed(t *testing.T) {
	c := New(Config{})
	w := watch(c, "x", xds.ClusterType, "*")
	subscribe(w, xds.EndpointType, "a", "b")
	put(c, xds.EndpointType, "a@2")
	complete(c, xds.ClusterType, "a@2")
	subscribe(w, xds.ListenerType, "*")
	if !c.Unconfigured() {
		t.Error("listeners are not known, and an Envoy would not wait")
	}
	seed := append(seedOf(xds.ClusterType, "a@1", "old@1"), seedOf(xds.EndpointType, "a@1", "b@1")...)
	seed = append(append(seed, seedOf(xds.ListenerType, "l@1")...), seedOf(xds.RouteType, "r@1")...)
	if n := c.RestoreSeed(seed, wildcards); n != 3 {
		t.Errorf("%d were restored", n)
	}
	holds(t, c, xds.ClusterType, "a@2")
	holds(t, c, xds.EndpointType, "a@2", "b@1")
	holds(t, c, xds.ListenerType, "l@1")
	if n := c.RestoreSeed(seed, wildcards); n != 0 {
		t.Errorf("%d were restored the second time", n)
	}
}

// An Envoy without listeners of its own in xDS waits for nothing.
func TestWhatNobodySubscribesToIsNotMissing(t *testing.T) {
	c := New(Config{})
	if !c.Unconfigured() {
		t.Error("nothing is known, and an Envoy would not wait")
	}
	watch(c, "x", xds.ClusterType, "*")
	complete(c, xds.ClusterType, "a@1")
	if c.Unconfigured() {
		t.Error("an Envoy would wait")
	}
}

// protocol.md 6.2: a TTL goes on in a seed.
func TestTheTTLOfASeedEnds(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		long, ended := seedOf(xds.ClusterType, "a@1")[0], seedOf(xds.ClusterType, "b@1")[0]
		long = long.WithLifetime(time.Minute, time.Now().Add(time.Minute))
		ended = ended.WithLifetime(time.Minute, time.Now().Add(-time.Second))
		watch(c, "x", xds.ClusterType, "*")
		c.RestoreSeed([]*xds.Resource{long, ended}, wildcards)
		holds(t, c, xds.ClusterType, "a@1")
		pass(2 * time.Minute)
		holds(t, c, xds.ClusterType)
	})
}
