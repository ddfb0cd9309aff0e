package nacks

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// facts are what is on disk.
func (r *rig) facts() map[state.Fact]string {
	out := make(map[state.Fact]string)
	for f := range r.Facts {
		if value, _ := r.Fact(f); value != "" {
			out[f] = value
		}
	}
	return out
}

// restarted is what another agent knows that reads what this one wrote. before happens before it has read it.
func (r *rig) restarted(before func(r *rig)) *rig {
	next := newRig(r.T)
	before(next)
	for f, value := range r.facts() {
		if !next.RestoreFact(f, value, time.Now()) {
			next.Errorf("%v is not known", f)
		}
	}
	next.Restored(state.NewEvent())
	return next
}

// design.md I7: what was rejected is not new because the agent is: it is neither sent nor ACKed, and is offered under its pause.
func TestWhatWasRejectedOutlivesTheAgent(t *testing.T) {
	sends := func(r *rig) { r.put(xds.ListenerType, "bad", "bad", nil) }
	for when, at := range map[string]struct{ before, after func(r *rig) }{
		"it is sent afterwards": {func(*rig) {}, sends},
		"it was sent before":    {sends, func(*rig) {}},
		"another is accepted": {func(r *rig) {
			x := r.put(xds.ListenerType, "bad", "good", nil)
			x.Entry.Ack(x.Resource)
		}, sends},
		"another is sent first": {func(*rig) {}, func(r *rig) {
			r.put(xds.ListenerType, "bad", "other", nil)
			sends(r)
		}},
	} {
		inRig(t, func(r *rig) {
			r.rejected(xds.ListenerType, "bad")
			r.accepts(xds.ClusterType, Accepted{Name: "other"})
			r.run(10*time.Second, true)
			next := r.restarted(at.before)
			at.after(next)
			e := next.s.Table(xds.ListenerType).Entry("bad")
			if e.Status() != xds.Nacked || e.Reason() != "no" || next.Count(xds.ListenerType) != 1 {
				t.Errorf("%s: it is %s (%s), %d NACKed", when, e.Status(), e.Reason(), next.Count(xds.ListenerType))
			}
			next.run(time.Hour, true)
			next.wantOffers("bad")
			next.put(xds.ListenerType, "bad", "better", nil)
			if e.Status() != xds.Pending {
				t.Errorf("%s: another content is %s", when, e.Status())
			}
		})
	}
}

// An agent that is killed with its Envoy, or replaced, does not offer the next one what the last did not outlive; another build may take it.
func TestWhatAClientDidNotOutliveOutlivesTheAgent(t *testing.T) {
	inRig(t, func(r *rig) {
		r.client.Build = "1.40.0"
		r.rejected(xds.ListenerType, "bad")
		r.Again(func(xds.Key) bool { return true }, false, time.Now())
		r.run(time.Second, false)
		r.Closed(r.client, map[string][]string{xds.ListenerType: {"bad"}})
		next := r.restarted(func(*rig) {})
		next.put(xds.ListenerType, "bad", "bad", nil)
		for build, offers := range map[string][]string{"1.40.0": nil, "1.36.4": {"bad"}} {
			next.Started(next.s.Table(xds.ListenerType), make(map[xds.Key]struct{}), build, time.Now())
			next.run(time.Hour, true)
			if !slices.Equal(next.offers, offers) {
				t.Errorf("%s is offered %q, want %q", build, next.offers, offers)
			}
			next = r.restarted(func(*rig) {})
			next.put(xds.ListenerType, "bad", "bad", nil)
		}
	})
}

func TestWhatIsNotWrittenOfNACKs(t *testing.T) {
	inRig(t, func(r *rig) {
		r.rejected(xds.SecretType, "password")
		r.rejected(xds.ListenerType, "gone")
		r.After(&state.Change{Table: r.s.Table(xds.ListenerType), Name: "gone", Kind: state.Removed, Entry: r.s.Table(xds.ListenerType).Drop("gone")})
		r.suspects(xds.ClusterType, "a", "b")
		if facts := r.facts(); len(facts) > 0 {
			t.Errorf("%v", facts)
		}
		long := strings.Repeat("ä", maxReason)
		r.put(xds.ListenerType, "long", "bad", nil)
		table := r.s.Table(xds.ListenerType)
		r.Nacks.Nack(r.client, table, table.Resource("long"), long, false, time.Now())
		for _, value := range r.facts() {
			if len(value) > maxReason+200 || !strings.Contains(value, "ä") || strings.Contains(value, "\ufffd") {
				t.Errorf("%d bytes: %q", len(value), value)
			}
		}
	})
}

// What another version wrote, what is damaged and what is too old is forgotten.
func TestRubbishOnDiskIsForgotten(t *testing.T) {

	for _, value := range []string{"", "yes", "{}", "[1]", `[{"version":"bad"}]`, `[{"version":"bad","reason":"no","at":"1999-01-01T00:00:00Z","pause":"1s"}]`} {
		inRig(t, func(r *rig) {
			f := state.Fact{Kind: state.RejectedFact, Type: xds.ListenerType, Name: "bad"}
			if !r.RestoreFact(f, value, time.Now()) {
				t.Errorf("%q is another's", value)
			}
			r.put(xds.ListenerType, "bad", "bad", nil)
			if e := r.s.Table(xds.ListenerType).Entry("bad"); e.Status() != xds.Pending || len(r.facts()) > 0 {
				t.Errorf("%q: %s, %v", value, e.Status(), r.facts())
			}
		})
	}
}
