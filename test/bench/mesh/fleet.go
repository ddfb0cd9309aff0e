package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/test/bench/sidecar"
)

// fleet is the sidecars.
type fleet struct {
	addr     string
	options  options
	sidecars []*simulated
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
		s := &simulated{fleet: f, number: i, seen: make(map[string]map[string]int)}
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
func (f *fleet) wait(ctx context.Context, done func(*simulated) bool) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for {
		if !slices.ContainsFunc(f.sidecars, func(s *simulated) bool { return !done(s) }) {
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

// simulated is a sidecar, and the sidecar.Observer of its client.
type simulated struct {
	fleet  *fleet
	number int
	bytes  atomic.Int64

	mu sync.Mutex
	// seen has the names that were received since the last reset, by type.
	seen map[string]map[string]int
	// clusters is the number of clusters to whose endpoints it subscribes.
	clusters int
}

// got reports whether a resource of a type was received since the last reset; "" for any.
func (s *simulated) got(short, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "" {
		return len(s.seen[short]) > 0
	}
	return s.seen[short][name] > 0
}

// complete reports whether the sidecar has everything that it asked for.
func (s *simulated) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen[sidecar.CDS]) > 0 && len(s.seen[sidecar.LDS]) > 0 && s.clusters > 0 && len(s.seen[sidecar.EDS]) >= s.clusters && len(s.seen[sidecar.RDS]) > 0 &&
		(!s.fleet.options.vhds || len(s.seen[sidecar.VHDS]) >= s.fleet.options.services)
}

func (s *simulated) node() *corev3.Node {
	namespace := fmt.Sprintf("ns%d", s.number%s.fleet.options.namespaces)
	meta, err := structpb.NewStruct(map[string]any{
		"NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "LABELS": map[string]any{"pod": fmt.Sprint(s.number)},
		"VHDS": s.fleet.options.vhds,
	})
	if err != nil {
		panic(err)
	}
	address := fmt.Sprintf("10.200.%d.%d", s.number/250, s.number%250+1)
	if s.fleet.options.workloads {
		address = endpoint(s.number, 0)
	}
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~%s~pod-%d.%s~%s.svc.cluster.local", address, s.number, namespace, namespace),
		Metadata: meta,
	}
}

func (s *simulated) run(ctx context.Context) error {
	conn, err := sidecar.Dial(s.fleet.addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	client := sidecar.Client{Node: s.node(), Observer: s, SotW: s.fleet.options.sotw, VirtualHosts: s.fleet.options.vhds}
	return client.Run(ctx, conn)
}

// Resource implements sidecar.Observer.
func (s *simulated) Resource(short string, r sidecar.Resource) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := s.seen[short]
	if names == nil {
		names = make(map[string]int)
		s.seen[short] = names
	}
	if short == sidecar.CDS && strings.HasPrefix(string(r.Name), "outbound|") && names[string(r.Name)] == 0 {
		s.clusters++
	}
	names[string(r.Name)]++
	return nil
}

// Removed implements sidecar.Observer: what is removed is not measured.
func (s *simulated) Removed(string, string) {}

// Answered implements sidecar.Observer.
func (s *simulated) Answered(_ string, size int) {
	s.bytes.Add(int64(size))
	select {
	case s.fleet.changed <- struct{}{}:
	default:
	}
}
