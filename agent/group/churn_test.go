package group_test

import (
	"fmt"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// churning is a cluster that changes each time, and whose endpoints never come.
func churning(name string, n int) *clusterv3.Cluster {
	c := xdstest.Cluster(name, "nobody-tells")
	c.AltStatName = fmt.Sprint(n)
	return c
}

// Finding P9: while a cluster without endpoints changes all the time, routes and listeners arrive.
func TestChurnOfAClusterHoldsNoRoutesBack(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.cp.Set(churning("e", 0))
		r.pass(5 * time.Second)
		arrived := time.Duration(0)
		for i := range 15 {
			r.cp.Set(churning("e", i+1))
			if i == 2 {
				r.cp.Set(xdstest.Route("r1", "e"), xdstest.Listener("l2", 2, "r1"))
			}
			begun := time.Now()
			r.pass(400 * time.Millisecond)
			if i >= 2 && arrived == 0 && clusterOf(t, c.Held(xds.RouteType)["r1"]) == "e" && c.Held(xds.ListenerType)["l2"] != nil {
				arrived = time.Duration(i-2)*400*time.Millisecond + time.Since(begun)
			}
		}
		if arrived == 0 || arrived > 800*time.Millisecond {
			t.Errorf("the route and the listener arrived after %s", arrived)
		}
	})
}

// Finding P10: an Envoy that reconnects with its configuration to a restarted agent gets what is
// new, although something changes all the time.
func TestChurnDuringTheFirstSyncStarvesNobody(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.holds(c, xds.ClusterType, "c1")
		c.Disconnect()
		r.restartAgent()
		r.quiet() // the client sees that its connection is gone
		r.connect(c)
		r.cp.Set(xdstest.Cluster("new", ""))
		begun := time.Now()
		for i := 0; c.Held(xds.ClusterType)["new"] == nil && time.Since(begun) < time.Minute; i++ {
			r.cp.Set(churning("churns", i))
			r.pass(400 * time.Millisecond)
		}
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("%s above, %s below: the new cluster arrived after %s", r.above, r.below, took)
		}
	})
}

// Finding F8: a control plane that does not order types sends a route before the cluster that it
// leads to. The route waits, at most half a second if the cluster does not come.
func TestARouteWaitsForAClusterThatNobodyKnowsYet(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		leads := func() string { return clusterOf(t, c.Held(xds.RouteType)["r1"]) }
		r.cp.Set(xdstest.Route("r1", "late"))
		r.pass(100 * time.Millisecond)
		if got := leads(); got != "c1" {
			t.Errorf("the route leads to %q before there is such a cluster", got)
		}
		r.cp.Set(xdstest.Cluster("late", ""), xdstest.CLA("late", "127.0.0.1:1"))
		r.pass(20 * time.Millisecond)
		if got := leads(); got != "late" || c.Held(xds.ClusterType)["late"] == nil {
			t.Errorf("the cluster is there, and the route leads to %q", got)
		}
		r.cp.Set(xdstest.Route("r1", "never"))
		r.pass(400 * time.Millisecond)
		if got := leads(); got != "late" {
			t.Errorf("the route leads to %q at once", got)
		}
		r.pass(150 * time.Millisecond)
		if got := leads(); got != "never" {
			t.Errorf("half a second later the route leads to %q", got)
		}
		// If the cluster comes late, its endpoints are waited for within the same half second.
		r.cp.Hold(xds.EndpointType)
		r.cp.Set(xdstest.Route("r1", "slow"))
		r.pass(400 * time.Millisecond)
		r.cp.Set(xdstest.Cluster("slow", ""))
		r.pass(50 * time.Millisecond)
		if got := leads(); got != "never" {
			t.Errorf("the route leads to %q before the endpoints are there", got)
		}
		r.pass(100 * time.Millisecond)
		if got := leads(); got != "slow" {
			t.Errorf("more than half a second later the route leads to %q", got)
		}
		r.cp.Set(xdstest.Route("r1", "never"))
		r.pass(time.Second)
		// The route does not wait again.
		before := len(c.Of(xds.RouteType))
		route := xdstest.Route("r1", "never")
		route.InternalOnlyHeaders = []string{"x"}
		r.cp.Set(route)
		r.pass(20 * time.Millisecond)
		if len(c.Of(xds.RouteType)) != before+1 {
			t.Errorf("the second change waits as well")
		}
	})
}

// A removed cluster is removed from clients when nothing leads to it any more, and after 10 s at
// most.
func TestAClusterThatARouteLeadsToGoesLater(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(xdstest.Cluster("c2", ""), xdstest.CLA("c2", "127.0.0.1:1"), xdstest.Cluster("unused", ""), xdstest.CLA("unused", "127.0.0.1:1"))
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		c.Subscribe(xds.EndpointType, "c2", "unused")
		r.pass(time.Second)
		r.cp.Remove(xds.ClusterType, "c1")
		r.cp.Remove(xds.ClusterType, "unused")
		r.pass(4 * time.Second)
		r.holds(c, xds.ClusterType, "c1", "c2")
		r.cp.Set(xdstest.Route("r1", "c2"))
		r.pass(1500 * time.Millisecond)
		r.holds(c, xds.ClusterType, "c2")
		r.cp.Remove(xds.ClusterType, "c2")
		r.pass(9 * time.Second)
		r.holds(c, xds.ClusterType, "c2")
		r.pass(2 * time.Second)
		r.holds(c, xds.ClusterType)
	})
}
