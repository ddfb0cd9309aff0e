package cache

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// accept is a client's ACK of contents.
func accept(w *Watch, typeURL string, list ...string) {
	w.Accept(typeURL, resources(typeURL, list), nil)
}

// serves fails unless a watch may be given this version of a name; "" for none.
func serves(t *testing.T, c *Cache, typeURL, name, want string) {
	t.Helper()
	got := ""
	if it := item(c, typeURL, name); it.Current != nil {
		got = it.Current.Version
	}
	if got != want {
		t.Errorf("%s %s is served as %q, want %q", xds.Short(typeURL), name, got, want)
	}
}

// What a client lived with for a minute is proven; what replaced it is served, and
// after FallBack what is proven, until the upstream changes what is suspected.
func TestAfterACrashLoopWhatIsProvenIsServed(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ClusterType, "*")
		subscribe(w, xds.EndpointType, "a")
		subscribe(w, xds.ListenerType, "*")
		put(c, xds.ClusterType, "a@1", "b@1")
		put(c, xds.EndpointType, "a@1")
		accept(w, xds.ClusterType, "a@1", "b@1")
		accept(w, xds.EndpointType, "a@1")
		if got := c.FallBack(); got != nil {
			t.Errorf("nothing is proven, and %v is suspected", got)
		}
		pass(ProvenAfter)
		if got := c.FallBack(); got != nil {
			t.Errorf("%v is suspected though all is proven", got)
		}
		complete(c, xds.ClusterType, "a@2", "c@1")
		put(c, xds.EndpointType, "a@2")
		accept(w, xds.ClusterType, "a@2", "c@1")
		accept(w, xds.EndpointType, "a@2")
		serves(t, c, xds.ClusterType, "a", "2")
		changed(w)
		if got := c.FallBack(); len(got) != 3 || !c.FallenBack() {
			t.Errorf("suspected: %v, want a, b and c", got)
		}
		wantChanged(t, w, "CDS *", "EDS a", "LDS *")
		for name, version := range map[string]string{"a": "1", "b": "1", "c": ""} {
			serves(t, c, xds.ClusterType, name, version)
		}
		serves(t, c, xds.EndpointType, "a", "2")
		put(c, xds.ClusterType, "a@2")
		put(c, xds.EndpointType, "a@3")
		if !c.FallenBack() {
			t.Error("it ended though nothing changed of what is suspected")
		}
		put(c, xds.ClusterType, "a@3")
		for name, version := range map[string]string{"a": "3", "b": "", "c": "1"} {
			serves(t, c, xds.ClusterType, name, version)
		}
	})
}

// Proven is what one client lived with without a break.
func TestAClientThatDoesNotLiveProvesNothing(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		put(c, xds.ClusterType, "a@1")
		for range 5 {
			w := watch(c, "x", xds.ClusterType, "*")
			accept(w, xds.ClusterType, "a@1")
			pass(ProvenAfter / 2)
			w.Close(nil)
			pass(time.Second)
		}
		if got := proven(c); got != "" {
			t.Error("proven by clients that did not live")
		}
		w := watch(c, "x", xds.ClusterType, "*")
		put(c, xds.ClusterType, "a@2")
		accept(w, xds.ClusterType, "a@2")
		pass(ProvenAfter - time.Second)
		put(c, xds.ClusterType, "a@3")
		accept(w, xds.ClusterType, "a@3")
		pass(ProvenAfter - time.Second)
		if got := proven(c); got != "" {
			t.Error("proven before its time")
		}
		pass(time.Second)
		if got := proven(c); got != "3" {
			t.Errorf("proven is %q after the time of 3", got)
		}
	})
}

// A client that comes back holds what it accepted, and need not be sent it again.
func TestATrialGoesOnWithTheNextClient(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		put(c, xds.ClusterType, "a@1", "b@1")
		w := watch(c, "x", xds.ClusterType, "*")
		accept(w, xds.ClusterType, "a@1", "b@1")
		pass(ProvenAfter)
		complete(c, xds.ClusterType, "a@2")
		accept(w, xds.ClusterType, "a@2")
		pass(ProvenAfter / 2)
		w.Close(nil)
		pass(2 * ProvenAfter)
		if got := proven(c); got != "1" {
			t.Errorf("%q is proven though nobody lived with it", got)
		}
		watch(c, "x", xds.ClusterType, "*")
		pass(ProvenAfter)
		if got := proven(c); got != "2" {
			t.Errorf("proven is %q after another client lived with 2", got)
		}
		if c.FallBack() != nil {
			t.Error("b is suspected to be missing though a client lived without it")
		}
	})
}

// proven returns the proven version of the cluster a, "" for none.
func proven(c *Cache) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.tables[xds.ClusterType].entries["a"].proven; r != nil {
		return r.Version
	}
	return ""
}
