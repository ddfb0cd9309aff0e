package uncertain

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

func key(name string) xds.Key { return xds.Key{Type: xds.ClusterType, Name: name} }

func uncertain(t *testing.T, n *Names, want ...string) {
	t.Helper()
	if got := n.Of(xds.ClusterType); !slices.Equal(got, want) || n.Count(xds.ClusterType) != len(want) {
		t.Errorf("uncertain: %q, want %q", got, want)
	}
}

// protocol.md 3.6.
func TestANameIsUncertainUntilEveryClientHasSaidWhatItHolds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(time.Minute, func(xds.Key) {})
		one, two := n.Open(), n.Open()
		one.MayHold(key("a"))
		two.MayHold(key("a"))
		two.MayHold(key("b"))
		one.Confirm(key("b")) // it says nothing of the other client
		uncertain(t, n, "a", "b")
		one.Confirm(key("a"))
		uncertain(t, n, "a", "b")
		two.Confirm(key("a"))
		uncertain(t, n, "b")
		if !n.Has(key("b")) || n.Has(key("a")) {
			t.Error("it is not known which name is uncertain")
		}
	})
}

func TestAClientThatWentMayComeBackForAWhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		noted := 0
		n := New(time.Minute, func(xds.Key) { noted++ })
		gone, other := n.Open(), n.Open()
		gone.MayHold(key("a"))
		other.MayHold(key("a"))
		other.MayHold(key("b"))
		gone.Close()
		other.Confirm(key("a")) // which of them comes back nobody knows
		uncertain(t, n, "a", "b")
		time.Sleep(time.Minute - 1)
		if next := n.Expire(time.Now()); !next.Equal(time.Now().Add(1)) {
			t.Errorf("the client is forgotten at %v", next)
		}
		uncertain(t, n, "a", "b")
		time.Sleep(time.Nanosecond)
		if next := n.Expire(time.Now()); !next.IsZero() {
			t.Errorf("there is more at %v", next)
		}
		uncertain(t, n, "b")
		if noted != 4 {
			t.Errorf("noted %d times", noted)
		}
	})
}

func TestWhatWasRestoredRunsOutFromTheStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := New(time.Minute, func(xds.Key) {})
		n.Restore(key("a"))
		n.Add(key("told")) // whoever is there: it has no end of its own
		time.Sleep(time.Hour)
		n.Expire(time.Now())
		n.Forget(key("a"))
		uncertain(t, n, "a", "told")
		n.Start()
		time.Sleep(time.Minute)
		n.Expire(time.Now())
		uncertain(t, n, "told")
		n.Forget(key("told"))
		uncertain(t, n)
	})
}
