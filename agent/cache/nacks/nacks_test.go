package nacks

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// What was NACKed with others is offered again when one of them turns out to be the cause, or goes; of types that can be sent alone
// nothing needs to be.
func TestWhatWasNACKedWithOthersIsOfferedAgain(t *testing.T) {
	for _, typeURL := range []string{xds.ClusterType, xds.EndpointType} {
		for cause, happens := range map[string]func(n *Nacks, t *state.Table, bad *contents.Entry){
			"is NACKed alone": func(n *Nacks, t *state.Table, bad *contents.Entry) {
				n.Nack(nil, t, bad.Current(), "no", false, time.Now())
			},
			"is removed": func(n *Nacks, t *state.Table, bad *contents.Entry) {
				n.After(&state.Change{Table: t, Name: "bad", Kind: state.Removed, Entry: t.Drop("bad")})
			},
			"is replaced": func(n *Nacks, t *state.Table, bad *contents.Entry) {
				done := t.Put(&xds.Resource{Type: t.URL, Name: "bad", Version: "2"}, contents.Origin{}, nil)
				n.After(&state.Change{Table: t, Name: "bad", Kind: state.Put, Entry: bad, Done: done})
			},
			"stays": func(*Nacks, *state.Table, *contents.Entry) {},
		} {
			t.Run(xds.Short(typeURL)+" "+cause, func(t *testing.T) {
				s := state.New(subscriptions.New(time.Minute, func(xds.Key) {}), nil, func() {})
				table := s.Table(typeURL)
				n := New(s, Config{History: func(t *state.Table, name string) *history.History { return &t.Entry(name).History }})
				var both []*xds.Resource
				for _, name := range []string{"good", "bad"} {
					both = append(both, table.Put(&xds.Resource{Type: typeURL, Name: name, Version: "1"}, contents.Origin{}, nil).Current())
				}
				n.Suspects(nil, table, both, "some", time.Now())
				happens(n, table, table.Entry("bad"))
				e := state.NewEvent()
				n.Settle(e)
				var again []string
				for ch := range e.All {
					for name := range ch.Each {
						again = append(again, name)
					}
				}
				want := []string{"good"}
				if typeURL != xds.ClusterType || cause == "stays" {
					want = nil
				}
				if slices.Sort(again); !slices.Equal(again, want) {
					t.Errorf("%q are offered again, want %q", again, want)
				}
				if alone := cause == "is NACKed alone"; alone != (n.Count(typeURL) == 1) {
					t.Errorf("%d were NACKed alone", n.Count(typeURL))
				}
			})
		}
	}
}
