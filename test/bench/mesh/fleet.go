package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

const typePrefix = "type.googleapis.com/envoy.config."

// shorts are the types that a sidecar subscribes to.
var shorts = map[string]string{
	typePrefix + "cluster.v3.Cluster":                "CDS",
	typePrefix + "endpoint.v3.ClusterLoadAssignment": "EDS",
	typePrefix + "listener.v3.Listener":              "LDS",
	typePrefix + "route.v3.RouteConfiguration":       "RDS",
	typePrefix + "route.v3.VirtualHost":              "VHDS",
}

func urlOf(short string) string {
	for url, s := range shorts {
		if s == short {
			return url
		}
	}
	panic(short)
}

// isReady reports whether a control plane answers a stream without a node with anything but that it is
// not ready or not there.
func isReady(ctx context.Context, addr string) bool {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return false
	}
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf("CDS")}) // the answer tells
	_, err = stream.Recv()
	return status.Code(err) != codes.Unavailable && !strings.Contains(fmt.Sprint(err), "not ready")
}

// fleet is the sidecars.
type fleet struct {
	addr     string
	options  options
	sidecars []*sidecar
	changed  chan struct{}
	failed   chan error
	stop     context.CancelFunc
	running  sync.WaitGroup
}

func newFleet(addr string, o options) *fleet {
	return &fleet{addr: addr, options: o, changed: make(chan struct{}, 1), failed: make(chan error, o.sidecars)}
}

// connect connects all sidecars.
func (f *fleet) connect(ctx context.Context) error {
	ctx, f.stop = context.WithCancel(ctx)
	for i := range f.options.sidecars {
		s := &sidecar{fleet: f, number: i, seen: make(map[string]map[string]int), subscribed: make(map[string]struct{})}
		f.sidecars = append(f.sidecars, s)
		f.running.Go(func() {
			if err := s.run(ctx); err != nil && ctx.Err() == nil {
				f.failed <- fmt.Errorf("sidecar %d: %w", i, err)
			}
		})
	}
	return nil
}

func (f *fleet) close() {
	if f.stop != nil {
		f.stop()
		f.running.Wait()
	}
}

// reset forgets what the sidecars have got.
func (f *fleet) reset() {
	for _, s := range f.sidecars {
		s.mu.Lock()
		clear(s.seen)
		s.mu.Unlock()
		s.bytes.Store(0)
	}
}

// wait waits until all sidecars have what they must.
func (f *fleet) wait(ctx context.Context, done func(*sidecar) bool) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for {
		if !slices.ContainsFunc(f.sidecars, func(s *sidecar) bool { return !done(s) }) {
			return nil
		}
		select {
		case <-f.changed:
		case err := <-f.failed:
			return err
		case <-ctx.Done():
			return errors.New("not all sidecars have it in time")
		}
	}
}

func (f *fleet) received() (bytes int64) {
	for _, s := range f.sidecars {
		bytes += s.bytes.Load()
	}
	return bytes
}

// types returns which types the first sidecar has got, and how many resources of each.
func (f *fleet) types() string {
	s := f.sidecars[0]
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for short, names := range s.seen {
		out = append(out, fmt.Sprintf("%s %d", short, len(names)))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// sidecar is a simulated Envoy.
type sidecar struct {
	fleet  *fleet
	number int
	bytes  atomic.Int64

	wantsHosts bool // it has subscribed to virtual hosts

	mu sync.Mutex
	// seen has the names that were received since the last reset, by type.
	seen map[string]map[string]int
	// eds and rds are the names that it subscribes to, subscribed both as a set.
	eds, rds   []string
	subscribed map[string]struct{}
}

// got reports whether a resource of a type was received since the last reset; "" for any.
func (s *sidecar) got(short, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "" {
		return len(s.seen[short]) > 0
	}
	return s.seen[short][name] > 0
}

// complete reports whether the sidecar has everything that it asked for.
func (s *sidecar) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen["CDS"]) > 0 && len(s.seen["LDS"]) > 0 && len(s.eds) > 0 && len(s.seen["EDS"]) >= len(s.eds) && len(s.seen["RDS"]) > 0 &&
		(!s.fleet.options.vhds || len(s.seen["VHDS"]) >= s.fleet.options.services)
}

func (s *sidecar) node() *corev3.Node {
	namespace := fmt.Sprintf("ns%d", s.number%s.fleet.options.namespaces)
	meta, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "LABELS": map[string]any{"pod": fmt.Sprint(s.number)},
		"VHDS": s.fleet.options.vhds,
	})
	if err != nil {
		panic(err)
	}
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~10.200.%d.%d~pod-%d.%s~%s.svc.cluster.local", s.number/250, s.number%250+1, s.number, namespace, namespace),
		Metadata: meta,
	}
}

func (s *sidecar) run(ctx context.Context) error {
	conn, err := grpc.NewClient(s.fleet.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.ForceCodecV2(codec{})))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if s.fleet.options.sotw {
		return s.sotw(ctx, client)
	}
	return s.delta(ctx, client)
}

func (s *sidecar) delta(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) error {
	stream, err := client.DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	node := s.node()
	for _, short := range []string{"CDS", "LDS"} {
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: urlOf(short)}); err != nil {
			return err
		}
		node = nil
	}
	for {
		var r received
		if err := stream.RecvMsg(&r); err != nil {
			return err
		}
		short, eds, rds := s.take(&r)
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.typeURL, ResponseNonce: r.nonce}); err != nil {
			return err
		}
		if short == "CDS" && len(eds) > 0 {
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf("EDS"), ResourceNamesSubscribe: eds})
		}
		if short == "LDS" && len(rds) > 0 {
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf("RDS"), ResourceNamesSubscribe: rds})
		}
		if short == "RDS" && s.fleet.options.vhds && !s.wantsHosts {
			s.wantsHosts = true
			err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf("VHDS")})
		}
		if err != nil {
			return err
		}
	}
}

func (s *sidecar) sotw(ctx context.Context, client discoveryv3.AggregatedDiscoveryServiceClient) error {
	stream, err := client.StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	node := s.node()
	for _, short := range []string{"CDS", "LDS"} {
		if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: urlOf(short)}); err != nil {
			return err
		}
		node = nil
	}
	last := make(map[string]*discoveryv3.DiscoveryRequest) // what was sent last, by type
	ask := func(short string, names []string) error {
		req := &discoveryv3.DiscoveryRequest{TypeUrl: urlOf(short), ResourceNames: names}
		if before := last[short]; before != nil {
			req.VersionInfo, req.ResponseNonce = before.VersionInfo, before.ResponseNonce
		}
		return stream.Send(req)
	}
	for {
		var r received
		if err := stream.RecvMsg(&r); err != nil {
			return err
		}
		short, eds, rds := s.take(&r)
		ack := &discoveryv3.DiscoveryRequest{TypeUrl: r.typeURL, VersionInfo: r.version, ResponseNonce: r.nonce}
		last[short] = ack
		s.mu.Lock()
		switch short {
		case "EDS":
			ack.ResourceNames = slices.Clone(s.eds)
		case "RDS":
			ack.ResourceNames = slices.Clone(s.rds)
		}
		allEDS, allRDS := slices.Clone(s.eds), slices.Clone(s.rds)
		s.mu.Unlock()
		if err := stream.Send(ack); err != nil {
			return err
		}
		if short == "CDS" && len(eds) > 0 {
			err = ask("EDS", allEDS)
		}
		if short == "LDS" && len(rds) > 0 {
			err = ask("RDS", allRDS)
		}
		if err != nil {
			return err
		}
	}
}

// take records a response, and returns the names of endpoints and routes that it adds.
func (s *sidecar) take(r *received) (short string, eds, rds []string) {
	short = shorts[r.typeURL]
	s.bytes.Add(int64(r.size))
	s.mu.Lock()
	names := s.seen[short]
	if names == nil {
		names = make(map[string]int)
		s.seen[short] = names
	}
	for _, name := range r.names {
		names[name]++
		if _, has := s.subscribed[name]; has {
			continue
		}
		switch {
		case short == "CDS" && strings.HasPrefix(name, "outbound|"):
			s.subscribed[name] = struct{}{}
			eds = append(eds, name)
		case short == "LDS" && name == "0.0.0.0_80":
			s.subscribed[name] = struct{}{}
			rds = append(rds, "80")
		}
	}
	s.eds, s.rds = append(s.eds, eds...), append(s.rds, rds...)
	s.mu.Unlock()
	select {
	case s.fleet.changed <- struct{}{}:
	default:
	}
	return short, eds, rds
}
