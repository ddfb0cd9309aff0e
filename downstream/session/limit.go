package session

import (
	"hash/maphash"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// LeftOut is what Limit took out of a request.
type LeftOut struct {
	// Invalid counts names that no resource can have, Surplus those beyond the limit.
	Invalid, Surplus int
	// Example is one of them, "" for none.
	Example string
}

// Any reports whether there is anything.
func (l LeftOut) Any() bool { return l.Invalid+l.Surplus > 0 }

// Limit takes out of a request, before Request has it, what the stream will not be served: names
// that no resource can have (xds.CheckName), and new names with which it would subscribe to more
// than most. Envoy repeats its subscriptions on each stream, and with on-demand discovery their
// names come from requests of strangers: to end the stream because of one would end all
// configuration. Request answers those names where the client waits for an answer that takes
// nothing away: of clusters and virtual hosts it is said that they do not exist. Of other types
// nothing is said, since an empty answer would be believed (protocol.md V5).
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
			}
			if left.Example == "" {
				left.Example = name
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
	if s.cfg.Form == Delta {
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

var deniedSeed = maphash.MakeSeed()

// deny takes in names that the stream will not be served.
func (sub *subscription) deny(req *Request) {
	switch {
	case sub.cfg.Form == Delta && (sub.url == xds.ClusterType || sub.url == xds.VirtualHostType):
		for _, name := range req.denied {
			if name != "" {
				sub.denied = append(sub.denied, name)
			}
		}
	case sub.cfg.Form == SotW && sub.url == xds.ClusterType:
		// Each request repeats all names: only others than before are owed an answer.
		var sum uint64
		for _, name := range req.denied {
			sum += maphash.String(deniedSeed, name)
		}
		if sum != sub.deniedSum && len(req.denied) > 0 {
			sub.answerDue = true
		}
		sub.deniedSum = sum
	}
}

// buildDenied answers names that the stream is not served, each once; nothing is remembered of
// them. What is held under such a name and covered by a wildcard is sent as if it were asked for.
func (s *Session) buildDenied(sub *subscription, v View) *Response {
	if len(sub.denied) == 0 {
		return nil
	}
	resp := &Response{}
	said := make(map[string]struct{}, len(sub.denied))
	for _, name := range sub.denied {
		if _, ok := said[name]; ok {
			continue
		}
		said[name] = struct{}{}
		switch item := v.Lookup(sub.url, name); {
		case item.Current != nil && sub.covers(item.Current):
			sub.owe(item.Current.Name)
		case sub.url == xds.VirtualHostType:
			resp.Resources = append(resp.Resources, xds.Unresolved(sub.url, name))
		default:
			resp.Removed = append(resp.Removed, name)
		}
	}
	sub.denied = nil
	if resp.Size()+len(resp.Removed) == 0 {
		return nil
	}
	s.address(sub, resp)
	sub.launch(flight{nonce: resp.Nonce})
	return resp
}
