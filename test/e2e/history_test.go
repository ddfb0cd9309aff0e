package e2e

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// services leaves out the services from number n on.
func (f *fleet) services(n int) []proto.Message {
	return without(f.all, func(_ proto.Message, _, name string) bool {
		return len(name) == 2 && name[0] == 's' && name[1] >= byte('0'+n)
	})
}

// renamed gives the clusters of services, and their endpoints, other names.
func (f *fleet) renamed(names ...string) (out []proto.Message) {
	for _, m := range f.all {
		packed := xdstest.Pack(m)
		name, err := xds.ScanName(packed)
		f.check(err)
		if i := slices.Index(names, name); i >= 0 {
			switch packed.GetTypeUrl() {
			case xds.ClusterType:
				m = xdstest.Cluster("other-"+name, "")
			case xds.EndpointType:
				m = xdstest.CLA("other-"+name, f.addrs[name])
			case xds.RouteType:
				m = xdstest.Route(name, "other-"+name)
			}
		}
		out = append(out, m)
	}
	return out
}

// ordinary are changes that people make. held says that one is an accident by any measure, until the control plane has confirmed it.
var ordinary = []struct {
	name    string
	gateway bool
	change  func(f *fleet)
	// stat is what an Envoy shows when the change has taken effect, or url answers with a status.
	stat string
	want int
	held bool
}{
	{name: "a service is scaled to zero", change: func(f *fleet) {
		f.plane.has(replaced(f.all, xds.EndpointType, func(name string) proto.Message {
			if name == "s4" {
				return xdstest.CLA(name)
			}
			return xdstest.CLA(name, f.addrs[name])
		}))
	}, want: http.StatusServiceUnavailable},
	{name: "one cluster is renamed", change: func(f *fleet) { f.plane.has(f.renamed("s4")) }, stat: "cluster_manager.cluster_removed", want: 1},
	{name: "a canary is rolled back", change: func(f *fleet) {
		route := xdstest.Route("s4", "s4")
		route.GetVirtualHosts()[0].GetRoutes()[0].GetRoute().ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: []*routev3.WeightedCluster_ClusterWeight{
			{Name: "s4", Weight: wrapperspb.UInt32(90)}, {Name: "canary", Weight: wrapperspb.UInt32(10)},
		}}}
		with := replaced(f.all, xds.RouteType, func(name string) proto.Message {
			if name == "s4" {
				return route
			}
			return xdstest.Route(name, name)
		})
		f.plane.has(append(with, xdstest.Cluster("canary", ""), xdstest.CLA("canary", f.addrs["s4"])))
		f.stat("cluster_manager.active_clusters", 1+services+3+1) // the agent's, and three of every sidecar
		time.Sleep(6 * time.Second)                               // it was there for a while
		f.plane.has(f.all)
	}, stat: "cluster_manager.cluster_removed", want: 1},
	{name: "the last route is deleted", gateway: true, change: func(f *fleet) {
		f.plane.has(replaced(f.all, xds.RouteType, func(name string) proto.Message { return &routev3.RouteConfiguration{Name: name} }))
	}, want: http.StatusNotFound},
	{name: "a namespace is deleted", change: func(f *fleet) { f.plane.has(f.services(3)) }, stat: "cluster_manager.cluster_removed", want: 2},
	{name: "four of five services are removed", change: func(f *fleet) { f.plane.has(f.services(1)) }, stat: "cluster_manager.cluster_removed", want: 4, held: true},
	{name: "the naming scheme is changed", change: func(f *fleet) { f.plane.has(f.renamed("s0", "s1", "s2", "s3", "s4")) }, stat: "cluster_manager.cluster_removed", want: 5},
	{name: "a gateway is emptied on purpose", gateway: true, change: func(f *fleet) { f.plane.has(nil) }, stat: "listener_manager.total_listeners_active", want: 0, held: true},
	{name: "the TTL of everything ends", gateway: true, change: func(f *fleet) {
		for _, m := range f.all {
			packed := xdstest.Pack(m)
			name, err := xds.ScanName(packed)
			f.check(err)
			f.cp.Set(&discoveryv3.Resource{Name: name, Resource: packed, Ttl: durationpb.New(3 * time.Second)})
		}
	}, stat: "listener_manager.total_listeners_active", want: 0},
}

// design.md I10: what people do every day takes effect at once or some seconds later, as without the guard; only what is an accident by any
// measure waits until the control plane confirms it. How long each took is in the output; docs/offline.md has the table.
func TestOrdinaryHistoriesTakeEffect(t *testing.T) {
	for _, history := range ordinary {
		t.Run(history.name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, xdstest.Delta, xdstest.Delta, history.gateway, false)
			f.startAgent("--removal-confirm-after", "2s")
			f.envoy = f.startEnvoy()
			for _, url := range f.urls {
				f.envoyServes(url)
			}
			time.Sleep(time.Second)
			history.change(f)
			began := time.Now()
			if history.stat != "" {
				f.stat(history.stat, history.want)
			} else {
				f.answers(f.urls[4], history.want)
			}
			t.Logf("%s: after %s", history.name, time.Since(began).Round(100*time.Millisecond))
			f.wasHeldBack(history.held)
		})
	}
	t.Run("an on-demand cluster is withdrawn", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, xdstest.Delta, xdstest.Delta)
		w.fetchesOnDemand(&ondemandv3.OnDemandCds{Source: xdstest.ADS(), Timeout: durationpb.New(odcdsTimeout)})
		w.cp.Set(routesTo("odc"))
		w.cp.SetOnDemand(xdstest.Cluster("odc", ""))
		w.cp.Set(xdstest.CLA("odc", w.v1.Addr))
		w.start()
		if status, _, err := testbed.Get(w.url + "odc"); err != nil || status != http.StatusOK {
			t.Fatalf("the cluster was not fetched: %d %v", status, err)
		}
		began := time.Now()
		w.cp.Remove(xds.ClusterType, "odc")
		w.stat("cluster_manager.cluster_removed", 1)
		t.Logf("an on-demand cluster is withdrawn: after %s", time.Since(began).Round(100*time.Millisecond))
		w.wasHeldBack(false)
	})
}

// wasHeldBack checks whether the agent has said that it holds something back.
func (w *world) wasHeldBack(want bool) {
	w.Helper()
	log, err := os.ReadFile(w.path("agent.log"))
	w.check(err)
	if got := strings.Contains(string(log), "which looks like an accident"); got != want {
		w.Errorf("something was held back: %v, want %v", got, want)
	}
}
