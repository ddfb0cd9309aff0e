package cache

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// design.md I11.
func TestTheSubscriptionsOfAClosedWatchStayLeased(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		c.SetConnected(true)
		in := c.Subscriptions()
		w := watch(c, "a", xds.EndpointType, "x")
		subscribe(w, xds.ClusterType, "*")
		put(c, xds.EndpointType, "x@1")
		wantTaken(t, in, "CDS *", "EDS +x")
		w.Close(nil)
		pass(DefaultLinger - time.Nanosecond)
		wantTaken(t, in)
		pass(time.Nanosecond)
		wantTaken(t, in, "CDS", "EDS -x")
		holds(t, c, xds.EndpointType, "x@1") // in the LRU
	})
}

// design.md I11: a restarting Envoy finds what it needs.
func TestAWatchThatComesBackTakesOverItsLease(t *testing.T) {
	running(t, Config{Linger: time.Minute}, func(t *testing.T, c *Cache) {
		c.SetConnected(true)
		in := c.Subscriptions()
		watch(c, "a", xds.EndpointType, "x", "y", "z").Close(nil)
		wantTaken(t, in, "EDS +x +y +z")
		pass(30 * time.Second)
		again := watch(c, "a", xds.EndpointType, "x", "z")
		again.Subscribe(xds.EndpointType, false, nil, []string{"z"})
		wantTaken(t, in, "EDS -z") // unsubscribed, not closed: the lease is over
		pass(time.Hour)
		wantTaken(t, in, "EDS -y")
		again.Subscribe(xds.EndpointType, false, nil, []string{"x"})
		wantTaken(t, in, "EDS -x")
	})
}

// design.md I11: once a client is back and has subscribed to a type for a while, what it does not ask for of the type is leased no longer. A client
// that was there before, one that comes and goes (a poll over REST), and one of another type say nothing.
func TestALeaseEndsSoonAfterAClientIsBack(t *testing.T) {
	for name, tc := range map[string]struct {
		comes func(c *Cache)
		want  []string
	}{
		"it is back":             {func(c *Cache) { watch(c, "a", xds.EndpointType, "new", "x") }, []string{"EDS -old"}},
		"with a wildcard":        {func(c *Cache) { watch(c, "a", xds.EndpointType, "new", "x", "*") }, []string{"EDS -old"}},
		"with another type only": {func(c *Cache) { watch(c, "a", xds.RouteType, "r") }, nil},
		"for a poll":             {func(c *Cache) { watch(c, "a", xds.EndpointType, "new").Close(nil) }, nil},
		"nobody":                 {func(*Cache) {}, nil},
	} {
		running(t, Config{}, func(t *testing.T, c *Cache) {
			c.SetConnected(true)
			in := c.Subscriptions()
			watch(c, "b", xds.EndpointType, "x")
			pass(time.Second)
			watch(c, "a", xds.EndpointType, "x", "old").Close(nil)
			pass(time.Minute)
			tc.comes(c)
			wildcard := slices.ContainsFunc(in.Changes(), func(change xds.SubscriptionChange) bool { return change.Wildcard })
			pass(subscriptions.ReturnedFor - time.Nanosecond)
			wantTaken(t, in)
			pass(time.Nanosecond)
			if wildcard {
				tc.want = []string{"EDS * -old"} // as it is
			}
			if wantTaken(t, in, tc.want...); t.Failed() {
				t.Log(name)
			}
		})
	}
}

// Polls over REST may name as much each: what nobody has is leased up to a bound, and what there is always.
func TestNamesUnderWhichThereIsNothingAreLeasedUpToABound(t *testing.T) {
	running(t, Config{Linger: time.Minute}, func(t *testing.T, c *Cache) {
		c.SetConnected(true)
		put(c, xds.EndpointType, "there@1")
		for i := range 4 {
			names := []string{"there", "*"}
			for j := range subscriptions.MaxUnknownLeases/2 + 1 {
				names = append(names, fmt.Sprintf("%d-%d", i, j))
			}
			watch(c, "a", xds.EndpointType, names...).Close(nil)
		}
		s := c.Status()[0]
		if s.Leased != subscriptions.MaxUnknownLeases+1 || !s.Wildcard {
			t.Errorf("%d names are leased, wildcard %v", s.Leased, s.Wildcard)
		}
		pass(2 * time.Minute)
		watch(c, "a", xds.EndpointType, "later").Close(nil)
		if s := c.Status()[0]; s.Leased != 1 {
			t.Errorf("%d names are leased", s.Leased)
		}
	})
}

// Clients may name any number of types: what is left of those that nobody knows goes with their subscriptions.
func TestTypesThatNobodyKnowsAreForgotten(t *testing.T) {
	running(t, Config{Linger: time.Minute}, func(t *testing.T, c *Cache) {
		c.SetConnected(true)
		in := c.Subscriptions()
		stays := watch(c, "stays", "type.googleapis.com/stays", "*")
		put(c, "type.googleapis.com/cached", "x@1")
		subscribe(stays, "type.googleapis.com/cached", "x")
		for i := range 500 {
			w := watch(c, "a", fmt.Sprintf("type.googleapis.com/a%d", i), "x", "*")
			in.Changes()
			w.Close(nil)
		}
		if n := len(c.Status()); n < 500 {
			t.Errorf("%d types", n)
		}
		pass(2 * time.Minute)
		in.Changes()
		pass(time.Second)
		var types []string
		for _, s := range c.Status() {
			types = append(types, s.Type)
		}
		if !slices.Equal(types, []string{"type.googleapis.com/cached", "type.googleapis.com/stays"}) {
			t.Errorf("it knows of %d types: %.200q", len(types), types)
		}
		// One that comes back begins as any other.
		again := watch(c, "b", "type.googleapis.com/a7", "x")
		if changes := in.Changes(); len(changes) != 1 || len(changes[0].Subscribe) != 1 {
			t.Errorf("the sources are asked for %+v", changes)
		}
		put(c, "type.googleapis.com/a7", "x@1")
		wantChanged(t, again, "a7 x")
	})
}

func TestTheLeaseOfANameThatAnotherWatchHasEndsUnseen(t *testing.T) {
	running(t, Config{Linger: time.Minute}, func(t *testing.T, c *Cache) {
		c.SetConnected(true)
		in := c.Subscriptions()
		watch(c, "b", xds.EndpointType, "x")
		watch(c, "a", xds.EndpointType, "x").Close(nil)
		wantTaken(t, in, "EDS +x")
		pass(time.Hour)
		wantTaken(t, in)
	})
}

// design.md I11: "and as long as no upstream answers".
func TestNoLeaseEndsWithoutAnUpstream(t *testing.T) {
	running(t, Config{Linger: time.Minute}, func(t *testing.T, c *Cache) {
		in := c.Subscriptions()
		watch(c, "a", xds.EndpointType, "x").Close(nil)
		wantTaken(t, in, "EDS +x")
		pass(24 * time.Hour)
		wantTaken(t, in)
		c.SetConnected(true)
		synctest.Wait()
		wantTaken(t, in, "EDS -x")
		watch(c, "b", xds.EndpointType, "y").Close(nil)
		wantTaken(t, in, "EDS +y")
		pass(30 * time.Second)
		c.SetConnected(false)
		pass(24 * time.Hour)
		wantTaken(t, in)
	})
}

func TestPrefetchedLeasesRunFromTheFirstWatchOn(t *testing.T) {
	running(t, Config{Linger: time.Minute}, func(t *testing.T, c *Cache) {
		c.SetConnected(true)
		in := c.Subscriptions()
		c.Prefetch(xds.ClusterType, "*")
		c.Prefetch(xds.EndpointType, "x", "y")
		wantTaken(t, in, "CDS *", "EDS +x +y")
		pass(24 * time.Hour)
		wantTaken(t, in)
		w := watch(c, "a", xds.EndpointType, "x")
		pass(subscriptions.ReturnedFor)
		wantTaken(t, in, "EDS -y")
		pass(time.Minute - subscriptions.ReturnedFor - time.Nanosecond)
		wantTaken(t, in)
		pass(time.Nanosecond)
		wantTaken(t, in, "CDS")
		c.Prefetch(xds.EndpointType, "x") // wanted already: no lease
		w.Subscribe(xds.EndpointType, false, nil, []string{"x"})
		wantTaken(t, in, "EDS -x")
	})
}

func TestACacheThatNobodyWatchesIsIdleWhenTheLastLeaseEnded(t *testing.T) {
	var idle atomic.Int32
	running(t, Config{Linger: time.Minute, OnIdle: func() { idle.Add(1) }}, func(t *testing.T, c *Cache) {
		c.SetConnected(true)
		c.Prefetch(xds.ClusterType, "*")
		pass(time.Hour)
		before := idle.Load()
		w := watch(c, "a", xds.EndpointType, "x")
		pass(time.Hour)
		w.Close(nil)
		pass(time.Minute - time.Nanosecond)
		if c.Idle() || idle.Load() != before {
			t.Errorf("idle too early: %v, called %d times", c.Idle(), idle.Load()-before)
		}
		pass(time.Nanosecond)
		if !c.Idle() || idle.Load() == before {
			t.Errorf("idle %v, called %d times", c.Idle(), idle.Load()-before)
		}
	})
}
