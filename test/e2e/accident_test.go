package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// fleet is a world with five services behind an Envoy which is a sidecar or a gateway, and a control plane that can be anything's.
type fleet struct {
	*world
	urls  []string          // of each service
	addrs map[string]string // of the endpoint of each service
	// backends are the endpoints.
	backends map[string]*testbed.Backend
	all      []proto.Message
	plane    plane
	disk     string // that can be filled
	// event happens in the middle of the accident; nil when it has.
	event func(*fleet)
}

// pass lets a time go by, with what happens in its middle.
func (f *fleet) pass(d time.Duration) {
	time.Sleep(d / 2)
	if event := f.event; event != nil {
		f.event = nil
		event(f)
	}
	time.Sleep(d / 2)
}

// services is how many services a fleet has.
const services = 5

// plane is a control plane that is told everything it has.
type plane interface {
	// restart ends it and starts another in its place, which has this when it answers first.
	restart([]proto.Message)
	// has makes it have this, and nothing else.
	has([]proto.Message)
	stop()
}

func newFleet(t *testing.T, above, below xdstest.Protocol, gateway, directory bool) *fleet {
	t.Helper()
	f := &fleet{world: newWorld(t, above, below), addrs: make(map[string]string), backends: make(map[string]*testbed.Backend)}
	f.cp.Stop()
	virtualHost := &routev3.VirtualHost{Name: "all", Domains: []string{"*"}}
	for i := range services {
		name := fmt.Sprintf("s%d", i)
		f.backends[name] = f.backend(name)
		f.addrs[name] = f.backends[name].Addr
		f.all = append(f.all, xdstest.Cluster(name, ""), xdstest.CLA(name, f.addrs[name]))
		if gateway {
			f.urls = append(f.urls, f.url+name)
			route := xdstest.Route("ingress", name).GetVirtualHosts()[0].GetRoutes()[0]
			route.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/" + name}}
			virtualHost.Routes = append(virtualHost.Routes, route)
		} else {
			port := f.freePort()
			f.urls = append(f.urls, fmt.Sprintf("http://127.0.0.1:%d/", port))
			f.all = append(f.all, xdstest.Listener(name, uint32(port), name), xdstest.Route(name, name))
		}
	}
	if gateway {
		f.all = append(f.all, xdstest.Listener("ingress", uint32(f.port), "ingress"), &routev3.RouteConfiguration{Name: "ingress", VirtualHosts: []*routev3.VirtualHost{virtualHost}})
	} else {
		for _, name := range []string{"BlackHoleCluster", "PassthroughCluster", "InboundPassthroughCluster"} {
			f.all = append(f.all, &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}})
		}
		for _, name := range []string{"virtualInbound", "virtualOutbound"} {
			f.all = append(f.all, xdstest.Listener(name, uint32(f.freePort()), "s0"))
		}
	}
	if directory {
		f.plane = &written{world: f.world, dir: f.path("resources")}
		f.cpAddr = "unix:" + f.path("cp.sock")
	} else {
		f.plane = &scripted{f.world}
	}
	f.plane.restart(f.all)
	return f
}

// scripted is a control plane in the test's process.
type scripted struct{ *world }

func (p *scripted) restart(all []proto.Message) {
	p.Helper()
	p.cp.Stop()
	p.cp = xdstest.New(xdstest.Config{})
	p.Cleanup(p.cp.Stop)
	p.cp.Set(all...)
	p.cp.Serve(p.listen())
}

func (p *scripted) has(all []proto.Message) {
	p.cp.Hold()
	for typeURL, names := range p.cp.Names() {
		for _, name := range names {
			if !slices.ContainsFunc(all, func(m proto.Message) bool { return is(m, typeURL, name) }) {
				p.cp.Remove(typeURL, name)
			}
		}
	}
	p.cp.Set(all...)
	p.cp.Release()
}

func (p *scripted) stop() { p.cp.Stop() }

// is reports whether a message is the resource of a name.
func is(m proto.Message, typeURL, name string) bool {
	packed := xdstest.Pack(m)
	got, err := xds.ScanName(packed)
	return err == nil && packed.GetTypeUrl() == typeURL && got == name
}

// written is `holdfast controlplane` on a directory with a file for each type, which says so if there is nothing of it.
type written struct {
	*world
	dir     string
	process *testbed.Process
}

func (p *written) restart(all []proto.Message) {
	p.Helper()
	if p.process != nil {
		p.process.Kill()
	}
	p.has(all)
	var err error
	p.process, err = testbed.Start("control plane", p.path("cp.log"), holdfast(p.T), "controlplane", "--dir", p.dir, "--listen", p.cpAddr)
	p.check(err)
	p.Cleanup(p.process.Kill)
	p.check(p.process.Wait(limit, func() error { return testbed.Dial("unix", p.path("cp.sock")) }))
}

func (p *written) has(all []proto.Message) { p.writeResources(p.dir, all) }

func (p *written) stop() { p.process.Kill() }

// without leaves out what a function says.
func without(all []proto.Message, out func(m proto.Message, typeURL, name string) bool) (rest []proto.Message) {
	for _, m := range all {
		packed := xdstest.Pack(m)
		if name, err := xds.ScanName(packed); err != nil || !out(m, packed.GetTypeUrl(), name) {
			rest = append(rest, m)
		}
	}
	return rest
}

// replaced puts another content in the place of each resource of a type.
func replaced(all []proto.Message, typeURL string, by func(name string) proto.Message) []proto.Message {
	out := slices.Clone(all)
	for i, m := range all {
		packed := xdstest.Pack(m)
		if name, err := xds.ScanName(packed); err == nil && packed.GetTypeUrl() == typeURL {
			out[i] = by(name)
		}
	}
	return out
}

// half are two of the five services, and what every sidecar has.
func half(all []proto.Message) []proto.Message {
	all = replaced(all, xds.RouteType, func(name string) proto.Message {
		i := slices.IndexFunc(all, func(m proto.Message) bool { return is(m, xds.RouteType, name) })
		route := proto.CloneOf(all[i].(*routev3.RouteConfiguration))
		host := route.GetVirtualHosts()[0]
		host.Routes = host.GetRoutes()[:min(2, len(host.GetRoutes()))]
		return route
	})
	return without(all, func(_ proto.Message, typeURL, name string) bool {
		return len(name) == 2 && name[0] == 's' && name >= "s2" || name == "ingress" && typeURL == xds.ListenerType
	})
}

// lasts is how long a control plane is wrong.
const lasts = 3 * time.Second

// fleetAccidents are what can happen to a control plane; each ends with everything there again, but for what ends says.
var fleetAccidents = []struct {
	name string
	do   func(f *fleet)
	// ends says which service is not there in the end; "" for none.
	ends string
}{
	{"born empty", func(f *fleet) {
		f.plane.restart(nil)
		f.pass(lasts)
		f.plane.has(f.all)
	}, ""},
	{"half loaded", func(f *fleet) {
		f.plane.restart(half(f.all))
		f.pass(lasts)
		f.plane.has(f.all)
	}, ""},
	{"clusters before listeners", func(f *fleet) {
		f.plane.restart(without(f.all, func(_ proto.Message, typeURL, _ string) bool {
			return typeURL == xds.ListenerType || typeURL == xds.RouteType
		}))
		f.pass(lasts)
		f.plane.has(f.all)
	}, ""},
	{"a second one that is empty", func(f *fleet) {
		f.plane.stop()
		f.pass(lasts)
		f.plane.restart(f.all)
		f.pass(lasts)
	}, ""},
	{"restored to an older state", func(f *fleet) {
		f.plane.restart(without(f.all, func(_ proto.Message, _, name string) bool { return name == "s4" }))
		f.pass(lasts)
	}, "s4"},
	{"flapping", func(f *fleet) {
		for range 4 {
			f.plane.has(nil)
			f.pass(time.Second)
			f.plane.has(f.all)
			time.Sleep(time.Second)
		}
	}, ""},
	{"endpoints of nobody", func(f *fleet) {
		f.plane.has(replaced(f.all, xds.EndpointType, func(name string) proto.Message { return xdstest.CLA(name) }))
		f.pass(lasts)
		f.plane.has(f.all)
	}, ""},
	{"no endpoints", func(f *fleet) {
		f.plane.has(without(f.all, func(_ proto.Message, typeURL, _ string) bool { return typeURL == xds.EndpointType }))
		f.pass(lasts)
		f.plane.has(f.all)
	}, ""},
	{"routes of nobody", func(f *fleet) {
		f.plane.has(replaced(f.all, xds.RouteType, func(name string) proto.Message { return &routev3.RouteConfiguration{Name: name} }))
		f.pass(lasts)
		f.plane.has(f.all)
	}, ""},
}

// fleetEvents are what happens to an agent in the middle of an accident.
var fleetEvents = []struct {
	name string
	do   func(f *fleet)
}{
	{"nothing", func(*fleet) {}},
	{"a restart", func(f *fleet) {
		f.agent.Kill()
		f.runAgent()
	}},
	{"a takeover", func(f *fleet) {
		f.agentArgs = append(f.agentArgs, "--takeover")
		f.runNextAgent()
	}},
	{"a full disk", func(f *fleet) { f.check(testbed.FillDisk(f.agent.PID(), f.disk)) }},
}

// design.md I10: whatever happens to a control plane, no request fails that what it finally says does not explain; with every form,
// for sidecars and gateways, and whatever happens to the agent meanwhile. All pairs of these, by a seed.
func TestAccidentsOfAControlPlaneFailNoRequest(t *testing.T) {
	rows := testbed.Pairs(43, []int{len(fleetAccidents), len(fleetEvents), 2, 2, 2, 2}, func(row []int) bool {
		return fleetAccidents[row[0]].name != "routes of nobody" || row[4] == 0 // a gateway has one, which is not held back
	})
	if testing.Short() { // each accident once, with other things
		seen := make(map[int]bool)
		rows = slices.DeleteFunc(rows, func(row []int) bool {
			was := seen[row[0]]
			seen[row[0]] = true
			return was
		})
	}
	for _, row := range rows {
		accident, event := fleetAccidents[row[0]], fleetEvents[row[1]]
		above, below := xdstest.Protocols()[row[2]], xdstest.Protocols()[row[3]]
		gateway, directory := row[4] == 1, row[5] == 1
		name := fmt.Sprintf("%s, %s, %s above, %s below, gateway %v, directory %v", accident.name, event.name, above, below, gateway, directory)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, above, below, gateway, directory)
			args := []string{"--state-dir", f.path("state")}
			switch event.name {
			case "a restart", "a takeover":
			default:
				f.disk = f.path("disk")
				f.check(os.Mkdir(f.disk, 0o700))
				f.agentVia = testbed.OnDisk(f.disk, "512k")
				args[1] = filepath.Join(f.disk, "state")
			}
			if accident.name == "a second one that is empty" {
				second := xdstest.New(xdstest.Config{})
				lis, err := net.Listen("tcp", "127.0.0.1:0")
				f.check(err)
				second.Serve(lis)
				t.Cleanup(second.Stop)
				args = append(args, "--upstream", lis.Addr().String(), "--failover-after", "200ms")
			}
			f.startAgent(args...)
			f.envoy = f.startEnvoy()
			for _, url := range f.urls {
				f.envoyServes(url)
			}
			f.saved()
			var traffic []*testbed.Traffic
			for i, url := range f.urls {
				if fmt.Sprintf("s%d", i) != accident.ends {
					traffic = append(traffic, testbed.StartTraffic(url, requestInterval))
				}
			}
			f.event = event.do
			accident.do(f)
			f.nothingIsHeldBack()
			time.Sleep(time.Second)
			for _, tr := range traffic {
				if err := tr.Stop(); err != nil {
					t.Error(err)
				}
			}
			f.check(f.agent.Alive())
		})
	}
}

// Some control planes remove in Delta what others empty. A running Envoy keeps it; one that restarts meanwhile gets it from the agent.
func TestAnEnvoyThatRestartsHasTheEndpointsAndRoutesThatWereAllRemoved(t *testing.T) {
	for _, typeURL := range []string{xds.EndpointType, xds.RouteType} {
		for _, below := range xdstest.Protocols() {
			t.Run(fmt.Sprintf("%s, %s below", xds.Short(typeURL), below), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, xdstest.Delta, below, false, false)
				f.startAgent()
				f.envoy = f.startEnvoy()
				for _, url := range f.urls {
					f.envoyServes(url)
				}
				f.plane.has(without(f.all, func(_ proto.Message, of, _ string) bool { return of == typeURL }))
				time.Sleep(6 * time.Second) // removals wait for 5 s
				f.envoy.Kill()
				f.envoy = f.startEnvoy()
				for _, url := range f.urls {
					f.envoyServes(url)
				}
				f.plane.has(f.all)
				f.nothingIsHeldBack()
			})
		}
	}
}

// envoyServes waits until a URL answers with 200.
func (w *world) envoyServes(url string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		status, body, err := testbed.Get(url)
		if err == nil && status != 200 {
			err = fmt.Errorf("%s answers %d %q", url, status, body)
		}
		return err
	}))
}

// Services that are merged into others: the routes lead there at once, although the clusters that they leave are held back, and no request goes
// to hosts that are gone.
func TestServicesThatAreMergedFailNoRequest(t *testing.T) {
	for _, above := range xdstest.Protocols() {
		t.Run(string(above), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, above, xdstest.Delta, true, false)
			f.startAgent()
			f.envoy = f.startEnvoy()
			var traffic []*testbed.Traffic
			for _, url := range f.urls {
				f.envoyServes(url)
				traffic = append(traffic, testbed.StartTraffic(url, requestInterval))
			}
			f.knows(xds.ClusterType)
			gone := func(name string) bool { return name >= "s1" && name <= "s9" }
			merged := without(f.all, func(_ proto.Message, typeURL, name string) bool {
				return gone(name) && (typeURL == xds.ClusterType || typeURL == xds.EndpointType)
			})
			f.plane.has(replaced(merged, xds.RouteType, func(name string) proto.Message {
				i := slices.IndexFunc(f.all, func(m proto.Message) bool { return is(m, xds.RouteType, name) })
				route := proto.CloneOf(f.all[i].(*routev3.RouteConfiguration))
				for _, r := range route.GetVirtualHosts()[0].GetRoutes() {
					r.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "s0"}
				}
				return route
			}))
			f.check(f.agent.Says(limit, "which looks like an accident"))
			for _, url := range f.urls {
				f.check(f.envoy.Wait(limit, func() error {
					if status, body, err := testbed.Get(url); err != nil || status != 200 || body != "s0" {
						return fmt.Errorf("%s answers %d %q, %v", url, status, body, err)
					}
					return nil
				}))
			}
			for name, backend := range f.backends {
				if gone(name) {
					backend.Stop()
				}
			}
			time.Sleep(3 * time.Second)
			for _, tr := range traffic {
				if err := tr.Stop(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// Without --state-dir nothing tells a successor what is held back: it would serve what the control plane says.
func TestWithoutStateNobodyTakesOverWhatIsHeldBack(t *testing.T) {
	f := newFleet(t, xdstest.Delta, xdstest.SotW, false, false)
	f.startAgent()
	f.envoy = f.startEnvoy()
	serves := func() {
		t.Helper()
		for _, url := range f.urls {
			f.envoyServes(url)
		}
	}
	serves()
	f.plane.restart(nil)
	f.check(f.agent.Says(limit, "which looks like an accident"))
	f.agentArgs = append(f.agentArgs, "--takeover")
	successor, err := testbed.Start("successor", f.path("successor.log"), f.agentArgs...)
	f.check(err)
	t.Cleanup(successor.Kill)
	select {
	case <-successor.Exited():
	case <-time.After(limit):
		t.Fatal("the successor goes on")
	}
	if log := successor.Tail(5); !strings.Contains(log, "holds back removals that look like an accident, and without --state-dir") {
		t.Errorf("the successor ends with\n%s", log)
	}
	f.check(f.agent.Alive())
	serves()
	f.plane.has(f.all)
	f.nothingIsHeldBack()
	f.runNextAgent()
	serves()
}

// knows waits until the agent knows all resources of a type.
func (w *world) knows(typeURL string) {
	w.Helper()
	w.check(w.agent.Wait(limit, func() error {
		s, err := w.status()
		if err != nil {
			return err
		}
		for _, g := range s.Groups {
			for _, typ := range g.Types {
				if typ.TypeURL == typeURL && typ.Knowledge == xds.Complete.String() {
					return nil
				}
			}
		}
		return fmt.Errorf("the agent does not know all of %s", xds.Short(typeURL))
	}))
}

// nothingIsHeldBack waits until that is so.
func (w *world) nothingIsHeldBack() {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		s, err := w.status()
		if err != nil {
			return err
		}
		var lines []string
		for _, g := range s.Groups {
			for _, typ := range g.Types {
				if typ.Withheld > 0 {
					lines = append(lines, fmt.Sprintf("%d of %s", typ.Withheld, typ.Type))
				}
			}
		}
		if len(lines) > 0 {
			return fmt.Errorf("held back: %s", strings.Join(lines, ", "))
		}
		return nil
	}))
}
