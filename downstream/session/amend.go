package session

import (
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A SotW response of a full-state type is always the complete set, whatever changed. Building it
// from the whole state (fullSet) looks at each resource several times. Where the state alone
// decides what the client should have, the previous set is amended instead. Both ways build the
// same set from the same state.

// amendable reports whether the next set can be built by applying the names in dirty to the
// previous set: nothing else must be sent, the client has NACKed nothing in that set, and
// View.Nacks has not changed since a set was last built from the whole state.
func (sub *subscription) amendable(v View) bool {
	return sub.whole != nil && sub.wildcard && !sub.lookAtAll && !sub.answerDue && len(sub.due) == 0 &&
		sub.nacks == v.Nacks(sub.url)
}

// amendFullState builds the complete set that the client should have now from the previous set.
// It returns nil if they are equal.
func (s *Session) amendFullState(sub *subscription, v View) *Response {
	updated := newCollector(len(sub.dirty))
	var dropped []string
	for name := range sub.dirty {
		item := v.Lookup(sub.url, name)
		if item.Current != nil {
			name = item.Current.Name // name may be an alias
			delete(sub.leaving, name)
		}
		h := sub.sent[name]
		r := sub.choose(item)
		switch {
		case r != nil:
			if h == nil || h.version() != r.Version {
				updated.add(r)
			}
		case h == nil || !sub.absent(v, name, item):
			// No upstream said that it was removed.
		case xds.Info(sub.url).RemoveLate:
			s.leave(sub, name)
		default:
			dropped = append(dropped, name)
		}
	}
	xds.ResetNames(&sub.dirty)
	if len(updated.resources)+len(dropped) == 0 {
		return nil
	}
	set := slices.Clone(sub.whole) // the previous set may still be in use by the sender
	for _, name := range dropped {
		at, last := sub.sent[name].at, len(set)-1
		sub.sent[set[last].Name].at = at
		set[at] = set[last]
		set = set[:last]
		sub.forget(name)
	}
	for _, r := range updated.resources {
		if h := sub.sent[r.Name]; h != nil {
			set[h.at] = r
			continue
		}
		sub.hold(r.Name).at = int32(len(set))
		set = append(set, r)
	}
	return &Response{Resources: set, whole: true, amended: true, changed: updated.resources, dropped: dropped}
}
