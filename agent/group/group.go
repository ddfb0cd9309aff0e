// Package group joins the parts that serve one kind of client: a cache, the
// sources that feed it and the views that streams have of it. Clients are of one
// kind when a control plane would tell them the same (design.md section 3).
//
// It is the only place where upstream and downstream meet the cache: each of
// them declares what it needs of it, and the adapters here say one in the words
// of the other. It decides nothing.
package group

import (
	"context"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/upstream"
)

// Features are the client features that the agent has whatever its clients have,
// and so adds to the Node that it presents (protocol.md 8.9).
var Features = []string{"xds.config.resource-in-sotw", "xds.config.supports-resource-ttl"}

// Config configures a Group.
type Config struct {
	// Node is who the clients are, as the control plane shall see it.
	Node *corev3.Node
	// Upstreams are tried in order of priority. Its Connected and Lacking are
	// set by the group.
	Upstreams *upstream.Failover
	Cache     cache.Config
}

// Group is one kind of client. Make one with New and run Run.
type Group struct {
	cache     *cache.Cache
	upstreams *upstream.Failover
	renewed   chan struct{} // holds a value when the node changed

	mu   sync.Mutex
	node *corev3.Node
}

// New returns a group that holds nothing.
func New(cfg Config) *Group {
	g := &Group{
		cache:     cache.New(cfg.Cache),
		upstreams: cfg.Upstreams,
		renewed:   make(chan struct{}, 1),
		node:      withFeatures(cfg.Node),
	}
	g.upstreams.Connected = g.cache.SetConnected
	g.upstreams.Lacking = g.cache.Lacking
	return g
}

func withFeatures(node *corev3.Node) *corev3.Node {
	node = proto.CloneOf(node)
	for _, f := range Features {
		if !slices.Contains(node.ClientFeatures, f) {
			node.ClientFeatures = append(node.ClientFeatures, f)
		}
	}
	return node
}

// Cache returns the group's state.
func (g *Group) Cache() *cache.Cache { return g.cache }

// Upstreams returns what is known of the group's sources, in order of priority.
func (g *Group) Upstreams() []upstream.SourceState { return g.upstreams.States() }

// Node returns who the clients are, as the control plane sees it. The caller must
// not change it.
func (g *Group) Node() *corev3.Node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.node
}

// SetNode changes who the clients are. The upstream stream is opened anew, since
// a Node can be said only at its beginning; what is held stays.
func (g *Group) SetNode(node *corev3.Node) {
	g.mu.Lock()
	g.node = withFeatures(node)
	g.mu.Unlock()
	select {
	case g.renewed <- struct{}{}:
	default:
	}
}

// Run feeds the group until ctx ends; it returns nil then, and every goroutine
// that it started has ended.
func (g *Group) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return g.cache.Run(ctx) })
	eg.Go(func() error { return g.feed(ctx) })
	return eg.Wait()
}

// feed runs the sources, and runs them again when the node has changed.
func (g *Group) feed(ctx context.Context) error {
	for ctx.Err() == nil {
		attempt, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- g.upstreams.Run(attempt, feed{g}) }()
		select {
		case err := <-done:
			cancel()
			return err
		case <-g.renewed:
			cancel()
			<-done
		}
	}
	return nil
}

// Attach opens the view of a stream.
func (g *Group) Attach(c downstream.Client) downstream.View {
	return view{g.cache.Watch(c.Node.GetId()), g.cache}
}

// Forward opens a stream of a service that is not served here to the upstream
// that answers.
func (g *Group) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	return g.upstreams.Forward(ctx, method)
}
