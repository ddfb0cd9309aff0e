// Package agent assembles holdfast: it owns the groups of clients, the order in which the parts
// start and stop, and the health that is reported.
//
// It guarantees that the socket is served before anything else is waited for, that the clients of a
// group share one upstream subscription, and that Run returns when everything that it started has
// ended. Package group connects the parts of one group.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/istio"
	"github.com/holdfast-xds/holdfast/agent/probe"
	"github.com/holdfast-xds/holdfast/agent/shadow"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/agent/telemetry"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/reaper"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/failover"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

// Config configures an Agent, which sets State, Log, Observer and most callbacks of its parts' Configs.
type Config struct {
	Version string // of holdfast
	// Node is the Node of Envoy, whose configuration is fetched before Envoy connects. It also completes
	// the Node of a client with the same id. If it is nil, the agent waits for the first client.
	Node *corev3.Node
	// Upstreams are addresses in order of priority: host:port, unix:PATH, dns:///host:port,
	// file:DIR or http(s)://host. At least one, unless there are certificates to serve.
	Upstreams []string
	// Upstream configures each of Upstreams. Its MaxMessage also bounds the requests of clients.
	Upstream upstream.Config
	failover.Timing
	// StartWithProblemsAfter is that of file.Config, for the upstreams that are directories.
	StartWithProblemsAfter time.Duration
	// Group configures each group of clients, of which there are MaxGroups at most; 0 means
	// DefaultMaxGroups.
	Group     group.Config
	MaxGroups int
	// Store configures the last known good on disk. Without a Dir it is in memory only; without
	// an Identity it is that of Node.
	Store        store.Config
	Certificates sds.Config // issued if there are sources or directories
	Seed         SeedConfig
	// Downstream is served on Socket to Peers. REST is a further address, host:port, where REST
	// is served in plaintext; "" for none.
	Downstream downstream.Config
	Socket     downstream.SocketConfig
	Peers      downstream.Peers
	REST       string
	// Envoy is run as a child if it has a command. Otherwise its Admin, if set, is that of an
	// Envoy beside the agent, which is drained on request.
	Envoy envoy.Config
	Admin admin.Config
	// Telemetry is exported with OpenTelemetry's protocol.
	Telemetry telemetry.Config
	// Istio makes the agent stand in for pilot-agent; nil for not. It needs Admin.Health.
	Istio *istio.Config
	// Workload probes the application, whose health is reported to the control plane; nil for not.
	Workload *probe.Config
	// ReadyRequiresUpstream makes an agent not ready that no control plane answers.
	ReadyRequiresUpstream bool
	// Shadow compares what would be served with what an Envoy has that is connected to the control plane directly; then
	// nobody is served, and Socket and REST are not used. nil for a usual agent. New sets its Dump.
	Shadow *shadow.Config
	// Takeover takes over from an agent that serves the socket, if there is one.
	Takeover bool
	// Hurry, if set, ends a drain when it has a value or is closed. Signals are passed on to Envoy.
	Hurry   <-chan struct{}
	Signals <-chan os.Signal
	Log     *slog.Logger
}

// Agent serves one pod. Make one with New and run Run.
type Agent struct {
	cfg     Config
	metrics *admin.Metrics
	events  *events.Log
	// telemetry is nil if none is exported.
	telemetry *telemetry.Telemetry
	server    *downstream.Server
	born      time.Time
	presence  *group.Presence
	keeper    *keeper // nil for memory only
	// certificates is nil if the agent issues none.
	certificates *sds.Manager
	secrets      redact.Finder  // for the output of Envoy
	prober       *probe.Prober  // nil if the application is not probed
	shadow       *shadow.Shadow // nil for an agent that serves
	seeds        publishing
	// rehearsing is held during a live rehearsal, and isCutOff is set during its cut.
	rehearsing sync.Mutex
	isCutOff   atomic.Bool
	life       lifecycle
	watchdog   *watchdog.Watchdog
	orphans    *reaper.Reaper
	// Bound by Run; rest is nil if REST is not served on TCP.
	surface *admin.Server
	socket  *downstream.Socket
	rest    *listener.TCP
	groups  *group.Set

	listening atomic.Bool
}

// New checks the configuration; it does no I/O.
func New(cfg Config) (*Agent, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	file := "" // of the events
	if cfg.Store.Dir != "" {
		file = filepath.Join(cfg.Store.Dir, events.Name)
	}
	log := events.New(file)
	cfg.Log = slog.New(log.Handler(cfg.Log.Handler()))
	if len(cfg.Upstreams) == 0 && len(cfg.Certificates.Sources) == 0 {
		return nil, errors.New("no upstream: name at least one with --upstream, or a source of certificates with --ca")
	}
	if err := cfg.Admin.Check(); err != nil {
		return nil, err
	}
	cfg.MaxGroups = cmp.Or(cfg.MaxGroups, DefaultMaxGroups)
	cfg.Store.Identity = cmp.Or(cfg.Store.Identity, identity(cfg.Node))
	cfg.Store.Logger, cfg.Certificates.Log, cfg.Envoy.Log = cfg.Log, cfg.Log, cfg.Log
	a := &Agent{born: time.Now(), orphans: reaper.New(), metrics: admin.NewMetrics(cfg.Version), events: log}
	cfg.Upstream.Security.Shown = a.metrics.UpstreamCertificate
	cfg.Upstream.Log, cfg.Upstream.Observer = cfg.Log, a.metrics.Upstream()
	if cfg.Istio != nil {
		cfg.Upstream.CheckResource = istio.CheckResource
	}
	cfg.Peers.Log, cfg.Peers.Rejected = cfg.Log, a.metrics.Downstream().PeerRejected
	cfg.Telemetry.Version, cfg.Telemetry.Instance = cfg.Version, cfg.Node.GetId()
	a.telemetry = telemetry.New(cfg.Telemetry, cfg.Log)
	a.cfg = cfg
	// Each group has sources of its own. Their configuration is checked now.
	if _, err := a.sources(nil); err != nil {
		return nil, err
	}
	var err error
	if len(cfg.Certificates.Sources) > 0 || len(cfg.Certificates.SecretDirs) > 0 {
		if a.certificates, err = sds.New(cfg.Certificates); err != nil {
			return nil, err
		}
	}
	a.life.successors, a.life.over = make(chan net.Conn), make(chan struct{})
	if len(cfg.Envoy.Args) > 0 {
		cfg.Envoy.Ready, cfg.Envoy.Orphans = a.servable, a.orphans
		cfg.Envoy.Crashed, cfg.Envoy.Clean = a.crashed, a.cleaned
		if a.life.envoy, err = envoy.New(cfg.Envoy); err != nil {
			return nil, err
		}
	} else if cfg.Envoy.Admin != "" {
		a.life.admin = envoy.NewAdmin(cfg.Envoy.Admin)
	}
	a.prober = a.newProber()
	if cfg.Store.Dir != "" {
		a.keeper = newKeeper(store.New(cfg.Store), len(cfg.Store.Keys) > 0, cfg.Log)
	}
	for _, addr := range cfg.Upstreams {
		a.metrics.Upstream().Known(addr)
	}
	awaited := time.Time{}
	if cfg.Node != nil || len(cfg.Envoy.Args) > 0 {
		awaited = a.born
	}
	a.presence = group.NewPresence(awaited)
	a.groups = a.newGroups()
	a.watchdog = watchdog.New(a.takeLocks)
	if cfg.Admin.Output != nil {
		a.metrics.Register(cfg.Admin.Output)
	}
	a.server = downstream.New(a.serverConfig())
	if cfg.Shadow != nil {
		conf := *cfg.Shadow
		conf.Dump, conf.Connected, conf.Log = envoy.NewAdmin(conf.Admin).ConfigDump, a.answered, cfg.Log
		a.shadow = shadow.New(conf, a.Attach)
	}
	return a, nil
}

func (a *Agent) serverConfig() downstream.Config {
	conf := a.cfg.Downstream
	conf.State, conf.Forward, conf.Register = a, a.Forward, a.registerCSDS
	conf.NodeID, conf.Identifier = a.cfg.Node.GetId(), "holdfast/"+a.cfg.Version
	conf.MaxMessage = a.cfg.Upstream.MaxMessage
	conf.RESTHost, _, _ = net.SplitHostPort(a.cfg.REST)
	conf.Log, conf.Observer, conf.References = a.cfg.Log, a.metrics.Downstream(), references.Keys
	if conf.PassThrough == nil {
		conf.PassThrough = downstream.DefaultPassThrough
	}
	a.metrics.Downstream().PassThrough(conf.PassThrough)
	conf.OnConnections = func(open int) {
		a.metrics.Connections(open)
		if a.cfg.Downstream.OnConnections != nil {
			a.cfg.Downstream.OnConnections(open)
		}
	}
	return conf
}

// Run serves until ctx ends, and then returns nil, or until it fails. The streams of clients end
// first; the clients keep their configuration.
func (a *Agent) Run(ctx context.Context) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	a.surface = a.newSurface(ctx, quit)
	defer a.unbind()
	if err := a.bind(ctx); err != nil {
		if a.keeper != nil {
			a.keeper.abandon()
		}
		return err
	}
	if a.shadow != nil {
		return a.serve(ctx, nil, nil)
	}
	var rest net.Listener
	if a.rest != nil {
		rest = a.rest
	}
	return a.serve(ctx, a.socket, rest)
}

// newSurface makes the admin interface, which stops the agent with quit. ctx ends with the agent.
func (a *Agent) newSurface(ctx context.Context, quit func()) *admin.Server {
	conf := a.cfg.Admin
	conf.State, conf.Metrics, conf.Log = a, a.metrics, a.cfg.Log
	conf.Quit, conf.Takeover = quit, a.Handover
	conf.Changes, conf.Histories, conf.Events, conf.Seeds, conf.Rehearser = a, a, a.events, a, a
	conf.Subscribers = a.server.Subscribers
	conf.Actions = map[string]func(context.Context) error{
		"drain":           a.Drain,
		"undrain":         a.Undrain,
		"hot-restart":     a.HotRestart,
		"resume":          a.Resume,
		"resume-removals": a.ResumeRemovals,
	}
	if a.cfg.Istio != nil {
		conf.Istio = a.newIstio(ctx, quit)
	}
	return admin.New(conf)
}

// newIstio makes what is served in place of pilot-agent. ctx ends with the agent, which quit stops.
func (a *Agent) newIstio(ctx context.Context, quit func()) *istio.Server {
	parts := istio.Parts{
		Own: a.metrics.Gatherer(a), Scraped: a.metrics.Merged, Log: a.cfg.Log,
		Quit:  quit,
		Drain: func() error { return a.Drain(ctx) }, // the client may have gone
	}
	if a.cfg.Envoy.Admin != "" {
		parts.Envoy = envoy.NewAdmin(a.cfg.Envoy.Admin).Prometheus
	}
	a.metrics.Merges(istio.PartNames(), istio.Results())
	return istio.New(*a.cfg.Istio, parts)
}

// serve serves on its listeners until ctx ends; rest may be nil, and both are for a shadow.
func (a *Agent) serve(ctx context.Context, lis, rest net.Listener) error {
	defer close(a.life.over)
	defer a.telemetry.Start(ctx, a.metrics.Gatherer(a))() // before the first group
	// The shutdown begins when ctx ends. If Envoy is the agent's child, it drains and exits while
	// clients are still served.
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	// The groups end after the server, the keeper after the groups, and the admin interface last.
	groups, endGroups := context.WithCancel(context.WithoutCancel(ctx))
	defer endGroups()
	late, endLate := context.WithCancel(context.WithoutCancel(ctx))
	defer endLate()
	keeping, endKeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer endKeeping()
	if a.keeper != nil { // before the first group, which needs it
		if err := a.keeper.open(); err != nil {
			a.cfg.Log.Error("the stored state cannot be opened: the configuration is in memory only until the disk can be used", "err", err)
		}
	}
	defer context.AfterFunc(ctx, func() { a.life.ending.Store(true) })()

	eg, failed := errgroup.WithContext(serving)
	eg.Go(func() error {
		defer endServing()
		if a.life.envoy != nil {
			return a.runEnvoy(ctx, failed)
		}
		a.awaitEnd(ctx, failed)
		return nil
	})
	defer a.attend(ctx, failed, eg)()
	eg.Go(func() error { return a.surface.Run(late) })
	a.events.Restore() // after the directory was opened
	a.cfg.Log.Info("started", "version", a.cfg.Version)
	if a.certificates != nil {
		eg.Go(func() error { return a.certificates.Run(groups) })
	}
	eg.Go(func() error {
		defer endKeeping()
		return a.groups.Run(groups)
	})
	eg.Go(func() error {
		defer endLate()
		if a.keeper == nil {
			<-keeping.Done()
			return nil
		}
		return a.keeper.run(keeping)
	})
	a.prefetch() // before the first client, so that the client joins this group
	a.listening.Store(true)
	eg.Go(func() error {
		defer endGroups()
		defer a.listening.Store(false)
		return a.serveClients(failed, lis, rest)
	})
	recording, endEvents := context.WithCancel(context.WithoutCancel(ctx))
	defer endEvents()
	var recorded sync.WaitGroup
	recorded.Go(func() { _ = a.events.Run(recording) }) // it returns nil
	defer recorded.Wait()
	defer endEvents()
	err := eg.Wait()
	switch exit, ok := errors.AsType[*envoy.ExitError](err); {
	case err == nil:
		a.cfg.Log.Info("stopped")
	case ok && exit.Code == 0:
		a.cfg.Log.Info("stopped, because Envoy has exited by itself")
	default:
		a.cfg.Log.Error("stopped", "err", err)
	}
	return err
}

// attend runs what accompanies the service until serving ends; systemd is told until ctx ends. The returned
// function is called when all of it has ended.
func (a *Agent) attend(ctx, serving context.Context, eg *errgroup.Group) (release func() bool) {
	for _, run := range []func(context.Context){a.watchdog.Run, a.undoDrain, a.orphans.Run, a.keepSockets, a.publishSeeds, a.probe} {
		eg.Go(func() error {
			run(serving)
			return nil
		})
	}
	notifying, endNotifying := context.WithCancel(serving)
	eg.Go(func() error {
		defer endNotifying()
		a.notifySystemd(notifying)
		return nil
	})
	return context.AfterFunc(ctx, endNotifying)
}

// serveClients serves clients until ctx ends; rest may be nil. A shadow is its only client itself.
func (a *Agent) serveClients(ctx context.Context, lis, rest net.Listener) error {
	if a.shadow != nil {
		a.shadow.Run(ctx)
		return nil
	}
	servers, ended := errgroup.WithContext(ctx)
	servers.Go(func() error { return a.server.Serve(ended, lis) })
	if rest != nil {
		servers.Go(func() error { return a.server.ServeREST(ended, rest) })
	}
	return servers.Wait()
}

// withheld logs that removals are held back, or what was emptied is (design.md I10).
func (a *Agent) withheld(typeURL string, withheld, had int, since time.Time) {
	a.cfg.Log.Warn(fmt.Sprint(xds.HeldBack{Type: xds.Short(typeURL), Had: had, HeldBack: withheld, Since: since}, ": clients keep what they have until it confirms that, or `holdfast resume --removals`"),
		"type", xds.Short(typeURL), "withheld", withheld, "had", had)
}

// sources returns the sources of a group with a Node; nil is for sources that open no ADS stream.
func (a *Agent) sources(node *corev3.Node) ([]upstream.Source, error) {
	var out []upstream.Source
	for i, addr := range a.cfg.Upstreams {
		if slices.Contains(a.cfg.Upstreams[:i], addr) {
			return nil, fmt.Errorf("--upstream %s is given twice", redact.MaskURL(addr))
		}
		s, err := a.source(addr, a.healthOf(node))
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (a *Agent) source(addr string, health upstream.Health) (upstream.Source, error) {
	if dir, ok := strings.CutPrefix(addr, "file:"); ok {
		if dir == "" {
			return nil, fmt.Errorf("upstream %q: the directory is missing", addr)
		}
		return file.New(file.Config{Dir: dir, StartWithProblemsAfter: a.cfg.StartWithProblemsAfter, Log: a.cfg.Log}), nil
	}
	conf := a.cfg.Upstream
	conf.Addr, conf.Health = addr, health
	if strings.HasPrefix(addr, "http://") || strings.HasPrefix(addr, "https://") {
		return upstream.NewREST(conf)
	}
	return upstream.NewADS(conf)
}

// DefaultMaxGroups is the maximum number of groups. A pod has a few: of its Envoy, and of processes
// that use xDS themselves. Each costs a stream to the control plane.
const DefaultMaxGroups = 64

func (a *Agent) newGroups() *group.Set {
	return group.NewSet(group.SetConfig{
		Max: a.cfg.MaxGroups, Flag: "--max-groups", Group: a.groupConfig, Log: a.cfg.Log,
		OnCreated: func(m *group.Member) {
			m.Cut(a.isCutOff.Load())
			if a.keeper != nil {
				a.keeper.adopt(m, groupName(m.Key(), a.cfg.Node))
			}
		},
		OnRemoved: func(m *group.Member) {
			if a.keeper != nil {
				a.keeper.leave(m)
			}
		},
	})
}

func (a *Agent) groupConfig(node *corev3.Node) group.Config {
	log := a.cfg.Log.With("node", node.GetId())
	conf := a.cfg.Group
	conf.Node, conf.Log, conf.Answered = node, log, a.metrics.Latency
	conf.Cache.OnChange = func(typeURL, name string, what cache.ChangeKind) {
		a.events.Resource(node.GetId(), typeURL, name, events.Change(what))
	}
	conf.Cache.Ending = func() bool { return a.life.ending.Load() || a.life.leaving.Load() }
	conf.Cache.Guard.CountNamed = node.GetUserAgentName() != xds.EnvoyUserAgent
	conf.Tracer = a.telemetry.Tracer(node.GetId())
	conf.WatchDisconnects, conf.Cache.FallbackEnabled, conf.Presence = a.life.envoy == nil, a.life.envoy != nil, a.presence
	conf.Cache.OnHeldBack, conf.Secrets, conf.Seed = a.withheld, a.certificates, a.seedFor(node)
	conf.Upstreams = func() *upstream.Failover {
		sources, _ := a.sources(node) // New has checked the configuration
		return &upstream.Failover{
			Sources: sources, Timing: a.cfg.Timing, Events: a.metrics.Upstream(), Log: log,
		}
	}
	return conf
}

// prefetch subscribes with the configured node before a client connects.
func (a *Agent) prefetch() {
	if a.cfg.Node == nil {
		return
	}
	node := proto.CloneOf(a.cfg.Node)
	if node.GetUserAgentName() == "" {
		node.UserAgentName = xds.EnvoyUserAgent
	}
	a.groups.Prefetch(node, xds.ClusterType, xds.ListenerType)
}

// Attach opens the view of a stream, as group.Set does.
func (a *Agent) Attach(c downstream.Client) (downstream.View, error) {
	c.Node = completed(c.Node, a.cfg.Node)
	return a.groups.Attach(c)
}

// completed returns the Node of a client, completed from the configured Node, which may be nil: with
// its id, cluster, locality and metadata. The Node of a client with another id is not changed.
func completed(node, configured *corev3.Node) *corev3.Node {
	if configured == nil || node.GetId() != "" && node.GetId() != configured.GetId() {
		return node
	}
	out := &corev3.Node{Cluster: configured.GetCluster(), Metadata: proto.CloneOf(configured.GetMetadata())}
	if node.GetLocality() == nil {
		out.Locality = proto.CloneOf(configured.GetLocality())
	}
	proto.Merge(out, node)
	out.Id = configured.GetId()
	return out
}
