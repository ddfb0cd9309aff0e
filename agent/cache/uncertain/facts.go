package uncertain

import (
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Facts yields the uncertain names.
func (n *Names) Facts(yield func(state.Fact) bool) {
	for url, names := range n.names {
		for name := range names {
			if !yield(state.Fact{Kind: state.MaybeHeldFact, Type: url, Name: name}) {
				return
			}
		}
	}
}

// Fact returns the value of a fact; known is false if it is a feature's.
func (n *Names) Fact(f state.Fact) (value string, known bool) {
	if f.Kind != state.MaybeHeldFact {
		return "", false
	}
	return state.If(n.Has(xds.Key{Type: f.Type, Name: f.Name})), true
}

// RestoreFact restores an uncertain name.
func (n *Names) RestoreFact(f state.Fact, _ string, _ time.Time) (known bool) {
	if f.Kind != state.MaybeHeldFact {
		return false
	}
	k := xds.Key{Type: f.Type, Name: f.Name}
	if xds.Info(f.Type).OnDemand {
		n.Add(k)
	} else {
		n.Restore(k)
	}
	return true
}
