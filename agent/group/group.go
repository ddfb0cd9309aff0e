// Package group joins the parts that serve one group of clients: a cache, the sources that write to
// it, and the views through which streams read it. Clients belong to one group when a control plane
// would send them the same configuration (design.md section 3). A Set has the groups of all
// clients.
//
// It is the only package in which upstream and downstream meet the cache: each of them declares the
// interface that it needs, and the adapters here implement it. The protocol and the rules of the state
// are not decided here. Methods may be called concurrently, unless they say otherwise.
package group

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/seed"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/upstream"
)

type Config struct {
	// Node is the Node of the clients, as the control plane sees it.
	Node *corev3.Node
	// Upstreams returns new sources; it is called again when the Node changes. The group sets
	// Connected and Lacking of the result.
	Upstreams func() *upstream.Failover
	Cache     cache.Config
	Secrets   *sds.Manager // nil for none
	Log       *slog.Logger // may be nil
	// WatchDisconnects warns of Envoys that live for less than a minute. It is for Envoys that are not
	// the agent's child, whose exits the agent does not see.
	WatchDisconnects bool
	// Presence is told of the Envoys that come and go; nil for one that nobody else sees.
	Presence *Presence
	// RestoreAfter is when restored resources are served even if no source has answered; 0 means
	// DefaultRestoreAfter.
	RestoreAfter time.Duration
	// MaxStale is the maximum time since the last contact with a source: after it, new clients are
	// not served. 0 means no maximum.
	MaxStale time.Duration
	// Seed, if set, returns what is served if every source fails and nothing is known of listeners and clusters.
	Seed func(context.Context) (*seed.Seed, error)
	// Answered, if set, is called with the time from an update of a source until the last client
	// that it concerned has answered and what was ACKed is on disk. It must not block.
	Answered func(typeURL string, took time.Duration)
	// Tracer traces updates on their way to clients; nil for none.
	Tracer Tracer
}

// Tracer traces the updates of one group on their way to clients. Its methods may be called concurrently,
// and must not block.
type Tracer interface {
	// Received begins the trace of an update.
	Received(u xds.Update) UpdateTrace
	// Connected begins the traces of what a client is sent.
	Connected(c downstream.Client) ClientTrace
}

// UpdateTrace is the trace of one update.
type UpdateTrace interface {
	// Numbered is called with the revision of the update, unless it is rejected as a whole, before any
	// client is sent it.
	Numbered(revision uint64)
	// Applied is called when the update has taken effect.
	Applied()
	// Answered ends the trace: every client that the update concerned has answered.
	Answered(nack error)
}

// ClientTrace traces what one client is sent.
type ClientTrace interface {
	Sent(resp *session.Response, began time.Time)
	Answered(a session.Answer)
	// Closed ends the traces of what the client has not answered.
	Closed()
}

// DefaultRestoreAfter is how long a group waits for a slow control plane before it serves what was
// restored (design.md section 4).
const DefaultRestoreAfter = 2 * time.Second

// restoreAfterAnswer is how long after the first answer of a source the restored resources of other
// types wait for answers of their own, which a Delta server does not send for types that have not
// changed. To serve the last ACKed content for a moment too long does little harm.
const restoreAfterAnswer = 50 * time.Millisecond

// Group serves one group of clients. Make one with New and call Run.
type Group struct {
	cfg         Config
	cache       *cache.Cache
	nodeChanged chan struct{} // holds a value when the node changed
	disconnects disconnects
	// otherNode is since when a client has another Node than the control plane gets; nil while none has.
	otherNode  atomic.Pointer[time.Time]
	created    time.Time
	withRoutes chan *xds.Resource // that may refer to routes
	// failed holds a value when every source has failed, answered when one answered.
	failed, answered chan struct{}
	// withoutSource holds a value when every source has failed, for serveSeed.
	withoutSource chan struct{}
	// cutChanged holds a value when cut has changed.
	cutChanged chan struct{}

	mu   sync.Mutex
	node *corev3.Node
	// current writes to the group. successor, nil for none, will as soon as it is answered.
	current, successor *sourcesRun
	// connected says that a source answers. contact is when that last began or ended; the zero time
	// for never.
	connected bool
	contact   time.Time
	seeding   seeding
	cut       bool
}

// sourcesRun is a run of the sources, with the node that the group had when it began.
type sourcesRun struct {
	upstreams *upstream.Failover
	cancel    context.CancelFunc
	begun     bool          // owned by runSources
	done      chan struct{} // closed when it has ended
}

// New returns a group with an empty cache.
func New(cfg Config) *Group {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Presence = cmp.Or(cfg.Presence, NewPresence(time.Time{}))
	g := &Group{
		cfg:         cfg,
		nodeChanged: make(chan struct{}, 1),
		failed:      make(chan struct{}, 1),
		answered:    make(chan struct{}, 1),
		created:     time.Now(),
		withRoutes:  make(chan *xds.Resource, maxPending),
		node:        withFeatures(cfg.Node),

		withoutSource: make(chan struct{}, 1),
		cutChanged:    make(chan struct{}, 1),
	}
	cfg.Cache.OnContent = g.queueRoutes
	cfg.Cache.Stale = func() bool { return g.Stale() > 0 }
	if cfg.Secrets != nil {
		cfg.Cache.Local = func(typeURL, name string) bool { return typeURL == xds.SecretType && cfg.Secrets.Owns(name) }
	}
	cfg.Cache.OnFallbackEnd = func(why string) {
		g.cfg.Log.Info("fallback ended: newest configuration served again", "why", why)
	}
	cfg.Cache.OnAskAgain = func() {
		g.cfg.Log.Warn("requesting everything again, to confirm what is held back")
	}
	cfg.Cache.OnHeldBackEnd = func(confirmed int) {
		if confirmed > 0 {
			g.cfg.Log.Warn("control plane confirmed the removals: they take effect", "removed", confirmed)
			return
		}
		g.cfg.Log.Info("no removal is held back any more: the control plane has sent the removed resources again")
	}
	cfg.Cache.References = references.Keys
	g.cache = cache.New(cfg.Cache)
	g.current = g.newRun()
	return g
}

func (g *Group) newRun() *sourcesRun {
	f := &sourcesRun{upstreams: g.cfg.Upstreams(), cancel: func() {}, done: make(chan struct{})}
	f.upstreams.Lacking, f.upstreams.Holding = g.cache.AnyMissing, g.cache.Holding
	f.upstreams.Failed = func() {
		wake.Signal(g.failed)
		wake.Signal(g.withoutSource)
	}
	f.upstreams.Connected = func(connected bool) {
		if connected {
			g.takeOver(f)
		}
		g.mu.Lock()
		is := g.current == f
		if is {
			g.connected, g.contact = connected, time.Now()
			if connected {
				g.seeding = seeding{}
			}
		}
		g.mu.Unlock()
		if is {
			g.cache.SetConnected(connected)
			wake.Signal(g.answered)
		}
	}
	return f
}

// Connected reports whether a source answers, or has a stream open while the cache has nothing that
// it could confirm.
func (g *Group) Connected() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.connected
}

// Contact returns when a source last answered: now, if one does and is not stale; the zero time if
// none ever did.
func (g *Group) Contact() time.Time {
	g.mu.Lock()
	upstreams, connected, contact := g.current.upstreams, g.connected, g.contact
	g.mu.Unlock()
	if connected {
		if at := upstreams.Contact(); !at.IsZero() {
			return at
		}
	}
	return contact
}

// SetContact sets when a source last answered the previous agent. It is called before Run.
func (g *Group) SetContact(at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.contact = at
}

// Stale returns the time since the last contact if that is more than MaxStale, so that new clients
// are not served; 0 otherwise.
func (g *Group) Stale() time.Duration {
	contact := g.Contact()
	age := time.Since(contact)
	if g.cfg.MaxStale == 0 || contact.IsZero() || age <= g.cfg.MaxStale {
		return 0
	}
	return age
}

// withFeatures returns the Node that upstreams get: with the client features that the agent has
// whatever its clients have (protocol.md 8.9).
func withFeatures(node *corev3.Node) *corev3.Node {
	node = proto.CloneOf(node)
	for _, f := range []string{xds.FeatureResourceInSotW, xds.FeatureResourceTTL} {
		if !slices.Contains(node.ClientFeatures, f) {
			node.ClientFeatures = append(node.ClientFeatures, f)
		}
	}
	return node
}

func (g *Group) Cache() *cache.Cache { return g.cache }

func (g *Group) upstreams() *upstream.Failover {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.current.upstreams
}

// Node returns the Node that upstreams get. The caller must not change it.
func (g *Group) Node() *corev3.Node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.node
}

// SetNode changes the Node that upstreams get. A Node can be sent only at the beginning of a stream, so
// a second stream is opened, and takes over when it is answered.
func (g *Group) SetNode(node *corev3.Node) {
	g.AdoptNode(node)
	wake.Signal(g.nodeChanged)
}

// AdoptNode changes the Node for future streams to upstreams; open streams go on.
func (g *Group) AdoptNode(node *corev3.Node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.node = withFeatures(node)
}

// Run runs the group until ctx ends; it then returns nil, after every goroutine that it started has
// ended.
func (g *Group) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return g.cache.Run(ctx) })
	eg.Go(func() error { return g.runSources(ctx) })
	eg.Go(func() error { return g.serveRestored(ctx) })
	eg.Go(func() error { return g.serveSeed(ctx) })
	eg.Go(func() error { return g.endStale(ctx) })
	eg.Go(func() error { return g.prefetchRoutes(ctx) })
	if g.cfg.Secrets != nil {
		eg.Go(func() error { return g.cfg.Secrets.Serve(ctx, secrets{g.cache, g.cache.LocalSubscriptions()}) })
	}
	return eg.Wait()
}

// serveRestored serves what was restored: when every source has failed, after RestoreAfter, or soon
// after a source answered.
func (g *Group) serveRestored(ctx context.Context) error {
	after := cmp.Or(g.cfg.RestoreAfter, DefaultRestoreAfter)
	began := time.Now()
	deadline := time.NewTimer(after)
	defer deadline.Stop()
	answered := g.answered
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-answered:
			answered = nil // once
			deadline.Reset(min(restoreAfterAnswer, after-time.Since(began)))
			continue
		case <-g.failed:
		case <-deadline.C:
		}
		g.cache.ServeRestored()
		return nil
	}
}

// freshPoll is long enough for the answers of a reconnected source to come first.
const freshPoll = time.Second

// endStale serves the clients that connected while the cache was too old, when it is not any more.
func (g *Group) endStale(ctx context.Context) error {
	if g.cfg.MaxStale == 0 {
		return nil
	}
	for wake.Sleep(ctx, freshPoll) {
		if g.Stale() == 0 {
			g.cache.EndStale()
		}
	}
	return nil
}

// runSources runs the sources, and new ones beside them when the Node has changed.
func (g *Group) runSources(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	begin := func(f *sourcesRun) {
		ctx, cancel := context.WithCancel(ctx)
		g.mu.Lock()
		f.cancel, f.begun = cancel, true
		g.mu.Unlock()
		eg.Go(func() error {
			defer close(f.done)
			defer cancel()
			return f.upstreams.Run(ctx, writer{g.cache, g})
		})
	}
	cut := g.isCut()
	if !cut {
		begin(g.current)
	}
	for {
		select {
		case <-ctx.Done():
			return eg.Wait()
		case <-g.nodeChanged:
			if cut {
				continue // the next run has the newest Node
			}
		case <-g.cutChanged:
			if before := cut; before != g.isCut() {
				cut = !before
				g.endSources()
				if !cut {
					next := g.newRun()
					g.mu.Lock()
					g.current = next
					g.mu.Unlock()
					begin(next)
				}
			}
			continue
		}
		next := g.newRun()
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

// takeLocks takes and releases the locks of the group but that of its cache, for a watchdog.
func (g *Group) takeLocks() {
	g.mu.Lock()
	runs := []*sourcesRun{g.current, g.successor}
	g.mu.Unlock()
	for _, run := range runs {
		if run != nil {
			run.upstreams.TakeLocks()
		}
	}
	watchdog.Lock(&g.disconnects.mu)
	if t, has := g.cfg.Tracer.(interface{ TakeLocks() }); has {
		t.TakeLocks()
	}
}

// takeOver makes a run the current one, and returns when the one before has ended. It is called before the
// first answer of the run is applied. From the beginning on the run is the one that somebody must end who ends the sources,
// or takes over from it meanwhile.
func (g *Group) takeOver(f *sourcesRun) {
	g.mu.Lock()
	before := g.current
	if before == f || g.successor != f {
		g.mu.Unlock()
		return
	}
	g.current, g.successor = f, nil
	g.mu.Unlock()
	before.cancel()
	<-before.done
}

// Attach opens the view of a stream; it never fails.
func (g *Group) Attach(c downstream.Client) (downstream.View, error) { return g.attach(c), nil }

func (g *Group) attach(c downstream.Client) view {
	v := view{Watch: g.cache.Watch(c.Node.GetId()), cache: g.cache}
	v.Runs(xds.Build(c.Node), c.Process)
	if g.cfg.Tracer != nil {
		v.trace = g.cfg.Tracer.Connected(c)
	}
	switch {
	case c.Node.GetUserAgentName() != xds.EnvoyUserAgent: // it may be short-lived on purpose
		g.cfg.Presence.other()
	case c.Fetch: // it is short
		g.cfg.Presence.poll()
	default:
		g.cfg.Presence.connected()
		if g.cfg.WatchDisconnects {
			g.disconnects.connected(time.Now())
		}
		v.closed = g.envoyDisconnected
	}
	return v
}

func (g *Group) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	if err := g.forwardable(); err != nil {
		return nil, err
	}
	return g.upstreams().Forward(ctx, method)
}

// writer is the group as its sources see it.
type writer struct {
	*cache.Cache
	g *Group
}

var _ upstream.State = writer{}

func (w writer) Node() *corev3.Node { return w.g.Node() }

func (w writer) Apply(u xds.Update, answer func(nack error)) {
	var applied atomic.Bool
	if w.g.cfg.Answered != nil && answer != nil {
		began, call, typeURL := time.Now(), answer, u.Type // the closure must not keep the update in memory
		answer = func(nack error) {
			if applied.Load() { // an answer before that did not wait for a client
				w.g.cfg.Answered(typeURL, time.Since(began))
			}
			call(nack)
		}
	}
	if w.g.cfg.Tracer == nil {
		w.Cache.Apply(u, answer)
		applied.Store(true)
		return
	}
	trace := w.g.cfg.Tracer.Received(u)
	w.ApplyTraced(u, func(nack error) {
		trace.Answered(nack)
		if answer != nil {
			answer(nack)
		}
	}, trace.Numbered)
	applied.Store(true)
	trace.Applied()
}

func (w writer) Subscriptions() upstream.Subscriptions { return w.Cache.Subscriptions() }

// secrets is the group as the maker of certificates sees it.
type secrets struct {
	cache *cache.Cache
	*cache.Subscriptions
}

var _ sds.State = secrets{}

func (s secrets) Publish(made []*xds.Resource, answer func(nack error)) {
	s.cache.Publish(made, answer)
}

func (s secrets) Withdraw(names []string) { s.cache.Withdraw(xds.SecretType, names) }

func (s secrets) Take() (add, drop []string) {
	for _, ch := range s.Subscriptions.Changes() { // of secrets only: nothing else is local
		add, drop = append(add, ch.Subscribe...), append(drop, ch.Unsubscribe...)
	}
	return add, drop
}

// view is the cache as a stream sees it.
type view struct {
	*cache.Watch
	cache  *cache.Cache
	trace  ClientTrace         // nil for none
	closed func(byServer bool) // called when the stream has ended; may be nil
	// departed is called after closed; nil if the group is not in a Set.
	departed func()
}

var _ downstream.View = view{}

func (v view) Begin() (session.View, []xds.Change) { return v.Watch.Begin() }

func (v view) HadWildcard(typeURL string) bool {
	_, had := v.cache.Wildcard(typeURL)
	return had
}

func (v view) Subscribe(in xds.SubscriptionChange) {
	if in.Holds {
		v.Watch.Resume()
	}
	v.Watch.Subscribe(in.Type, in.Wildcard, in.Subscribe, in.Unsubscribe)
}

func (v view) Sent(resp *session.Response, began time.Time) {
	if v.trace != nil {
		v.trace.Sent(resp, began)
	}
}

func (v view) Answer(a session.Answer) {
	if v.trace != nil {
		v.trace.Answered(a)
	}
	if a.NACK {
		v.Watch.Nack(a.Type, a.Revision, a.Error, a.Nacked, a.Suspects)
		return
	}
	v.Watch.Ack(a.Type, a.Acked, a.Removed)
}

func (v view) Progress(p session.Progress) { v.Watch.Progress(p.Type, p.Revision) }

func (v view) Close(end downstream.End) {
	if end.ByServer {
		v.Cut()
	}
	v.Watch.Close(end.Unanswered)
	if v.trace != nil {
		v.trace.Closed()
	}
	if v.closed != nil {
		v.closed(end.ByServer)
	}
	if v.departed != nil {
		v.departed()
	}
}
