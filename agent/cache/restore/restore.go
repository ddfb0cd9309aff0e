// Package restore puts what was on disk into a cache.
//
// It promises that what a source has said takes precedence, that what has expired stays away, and that no content lives longer than its
// TTL from now, in case the clock was set back (protocol.md 6.2). It does not serve anything: its owner says when. Nothing in it has a
// lock.
package restore

import (
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/builds"
	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/expiry"
	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/journal"
	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Restorer restores. Journal is nil for none.
type Restorer struct {
	State   *state.State
	Guard   *guard.Feature
	Freezer *freeze.Freezer
	Stable  *probation.Stable
	Builds  *builds.Builds
	Expiry  *expiry.Feature
	Journal *journal.Journal
}

// Facts restores facts, and returns what was pinned (freeze.Restore).
func (r Restorer) Facts(of journal.Contents, facts map[state.Fact]string, now time.Time) (pinned map[xds.Key]string) {
	pinned = make(map[xds.Key]string)
	for f, value := range facts {
		if f.Kind == state.PinnedFact {
			pinned[xds.Key{Type: f.Type, Name: f.Name}] = value
		}
		r.Journal.RestoredFact(f, value)
		of.RestoreFact(f, value, now)
	}
	return pinned
}

// Resources restores resources. It returns the names, by type URL, of which a source had said that they do not exist, and whose removal
// may be held back like any other.
func (r Restorer) Resources(saved []journal.Saved, now time.Time) (removed map[string][]string) {
	sizes := make(map[string]int)
	saved, ofBuilds := split(saved)
	for _, s := range saved {
		sizes[s.Type]++
	}
	for typeURL, n := range sizes {
		r.State.Table(typeURL).Grow(n)
	}
	removed = make(map[string][]string)
	for _, s := range saved {
		if t := r.State.Table(s.Type); r.Guard.Active() && t.Entry(s.Name) == nil && t.WasRemoved(s.Name) {
			t.Type.ForgetNotFound(s.Name)
			removed[s.Type] = append(removed[s.Type], s.Name)
		}
	}
	for _, s := range saved {
		r.resource(s, now)
	}
	for _, s := range ofBuilds {
		r.Journal.RestoredBuild(s)
		r.Builds.Restore(xds.Key{Type: s.Type, Name: s.Name}, s.Build, s.Content)
	}
	return removed
}

// split splits what was on disk of names from what builds of the clients' program accepted of them.
func split(all []journal.Saved) (saved, ofBuilds []journal.Saved) {
	for _, s := range all {
		switch {
		case s.Build == "":
			saved = append(saved, s)
		case s.Content != nil:
			ofBuilds = append(ofBuilds, s)
		}
	}
	return saved, ofBuilds
}

func (r Restorer) resource(s journal.Saved, now time.Time) {
	t := r.State.Table(s.Type)
	k := t.Key(s.Name)
	disk := &contents.OnDisk{Saved: r.asHistory(s), Restored: true}
	e := t.Entry(s.Name)
	local := r.State.IsLocal(k) // it may not have been when it was written
	if e == nil && s.Content != nil && !state.Expired(s.Content, now) && !local && (r.Guard.Active() || !t.WasRemoved(s.Name)) {
		h := r.History(s, now)
		t.Restore(h, disk)
		r.Expiry.Track(h.Current())
		return
	}
	if e != nil {
		e.OnDisk = disk
	} else {
		r.Journal.Restored(k, disk)
	}
	r.State.Persist(k)
	if e == nil && s.Content == nil && s.Previous != nil && !local {
		r.Stable.Restore(t, s.Name, s.Previous, now)
	}
}

// Pins restores what was pinned, after the facts and the resources, and returns the names that are.
func (r Restorer) Pins(saved []journal.Saved, pinned map[xds.Key]string, now time.Time) []xds.Key {
	there := make(map[xds.Key]bool, len(saved))
	var stored []freeze.Stored
	if r.Freezer.Order() != nil {
		saved, _ = split(saved)
		for _, s := range saved {
			k := xds.Key{Type: s.Type, Name: s.Name}
			there[k] = true
			if s.Content != nil && !state.Expired(s.Content, now) && !r.State.IsLocal(k) {
				stored = append(stored, freeze.Stored{Key: k, History: r.History(s, now)})
			}
		}
	}
	names := r.Freezer.Restore(there, stored, pinned)
	for _, k := range names {
		if pin, _ := r.Freezer.Current(k); pin != nil {
			r.Expiry.Track(pin)
		}
	}
	return names
}

// Seed restores contents that another agent had of its sources, as if they had been on disk: no client has ACKed them. Of the types in
// complete, and of the names that are there, what there is stays. It returns the names that it has restored.
func (r Restorer) Seed(contents []*xds.Resource, complete map[string]bool, now time.Time) (restored []xds.Key) {
	for _, content := range contents {
		t := r.State.Table(content.Type)
		k := t.Key(content.Name)
		if complete[content.Type] || t.Entry(content.Name) != nil || t.WasRemoved(content.Name) || r.State.IsLocal(k) || state.Expired(content, now) {
			continue
		}
		e := t.Restore(r.History(journal.Saved{Type: content.Type, Name: content.Name, Content: content}, now), nil)
		r.Expiry.Track(e.Current())
		r.State.Persist(k)
		restored = append(restored, k)
	}
	return restored
}

// asHistory returns what was on disk in the form of the histories.
func (r Restorer) asHistory(s journal.Saved) history.Saved {
	return history.Saved{Content: s.Content, Previous: s.Previous, Source: r.State.Sources.ID(s.Source), Acked: s.Accepted, Stable: s.Stable}
}

// History returns the history of a content that was on disk.
func (r Restorer) History(s journal.Saved, now time.Time) history.History {
	h := r.asHistory(s)
	content := r.Expiry.Policy(s.Content)
	if !content.Deadline().IsZero() {
		// A time from disk has no monotonic clock reading: now has one.
		content = content.WithLifetime(content.TTL(), now.Add(min(content.Deadline().Sub(now), content.TTL())))
	}
	h.Content = content
	if h.Source == history.Local {
		h.Source = history.Unknown // the agent does not make it any more
	}
	if !xds.Info(s.Type).FallBack {
		h.Stable, h.Previous = false, nil
	}
	return history.Restored(h)
}
