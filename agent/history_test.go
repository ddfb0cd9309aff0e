package agent

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// What is written of former contents is read again, also with strange names; what must not be stored leaves
// its version, and what was dropped is gone.
func TestFormerContentsAreReadAsTheyWereWritten(t *testing.T) {
	dir := t.TempDir()
	open := func() (*store.Store, *store.Loaded) {
		s := store.New(store.Config{Dir: dir, Identity: "web", Logger: slog.New(slog.DiscardHandler)})
		loaded, err := s.Open()
		if err != nil {
			t.Fatal(err)
		}
		return s, loaded
	}
	s, _ := open()
	k := newKeeper(s, false, slog.New(slog.DiscardHandler))
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	const name = "a b\n/ü version 1"
	withPassword := xdstest.Route(name, "c")
	withPassword.RequestHeadersToAdd = append(withPassword.RequestHeadersToAdd, header("authorization", "Basic c2VjcmV0"))
	route := func(r *routev3.RouteConfiguration, from, until int) cache.SavedVersion {
		v := cache.SavedVersion{Type: xds.RouteType, Name: name, Record: archive.Record{Until: at.Add(time.Duration(until))}}
		if from > 0 {
			v.From = at.Add(time.Duration(from))
		}
		if r != nil {
			v.Resource = xdstest.Resource(r, "7")
			v.Version = v.Resource.Version
		}
		return v
	}
	absent, content, secret, dropped := route(nil, 0, 1), route(xdstest.Route(name, "c"), 1, 2), route(withPassword, 2, 3), route(xdstest.Route(name, "d"), 3, 4)
	write := func(saved ...cache.SavedVersion) {
		t.Helper()
		if err := s.Append(k.versions("\nenvoy\n", saved)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Rewrite(func(func(store.Record) bool) {}); err != nil {
		t.Fatal(err)
	}
	write(absent, content, secret, dropped)
	dropped.Deleted, dropped.Resource = true, nil
	write(dropped)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if grep(t, dir, "c2VjcmV0") {
		t.Error("a password is on disk")
	}
	_, loaded := open()
	k = newKeeper(s, false, slog.New(slog.DiscardHandler))
	k.load(loaded)
	got := make(map[time.Time]cache.SavedVersion)
	for _, v := range k.groups["\nenvoy\n"].versions {
		got[v.Until] = v
	}
	secret.Resource = nil // only its version is known
	want := map[time.Time]cache.SavedVersion{absent.Until: absent, content.Until: content, secret.Until: secret}
	if len(got) != len(want) {
		t.Errorf("%d versions, want %d", len(got), len(want))
	}
	for at, v := range want {
		g := got[at]
		if g.Resource != nil && v.Resource != nil && g.Resource.Name == name && g.Resource.Version == v.Resource.Version {
			g.Resource = v.Resource
		}
		if !reflect.DeepEqual(g, v) {
			t.Errorf("%s: %+v, want %+v", at, g, v)
		}
	}
}

func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value}}
}

// Where a route changes all the time, most of what it was is dropped before it is written. What is kept is written in the
// end, also if the agent ends.
func TestFormerContentsAreWrittenInAFiftiethOfTheTime(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node, r.cfg.Group.Cache.HistoryBytes = node("web-1"), 1<<20
		d := r.servesFrom(&fakeDisk{})
		d.slow(20 * time.Millisecond)
		former := func() (n int) {
			d.mu.Lock()
			defer d.mu.Unlock()
			for _, record := range d.records {
				if set, ok := record.(store.Set); ok && set.Entry.Content != nil {
					if _, _, ok := historyOf(set.Key.Group); ok {
						n++
					}
				}
			}
			return n
		}
		change := func(i int) {
			r.cp.Set(xdstest.TextRoute("r1", fmt.Sprint(i)))
			r.pass(100 * time.Millisecond)
		}
		change(0)
		if n := former(); n != 1 {
			t.Fatalf("%d former contents are written after one change", n)
		}
		const changes = 200 // in 20 s
		for i := range changes {
			change(i + 1)
		}
		// Ten at first, and then one each second.
		if n := former(); n < 10 || n > 45 {
			t.Errorf("%d former contents are written of %d", n, changes)
		}
		r.stop()
		// The last of them, and then that none is missing.
		n := len(d.records)
		if set, ok := d.records[n-2].(store.Set); !ok || !strings.Contains(set.Entry.Content.Body.String(), fmt.Sprint(changes-1)) {
			t.Errorf("the last former content is %v", d.records[n-2])
		}
		if note, ok := d.records[n-1].(store.Note); !ok || !strings.HasPrefix(note.Key.Name, string(cache.UnrecordedFact)+" ") || note.Value != "" {
			t.Errorf("the last record is %v", d.records[n-1])
		}
	})
}

// A route flaps for 20 s and is then broken: what somebody wants back is what it was before it flapped, though most of
// what it was in between is not kept.
func TestARollbackGoesBackBeforeABurst(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node, r.cfg.Group.Cache.HistoryBytes = node("web-1"), 1<<20
		r.start()
		c := r.whole(r.cfg.Node)
		r.pass(time.Minute)
		r.cp.Set(xdstest.TextRoute("r1", "good"))
		r.pass(time.Minute)
		good := c.Versions(xds.RouteType)["r1"]
		for i := range 200 {
			r.cp.Set(xdstest.TextRoute("r1", fmt.Sprint(i)))
			r.pass(100 * time.Millisecond)
		}
		r.cp.Set(xdstest.TextRoute("r1", "broken"))
		r.pass(time.Second)
		if _, err := r.agent.RollBack(admin.RollbackRequest{}); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		if got := c.Versions(xds.RouteType)["r1"]; got != good {
			t.Errorf("the route is %s, want %s: %+v", got, good, r.agent.History(admin.HistoryFilter{}))
		}
	})
}

// The agent is killed while a route flaps. A rollback before the last change goes back to before it flapped: when it last changed
// is not known.
func TestARollbackAfterAKillGoesBackBeforeWhatIsLost(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node, r.cfg.Group.Cache.HistoryBytes = node("web-1"), 1<<20
		d := r.servesFrom(&fakeDisk{})
		r.pass(5 * time.Minute)
		d.slow(20 * time.Millisecond)
		r.cp.Set(xdstest.TextRoute("r1", "good"))
		r.pass(5 * time.Minute)
		good := time.Now()
		for _, text := range []string{"bad", "worse", "worst"} {
			r.cp.Set(xdstest.TextRoute("r1", text))
			r.pass(100 * time.Millisecond)
		}
		killed := &fakeDisk{entries: make(map[store.Key]*store.Entry), notes: make(map[store.NoteKey]string)}
		for _, record := range d.all() {
			switch record := record.(type) {
			case store.Set:
				if killed.entries[record.Key] = &record.Entry; record.Entry.Content == nil && record.Entry.Previous == nil {
					delete(killed.entries, record.Key)
				}
			case store.Note:
				if killed.notes[record.Key] = record.Value; record.Value == "" {
					delete(killed.notes, record.Key)
				}
			}
		}
		unrecorded := false
		for key := range killed.notes {
			unrecorded = unrecorded || strings.HasPrefix(key.Name, string(cache.UnrecordedFact)+" ")
		}
		if !unrecorded {
			t.Fatal("nothing is said to be missing on disk")
		}
		r.close()
		r.stops = nil
		r.pass(20 * time.Second)
		r.servesFrom(killed)
		out, err := r.agent.RollBack(admin.RollbackRequest{DryRun: true})
		if err != nil || len(out) != 1 || len(out[0].Missing) > 0 || len(out[0].Changes) != 1 || out[0].Changes[0].Name != "r1" ||
			out[0].To.Sub(good).Abs() > time.Second {
			t.Errorf("%+v, %v; want a time near %s", out, err, good)
		}
	})
}
