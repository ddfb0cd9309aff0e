package cache

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// lasting is a resource whose TTL begins now.
func lasting(typeURL, nameVersion string, ttl time.Duration) *xds.Resource {
	return res(typeURL, nameVersion).WithLifetime(ttl, time.Now().Add(ttl))
}

// beat sends a heartbeat for a version.
func beat(c *Cache, typeURL, name, version string, ttl time.Duration) *answers {
	return apply(c, xds.Update{Type: typeURL, Heartbeats: []xds.Heartbeat{{Name: name, Version: version, TTL: ttl, Deadline: time.Now().Add(ttl)}}})
}

// protocol.md 6.1, design.md I8.
func TestAHeartbeatMovesTheDeadlineOfTheVersionThatItNames(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(Config{})
		w := watch(c, "a", xds.ClusterType, "*")
		r := lasting(xds.ClusterType, "a@1", time.Minute)
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{r}})
		changed(w)
		time.Sleep(30 * time.Second)
		beat(c, xds.ClusterType, "a", "u0", time.Hour).want(t, `nack: CDS "a": heartbeat for version "u0", but version "u1" is cached`)
		beat(c, xds.ClusterType, "b", "u1", time.Hour).want(t, `nack: CDS "b": heartbeat for a resource that is not cached`)
		if got := item(c, xds.ClusterType, "a").Current.Deadline(); !got.Equal(r.Deadline()) {
			t.Errorf("moved to %v by the heartbeat of another version", got)
		}
		wantChanged(t, w)
		beat(c, xds.ClusterType, "a", "u1", time.Hour)
		if got := item(c, xds.ClusterType, "a").Current; !got.Deadline().Equal(time.Now().Add(time.Hour)) || got.TTL() != time.Hour || got.Body != r.Body {
			t.Errorf("not moved: %+v", got)
		}
		wantChanged(t, w, "CDS a")
		time.Sleep(time.Hour - time.Second)
		wantChanged(t, w)
		put(c, xds.ClusterType, "a@1")
		if got := item(c, xds.ClusterType, "a").Current; !got.Deadline().IsZero() || got.TTL() != 0 {
			t.Errorf("a body without a ttl does not end it: %+v", got)
		}
		time.Sleep(time.Hour)
		holds(t, c, xds.ClusterType, "a@1")
	})
}

// protocol.md 6.1: a heartbeat in a SotW response of the ACKed version_info is for whatever its
// source sent.
func TestAHeartbeatOfTheAckedVersionMovesTheDeadlineOfItsSourcesContent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(Config{})
		watch(c, "a", xds.ClusterType, "*")
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{lasting(xds.ClusterType, "a@1", time.Minute)}})
		refresh := func(source string) *answers {
			ends := time.Now().Add(time.Hour)
			return apply(c, xds.Update{Source: source, Type: xds.ClusterType, Heartbeats: []xds.Heartbeat{{Name: "a", Version: "other", AnyVersion: true, TTL: time.Hour, Deadline: ends}}})
		}
		refresh("two").want(t, `nack: CDS "a": heartbeat for version "other", but version "u1" is cached`)
		refresh("one")
		if got := item(c, xds.ClusterType, "a").Current.Deadline(); !got.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("it ends at %v", got)
		}
	})
}

// protocol.md 6.2, 6.3: resources of some types are removed, others are dropped without a
// notification.
func TestWhatOutlivesItsTTLIsNotServed(t *testing.T) {
	for _, typeURL := range xds.Types() {
		told := xds.Info(typeURL).RemoveExpired
		t.Run(xds.Short(typeURL), func(t *testing.T) {
			running(t, Config{}, func(t *testing.T, c *Cache) {
				w := watch(c, "a", typeURL, "a", "b", "c")
				apply(c, xds.Update{Type: typeURL, Resources: []*xds.Resource{
					lasting(typeURL, "a@1", time.Minute), lasting(typeURL, "b@1", time.Hour), res(typeURL, "c@1"),
				}})
				changed(w)
				pass(time.Minute - time.Nanosecond)
				wantChanged(t, w)
				holds(t, c, typeURL, "a@1", "b@1", "c@1")
				pass(time.Nanosecond)
				holds(t, c, typeURL, "b@1", "c@1")
				if told {
					wantChanged(t, w, xds.Short(typeURL)+" a")
				} else {
					wantChanged(t, w)
				}
				if it := item(c, typeURL, "a"); it.NotFound != told {
					t.Errorf("gone is %t, want %t", it.NotFound, told)
				}
				pass(time.Hour)
				holds(t, c, typeURL, "c@1")
			})
		})
	}
}

// An expired resource is not read, even if Run has not dropped it yet.
func TestAnExpiredResourceIsNotReadBeforeItIsDropped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(Config{})
		w := watch(c, "a", xds.ClusterType, "*")
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{lasting(xds.ClusterType, "a@1", time.Minute)}})
		changed(w)
		time.Sleep(time.Minute)
		if got := changed(w); !slices.Equal(got, []string{"CDS a"}) {
			t.Errorf("changed: %q", got)
		}
		if it := item(c, xds.ClusterType, "a"); it.Current != nil {
			t.Errorf("still there: %+v", it.Current)
		}
	})
}

// design.md I8, policy "hold".
func TestATTLThatIsHeldIsNeitherEnforcedNorPassedOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(Config{HoldTTL: map[string]bool{xds.ClusterType: true}})
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{lasting(xds.ClusterType, "a@1", time.Minute)}})
		apply(c, xds.Update{Type: xds.ListenerType, Resources: []*xds.Resource{lasting(xds.ListenerType, "a@1", time.Minute)}})
		beat(c, xds.ClusterType, "a", "u1", time.Minute).want(t, "ack")
		if got := item(c, xds.ClusterType, "a").Current; got.TTL() != 0 || !got.Deadline().IsZero() {
			t.Errorf("%+v", got)
		}
		time.Sleep(time.Hour)
		read(watch(c, "a", xds.ClusterType, "*"), func(Snapshot, []xds.Change) {})
		holds(t, c, xds.ClusterType, "a@1")
		holds(t, c, xds.ListenerType)
	})
}

// The lifetime belongs to the resource, whichever version of it is served.
func TestTheAckedVersionHasTheLifetimeOfTheNewest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(Config{})
		w := watch(c, "a", xds.ClusterType, "*")
		first := lasting(xds.ClusterType, "a@1", time.Minute)
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{first}})
		w.Ack(xds.ClusterType, []*xds.Resource{first}, nil)
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{lasting(xds.ClusterType, "a@2", time.Hour)}})
		if it := item(c, xds.ClusterType, "a"); it.Acked.Version != "1" || it.Acked.TTL() != time.Hour || !it.Acked.Deadline().Equal(it.Current.Deadline()) {
			t.Errorf("good is %+v", it.Acked)
		}
		time.Sleep(30 * time.Minute)
		beat(c, xds.ClusterType, "a", "u2", time.Hour)
		if it := item(c, xds.ClusterType, "a"); !it.Acked.Deadline().Equal(time.Now().Add(time.Hour)) {
			t.Errorf("good is %+v", it.Acked)
		}
	})
}
