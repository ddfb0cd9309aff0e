package agent

import (
	"iter"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// cleaned returns what may be written of a message in which the child says why it NACKed
// configuration: it says the same on its standard error, which is the agent's.
func (a *Agent) cleaned(message string) string { return a.secrets.Reason(message, a.bodies()) }

// bodies yields everything that the clients of all groups may have been sent.
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
