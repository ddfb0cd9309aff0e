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
	// Upstreams makes the sources that feed the group, as often as its node
	// changes. Connected and Lacking of what it returns are set by the group.
	Upstreams func() *upstream.Failover
	Cache     cache.Config
}

// Group is one kind of client. Make one with New and run Run.
type Group struct {
	cfg     Config
	cache   *cache.Cache
	renewed chan struct{} // holds a value when the node changed

	mu   sync.Mutex
	node *corev3.Node
	// current feeds the group; successor, nil for none, will when it answers.
	current, successor *feeding
}

// feeding is a run of the sources, with the node that the group had when it began.
type feeding struct {
	upstreams *upstream.Failover
	cancel    context.CancelFunc
	done      chan struct{} // closed when it has ended
}

// New returns a group that holds nothing.
func New(cfg Config) *Group {
	g := &Group{
		cfg:     cfg,
		cache:   cache.New(cfg.Cache),
		renewed: make(chan struct{}, 1),
		node:    withFeatures(cfg.Node),
	}
	g.current = g.feeding()
	return g
}

// feeding makes the sources; begin runs them.
func (g *Group) feeding() *feeding {
	f := &feeding{upstreams: g.cfg.Upstreams(), cancel: func() {}, done: make(chan struct{})}
	f.upstreams.Lacking = g.cache.Lacking
	f.upstreams.Connected = func(connected bool) {
		if connected {
			g.succeed(f)
		}
		g.mu.Lock()
		is := g.current == f
		g.mu.Unlock()
		if is {
			g.cache.SetConnected(connected)
		}
	}
	return f
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
func (g *Group) Upstreams() []upstream.SourceState { return g.upstreams().States() }

func (g *Group) upstreams() *upstream.Failover {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.current.upstreams
}

// Node returns who the clients are, as the control plane sees it. The caller must
// not change it.
func (g *Group) Node() *corev3.Node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.node
}

// SetNode changes who the clients are. Since a Node can be said only at the
// beginning of a stream, a second one is opened upstream, and takes over when it
// answers; what is held stays.
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

// feed runs the sources until ctx ends, and others beside them when the node has
// changed.
func (g *Group) feed(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	begin := func(f *feeding) {
		ctx, cancel := context.WithCancel(ctx)
		g.mu.Lock()
		f.cancel = cancel
		g.mu.Unlock()
		eg.Go(func() error {
			defer close(f.done)
			defer cancel()
			return f.upstreams.Run(ctx, feed{g})
		})
	}
	begin(g.current)
	for {
		select {
		case <-ctx.Done():
			return eg.Wait()
		case <-g.renewed:
		}
		next := g.feeding()
		g.mu.Lock()
		obsolete := g.successor
		g.successor = next
		g.mu.Unlock()
		if obsolete != nil {
			obsolete.cancel()
		}
		begin(next)
	}
}

// succeed makes a run the one that feeds the group, after the one before it has
// ended. It is called before the first answer of the run is applied.
func (g *Group) succeed(f *feeding) {
	g.mu.Lock()
	before := g.current
	if before == f || g.successor != f {
		g.mu.Unlock()
		return
	}
	g.successor = nil
	g.mu.Unlock()
	before.cancel()
	<-before.done
	g.mu.Lock()
	g.current = f
	g.mu.Unlock()
}

// Attach opens the view of a stream.
func (g *Group) Attach(c downstream.Client) downstream.View {
	return view{g.cache.Watch(c.Node.GetId()), g.cache}
}

// Forward opens a stream of a service that is not served here to the upstream
// that answers.
func (g *Group) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	return g.upstreams().Forward(ctx, method)
}
