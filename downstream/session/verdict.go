package session

import (
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// answer matches a request with the response it answers, and returns what the
// client made of it; nil if the request answers none that is remembered.
// culprit, which is nil for most, is what an ACK says of a response that was NACKed before.
func (sub *subscription) answer(req *Request) (v, culprit *Answer) {
	if req.Nonce == "" {
		return nil, nil
	}
	at := slices.IndexFunc(sub.inFlight, func(f sentResponse) bool { return f.nonce == req.Nonce })
	if at < 0 {
		return nil, nil
	}
	carried := at+1 < len(sub.inFlight) && sub.inFlight[at+1].amends
	f := sub.take(at)
	v = &Answer{Type: sub.url, Revision: f.revision, NACK: req.NACK}
	if req.NACK {
		v.Error = sub.reason(req.Error, &f)
		sub.missedBeats(f)
		again := sub.failed(&f)
		if suspects := sub.nack(f, v); !again {
			sub.try(suspects, req.Error, v.Error)
		}
	} else {
		sub.ack(f, v)
		culprit = sub.passed(&f)
		if carried {
			sub.leaveOutAcked()
		}
	}
	if !f.probe {
		sub.progress = max(sub.progress, f.revision)
	}
	if len(sub.inFlight) == 0 {
		sub.progress = max(sub.progress, sub.seen)
	}
	return v, culprit
}

func (sub *subscription) ack(f sentResponse, v *Answer) {
	for _, r := range f.resources {
		h := sub.heldFrom(&f, r.Name)
		switch {
		case h == nil: // accepted all the same
			v.Acked = append(v.Acked, r)
		case h.acked == nil || h.acked.Version != r.Version:
			v.Acked = append(v.Acked, r)
			fallthrough
		default:
			h.ack(r)
		}
	}
	v.Removed = f.removed
}

// mayHave notes contents of a response without a verdict on each.
func (sub *subscription) mayHave(f *sentResponse, resources []*xds.Resource) {
	for _, r := range resources {
		if h := sub.heldFrom(f, r.Name); h != nil && (h.acked == nil || h.acked.Version != r.Version) {
			h.odd().unjudged = r
		}
	}
}

// nack finds which contents are to blame: those that the client had not ACKed
// before. One alone is rejected, several are suspects (design.md I7), which it returns where it
// is known that they are all.
func (sub *subscription) nack(f sentResponse, v *Answer) (suspects []*xds.Resource) {
	sub.whole = nil
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
			sub.hold(name)
			sub.dirty[name] = struct{}{}
		}
	}
	if len(blamed) == 1 && !f.partly {
		v.Nacked = blamed[0]
		sub.revert(blamed[0])
		return nil
	}
	v.Suspects = blamed
	sub.mayHave(&f, blamed)
	for _, r := range blamed {
		h := sub.sent[r.Name]
		if h == nil || h.version() != r.Version {
			continue
		}
		if h.acked == nil {
			sub.bare[r.Name] = struct{}{}
		}
		if sub.sendsAlone() && !sub.probing(r) {
			sub.alone = append(sub.alone, r)
		}
	}
	// In an order that can be told.
	slices.SortStableFunc(sub.alone, func(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) })
	if f.partly {
		return nil
	}
	return blamed
}

// sendsAlone tells whether a resource can be sent without the others: not where that
// would delete them. There a suspect is sent again only with the next change.
func (sub *subscription) sendsAlone() bool {
	return sub.cfg.Form == xds.Delta || !xds.FullState(sub.url)
}

// probing tells whether a content is sent alone already: once more is enough, in
// however many responses it was refused (design.md I7).
func (sub *subscription) probing(r *xds.Resource) bool {
	same := func(o *xds.Resource) bool { return o.Name == r.Name && o.Version == r.Version }
	return slices.ContainsFunc(sub.alone, same) ||
		slices.ContainsFunc(sub.inFlight, func(f sentResponse) bool { return f.probe && slices.ContainsFunc(f.resources, same) })
}

// revert goes back to what the client has instead of a version it refused.
func (sub *subscription) revert(r *xds.Resource) {
	h := sub.sent[r.Name]
	if h == nil {
		return
	}
	h.nack(r.Version)
	if h.version() != r.Version {
		return // something newer is on its way
	}
	sub.served.Remove(h.last)
	h.last, h.has = h.acked, nil
	if h.acked == nil {
		sub.bare[r.Name] = struct{}{}
		return
	}
	sub.served.Add(h.acked)
	if h.unacked() == nil {
		h.has = &h.acked.Version
	}
	if sub.url == xds.EndpointType && !h.hasNacked(h.acked.Version) {
		// A cluster that changed with its endpoints still waits for an EDS message, and
		// what the client had may be gone with the cluster before (protocol.md V1, 4.1).
		sub.answerName(r.Name)
	}
}

// offer makes dirty what the client refused before it accepted anything under the
// name, if another client did accept something: it gets that as on a new stream, and
// what it refused never again (design.md I7). Where there is no such version, nothing
// is sent until the content changes. A suspect is sent once more first; in a complete
// set, where it cannot be, it gives way if it is the only one: of several some are
// good, and the client may have them.
func (sub *subscription) offer(v View) {
	if len(sub.bare) == 0 {
		return
	}
	suspects := 0
	for name := range sub.bare {
		if h := sub.sent[name]; h != nil && h.version() != "" && v.Lookup(sub.url, name).Status == xds.Suspect {
			suspects++
		}
	}
	for name := range sub.bare {
		delete(sub.bare, name)
		h, item := sub.sent[name], v.Lookup(sub.url, name)
		if h == nil || item.Acked == nil || h.version() == item.Acked.Version || h.hasNacked(item.Acked.Version) {
			continue
		}
		suspect := h.version() != "" && item.Status == xds.Suspect
		if suspect && (suspects > 1 || sub.sendsAlone()) {
			continue
		}
		h.has = nil // of a suspect it is not known whether the client has it
		sub.dirty[name] = struct{}{}
	}
}

// claims tells whether a Delta client said at the beginning of the stream that it has this
// content (initial_resource_versions), and nothing was heard of it since.
func (sub *subscription) claims(h *holding, r *xds.Resource) bool {
	return r != nil && h != nil && h.last == nil && h.acked == nil && h.version() == r.Version
}

// claim takes in that the client has a content, which is as good as an ACK of it.
func (sub *subscription) claim(h *holding, r *xds.Resource) {
	h.ack(r)
	sub.claimed = append(sub.claimed, r)
}

// claimAll takes in that a SotW client has everything that it was sent on this stream: its
// first version_info names that set.
func (sub *subscription) claimAll() {
	sub.version = ""
	for _, h := range sub.sent {
		if h.last != nil && h.acked == nil {
			sub.claim(h, h.last)
		}
	}
}
