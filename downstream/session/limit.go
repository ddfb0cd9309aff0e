package session

import (
	"maps"
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// LeftOut is what Limit took out of a request.
type LeftOut struct {
	// Invalid counts names that no resource can have, Surplus those beyond the limit.
	Invalid, Surplus int
	// AnInvalid and ASurplus are one of each, "" for none.
	AnInvalid, ASurplus string
}

// Any reports whether there is anything.
func (l LeftOut) Any() bool { return l.Invalid+l.Surplus > 0 }

// Limit takes out of a request, before Request has it, what the stream will not be served: names
// that no resource can have (xds.CheckName), and new names with which it would subscribe to more
// than most of one type. A wildcard is always served.
//
// Envoy repeats its subscriptions on each stream, and with on-demand discovery their names come
// from requests of strangers: to end the stream because of one would end all configuration. So
// that strangers push nothing out, each type has room of its own, what the client says that it
// has (initial_resource_versions) comes first, and what is held is served whatever the limit.
// Of the rest see refuseSurplus.
func (s *Session) Limit(req *Request, most int) LeftOut {
	sub := s.types[req.Type]
	subscribed := func(name string) bool {
		if sub == nil {
			return false
		}
		_, ok := sub.names[name]
		return ok
	}
	list := &req.Names
	room := most
	if s.cfg.Form == xds.Delta {
		list = &req.Subscribe
		if sub != nil {
			room -= len(sub.names)
		}
		for _, name := range req.Unsubscribe {
			if subscribed(name) {
				room++
			}
		}
	}
	if s.cfg.Form == xds.SotW {
		for _, name := range *list {
			if subscribed(name) {
				room--
			}
		}
	}
	var left LeftOut
	had := most // what the client has is at most as much as it may subscribe to
	kept := slices.DeleteFunc(slices.Clone(*list), func(name string) bool {
		_, has := req.Initial[name]
		_, err := xds.CheckName(name)
		switch {
		case err != nil:
			left.Invalid++
			left.AnInvalid = name
			if name != "" {
				req.surplus = append(req.surplus, name)
			}
		case name == xds.Wildcard, subscribed(name):
			return false
		case has && had > 0:
			had--
			room--
			return false
		case room > 0:
			room--
			return false
		default:
			left.Surplus++
			left.ASurplus = name
			req.surplus = append(req.surplus, name)
		}
		return true
	})
	if left.Any() {
		*list, req.trimmed = kept, true
	}
	if surplus := len(req.Initial) - max(most, maxVersions); surplus > 0 {
		req.Initial = maps.Clone(req.Initial)
		left.Surplus += surplus
		for name := range req.Initial {
			if surplus--; surplus < 0 {
				break
			}
			left.ASurplus = name
			delete(req.Initial, name)
		}
	}
	return left
}

// maxVersions bounds the versions that a client may say that it has (initial_resource_versions).
// A wildcard covers any number of them, and what is left out is never said to be gone.
const maxVersions = 200_000

// maxReplaced bounds the names that are looked at for one whose place another can take.
const maxReplaced = 1024

// refuseSurplus answers names for which there is no room, where something is known of them:
//
//   - what is held is served;
//   - a name takes the place of another of which an upstream has said that it does not exist, so
//     that the names of strangers push out one another (Delta, where a client does not repeat them);
//   - of a cluster it is said that it does not exist if that is known, as of a name that nothing
//     can have. Else it waits for a place, and the client gives up in time;
//   - of a virtual host it is said that it does not exist: nothing ends the wait of a request for
//     one (protocol.md 3.15), and the next request asks again.
//
// Of other types nothing is said, since an empty answer would be believed (protocol.md V5), nor
// in SotW, where everything would have to be sent again.
func (s *Session) refuseSurplus(sub *subscription, v View) *Response {
	if len(sub.surplus) == 0 {
		return nil
	}
	surplus := sub.surplus
	sub.surplus = nil
	resp := &Response{}
	change := &xds.SubscriptionChange{Type: sub.url, Wildcard: sub.wildcard}
	free := sub.replaceable(v)
	for _, name := range slices.Sorted(maps.Keys(surplus)) {
		if _, subscribed := sub.names[name]; subscribed {
			continue
		}
		item := v.Lookup(sub.url, name)
		_, err := xds.CheckName(name)
		item.NotFound = item.NotFound || err != nil // nobody can have it
		switch {
		case item.Current != nil:
			sub.subscribe(name, change)
			delete(sub.due, name) // until the state knows of it
			delete(sub.dirty, name)
		case s.cfg.Form == xds.SotW:
		case sub.url == xds.ClusterType && sub.absent(v, name, item):
			resp.Removed = append(resp.Removed, name)
		case sub.url == xds.VirtualHostType && item.NotFound:
			resp.Resources = append(resp.Resources, xds.Unresolved(sub.url, name))
		case err == nil && len(free) > 0:
			sub.unsubscribe(free[0], change)
			free = free[1:]
			sub.subscribe(name, change)
		case sub.url == xds.VirtualHostType:
			resp.Resources = append(resp.Resources, xds.Unresolved(sub.url, name))
		case sub.url == xds.ClusterType && len(sub.waiting) < maxReplaced:
			if sub.waiting == nil {
				sub.waiting = make(map[string]struct{})
			}
			sub.waiting[name] = struct{}{}
		}
	}
	if len(change.Subscribe)+len(change.Unsubscribe) > 0 {
		s.subscriptionChanges = append(s.subscriptionChanges, *change)
	}
	if resp.Size()+len(resp.Removed) == 0 {
		return nil
	}
	slices.Sort(resp.Removed)
	s.address(sub, resp)
	sub.track(sentResponse{nonce: resp.Nonce})
	return resp
}

// replaceable returns names that the client subscribes to and that do not exist, as it was told.
func (sub *subscription) replaceable(v View) (names []string) {
	if sub.cfg.Form == xds.SotW {
		return nil
	}
	looked := 0
	for name := range sub.names {
		if looked++; looked > maxReplaced {
			break
		}
		_, due := sub.due[name]
		if item := v.Lookup(sub.url, name); item.NotFound && item.Current == nil && sub.sent[name] == nil && !due {
			names = append(names, name)
		}
	}
	return names
}

// addSurplus takes in names for which there was no room.
func (sub *subscription) addSurplus(names []string) {
	if sub.surplus == nil {
		sub.surplus = make(map[string]struct{}, len(names))
	}
	for _, name := range names {
		sub.surplus[name] = struct{}{}
	}
}

// retrySurplus looks again at the names that wait for a place: something has changed.
func (sub *subscription) retrySurplus() {
	if len(sub.waiting) > 0 {
		sub.addSurplus(slices.Collect(maps.Keys(sub.waiting)))
		clear(sub.waiting)
	}
}
