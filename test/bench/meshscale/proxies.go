package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/test/bench/sidecar"
)

// Envoy's pause before it connects again: at random up to backoffBase, twice as long after each failure, at most
// backoffMax (docs of Envoy 1.40, "xDS", grpc retry back off: 500 ms to 30 s).
const (
	backoffBase = 500 * time.Millisecond
	backoffMax  = 30 * time.Second
)

// decodeEvery is how often a proxy unmarshals each resource into its message. The others read the fields of all
// responses, and of endpoints the addresses.
const decodeEvery = 20

// perConnection is how many proxies that only count share a connection.
const perConnection = 50

// fleet is the proxies: real ones, each with a connection and a stream of its own, and those that only count.
type fleet struct {
	mesh     *mesh
	replicas []*replica
	proxies  []*simulated
	counters []*counter
	stop     context.CancelFunc
	running  sync.WaitGroup

	reconnects atomic.Int64
	// before are the totals of the proxies that were forgotten.
	before totals
	// broken is the first reason for which the run fails.
	broken atomic.Pointer[error]
}

func newFleet(m *mesh, replicas []*replica, counters int) *fleet {
	f := &fleet{mesh: m, replicas: replicas}
	for i := range m.proxies {
		f.proxies = append(f.proxies, newSimulated(f, i))
	}
	for i := range counters {
		f.counters = append(f.counters, &counter{fleet: f, number: m.proxies + i})
	}
	return f
}

func (f *fleet) fail(err error) { f.broken.CompareAndSwap(nil, &err) }

func (f *fleet) failure() error {
	if err := f.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// connect lets all proxies connect.
func (f *fleet) connect(ctx context.Context) {
	ctx, f.stop = context.WithCancel(ctx)
	for _, p := range f.proxies {
		f.running.Go(func() { p.run(ctx) })
	}
	for i := 0; i < len(f.counters); i += perConnection {
		share := f.counters[i:min(i+perConnection, len(f.counters))]
		f.running.Go(func() { f.count(ctx, share) })
	}
}

// disconnect ends the streams of all proxies.
func (f *fleet) disconnect() {
	if f.stop != nil {
		f.stop()
		f.running.Wait()
	}
}

// wait waits until a condition holds for all proxies that have a connection of their own, and for those that only
// count if it is about them, too.
func (f *fleet) wait(ctx context.Context, limit time.Duration, what string, done func() (missing string)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		if err := f.failure(); err != nil {
			return err
		}
		missing := done()
		if missing == "" {
			return nil
		}
		for _, r := range f.replicas {
			if err := r.alive(); err != nil {
				return err
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s: not in %s: %s", what, limit, missing)
		}
	}
}

// complete says who has not everything that it must have; "" for nobody.
func (f *fleet) complete() string {
	for _, p := range f.proxies {
		if p.completed.Load() == 0 {
			return fmt.Sprintf("proxy %d has %s", p.number, p.state())
		}
	}
	for _, c := range f.counters {
		if c.types.Load() != allTypes {
			return fmt.Sprintf("proxy %d, which only counts, has types %b", c.number, c.types.Load())
		}
	}
	return ""
}

// stale says who has not the last change of every service; "" for nobody.
func (f *fleet) stale() string {
	if n := f.mesh.log.outstanding.Load(); n > 0 {
		return fmt.Sprintf("%d changes of a proxy are not ACKed", n)
	}
	for _, p := range f.proxies {
		if missing := p.stale(); missing != "" {
			return missing
		}
	}
	return ""
}

// forget lets the proxies have nothing, as after a start of their machines. They must not be connected.
func (f *fleet) forget() {
	f.before = f.totals()
	for i := range f.proxies {
		f.proxies[i] = newSimulated(f, i)
	}
	for i, c := range f.counters {
		f.counters[i] = &counter{fleet: f, number: c.number}
	}
}

// of returns the proxies whose stream is with a replica.
func (f *fleet) of(r *replica) (all []*simulated) {
	for _, p := range f.proxies {
		if at := p.at.Load(); at != nil && *at == r.addr {
			all = append(all, p)
		}
	}
	return all
}

// totals are sums over the proxies.
type totals struct{ bytes, responses, resources, again int64 }

func (f *fleet) totals() (t totals) {
	t = f.before
	for _, p := range f.proxies {
		t.bytes += p.bytes.Load()
		t.responses += p.responses.Load()
		t.resources += p.resources.Load()
		t.again += p.again.Load()
	}
	for _, c := range f.counters {
		t.bytes += c.bytes.Load()
		t.responses += c.responses.Load()
	}
	return t
}

// took returns the seconds that changes took until a proxy had ACKed them, of all proxies, since it was last called.
func (f *fleet) took() (all []float64) {
	for _, p := range f.proxies {
		p.mu.Lock()
		all = append(all, p.took...)
		p.took = nil
		p.mu.Unlock()
	}
	return all
}

// connected returns the seconds from a moment until each proxy had everything.
func (f *fleet) connected(since time.Time) (all []float64) {
	for _, p := range f.proxies {
		all = append(all, time.Duration(p.completed.Load()-int64(since.Sub(f.mesh.log.began))).Seconds())
	}
	return all
}

// node returns the Node of a proxy, as Istio's bootstrap has it.
func (f *fleet) node(number int) *corev3.Node {
	namespace := f.mesh.namespace(number)
	meta, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "LABELS": map[string]any{"app": f.mesh.name(f.mesh.serviceOf(number))},
	})
	if err != nil {
		panic(err)
	}
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~%s~pod-%d.%s~%s.svc.cluster.local", f.mesh.proxyAddress(number), number, namespace, namespace),
		Metadata: meta,
	}
}

// simulated is a proxy with a connection of its own. It is the sidecar.Observer of its client.
type simulated struct {
	fleet   *fleet
	number  int
	scope   *scope
	decodes bool

	bytes, responses, resources, again atomic.Int64
	completed                          atomic.Int64           // when it had everything, in nanoseconds since the log began; 0: not yet
	at                                 atomic.Pointer[string] // the address of its replica

	mu sync.Mutex
	// held are the versions of what it has, by type and name.
	held map[string]map[string]*string
	// marks are the changes up to which it has the endpoints of the clusters of its scope; has is how many of these
	// clusters it has endpoints of, and clusters how many of them it has.
	marks         []uint32
	has, clusters int
	// fresh are the marks of the response at hand, which has not been ACKed.
	fresh map[int]uint32
	took  []float64
	// answered is whether the stream has got a response.
	answered bool
}

func newSimulated(f *fleet, number int) *simulated {
	sc := f.mesh.scopes[number%f.mesh.namespaces]
	s := &simulated{fleet: f, number: number, scope: sc, decodes: number%decodeEvery == 0, marks: make([]uint32, len(sc.clusters)), fresh: make(map[int]uint32), held: make(map[string]map[string]*string)}
	for _, short := range []string{sidecar.CDS, sidecar.EDS, sidecar.LDS, sidecar.RDS} {
		s.held[short] = make(map[string]*string)
	}
	return s
}

// run keeps a stream open to one of the replicas until ctx ends, with Envoy's pauses.
func (s *simulated) run(ctx context.Context) {
	pause := backoffBase
	for attempt := 0; ctx.Err() == nil; attempt++ {
		s.mu.Lock()
		s.answered = false
		s.mu.Unlock()
		err := s.stream(ctx, s.fleet.replicas[(s.number+attempt)%len(s.fleet.replicas)].addr)
		if ctx.Err() != nil {
			return
		}
		if broken := (violation{}); errors.As(err, &broken) {
			s.fleet.fail(fmt.Errorf("proxy %d: %w", s.number, broken.error))
			return
		}
		s.mu.Lock()
		if s.answered {
			s.fleet.reconnects.Add(1)
			pause = backoffBase
		}
		s.mu.Unlock()
		select {
		case <-time.After(rand.N(pause)):
		case <-ctx.Done():
		}
		pause = min(2*pause, backoffMax)
	}
}

func (s *simulated) stream(ctx context.Context, addr string) error {
	conn, err := sidecar.Dial(addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	s.at.Store(&addr)
	client := sidecar.Client{Node: s.fleet.node(s.number), Observer: s, Held: s.versions}
	return client.Run(ctx, conn)
}

// violation is something that must not happen to a proxy.
type violation struct{ error }

func (s *simulated) versions(short string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]string, len(s.held[short]))
	for name, version := range s.held[short] {
		out[name] = *version
	}
	return out
}

// Resource implements sidecar.Observer.
func (s *simulated) Resource(short string, r sidecar.Resource) error {
	if s.decodes {
		if err := decode(short, r.Body); err != nil {
			return violation{fmt.Errorf("%s %s: %w", short, r.Name, err)}
		}
	}
	s.resources.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	version := s.held[short][string(r.Name)]
	switch {
	case version == nil:
		interned := unique.Make(string(r.Version)).Value()
		s.held[short][unique.Make(string(r.Name)).Value()] = &interned
		if _, ok := s.scope.clusters[string(r.Name)]; ok && short == sidecar.CDS {
			s.clusters++
		}
	case *version == string(r.Version):
		s.again.Add(1)
	default:
		*version = unique.Make(string(r.Version)).Value()
	}
	if short == sidecar.EDS {
		place, ok := s.scope.clusters[string(r.Name)]
		if !ok {
			return nil
		}
		mark, err := markOf(r.Body)
		if err != nil {
			return violation{fmt.Errorf("EDS %s: %w", r.Name, err)}
		}
		if mark < s.marks[place] {
			return violation{fmt.Errorf("EDS %s goes back from change %d to %d", r.Name, s.marks[place], mark)}
		}
		s.fresh[place] = mark
	}
	return nil
}

// Removed implements sidecar.Observer: nobody orders a removal.
func (s *simulated) Removed(short, name string) {
	s.fleet.fail(fmt.Errorf("proxy %d is told to remove %s %s, which nobody ordered", s.number, short, name))
}

// Answered implements sidecar.Observer.
func (s *simulated) Answered(short string, size int) {
	s.bytes.Add(int64(size))
	s.responses.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.answered {
		s.answered = true
	}
	for place, mark := range s.fresh {
		service := place / ports
		before := s.mark(service)
		if s.marks[place] == 0 {
			s.has++
		}
		s.marks[place] = mark
		if after := s.mark(service); after > before {
			s.took = s.fleet.mesh.log.acked(s.scope.services[service], before, after, s.took)
		}
	}
	clear(s.fresh)
	if s.completed.Load() == 0 && s.has == len(s.marks) && s.clusters == len(s.marks) && len(s.held[sidecar.LDS]) > 0 && len(s.held[sidecar.RDS]) > 0 {
		s.completed.Store(int64(time.Since(s.fleet.mesh.log.began)))
	}
}

// mark returns the change up to which all clusters of a service of the scope have endpoints.
func (s *simulated) mark(service int) uint32 {
	return slices.Min(s.marks[service*ports : (service+1)*ports])
}

func (s *simulated) state() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%d of %d clusters, endpoints of %d, %d listeners, %d routes", s.clusters, len(s.marks), s.has, len(s.held[sidecar.LDS]), len(s.held[sidecar.RDS]))
}

// stale says of which service the proxy has not the last change; "" for none.
func (s *simulated) stale() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, i := range s.scope.services {
		if want := s.fleet.mesh.log.latest(i); s.mark(at) < want {
			return fmt.Sprintf("proxy %d has %s up to change %d, and the last one is %d", s.number, s.fleet.mesh.host(i), s.mark(at), want)
		}
	}
	return ""
}

// decode unmarshals a resource into its message.
func decode(short string, body []byte) error {
	var m proto.Message
	switch short {
	case sidecar.CDS:
		m = &clusterv3.Cluster{}
	case sidecar.EDS:
		m = &endpointv3.ClusterLoadAssignment{}
	case sidecar.LDS:
		m = &listenerv3.Listener{}
	case sidecar.RDS:
		m = &routev3.RouteConfiguration{}
	}
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(body, m)
}

// addressPath are the fields that lead from a ClusterLoadAssignment to the addresses of its endpoints: endpoints,
// lb_endpoints, endpoint, address, socket_address, address.
var addressPath = []protowire.Number{2, 2, 1, 1, 1, 2}

// markOf returns the last change that made an endpoint of an assignment.
func markOf(assignment []byte) (mark uint32, err error) {
	var walk func(data []byte, path []protowire.Number) error
	walk = func(data []byte, path []protowire.Number) error {
		if len(path) == 0 {
			ip, err := netip.ParseAddr(string(data))
			if err != nil {
				return err
			}
			if b := ip.As4(); b[0] == endpointNet {
				mark = max(mark, uint32(b[1])<<16|uint32(b[2])<<8|uint32(b[3]))
			}
			return nil
		}
		return sidecar.Fields(data, func(n protowire.Number, value []byte) error {
			if n != path[0] {
				return nil
			}
			return walk(value, path[1:])
		})
	}
	err = walk(assignment, addressPath)
	if err == nil && mark == 0 {
		err = errors.New("an assignment without endpoints")
	}
	return mark, err
}

// counter is a proxy that only counts: its stream is real, and shares its connection with others.
type counter struct {
	fleet  *fleet
	number int
	// types has a bit for each type that it got.
	types            atomic.Uint32
	bytes, responses atomic.Int64
}

// allTypes are the bits of the types that a proxy gets.
const allTypes = 0b1111

var typeBits = map[string]uint32{sidecar.CDS: 1, sidecar.EDS: 2, sidecar.LDS: 4, sidecar.RDS: 8}

// count serves proxies that only count, by one connection.
func (f *fleet) count(ctx context.Context, share []*counter) {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		conn, err := sidecar.Dial(f.replicas[(share[0].number/perConnection+attempt)%len(f.replicas)].addr)
		if err != nil {
			f.fail(err)
			return
		}
		var streams sync.WaitGroup
		for _, c := range share {
			streams.Go(func() { c.run(ctx, conn) })
		}
		streams.Wait()
		_ = conn.Close()
		select {
		case <-time.After(rand.N(backoffBase)):
		case <-ctx.Done():
		}
	}
}

func (c *counter) run(ctx context.Context, conn grpc.ClientConnInterface) {
	sc := c.fleet.mesh.scopes[c.number%c.fleet.mesh.namespaces]
	client := sidecar.Client{Node: c.fleet.node(c.number), Observer: c, Clusters: sc.names}
	_ = client.Run(ctx, conn) // it connects again with those of its connection
}

// Resource implements sidecar.Observer: resources are not read.
func (c *counter) Resource(string, sidecar.Resource) error { return nil }

// Removed implements sidecar.Observer.
func (c *counter) Removed(string, string) {}

// Answered implements sidecar.Observer.
func (c *counter) Answered(short string, size int) {
	c.bytes.Add(int64(size))
	c.responses.Add(1)
	c.types.Or(typeBits[short])
}
