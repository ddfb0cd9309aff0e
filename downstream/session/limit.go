package session

import (
	"maps"
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// LeftOut counts the names that Limit removed from a request: those that no resource can have, and
// those beyond the limit. AnInvalid and ASurplus are one of each; "" if there is none.
type LeftOut struct {
	Invalid, Surplus    int
	AnInvalid, ASurplus string
}

// Any reports whether any name was removed.
func (l LeftOut) Any() bool { return l.Invalid+l.Surplus > 0 }

// Limit removes names from a request, before the request is passed to Request: names that no
// resource can have (xds.CheckName; "*" where it is no wildcard), and new names that would bring the stream to more than most
// subscriptions of one type. A wildcard is always served.
//
// With on-demand discovery the names come from requests of strangers. Ending the stream because of
// one name would end all configuration. So that strangers cannot displace other subscriptions, each
// type has a limit of its own, names in initial_resource_versions come first, and a name that is
// cached is served whatever the limit. answerSurplus describes how the other names are answered.
func (s *Session) Limit(req *Request, most int) LeftOut {
	sub := s.types[req.Type]
	subscribed := func(name string) bool { return sub != nil && sub.subscribes(name) }
	list := &req.Names
	room := most
	if s.cfg.Form == xds.Delta {
		list = &req.Subscribe
		if sub != nil {
			room -= sub.names.len()
		}
		for _, name := range req.Unsubscribe {
			if subscribed(name) {
				room++
			}
		}
	} else {
		for _, name := range *list {
			if subscribed(name) {
				room--
			}
		}
	}
	var removed LeftOut
	claimable := most // a client has at most as many resources as it may subscribe to
	if n := len(req.Unreadable); n > 0 {
		removed.Invalid, removed.AnInvalid = n, req.Unreadable[n-1]
	}
	names := slices.DeleteFunc(slices.Clone(*list), func(name string) bool {
		_, claimed := req.Initial[name]
		_, err := xds.CheckName(name)
		switch {
		case s.isStrangers(sub, req.Type, name):
			removed.Invalid++
			removed.AnInvalid = name
			if req.Type == xds.SecretType && name == xds.Wildcard {
				req.surplus = append(req.surplus, name)
			}
		case err != nil:
			removed.Invalid++
			removed.AnInvalid = name
			if name != "" {
				req.surplus = append(req.surplus, name)
			}
		case name == xds.Wildcard, subscribed(name):
			return false
		case claimed && claimable > 0:
			claimable--
			room--
			return false
		case room > 0:
			room--
			return false
		default:
			removed.Surplus++
			removed.ASurplus = name
			req.surplus = append(req.surplus, name)
		}
		return true
	})
	if removed.Any() {
		*list, req.trimmed = names, true
	}
	if surplus := len(req.Initial) - max(most, maxVersions); surplus > 0 {
		req.Initial = maps.Clone(req.Initial)
		removed.Surplus += surplus
		for name := range req.Initial {
			if surplus--; surplus < 0 {
				break
			}
			removed.ASurplus = name
			delete(req.Initial, name)
		}
	}
	return removed
}

// isStrangers reports whether a name that means many resources was not meant so: no Envoy asks for all resources of the type;
// or it asks for all clusters by a later request than its first one, which it does not if it is configured to. With on-demand
// discovery such a name comes from a request of a stranger, and Envoy would get what it is not meant to have.
func (s *Session) isStrangers(sub *subscription, typeURL, name string) bool {
	if name != xds.Wildcard && !xds.IsCollection(name) {
		return false
	}
	if s.cfg.NamesOnly != nil && s.cfg.NamesOnly(typeURL) {
		return true
	}
	return name == xds.Wildcard && s.cfg.KeepWildcard && typeURL == xds.ClusterType && sub != nil && !sub.wildcard &&
		!(s.cfg.HadWildcard != nil && s.cfg.HadWildcard(typeURL))
}

// maxVersions bounds the number of initial_resource_versions of a request, which may be more than the
// limit of names because of a wildcard. Those beyond it are never reported as removed.
const maxVersions = 200_000

// maxReplaced bounds how many names are searched for a subscription that can be replaced, and how
// many names wait for a place.
const maxReplaced = 1024

// answerSurplus answers names beyond the limit as far as something is known of them:
//
//   - A cached resource is served.
//   - A name replaces another subscription of which an upstream has reported that it does not exist,
//     so that the names of strangers displace only one another. This is done in Delta only,
//     where a client does not repeat its names.
//   - A cluster is reported as removed if it is known not to exist, or if its name is invalid.
//     Otherwise the name waits for a place, and the client's timeout ends its request.
//   - The secret "*" is reported as removed: as long as Envoy 1.40 waits for it, it takes every secret of a Delta response
//     for its answer and NACKs the response, so that no certificate rotates (protocol-facts.md section 15).
//   - A virtual host is reported as not existing, because nothing else ends the wait of a request
//     for it (protocol.md 3.15). The next request asks again.
//
// Names of other types are not answered, since the client would believe an empty answer
// (protocol.md V5), nor are names in SotW, where everything would have to be sent again.
func (s *Session) answerSurplus(sub *subscription, v View) *Response {
	if len(sub.surplus) == 0 {
		return nil
	}
	surplus := slices.Sorted(maps.Keys(sub.surplus))
	xds.ResetNames(&sub.surplus)
	resp := &Response{}
	change := &xds.SubscriptionChange{Type: sub.url, Wildcard: sub.wildcard}
	free := sub.replaceable(v)
	for _, name := range surplus {
		if sub.subscribes(name) {
			continue
		}
		item := v.Lookup(sub.url, name)
		_, err := xds.CheckName(name)
		item.NotFound = item.NotFound || err != nil // no resource can have an invalid name
		switch {
		case item.Current != nil:
			sub.subscribe(name, change)
			delete(sub.mustAnswer, name) // until the state knows the subscription
			delete(sub.changed, name)
		case s.cfg.Form == xds.SotW:
		case sub.url == xds.SecretType && name == xds.Wildcard:
			resp.Removed = append(resp.Removed, name)
		case sub.url == xds.ClusterType && sub.mayRemove(v, name, item):
			resp.Removed = append(resp.Removed, name)
		case xds.Info(sub.url).OnDemand && item.NotFound:
			resp.Resources = append(resp.Resources, xds.Unresolved(sub.url, name))
		case err == nil && len(free) > 0:
			sub.unsubscribe(free[0], change)
			free = free[1:]
			sub.subscribe(name, change)
		case xds.Info(sub.url).OnDemand:
			resp.Resources = append(resp.Resources, xds.Unresolved(sub.url, name))
		case sub.url == xds.ClusterType && len(sub.waiting) < maxReplaced:
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
	resp.Version = sub.sentVersion.String()
	sub.track(sentResponse{nonce: resp.Nonce})
	return resp
}

// replaceable returns subscribed names that do not exist, as the client knows from a response.
func (sub *subscription) replaceable(v View) (names []string) {
	if sub.cfg.Form == xds.SotW {
		return nil
	}
	looked := 0
	for name := range sub.names.all() {
		if looked++; looked > maxReplaced {
			break
		}
		_, pending := sub.mustAnswer[name]
		if item := v.Lookup(sub.url, name); item.NotFound && item.Current == nil && sub.sent.get(name) == nil && !pending {
			names = append(names, name)
		}
	}
	return names
}
