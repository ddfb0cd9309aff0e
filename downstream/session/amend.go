package session

import (
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A SotW response of a full-state type is always the complete set. Building it from the whole state
// (fullSet) takes several lookups for each resource. If what the client should be sent follows from
// the state alone, the previous set is amended instead, to the same set.

// amendable reports whether the next set can be built by applying the names in sub.changed to the
// previous set: nothing else must be sent, the client has NACKed nothing in that set, and
// View.Nacks has not changed since a set was last built from the whole state.
func (sub *subscription) amendable(v View) bool {
	return sub.lastSet != nil && sub.wildcard && !sub.allChanged && !sub.mustRespond && len(sub.mustAnswer) == 0 &&
		sub.nacks == v.Nacks(sub.url)
}

// amendFullState builds the complete set that the client should have now from the previous set.
// It returns nil if they are equal.
func (s *Session) amendFullState(sub *subscription, v View) *Response {
	updated := newCollector(len(sub.changed))
	var dropped []string
	for name := range sub.changed {
		item := v.Lookup(sub.url, name)
		if item.Current != nil {
			name = item.Current.Name // name may be an alias
			delete(sub.removals, name)
		}
		h := sub.sent[name]
		r := sub.choose(item)
		switch {
		case r != nil:
			if h == nil || h.version() != r.Version {
				updated.add(r)
			}
		case h == nil || !sub.mayRemove(v, name, item):
			// No upstream removed it.
		case xds.Info(sub.url).RemoveLate:
			sub.scheduleRemoval(name)
		default:
			dropped = append(dropped, name)
		}
	}
	xds.ResetNames(&sub.changed)
	if len(updated.resources)+len(dropped) == 0 {
		return nil
	}
	set := slices.Clone(sub.lastSet) // the previous set may still be in use by the sender
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
		sub.copyOf(r.Name).at = int32(len(set))
		set = append(set, r)
	}
	return &Response{Resources: set, complete: true, amended: true, changed: updated.resources, dropped: dropped}
}
