package cache

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// changing makes a cache with a history: at the returned time a@1 and b@1 were accepted; a minute later
// a@2 and c@1 were, and b was removed.
func changing(t *testing.T, test func(t *testing.T, c *Cache, w *Watch, good time.Time)) {
	t.Helper()
	running(t, Config{HistoryBytes: 1 << 20}, func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ClusterType, "*")
		subscribe(w, xds.RouteType, "r")
		complete(c, xds.ClusterType, "a@1", "b@1")
		put(c, xds.RouteType, "r@1")
		accept(w, xds.ClusterType, "a@1", "b@1")
		accept(w, xds.RouteType, "r@1")
		pass(time.Minute)
		good := time.Now()
		pass(time.Minute)
		complete(c, xds.ClusterType, "a@2", "c@1")
		accept(w, xds.ClusterType, "a@2", "c@1")
		pass(time.Minute)
		changed(w)
		test(t, c, w, good)
	})
}

// rollBack rolls back to a time, and returns "a 2 1" for a name that had version 2 and has version 1.
func rollBack(t *testing.T, c *Cache, in Rollback) (changes, missing []string, err error) {
	t.Helper()
	in.Freeze.Since = time.Now()
	out, err := c.RollBack(in)
	for _, ch := range out.Changes {
		changes = append(changes, strings.TrimSpace(fmt.Sprintf("%s %s %q %q", xds.Short(ch.Type), ch.Name, ch.From, ch.To)))
	}
	for _, m := range out.Missing {
		missing = append(missing, xds.Short(m.Type)+" "+m.Name+": "+m.Why)
	}
	return changes, missing, err
}

func to(at time.Time) Rollback { return Rollback{Freeze: Freeze{All: true, RolledBackTo: at}} }

func TestARollbackServesWhatWasAcceptedThen(t *testing.T) {
	changing(t, func(t *testing.T, c *Cache, w *Watch, good time.Time) {
		changes, missing, err := rollBack(t, c, to(good))
		if want := []string{`CDS a "2" "1"`, `CDS b "" "1"`, `CDS c "1" ""`}; err != nil || len(missing) > 0 || !slices.Equal(changes, want) {
			t.Fatalf("%q, %q, %v; want %q", changes, missing, err, want)
		}
		wantChanged(t, w, "CDS a b c")
		servesClusters(t, c, "1", "1", "")
		if got := allClusters(c); !slices.Equal(got, []string{"a@1", "b@1"}) {
			t.Errorf("all: %v", got)
		}
		if it := item(c, xds.ClusterType, "c"); !it.NotFound {
			t.Error("clients are not told that c is gone")
		}
		// It is frozen.
		complete(c, xds.ClusterType, "a@3", "c@2")
		put(c, xds.RouteType, "r@2")
		servesClusters(t, c, "1", "1", "")
		serves(t, c, xds.RouteType, "r", "1")
		accept(w, xds.ClusterType, "a@1", "b@1")
		c.Unfreeze()
		servesClusters(t, c, "3", "", "2")
		serves(t, c, xds.RouteType, "r", "2")
	})
}

func TestADryRunOfARollbackChangesNothing(t *testing.T) {
	changing(t, func(t *testing.T, c *Cache, w *Watch, good time.Time) {
		in := to(good)
		in.DryRun = true
		if changes, _, err := rollBack(t, c, in); len(changes) != 3 || err != nil {
			t.Errorf("%q, %v", changes, err)
		}
		wantChanged(t, w)
		servesClusters(t, c, "2", "", "1")
		if o, _ := c.Frozen(); o != nil {
			t.Error("it is frozen")
		}
	})
}

func TestARollbackOfNamesConcernsOnlyThem(t *testing.T) {
	changing(t, func(t *testing.T, c *Cache, _ *Watch, good time.Time) {
		in := Rollback{Freeze: Freeze{RolledBackTo: good, Names: []xds.Key{{Type: xds.ClusterType, Name: "a"}}}}
		if _, _, err := rollBack(t, c, in); err != nil {
			t.Fatal(err)
		}
		servesClusters(t, c, "1", "", "1")
		complete(c, xds.ClusterType, "a@3", "c@2")
		servesClusters(t, c, "1", "", "2")
		// A second one comes beside it.
		in = Rollback{Freeze: Freeze{Names: []xds.Key{{Type: xds.ClusterType, Name: "b"}}}, Version: "1"}
		if _, _, err := rollBack(t, c, in); err != nil {
			t.Fatal(err)
		}
		servesClusters(t, c, "1", "1", "2")
		complete(c, xds.ClusterType, "a@4", "b@7", "c@3")
		servesClusters(t, c, "1", "1", "3")
		in.Version = "99"
		if _, missing, err := rollBack(t, c, in); !errors.Is(err, ErrMissing) || !strings.Contains(missing[0], "no version 99") {
			t.Errorf("%q, %v", missing, err)
		}
	})
}

// Nothing is served by halves: what is missing is named, and only the caller can accept it.
func TestARollbackThatWouldMissSomethingIsRefused(t *testing.T) {
	changing(t, func(t *testing.T, c *Cache, _ *Watch, good time.Time) {
		in := to(good)
		in.Missing = func(contents []*xds.Resource, served func(xds.Key) *xds.Resource, _ func(xds.Key) bool) (missing []MissingContent) {
			for _, r := range contents {
				if k := (xds.Key{Type: xds.SecretType, Name: "cert-of-" + r.Name}); served(k) == nil {
					missing = append(missing, MissingContent{Key: k, Why: "it is not served"})
				}
			}
			return missing
		}
		changes, missing, err := rollBack(t, c, in)
		if !errors.Is(err, ErrMissing) || len(changes) != 3 || !slices.Equal(missing, []string{"SDS cert-of-a: it is not served", "SDS cert-of-b: it is not served"}) {
			t.Errorf("%q, %q, %v", changes, missing, err)
		}
		servesClusters(t, c, "2", "", "1")
		in.Partial = true
		if _, _, err := rollBack(t, c, in); err != nil {
			t.Error(err)
		}
		servesClusters(t, c, "1", "1", "")
	})
	changing(t, func(t *testing.T, c *Cache, _ *Watch, good time.Time) {
		_, missing, err := rollBack(t, c, to(good.Add(-time.Hour)))
		if !errors.Is(err, ErrMissing) || !strings.Contains(strings.Join(missing, "\n"), "CDS a: its history begins at ") {
			t.Errorf("%q, %v", missing, err)
		}
	})
}

// The endpoints of a cluster that comes back are the newest that were known.
func TestARollbackBringsTheEndpointsOfItsClusters(t *testing.T) {
	cluster := func(version string) *xds.Resource {
		r := res(xds.ClusterType, "a@"+version)
		r.EDSName = "e"
		return r
	}
	running(t, Config{HistoryBytes: 1 << 20}, func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ClusterType, "*")
		subscribe(w, xds.EndpointType, "e")
		apply(c, xds.Update{Type: xds.ClusterType, Complete: true, Resources: []*xds.Resource{cluster("1")}})
		for _, version := range []string{"1", "2", "3"} {
			put(c, xds.EndpointType, "e@"+version)
			accept(w, xds.EndpointType, "e@"+version)
		}
		w.Ack(xds.ClusterType, []*xds.Resource{cluster("1")}, nil)
		pass(time.Minute)
		good := time.Now()
		pass(time.Minute)
		complete(c, xds.ClusterType)
		apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"e"}})
		pass(time.Minute)
		changes, missing, err := rollBack(t, c, to(good))
		if want := []string{`CDS a "" "1"`, `EDS e "" "3"`}; err != nil || !slices.Equal(changes, want) {
			t.Errorf("%q, %q, %v; want %q", changes, missing, err, want)
		}
		serves(t, c, xds.EndpointType, "e", "3")
		put(c, xds.EndpointType, "e@4") // endpoints go on
		serves(t, c, xds.EndpointType, "e", "4")
	})
}

// The history goes on during a rollback, and afterwards: what was served when.
func TestTheHistoryHasWhatClientsAccepted(t *testing.T) {
	changing(t, func(t *testing.T, c *Cache, w *Watch, good time.Time) {
		k := xds.Key{Type: xds.ClusterType, Name: "a"}
		at := func(at time.Time) string {
			r, known := c.At(k.Type, k.Name, at)
			if !known {
				return "unknown"
			}
			return version(r)
		}
		bad := time.Now()
		pass(time.Minute)
		if _, _, err := rollBack(t, c, to(good)); err != nil {
			t.Fatal(err)
		}
		accept(w, xds.ClusterType, "a@1", "b@1")
		pass(time.Minute)
		rolledBack := time.Now()
		pass(time.Minute)
		c.Unfreeze()
		accept(w, xds.ClusterType, "a@2", "c@1")
		pass(time.Minute)
		if at(good) != "1" || at(bad) != "2" || at(rolledBack) != "1" || at(time.Now()) != "2" || at(good.Add(-time.Hour)) != "unknown" {
			t.Errorf("%s %s %s %s %s", at(good), at(bad), at(rolledBack), at(time.Now()), at(good.Add(-time.Hour)))
		}
		var got []string
		versions, _ := c.Versions(k.Type, k.Name)
		for _, v := range versions {
			got = append(got, v.Version)
		}
		if !slices.Equal(got, []string{"1", "2", "1", "2"}) {
			t.Errorf("versions %q", got)
		}
		if n := len(c.Changed(good)); n != 3 {
			t.Errorf("%d names changed", n)
		}
		// A second rollback, to the time of the first.
		if _, _, err := rollBack(t, c, to(rolledBack)); err != nil {
			t.Error(err)
		}
		servesClusters(t, c, "1", "1", "")
	})
}

// A rollback, and the history, outlive the agent.
func TestARollbackSurvivesARestart(t *testing.T) {
	running(t, Config{HistoryBytes: 1 << 20}, func(t *testing.T, c *Cache) {
		j := c.Journal(make(chan struct{}, 1), true)
		w := watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, "a@1", "b@1")
		accept(w, xds.ClusterType, "a@1", "b@1")
		pass(time.Minute)
		good := time.Now()
		pass(time.Minute)
		complete(c, xds.ClusterType, "a@2", "c@1")
		accept(w, xds.ClusterType, "a@2", "c@1")
		pass(time.Minute)
		if _, _, err := rollBack(t, c, to(good)); err != nil {
			t.Fatal(err)
		}
		again := restarted(t, c, j, func(*Cache) {})
		servesClusters(t, again, "1", "1", "")
		complete(again, xds.ClusterType, "a@2", "c@1").want(t, "nack: "+mustFrozen(t, again).Error())
		servesClusters(t, again, "1", "1", "")
		if o := mustFrozen(t, again); !o.RolledBackTo.Equal(good) {
			t.Errorf("rolled back to %s, want %s", o.RolledBackTo, good)
		}
		again.Unfreeze()
		servesClusters(t, again, "2", "", "1")
		if r, known := again.At(xds.ClusterType, "b", good); !known || version(r) != "1" {
			t.Errorf("b was %v, %v", r, known)
		}
	})
}

func mustFrozen(t *testing.T, c *Cache) *Freeze {
	t.Helper()
	o, _ := c.Frozen()
	if o == nil {
		t.Fatal("it is not frozen")
	}
	return o
}

type versionID struct {
	xds.Key
	until time.Time
}

// What the journal returns as changes is what it returns as a whole.
func TestTheJournalReturnsEachFormerContentOnce(t *testing.T) {
	running(t, Config{HistoryBytes: 1 << 20}, func(t *testing.T, c *Cache) {
		j := c.Journal(make(chan struct{}, 1), true)
		disk := make(map[versionID]string)
		read := func(versions []SavedVersion) {
			for _, v := range versions {
				id := versionID{xds.Key{Type: v.Type, Name: v.Name}, v.Until}
				if delete(disk, id); !v.Deleted {
					disk[id] = v.Version
				}
			}
		}
		w := watch(c, "x", xds.ClusterType, "*")
		for n := range archive.MaxVersions + 5 {
			a := fmt.Sprintf("a@%d", n)
			complete(c, xds.ClusterType, a)
			accept(w, xds.ClusterType, a)
			pass(time.Minute)
			if n%3 == 0 {
				read(j.Take().Versions)
				j.Done(nil)
				read(j.TakeVersions())
			}
		}
		read(j.Take().Versions)
		j.Done(nil)
		read(j.TakeVersions())
		want := make(map[versionID]string)
		for _, v := range j.SavedVersions() {
			want[versionID{xds.Key{Type: v.Type, Name: v.Name}, v.Until}] = v.Version
		}
		if len(want) != archive.MaxVersions || len(disk) != len(want) {
			t.Errorf("%d on disk, %d in memory", len(disk), len(want))
		}
		clear(disk)
		read(j.All().Versions)
		j.Done(nil)
		if len(disk) != len(want) {
			t.Errorf("%d of %d in a rewrite", len(disk), len(want))
		}
		read(j.TakeVersions())
	})
}

// What Envoy gets or loses when a freeze ends, and by a rollback, is in the events.
func TestChangesByAFreezeAreReported(t *testing.T) {
	var said []string
	report := func(_, name string, what ChangeKind) {
		if what != ResourceACKed {
			said = append(said, name+" "+string(what))
		}
	}
	wants := func(t *testing.T, when string, want ...string) {
		t.Helper()
		slices.Sort(said)
		if !slices.Equal(said, want) {
			t.Errorf("%s: %q, want %q", when, said, want)
		}
		said = nil
	}
	running(t, Config{HistoryBytes: 1 << 20, OnChange: report}, func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, "a@1", "gone@1", "same@1")
		accept(w, xds.ClusterType, "a@1", "gone@1", "same@1")
		pass(time.Minute)
		said = nil
		if err := c.Freeze(Freeze{All: true}); err != nil {
			t.Fatal(err)
		}
		complete(c, xds.ClusterType, "a@2", "new@1", "same@1")
		wants(t, "frozen", "a withheld", "gone withheld", "new withheld")
		c.Unfreeze()
		wants(t, "at the end of the freeze", "a changed", "gone removed", "new added")
		accept(w, xds.ClusterType, "a@2", "new@1", "same@1")
		pass(time.Minute)
		if _, err := c.RollBack(Rollback{Freeze: Freeze{All: true, RolledBackTo: time.Now().Add(-90 * time.Second)}}); err != nil {
			t.Fatal(err)
		}
		wants(t, "by the rollback", "a changed", "gone added", "new removed")
	})
}

// What the journal has returned when the agent is killed is all that the next one knows. What lasted is written with the content
// that has replaced it; of what did not last, it says that it is lost.
func TestOfAKilledAgentNoFormerContentIsTakenForAnother(t *testing.T) {
	running(t, Config{HistoryBytes: 1 << 20}, func(t *testing.T, c *Cache) {
		j := c.Journal(make(chan struct{}, 1), true)
		disk := newWritten()
		w := watch(c, "x", xds.ClusterType, "*")
		complete(c, xds.ClusterType, "a@1", "b@1", "gone@1")
		accept(w, xds.ClusterType, "a@1", "b@1", "gone@1")
		pass(time.Minute)
		good := time.Now()
		pass(time.Minute)
		complete(c, xds.ClusterType, "a@2", "b@2", "new@1")
		accept(w, xds.ClusterType, "a@2", "b@2", "new@1")
		if b := disk.take(j); len(b.Versions) != 4 {
			t.Errorf("%d former contents are written with those that replaced them: %v", len(b.Versions), b.Versions)
		}
		pass(time.Second)
		short := time.Now()
		pass(time.Second)
		put(c, xds.ClusterType, "b@3")
		accept(w, xds.ClusterType, "b@3")
		unrecorded := Fact{Kind: UnrecordedFact, Type: xds.ClusterType, Name: "b"}
		if b := disk.take(j); len(b.Versions) != 0 || b.Facts[unrecorded] == "" {
			t.Errorf("of a content that did not last: %v, %v", b.Versions, b.Facts)
		}
		killed := func() *Cache {
			pass(time.Second)
			next, _ := disk.restore(c.cfg)
			return next
		}
		is := func(c *Cache, name string, at time.Time, want string) {
			t.Helper()
			got := "lost"
			if r, known := c.At(xds.ClusterType, name, at); known {
				got = version(r)
			}
			if got != want {
				t.Errorf("%s at %s is %q, want %q", name, at.Format(time.TimeOnly), got, want)
			}
		}
		next := killed()
		for name, want := range map[string]string{"a": "1", "b": "1", "gone": "1", "new": ""} {
			is(next, name, good, want)
		}
		is(next, "a", short, "2")
		is(next, "new", short, "1")
		is(next, "b", short, "lost")
		is(next, "b", time.Now(), "3")
		if _, missing, err := rollBack(t, next, to(good)); err != nil || len(missing) > 0 {
			t.Errorf("to what lasted: %q, %v", missing, err)
		}
		if _, missing, _ := rollBack(t, killed(), to(short)); len(missing) != 1 || !strings.Contains(missing[0], "CDS b: what it was then is lost") {
			t.Errorf("to what did not: %q", missing)
		}
		// Once it is written, nothing is lost.
		disk.write(j.TakeVersions())
		if disk.take(j); disk.facts[unrecorded] != "" {
			t.Error("it is still said to be missing")
		}
		is(killed(), "b", short, "2")
	})
}
