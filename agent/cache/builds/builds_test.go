package builds

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// rig is a Builds with one listener; the cache's own tests play it with everything else.
type rig struct {
	*testing.T
	*Builds
	s *state.State
}

func inRig(t *testing.T, test func(r *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		s := state.New(subscriptions.New(time.Minute, func(xds.Key) {}), nil, func() {})
		test(&rig{t, New(s), s})
	})
}

var listener = xds.Key{Type: xds.ListenerType, Name: "l"}

func content(version string) *xds.Resource {
	return &xds.Resource{Type: listener.Type, Name: listener.Name, Version: version}
}

// takes has a client of a build come and ACK a content, which is the newest.
func (r *rig) takes(build, version string) *subscriptions.Client {
	client := r.s.Union.Open()
	client.Build = build
	r.Came(build)
	t, was := r.s.Table(listener.Type), (*xds.Resource)(nil)
	ack := Ack{Client: client, Key: listener, Content: content(version)}
	if e := t.Entry(listener.Name); e != nil {
		was, ack.By = e.Acked(), e.Builds()
	}
	t.Put(content(version), contents.Origin{}, nil)
	e := t.Entry(listener.Name)
	e.Ack(ack.Content)
	ack.Entry, ack.Was, ack.Is = e, was, ack.Content
	r.Acked(ack, time.Now())
	return client
}

// ends has a client of a build that accepted something else come, ACK that, and end while it is offered the newest.
func (r *rig) ends(build, process, version string) {
	client := r.s.Union.Open()
	client.Build, client.Process = build, process
	r.Came(build)
	e := r.s.Table(listener.Type).Entry(listener.Name)
	r.Acked(Ack{Client: client, Key: listener, Entry: e, Content: content(version), Was: e.Acked(), Is: e.Current()}, time.Now())
	r.Closed(client, map[string][]string{listener.Type: {listener.Name}})
}

func (r *rig) facts() map[state.Fact]string {
	out := make(map[state.Fact]string)
	for f := range r.Facts {
		if value, known := r.Fact(f); known && value != "" {
			out[f] = value
		}
	}
	return out
}

func (r *rig) wantAccepted(build, version string) {
	r.Helper()
	got, accepted := r.Accepted(listener)
	if got != build || (accepted != nil) != (version != "") || accepted != nil && accepted.Version != version {
		r.Errorf("%s accepted %v, want %s %s", got, accepted, build, version)
	}
}

// The last two builds count, in the order in which they came; one that comes and goes by turns with another is none of its own.
func TestTheLastTwoBuilds(t *testing.T) {
	long := strings.Repeat("x", maxBuild+1)
	for came, want := range map[string][2]string{
		"":            {"", ""},
		"a":           {"a", ""},
		"a a":         {"a", ""},
		"a b":         {"b", "a"},
		"a b a":       {"a", "b"},
		"a b c":       {"c", "b"},
		"a b a c":     {"c", "a"},
		"a " + long:   {"a", ""}, // a stranger chose it
		"a b a b b c": {"c", "b"},
	} {
		inRig(t, func(r *rig) {
			for build := range strings.SplitSeq(came, " ") {
				r.Came(build)
			}
			if got := [2]string{r.slots[r.newest], r.slots[1-r.newest]}; got != want {
				t.Errorf("%q: %q, want %q", came, got, want)
			}
			if r.Watching() != (want[1] != "") {
				t.Errorf("%q: watching is %v", came, r.Watching())
			}
		})
	}
}

// A record is kept only where the builds differ, and for one of them.
func TestOnlyWhatBuildsAcceptedDifferentlyIsKept(t *testing.T) {
	inRig(t, func(r *rig) {
		r.takes("old", "1")
		r.takes("new", "1")
		r.wantAccepted("", "")
		r.takes("new", "2")
		r.wantAccepted("old", "1")
		r.takes("old", "3")
		r.wantAccepted("new", "2")
		r.takes("new", "3")
		r.wantAccepted("", "")
	})
}

// What a client of a build did not outlive, and of whom, outlives the agent; rubbish on disk does not, nor what has no resource any more.
func TestWhatABuildDidNotOutliveIsStored(t *testing.T) {
	inRig(t, func(r *rig) {
		r.takes("old", "1")
		r.takes("new", "2")
		r.ends("old", "7 since 1", "1")
		if !r.Ended(listener, "2") || r.Ended(listener, "1") {
			t.Error("it is not known what a client did not outlive")
		}
		stored := r.facts()
		if len(stored) != 2 {
			t.Fatalf("%v", stored)
		}
		restored := func(resource bool, change func(value string) string) *rig {
			s := state.New(subscriptions.New(time.Minute, func(xds.Key) {}), nil, func() {})
			next := &rig{t, New(s), s}
			for f, value := range stored {
				if !next.RestoreFact(f, change(value), time.Now()) {
					t.Errorf("%v is another's", f)
				}
			}
			if resource {
				s.Table(listener.Type).Put(content("2"), contents.Origin{}, nil)
			}
			next.Restore(listener, "old", content("1"))
			next.Restored()
			return next
		}
		same := func(value string) string { return value }
		next := restored(true, same)
		if !next.Ended(listener, "2") || !slices.Equal(next.slots[:], []string{"old", "new"}) {
			t.Errorf("%v %q", next.facts(), next.slots)
		}
		next.Returned(&subscriptions.Client{Process: "8 since 1"})
		if !next.Ended(listener, "2") {
			t.Error("another process returned")
		}
		if next.Returned(&subscriptions.Client{Process: "7 since 1"}); next.Ended(listener, "2") {
			t.Error("the process returned, and counts as ended")
		}
		if next := restored(false, same); len(slices.Collect(next.Names)) > 0 {
			t.Error("something is kept of a name that is not there")
		}
		for _, rubbish := range []string{"", "{", "[]", `["a"]`, `{"version":"2"}`} {
			if next := restored(true, func(string) string { return rubbish }); next.Ended(listener, "2") || len(slices.Collect(next.Names)) > 0 {
				t.Errorf("%q: %v", rubbish, next.facts())
			}
		}
	})
}
