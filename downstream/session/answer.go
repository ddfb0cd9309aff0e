package session

import (
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// answer finds the response in flight that a request answers, and returns Effect.Answer and
// Effect.Culprit; nil if no such response is remembered. A NACK of the newest response after its ACK
// counts, because an agent ACKs what it gets before its first Envoy comes; it blames no resource.
func (sub *subscription) answer(req *Request) (answer, culprit *Answer) {
	if req.Nonce == "" {
		return nil, nil
	}
	index := slices.IndexFunc(sub.inFlight, func(f sentResponse) bool { return f.nonce == req.Nonce })
	if index < 0 {
		if !req.NACK || !sub.newestACKed || req.Nonce != sub.nonce {
			return nil, nil
		}
		sub.newestACKed = false
		return &Answer{Type: sub.url, Nonce: req.Nonce, Revision: sub.progress, NACK: true, Error: sub.reason(req.Error, &sentResponse{})}, nil
	}
	sub.newestACKed = !req.NACK && req.Nonce == sub.nonce
	nextAmends := index+1 < len(sub.inFlight) && sub.inFlight[index+1].amends
	f := sub.take(index)
	answer = &Answer{Type: sub.url, Nonce: req.Nonce, Revision: f.revision, NACK: req.NACK}
	if req.NACK {
		answer.Error = sub.reason(req.Error, &f)
		sub.resendHeartbeats(f)
		trialFailed := sub.failed(&f, req.Error)
		if suspects := sub.nack(f, answer); !trialFailed {
			sub.try(suspects, req.Error, answer.Error)
		}
	} else {
		sub.ack(f, answer)
		culprit = sub.passed(&f)
		if nextAmends { // leave out what the client has ACKed now
			next := &sub.inFlight[0]
			next.resources = slices.DeleteFunc(slices.Clone(next.resources), func(r *xds.Resource) bool {
				return sub.copyFrom(next, r.Name).hasAcked(r.Version)
			})
		}
	}
	if !f.probe {
		sub.progress = max(sub.progress, f.revision)
	}
	if len(sub.inFlight) == 0 {
		sub.progress = max(sub.progress, sub.seen)
	}
	return answer, culprit
}

func (sub *subscription) ack(f sentResponse, answer *Answer) {
	for _, r := range f.resources {
		h := sub.copyFrom(&f, r.Name) // nil if it was removed meanwhile
		if !h.hasAcked(r.Version) {
			answer.Acked = append(answer.Acked, r)
		}
		if h != nil {
			h.ack(r)
		}
		sub.offerNext(r.Name)
	}
	answer.Removed = f.removed
}

// offerNext makes a name due whose accepted content the client has answered, and that is offered to it again.
func (sub *subscription) offerNext(name string) {
	if _, ok := sub.offers[name]; ok {
		delete(sub.offers, name)
		sub.changed[name] = struct{}{}
	}
}

// mayHave records that the client may have applied resources that it neither ACKed nor NACKed alone.
func (sub *subscription) mayHave(f *sentResponse, resources []*xds.Resource) {
	for _, r := range resources {
		if h := sub.copyFrom(f, r.Name); h != nil && !h.hasAcked(r.Version) {
			h.needRare().unconfirmed = r
		}
	}
}

// nack finds the resources of a NACKed response that may be to blame: those that the client had
// not ACKed before. A single one is NACKed. Several are suspects (design.md I7); nack returns
// them if it is certain that there are no others.
func (sub *subscription) nack(f sentResponse, answer *Answer) (suspects []*xds.Resource) {
	sub.lastSet = nil
	blamed := slices.DeleteFunc(slices.Clone(f.resources), func(r *xds.Resource) bool {
		return sub.sent.get(r.Name).hasAcked(r.Version)
	})
	if len(f.removed) > 0 && len(f.resources) > 0 {
		// The client may not have applied the removals. They are sent again, by themselves
		// (protocol.md V6).
		for _, name := range f.removed {
			if !sub.covers(&xds.Resource{Name: name}) {
				continue // unsubscribed meanwhile
			}
			sub.copyOf(name)
			sub.changed[name] = struct{}{}
		}
	}
	if len(blamed) == 1 && !f.incomplete {
		answer.Nacked = blamed[0]
		sub.revert(blamed[0])
		return nil
	}
	answer.Suspects = blamed
	sub.mayHave(&f, blamed)
	for _, r := range blamed {
		h := sub.sent.get(r.Name)
		if h == nil || h.version() != r.Version {
			continue
		}
		if _, waits := sub.offers[r.Name]; waits {
			h.needRare().waited = true
			sub.offerNext(r.Name)
		}
		if h.acked == nil {
			sub.neverAcked[r.Name] = struct{}{}
		}
		if sub.sendsAlone() && !sub.probing(r) {
			sub.retryAlone = append(sub.retryAlone, r)
		}
	}
	// Sort them, so that the order of the probes is deterministic.
	slices.SortStableFunc(sub.retryAlone, func(a, b *xds.Resource) int { return strings.Compare(a.Name, b.Name) })
	if f.incomplete {
		return nil
	}
	return blamed
}

// sendsAlone reports whether a resource can be sent without the others. In a complete SotW set it
// cannot, because that would delete the others. There a suspect is sent again only with the next
// change.
func (sub *subscription) sendsAlone() bool {
	return sub.cfg.Form == xds.Delta || !xds.FullState(sub.url)
}

// probing reports whether a resource is being retried alone already. One retry is enough, in
// however many responses the resource was NACKed (design.md I7).
func (sub *subscription) probing(r *xds.Resource) bool {
	return slices.ContainsFunc(sub.retryAlone, r.Same) ||
		slices.ContainsFunc(sub.inFlight, func(f sentResponse) bool { return f.probe && slices.ContainsFunc(f.resources, r.Same) })
}

// sending reports whether a resource was sent, and has not been answered, or is about to be retried alone.
func (sub *subscription) sending(r *xds.Resource) bool {
	return slices.ContainsFunc(sub.retryAlone, r.Same) ||
		slices.ContainsFunc(sub.inFlight, func(f sentResponse) bool { return slices.ContainsFunc(f.resources, r.Same) })
}

// revert replaces a version that the client NACKed by the version that the client has.
func (sub *subscription) revert(r *xds.Resource) {
	h := sub.sent.get(r.Name)
	if h == nil {
		return
	}
	sub.offerNext(r.Name)
	h.nack(r.Version)
	if h.version() != r.Version {
		return // a newer version is in flight
	}
	sub.sentVersion.Remove(h.last)
	h.last, h.has = h.acked, nil
	if h.acked == nil {
		sub.neverAcked[r.Name] = struct{}{}
		return
	}
	sub.sentVersion.Add(h.acked)
	if h.rare.unconfirmed == nil {
		h.has = &h.acked.Version
	}
	if (sub.url == xds.EndpointType || sub.url == xds.SecretType) && !h.hasNacked(h.acked.Version) {
		// The client needs it again. A cluster that changed together with its endpoints still waits
		// for an EDS message, and the endpoints that the client had may be lost with the old cluster
		// (protocol.md V1, 4.1). A Secret that Envoy NACKs is its active one nevertheless, and what
		// changes later fails with it (protocol.md V14).
		sub.answerName(r.Name)
	}
}

// replaceNeverAcked looks at names of which the client NACKed a version before it ACKed any. If
// another client ACKed a version, that version is sent, as on a new stream; a version that this
// client NACKed is never sent to it again (design.md I7). If there is no such version, nothing is
// sent until the resource changes. A suspect is first retried alone. In a complete set, where that
// is impossible, it is replaced if it is the only suspect. If there are several, some of them may be
// valid, and the client may have them.
func (sub *subscription) replaceNeverAcked(v View) {
	if len(sub.neverAcked) == 0 {
		return
	}
	suspects := 0
	for name := range sub.neverAcked {
		if h := sub.sent.get(name); h != nil && h.version() != "" && v.Lookup(sub.url, name).Status == xds.Suspect {
			suspects++
		}
	}
	for name := range sub.neverAcked {
		delete(sub.neverAcked, name)
		h, item := sub.sent.get(name), v.Lookup(sub.url, name)
		if h == nil || item.Acked == nil || h.version() == item.Acked.Version || h.hasNacked(item.Acked.Version) {
			continue
		}
		if item.Status == xds.Pending && h.version() == item.Current.Version && !h.hasNacked(item.Current.Version) {
			continue // the same would be sent again
		}
		suspect := h.version() != "" && item.Status == xds.Suspect
		if suspect && (suspects > 1 || sub.sendsAlone()) {
			continue
		}
		h.has = nil // it is not known whether the client has a suspect
		sub.changed[name] = struct{}{}
	}
}

// claimInitial claims a resource if initial_resource_versions of a Delta client had this version, and
// the resource has not been sent or ACKed since.
func (sub *subscription) claimInitial(h *clientCopy, r *xds.Resource) {
	if r != nil && h != nil && h.last == nil && h.acked == nil && h.version() == r.Version {
		sub.claim(h, r)
	}
}

// claim records that the client has a resource, which counts as an ACK of it.
func (sub *subscription) claim(h *clientCopy, r *xds.Resource) {
	h.ack(r)
	sub.claimed = append(sub.claimed, r)
}

// claimAll records that a SotW client has accepted what its first version_info is the version of.
func (sub *subscription) claimAll(accepted []*xds.Resource) {
	for _, r := range accepted {
		if h := sub.sent.get(r.Name); h != nil && h.last != nil && h.last.Version == r.Version && h.acked == nil {
			sub.claim(h, h.last)
		}
	}
}

// unknownReason replaces the reason of a NACK if the resources of the NACKed response are no longer
// all remembered: the reason may contain a secret of one of them.
const unknownReason = "the client's reason is not shown: the response that it is about is no longer in memory"

// reason returns the reason of a client's NACK with the secrets of what the client was sent
// removed, since Envoy dumps the resource next to its sentence.
func (sub *subscription) reason(text string, f *sentResponse) string {
	if f.incomplete {
		return unknownReason
	}
	return sub.cfg.Secrets.Reason(text, sub.bodies(f))
}

// bodies yields the bodies that the reason of a NACK may quote: those of the response and, since
// not all resources of a complete set are remembered with the response, everything else of the
// type that the client was sent.
func (sub *subscription) bodies(f *sentResponse) iter.Seq[*anypb.Any] {
	return func(yield func(*anypb.Any) bool) {
		resources := slices.Clone(f.resources)
		for _, h := range sub.sent.all() {
			resources = append(resources, h.last, h.acked, h.rare.unconfirmed)
		}
		seen := make(map[*xds.Resource]struct{}, len(resources))
		for _, r := range resources {
			if _, again := seen[r]; again || r == nil || r.Body == nil {
				continue
			}
			seen[r] = struct{}{}
			if !yield(r.Body) {
				return
			}
		}
	}
}
