// Package server joins the snapshot, generation and the sessions: it is the State of a
// downstream.Server, and pushes changes to the proxies that they concern.
//
// It promises that every proxy is served from one snapshot at a time (mesh.md M1), that a slow proxy
// costs one merged change and nobody waits for it (M2), and that a change of endpoints costs
// endpoints only (M3). It does not listen, and does not read configuration itself. Run may be called
// once; all other methods may be called by several goroutines at once.
package server

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/repeats"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/authn"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/push/debounce"
	"github.com/holdfast-xds/holdfast/mesh/push/queue"
	"github.com/holdfast-xds/holdfast/mesh/register"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Config configures a Server.
type Config struct {
	Reader    config.Reader
	Discovery *service.Discovery
	Shards    *service.Shards
	// Domain is the DNS domain of Kubernetes Services, "cluster.local".
	Domain   string
	Debounce debounce.Options
	// Throttle is how many proxies are served at once; 0 means queue.DefaultThrottle.
	Throttle int
	// MaxProxies is how many proxies may be connected; 0 for any number. Polls are not counted.
	MaxProxies int
	// MaxProxiesPerIdentity is how many of them may be of one identity; 0 for any number.
	MaxProxiesPerIdentity int
	Metrics               *Metrics
	// Keys has the keys of issuers of tokens; nil for push.NoKeys.
	Keys push.KeyReader
	// Registrar makes proxies workloads; nil for nobody.
	Registrar Registrar
	// Authn says who clients are; nil goes by their certificates.
	Authn *authn.Authenticator
	Log   *slog.Logger
}

// Registrar makes connected proxies workloads (package register).
type Registrar interface {
	Connect(p *proxy.Proxy, connection uint64)
	Disconnect(p *proxy.Proxy, connection uint64)
	Report(p *proxy.Proxy, connection uint64, healthy bool, reason string)
	Workload(*proxy.Proxy) *register.Workload
}

// maxMissing is how many secrets that a peer does not get are logged in a minute, and linesPerSecond bounds the lines about
// clients that are refused, of one minute and peer each, and about secrets.
const maxMissing, linesPerSecond = 20, 10

// Server serves proxies. Create one with New.
type Server struct {
	cfg     Config
	started time.Time
	source  source

	admission admission
	places    places
	// repeats limits the lines about clients that are refused, and missing those about secrets that they do not get.
	repeats, missing *repeats.Limiter
	failures         rate.Sometimes
	stopped          chan struct{} // closed when Run has ended

	// behindNow, holdingNow and frozenNow count the views that are behind, and whose agents hold something back or are frozen.
	behindNow, holdingNow, frozenNow atomic.Int64

	mu    sync.Mutex
	gen   *generation // nil until Start
	views map[*view]struct{}

	// requests has the changes that the pipeline has not taken in yet.
	requests struct {
		sync.Mutex
		merged []*push.Request
	}
	requested chan struct{}

	proxies struct {
		sync.Mutex
		*queue.Queue[*view]
	}
	queued chan struct{} // wakes one worker

	unsettled chan struct{}  // holds a value when a snapshot needs a further step
	due       *push.Snapshot // the snapshot whose step of a change of modes is over, until the next is taken; under mu

	joins joins

	left chan struct{} // holds a value when proxies have gone since classes were forgotten
}

// source is what snapshots are made of.
type source struct {
	config.Reader
	*service.Discovery
	push.KeyReader
}

// New returns a server that has no snapshot yet.
func New(cfg Config) *Server {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	cfg.Authn = cmp.Or(cfg.Authn, &authn.Authenticator{})
	if cfg.Keys == nil {
		cfg.Keys = push.NoKeys{}
	}
	s := &Server{
		cfg: cfg, started: time.Now(), source: source{cfg.Reader, cfg.Discovery, cfg.Keys},
		admission: newAdmission(), places: places{max: cfg.MaxProxies, share: cfg.MaxProxiesPerIdentity, streams: make(map[place]int), nodes: make(map[string]int)}, repeats: repeats.New(1, linesPerSecond), missing: repeats.New(maxMissing, linesPerSecond),
		failures: rate.Sometimes{First: 10, Interval: time.Second}, stopped: make(chan struct{}),
		views: make(map[*view]struct{}), requested: make(chan struct{}, 1), queued: make(chan struct{}, 1),
		unsettled: make(chan struct{}, 1), joins: newJoins(), left: make(chan struct{}, 1),
	}
	cfg.Metrics.behind, cfg.Metrics.holdingBack, cfg.Metrics.frozen = s.behind, s.holdingBack, s.frozen
	cfg.Metrics.maxProxies.Set(float64(cfg.MaxProxies))
	s.proxies.Queue = queue.New[*view](cmp.Or(cfg.Throttle, queue.DefaultThrottle))
	return s
}

// Start makes the first snapshot. It must be called once the configuration and the registries have
// synced, and before Attach.
func (s *Server) Start() {
	s.requests.Lock()
	s.requests.merged = nil // what was requested until now is part of the first snapshot
	s.requests.Unlock()
	s.joins.forget(s.cfg.Shards)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gen = newGeneration(push.New(s.source, s.cfg.Domain, nil, nil, true), holding{s.cfg.Shards}, nil, nil, s.cfg.Metrics, s.patchesFailed)
}

// Request requests a push. It does not block.
func (s *Server) Request(r *push.Request) {
	s.cfg.Metrics.triggered(r)
	s.requests.Lock()
	s.requests.merged = append(s.requests.merged, r)
	s.requests.Unlock()
	wake.Signal(s.requested)
}

// Run pushes what is requested, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	defer close(s.stopped)
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return s.debounce(ctx) })
	eg.Go(func() error { return s.settle(ctx) })
	eg.Go(func() error { return s.admitJoined(ctx) })
	eg.Go(func() error { return s.forget(ctx) })
	for range runtime.GOMAXPROCS(0) {
		eg.Go(func() error { return s.work(ctx) })
	}
	return eg.Wait()
}

// debounce collects requests, and pushes them when the machine says so.
func (s *Server) debounce(ctx context.Context) error {
	machine := debounce.New(s.cfg.Debounce)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	perform := func(out debounce.Output) {
		for out.Push != nil {
			s.cfg.Metrics.debounced(out.Waited)
			s.push(out.Push)
			if out.AtOnce {
				break
			}
			out = machine.Done(time.Now())
		}
		if !out.Next.IsZero() {
			timer.Reset(time.Until(out.Next))
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			perform(machine.Wake(time.Now()))
		case <-s.requested:
			s.requests.Lock()
			requests := s.requests.merged
			s.requests.merged = nil
			s.requests.Unlock()
			for _, r := range requests {
				perform(machine.Add(time.Now(), r))
			}
		}
	}
}

// push makes a new snapshot if the request is full, and puts the proxies into the queue.
func (s *Server) push(r *push.Request) {
	began := time.Now()
	if r.Full {
		before := s.generation()
		var kinds map[config.Kind]bool
		if !r.Everything() {
			kinds = push.Kinds(r.Configs)
			delete(kinds, push.AuthStep)
		}
		snap := push.New(s.source, s.cfg.Domain, s.step(before.Snapshot(), r), kinds, r.Everything() || len(r.Services) > 0)
		next := newGeneration(snap, holding{s.cfg.Shards}, before, r, s.cfg.Metrics, s.patchesFailed)
		s.mu.Lock()
		s.gen = next
		s.mu.Unlock()
		s.cfg.Metrics.snapshot(time.Since(began), len(s.source.Services()))
		if !snap.Settled() {
			wake.Signal(s.unsettled)
		}
	} else {
		s.generation().endpoints.forget(r.Services)
	}
	now := time.Now()
	s.mu.Lock()
	s.proxies.Lock()
	for v := range s.views {
		s.proxies.Enqueue(now, v, r)
	}
	s.proxies.Unlock()
	s.mu.Unlock()
	wake.Signal(s.queued)
	if r.Full {
		s.joins.pushed(r.Services, r.Everything())
	}
}

// work serves the proxies in the queue.
func (s *Server) work(ctx context.Context) error {
	for {
		s.proxies.Lock()
		e, ok := s.proxies.Next()
		s.proxies.Unlock()
		if !ok {
			select {
			case <-ctx.Done():
				return nil
			case <-s.queued:
			}
			continue
		}
		wake.Signal(s.queued) // there may be another one for another worker
		s.cfg.Metrics.queued(time.Since(e.Since))
		s.serve(e.Proxy, e.Request)
		s.proxies.Lock()
		s.proxies.MarkDone(e.Proxy)
		s.proxies.Unlock()
	}
}

// serve hands a proxy what a request changed for it.
func (s *Server) serve(v *view, r *push.Request) {
	if !r.Full {
		v.endpoints(r)
		return
	}
	gen := s.generation()
	v.mu.Lock()
	who := v.proxy
	v.mu.Unlock()
	if r.Everything() || len(r.Services) > 0 {
		who = who.WithTargets(instancesOf(s.cfg.Discovery, who))
	}
	v.install(gen, r, who)
}

// generation returns the newest generation; nil before Start.
func (s *Server) generation() *generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gen
}

// Attach opens the view of a proxy. It waits while many others connect. The error is a gRPC status:
// UNAVAILABLE before Start and after Run, INVALID_ARGUMENT for a Node that does not say who the proxy is,
// PERMISSION_DENIED for one that says something else than the certificate, RESOURCE_EXHAUSTED for one beyond
// Config.MaxProxies, and CANCELED for one that has gone while it waited.
func (s *Server) Attach(c downstream.Client) (downstream.View, error) {
	who, err := proxy.FromNode(c.Node)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if who, err = s.authenticate(who, c); err != nil {
		return nil, err
	}
	at := placeOf(who, c.Peer)
	if !c.Fetch {
		switch ok, mine := s.places.take(at); {
		case mine:
			return nil, s.refuseShare(at, c.Peer)
		case !ok:
			return nil, s.refuseFull(c.Peer)
		}
	}
	leave := func() {
		if !c.Fetch {
			s.places.leave(at)
		}
	}
	who.VirtualHosts = who.VirtualHosts && c.Form == xds.Delta && who.Type == proxy.Sidecar // SotW has no VHDS
	services := 0
	if gen := s.generation(); gen != nil {
		services = len(gen.Snapshot().Services())
	}
	turn, err := s.admission.admit(services, s.stopped, c.Gone)
	if err != nil {
		leave()
		return nil, err
	}
	unregister := leave
	if s.cfg.Registrar != nil && !c.Fetch {
		s.cfg.Registrar.Connect(who, c.Stream)
		unregister = func() {
			s.cfg.Registrar.Disconnect(who, c.Stream)
			leave()
		}
	}
	who = who.WithTargets(instancesOf(s.cfg.Discovery, who))
	v := &view{
		turn: turn, unregister: unregister, gone: c.Gone,
		server: s, stream: c.Stream, peer: c.Peer, form: c.Form, since: time.Now(), proxy: who,
		changed: make(chan struct{}, 1), types: make(map[string]*viewType), nacks: make(map[string]uint64),
	}
	s.mu.Lock()
	gen := s.gen
	if gen != nil && !c.Fetch {
		s.views[v] = struct{}{}
		s.cfg.Metrics.connected(len(s.views))
	}
	s.mu.Unlock()
	if gen == nil {
		turn.end()
		unregister()
		return nil, errNotRead
	}
	if !v.install(gen, nil, who) {
		s.detach(v)
		return nil, errGone
	}
	turn.begin()
	return v, nil
}

// Identify returns who a client is; nil if it proves nothing and need not. The error is a gRPC status.
func (s *Server) Identify(ctx context.Context, c downstream.Credentials) (*proxy.Identity, error) {
	domains, err := s.TrustDomains()
	if err != nil {
		return nil, err
	}
	id, err := s.cfg.Authn.Identify(ctx, c, domains)
	if err != nil {
		return nil, s.refuse(peerOf(ctx), status.Code(err), status.Convert(err).Message())
	}
	return id, nil
}

// authenticate returns the proxy with the identity of its client, which Identify has found; it may be none.
func (s *Server) authenticate(who *proxy.Proxy, c downstream.Client) (*proxy.Proxy, error) {
	domains, err := s.TrustDomains()
	if err != nil {
		return nil, err
	}
	id, _ := c.Identity.(*proxy.Identity)
	if who, err = who.Authenticate(id, domains); err != nil {
		return nil, s.refuse(c.Peer, codes.PermissionDenied, err.Error())
	}
	return who, nil
}

// refuse counts a client that is not served, and logs one of its peer each minute: anybody can make them.
func (s *Server) refuse(peer string, code codes.Code, why string) error {
	err := status.Error(code, why)
	s.refused(peer, code, err)
	return err
}

func (s *Server) refused(peer string, code codes.Code, err error) {
	s.cfg.Metrics.refused.WithLabelValues(code.String()).Inc()
	s.repeats.Log(s.cfg.Log, slog.LevelWarn, code.String()+" "+repeats.Peer(peer), "a client is refused", "peer", peer, "code", code.String(), "err", status.Convert(err).Message())
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// TrustDomains returns the trust domain of the mesh and its aliases; UNAVAILABLE before the configuration was
// read.
func (s *Server) TrustDomains() ([]string, error) {
	gen := s.generation()
	if gen == nil {
		return nil, errNotRead
	}
	mesh := gen.Snapshot().Mesh
	return append([]string{mesh.GetTrustDomain()}, mesh.GetTrustDomainAliases()...), nil
}

var errNotRead = status.Error(codes.Unavailable, "the configuration has not been read yet")

// detach forgets the view of a stream that ended.
func (s *Server) detach(v *view) {
	v.turn.end()
	v.unregister()
	s.mu.Lock()
	delete(s.views, v)
	s.cfg.Metrics.connected(len(s.views))
	s.mu.Unlock()
	s.proxies.Lock()
	s.proxies.Remove(v)
	s.proxies.Unlock()
	v.mu.Lock()
	if !v.closed {
		v.closed = true
		v.caughtUp()
		s.countReport(v.report, -1)
	}
	v.mu.Unlock()
	wake.Signal(s.left)
}

// behind returns how many proxies have not answered a change yet.
func (s *Server) behind() float64 { return float64(s.behindNow.Load()) }

// holdingBack returns how many proxies' agents hold something back.
func (s *Server) holdingBack() float64 { return float64(s.holdingNow.Load()) }

// frozen returns how many connected proxies have an agent in which something is frozen.
func (s *Server) frozen() float64 { return float64(s.frozenNow.Load()) }

// Proxies returns the connected proxies, in the order in which they connected.
func (s *Server) Proxies() []ProxyStatus {
	s.mu.Lock()
	views := make([]*view, 0, len(s.views))
	for v := range s.views {
		views = append(views, v)
	}
	s.mu.Unlock()
	out := make([]ProxyStatus, 0, len(views))
	for _, v := range views {
		out = append(out, v.status())
	}
	slices.SortFunc(out, func(a, b ProxyStatus) int { return cmp.Compare(a.Stream, b.Stream) })
	return out
}

// ConfigChanged requests the push of a changed document. Documents that registries read become
// changes of services, and are not pushed themselves.
func (s *Server) ConfigChanged(e config.Event) {
	key := e.Key()
	r := &push.Request{Full: true, Start: time.Now(), Configs: map[config.Key]struct{}{key: {}}, Reasons: map[push.Reason]int{push.ConfigUpdate: 1}}
	switch key.Kind {
	case config.MeshConfig:
		r.Configs, r.Reasons = nil, map[push.Reason]int{push.GlobalUpdate: 1}
	case config.MeshNetworks, config.Service, config.Node: // of the gateway of a network
		r.Configs, r.Reasons = nil, map[push.Reason]int{push.NetworksUpdate: 1}
	case config.Secret:
		r.Reasons = map[push.Reason]int{push.SecretUpdate: 1}
	}
	s.Request(r)
}

// ServiceChanged requests the push of a service whose definition changed.
func (s *Server) ServiceChanged(e service.ServiceEvent) {
	s.Request(&push.Request{
		Full: true, Start: time.Now(), Configs: map[config.Key]struct{}{{Kind: config.Service, Namespace: e.Key().Namespace, Name: string(e.Key().Hostname)}: {}},
		Services: map[push.ServiceKey]struct{}{e.Key(): {}}, Reasons: map[push.Reason]int{push.ServiceUpdate: 1},
	})
}

// EndpointsChanged requests the push of changed endpoints. Those that are part of clusters or of
// listeners need a full push.
func (s *Server) EndpointsChanged(key service.Key, change service.Change) {
	if change == service.NoChange {
		return
	}
	r := &push.Request{
		Start: time.Now(), Services: map[push.ServiceKey]struct{}{key: {}}, Reasons: map[push.Reason]int{push.EndpointUpdate: 1},
	}
	svc := s.cfg.Discovery.Service(key)
	apart := svc != nil && svc.Resolution == service.ClientSide && !svc.Headless
	if change == service.FullPush {
		s.joins.add(key, s.cfg.Shards, apart)
	}
	if svc != nil && !apart {
		change, r.Reasons = service.FullPush, map[push.Reason]int{push.HeadlessEndpointUpdate: 1}
	}
	if change == service.FullPush {
		r.Full = true
		r.Configs = map[config.Key]struct{}{{Kind: config.Service, Namespace: key.Namespace, Name: string(key.Hostname)}: {}}
	}
	s.Request(r)
}
