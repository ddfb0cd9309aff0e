package session

import (
	"iter"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// unknownReason stands for what a client says of a response that is not remembered as a whole:
// whether there is a secret in it cannot be known.
const unknownReason = "the client's reason is not shown: what it was sent is not remembered any more"

// reason returns why the client NACKed a response, without the secrets of what it was sent: Envoy
// dumps the resource beside its sentence. Nothing outside the machine ever sees what the client
// said as it said it.
func (sub *subscription) reason(said string, f *sentResponse) string {
	if f.partly {
		return unknownReason
	}
	return sub.cfg.Secrets.Reason(said, sub.bodies(f))
}

// bodies yields what the text of a NACK may be about: the contents of the response and, since of a
// complete set not all is remembered as sent, whatever else the client was sent of the type.
func (sub *subscription) bodies(f *sentResponse) iter.Seq[*anypb.Any] {
	return func(yield func(*anypb.Any) bool) {
		in := make(map[*xds.Resource]struct{}, len(f.resources))
		more := func(r *xds.Resource) bool {
			if r == nil || r.Body == nil {
				return true
			}
			if _, seen := in[r]; seen {
				return true
			}
			in[r] = struct{}{}
			return yield(r.Body)
		}
		for _, r := range f.resources {
			if !more(r) {
				return
			}
		}
		for _, h := range sub.sent {
			if !more(h.last) || !more(h.acked) || !more(h.unacked()) {
				return
			}
		}
	}
}
