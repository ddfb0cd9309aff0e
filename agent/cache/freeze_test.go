package cache

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// frozen makes a cache in which clusters a@1 and b@1 and the endpoints of a are served and ACKed, and
// freezes everything.
func frozen(t *testing.T, cfg Config, o Freeze, test func(t *testing.T, c *Cache, w *Watch)) {
	t.Helper()
	running(t, cfg, func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ClusterType, "*")
		subscribe(w, xds.EndpointType, "a")
		complete(c, xds.ClusterType, "a@1", "b@1")
		put(c, xds.EndpointType, "a@1")
		accept(w, xds.ClusterType, "a@1", "b@1")
		accept(w, xds.EndpointType, "a@1")
		pass(time.Minute)
		o.Since = time.Now()
		if err := c.Freeze(o); err != nil {
			t.Fatal(err)
		}
		changed(w)
		test(t, c, w)
	})
}

var everything = Freeze{All: true, Reason: "a bad night"}

// waits fails unless so many changes of clusters and endpoints wait.
func waits(t *testing.T, c *Cache, clusters, endpoints int) {
	t.Helper()
	if _, n := c.Frozen(); n[xds.ClusterType] != clusters || n[xds.EndpointType] != endpoints {
		t.Errorf("waiting: %v, want %d and %d", n, clusters, endpoints)
	}
}

func allClusters(c *Cache) (out []string) {
	look(c, func(s Snapshot) {
		for item := range s.All(xds.ClusterType) {
			out = append(out, item.Current.Name+"@"+item.Current.Version)
		}
	})
	slices.Sort(out)
	return out
}

func TestWhatIsFrozenIsServedWhateverTheSourceSends(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, w *Watch) {
		complete(c, xds.ClusterType, "a@2", "c@1").want(t, "nack: frozen: a bad night")
		servesClusters(t, c, "1", "1", "")
		if got := allClusters(c); !slices.Equal(got, []string{"a@1", "b@1"}) {
			t.Errorf("all: %v", got)
		}
		waits(t, c, 3, 0)
		put(c, xds.ClusterType, "a@3").want(t, "nack: frozen: a bad night")
		servesClusters(t, c, "1", "1", "")
		waits(t, c, 3, 0)

		changed(w)
		if !c.Unfreeze() {
			t.Error("nothing was frozen")
		}
		wantChanged(t, w, "CDS a b c")
		servesClusters(t, c, "3", "", "1")
		if c.Unfreeze() {
			t.Error("it was frozen twice")
		}
	})
}

// A freeze must not send requests to hosts that are gone.
func TestEndpointsAreNotFrozenUnlessTheyAreNamed(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, _ *Watch) {
		put(c, xds.EndpointType, "a@2").want(t)
		serves(t, c, xds.EndpointType, "a", "2")
	})
	frozen(t, Config{}, Freeze{Types: []string{xds.EndpointType}}, func(t *testing.T, c *Cache, _ *Watch) {
		put(c, xds.EndpointType, "a@2")
		serves(t, c, xds.EndpointType, "a", "1")
		put(c, xds.ClusterType, "a@2")
		serves(t, c, xds.ClusterType, "a", "2")
	})
}

// A frozen cluster refers to its endpoints, which the control plane drops with the cluster.
func TestWhatFrozenResourcesReferToIsKept(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, w *Watch) {
		complete(c, xds.ClusterType, "b@1")
		v := apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"a"}})
		progress(w, xds.EndpointType)
		v.want(t, "ack")
		serves(t, c, xds.ClusterType, "a", "1")
		serves(t, c, xds.EndpointType, "a", "1")
		put(c, xds.EndpointType, "a@5") // it has them again
		serves(t, c, xds.EndpointType, "a", "5")
		apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"a"}})
		serves(t, c, xds.EndpointType, "a", "5")
		changed(w)
		c.Unfreeze()
		wantChanged(t, w, "CDS a", "EDS a")
		serves(t, c, xds.EndpointType, "a", "")
	})
}

// The endpoints are removed while Envoy restarts.
func TestWhatFrozenResourcesReferToIsKeptWithoutAClient(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, w *Watch) {
		w.Close(nil)
		complete(c, xds.ClusterType, "b@1")
		apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"a"}})
		serves(t, c, xds.ClusterType, "a", "1")
		serves(t, c, xds.EndpointType, "a", "1")
	})
}

func TestAFreezeOfATypeOrANameConcernsNothingElse(t *testing.T) {
	frozen(t, Config{}, Freeze{Names: []xds.Key{{Type: xds.ClusterType, Name: "a"}}}, func(t *testing.T, c *Cache, _ *Watch) {
		complete(c, xds.ClusterType, "a@2", "b@2", "c@1")
		servesClusters(t, c, "1", "2", "1")
		waits(t, c, 1, 0)
	})
}

func TestAFreezeCanACK(t *testing.T) {
	o := everything
	o.ACK = true
	frozen(t, Config{}, o, func(t *testing.T, c *Cache, w *Watch) {
		v := complete(c, xds.ClusterType, "a@2", "c@1")
		progress(w, xds.ClusterType)
		v.want(t, "ack")
		servesClusters(t, c, "1", "1", "")
	})
}

// What comes back to what is served does not wait, and is ACKed.
func TestAChangeThatIsTakenBackDoesNotWait(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, w *Watch) {
		complete(c, xds.ClusterType, "a@2", "b@1")
		v := complete(c, xds.ClusterType, "a@1", "b@1")
		progress(w, xds.ClusterType)
		v.want(t, "ack")
		waits(t, c, 0, 0)
		c.Unfreeze()
		wantStatus(t, c, xds.ClusterType, "a", xds.Acked, "1")
	})
}

// A client that begins to need a name during a freeze gets it: nothing was served in its place.
func TestANameThatIsNewToAllClientsIsServedDuringAFreeze(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, w *Watch) {
		subscribe(w, xds.RouteType, "new")
		put(c, xds.RouteType, "new@1")
		serves(t, c, xds.RouteType, "new", "1")
		put(c, xds.RouteType, "new@2")
		serves(t, c, xds.RouteType, "new", "1")
	})
}

func TestATTLEndsDuringAFreeze(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, w *Watch) {
		short := res(xds.ClusterType, "a@1").WithLifetime(time.Minute, time.Now().Add(time.Minute))
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{short}})
		apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a"}})
		serves(t, c, xds.ClusterType, "a", "1")
		pass(30 * time.Second)
		serves(t, c, xds.ClusterType, "a", "1")
		changed(w)
		pass(31 * time.Second)
		serves(t, c, xds.ClusterType, "a", "")
		wantChanged(t, w, "CDS a")
	})
}

// A heartbeat renews what is served, although the source has another content by now.
func TestAHeartbeatRenewsWhatIsFrozen(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, _ *Watch) {
		lives := func(d time.Duration) time.Time { return time.Now().Add(d) }
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{
			res(xds.ClusterType, "a@1").WithLifetime(time.Minute, lives(time.Minute))}})
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{
			res(xds.ClusterType, "a@2").WithLifetime(time.Minute, lives(time.Minute))}})
		pass(50 * time.Second)
		apply(c, xds.Update{Type: xds.ClusterType, Heartbeats: []xds.Heartbeat{{Name: "a", Version: "u2", TTL: time.Minute, Deadline: lives(time.Minute)}}})
		pass(50 * time.Second)
		serves(t, c, xds.ClusterType, "a", "1")
		pass(11 * time.Second)
		serves(t, c, xds.ClusterType, "a", "")
	})
}

// The NACK of a client that gets what is frozen does not touch what waits, and the other way round.
func TestAnswersOfClientsConcernWhatTheyWereSent(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, w *Watch) {
		complete(c, xds.ClusterType, "a@2", "b@1")
		later := watch(c, "y", xds.ClusterType, "*")
		accept(later, xds.ClusterType, "a@1", "b@1")
		wantStatus(t, c, xds.ClusterType, "a", xds.Acked, "1")
		c.Unfreeze()
		wantStatus(t, c, xds.ClusterType, "a", xds.Pending, "1")
		accept(w, xds.ClusterType, "a@2")
		wantStatus(t, c, xds.ClusterType, "a", xds.Acked, "2")
	})
}

// Without clients nothing that is frozen is forgotten.
func TestLeasesDoNotEndDuringAFreeze(t *testing.T) {
	frozen(t, Config{Linger: time.Minute}, everything, func(t *testing.T, c *Cache, w *Watch) {
		c.SetConnected(true)
		w.Close(nil)
		pass(time.Hour)
		complete(c, xds.ClusterType)
		servesClusters(t, c, "1", "1", "")
		serves(t, c, xds.EndpointType, "a", "1")
	})
}

func TestAfterAFreezeEverySourceIsAskedAgain(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, _ *Watch) {
		if !c.RequestAgain().IsZero() {
			t.Error("it is asked at the beginning")
		}
		pass(time.Second)
		c.Unfreeze()
		if !c.RequestAgain().Equal(time.Now()) {
			t.Error("it is not asked")
		}
	})
}

func TestAFreezeOfAFrozenCacheIsAnError(t *testing.T) {
	frozen(t, Config{}, everything, func(t *testing.T, c *Cache, _ *Watch) {
		if err := c.Freeze(everything); !errors.Is(err, ErrFrozen) {
			t.Error(err)
		}
	})
}

// restarted returns a cache that has read what another one left on disk, with its source's answer
// before or after that.
func restarted(t *testing.T, from *Cache, j *Journal, early func(*Cache)) *Cache {
	t.Helper()
	saved, facts := j.Saved()
	c := New(from.cfg)
	c.Journal(make(chan struct{}, 1), true)
	w := watch(c, "x", xds.ClusterType, "*")
	subscribe(w, xds.EndpointType, "a")
	early(c)
	c.Restore(saved, facts)
	c.RestoreVersions(j.SavedVersions(), time.Time{})
	c.ServeRestored()
	return c
}

// A freeze outlives the agent, whether the disk or the control plane is faster.
func TestAFreezeSurvivesARestart(t *testing.T) {
	newest := func(c *Cache) {
		complete(c, xds.ClusterType, "a@2", "c@1")
		apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"a"}})
	}
	for name, early := range map[string]func(*Cache){"the disk is first": func(*Cache) {}, "the source is first": newest} {
		t.Run(name, func(t *testing.T) {
			running(t, Config{}, func(t *testing.T, c *Cache) {
				j := c.Journal(make(chan struct{}, 1), true)
				w := watch(c, "x", xds.ClusterType, "*")
				subscribe(w, xds.EndpointType, "a")
				complete(c, xds.ClusterType, "a@1", "b@1")
				put(c, xds.EndpointType, "a@1")
				accept(w, xds.ClusterType, "a@1", "b@1")
				accept(w, xds.EndpointType, "a@1")
				if err := c.Freeze(Freeze{All: true, Since: time.Now(), Reason: "why"}); err != nil {
					t.Fatal(err)
				}
				newest(c)
				for range 2 {
					again := restarted(t, c, j, early)
					servesClusters(t, again, "1", "1", "")
					newest(again)
					servesClusters(t, again, "1", "1", "")
					serves(t, again, xds.EndpointType, "a", "1")
					if o, n := again.Frozen(); o == nil || o.Reason != "why" || n[xds.ClusterType] != 3 {
						t.Errorf("frozen: %+v, waiting %v", o, n)
					}
					c, j = again, again.journal
				}
				c.Unfreeze()
				servesClusters(t, c, "2", "", "1")
				serves(t, c, xds.EndpointType, "a", "")
				d := newDisk()
				d.take(j)
				for f := range c.stored().AllFacts() {
					if f.Kind == PinnedFact || f.Kind == FreezeFact {
						t.Errorf("on disk is still %v", f)
					}
				}
			})
		})
	}
}

// A type that the source has not sent yet waits for the source or for the disk as without a freeze.
func TestAfterARestartWhatIsFrozenWaitsForTheSourceAsEver(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		c.Restore([]Saved{kept(xds.ClusterType, "a@1")}, map[Fact]string{
			{Kind: FreezeFact}: (&Freeze{All: true, Since: time.Now()}).Format(), {Kind: PinnedFact, Type: xds.ClusterType, Name: "a"}: state.Yes,
			{Kind: KnownFact, Type: xds.ClusterType}: state.Yes,
		})
		watch(c, "x", xds.ClusterType, "*")
		serves(t, c, xds.ClusterType, "a", "")
		complete(c, xds.ClusterType, "a@2")
		serves(t, c, xds.ClusterType, "a", "1")
	})
}

// progress says that the client has seen everything so far.
func progress(w *Watch, typeURL string) {
	s, _ := w.Begin()
	revision := s.Revision()
	w.End()
	w.Progress(typeURL, revision)
}
