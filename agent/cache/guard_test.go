package cache

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// design.md I10.
func TestRemovalsThatLookLikeAnAccidentAreHeldBack(t *testing.T) {
	ten := []string{"a@1", "b@1", "c@1", "d@1", "e@1", "f@1", "g@1", "h@1", "i@1", "j@1"}
	for _, tc := range []struct {
		name    string
		typeURL string
		before  []string
		answers [][]string // complete answers
		want    []string   // what is held after the last
	}{
		{"a share below the limit", xds.ClusterType, ten, [][]string{ten[:5]}, ten[:5]},
		{"one above", xds.ClusterType, ten, [][]string{ten[:4]}, ten},
		{"what is new is taken in at once", xds.ClusterType, ten, [][]string{{"a@2", "k@1"}},
			append(append([]string{"a@2"}, ten[1:]...), "k@1")},
		{"of few any share but all", xds.ClusterType, ten[:9], [][]string{ten[:1]}, ten[:1]},
		{"all of few", xds.ClusterType, ten[:2], [][]string{{}}, ten[:2]},
		{"all of few, for others", xds.ListenerType, ten[:2], [][]string{{"z@1"}}, []string{"a@1", "b@1", "z@1"}},
		{"a second answer confirms", xds.ClusterType, ten, [][]string{ten[:4], ten[:4]}, ten[:4]},
		{"of what comes back nothing is held back", xds.ClusterType, ten, [][]string{ten[:4], ten[:8], ten[:8]}, ten[:8]},
		{"scopes are not guarded", xds.ScopedRouteType, ten, [][]string{{}}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := New(Config{Guard: Guard{MaxRemovalPercent: 50}})
			complete(c, tc.typeURL, tc.before...)
			for _, answer := range tc.answers {
				complete(c, tc.typeURL, answer...).want(t, "ack")
			}
			holds(t, c, tc.typeURL, tc.want...)
		})
	}
}

func TestWhatWasHeldBackGoesInTime(t *testing.T) {
	for _, delta := range []bool{false, true} {
		running(t, Config{Guard: Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}}, func(t *testing.T, c *Cache) {
			told := 0
			c.cfg.OnWithheld = func(_ string, withheld, _ int) { told = withheld }
			w := watch(c, "x", xds.ClusterType, "*")
			complete(c, xds.ClusterType, "a@1", "b@1")
			if delta {
				apply(c, Update{Type: xds.ClusterType, Remove: []string{"a", "b"}}).want(t, "ack")
			} else {
				complete(c, xds.ClusterType).want(t, "ack")
			}
			changed(w)
			if told != 2 {
				t.Errorf("%d are said to be held back, want 2", told)
			}
			pass(time.Minute - time.Second)
			holds(t, c, xds.ClusterType, "a@1", "b@1")
			put(c, xds.ClusterType, "b@1")
			pass(time.Second)
			holds(t, c, xds.ClusterType, "b@1")
			wantChanged(t, w, "CDS a")
		})
	}
}

// protocol.md 7.7: what a source neither confirms nor removes is kept, or, asked
// for, pruned; what it issued itself it confirms by saying nothing of it.
func TestWhatNobodyConfirmsIsPrunedIfAskedFor(t *testing.T) {
	for after, want := range map[time.Duration][]string{
		0:           {"own@1", "restored@1", "told@1"},
		time.Minute: {"own@1", "told@1"},
	} {
		running(t, Config{Guard: Guard{PruneAfter: after}}, func(t *testing.T, c *Cache) {
			foreign := kept(xds.ClusterType, "restored@1")
			foreign.Source = "two"
			c.Restore([]Saved{foreign, kept(xds.ClusterType, "own@1")}, meshFacts)
			watch(c, "x", xds.ClusterType, "*")
			put(c, xds.ClusterType, "told@1")
			c.Synced("one", xds.ClusterType)
			pass(time.Minute - time.Second)
			holds(t, c, xds.ClusterType, "own@1", "restored@1", "told@1")
			pass(time.Hour)
			holds(t, c, xds.ClusterType, want...)
		})
	}
}
