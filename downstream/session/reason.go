package session

import (
	"iter"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// unknownReason replaces the reason of a NACK if the resources of the NACKed response are no longer
// all remembered: the reason may contain a secret of one of them.
const unknownReason = "the client's reason is not shown: the response that it is about is no longer in memory"

// reason returns the reason of a client's NACK with the secrets of what the client was sent
// removed, since Envoy dumps the resource next to its sentence. The client's own words never
// leave the Session.
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
		seen := make(map[*xds.Resource]struct{}, len(f.resources))
		more := func(r *xds.Resource) bool {
			if r == nil || r.Body == nil {
				return true
			}
			if _, found := seen[r]; found {
				return true
			}
			seen[r] = struct{}{}
			return yield(r.Body)
		}
		for _, r := range f.resources {
			if !more(r) {
				return
			}
		}
		for _, h := range sub.sent {
			if !more(h.last) || !more(h.acked) || !more(h.maybeApplied()) {
				return
			}
		}
	}
}
