package group_test

import (
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// design.md I7, "proven": what crashes Envoy again and again is replaced by what it
// lived with before, until the control plane changes it.
func TestAnEnvoyThatCrashesAgainAndAgainGetsWhatItLivedWith(t *testing.T) {
	for _, userAgent := range []string{"envoy", "gRPC Go"} {
		t.Run(userAgent, func(t *testing.T) {
			inAllForms(t, xdstest.Config{}, func(r *rig) {
				r.mesh()
				cfg := xdstest.ClientConfig{Node: &corev3.Node{Id: "xdstest", UserAgentName: userAgent}}
				c := r.client(cfg)
				r.envoy(c)
				r.pass(cache.ProvenAfter + time.Second)
				r.cp.Set(xdstest.Route("r1", "deadly"), xdstest.Cluster("c2", ""))
				r.quiet()
				r.holds(c, xds.ClusterType, "c1", "c2")
				lives := func() *xdstest.Client {
					c := r.client(cfg)
					r.envoy(c)
					return c
				}
				c.Close() // it lived long before
				for range 3 {
					r.pass(time.Second)
					c := lives()
					r.holds(c, xds.ClusterType, "c1", "c2")
					r.pass(time.Second)
					c.Close()
				}
				r.pass(time.Second)
				c = lives()
				if userAgent != "envoy" {
					r.holds(c, xds.ClusterType, "c1", "c2")
					return
				}
				r.holds(c, xds.ClusterType, "c1")
				if got := c.Held(xds.RouteType)["r1"]; got == nil {
					t.Error("no route")
				} else if name := clusterOf(t, got); name != "c1" {
					t.Errorf("the route leads to %q", name)
				}
				r.cp.Set(xdstest.Route("r1", "c2"))
				r.pass(2 * time.Second)
				r.holds(c, xds.ClusterType, "c1", "c2")
				if name := clusterOf(t, c.Held(xds.RouteType)["r1"]); name != "c2" {
					t.Errorf("afterwards the route leads to %q", name)
				}
			})
		})
	}
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
