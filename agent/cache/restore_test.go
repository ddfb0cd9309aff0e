package cache

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// kept is a resource that was on disk, ACKed by a client.
func kept(typeURL, nameVersion string) Saved {
	r := res(typeURL, nameVersion)
	return Saved{Type: typeURL, Name: r.Name, Content: r, Source: "one", Accepted: true}
}

var meshFacts = facts(Fact{Kind: SubscribedFact, Type: xds.ClusterType, Name: "*"}, Fact{Kind: KnownFact, Type: xds.ClusterType})

// facts are facts without a value of their own.
func facts(list ...Fact) map[Fact]string {
	out := make(map[Fact]string)
	for _, f := range list {
		out[f] = state.Yes
	}
	return out
}

// design.md I1, section 4: a restored resource is not served before it is known that no source
// answers.
func TestWhatWasRestoredIsServedOnRelease(t *testing.T) {
	c := New(Config{})
	c.Restore([]Saved{kept(xds.ClusterType, "a@1"), kept(xds.EndpointType, "a@1")}, meshFacts)
	w := watch(c, "x", xds.ClusterType, "*")
	subscribe(w, xds.EndpointType, "a")
	knows(t, c, xds.ClusterType, xds.Unknown)
	if it := item(c, xds.ClusterType, "a"); it.Current != nil {
		t.Errorf("served before its time: %+v", it)
	}
	changed(w)
	c.ServeRestored()
	wantChanged(t, w, "CDS *", "EDS a")
	knows(t, c, xds.ClusterType, xds.Partial)
	if it := item(c, xds.ClusterType, "a"); it.Current == nil || it.Status != xds.Acked {
		t.Errorf("not served: %+v", it)
	}
	c.ServeRestored()
	wantChanged(t, w)
	if n := c.Restored(); n != 2 {
		t.Errorf("%d are unconfirmed, want 2", n)
	}
}

// … or before the first answer of a source, type by type.
func TestALiveAnswerComesBeforeWhatWasRestored(t *testing.T) {
	c := New(Config{})
	c.Restore([]Saved{kept(xds.ClusterType, "a@1"), kept(xds.ClusterType, "b@1"), kept(xds.EndpointType, "a@1")}, meshFacts)
	w := watch(c, "x", xds.ClusterType, "*")
	subscribe(w, xds.EndpointType, "a")
	changed(w)
	put(c, xds.ClusterType, "a@2")
	wantChanged(t, w, "CDS a *")
	holds(t, c, xds.ClusterType, "a@2", "b@1")
	wantStatus(t, c, xds.ClusterType, "a", xds.Pending, "1")
	if it := item(c, xds.EndpointType, "a"); it.Current != nil {
		t.Errorf("another type is served: %+v", it)
	}
	// A complete answer removes what it lacks, restored or not (I2).
	complete(c, xds.ClusterType, "a@2")
	holds(t, c, xds.ClusterType, "a@2")
	// What is restored after it does not replace what the answer said.
	c.Restore([]Saved{kept(xds.ClusterType, "a@1")}, nil)
	holds(t, c, xds.ClusterType, "a@2")
}

// A complete set can be empty (protocol.md 2.7).
func TestThatThereIsNothingIsRestored(t *testing.T) {
	c := New(Config{})
	c.Restore(nil, meshFacts)
	w := watch(c, "x", xds.ClusterType, "*")
	knows(t, c, xds.ClusterType, xds.Unknown)
	changed(w)
	c.ServeRestored()
	wantChanged(t, w, "CDS *")
	knows(t, c, xds.ClusterType, xds.Partial)
}

// design.md I2, protocol.md 7.10: on the next stream a source is told of the restored resources,
// with its own versions.
func TestASourceGetsTheVersionsOfRestoredResources(t *testing.T) {
	c := New(Config{})
	other := kept(xds.ClusterType, "b@1")
	other.Source = "two"
	c.Restore([]Saved{kept(xds.ClusterType, "a@1"), other}, meshFacts)
	held(t, c, "one", xds.ClusterType, map[string]string{"a": "u1", "b": ""})
	if c.AnyMissing() {
		t.Error("what is held on disk is lacking")
	}
	if !had(c, xds.ClusterType) {
		t.Error("that there was a wildcard is forgotten (protocol.md 2.4)")
	}
	wantTaken(t, c.Subscriptions(), "CDS *")
	// The source confirms its own versions by not sending them again.
	put(c, xds.ClusterType, "c@1")
	c.Synced("one", xds.ClusterType, time.Time{})
	if n := c.Restored(); n != 1 {
		t.Errorf("%d are unconfirmed, want b", n)
	}
	holds(t, c, xds.ClusterType, "a@1", "b@1", "c@1")
}

// design.md I11: the number of unreferenced resources is bounded, also after a restore.
func TestRestoredResourcesWithoutASubscriptionAreBounded(t *testing.T) {
	c := New(Config{MaxUnreferenced: 10})
	var saved []Saved
	for _, name := range numbered("e", 100) {
		saved = append(saved, kept(xds.EndpointType, name+"@1"))
	}
	saved = append(saved, kept(xds.RouteType, "r@1"))
	c.Restore(saved, facts(Fact{Kind: SubscribedFact, Type: xds.RouteType, Name: "r"}))
	if n := len(c.Resources(xds.EndpointType)); n != 10 {
		t.Errorf("%d endpoints are held that nobody wants, want 10", n)
	}
	holds(t, c, xds.RouteType, "r@1")
}

// protocol.md 6.2: a deadline is a time of day. An expired resource is not restored, and if the
// clock was set back no resource lives longer than its TTL.
func TestDeadlinesSurviveARestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(Config{})
		ended, living, strange := kept(xds.ClusterType, "a@1"), kept(xds.ClusterType, "b@1"), kept(xds.ClusterType, "c@1")
		for s, d := range map[*Saved]time.Duration{&ended: 0, &living: 10 * time.Second, &strange: time.Hour} {
			s.Content = s.Content.WithLifetime(time.Minute, time.Unix(0, time.Now().Add(d).UnixNano()))
		}
		c.Restore([]Saved{ended, living, strange}, meshFacts)
		c.ServeRestored()
		w := watch(c, "x", xds.ClusterType, "*")
		holds(t, c, xds.ClusterType, "b@1", "c@1")
		time.Sleep(10 * time.Second)
		changed(w)
		holds(t, c, xds.ClusterType, "c@1")
		time.Sleep(50 * time.Second)
		changed(w)
		holds(t, c, xds.ClusterType)
	})
}

// protocol.md 3.6: what a client may hold although it has not ACKed it is remembered over a
// restart.
func TestUncertainNamesAreRestored(t *testing.T) {
	c := New(Config{})
	c.Restore(nil, facts(Fact{Kind: MaybeHeldFact, Type: xds.ListenerType, Name: "l"}))
	look(c, func(s Snapshot) {
		if got := s.MaybeHeld(xds.ListenerType); len(got) != 1 || got[0] != "l" {
			t.Errorf("in doubt are %v", got)
		}
	})
}

// --max-stale: a watch that was opened before goes on, a new one gets nothing.
func TestAStaleCacheIsNotServedToNewWatches(t *testing.T) {
	stale := false
	c := New(Config{Stale: func() bool { return stale }})
	first := watch(c, "x", xds.ClusterType, "*")
	put(c, xds.ClusterType, "a@1")
	changed(first)
	stale = true
	second := watch(c, "y", xds.ClusterType, "*")
	sees := func(w *Watch) (it xds.Item, k xds.Knowledge) {
		read(w, func(s Snapshot, _ []xds.Change) { it, k = s.Lookup(xds.ClusterType, "a"), s.Wildcard(xds.ClusterType) })
		return it, k
	}
	if it, _ := sees(first); it.Current == nil {
		t.Error("it was taken from who has it")
	}
	if it, k := sees(second); it.Current != nil || it.NotFound || k != xds.Unknown {
		t.Errorf("who comes anew sees %+v, %s", it, k)
	}
	c.EndStale()
	wantChanged(t, second, "CDS *")
	if it, k := sees(second); it.Current == nil || k != xds.Partial {
		t.Errorf("afterwards it sees %+v, %s", it, k)
	}
}

// Finding P3: a restore after the answer of a source brings back nothing that the source has
// removed, by name or with a complete set.
func TestWhatIsRestoredAfterAnAnswerBringsBackNothingThatWasRemoved(t *testing.T) {
	late := []Saved{kept(xds.ClusterType, "a@1"), kept(xds.ClusterType, "old@1"), kept(xds.EndpointType, "e@1"), kept(xds.EndpointType, "olde@1")}
	t.Run("by name", func(t *testing.T) {
		c := New(Config{})
		watch(c, "x", xds.EndpointType, "e", "olde")
		apply(c, xds.Update{Source: "one", Type: xds.EndpointType, Removed: []string{"olde"}})
		c.Restore(late, meshFacts)
		c.ServeRestored()
		holds(t, c, xds.EndpointType, "e@1")
	})
	t.Run("by everything", func(t *testing.T) {
		c := New(Config{})
		w := watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, "a@1")
		changed(w)
		c.Restore(late, meshFacts)
		c.ServeRestored()
		holds(t, c, xds.ClusterType, "a@1")
		knows(t, c, xds.ClusterType, xds.Complete)
		wantChanged(t, w)
	})
	t.Run("by everything, when all of it was told", func(t *testing.T) {
		c := New(Config{})
		watch(c, "x", xds.ClusterType, "*")
		apply(c, xds.Update{Source: "one", Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"a@1"}), Wildcard: true})
		c.Restore(late, meshFacts)
		holds(t, c, xds.ClusterType, "a@1", "old@1")
		c.Synced("one", xds.ClusterType, time.Time{})
		holds(t, c, xds.ClusterType, "a@1")
	})
}
