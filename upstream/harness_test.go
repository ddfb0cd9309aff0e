package upstream

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Every Run of this package owns its goroutines; none may outlive it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds a wait for something that happens at once on loopback.
const limit = 20 * time.Second

// state is a State that records its calls. Its clients subscribe to the wildcards of some types.
type state struct {
	node    *corev3.Node
	changes []xds.SubscriptionChange
	cached  map[string]string

	mu      sync.Mutex
	updates []xds.Update
	synced  []string
	report  xds.AgentReport
}

func (s *state) Node() *corev3.Node { return s.node }

func (s *state) Apply(u xds.Update, answer func(error)) {
	s.mu.Lock()
	s.updates = append(s.updates, u)
	s.mu.Unlock()
	if answer != nil {
		answer(nil)
	}
}

func (s *state) Synced(_, typeURL string, _ time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = append(s.synced, typeURL)
}

func (s *state) RequestAgain() time.Time { return time.Time{} }
func (s *state) Agreed(string, string)   {}
func (s *state) AgentReport() xds.AgentReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

func (s *state) Cached(string, string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.cached)
}

func (s *state) Nacked(string, string) []string { return nil }

func (s *state) Body(typeURL string, name []byte) *anypb.Any {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range slices.Backward(s.updates) {
		for _, r := range u.Resources {
			if r.Type == typeURL && r.Name == string(name) {
				return r.Body
			}
		}
	}
	return nil
}

func (s *state) Subscriptions() Subscriptions {
	in := &wanted{changes: s.changes, changed: make(chan struct{}, 1)}
	in.changed <- struct{}{}
	return in
}

// applied returns the updates so far.
func (s *state) applied() []xds.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.updates)
}

// wanted is a Subscriptions that changes once.
type wanted struct {
	changes []xds.SubscriptionChange
	changed chan struct{}
}

func (w *wanted) Changed() <-chan struct{}          { return w.changed }
func (w *wanted) Changes() []xds.SubscriptionChange { return w.changes }
func (w *wanted) Close()                            {}
func (w *wanted) Optional(string) (_, _ []string)   { return nil, nil }

// everyCluster is a state whose clients subscribe to all clusters.
func everyCluster() *state {
	return &state{node: &corev3.Node{Id: "web-1"}, changes: []xds.SubscriptionChange{{Type: xds.ClusterType, Wildcard: true, Complete: true}}}
}

// controlPlane serves the cluster c1 on loopback and returns its address.
func controlPlane(t *testing.T, opts ...grpc.ServerOption) (cp *xdstest.ControlPlane, addr string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cp = xdstest.New(xdstest.Config{})
	cp.Set(xdstest.Cluster("c1", ""))
	cp.Serve(lis, opts...)
	t.Cleanup(cp.Stop)
	return cp, lis.Addr().String()
}

// source makes an ADS source.
func source(t *testing.T, cfg Config) *ADS {
	t.Helper()
	a, err := NewADS(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// attempt runs a source. It returns nil at the first answer, or the error if the run fails before.
func attempt(t *testing.T, cfg Config) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	answered := false
	err := source(t, cfg).Run(ctx, everyCluster(), func() error {
		answered = true
		cancel()
		return nil
	})
	if answered {
		return nil
	}
	if err == nil || ctx.Err() != nil {
		return errors.New("no answer and no error in time")
	}
	return err
}
