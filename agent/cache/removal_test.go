package cache

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// gone fails unless exactly those of the names that map to true do not exist.
func gone(t *testing.T, c *Cache, typeURL string, names map[string]bool) {
	t.Helper()
	for name, want := range names {
		if got := item(c, typeURL, name).NotFound; got != want {
			t.Errorf("%s is gone: %v", name, got)
		}
	}
}

// design.md I2.
func TestWhatAnUpstreamRemovesIsNotFound(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.EndpointType, "x", "y", "z")
	put(c, xds.EndpointType, "x@1", "y@1")
	wantChanged(t, w, "EDS x y")
	apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"x", "z", "unwanted"}})
	holds(t, c, xds.EndpointType, "y@1")
	wantChanged(t, w, "EDS x z")
	gone(t, c, xds.EndpointType, map[string]bool{"x": true, "z": true, "y": false, "unwanted": false})
	apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"x"}})
	wantChanged(t, w)
	put(c, xds.EndpointType, "x@1")
	wantChanged(t, w, "EDS x")
	gone(t, c, xds.EndpointType, map[string]bool{"x": false})
}

// A removed resource may exist again when it is subscribed to next.
func TestThatANameIsNotFoundIsForgottenWithItsLastSubscription(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.EndpointType, "x")
	apply(c, xds.Update{Type: xds.EndpointType, Removed: []string{"x"}})
	gone(t, c, xds.EndpointType, map[string]bool{"x": true})
	w.Subscribe(xds.EndpointType, false, nil, []string{"x"})
	gone(t, c, xds.EndpointType, map[string]bool{"x": false})
}

// design.md I3: absence is deletion in a complete answer, and nowhere else.
func TestAbsenceRemovesInACompleteAnswerOnly(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.ClusterType, "*", "odc")
	complete(c, xds.ClusterType, "a@1", "b@1", "odc@1")
	wantChanged(t, w, "CDS a b odc *")
	put(c, xds.ClusterType, "a@2")
	c.Synced("one", xds.ClusterType, time.Time{})
	holds(t, c, xds.ClusterType, "a@2", "b@1", "odc@1")
	wantChanged(t, w, "CDS a")
	complete(c, xds.ClusterType, "b@1")
	holds(t, c, xds.ClusterType, "b@1")
	wantChanged(t, w, "CDS a odc")
	// That a does not exist follows from the complete set; odc was asked for by name.
	gone(t, c, xds.ClusterType, map[string]bool{"a": false, "odc": true})
}

// design.md I2: a wildcard's removal counts also while there may be more.
func TestARemovalCountsWhileTheWildcardIsPartial(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.ClusterType, "*")
	put(c, xds.ClusterType, "a@1")
	apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a", "never"}})
	gone(t, c, xds.ClusterType, map[string]bool{"a": true, "never": true, "other": false})
	wantChanged(t, w, "CDS a never *")
	complete(c, xds.ClusterType)
	gone(t, c, xds.ClusterType, map[string]bool{"a": false, "never": false})
}

// design.md I2, protocol.md 3.14: an error is no removal.
func TestAnErrorLeavesWhatIsHeld(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.EndpointType, "x")
	put(c, xds.EndpointType, "x@1")
	changed(w)
	apply(c, xds.Update{Type: xds.EndpointType, Errors: []xds.ResourceError{{Name: "x", Err: errors.New("why")}, {Name: "", Err: errors.New("nameless")}}})
	holds(t, c, xds.EndpointType, "x@1")
	wantChanged(t, w)
	for name, want := range map[string]string{"x": "why", "": "nameless"} {
		if got := problem(c, xds.EndpointType, name); got == nil || got.Error() != want {
			t.Errorf("error of %q: %v", name, got)
		}
	}
	put(c, xds.EndpointType, "x@1")
	if got := problem(c, xds.EndpointType, "x"); got != nil {
		t.Errorf("error %v, after it came well", got)
	}
}

// protocol.md 3.15.
func TestAnAliasLeadsToItsResourceWhileThatIsHeld(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.VirtualHostType, "host", "new")
	apply(c, xds.Update{Type: xds.VirtualHostType, Resources: []*xds.Resource{res(xds.VirtualHostType, "v@1", "host")}})
	wantChanged(t, w, "VHDS host v")
	if r := item(c, xds.VirtualHostType, "host").Current; r == nil || r.Name != "v" {
		t.Fatalf("host is %v", r)
	}
	// An alias that moves changes both names.
	apply(c, xds.Update{Type: xds.VirtualHostType, Resources: []*xds.Resource{res(xds.VirtualHostType, "v@2", "new")}})
	wantChanged(t, w, "VHDS host new v")
	if it := item(c, xds.VirtualHostType, "host"); it.Current != nil {
		t.Errorf("host is still %v", it.Current)
	}
	apply(c, xds.Update{Type: xds.VirtualHostType, Removed: []string{"v"}})
	wantChanged(t, w, "VHDS new v")
	if it := item(c, xds.VirtualHostType, "new"); it.Current != nil {
		t.Errorf("new is still %v", it.Current)
	}
}

// protocol.md 3.6, V6.
func TestWhatAClientMayHoldWithoutTellingIsRemembered(t *testing.T) {
	c := New(Config{})
	doubtful := func(want string) {
		t.Helper()
		look(c, func(s Snapshot) {
			if got := strings.Join(s.MaybeHeld(xds.ListenerType), " "); got != want {
				t.Errorf("doubtful: %q, want %q", got, want)
			}
			if len(s.MaybeHeld(xds.EndpointType)) > 0 {
				t.Errorf("endpoints are never doubtful: nothing takes them away")
			}
		})
	}
	w := watch(c, "a", xds.ListenerType, "*")
	subscribe(w, xds.EndpointType, "e")
	put(c, xds.ListenerType, "a@1", "b@1", "c@1")
	r := func(nameVersion string) *xds.Resource { return res(xds.ListenerType, nameVersion) }
	w.Nack(xds.ListenerType, 1, "no", nil, []*xds.Resource{r("a@1"), r("b@1")})
	w.Nack(xds.ListenerType, 1, "no", r("c@1"), nil)
	w.Nack(xds.EndpointType, 1, "no", res(xds.EndpointType, "e@1"), nil)
	doubtful("a b c")
	w.Ack(xds.ListenerType, []*xds.Resource{r("a@1")}, nil)
	doubtful("b c")
	w.Ack(xds.ListenerType, nil, []string{"b"}) // it is held: the removal was overtaken
	doubtful("b c")
	apply(c, xds.Update{Type: xds.ListenerType, Removed: []string{"b"}})
	w.Ack(xds.ListenerType, nil, []string{"b"})
	doubtful("c")
	w.Close(map[string][]string{xds.ListenerType: {"d"}, xds.EndpointType: {"e"}})
	doubtful("c d")
}

// protocol.md 3.6: an answer of one client says nothing about another one, which may be
// disconnected for a moment. Of several disconnected clients nobody knows which one reconnects.
func TestNamesOfADisconnectedClientAreUncertainAsLongAsItsLeases(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		doubtful := func(want string) {
			t.Helper()
			look(c, func(s Snapshot) {
				if got := strings.Join(s.MaybeHeld(xds.ClusterType), " "); got != want {
					t.Errorf("doubtful: %q, want %q", got, want)
				}
			})
		}
		c.SetConnected(true)
		away, other := watch(c, "x", xds.ClusterType, "*"), watch(c, "x", xds.ClusterType, "*")
		put(c, xds.ClusterType, "a@1", "b@1")
		b := []*xds.Resource{res(xds.ClusterType, "b@1")}
		other.Nack(xds.ClusterType, 1, "no", nil, b)
		away.Close(map[string][]string{xds.ClusterType: {"a", "b"}})
		other.Ack(xds.ClusterType, []*xds.Resource{res(xds.ClusterType, "a@1"), b[0]}, nil)
		doubtful("a b")
		pass(DefaultLinger - time.Second)
		doubtful("a b")
		c.SetConnected(false) // without an upstream no lease ends (I11)
		pass(time.Hour)
		doubtful("a b")
		other.Nack(xds.ClusterType, 1, "no", nil, b)
		c.SetConnected(true)
		pass(time.Second)
		doubtful("b") // that client is there
	})
}
