package cache

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// crashed is an Envoy that is started, does something, and crashes within seconds.
func crashed(c *Cache, does func(w *Watch)) (suspects []xds.Key) {
	pass(time.Second)
	started := time.Now()
	w := watch(c, "x", xds.ClusterType, "*")
	subscribe(w, xds.ListenerType, "*")
	does(w)
	pass(time.Second)
	w.Close(nil)
	return c.Crashed(started)
}

// deadly makes a cache in which a@1 and b@1 were stable before a@2 and c@1 came and b was removed,
// and in which Envoy has crashed three times with that.
func deadly(t *testing.T, test func(t *testing.T, c *Cache)) {
	t.Helper()
	running(t, Config{FallbackEnabled: true}, func(t *testing.T, c *Cache) {
		fallBack(t, c)
		test(t, c)
	})
}

func fallBack(t *testing.T, c *Cache) {
	t.Helper()
	w := watch(c, "x", xds.ClusterType, "*")
	subscribe(w, xds.ListenerType, "*")
	complete(c, xds.ClusterType, "a@1", "b@1", "d@1")
	accept(w, xds.ClusterType, "a@1", "b@1", "d@1")
	pass(probation.StableAfter)
	complete(c, xds.ClusterType, "a@2", "c@1", "d@1")
	accept(w, xds.ClusterType, "a@2", "c@1")
	w.Close(nil)
	for n := range 3 {
		suspects := crashed(c, func(w *Watch) { accept(w, xds.ClusterType, "a@2", "c@1", "d@1") })
		if want := (n == 2); (len(suspects) > 0) != want {
			t.Fatalf("crash %d: %v is suspected", n+1, suspects)
		}
	}
}

func suspected(t *testing.T, c *Cache, want ...string) {
	t.Helper()
	var got []string
	if f := c.Fallback(); f != nil {
		for _, s := range f.Suspects {
			got = append(got, xds.Short(s.Type)+" "+s.Name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("suspected: %q, want %q", got, want)
	}
}

func servesClusters(t *testing.T, c *Cache, a, b, other string) {
	t.Helper()
	for name, version := range map[string]string{"a": a, "b": b, "c": other} {
		serves(t, c, xds.ClusterType, name, version)
	}
}

func TestAfterThreeCrashesWhatAllOfThemHadIsHeldBack(t *testing.T) {
	deadly(t, func(t *testing.T, c *Cache) {
		suspected(t, c, "CDS a", "CDS b", "CDS c")
		servesClusters(t, c, "1", "1", "")
		serves(t, c, xds.ClusterType, "d", "1")
	})
}

// What explain, dump, CSDS and a rehearsal say is served, is.
func TestTheStatusOfWhatIsHeldBackIsWhatIsServed(t *testing.T) {
	deadly(t, func(t *testing.T, c *Cache) {
		var got []string
		for _, r := range c.Resources(xds.ClusterType) {
			line := r.Name
			for _, v := range []*xds.Resource{r.Current, r.Served} {
				if line += " -"; v != nil {
					line = line[:len(line)-1] + v.UpstreamVersion
				}
			}
			if r.FellBack {
				line += " held back"
			}
			got = append(got, line)
		}
		// The newest version, and what is served instead.
		if want := []string{"a u2 u1 held back", "b - u1 held back", "c u1 - held back", "d u1 -"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// An Envoy that uses the stable versions was not sent what is held back, so it makes nothing of
// that stable, however often it reconnects.
func TestLivingWithTheStableVersionsDoesNotMakeTheSuspectsStable(t *testing.T) {
	deadly(t, func(t *testing.T, c *Cache) {
		for range 3 {
			w := watch(c, "x", xds.ClusterType, "*")
			accept(w, xds.ClusterType, "a@1", "b@1", "d@1")
			pass(5 * probation.StableAfter)
			servesClusters(t, c, "1", "1", "")
			isStable(t, c, "1")
			w.Close(nil)
		}
		suspected(t, c, "CDS a", "CDS b", "CDS c")
	})
}

// Endpoints, and names and types that came since, are no suspects.
func TestWhatIsNotSuspectedGoesOnChanging(t *testing.T) {
	deadly(t, func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ClusterType, "*")
		subscribe(w, xds.ListenerType, "*")
		subscribe(w, xds.EndpointType, "a")
		changed(w)
		put(c, xds.ClusterType, "d@2", "e@1")
		put(c, xds.ListenerType, "l@1")
		put(c, xds.EndpointType, "a@7")
		wantChanged(t, w, "CDS d e", "EDS a", "LDS *")
		serves(t, c, xds.ClusterType, "d", "2")
		serves(t, c, xds.ClusterType, "e", "1")
		serves(t, c, xds.ListenerType, "l", "1")
		serves(t, c, xds.EndpointType, "a", "7")
		servesClusters(t, c, "1", "1", "")
	})
}

func TestAFallbackEndsWithTheLastSuspectThatTheControlPlaneChanges(t *testing.T) {
	deadly(t, func(t *testing.T, c *Cache) {
		complete(c, xds.ClusterType, "a@2", "c@1", "d@1") // the same again
		suspected(t, c, "CDS a", "CDS b", "CDS c")
		v := put(c, xds.ClusterType, "a@3")
		serves(t, c, xds.ClusterType, "a", "3")
		suspected(t, c, "CDS b", "CDS c")
		// The next client NACKs the new one, which was ACKed while there was none: it does not get the
		// suspected one instead.
		w := watch(c, "x", xds.ClusterType, "*")
		w.Nack(xds.ClusterType, 1_000, "no", res(xds.ClusterType, "a@3"), nil)
		v.want(t, "ack", "nack: x: no")
		wantStatus(t, c, xds.ClusterType, "a", xds.Nacked, "1")
		put(c, xds.ClusterType, "b@2")
		apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"c"}})
		suspected(t, c)
		if c.Fallback() != nil {
			t.Error("it has not ended")
		}
		servesClusters(t, c, "3", "2", "")
	})
}

func TestAFallbackEndsByHandAndByItself(t *testing.T) {
	for name, end := range map[string]func(c *Cache) bool{
		"by hand":   func(c *Cache) bool { return c.Resume() },
		"by itself": func(*Cache) bool { pass(fallback.DefaultDuration); return true },
	} {
		t.Run(name, func(t *testing.T) {
			why := ""
			running(t, Config{FallbackEnabled: true, OnFallbackEnd: func(s string) { why = s }}, func(t *testing.T, c *Cache) {
				fallBack(t, c)
				w := watch(c, "x", xds.ClusterType, "*")
				accept(w, xds.ClusterType, "a@1", "b@1", "d@1")
				changed(w)
				if c.Fallback() == nil || !end(c) || c.Fallback() != nil || why == "" {
					t.Errorf("it has not ended, or nobody is told why (%q)", why)
				}
				wantChanged(t, w, "CDS a b c")
				servesClusters(t, c, "2", "", "1")
				if c.Resume() {
					t.Error("it ends twice")
				}
				w.Close(nil)
				// The suspects are served once more, and held back again if Envoy crashes again.
				for range 3 {
					crashed(c, func(w *Watch) { accept(w, xds.ClusterType, "a@2", "c@1", "d@1") })
				}
				servesClusters(t, c, "1", "1", "")
			})
		})
	}
}

// A client that uses the suspects for long enough when they are served once more makes them stable.
func TestSuspectsThatAClientUsesForLongEnoughAreStable(t *testing.T) {
	deadly(t, func(t *testing.T, c *Cache) {
		c.Resume()
		w := watch(c, "x", xds.ClusterType, "*")
		accept(w, xds.ClusterType, "a@2", "c@1", "d@1")
		pass(probation.StableAfter)
		isStable(t, c, "2")
	})
}

func TestAFallbackSurvivesARestart(t *testing.T) {
	running(t, Config{FallbackEnabled: true}, func(t *testing.T, c *Cache) {
		j, d := c.Journal(nil, true), newDisk()
		fallBack(t, c)
		d.take(j)
		again := New(Config{FallbackEnabled: true})
		again.Journal(nil, true)
		again.Restore(d.saved())
		again.ServeRestored()
		suspected(t, again, "CDS a", "CDS b", "CDS c")
		servesClusters(t, again, "1", "1", "")
		for _, s := range again.Status() {
			if s.Type == "" {
				t.Error("the status has a type without a name")
			}
		}
		if got, want := again.Fallback().Until, c.Fallback().Until.Truncate(time.Second); !got.Equal(want) {
			t.Errorf("it ends at %s, before the restart at %s", got, want)
		}
		complete(again, xds.ClusterType, "a@2", "c@1", "d@1") // the control plane is back
		servesClusters(t, again, "1", "1", "")
		put(c, xds.ClusterType, "a@3", "b@3", "c@3")
		d.take(j)
		if c.Fallback() != nil || slices.ContainsFunc(d.lines(), func(l string) bool { return l[:4] == "susp" || l[:4] == "fall" }) {
			t.Errorf("it is over, and on disk is %q", d.lines())
		}
	})
}

// A stable content with a secret may not be on disk. To serve nothing in its place would be worse than what the control
// plane sends.
func TestASuspectWhoseStableContentIsLostIsServedAgain(t *testing.T) {
	var b Batch
	deadly(t, func(t *testing.T, c *Cache) {
		j := c.Journal(make(chan struct{}, 1), true)
		b = j.All()
		j.Done(nil)
	})
	for _, lost := range []bool{false, true} {
		running(t, Config{FallbackEnabled: true}, func(t *testing.T, c *Cache) {
			saved, want := slices.Clone(b.Resources), "1"
			if lost {
				saved, want = slices.DeleteFunc(saved, func(s Saved) bool { return s.Name == "a" }), "2"
			}
			c.Restore(saved, b.Facts)
			c.ServeRestored()
			complete(c, xds.ClusterType, "a@2", "c@1", "d@1")
			serves(t, c, xds.ClusterType, "a", want)
			serves(t, c, xds.ClusterType, "b", "1") // its removal is held back
			serves(t, c, xds.ClusterType, "c", "")  // nothing was ever stable
		})
	}
}

func TestWhatIsNoEvidenceHoldsNothingBack(t *testing.T) {
	type step struct {
		does  func(w *Watch)
		after time.Duration
	}
	accepts := func(list ...string) func(w *Watch) {
		return func(w *Watch) { accept(w, xds.ClusterType, list...) }
	}
	for name, steps := range map[string][]step{
		"two crashes":                        {{accepts("a@2"), 0}, {accepts("a@2"), 0}},
		"three crashes in more than ten min": {{accepts("a@2"), 0}, {accepts("a@2"), 6 * time.Minute}, {accepts("a@2"), 5 * time.Minute}},
		"an Envoy that never got anything":   {{accepts(), 0}, {accepts(), 0}, {accepts(), 0}},
		"one of three had nothing new":       {{accepts("a@2"), 0}, {accepts("a@1"), 0}, {accepts("a@2"), 0}},
	} {
		t.Run(name, func(t *testing.T) {
			running(t, Config{FallbackEnabled: true}, func(t *testing.T, c *Cache) {
				put(c, xds.ClusterType, "a@1")
				w := watch(c, "x", xds.ClusterType, "*")
				accept(w, xds.ClusterType, "a@1")
				pass(probation.StableAfter)
				w.Close(nil)
				put(c, xds.ClusterType, "a@2")
				for _, s := range steps {
					pass(s.after)
					if got := crashed(c, s.does); got != nil {
						t.Errorf("%v is held back", got)
					}
				}
				serves(t, c, xds.ClusterType, "a", "2")
			})
		})
	}
	t.Run("nothing was ever stable", func(t *testing.T) {
		running(t, Config{FallbackEnabled: true}, func(t *testing.T, c *Cache) {
			put(c, xds.ClusterType, "a@1")
			for range 4 {
				if got := crashed(c, accepts("a@1")); got != nil {
					t.Errorf("%v is held back, and nothing is left to serve", got)
				}
			}
		})
	})
}

// A client that disconnected long before the crash does not count; a client whose answer was
// missing may have crashed of what it was sent.
func TestWhatACrashedEnvoyHadIsWhatItWasSent(t *testing.T) {
	running(t, Config{FallbackEnabled: true}, func(t *testing.T, c *Cache) {
		put(c, xds.ClusterType, "a@1", "b@1")
		w := watch(c, "x", xds.ClusterType, "*")
		accept(w, xds.ClusterType, "a@1", "b@1")
		pass(probation.StableAfter)
		put(c, xds.ClusterType, "a@2", "b@2")
		accept(w, xds.ClusterType, "b@2")
		w.Close(nil)
		var got []xds.Key
		for range 3 {
			pass(time.Second)
			started := time.Now()
			w := watch(c, "x", xds.ClusterType, "*")
			pass(time.Second)
			w.Close(map[string][]string{xds.ClusterType: {"a"}})
			got = c.Crashed(started)
		}
		if fmt.Sprint(got) != fmt.Sprint([]xds.Key{{Type: xds.ClusterType, Name: "a"}}) {
			t.Errorf("suspected: %v, want a", got)
		}
		serves(t, c, xds.ClusterType, "a", "1")
		serves(t, c, xds.ClusterType, "b", "2")
	})
}

// routeTo is a route, as name@version, that leads to a cluster.
func routeTo(nameVersion, cluster string) *xds.Resource {
	r := res(xds.RouteType, nameVersion)
	r.Body = xdstest.Pack(xdstest.Route(r.Name, cluster))
	return r
}

// A cluster is renamed together with its endpoints and the route to it, and an Envoy crashes of a
// listener that came with that, before it asks for the route. What is served then fits together:
// the stable route, and the old cluster with its endpoints.
func TestWhatIsHeldBackTakesAlongWhatDependsOnIt(t *testing.T) {
	running(t, Config{FallbackEnabled: true}, func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ClusterType, "*")
		subscribe(w, xds.ListenerType, "*")
		subscribe(w, xds.RouteType, "r", "other")
		subscribe(w, xds.EndpointType, "old")
		clusters := func(names ...string) []*xds.Resource {
			list := resources(xds.ClusterType, names)
			for _, r := range list {
				r.EDSName = r.Name
			}
			return list
		}
		routes := func(version, to string) []*xds.Resource {
			return []*xds.Resource{routeTo("r@"+version, to), routeTo("other@"+version, "kept")}
		}
		apply(c, xds.Update{Type: xds.ClusterType, Resources: clusters("old@1", "kept@1"), Complete: true})
		put(c, xds.EndpointType, "old@1", "kept@1")
		complete(c, xds.ListenerType, "l@1")
		apply(c, xds.Update{Type: xds.RouteType, Resources: routes("1", "old")})
		accept(w, xds.ClusterType, "old@1", "kept@1")
		accept(w, xds.EndpointType, "old@1")
		accept(w, xds.ListenerType, "l@1")
		w.Ack(xds.RouteType, routes("1", "old"), nil)
		pass(probation.StableAfter)
		apply(c, xds.Update{Type: xds.ClusterType, Resources: clusters("new@1", "kept@1"), Complete: true})
		put(c, xds.EndpointType, "new@1")
		apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"old"}})
		complete(c, xds.ListenerType, "l@1", "deadly@1")
		apply(c, xds.Update{Type: xds.RouteType, Resources: routes("2", "new")})
		w.Close(nil)
		for range 3 {
			crashed(c, func(w *Watch) {
				accept(w, xds.ClusterType, "new@1", "kept@1")
				accept(w, xds.ListenerType, "deadly@1")
			})
		}
		suspected(t, c, "CDS new", "CDS old", "EDS old", "LDS deadly", "RDS r")
		serves(t, c, xds.RouteType, "r", "1")
		serves(t, c, xds.RouteType, "other", "2")
		serves(t, c, xds.ClusterType, "old", "1")
		serves(t, c, xds.ClusterType, "new", "")
		serves(t, c, xds.EndpointType, "old", "1")
		put(c, xds.EndpointType, "old@2")
		serves(t, c, xds.EndpointType, "old", "2")
		c.Resume()
		serves(t, c, xds.RouteType, "r", "2")
		serves(t, c, xds.ClusterType, "new", "1")
	})
}
