package session

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// sentResponse is a response in flight: one that the client has neither ACKed nor NACKed yet.
type sentResponse struct {
	nonce    string
	at       time.Time // when it was built
	number   uint64    // counts the responses of the type
	revision uint64
	// resources may list only those resources of a complete set that the client has not ACKed. If
	// amends is set, the response is the previous response in flight, without the names in dropped
	// and with these resources added or replaced; see contents.
	resources  []*xds.Resource
	amends     bool
	dropped    []string
	removed    []string
	heartbeats []*xds.Resource
	probe      bool // the response has a single suspect, which is retried alone
	incomplete bool // contents no longer returns all resources of the response
}

func (sub *subscription) track(f sentResponse) {
	sub.sentCount++
	f.number = sub.sentCount
	f.amends = f.amends && len(sub.inFlight) > 0 // else the client has ACKed the rest
	sub.nonce, sub.answered, sub.newestACKed = f.nonce, false, false
	if len(sub.inFlight) >= max(sub.mergeAbove, maxInFlight) {
		sub.makeRoom()
	}
	sub.inFlight = append(sub.inFlight, f)
	if sub.superseded > maxSuperseded {
		sub.forgetSuperseded()
	}
}

// contents returns the resources of the response at index at which the client has not ACKed, and
// perhaps more. For an amended set it merges the resources of that response with those of the
// sets before it which are in flight too and are still part of it, because an ACK or NACK of the
// set is about all of them.
func (sub *subscription) contents(at int) []*xds.Resource {
	if !sub.inFlight[at].amends {
		return sub.inFlight[at].resources
	}
	var out []*xds.Resource
	seen := make(map[string]struct{})
	for i := at; ; i-- {
		f := &sub.inFlight[i]
		for _, r := range f.resources {
			if _, newer := seen[r.Name]; !newer {
				seen[r.Name] = struct{}{}
				out = append(out, r)
			}
		}
		if !f.amends {
			return out
		}
		for _, name := range f.dropped {
			seen[name] = struct{}{}
		}
	}
}

// take removes the responses in flight up to index at, and returns the last of them with all the
// resources that its ACK or NACK is about. Those before it get no ACK or NACK of their own: SotW
// clients answer only the newest (protocol.md 1.8), Delta clients answer in order (3.12).
func (sub *subscription) take(at int) sentResponse {
	f := sub.inFlight[at]
	f.resources, f.amends = sub.contents(at), false
	for i := range at {
		sub.mayHave(&sub.inFlight[i], sub.inFlight[i].resources)
	}
	if next := at + 1; next < len(sub.inFlight) && sub.inFlight[next].amends {
		rest := sub.contents(next)
		sub.inFlight[next].resources, sub.inFlight[next].amends = rest, false
	}
	sub.inFlight = slices.Delete(sub.inFlight, 0, at+1)
	if len(sub.inFlight) == 0 {
		sub.superseded, sub.mergeAbove = 0, 0
	}
	return f
}

// newestInFlight is how many of the newest responses in flight makeRoom leaves as they are.
const newestInFlight = maxInFlight / 4

// makeRoom bounds the number of responses in flight. An older response is remembered as long as it
// contains a resource of which the client was sent nothing newer, because its ACK or NACK may
// still come: Envoy withholds its ACKs of clusters for 15 s, and then sends all of them
// (protocol.md V2).
func (sub *subscription) makeRoom() {
	older := len(sub.inFlight) - newestInFlight
	switch {
	case sub.cfg.Form == xds.Delta:
		sub.dropResent(older)
	case xds.FullState(sub.url):
		// Each set includes the changes of the sets before it, and no client answers an older set
		// after a newer one.
		last := sub.inFlight[older-1]
		last.resources, last.amends = sub.contents(older-1), false
		for i := range older - 1 {
			sub.dropSuperseded(&sub.inFlight[i])
		}
		sub.inFlight = slices.Replace(sub.inFlight, 0, older, last)
	default:
		// A client answers only the newest response, so that it stays unknown whether it accepted
		// these.
		for i := range older {
			sub.mayHave(&sub.inFlight[i], sub.inFlight[i].resources)
		}
		sub.inFlight = slices.Delete(sub.inFlight, 0, older)
	}
	sub.mergeAbove = 2 * len(sub.inFlight)
}

// dropResent removes, from the given number of oldest responses in flight, the resources that a later
// response contains again or in a newer version. Responses that are left empty are removed.
func (sub *subscription) dropResent(older int) {
	resent := make(map[*xds.Resource]struct{})
	for i := len(sub.inFlight) - 1; i >= 0; i-- {
		f := &sub.inFlight[i]
		if i < older {
			n := len(f.resources)
			sub.dropSuperseded(f)
			f.resources = slices.DeleteFunc(slices.Clone(f.resources), func(r *xds.Resource) bool {
				_, sent := resent[r]
				return sent
			})
			f.incomplete = f.incomplete || len(f.resources) < n
		}
		for _, r := range f.resources {
			resent[r] = struct{}{}
		}
	}
	empty := func(f sentResponse) bool { return len(f.resources) == 0 }
	rest := slices.DeleteFunc(sub.inFlight[:older], empty)
	sub.inFlight = slices.Delete(sub.inFlight, len(rest), older)
}

// dropSuperseded removes from a response the resources of which a newer version, or a removal, was
// sent later. It passes them to mayHave. The caller sets incomplete.
func (sub *subscription) dropSuperseded(f *sentResponse) {
	var current, superseded []*xds.Resource
	for _, r := range f.resources {
		if h := sub.sent.get(r.Name); h != nil && h.last == r {
			current = append(current, r)
		} else {
			superseded = append(superseded, r)
		}
	}
	if len(superseded) > 0 {
		sub.mayHave(f, superseded)
		f.resources = current
	}
}

// maxSuperseded bounds the bytes of superseded resources that are remembered only because the client
// may still ACK or NACK the response they were in.
const maxSuperseded = 4 << 20

// forgetSuperseded removes superseded resources from all responses in flight.
func (sub *subscription) forgetSuperseded() {
	// A resource is part of every set from the response that contains it up to the response that
	// has another version under its name, drops it, or is not an amendment (amends is not set).
	until := make(map[string]int)
	// missing[i] is the number of resources missing from response i minus that of response i-1.
	missing := make([]int, len(sub.inFlight)+1)
	unamended := len(sub.inFlight)
	for i := len(sub.inFlight) - 1; i >= 0; i-- {
		f := &sub.inFlight[i]
		before := f.resources
		sub.dropSuperseded(f)
		for _, r := range before {
			if h := sub.sent.get(r.Name); h == nil || h.last != r {
				end, ok := until[r.Name]
				if !ok {
					end = unamended
				}
				missing[i]++
				missing[end]--
			}
			until[r.Name] = i
		}
		for _, name := range f.dropped {
			until[name] = i
		}
		if !f.amends {
			unamended = i
			clear(until)
		}
	}
	n := 0
	for i := range sub.inFlight {
		n += missing[i]
		sub.inFlight[i].incomplete = sub.inFlight[i].incomplete || n > 0
	}
	sub.superseded = 0
}
