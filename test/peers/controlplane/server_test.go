package controlplane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/log"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// forms are the two of xDS, as flags of holdfast name them.
var forms = []string{"delta", "sotw"}

// inAllForms runs a test in the four combinations of what the control plane and what Envoy speaks.
func inAllForms(t *testing.T, test func(w *world)) {
	t.Helper()
	for _, above := range forms {
		for _, below := range forms {
			t.Run(fmt.Sprintf("%s above, %s below", above, below), func(t *testing.T) {
				t.Parallel()
				test(newWorld(t, above, below))
			})
		}
	}
}

// world is a control plane of go-control-plane in the test's process, and what takes its configuration from it.
type world struct {
	*rig.Rig
	above, below string
	// ctx ends with the test.
	ctx  context.Context
	addr string
	// server serves the caches, until it is stopped.
	server *grpc.Server

	mu sync.Mutex
	// nacks are those of everybody who is connected to the control plane; responses counts what it sends, by type.
	nacks     []string
	responses map[string]int
}

func newWorld(t *testing.T, above, below string) *world {
	w := &world{Rig: rig.New(t), above: above, below: below, ctx: t.Context(), responses: make(map[string]int)}
	w.addr = w.FreeAddr()
	return w
}

// serve makes the control plane listen, with what the caches hold.
func (w *world) serve(caches cache.Cache) {
	w.Helper()
	lis, err := testbed.Listen(w.addr, limit)
	w.Check(err)
	w.server = grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(w.server, server.NewServer(w.ctx, caches, w.callbacks()))
	srv := w.server
	go func() { _ = srv.Serve(lis) }()
	w.Cleanup(srv.Stop)
}

func (w *world) callbacks() server.Callbacks {
	return server.CallbackFuncs{
		StreamRequestFunc: func(_ int64, r *discoveryv3.DiscoveryRequest) error {
			w.asked(r.GetTypeUrl(), r.GetErrorDetail())
			return nil
		},
		StreamDeltaRequestFunc: func(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
			w.asked(r.GetTypeUrl(), r.GetErrorDetail())
			return nil
		},
		StreamResponseFunc: func(_ context.Context, _ int64, _ *discoveryv3.DiscoveryRequest, r *discoveryv3.DiscoveryResponse) {
			w.answered(r.GetTypeUrl())
		},
		StreamDeltaResponseFunc: func(_ int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
			w.answered(r.GetTypeUrl())
		},
	}
}

func (w *world) asked(typeURL string, nack *status.Status) {
	if nack != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.nacks = append(w.nacks, typeURL+": "+nack.GetMessage())
	}
}

func (w *world) answered(typeURL string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.responses[typeURL]++
}

// sent returns how many responses of a type the control plane has sent.
func (w *world) sent(typeURL string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.responses[typeURL]
}

// neverNacked fails the test if the control plane was sent a NACK.
func (w *world) neverNacked() {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.nacks) > 0 {
		w.Errorf("the control plane was sent %d NACKs:\n%s", len(w.nacks), strings.Join(w.nacks[:min(len(w.nacks), 10)], "\n"))
	}
}

// startAgent starts an agent whose only upstream is the control plane.
func (w *world) startAgent(flags ...string) *rig.Agent {
	w.Helper()
	return w.StartAgent("agent", append([]string{"--upstream", w.addr, "--upstream-plaintext", "--upstream-protocol", w.above}, flags...)...)
}

// resources is a configuration by type URL.
type resources = map[resource.Type][]types.Resource

// store is caches of go-control-plane that can be set to a configuration.
type store interface {
	cache.Cache
	set(version string, to resources) error
}

// snapshots is one snapshot, for whoever asks.
type snapshots struct{ cache.SnapshotCache }

// everybody is a cache.NodeHash that gives all nodes the same snapshot.
type everybody struct{}

func (everybody) ID(*corev3.Node) string { return rig.Node }

// newSnapshots makes a cache of snapshots; ads makes it answer a SotW request only when that names all resources of the
// type that the snapshot has.
func newSnapshots(ads bool) *snapshots {
	return &snapshots{cache.NewSnapshotCache(ads, everybody{}, silent)}
}

func (s *snapshots) set(version string, to resources) error {
	snapshot, err := cache.NewSnapshot(version, to)
	if err != nil {
		return err
	}
	if err := snapshot.Consistent(); err != nil {
		return err
	}
	return s.SetSnapshot(context.Background(), rig.Node, snapshot)
}

// silent is a logger that drops everything.
var silent = log.LoggerFuncs{}

// order is that in which types are changed, where each has a cache of its own.
var order = []resource.Type{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType}

// linears is a linear cache for each type, behind a mux, which is how ADS can serve them.
type linears struct {
	cache.MuxCache
	of map[resource.Type]*cache.LinearCache
}

func newLinears() *linears {
	l := &linears{of: make(map[resource.Type]*cache.LinearCache)}
	l.Classify = func(r *cache.Request) string { return r.GetTypeUrl() }
	l.ClassifyDelta = func(r *cache.DeltaRequest) string { return r.GetTypeUrl() }
	l.Caches = make(map[string]cache.Cache)
	for _, typeURL := range order {
		l.of[typeURL] = cache.NewLinearCache(typeURL, cache.WithLogger(silent))
		l.Caches[typeURL] = l.of[typeURL]
	}
	return l
}

func (l *linears) set(_ string, to resources) error {
	for _, typeURL := range order {
		if err := change(l.of[typeURL], to[typeURL]); err != nil {
			return err
		}
	}
	return nil
}

// change tells a linear cache what differs from what it has.
func change(c *cache.LinearCache, to []types.Resource) error {
	had, changed := c.GetResources(), make(map[string]types.Resource)
	for _, r := range to {
		name := cache.GetResourceName(r)
		if !proto.Equal(had[name], r) {
			changed[name] = r
		}
		delete(had, name)
	}
	return c.UpdateResources(changed, slices.Collect(maps.Keys(had)))
}

// mux is endpoints in a linear cache, and a snapshot of everything else.
type mux struct {
	cache.MuxCache
	endpoints *cache.LinearCache
	others    *snapshots
}

func newMux() *mux {
	m := &mux{endpoints: cache.NewLinearCache(resource.EndpointType, cache.WithLogger(silent)), others: newSnapshots(false)}
	classify := func(typeURL string) string {
		if typeURL == resource.EndpointType {
			return "endpoints"
		}
		return "others"
	}
	m.Classify = func(r *cache.Request) string { return classify(r.GetTypeUrl()) }
	// Without it the server panics at the first Delta request (go-control-plane v0.14.0).
	m.ClassifyDelta = func(r *cache.DeltaRequest) string { return classify(r.GetTypeUrl()) }
	m.Caches = map[string]cache.Cache{"endpoints": m.endpoints, "others": m.others}
	return m
}

func (m *mux) set(version string, to resources) error {
	if err := change(m.endpoints, to[resource.EndpointType]); err != nil {
		return err
	}
	others := maps.Clone(to)
	delete(others, resource.EndpointType)
	snapshot, err := cache.NewSnapshot(version, others)
	if err != nil {
		return err
	}
	return m.others.SetSnapshot(context.Background(), rig.Node, snapshot)
}
