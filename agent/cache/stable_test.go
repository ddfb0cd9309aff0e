package cache

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// accept is a client's ACK of contents.
func accept(w *Watch, typeURL string, list ...string) {
	w.Ack(typeURL, resources(typeURL, list), nil)
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

// isStable fails unless this version of the cluster a is stable; "" for none.
func isStable(t *testing.T, c *Cache, want string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := ""
	if r := c.tables[xds.ClusterType].Entry("a").Stable(); r != nil {
		got = r.Version
	}
	if got != want {
		t.Errorf("stable is %q, want %q", got, want)
	}
}

// Stable is what one client lived with without a break.
func TestAClientThatDoesNotLiveMakesNothingStable(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		put(c, xds.ClusterType, "a@1")
		for range 5 {
			w := watch(c, "x", xds.ClusterType, "*")
			accept(w, xds.ClusterType, "a@1")
			pass(probation.StableAfter / 2)
			w.Close(nil)
			pass(time.Second)
		}
		isStable(t, c, "")
		w := watch(c, "x", xds.ClusterType, "*")
		put(c, xds.ClusterType, "a@2")
		accept(w, xds.ClusterType, "a@2")
		pass(probation.StableAfter - time.Second)
		put(c, xds.ClusterType, "a@3")
		accept(w, xds.ClusterType, "a@3")
		pass(probation.StableAfter - time.Second)
		isStable(t, c, "")
		pass(time.Second)
		isStable(t, c, "3")
	})
}

// Whoever did not accept a content says nothing about it by living.
func TestOnlyAClientThatHasAContentMakesItStable(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		watch(c, "lives", xds.ClusterType, "*") // and never answers
		put(c, xds.ClusterType, "a@1")
		w := watch(c, "goes", xds.ClusterType, "*")
		accept(w, xds.ClusterType, "a@1")
		pass(probation.StableAfter / 2)
		w.Close(nil)
		pass(2 * probation.StableAfter)
		isStable(t, c, "")
		// A client that comes back says that it has it, or ACKs it.
		w = watch(c, "goes", xds.ClusterType, "*")
		accept(w, xds.ClusterType, "a@1")
		pass(probation.StableAfter)
		isStable(t, c, "1")
	})
}

// Of two clients that accepted it, one that lives is enough.
func TestTheProbationOfOneClientDoesNotEndWithAnother(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		put(c, xds.ClusterType, "a@1")
		first, second := watch(c, "epoch 0", xds.ClusterType, "*"), watch(c, "epoch 1", xds.ClusterType, "*")
		accept(first, xds.ClusterType, "a@1")
		pass(10 * time.Second)
		accept(second, xds.ClusterType, "a@1")
		first.Close(nil)
		pass(probation.StableAfter)
		isStable(t, c, "1")
	})
}

// What was accepted and not stable when the agent ended goes on probation again, with
// the stable content before it at hand.
func TestProbationGoesOnAfterARestart(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		v1, v2 := res(xds.ClusterType, "a@1"), res(xds.ClusterType, "a@2")
		c.Restore([]Saved{{Type: xds.ClusterType, Name: "a", Content: v2, Source: "one", Accepted: true, Previous: v1}}, meshFacts)
		w := watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, "a@2")
		isStable(t, c, "1")
		accept(w, xds.ClusterType, "a@2") // as a client's claim of a version
		pass(probation.StableAfter)
		isStable(t, c, "2")
	})
}

// A name that went, and nobody misses it, is forgotten.
func TestAnAbsenceBecomesStable(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		put(c, xds.ClusterType, "a@1", "b@1")
		w := watch(c, "x", xds.ClusterType, "*")
		accept(w, xds.ClusterType, "a@1", "b@1")
		pass(probation.StableAfter)
		complete(c, xds.ClusterType, "a@1")
		w.Close(nil)
		pass(2 * probation.StableAfter)
		former := func() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.tables[xds.ClusterType].removed) }
		if former() != 1 {
			t.Error("forgotten though nobody lived without it")
		}
		watch(c, "x", xds.ClusterType, "*")
		pass(probation.StableAfter)
		if former() != 0 {
			t.Error("kept though a client lived without it")
		}
	})
}
