package cache

import (
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// design.md section 1: any number of streams cost one upstream subscription.
func TestTheInterestIsTheUnionOfAllWatches(t *testing.T) {
	c := New(Config{})
	in := c.Subscriptions()
	a := watch(c, "a", xds.EndpointType, "x", "y")
	b := watch(c, "b", xds.EndpointType, "y", "z")
	wantTaken(t, in, "EDS +x +y +z")
	wantTaken(t, in)
	a.Subscribe(xds.EndpointType, false, nil, []string{"x", "y"})
	wantTaken(t, in, "EDS -x")
	b.Subscribe(xds.EndpointType, false, nil, []string{"y"})
	wantTaken(t, in, "EDS -y")
	b.Subscribe(xds.EndpointType, false, []string{"z"}, nil) // once more by the same watch
	b.Subscribe(xds.EndpointType, false, nil, []string{"z"})
	b.Subscribe(xds.EndpointType, false, nil, []string{"z", "never"})
	wantTaken(t, in, "EDS -z")
}

func TestAWildcardIsCountedLikeAName(t *testing.T) {
	c := New(Config{})
	in := c.Subscriptions()
	a := watch(c, "a", xds.ClusterType, "*")
	b := watch(c, "b", xds.ClusterType, "*", "odc")
	wantTaken(t, in, "CDS * +odc")
	a.Subscribe(xds.ClusterType, false, nil, nil)
	wantTaken(t, in)
	b.Subscribe(xds.ClusterType, true, nil, []string{"odc"})
	wantTaken(t, in, "CDS * -odc")
	b.Subscribe(xds.ClusterType, false, nil, nil)
	wantTaken(t, in, "CDS")
}

func TestInterestComesInPushOrder(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.RouteType, "r")
	subscribe(w, xds.ListenerType, "*")
	subscribe(w, "example.Gizmo", "g")
	subscribe(w, xds.EndpointType, "e")
	subscribe(w, xds.ClusterType, "*")
	wantTaken(t, c.Subscriptions(), "CDS *", "EDS +e", "LDS *", "RDS +r", "example.Gizmo +g")
}

func TestASubscriptionThatEndsBeforeTheNextChangesIsNotReported(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.EndpointType, "x")
	in := c.Subscriptions()
	wantTaken(t, in, "EDS +x")
	w.Subscribe(xds.EndpointType, false, []string{"y"}, []string{"x"})
	w.Subscribe(xds.EndpointType, false, []string{"x"}, []string{"y"})
	if len(in.Changed()) == 0 {
		t.Errorf("no signal: a change may have been missed")
	}
	wantTaken(t, in)
}

func TestEveryViewOfTheSubscriptionsHasChangesOfItsOwn(t *testing.T) {
	c := New(Config{})
	first := c.Subscriptions()
	w := watch(c, "a", xds.EndpointType, "x")
	wantTaken(t, first, "EDS +x")
	second := c.Subscriptions()
	if len(second.Changed()) == 0 {
		t.Errorf("a new view is not signalled")
	}
	wantTaken(t, second, "EDS +x")
	second.Close()
	<-first.Changed()
	<-second.Changed()
	w.Subscribe(xds.EndpointType, false, []string{"y"}, nil)
	if len(second.Changed()) > 0 {
		t.Errorf("a closed view is signalled")
	}
	wantTaken(t, first, "EDS +y")
}

func TestAClosedWatchSubscribesToNothing(t *testing.T) {
	c := New(Config{})
	in := c.Subscriptions()
	w := c.Watch("a")
	w.Close(nil)
	w.Close(nil)
	subscribe(w, xds.EndpointType, "x")
	wantTaken(t, in)
	if !c.Idle() {
		t.Errorf("not idle")
	}
}

// Failover depends on it.
func TestANameIsMissingUntilItIsCachedOrRemoved(t *testing.T) {
	for _, test := range []struct {
		name, typeURL, want string
		update              xds.Update
	}{
		{"a name, until it is held", xds.EndpointType, "x", xds.Update{Resources: []*xds.Resource{res(xds.EndpointType, "x@1")}}},
		{"a name, until it is known under an alias", xds.VirtualHostType, "x", xds.Update{Resources: []*xds.Resource{res(xds.VirtualHostType, "v@1", "x")}}},
		{"a name, until it is gone", xds.EndpointType, "x", xds.Update{Removed: []string{"x"}}},
		{"a wildcard, until something came", xds.ClusterType, "*", xds.Update{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, leased := range []bool{false, true} {
				c := New(Config{})
				if c.AnyMissing() {
					t.Fatalf("lacking, and nothing is wanted")
				}
				w := watch(c, "a", test.typeURL, test.want)
				if leased {
					w.Close(nil)
				}
				if !c.AnyMissing() {
					t.Errorf("leased %v: not lacking before", leased)
				}
				test.update.Type = test.typeURL
				apply(c, test.update)
				if c.AnyMissing() {
					t.Errorf("leased %v: lacking after", leased)
				}
			}
		})
	}
}

// had reports whether there was a subscription to the wildcard of a type.
func had(c *Cache, typeURL string) bool {
	_, had := c.Wildcard(typeURL)
	return had
}

// protocol.md V9.
func TestAWildcardOfThePastIsRemembered(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.ClusterType, "*")
	w.Subscribe(xds.ClusterType, false, nil, nil)
	if !had(c, xds.ClusterType) || had(c, xds.ListenerType) {
		t.Errorf("CDS %v, LDS %v", had(c, xds.ClusterType), had(c, xds.ListenerType))
	}
	c.Prefetch(xds.ListenerType, "*")
	if !had(c, xds.ListenerType) {
		t.Errorf("one that is expected counts as well")
	}
}
