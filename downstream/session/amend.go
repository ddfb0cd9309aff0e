package session

import (
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A SotW response of a full-state type is the complete set, whatever changed. To make it
// anew looks at each resource several times; where only the state decides what the client
// should have, the set that it was sent last is amended instead. fullSet is what it stands
// for: both make the same set of the same state.

// amendable reports whether the set that was sent last can be amended by the names that
// are dirty: nothing else may be owed, and nothing is in dispute with the client.
func (sub *subscription) amendable(v View) bool {
	return sub.whole != nil && sub.wildcard && !sub.lookAtAll && !sub.answerDue && len(sub.due) == 0 &&
		sub.nacks == v.Nacks(sub.url)
}

// amendFullState makes the complete set that a client should have now from the one that
// it was sent last; nil if that is the same.
func (s *Session) amendFullState(sub *subscription, v View) *Response {
	news := newCollector(len(sub.dirty))
	var dropped []string
	for name := range sub.dirty {
		item := v.Lookup(sub.url, name)
		if item.Current != nil {
			name = item.Current.Name // not the alias
			delete(sub.leaving, name)
		}
		h := sub.sent[name]
		r := sub.choose(item)
		switch {
		case r != nil:
			if h == nil || h.version() != r.Version {
				news.add(r)
			}
		case h == nil || !sub.absent(v, name, item):
			// Nobody said that it is gone.
		case xds.Info(sub.url).RemoveLate:
			s.leave(sub, name)
		default:
			dropped = append(dropped, name)
		}
	}
	xds.ResetNames(&sub.dirty)
	if len(news.resources)+len(dropped) == 0 {
		return nil
	}
	set := slices.Clone(sub.whole) // the one before may still be on its way out
	for _, name := range dropped {
		at, last := sub.sent[name].at, len(set)-1
		sub.sent[set[last].Name].at = at
		set[at] = set[last]
		set = set[:last]
		sub.forget(name)
	}
	for _, r := range news.resources {
		if h := sub.sent[r.Name]; h != nil {
			set[h.at] = r
			continue
		}
		sub.hold(r.Name).at = int32(len(set))
		set = append(set, r)
	}
	return &Response{Resources: set, whole: true, amended: true, changed: news.resources, dropped: dropped}
}
