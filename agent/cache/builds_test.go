package cache

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// ofBuild opens a watch of all listeners for a client of a build.
func ofBuild(c *Cache, build string) *Watch {
	w := watch(c, build, xds.ListenerType, "*")
	w.Runs(build, "")
	return w
}

// served returns what a client is served under a name.
func (w *Watch) served(name string) (it xds.Item) {
	read(w, func(s Snapshot, _ []xds.Change) { it = s.Lookup(xds.ListenerType, name) })
	return it
}

// wantServed fails unless a client is served a content, of which it is known that its build accepted another one.
func wantServed(t *testing.T, w *Watch, accepted, current string, status xds.Status, offered bool) {
	t.Helper()
	it := w.served("l")
	if version(it.Acked) != accepted || version(it.Current) != current || it.Status != status || offered != (it.Offer > 0) {
		t.Errorf("%s is served %s, accepted %s, %s, offer %d; want %s, %s, %s, offered %v",
			w.name, version(it.Current), version(it.Acked), it.Status, it.Offer, current, accepted, status, offered)
	}
}

// upgraded is a cache of which the old build accepted l@1 and the new one l@2.
func upgraded(c *Cache) {
	w := ofBuild(c, "old")
	complete(c, xds.ListenerType, "l@1", "same@1")
	accept(w, xds.ListenerType, "l@1", "same@1")
	w.Close(nil)
	w = ofBuild(c, "new")
	complete(c, xds.ListenerType, "l@2", "same@1")
	accept(w, xds.ListenerType, "l@2", "same@1")
	w.Close(nil)
}

// design.md I7: what one build accepted another may not be able to read. It is served what its build accepted last, also after a restart,
// and the others are served what they have.
func TestABuildIsServedWhatItAccepted(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		running(t, Config{}, func(t *testing.T, c *Cache) {
			upgraded(c)
			if restarts {
				saved, facts := c.Saved()
				c = New(Config{})
				c.Restore(saved, facts)
				c.ServeRestored()
			}
			old := ofBuild(c, "old")
			wantServed(t, old, "1", "2", xds.Pending, true)
			accept(old, xds.ListenerType, "l@1")
			old.Nack(xds.ListenerType, revision(c), "unknown field", res(xds.ListenerType, "l@2"), nil)
			next := ofBuild(c, "new")
			wantServed(t, next, "2", "2", xds.Acked, false)
			wantServed(t, ofBuild(c, ""), "2", "2", xds.Acked, false)
			wantStatus(t, c, xds.ListenerType, "l", xds.Acked, "2")
			if it := old.served("same"); it.Status != xds.Acked {
				t.Errorf("of what both accepted: %s", it.Status)
			}
			// The control plane sends what the old build can read.
			complete(c, xds.ListenerType, "l@3", "same@1")
			wantServed(t, old, "1", "3", xds.Pending, true)
			wantServed(t, next, "2", "3", xds.Pending, false)
			accept(next, xds.ListenerType, "l@3")
			wantServed(t, old, "1", "3", xds.Pending, true)
			accept(old, xds.ListenerType, "l@3")
			wantServed(t, old, "3", "3", xds.Acked, false)
			wantServed(t, next, "3", "3", xds.Acked, false)
			if saved, _ := c.Saved(); slices.ContainsFunc(saved, func(s Saved) bool { return s.Build != "" }) {
				t.Error("what both accepted is stored for a build")
			}
		})
	}
}

// A process that does not outlive what another build took ends once: the next of its build keeps what that accepted, for a day.
func TestABuildIsNotKilledTwice(t *testing.T) {
	for how, ends := range map[string]func(c *Cache){
		"a day":       func(*Cache) { time.Sleep(25 * time.Hour) },
		"an operator": func(c *Cache) { c.OfferAgain(func(xds.Key) bool { return true }, false) },
		"it returned": func(c *Cache) { ofBuild(c, "old").Resume() },
	} {
		running(t, Config{}, func(t *testing.T, c *Cache) {
			upgraded(c)
			old := ofBuild(c, "old")
			accept(old, xds.ListenerType, "l@1")
			old.Close(map[string][]string{xds.ListenerType: {"l"}})
			saved, facts := c.Saved()
			again := New(Config{})
			again.Restore(saved, facts)
			again.ServeRestored()
			for _, c := range []*Cache{c, again} {
				wantServed(t, ofBuild(c, "old"), "1", "2", xds.Nacked, false)
				wantServed(t, ofBuild(c, "new"), "2", "2", xds.Acked, false)
			}
			if names := c.OfferAgain(func(xds.Key) bool { return true }, true); len(names) != 1 {
				t.Errorf("an operator is told %v", names)
			}
			ends(c)
			if how == "it returned" {
				wantServed(t, ofBuild(again, "old"), "1", "2", xds.Nacked, false)
			}
			wantServed(t, ofBuild(c, "old"), "1", "2", xds.Pending, true)
		})
	}
}

// A client of the build that is served what that accepted is not tried with anything while it is frozen.
func TestNothingIsTriedOnABuildWhileItIsFrozen(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		upgraded(c)
		_ = c.Freeze(everything)
		complete(c, xds.ListenerType, "l@3", "same@1")
		wantServed(t, ofBuild(c, "old"), "1", "2", xds.Nacked, false)
		wantServed(t, ofBuild(c, "new"), "2", "2", xds.Acked, false)
	})
}

// What is kept for a build goes with the name, with a third build, and is not kept of endpoints.
func TestWhatIsKeptForABuildGoes(t *testing.T) {
	for how, ends := range map[string]func(c *Cache){
		"the resource is removed": func(c *Cache) { complete(c, xds.ListenerType, "same@1") },
		"two more builds come":    func(c *Cache) { ofBuild(c, "newer"); ofBuild(c, "newest") },
	} {
		running(t, Config{}, func(t *testing.T, c *Cache) {
			j, d := c.Journal(nil, true), newDisk()
			upgraded(c)
			stored := func() (n int) {
				d.take(j)
				saved, _ := c.Saved()
				for _, s := range append(saved, slices.Collect(maps.Values(d.builds))...) {
					if s.Build != "" {
						n++
					}
				}
				return n
			}
			if n := stored(); n != 2 {
				t.Errorf("stored %d, want one in memory and one on disk", n)
			}
			if ends(c); stored() != 0 {
				t.Errorf("after %s %d are stored", how, stored())
			}
		})
	}
	running(t, Config{}, func(t *testing.T, c *Cache) {
		for i, build := range []string{"old", "new"} {
			w := ofBuild(c, build)
			for _, typeURL := range []string{xds.EndpointType, xds.SecretType} {
				content := []string{"e@1", "e@2"}[i]
				subscribe(w, typeURL, "e")
				put(c, typeURL, content)
				w.Ack(typeURL, resources(typeURL, []string{content}), nil)
			}
		}
		if saved, _ := c.Saved(); slices.ContainsFunc(saved, func(s Saved) bool { return s.Build != "" }) {
			t.Errorf("%+v", saved)
		}
	})
}

// A process that was there before is no new judge, whatever it holds: an Envoy whose stream was cut before it ACKed anything. One that has
// several streams at once is not its own former one.
func TestAProcessThatReturnsIsNoNewOne(t *testing.T) {
	for name, tc := range map[string]struct {
		process string
		closes  bool
		offered bool
	}{
		"the same":        {"7 since 1", true, false},
		"another":         {"7 since 2", true, true},
		"unknown":         {"", true, true},
		"a second stream": {"7 since 1", false, true},
	} {
		running(t, Config{}, func(t *testing.T, c *Cache) {
			w := watch(c, "x", xds.ListenerType, "*")
			w.Runs("", "7 since 1")
			put(c, xds.ListenerType, "good@1", "bad@1")
			accept(w, xds.ListenerType, "good@1")
			w.Nack(xds.ListenerType, revision(c), "no", res(xds.ListenerType, "bad@1"), nil)
			if tc.closes {
				w.Close(nil)
			}
			w = watch(c, "x", xds.ListenerType, "*")
			w.Runs("", tc.process)
			accept(w, xds.ListenerType, "good@1")
			pass(time.Second)
			if offered := item(c, xds.ListenerType, "bad").Offer > 0; offered != tc.offered {
				t.Errorf("%s: offered %v", name, offered)
			}
		})
	}
}
