// Package nacks keeps what clients NACKed of the contents of a cache.
//
// It promises that a content that was NACKed together with others is offered again when one of these turns out to be the cause, is
// replaced or is removed: in state of the world a complete set cannot be sent without it. Nothing in it has a lock: its owner
// serializes all calls.
package nacks

import (
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Nacks is the feature. Make one with New.
type Nacks struct {
	s *state.State
	// history returns the history of what is served under a name; nil for none.
	history func(t *state.Table, name string) *history.History
	counts  map[string]uint64   // of cached contents that were NACKed alone, by type URL
	retry   map[string]struct{} // the types whose suspects are offered again
}

// New returns a Nacks. history returns the history of what is served under a name; nil for none.
func New(s *state.State, history func(t *state.Table, name string) *history.History) *Nacks {
	return &Nacks{s: s, history: history, counts: make(map[string]uint64), retry: make(map[string]struct{})}
}

// After is called for each name that has changed.
func (n *Nacks) After(x *state.Change) {
	was := x.Done.Change == history.ContentChanged && x.Done.WasNackedOrSuspect
	if x.Kind == state.Removed {
		was = x.Entry.NackedOrSuspect()
	}
	if was {
		n.retry[x.Table.URL] = struct{}{}
	}
}

// Suspect records that a content was NACKed together with others.
func (n *Nacks) Suspect(t *state.Table, r *xds.Resource) {
	if h := n.history(t, r.Name); h != nil {
		h.Suspect(r.Version)
	}
}

// Nack records the NACK of the only resource of a response.
func (n *Nacks) Nack(t *state.Table, r *xds.Resource, reason string) {
	if h := n.history(t, r.Name); h != nil && h.Nack(r.Version, reason) {
		n.counts[t.URL]++
		n.s.Persist(t.Key(r.Name))
		n.retry[t.URL] = struct{}{}
	}
}

// Settle is called when an event is over. It offers the suspects of a full-state type to clients once more, because one of the
// resources that were NACKed together turned out to be the cause, was replaced or was removed. In
// SotW a complete set cannot be sent without a suspect; without a retry the suspect would stay one
// for ever, and new clients would get its former content.
func (n *Nacks) Settle(e *state.Event) {
	for typeURL := range n.retry {
		delete(n.retry, typeURL)
		if !xds.FullState(typeURL) {
			continue
		}
		t := n.s.Table(typeURL)
		for name, entry := range t.All() {
			if entry.Retry() {
				e.Changes(t).Add(name, entry.Current())
			}
		}
	}
}

// Count counts the cached contents of a type that clients NACKed alone.
func (n *Nacks) Count(typeURL string) uint64 { return n.counts[typeURL] }
