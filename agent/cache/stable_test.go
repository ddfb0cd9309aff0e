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

// serves fails unless this version of a name is served; "" for none.
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
	if r := c.state.Existing(xds.ClusterType).Entry("a").Stable(); r != nil {
		got = r.Version
	}
	if got != want {
		t.Errorf("stable is %q, want %q", got, want)
	}
}

// A content is stable after one client has used it without a break.
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

// A client that did not ACK a content does not make it stable.
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
		// A client that reconnects says that it has the content, or ACKs it.
		w = watch(c, "goes", xds.ClusterType, "*")
		accept(w, xds.ClusterType, "a@1")
		pass(probation.StableAfter)
		isStable(t, c, "1")
	})
}

// One of two clients that ACKed it is enough.
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

// A resource that is removed and comes back before a client is sent the removal is one that the
// client has used all the time, also if it ACKed it in between. It may not ACK it again.
func TestAContentIsUsedWhileItsNameIsGone(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		put(c, xds.ClusterType, "a@1")
		other, w := watch(c, "other", xds.ClusterType, "*"), watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType)
		accept(w, xds.ClusterType, "a@1")
		put(c, xds.ClusterType, "a@1")
		accept(other, xds.ClusterType, "a@1")
		pass(time.Second)
		other.Close(nil)
		pass(probation.StableAfter)
		isStable(t, c, "1")
	})
}

// A content that was ACKed but not stable when the agent stopped begins its probation again, and
// the stable content before it is there to fall back to.
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

// The stable content of a removed name is forgotten when no client needs it.
func TestAnAbsenceBecomesStable(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		put(c, xds.ClusterType, "a@1", "b@1")
		w := watch(c, "x", xds.ClusterType, "*")
		accept(w, xds.ClusterType, "a@1", "b@1")
		pass(probation.StableAfter)
		complete(c, xds.ClusterType, "a@1")
		w.Close(nil)
		pass(2 * probation.StableAfter)
		former := func() int { c.mu.Lock(); defer c.mu.Unlock(); return len(c.stable.Removed(xds.ClusterType)) }
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
