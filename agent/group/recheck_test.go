package group_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
)

// behindAServerThatCountsACKs puts an agent between the clients and a server that remembers what
// the agent ACKed, and sends nothing when it goes back to that.
func behindAServerThatCountsACKs(t *testing.T, test func(r *rig, agent *group.Group)) {
	t.Helper()
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		form := xds.Delta
		if r.below == xdstest.SotW {
			form = xds.SotW
		}
		ads, err := upstream.NewADS(upstream.Config{
			Addr: "192.0.2.2:15010", Form: form, Security: dial.Security{Plaintext: true},
			Log: slog.New(slog.DiscardHandler), Dial: r.down.Connect,
		})
		if err != nil {
			r.Fatal(err)
		}
		second := &xdstest.Pipe{}
		agent, stop := r.serve(ads, second, slog.New(slog.DiscardHandler))
		r.down = second
		r.stops = append(r.stops, stop)
		test(r, agent)
	})
}

// rejectDeadly makes a client NACK a route that leads to "deadly", and a cluster of that name.
func rejectDeadly(typeURL string, w *discoveryv3.Resource) error {
	var route routev3.RouteConfiguration
	var cluster clusterv3.Cluster
	switch {
	case typeURL == xds.RouteType && w.GetResource().UnmarshalTo(&route) == nil &&
		route.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().GetCluster() == "deadly":
		return errors.New("no such cluster")
	case typeURL == xds.ClusterType && w.GetResource().UnmarshalTo(&cluster) == nil && cluster.GetAltStatName() == "deadly":
		return errors.New("no such name")
	}
	return nil
}

// A control plane that reverts what clients NACKed need not send anything, because the clients have
// the version before. The agent asks it, and the error ends.
func TestANackEndsWhenTheControlPlaneReverts(t *testing.T) {
	behindAServerThatCountsACKs(t, func(r *rig, agent *group.Group) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{Reject: rejectDeadly})
		r.envoy(c)
		r.pass(time.Second)
		rejected := func() (n int) {
			for _, typeURL := range []string{xds.RouteType, xds.ClusterType} {
				for _, s := range agent.Cache().Resources(typeURL) {
					if s.Status == xds.Nacked {
						n++
					}
				}
			}
			return n
		}
		bad := xdstest.Cluster("c1", "")
		bad.AltStatName = "deadly"
		r.cp.Set(xdstest.Route("r1", "deadly"), bad)
		r.pass(2 * time.Second)
		if n := rejected(); n != 2 {
			r.Fatalf("%d resources are rejected, want 2", n)
		}
		r.cp.Set(xdstest.Route("r1", "c1"), xdstest.Cluster("c1", ""))
		r.pass(2 * time.Second)
		if n := rejected(); n != 2 {
			r.Fatalf("%d resources are rejected: the server is one that tells what the agent has", n)
		}
		r.pass(10 * time.Second)
		if n := rejected(); n != 0 {
			r.Errorf("%d resources are rejected though the control plane went back", n)
		}
		r.holds(c, xds.ClusterType, "c1")
		if name := clusterOf(t, c.Held(xds.RouteType)["r1"]); name != "c1" {
			t.Errorf("the route leads to %q", name)
		}
	})
}

// While the control plane does not change it, it is asked again after growing pauses, not in a
// loop.
func TestAControlPlaneThatInsistsIsAskedRarely(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{Reject: rejectDeadly})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Set(xdstest.Route("r1", "deadly"))
		asked := func() int { return len(r.cp.Requests(xds.RouteType)) }
		r.pass(time.Minute)
		early := asked()
		r.pass(10 * time.Hour)
		if n := asked() - early; n < 10 || n > 400 {
			t.Errorf("%d requests in ten hours", n)
		}
		if name := clusterOf(t, c.Held(xds.RouteType)["r1"]); name != "c1" {
			t.Errorf("the route leads to %q", name)
		}
	})
}
