package session

import (
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
// than most. Envoy repeats its subscriptions on each stream, and with on-demand discovery their
// names come from requests of strangers: to end the stream because of one would end all
// configuration. What is held is served all the same, so that strangers push nothing out. Of the
// rest Next answers the names where the client waits for an answer that takes nothing away: of
// clusters and virtual hosts it says in Delta that they do not exist. Of other types it says nothing,
// since an empty answer would be believed (protocol.md V5), nor in SotW, where it would have to
// send everything again.
func (s *Session) Limit(req *Request, most int) LeftOut {
	var left LeftOut
	_, total := s.Subscriptions()
	sub := s.types[req.Type]
	has := func(name string) bool {
		if sub == nil || name == xds.Wildcard {
			return sub != nil && sub.wildcard
		}
		_, ok := sub.names[name]
		return ok
	}
	room := most - total
	keep := func(names []string) []string {
		var kept []string // nil while all are
		for i, name := range names {
			_, err := xds.CheckName(name)
			switch known := has(name); {
			case err != nil:
				left.Invalid++
				left.AnInvalid = name
			case known || room > 0:
				if !known {
					room--
				}
				if kept != nil {
					kept = append(kept, name)
				}
				continue
			default:
				left.Surplus++
				left.ASurplus = name
			}
			if kept == nil { // the first that is left out
				kept = append(make([]string, 0, len(names)), names[:i]...)
			}
			req.denied = append(req.denied, name)
		}
		if kept == nil {
			return names
		}
		req.trimmed = true
		return kept
	}
	if s.cfg.Form == xds.Delta {
		req.Subscribe = keep(req.Subscribe)
	} else {
		req.Names = keep(req.Names)
	}
	if len(req.Initial) > max(most, 0) {
		initial := make(map[string]string, most)
		for name, version := range req.Initial {
			if len(initial) < most {
				initial[name] = version // what is not said to be there is sent again
			}
		}
		left.Surplus += len(req.Initial) - len(initial)
		req.Initial = initial
	}
	return left
}

// deny takes in names that the stream will not be served.
func (sub *subscription) deny(req *Request) {
	for _, name := range req.denied {
		if len(name) > 0 {
			sub.denied = append(sub.denied, name)
		}
	}
}

// buildDenied answers names that the stream is not served, each once; nothing is remembered of
// them. It subscribes to those under which something is held.
func (s *Session) buildDenied(sub *subscription, v View) *Response {
	if len(sub.denied) == 0 {
		return nil
	}
	denied := make(map[string]struct{}, len(sub.denied))
	for _, name := range sub.denied {
		denied[name] = struct{}{}
	}
	sub.denied = nil
	resp := &Response{}
	in := &xds.SubscriptionChange{Type: sub.url, Wildcard: sub.wildcard}
	for name := range denied {
		switch {
		case v.Lookup(sub.url, name).Current != nil:
			sub.subscribe(name, in)
			delete(sub.due, name) // until the state knows of it
		case sub.cfg.Form == xds.SotW:
		case sub.url == xds.VirtualHostType:
			resp.Resources = append(resp.Resources, xds.Unresolved(sub.url, name))
		case sub.url == xds.ClusterType:
			resp.Removed = append(resp.Removed, name)
		}
	}
	if len(in.Subscribe) > 0 {
		s.interests = append(s.interests, *in)
	}
	if resp.Size()+len(resp.Removed) == 0 {
		return nil
	}
	slices.Sort(resp.Removed)
	s.address(sub, resp)
	sub.launch(flight{nonce: resp.Nonce})
	return resp
}
