package controlplane

import (
	"fmt"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// services are a listener, a route, a cluster and endpoints for each address.
func services(ports []int, addrs []string) resources {
	out := make(resources)
	for i, addr := range addrs {
		name := fmt.Sprintf("s%d", i)
		out[resource.ClusterType] = append(out[resource.ClusterType], xdstest.Cluster(name, ""))
		out[resource.EndpointType] = append(out[resource.EndpointType], xdstest.CLA(name, addr))
		out[resource.ListenerType] = append(out[resource.ListenerType], xdstest.Listener(name, uint32(ports[i]), name))
		out[resource.RouteType] = append(out[resource.RouteType], xdstest.Route(name, name))
	}
	return out
}

// changed is resources with other lists of some types.
func changed(all resources, typeURLs []string, by func([]types.Resource) []types.Resource) resources {
	out := make(resources)
	for typeURL, list := range all {
		out[typeURL] = list
	}
	for _, typeURL := range typeURLs {
		out[typeURL] = by(out[typeURL])
	}
	return out
}

// stores are the caches of go-control-plane.
var stores = []struct {
	name string
	new  func() store
}{
	{"snapshots", func() store { return newSnapshots(false) }},
	{"snapshots for ADS", func() store { return newSnapshots(true) }},
	{"linear caches", func() store { return newLinears() }},
	{"a mux", func() store { return newMux() }},
}

// design.md I10: a control plane of go-control-plane that starts with less than it has, or has it for a moment, fails no request; with every
// cache of go-control-plane and in all forms.
func TestAccidentsOfTheControlPlaneFailNoRequest(t *testing.T) {
	nothing := func([]types.Resource) []types.Resource { return nil }
	accidents := []struct {
		name    string
		restart bool
		has     func(all resources) resources
	}{
		{"born empty", true, func(resources) resources { return resources{} }},
		{"half loaded", true, func(all resources) resources {
			return changed(all, order, func(list []types.Resource) []types.Resource { return list[:2] })
		}},
		{"clusters before listeners", true, func(all resources) resources {
			return changed(all, []string{resource.ListenerType, resource.RouteType}, nothing)
		}},
		{"emptied", false, func(resources) resources { return resources{} }},
		{"endpoints of nobody", false, func(all resources) resources {
			return changed(all, []string{resource.EndpointType}, func(list []types.Resource) (out []types.Resource) {
				for _, r := range list {
					out = append(out, xdstest.CLA(r.(*endpointv3.ClusterLoadAssignment).GetClusterName()))
				}
				return out
			})
		}},
	}
	events := []struct {
		name string
		do   func(*rig.Agent)
	}{
		{"nothing", func(*rig.Agent) {}},
		{"a restart", func(a *rig.Agent) {
			a.Kill()
			a.Restart()
		}},
		{"a takeover", (*rig.Agent).TakeOver},
		{"a full disk", (*rig.Agent).FillDisk},
	}
	rows := testbed.Pairs(43, []int{len(accidents), len(stores), 2, 2, len(events)}, func([]int) bool { return true })
	if testing.Short() {
		rows = rows[:6]
	}
	for _, row := range rows {
		accident, kind, above, below, event := accidents[row[0]], stores[row[1]], forms[row[2]], forms[row[3]], events[row[4]]
		t.Run(fmt.Sprintf("%s, %s, %s above, %s below, %s", accident.name, kind.name, above, below, event.name), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, above, below)
			var ports []int
			var addrs []string
			for i := range 5 {
				ports, addrs = append(ports, w.FreePort()), append(addrs, w.Backend(fmt.Sprintf("s%d", i)))
			}
			all := services(ports, addrs)
			s := kind.new()
			w.Check(s.set("1", all))
			w.serve(s)
			agent := w.agent(event.name == "a full disk")
			envoy := agent.Envoy("envoy", w.below)
			var traffic []*testbed.Traffic
			for i, port := range ports {
				url := fmt.Sprintf("http://127.0.0.1:%d/", port)
				w.Serves(envoy, url, fmt.Sprintf("s%d", i))
				traffic = append(traffic, testbed.StartTraffic(url, 10*time.Millisecond))
			}
			if accident.restart {
				w.server.Stop()
				s = kind.new()
			}
			w.Check(s.set("2", accident.has(all)))
			if accident.restart {
				w.serve(s)
			}
			time.Sleep(3 * time.Second / 2)
			event.do(agent)
			time.Sleep(3 * time.Second / 2)
			w.Check(s.set("3", all))
			time.Sleep(3 * time.Second)
			for _, tr := range traffic {
				if err := tr.Stop(); err != nil {
					t.Error(err)
				}
			}
			// It goes on from there.
			all[resource.ClusterType] = append(all[resource.ClusterType], &clusterv3.Cluster{Name: "later", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}})
			w.Check(s.set("4", all))
			w.Eventually(func() error {
				if n, err := envoy.Stat("cluster_manager.cluster_added"); err != nil || n < 7 {
					return fmt.Errorf("%d clusters were added, %v", n, err)
				}
				return nil
			})
		})
	}
}

// agent starts an agent with a state directory, on a disk of its own or not.
func (w *world) agent(disk bool) *rig.Agent {
	w.Helper()
	flags := []string{"--upstream", w.addr, "--upstream-plaintext", "--upstream-protocol", w.above, "--node-id", rig.Node, "--node-cluster", rig.Node}
	if disk {
		return w.StartAgentOnDisk("agent", flags...)
	}
	return w.StartAgent("agent", append(flags, "--state-dir", w.Path("state"))...)
}

// What a control plane of go-control-plane has taken away for good is confirmed without anybody's help: also by a snapshot without any type,
// whose version is the empty one.
func TestWhatAControlPlaneEmptiesForGoodIsConfirmed(t *testing.T) {
	for _, kind := range stores {
		for _, above := range forms {
			if testing.Short() && kind.name != "snapshots" {
				continue
			}
			t.Run(fmt.Sprintf("%s, %s", kind.name, above), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, above, forms[0])
				ports := []int{w.FreePort(), w.FreePort()}
				s := kind.new()
				w.Check(s.set("1", services(ports, []string{w.Backend("s0"), w.Backend("s1")})))
				w.serve(s)
				agent := w.startAgent("--node-id", rig.Node, "--node-cluster", rig.Node, "--removal-confirm-after", "1s")
				envoy := agent.Envoy("envoy", w.below)
				w.Serves(envoy, fmt.Sprintf("http://127.0.0.1:%d/", ports[0]), "s0")
				w.Check(s.set("2", resources{}))
				w.Eventually(func() error {
					if n, err := envoy.Stat("listener_manager.total_listeners_active"); err != nil || n > 0 {
						return fmt.Errorf("%d listeners, %v", n, err)
					}
					return nil
				})
			})
		}
	}
}
