package cache

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/guard"
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
		{"of few any share but all", xds.ClusterType, ten[:9], [][]string{ten[:1]}, ten[:1]},
		{"all of few", xds.ClusterType, ten[:2], [][]string{{}}, ten[:2]},
		{"all of few, for others", xds.ListenerType, ten[:2], [][]string{{"z@1"}}, []string{"a@1", "b@1", "z@1"}},
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

// A listener is removed at once: it may have the address of the one that replaces it. What a
// listener or cluster may refer to is removed some seconds later.
func TestRemovalsThatAreNoAccidentTakeEffectSoon(t *testing.T) {
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		types := []string{xds.ListenerType, xds.ClusterType, xds.EndpointType, xds.RouteType, xds.SecretType, xds.ScopedRouteType, xds.VirtualHostType, xds.ExtensionConfigType}
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
		running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
			var told, asked, ended atomic.Int32
			c.cfg.OnHeldBack = func(_ string, withheld, _ int) { told.Store(int32(withheld)) }
			c.cfg.OnAskAgain = func() { asked.Add(1) }
			c.cfg.OnHeldBackEnd = func(confirmed int) { ended.Store(int32(confirmed)) }
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
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
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
	running(t, Config{Guard: Guard{MaxRemovalPercent: 50}}, func(t *testing.T, c *Cache) {
		var ended atomic.Int32
		ended.Store(-1)
		c.cfg.OnHeldBackEnd = func(confirmed int) { ended.Store(int32(confirmed)) }
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
			{Kind: DeferredFact, Type: xds.ClusterType, Name: "a"}: yes,
			{Kind: DeferredFact, Type: xds.ClusterType, Name: "b"}: yes,
			{Kind: DeferredFact, Type: xds.ClusterType, Name: "c"}: yes, // not on disk
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
		complete(c, xds.ClusterType, "a@1", "b@1")
		complete(c, xds.ClusterType, "c@1").want(t, "ack")
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
