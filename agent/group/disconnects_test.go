package group_test

import (
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

var envoyNode = &corev3.Node{Id: "xdstest", UserAgentName: "envoy"}

// deadly lets an Envoy run for long enough, changes a route and adds a cluster, and returns a
// function that plays an Envoy: it gets everything, and disconnects a second later.
func deadly(r *rig, cfg xdstest.ClientConfig) (life func()) {
	r.mesh()
	c := r.client(cfg)
	r.envoy(c)
	r.pass(probation.StableAfter + time.Second)
	r.cp.Set(xdstest.Route("r1", "deadly"), xdstest.Cluster("c2", ""))
	r.quiet()
	r.holds(c, xds.ClusterType, "c1", "c2")
	c.Close()
	r.pass(time.Second)
	return func() {
		c := r.client(cfg)
		r.envoy(c)
		r.pass(time.Second)
		c.Close()
		r.pass(time.Second)
	}
}

// What a child crashes with repeatedly is held back, and everything else goes on changing. An Envoy
// that uses the stable versions, reconnects, and is cut off never gets what is held back.
func TestAnEnvoyThatCrashesAgainAndAgainGetsTheStableConfiguration(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.restartAgentAs(func(cfg *group.Config) { cfg.Cache.FallbackEnabled = true })
		cfg := xdstest.ClientConfig{Node: envoyNode}
		life := deadly(r, cfg)
		for range 3 {
			started := time.Now()
			life()
			r.group.Crashed(started)
		}
		lives := func() *xdstest.Client {
			c := r.client(cfg)
			r.envoy(c)
			r.holds(c, xds.ClusterType, "c1")
			if name := clusterOf(t, c.Held(xds.RouteType)["r1"]); name != "c1" {
				t.Errorf("the route leads to %q", name)
			}
			return c
		}
		c := lives()
		r.pass(2 * probation.StableAfter)
		c.Close()
		r.pass(time.Second)
		c = lives()
		r.cp.Set(xdstest.Cluster("c1", "x"), xdstest.Listener("l2", 2, "r1"), xdstest.Cluster("c3", ""))
		r.pass(20 * time.Second)
		r.holds(c, xds.ClusterType, "c1", "c3")
		r.holds(c, xds.ListenerType, "l1", "l2")
		if name := clusterOf(t, c.Held(xds.RouteType)["r1"]); name != "c1" {
			t.Errorf("after other changes the route leads to %q", name)
		}
		// The control plane corrects one of two, and then removes the other one.
		r.cp.Set(xdstest.Route("r1", "c3"))
		r.pass(2 * time.Second)
		r.holds(c, xds.ClusterType, "c1", "c3")
		if name := clusterOf(t, c.Held(xds.RouteType)["r1"]); name != "c3" {
			t.Errorf("when it has changed the route leads to %q", name)
		}
		if f := r.group.Cache().Fallback(); f == nil || len(f.Suspects) != 1 {
			t.Errorf("held back: %+v, want c2", f)
		}
		r.cp.Remove(xds.ClusterType, "c2")
		r.pass(2 * time.Second)
		if f := r.group.Cache().Fallback(); f != nil {
			t.Errorf("held back: %+v, want nothing", f)
		}
	})
}

// A restart on purpose looks like a crash. So the agent only reports what it saw of an Envoy that
// is not its child, however often that disconnects.
func TestAnEnvoyThatIsNoChildIsNeverServedSomethingOlder(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.restartAgentAs(func(cfg *group.Config) { cfg.WatchDisconnects = true })
		cfg := xdstest.ClientConfig{Node: envoyNode}
		life := deadly(r, cfg)
		status := r.group.Status
		for n := range 5 {
			life()
			if got, want := status().ShortLives, []int{0, 0, 3, 4, 5}[n]; got != want {
				t.Errorf("after %d short lives %d are told", n+1, got)
			}
		}
		c := r.client(cfg)
		r.envoy(c)
		r.holds(c, xds.ClusterType, "c1", "c2")
		if name := clusterOf(t, c.Held(xds.RouteType)["r1"]); name != "deadly" {
			t.Errorf("the route leads to %q", name)
		}
		r.pass(probation.StableAfter)
		if s := status(); s.ShortLives != 0 || s.ShortLivesTotal != 5 {
			t.Errorf("one lives, and %d of %d are told", s.ShortLives, s.ShortLivesTotal)
		}
	})
}

// Polls without a stream, streams that the agent itself ends, and other clients say nothing about
// the life of an Envoy.
func TestOnlyTheStreamsOfAnEnvoyAreItsLife(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.restartAgentAs(func(cfg *group.Config) { cfg.WatchDisconnects = true })
		r.mesh()
		for range 5 {
			view, _ := r.group.Attach(downstream.Client{Node: envoyNode, Fetch: true})
			view.Close(downstream.End{})
			view, _ = r.group.Attach(downstream.Client{Node: &corev3.Node{Id: "xdstest", UserAgentName: "gRPC Go"}})
			view.Close(downstream.End{})
			c := r.client(xdstest.ClientConfig{Node: envoyNode})
			c.Subscribe(xds.ClusterType, strings.Repeat("x", xds.MaxNameBytes+1))
			r.quiet()
		}
		if s := r.group.Status(); s.ShortLivesTotal != 0 {
			t.Errorf("%d are told", s.ShortLivesTotal)
		}
	})
}

// clusterOf returns the cluster that the first route of a resource leads to.
func clusterOf(t *testing.T, w *discoveryv3.Resource) string {
	t.Helper()
	var route routev3.RouteConfiguration
	if err := w.GetResource().UnmarshalTo(&route); err != nil {
		t.Fatal(err)
	}
	return route.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetCluster()
}
