package session

import (
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// answer matches a request with the response it answers, and returns what the
// client made of it; nil if the request answers none that is remembered.
func (sub *subscription) answer(req *Request) *Verdict {
	if req.Nonce == "" {
		return nil
	}
	at := slices.IndexFunc(sub.flights, func(f flight) bool { return f.nonce == req.Nonce })
	if at < 0 {
		return nil
	}
	f := sub.flights[at]
	// What was sent before is superseded, its verdict unknown: SotW clients
	// answer only the newest (protocol.md 1.8), Delta clients in order (3.12).
	for _, superseded := range sub.flights[:at] {
		for _, r := range superseded.resources {
			if h := sub.sent[r.Name]; h != nil && h.acked == nil {
				h.unjudged = r
			}
		}
	}
	sub.flights = slices.Delete(sub.flights, 0, at+1)
	v := &Verdict{Type: sub.url, Revision: f.revision, NACK: req.NACK, Error: req.Error}
	if req.NACK {
		sub.missedBeats(f)
		sub.nack(f, v)
	} else {
		sub.ack(f, v)
	}
	if !f.probe {
		sub.progress = max(sub.progress, f.revision)
	}
	if len(sub.flights) == 0 {
		sub.progress = max(sub.progress, sub.seen)
	}
	return v
}

func (sub *subscription) ack(f flight, v *Verdict) {
	for _, r := range f.resources {
		h := sub.sent[r.Name]
		switch {
		case h == nil: // unsubscribed meanwhile, and accepted all the same
			v.Accepted = append(v.Accepted, r)
		case h.acked == nil || h.acked.Version != r.Version:
			v.Accepted = append(v.Accepted, r)
			fallthrough
		default:
			h.acked, h.unjudged = r, nil
			if h.nacked == r.Version {
				h.nacked = ""
			}
		}
	}
	v.Removed = f.removed
}

// nack finds which contents are to blame: those that the client had not ACKed
// before. One alone is rejected, several are suspects (design.md I7).
func (sub *subscription) nack(f flight, v *Verdict) {
	var blamed []*xds.Resource
	for _, r := range f.resources {
		if h := sub.sent[r.Name]; h == nil || h.acked == nil || h.acked.Version != r.Version {
			blamed = append(blamed, r)
		}
	}
	if len(f.removed) > 0 && len(f.resources) > 0 {
		// Whether the removals were applied is not known; they are said again,
		// by themselves (protocol.md V6).
		for _, name := range f.removed {
			if !sub.covers(&xds.Resource{Name: name}) {
				continue // unsubscribed meanwhile
			}
			if sub.sent[name] == nil {
				sub.sent[name] = &holding{}
			}
			sub.dirty[name] = struct{}{}
		}
	}
	if len(blamed) == 1 {
		v.Rejected = blamed[0]
		sub.reject(blamed[0])
		return
	}
	v.Suspects = blamed
	if sub.cfg.Form == SotW && xds.FullState(sub.url) {
		return // sent again only with the next change, in the full set
	}
	for _, r := range blamed {
		if h := sub.sent[r.Name]; h != nil && h.version == r.Version {
			sub.alone = append(sub.alone, r.Name)
		}
	}
	slices.Sort(sub.alone) // in an order that can be told
}

// reject goes back to what the client has instead of a version it refused.
func (sub *subscription) reject(r *xds.Resource) {
	h := sub.sent[r.Name]
	if h == nil {
		return
	}
	h.nacked = r.Version
	if h.version != r.Version {
		return // something newer is on its way
	}
	sub.served.Remove(h.last)
	h.last, h.version = h.acked, ""
	if h.acked != nil {
		h.version = h.acked.Version
		sub.served.Add(h.acked)
	}
}
