package cache

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// askedNow applies an answer on a stream that is opened now.
func askedNow(c *Cache, u xds.Update) *answers {
	u.RequestedAt = time.Now()
	return apply(c, u)
}

// wantHeldBack fails unless so many removals of a type are held back.
func wantHeldBack(t *testing.T, c *Cache, typeURL string, want int) {
	t.Helper()
	got := 0
	for _, s := range c.Status() {
		if s.Type == typeURL {
			got = s.RemovalsHeldBack
		}
	}
	if got != want {
		t.Errorf("%d removals of %s are held back, want %d", got, xds.Short(typeURL), want)
	}
}

// design.md I10.
func TestRemovalsThatLookLikeAnAccidentAreHeldBack(t *testing.T) {
	ten := []string{"a@1", "b@1", "c@1", "d@1", "e@1", "f@1", "g@1", "h@1", "i@1", "j@1"}
	for _, tc := range []struct {
		name    string
		typeURL string
		before  []string
		answers [][]string // complete answers
		want    []string   // what is held a minute after the last
	}{
		{"a share below the limit", xds.ClusterType, ten, [][]string{ten[:5]}, ten[:5]},
		{"one above", xds.ClusterType, ten, [][]string{ten[:4]}, ten},
		{"what is new is taken in at once", xds.ClusterType, ten, [][]string{{"a@2", "k@1"}},
			append(append([]string{"a@2"}, ten[1:]...), "k@1")},
		{"of few any share but all", xds.ClusterType, ten[:3], [][]string{ten[:1]}, ten[:1]},
		{"all of few", xds.ClusterType, ten[:2], [][]string{{}}, ten[:2]},
		{"all of few, for another", xds.ListenerType, ten[:2], [][]string{{"z@1"}}, []string{"z@1"}},
		{"as many others", xds.ClusterType, ten[:5], [][]string{ten[5:]}, ten[5:]},
		{"as many others, in two answers", xds.ClusterType, ten[:5], [][]string{ten, ten[5:]}, ten[5:]},
		{"fewer others", xds.ClusterType, ten[:8], [][]string{ten[8:]}, ten},
		{"what every sidecar has does not count", xds.ClusterType, []string{"PassthroughCluster@1", "a@1"}, [][]string{{"PassthroughCluster@1"}}, []string{"PassthroughCluster@1", "a@1"}},
		{"clusters that go one soon after the other", xds.ClusterType, ten, [][]string{ten[:7], ten[:4]}, ten},
		{"a second answer confirms nothing", xds.ClusterType, ten, [][]string{ten[:4], ten[:4]}, ten},
		{"what goes later is held back too", xds.ClusterType, ten, [][]string{ten[:4], ten[:3]}, ten},
		{"what comes back goes again like anything else", xds.ClusterType, ten, [][]string{ten[:4], ten, ten[:8]}, ten[:8]},
		{"scopes are not guarded", xds.ScopedRouteType, ten, [][]string{{}}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
				complete(c, tc.typeURL, tc.before...)
				for _, answer := range tc.answers {
					complete(c, tc.typeURL, answer...).want(t, "ack")
				}
				pass(time.Minute)
				holds(t, c, tc.typeURL, tc.want...)
			})
		})
	}
}

// listenerAt is a listener, as name@version, of a port.
func listenerAt(nameVersion string, port uint32) *xds.Resource {
	r := res(xds.ListenerType, nameVersion)
	r.Body = xdstest.Pack(xdstest.Listener(r.Name, port, "route"))
	return r
}

// design.md I10: Envoy NACKs two listeners with one address, so a listener whose address another
// one has now is not held back. Ten are renamed at once, and one while others are held back.
func TestWhatIsReplacedInItsPlaceIsNotHeldBack(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		push := func(first uint32, prefix string, n int) {
			list := make([]*xds.Resource, n)
			for i := range list {
				list[i] = listenerAt(fmt.Sprintf("%s%d@1", prefix, i), first+uint32(i))
			}
			apply(c, xds.Update{Type: xds.ListenerType, Resources: list, Complete: true}).want(t, "ack")
		}
		push(1000, "blue", 10)
		push(1000, "green", 10)
		wantHeldBack(t, c, xds.ListenerType, 0)
		if held := c.Resources(xds.ListenerType); len(held) != 10 || held[0].Name != "green0" {
			t.Errorf("%d listeners are held, the first is %s", len(held), held[0].Name)
		}
		push(0, "", 0)
		wantHeldBack(t, c, xds.ListenerType, 10)
		push(1003, "yellow", 2)
		wantHeldBack(t, c, xds.ListenerType, 8)
		push(1000, "yellow", 10)
		wantHeldBack(t, c, xds.ListenerType, 0)
		pass(time.Minute)
		if held := c.Resources(xds.ListenerType); len(held) != 10 {
			t.Errorf("%d listeners are held", len(held))
		}
	})
}

// What is new is in the place of what goes, with one answer or shortly before; what was never known before is not new.
func TestWhatIsNewIsInThePlaceOfWhatGoes(t *testing.T) {
	ten := numbered("c", 11)
	for _, tc := range []struct {
		name    string
		before  []string
		answers [][]string
		held    int
	}{
		{"six for five", ten[:6], [][]string{ten[6:]}, 0},
		{"six for five, in two answers", ten[:6], [][]string{ten, ten[6:]}, 0},
		{"six for two", ten[:6], [][]string{ten[6:8]}, 6},
		{"what every sidecar has for five of six", ten[:6], [][]string{{"PassthroughCluster@1", "BlackHoleCluster@1", "local_app@1", ten[0]}}, 5},
		{"six of those that were told first", nil, [][]string{ten, ten[6:]}, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
				watch(c, "x", xds.ClusterType, "*")
				if tc.before != nil {
					complete(c, xds.ClusterType, tc.before...)
				}
				for _, answer := range tc.answers {
					complete(c, xds.ClusterType, answer...)
				}
				wantHeldBack(t, c, xds.ClusterType, tc.held)
			})
		})
	}
}

// What is renamed on its address is not in the place of what goes besides.
func TestWhatIsReplacedCountsAgainstWhatReplacesIt(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		watch(c, "x", xds.ListenerType, "*") // what is new counts only if everything was known
		list := make([]*xds.Resource, 9)
		for i := range list {
			list[i] = listenerAt(fmt.Sprintf("blue%d@1", i), uint32(1000+i))
		}
		apply(c, xds.Update{Type: xds.ListenerType, Resources: list, Complete: true})
		for i := range 3 {
			list[i] = listenerAt(fmt.Sprintf("green%d@1", i), uint32(1000+i))
		}
		apply(c, xds.Update{Type: xds.ListenerType, Resources: list[:3], Complete: true})
		wantHeldBack(t, c, xds.ListenerType, 6)
		if n := len(c.Resources(xds.ListenerType)); n != 9 {
			t.Errorf("%d listeners are held, want 9", n)
		}
	})
}

// The source may use its update again, to log it.
func TestAnUpdateIsNotChanged(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		apply(c, xds.Update{Type: xds.ListenerType, Resources: []*xds.Resource{listenerAt("a@1", 1), listenerAt("b@1", 2), listenerAt("c@1", 3)}})
		u := xds.Update{Type: xds.ListenerType, Resources: []*xds.Resource{listenerAt("d@1", 1)}, Removed: []string{"a", "b"}}
		apply(c, u).want(t, "ack")
		if !slices.Equal(u.Removed, []string{"a", "b"}) {
			t.Errorf("Removed is %q", u.Removed)
		}
	})
}

func TestWhatIsRemovedInAMomentIsGoing(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, "a@1", "b@1", "c@1", "d@1")
		complete(c, xds.ClusterType, "a@1", "b@1", "c@1")
		for _, s := range c.Resources(xds.ClusterType) {
			if s.Going != (s.Name == "d") {
				t.Errorf("%s: %v", s.Name, s.Going)
			}
		}
		complete(c, xds.ClusterType)
		for _, s := range c.Resources(xds.ClusterType) {
			if s.Going {
				t.Errorf("%s is held back, and is said to go", s.Name)
			}
		}
	})
}

// A listener is removed at once: it may have the address of the one that replaces it. What a
// listener or cluster may refer to is removed some seconds later.
func TestRemovalsThatAreNoAccidentTakeEffectSoon(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50, CountNamed: true}}, func(t *testing.T, c *Cache) {
		types := []string{xds.ListenerType, xds.EndpointType, xds.RouteType, xds.SecretType, xds.ScopedRouteType, xds.ExtensionConfigType}
		put(c, xds.ClusterType, "a@1", "b@1", "c@1", "d@1")
		apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"d"}})
		holds(t, c, xds.ClusterType, "a@1", "b@1", "c@1", "d@1")
		apply(c, xds.Update{Type: xds.VirtualHostType, Removed: []string{"a"}})
		holds(t, c, xds.VirtualHostType)
		for _, url := range types {
			watch(c, "x", url, "a", "b")
			put(c, url, "a@1", "b@1")
			apply(c, xds.Update{Type: url, Removed: []string{"b"}})
			wantHeldBack(t, c, url, 0)
		}
		holds(t, c, xds.ListenerType, "a@1")
		apply(c, xds.Update{Type: xds.ScopedRouteType, Resources: resources(xds.ScopedRouteType, []string{"c@1"}), Removed: []string{"a"}})
		holds(t, c, xds.ScopedRouteType, "b@1", "c@1") // c may have a's key
		pass(guard.Grace - time.Second)
		put(c, xds.ScopedRouteType, "a@1")
		for _, url := range types[1:] {
			holds := len(c.Resources(url))
			if url != xds.ScopedRouteType && holds != 2 {
				t.Errorf("%d of %s are held, want 2", holds, xds.Short(url))
			}
		}
		put(c, xds.RouteType, "b@1") // it is there again
		pass(time.Second)
		holds(t, c, xds.ClusterType, "a@1", "b@1", "c@1")
		for _, url := range types {
			switch url {
			case xds.RouteType:
				holds(t, c, url, "a@1", "b@1")
			case xds.ScopedRouteType:
				holds(t, c, url, "a@1", "c@1")
			default:
				holds(t, c, url, "a@1")
			}
		}
	})
}

// What is held back is removed when the time has passed and a source that was asked since does not
// have it; neither the time nor an answer alone is enough.
func TestWhatIsHeldBackIsRemovedWhenASourceIsAskedAgainAndConfirmsIt(t *testing.T) {
	for _, delta := range []bool{false, true} {
		var told, asked, ended atomic.Int32
		cfg := Config{
			Guard:         Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute},
			OnHeldBack:    func(_ string, withheld, _ int, _ time.Time) { told.Store(int32(withheld)) },
			OnAskAgain:    func() { asked.Add(1) },
			OnHeldBackEnd: func(confirmed int) { ended.Store(int32(confirmed)) },
		}
		running(t, cfg, func(t *testing.T, c *Cache) {
			w := watch(c, "x", xds.ClusterType, "*")
			in := c.Subscriptions()
			<-in.Changed()
			in.Changes()
			complete(c, xds.ClusterType, "a@1", "b@1")
			lacks := func(u xds.Update) {
				if u.Type = xds.ClusterType; delta {
					u.Removed = []string{"a", "b"}
				} else {
					u.Complete = true
				}
				apply(c, u).want(t, "ack")
			}
			old := time.Now()
			lacks(xds.Update{RequestedAt: old})
			changed(w)
			if n := told.Load(); n != 2 {
				t.Errorf("%d are said to be held back, want 2", n)
			}
			pass(time.Minute - time.Second)
			<-in.Changed() // what is reported to the control plane
			if r := c.AgentReport(); len(r.HeldBack) != 1 || r.HeldBack[0].Had != 2 || r.HeldBack[0].HeldBack != 2 {
				t.Errorf("reported: %+v", r)
			}
			lacks(xds.Update{RequestedAt: time.Now()}) // a reconnect
			c.Synced("one", xds.ClusterType, time.Now())
			holds(t, c, xds.ClusterType, "a@1", "b@1")
			if !c.RequestAgain().IsZero() || asked.Load() != 0 || len(in.Changed()) > 0 {
				t.Error("sources are asked again before the time")
			}
			pass(time.Second)
			if at := c.RequestAgain(); at.IsZero() || !at.Equal(time.Now()) || asked.Load() != 1 || len(in.Changed()) != 1 {
				t.Errorf("asked again since %v, %d times; want now, once", at, asked.Load())
			}
			put(c, xds.ClusterType, "b@1")
			pass(time.Minute)
			lacks(xds.Update{RequestedAt: old}) // of the stream before
			put(c, xds.ClusterType, "b@1")
			wantHeldBack(t, c, xds.ClusterType, 1)
			held(t, c, "one", xds.ClusterType, map[string]string{"a": "", "b": "u1"})
			u := xds.Update{Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"b@1"}), Complete: !delta}
			askedNow(c, u)
			if delta {
				holds(t, c, xds.ClusterType, "a@1", "b@1") // nothing was said of a yet
				c.Synced("one", xds.ClusterType, time.Now())
				pass(guard.Grace - time.Second)
				holds(t, c, xds.ClusterType, "a@1", "b@1") // there may be more to come
				pass(time.Second)
			}
			holds(t, c, xds.ClusterType, "b@1")
			wantChanged(t, w, "CDS a")
			if n := ended.Load(); n != 1 || !c.RequestAgain().IsZero() {
				t.Errorf("ended with %d confirmed, want 1; to be asked again: %v", n, c.RequestAgain())
			}
		})
	}
}

// A Delta control plane that sends what it has in parts counts as having sent everything when it
// pauses.
func TestWhatADeltaSourceSendsAfterAPauseIsNotRemoved(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
		watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, "a@1", "b@1")
		apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a", "b"}})
		pass(time.Minute)
		askedNow(c, xds.Update{Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"a@1"})})
		c.Synced("one", xds.ClusterType, time.Now())
		pass(guard.Grace - time.Second)
		put(c, xds.ClusterType, "b@1")
		pass(time.Minute)
		holds(t, c, xds.ClusterType, "a@1", "b@1")
	})
}

// What is removed while listeners or clusters are held back is held back with them, and so is what
// was removed shortly before. It is removed after them.
func TestWhatBelongsToWhatIsHeldBackIsHeldWithIt(t *testing.T) {
	running(t, Config{MaxUnreferenced: 1, Linger: time.Second, Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
		c.SetConnected(true)
		w := watch(c, "x", xds.ClusterType, "*")
		subscribe(w, xds.EndpointType, "a", "b")
		subscribe(w, xds.SecretType, "a", "b", "c")
		complete(c, xds.ClusterType, "a@1", "b@1")
		put(c, xds.EndpointType, "a@1", "b@1")
		put(c, xds.SecretType, "a@1", "b@1", "c@1")
		apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"a"}})
		pass(guard.Grace - time.Second)
		complete(c, xds.ClusterType)
		apply(c, xds.Update{Type: xds.SecretType, Removed: []string{"b"}})
		w.Close(nil)
		pass(40 * time.Second) // nothing is evicted, though nobody wants it any more
		apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"b"}})
		wantHeldBack(t, c, xds.ClusterType, 2)
		wantHeldBack(t, c, xds.EndpointType, 2)
		wantHeldBack(t, c, xds.SecretType, 1)
		pass(time.Minute)
		holds(t, c, xds.EndpointType, "a@1", "b@1")
		holds(t, c, xds.SecretType, "a@1", "b@1", "c@1")
		w = watch(c, "x", xds.ClusterType, "*")
		askedNow(c, xds.Update{Type: xds.SecretType, Removed: []string{"b"}})
		askedNow(c, xds.Update{Type: xds.ClusterType, Complete: true})
		holds(t, c, xds.ClusterType)
		wantHeldBack(t, c, xds.EndpointType, 0)
		put(c, xds.EndpointType, "b@1")
		pass(guard.Grace)
		// The LRU has room for one unreferenced resource.
		if n := len(c.Resources(xds.EndpointType)) + len(c.Resources(xds.SecretType)); n > 1 {
			t.Errorf("%d resources are held that nobody wants, want at most 1", n)
		}
		if item(c, xds.EndpointType, "a").Current != nil || item(c, xds.SecretType, "b").Current != nil {
			t.Error("what was removed is still held")
		}
		w.Close(nil)
	})
}

// Other resources that are missing when the source is asked again are held back for as long, from
// then on.
func TestRemovalsInAConfirmingAnswerAreHeldBackForAsLong(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
		watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, numbered("c", 20)...)
		names := numbered("c", 20)
		complete(c, xds.ClusterType, names[:8]...)
		wantHeldBack(t, c, xds.ClusterType, 12)
		pass(time.Minute)
		askedNow(c, xds.Update{Type: xds.ClusterType, Complete: true})
		wantHeldBack(t, c, xds.ClusterType, 8)
		pass(time.Minute - time.Second)
		askedNow(c, xds.Update{Type: xds.ClusterType, Complete: true})
		wantHeldBack(t, c, xds.ClusterType, 8)
		pass(time.Second)
		askedNow(c, xds.Update{Type: xds.ClusterType, Complete: true})
		holds(t, c, xds.ClusterType)
	})
}

// No source is asked for a name without a subscription, so its removal does not wait for an answer.
func TestUnsubscribedResourcesAreNotHeldBackForEver(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute, CountNamed: true}}, func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ListenerType, "a", "b")
		put(c, xds.ListenerType, "a@1", "b@1")
		apply(c, xds.Update{Type: xds.ListenerType, Removed: []string{"a", "b"}})
		w.Subscribe(xds.ListenerType, false, nil, []string{"a"})
		pass(time.Minute)
		wantHeldBack(t, c, xds.ListenerType, 2)
		w.Subscribe(xds.ListenerType, false, nil, []string{"b"})
		pass(time.Second)
		wantHeldBack(t, c, xds.ListenerType, 0)
		pass(guard.Grace)
		holds(t, c, xds.ListenerType)
	})
}

// A TTL ends all the same, and with it the accident (protocol.md 6.2).
func TestWhatIsHeldBackOutlivesNoTTL(t *testing.T) {
	var ended atomic.Int32
	ended.Store(-1)
	cfg := Config{Guard: Guard{MaxRemovalPercent: 50}, OnHeldBackEnd: func(confirmed int) { ended.Store(int32(confirmed)) }}
	running(t, cfg, func(t *testing.T, c *Cache) {
		r := res(xds.ClusterType, "a@1").WithLifetime(time.Minute, time.Now().Add(time.Minute))
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{r}, Complete: true})
		complete(c, xds.ClusterType)
		wantHeldBack(t, c, xds.ClusterType, 1)
		pass(time.Minute)
		holds(t, c, xds.ClusterType)
		wantHeldBack(t, c, xds.ClusterType, 0)
		if n := ended.Load(); n != 0 {
			t.Errorf("ended with %d confirmed, want 0", n)
		}
	})
}

// A restart of the agent confirms nothing: what is held back stays so, and its time goes on. An
// agent without a guard asks at once.
func TestWhatIsHeldBackStaysSoAcrossARestart(t *testing.T) {
	for _, percent := range []int{50, 0} {
		limits := Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Hour}
		running(t, Config{Guard: limits}, func(t *testing.T, c *Cache) {
			j := c.Journal(make(chan struct{}, 1), true)
			watch(c, "x", xds.ClusterType, "*")
			complete(c, xds.ClusterType, "a@1", "b@1")
			put(c, xds.EndpointType, "a@1")
			complete(c, xds.ClusterType)
			apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"a"}})
			pass(40 * time.Minute)
			saved, facts := j.Saved()

			limits.MaxRemovalPercent = percent
			again := New(Config{Guard: limits})
			j = again.Journal(make(chan struct{}, 1), true)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- again.Run(ctx) }()
			again.Restore(saved, facts)
			pass(time.Second)
			if !j.Take().Empty() {
				t.Error("something is to be written after a restart")
			}
			wantHeldBack(t, again, xds.ClusterType, 2)
			wantHeldBack(t, again, xds.EndpointType, 1)
			held(t, again, "one", xds.ClusterType, map[string]string{"a": "", "b": ""})
			if percent > 0 {
				askedNow(again, xds.Update{Type: xds.ClusterType, Complete: true})
				holds(t, again, xds.ClusterType, "a@1", "b@1")
				pass(20 * time.Minute)
			}
			if again.RequestAgain().IsZero() {
				t.Error("the source is not to be asked again an hour after the removals")
			}
			askedNow(again, xds.Update{Type: xds.ClusterType, Complete: true})
			holds(t, again, xds.ClusterType)
			pass(guard.Grace)
			holds(t, again, xds.EndpointType)
			for f := range j.Take().Facts {
				if f.Kind == DeferredFact || f.Kind == AccidentFact {
					_, facts = j.Saved()
					if value := facts[f]; value != "" {
						t.Errorf("%v is still %q", f, value)
					}
				}
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// A resource that a source sent before the disk was read is not held back by what is on disk.
func TestWhatASourcePutBeforeTheRestoreIsNotHeldBack(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		c.Journal(make(chan struct{}, 1), true)
		watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, "a@2")
		c.Restore([]Saved{kept(xds.ClusterType, "a@1"), kept(xds.ClusterType, "b@1")}, map[Fact]string{
			{Kind: AccidentFact}: time.Now().UTC().Format(time.RFC3339),
			{Kind: DeferredFact, Type: xds.ClusterType, Name: "a"}: state.Yes,
			{Kind: DeferredFact, Type: xds.ClusterType, Name: "b"}: state.Yes,
			{Kind: DeferredFact, Type: xds.ClusterType, Name: "c"}: state.Yes, // not on disk
		})
		wantHeldBack(t, c, xds.ClusterType, 1)
		held(t, c, "one", xds.ClusterType, map[string]string{"a": "u2", "b": ""})
	})
}

// The guard also covers a control plane that is empty and answers before a slow disk was read.
func TestWhatWasRemovedBeforeTheRestoreIsGuarded(t *testing.T) {
	saved := []Saved{kept(xds.ClusterType, "a@1"), kept(xds.ClusterType, "b@1"), kept(xds.EndpointType, "a@1")}
	for name, before := range map[string]func(c *Cache){
		"an empty answer": func(c *Cache) { complete(c, xds.ClusterType) },
		"nothing yet": func(c *Cache) {
			apply(c, xds.Update{Type: xds.ClusterType})
		},
		"removals": func(c *Cache) { apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a", "b"}}) },
	} {
		t.Run(name, func(t *testing.T) {
			running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
				w := watch(c, "x", xds.ClusterType, "*")
				subscribe(w, xds.EndpointType, "a")
				apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"a"}})
				before(c)
				c.Restore(saved, meshFacts)
				c.Synced("one", xds.ClusterType, time.Time{})
				pass(time.Minute)
				holds(t, c, xds.ClusterType, "a@1", "b@1")
				holds(t, c, xds.EndpointType, "a@1")
				wantHeldBack(t, c, xds.ClusterType, 2)
				askedNow(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a", "b"}})
				pass(guard.Grace)
				holds(t, c, xds.ClusterType)
				holds(t, c, xds.EndpointType)
			})
		})
	}
}

// Resources that are held back count against the limits.
func TestWhatIsHeldBackCountsAgainstTheLimits(t *testing.T) {
	running(t, Config{MaxResources: 3, Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		complete(c, xds.ClusterType, "a@1", "b@1", "c@1")
		complete(c, xds.ClusterType).want(t, "ack")
		complete(c, xds.ClusterType, "d@1").want(t, "nack: rejected: 4 resources exceed --max-resources 3")
		holds(t, c, xds.ClusterType, "a@1", "b@1", "c@1")
	})
}

// protocol.md 7.7: a resource that a source neither confirms nor removes stays or, if configured,
// is removed after a time. A source confirms its own versions by not sending them again.
func TestWhatNobodyConfirmsIsPrunedIfAskedFor(t *testing.T) {
	for after, want := range map[time.Duration][]string{
		0:           {"own@1", "restored@1", "told@1"},
		time.Minute: {"own@1", "told@1"},
	} {
		running(t, Config{Guard: Guard{PruneAfter: after}}, func(t *testing.T, c *Cache) {
			foreign := kept(xds.ClusterType, "restored@1")
			foreign.Source = "two"
			c.Restore([]Saved{foreign, kept(xds.ClusterType, "own@1")}, meshFacts)
			watch(c, "x", xds.ClusterType, "*")
			put(c, xds.ClusterType, "told@1")
			c.Synced("one", xds.ClusterType, time.Time{})
			pass(time.Minute - time.Second)
			holds(t, c, xds.ClusterType, "own@1", "restored@1", "told@1")
			pass(time.Hour)
			holds(t, c, xds.ClusterType, want...)
		})
	}
}

// assignment is endpoints with one endpoint per port; it is empty without ports. Its version is the ports.
func assignment(name string, ports ...int) *xds.Resource {
	addrs := make([]string, len(ports))
	for i, port := range ports {
		addrs[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	r := res(xds.EndpointType, name+"@"+fmt.Sprint(ports))
	r.Body = xdstest.Pack(xdstest.CLA(name, addrs...))
	return r
}

// assign applies endpoints: "a b" with a port, "-a" without.
func assign(c *Cache, at time.Time, list ...string) *answers {
	var out []*xds.Resource
	for _, name := range list {
		if name, empty := strings.CutPrefix(name, "-"); empty {
			out = append(out, assignment(name))
		} else {
			out = append(out, assignment(name, int(name[0])))
		}
	}
	return apply(c, xds.Update{Type: xds.EndpointType, Resources: out, RequestedAt: at})
}

var full = []string{"a@[97]", "b@[98]", "c@[99]"}

// design.md I10: endpoints that a control plane empties all at once are served until it has said so again
// on two new streams; a view gets those back that went first.
func TestEndpointsOfAllClustersThatAreEmptiedAreHeldBack(t *testing.T) {
	var asked atomic.Int32
	cfg := Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute, HoldEndpoints: true}, OnAskAgain: func() { asked.Add(1) }}
	running(t, cfg, func(t *testing.T, c *Cache) {
		began := time.Now()
		w := watch(c, "x", xds.EndpointType, "a", "b", "c")
		assign(c, began, "a", "b", "c")
		changed(w)
		assign(c, began, "-a").want(t)
		wantChanged(t, w, "EDS a")
		pass(time.Second)
		assign(c, began, "-b", "-c")
		wantChanged(t, w, "EDS a")
		holds(t, c, xds.EndpointType, full...)
		wantHeldBack(t, c, xds.EndpointType, 3)
		held(t, c, "one", xds.EndpointType, map[string]string{"a": "", "b": "", "c": ""})
		pass(5 * time.Second)
		if at := c.RequestAgain(); !at.Equal(time.Now()) || asked.Load() != 1 {
			t.Errorf("asked again at %v, %d times", at, asked.Load())
		}
		assign(c, time.Now(), "a", "-b", "-c")
		wantChanged(t, w)
		pass(20 * time.Second)
		if at := c.RequestAgain(); !at.Equal(time.Now()) || asked.Load() != 2 {
			t.Errorf("asked again at %v, %d times", at, asked.Load())
		}
		assign(c, began, "-b", "-c")
		wantHeldBack(t, c, xds.EndpointType, 2)
		assign(c, time.Now(), "a", "-b", "-c")
		holds(t, c, xds.EndpointType, "a@[97]", "b@[]", "c@[]")
		wantChanged(t, w, "EDS b c")
		if !c.RequestAgain().IsZero() {
			t.Error("it is still to be asked")
		}
	})
}

// Ordinary changes of endpoints are never held back.
func TestOrdinaryChangesOfEndpointsAreNotHeldBack(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name  string
		guard Guard
		do    func(c *Cache)
		want  []string
	}{
		{"one of several", Guard{MaxRemovalPercent: 50, HoldEndpoints: true}, func(c *Cache) { assign(c, now, "-a", "-b") }, []string{"a@[]", "b@[]", "c@[99]"}},
		{"one after the other", Guard{MaxRemovalPercent: 50, HoldEndpoints: true}, func(c *Cache) {
			for _, name := range []string{"-a", "-b", "-c"} {
				assign(c, now, name)
				pass(5 * time.Second)
			}
		}, []string{"a@[]", "b@[]", "c@[]"}},
		{"subsets of one service", Guard{MaxRemovalPercent: 50, HoldEndpoints: true}, func(c *Cache) {
			apply(c, xds.Update{Type: xds.EndpointType, Resources: []*xds.Resource{assignment("a", 1), assignment("b", 2), assignment("c", 1, 2)}})
			assign(c, now, "-a", "-b", "-c")
		}, []string{"a@[]", "b@[]", "c@[]"}},
		{"switched off", Guard{MaxRemovalPercent: 50}, func(c *Cache) { assign(c, now, "-a", "-b", "-c") }, []string{"a@[]", "b@[]", "c@[]"}},
		{"no guard", Guard{HoldEndpoints: true}, func(c *Cache) { assign(c, now, "-a", "-b", "-c") }, []string{"a@[]", "b@[]", "c@[]"}},
		{"members of an aggregate cluster", Guard{MaxRemovalPercent: 50, HoldEndpoints: true}, func(c *Cache) {
			aggregate := res(xds.ClusterType, "all@1")
			aggregate.Body = xdstest.Pack(xdstest.AggregateCluster("all", "one", "two"))
			one, two := res(xds.ClusterType, "one@1"), res(xds.ClusterType, "two@1")
			one.EDSName, two.EDSName = "a", "b"
			apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{one, two, aggregate}})
			assign(c, now, "-a", "-b", "-c")
		}, []string{"a@[]", "b@[]", "c@[]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			running(t, Config{Guard: tc.guard}, func(t *testing.T, c *Cache) {
				watch(c, "x", xds.EndpointType, "a", "b", "c")
				assign(c, now, "a", "b", "c")
				tc.do(c)
				holds(t, c, xds.EndpointType, tc.want...)
			})
		})
	}
}

// What a listener or cluster that is held back refers to is not emptied either: an Envoy that restarts needs it.
// A control plane that was born empty answers for endpoints that they are empty.
func TestWhatBelongsToWhatIsHeldBackIsNotEmptied(t *testing.T) {
	for _, first := range []string{xds.ClusterType, xds.EndpointType} {
		running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute, HoldEndpoints: true}}, func(t *testing.T, c *Cache) {
			watch(c, "x", xds.ClusterType, "*")
			watch(c, "x", xds.EndpointType, "a", "b")
			a := res(xds.ClusterType, "one@1")
			a.EDSName = "a"
			apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{a}, Complete: true})
			assign(c, time.Now(), "a", "b")
			if first == xds.EndpointType {
				assign(c, time.Now(), "-a", "-b")
				complete(c, xds.ClusterType)
			} else {
				complete(c, xds.ClusterType)
				assign(c, time.Now(), "-a", "-b")
			}
			holds(t, c, xds.EndpointType, "a@[97]", "b@[]")
			pass(time.Minute)
			askedNow(c, xds.Update{Type: xds.ClusterType, Complete: true})
			holds(t, c, xds.ClusterType)
			holds(t, c, xds.EndpointType, "a@[97]", "b@[]")
			pass(guard.Grace)
			holds(t, c, xds.EndpointType, "a@[]", "b@[]")
		})
	}
}

// design.md I10: an Envoy that names clusters on demand is told at once that one is gone, be it the last, also while
// others are held back; a client that names everything, as gRPC does, is protected.
func TestWhatIsNamedOnDemandIsNeverHeldBack(t *testing.T) {
	for _, named := range []bool{false, true} {
		running(t, Config{Guard: Guard{MaxRemovalPercent: 50, CountNamed: named}}, func(t *testing.T, c *Cache) {
			watch(c, "x", xds.ClusterType, "a", "b")
			put(c, xds.ClusterType, "a@1", "b@1")
			apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a"}})
			apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"b"}})
			if named {
				holds(t, c, xds.ClusterType, "b@1")
			} else {
				holds(t, c, xds.ClusterType)
			}
		})
	}
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		watch(c, "x", xds.ClusterType, "*", "late")
		complete(c, xds.ClusterType, "a@1", "b@1", "late@1")
		apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a", "b"}})
		holds(t, c, xds.ClusterType, "a@1", "b@1", "late@1")
		apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"late"}})
		holds(t, c, xds.ClusterType, "a@1", "b@1")
	})
}

// An operator need not wait.
func TestAnOperatorConfirmsWhatIsHeldBack(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50, HoldEndpoints: true}}, func(t *testing.T, c *Cache) {
		if c.ReleaseRemovals() {
			t.Error("something was held back")
		}
		watch(c, "x", xds.ClusterType, "*")
		w := watch(c, "x", xds.EndpointType, "a", "b", "c")
		complete(c, xds.ClusterType, "a@1", "b@1")
		assign(c, time.Now(), "a", "b", "c")
		complete(c, xds.ClusterType)
		assign(c, time.Now(), "-a", "-b", "-c")
		changed(w)
		if !c.ReleaseRemovals() {
			t.Error("nothing was held back")
		}
		wantHeldBack(t, c, xds.ClusterType, 0)
		holds(t, c, xds.ClusterType)
		holds(t, c, xds.EndpointType, "a@[]", "b@[]", "c@[]")
		wantChanged(t, w, "EDS a b c")
	})
}

// routed is a route configuration of a cluster. Its version is the cluster.
func routed(name, cluster string) *xds.Resource {
	r := res(xds.RouteType, name+"@"+cluster)
	r.Body = xdstest.Pack(xdstest.Route(name, cluster))
	return r
}

// An istiod that does not know a service takes its cluster away, and answers for its route configuration that there is none of it: what
// leads to a cluster that is held back goes on leading there, whichever comes first, and so does the route of a listener that is.
func TestWhatLeadsToWhatIsHeldBackIsNotChanged(t *testing.T) {
	for _, first := range []string{xds.ClusterType, xds.RouteType} {
		for _, taken := range []string{xds.ClusterType, xds.ListenerType} {
			running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
				watch(c, "x", xds.ClusterType, "*")
				watch(c, "x", xds.ListenerType, "*")
				w := watch(c, "x", xds.RouteType, "80", "90")
				complete(c, xds.ClusterType, "a@1", "b@1")
				listener := res(xds.ListenerType, "l@1")
				listener.Body = xdstest.Pack(xdstest.Listener("l", 1, "80"))
				apply(c, xds.Update{Type: xds.ListenerType, Resources: []*xds.Resource{listener}, Complete: true})
				route := func(at time.Time, list ...*xds.Resource) {
					apply(c, xds.Update{Type: xds.RouteType, Resources: list, RequestedAt: at})
				}
				take := func(at time.Time) {
					apply(c, xds.Update{Type: taken, Complete: true, RequestedAt: at})
				}
				began := time.Now()
				route(began, routed("80", "a"), routed("90", "none"))
				changed(w)
				if first == xds.RouteType {
					route(began, routed("80", "c"), routed("90", "a"))
					pass(time.Second)
					route(began, routed("80", "none"))
					take(began)
				} else {
					take(began)
					route(began, routed("80", "none"), routed("90", "a"))
				}
				holds(t, c, xds.RouteType, "80@a", "90@a")
				wantHeldBack(t, c, xds.RouteType, 0) // nothing of it is gone
				if s := c.Resources(xds.RouteType)[0]; !s.ChangeHeldBack || s.RemovalHeldBack {
					t.Errorf("that its change is held back is not shown: %+v", s)
				}
				if n := c.guard.Changes(xds.RouteType); n == 0 {
					t.Error("no change is counted")
				}
				if held := c.Contents(xds.RouteType, "80"); held.Held.Version != "none" || held.Served.Version != "a" {
					t.Errorf("held is %v, served %v", held.Held.Version, held.Served.Version)
				}
				pass(30 * time.Second)
				route(began, routed("80", "later"))
				holds(t, c, xds.RouteType, "80@a", "90@a")
				pass(30 * time.Second)
				take(time.Now())
				holds(t, c, xds.RouteType, "80@a", "90@a")
				pass(guard.Grace)
				holds(t, c, xds.RouteType, "80@later", "90@a")
			})
		}
	}
}

// Services that are merged into one: the route that leads to it takes effect, before and after the removals. With fewer places to lead to
// it is one that loses what it had.
func TestWhatLeadsElsewhereIsNotHeldBack(t *testing.T) {
	route := func(version string, clusters ...string) *xds.Resource {
		m := xdstest.Route("gw", clusters[0])
		for _, cluster := range clusters[1:] {
			m.VirtualHosts = append(m.VirtualHosts, xdstest.Route("gw", cluster).GetVirtualHosts()[0])
		}
		r := res(xds.RouteType, "gw@"+version)
		r.Body = xdstest.Pack(m)
		return r
	}
	for _, tc := range []struct {
		name   string
		latest []string
		takes  bool
	}{
		{"merged", []string{"a", "b", "a", "a", "a", "a"}, true},
		{"merged into a new one", []string{"a", "b", "new", "new", "new", "new"}, true},
		{"merged, and more", []string{"a", "b", "a", "a", "a", "a", "new"}, true},
		{"one is lost", []string{"a", "b", "a", "a", "a"}, false},
		{"to what is not there", []string{"a", "b", "x", "x", "x", "x"}, false},
		{"to what every sidecar has", []string{"a", "b", "PassthroughCluster", "PassthroughCluster", "PassthroughCluster", "PassthroughCluster"}, false},
		{"to one that goes, too", []string{"a", "b", "c", "c", "c", "c"}, false},
	} {
		for _, routeFirst := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, route first %v", tc.name, routeFirst), func(t *testing.T) {
				running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
					watch(c, "x", xds.ClusterType, "*")
					watch(c, "x", xds.RouteType, "gw")
					complete(c, xds.ClusterType, "a@1", "b@1", "c@1", "d@1", "e@1", "f@1", "PassthroughCluster@1")
					apply(c, xds.Update{Type: xds.RouteType, Resources: []*xds.Resource{route("1", "a", "b", "c", "d", "e", "f")}})
					changes := []func(){
						func() { complete(c, xds.ClusterType, "a@1", "new@1", "PassthroughCluster@1") },
						func() {
							apply(c, xds.Update{Type: xds.RouteType, Resources: []*xds.Resource{route("2", tc.latest...)}})
						},
					}
					if routeFirst {
						slices.Reverse(changes)
						put(c, xds.ClusterType, "new@1")
					}
					for _, change := range changes {
						change()
					}
					wantHeldBack(t, c, xds.ClusterType, 5)
					if tc.takes {
						holds(t, c, xds.RouteType, "gw@2")
					} else {
						holds(t, c, xds.RouteType, "gw@1")
					}
				})
			})
		}
	}
}

// A listener that is held back as it was is there, although the answer that changed it is complete.
func TestAListenerThatLeadsToWhatIsHeldBackStays(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
		watch(c, "x", xds.ClusterType, "*")
		watch(c, "x", xds.ListenerType, "*")
		complete(c, xds.ClusterType, "a@1")
		listener := func(version, cluster string) *xds.Resource {
			r := res(xds.ListenerType, "l@"+version)
			r.Body = xdstest.Pack(xdstest.TCPListener("l", 1, cluster))
			return r
		}
		apply(c, xds.Update{Type: xds.ListenerType, Resources: []*xds.Resource{listener("1", "a")}, Complete: true})
		complete(c, xds.ClusterType)
		apply(c, xds.Update{Type: xds.ListenerType, Resources: []*xds.Resource{listener("2", "b")}, Complete: true})
		holds(t, c, xds.ListenerType, "l@1")
		apply(c, xds.Update{Type: xds.ListenerType, Resources: []*xds.Resource{listener("3", "a")}, Complete: true})
		holds(t, c, xds.ListenerType, "l@3")
		complete(c, xds.ClusterType, "a@1")
		apply(c, xds.Update{Type: xds.ListenerType, Resources: []*xds.Resource{listener("4", "b")}, Complete: true})
		holds(t, c, xds.ListenerType, "l@4")
	})
}
