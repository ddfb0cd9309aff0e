package agent

import (
	"iter"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// cleaned returns a NACK's reason, which Envoy as a child also writes to the standard error of the
// agent, without secrets.
func (a *Agent) cleaned(message string) string { return a.secrets.Reason(message, a.bodies()) }

// bodies yields all resources that clients of any group may have received.
func (a *Agent) bodies() iter.Seq[*anypb.Any] {
	return func(yield func(*anypb.Any) bool) {
		for _, m := range a.groups.Members() {
			for _, t := range m.Cache().Status() {
				for _, held := range m.Cache().Resources(t.Type) {
					for _, r := range []*xds.Resource{held.Current, held.Acked} {
						if r != nil && r.Body != nil && !yield(r.Body) {
							return
						}
					}
				}
			}
		}
	}
}
