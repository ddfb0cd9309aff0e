package grpcclient

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// service is what clients call: xds:///service.
const service = "service"

// limit bounds a wait for what a busy machine may take its time for, a reconnection included.
const limit = 40 * time.Second

// withBothUpstreams runs a test with an agent that speaks either form to the control plane. gRPC itself speaks SotW only.
func withBothUpstreams(t *testing.T, test func(w *world)) {
	t.Helper()
	for _, above := range []string{"delta", "sotw"} {
		t.Run(above+" above", func(t *testing.T) {
			t.Parallel()
			test(&world{Rig: rig.New(t), above: above})
		})
	}
}

type world struct {
	*rig.Rig
	above string
}

// controlPlane is a snapshot cache of go-control-plane behind its server.
type controlPlane struct {
	rig     *rig.Rig
	addr    string
	cache   cache.SnapshotCache
	version int
	server  *grpc.Server
	streams atomic.Int64 // that were ever opened
}

// everybody is a cache.NodeHash that gives all nodes the same snapshot.
type everybody struct{}

func (everybody) ID(*corev3.Node) string { return rig.Node }

// newControlPlane starts a control plane that has nothing yet.
func newControlPlane(r *rig.Rig) *controlPlane {
	r.Helper()
	cp := &controlPlane{rig: r, addr: r.FreeAddr(), cache: cache.NewSnapshotCache(false, everybody{}, log.LoggerFuncs{})}
	cp.serve()
	return cp
}

// serve makes the control plane listen, with what its cache holds.
func (cp *controlPlane) serve() {
	cp.rig.Helper()
	lis, err := testbed.Listen(cp.addr, limit)
	cp.rig.Check(err)
	srv := grpc.NewServer()
	opened := func(context.Context, int64, string) error {
		cp.streams.Add(1)
		return nil
	}
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, server.NewServer(context.Background(), cp.cache,
		server.CallbackFuncs{StreamOpenFunc: opened, DeltaStreamOpenFunc: opened}))
	go func() { _ = srv.Serve(lis) }()
	cp.rig.Cleanup(srv.Stop)
	cp.server = srv
}

// set makes a service have a route, and clusters with a backend each.
func (cp *controlPlane) set(route *routev3.RouteAction, clusters map[string]string) {
	cp.rig.Helper()
	routes := xdstest.Route("routes", "")
	routes.VirtualHosts[0].Domains = []string{service}
	routes.VirtualHosts[0].Routes[0] = &routev3.Route{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}},
		Action: &routev3.Route_Route{Route: route},
	}
	all := map[resource.Type][]types.Resource{
		resource.ListenerType: {xdstest.APIListener(service, "routes")},
		resource.RouteType:    {routes},
	}
	for name, backend := range clusters {
		all[resource.ClusterType] = append(all[resource.ClusterType], xdstest.Cluster(name, ""))
		all[resource.EndpointType] = append(all[resource.EndpointType], xdstest.LocalizedCLA(name, backend))
	}
	cp.version++
	snapshot, err := cache.NewSnapshot(strconv.Itoa(cp.version), all)
	cp.rig.Check(err)
	cp.rig.Check(cp.cache.SetSnapshot(context.Background(), rig.Node, snapshot))
}

// lead makes the service lead to one backend.
func (cp *controlPlane) lead(backend string) {
	cp.rig.Helper()
	cp.set(&routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "c0"}}, map[string]string{"c0": backend})
}

// weighted is a route to clusters of weights.
func weighted(weights map[string]uint32) *routev3.RouteAction {
	to := &routev3.WeightedCluster{}
	for name, weight := range weights {
		to.Clusters = append(to.Clusters, &routev3.WeightedCluster_ClusterWeight{Name: name, Weight: wrapperspb.UInt32(weight)})
	}
	return &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_WeightedClusters{WeightedClusters: to}}
}

// backend starts a gRPC server and returns its address.
func backend(r *rig.Rig) string {
	r.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	r.Check(err)
	srv := grpc.NewServer()
	healthgrpc.RegisterHealthServer(srv, health.NewServer())
	go func() { _ = srv.Serve(lis) }()
	r.Cleanup(srv.Stop)
	return lis.Addr().String()
}

// startAgent starts an agent with these control planes as upstreams.
func (w *world) startAgent(upstreams []*controlPlane, flags ...string) *rig.Agent {
	w.Helper()
	all := []string{"--upstream-plaintext", "--upstream-protocol", w.above}
	for _, cp := range upstreams {
		all = append(all, "--upstream", cp.addr)
	}
	return w.StartAgent("agent", append(all, flags...)...)
}

// directly returns the bootstrap of a client of the agent, changed to lead to the control plane.
func directly(r *rig.Rig, agent *rig.Agent, cp *controlPlane) []byte {
	r.Helper()
	there := []byte(`"unix://` + agent.Socket() + `"`)
	b := agent.GRPCBootstrap()
	if bytes.Count(b, there) != 1 {
		r.Fatalf("the bootstrap does not name %s once:\n%s", there, b)
	}
	return bytes.Replace(b, there, []byte(`"`+cp.addr+`"`), 1)
}
