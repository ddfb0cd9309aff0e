package session

import (
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// sentResponse is a response that the client has not answered.
type sentResponse struct {
	nonce    string
	number   uint64 // counts the responses of the type
	revision uint64
	// resources are those of the response; of a complete set perhaps only those that the
	// client has not ACKed. If it amends the flight before, they are what it has beside what that
	// has, without the names in dropped: see contents.
	resources []*xds.Resource
	amends    bool
	dropped   []string
	removed   []string
	beats     []*xds.Resource
	// probe: a suspect that was sent alone.
	probe bool
	// partly: contents does not return all any more.
	partly bool
}

// track remembers a response that was sent.
func (sub *subscription) track(f sentResponse) {
	sub.sentCount++
	f.number = sub.sentCount
	f.amends = f.amends && len(sub.inFlight) > 0 // else the client has ACKed the rest
	sub.nonce, sub.answered = f.nonce, false
	if len(sub.inFlight) >= max(sub.crowded, maxInFlight) {
		sub.makeRoom()
	}
	sub.inFlight = append(sub.inFlight, f)
	if sub.superseded > maxSuperseded {
		sub.forgetSuperseded()
	}
}

// contents returns what the response at a place has that the client has not ACKed, or more.
// Of an amended set that is its news, and of the sets before it, as far as they have no answer
// either, what is still in it: the answer is about all of them.
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

// take takes the flights up to a place out, and returns the last of them with all that its
// answer is about. What was sent before it is superseded, its verdict unknown: SotW clients
// answer only the newest (protocol.md 1.8), Delta clients in order (3.12).
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
		sub.superseded, sub.crowded = 0, 0
	}
	return f
}

// leaveOutAcked takes out of the oldest flight what the client has ACKed since it was sent.
func (sub *subscription) leaveOutAcked() {
	f := &sub.inFlight[0]
	f.resources = slices.DeleteFunc(slices.Clone(f.resources), func(r *xds.Resource) bool {
		return sub.heldFrom(f, r.Name).hasAcked(r.Version)
	})
}

// newestInFlight is how many flights are left alone when there are too many.
const newestInFlight = maxInFlight / 4

// makeRoom bounds how many flights there are. The answer to an older one is owed as long as it
// has something that the client was sent nothing newer of: Envoy withholds its ACKs of clusters
// for 15 s, and then sends all of them (protocol.md V2).
func (sub *subscription) makeRoom() {
	older := len(sub.inFlight) - newestInFlight
	switch {
	case sub.cfg.Form == xds.Delta:
		sub.forgetOvertaken(older)
	case xds.FullState(sub.url):
		// Each set has the news of those before, which no client answers after it.
		last := sub.inFlight[older-1]
		last.resources, last.amends = sub.contents(older-1), false
		for i := range older - 1 {
			sub.overtaken(&sub.inFlight[i])
		}
		sub.inFlight = slices.Replace(sub.inFlight, 0, older, last)
	default:
		// A client answers the newest, so that of these it is not known.
		for i := range older {
			sub.mayHave(&sub.inFlight[i], sub.inFlight[i].resources)
		}
		sub.inFlight = slices.Delete(sub.inFlight, 0, older)
	}
	sub.crowded = 2 * len(sub.inFlight)
}

// forgetOvertaken forgets those of so many older flights of which everything was sent again, or
// something newer.
func (sub *subscription) forgetOvertaken(older int) {
	again := make(map[*xds.Resource]struct{})
	for i := len(sub.inFlight) - 1; i >= 0; i-- {
		f := &sub.inFlight[i]
		if i < older {
			sub.overtaken(f)
			f.resources = slices.DeleteFunc(slices.Clone(f.resources), func(r *xds.Resource) bool {
				_, sent := again[r]
				f.partly = f.partly || sent
				return sent
			})
		}
		for _, r := range f.resources {
			again[r] = struct{}{}
		}
	}
	kept := sub.inFlight[:0]
	for i, f := range sub.inFlight {
		if i >= older || len(f.resources) > 0 {
			kept = append(kept, f)
		}
	}
	clear(sub.inFlight[len(kept):])
	sub.inFlight = kept
}

// overtaken takes out of a flight what something newer was sent of. The client may have it.
func (sub *subscription) overtaken(f *sentResponse) {
	var stand, gone []*xds.Resource
	for _, r := range f.resources {
		if h := sub.sent[r.Name]; h != nil && h.last == r {
			stand = append(stand, r)
		} else {
			gone = append(gone, r)
		}
	}
	if len(gone) > 0 {
		sub.mayHave(f, gone)
		f.resources, f.partly = stand, true
	}
}

// maxSuperseded bounds the bytes of what is remembered only because the client may still
// say what it makes of it: one that answers late, or never, has it in each response.
const maxSuperseded = 4 << 20

// forgetSuperseded forgets the contents of responses without an answer that something
// newer was sent of. It is still owed a verdict on the rest.
func (sub *subscription) forgetSuperseded() {
	// A content is part of each set from the one that brought it to the one that has something
	// else under its name, or that was made anew.
	until := make(map[string]int)
	missing := make([]int, len(sub.inFlight)+1) // how many more are missing than of the flight before
	anew := len(sub.inFlight)
	for i := len(sub.inFlight) - 1; i >= 0; i-- {
		f := &sub.inFlight[i]
		before := f.resources
		partly := f.partly
		sub.overtaken(f)
		f.partly = partly
		for _, r := range before {
			if h := sub.sent[r.Name]; h == nil || h.last != r {
				end, ok := until[r.Name]
				if !ok {
					end = anew
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
			anew = i
			clear(until)
		}
	}
	n := 0
	for i := range sub.inFlight {
		n += missing[i]
		sub.inFlight[i].partly = sub.inFlight[i].partly || n > 0
	}
	sub.superseded = 0
}
