// Package agent assembles holdfast: it owns the groups of clients, the order in
// which the parts start and stop, and what is said of their health.
//
// It promises that the socket is there before anything else is waited for, that
// clients of one kind share one upstream subscription, and that Run returns when
// everything it started has ended. The parts do not know one another; package
// group connects those of one kind of client.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/reaper"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// Config configures an Agent.
type Config struct {
	// Version is holdfast's own, for status and control_plane.identifier.
	Version string
	// Upstreams are addresses in order of priority: host:port, unix:PATH,
	// dns:///host:port, file:DIR or http(s)://host. At least one, unless there are
	// certificates to serve.
	Upstreams    []string
	UpstreamForm xds.Form
	// RESTRefresh is the pause between two polls of an http(s):// upstream; 0 for
	// the default.
	RESTRefresh time.Duration
	Security    dial.Security
	// Headers is metadata of every upstream stream.
	Headers map[string]string
	// MaxMessage bounds a message from either side, in bytes; 0 for the default.
	MaxMessage int
	// AckTimeout bounds how long a control plane waits for its ACK; 0 for the
	// default.
	AckTimeout time.Duration
	Socket     downstream.SocketConfig
	// AllowUIDs and AllowGIDs are who may use the socket besides the agent's own
	// uid; both empty: the group of the socket, if it names one (downstream.Peers).
	AllowUIDs, AllowGIDs []uint32
	// REST is a further address, host:port, where REST is served in plaintext; ""
	// for none. RESTHold is how long a poll waits for a change.
	REST     string
	RESTHold time.Duration
	// PassThrough lists the gRPC services that are passed through to the upstream, by their full
	// names; nil for downstream.DefaultPassThrough, empty for none.
	PassThrough []string
	// Limits bound what clients may cost; MaxResources and MaxBytes what one
	// control plane may make the agent hold for one kind of client. Zeros take the
	// defaults.
	Limits       downstream.Limits
	MaxResources int
	MaxBytes     int64
	// Node is who Envoy will say it is, so that its configuration can be fetched
	// before it asks, and fills what an Envoy with that id leaves out; nil to wait
	// for what it says.
	Node *corev3.Node
	// MaxGroups is how many kinds of clients are served at once; 0 for DefaultMaxGroups.
	MaxGroups int
	// Linger is how long the subscriptions of a gone client are kept; 0 for the
	// default.
	Linger time.Duration
	// StateDir is where the last known good is kept; "" for memory only.
	// StateIdentity says whose it is, "" to take it from Node; StateKeys, of 32 bytes
	// each, encrypt it: the first one writes, all of them read.
	StateDir, StateIdentity string
	StateKeys               [][]byte
	// RestoreAfter is when at the latest what was restored is served though no
	// upstream has answered; MaxStale how long after the last contact with one who
	// comes anew is served, 0 for ever.
	RestoreAfter, MaxStale time.Duration
	// FailoverAfter is how long an upstream may be away before the next takes over
	// though nothing is missing; 0 for the default.
	FailoverAfter time.Duration
	// ReconnectSpread is over how long the reconnects of many agents to an upstream that is back
	// are spread; 0 for not at all.
	ReconnectSpread time.Duration
	// KeepaliveTime is how often an ADS upstream is pinged that says nothing, KeepaliveTimeout how
	// long its answer may take; 0 for the defaults.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// StaleAfter is how long an upstream may say nothing before a second stream to
	// it is tried; 0 for the default.
	StaleAfter time.Duration
	// FallbackFor is how long resources are held back with which Envoy, as the agent's
	// child, crashed three times; 0 for the default.
	FallbackFor time.Duration
	// HoldTTL lists the types, by URL, whose TTLs are not enforced.
	HoldTTL map[string]bool
	// Certificates are made by the agent; without sources and directories none are.
	Certificates sds.Config
	// Guard holds removals back that look like an accident.
	Guard cache.Guard
	// Admin and Health are addresses: unix:PATH, host:port, or "" for none.
	Admin, Health string
	// AdminReaderUIDs and AdminReaderGIDs may read what Admin serves, where that is a Unix
	// socket. All else is for the agent's own user and root.
	AdminReaderUIDs, AdminReaderGIDs []uint32
	// Pprof serves profiles on Admin, which must be a Unix socket then.
	Pprof bool
	// Envoy is run as a child if it has a command; otherwise its Admin, if set, is
	// that of the Envoy beside the agent, which is drained when that is asked for.
	Envoy envoy.Config
	// ReadyRequiresUpstream makes an agent without a control plane not ready, though
	// it serves what it has.
	ReadyRequiresUpstream bool
	// Hurry, if set, ends a drain when it has a value or is closed. Signals are passed on to Envoy.
	Hurry   <-chan struct{}
	Signals <-chan os.Signal
	// Takeover takes over from an agent that serves the socket, if there is one.
	Takeover bool
	// OnConnections, if set, is told how many connections of clients there are, each time that
	// one comes or goes.
	OnConnections func(open int)
	Log           *slog.Logger
}

// Agent serves one pod. Make one with New and run Run.
type Agent struct {
	cfg     Config
	metrics *admin.Metrics
	server  *downstream.Server
	born    time.Time
	keeper  *keeper // nil for memory only
	// certificates is nil where none are made.
	certificates *sds.Manager
	// secrets finds what must not be written of what Envoy says.
	secrets redact.Finder
	life    lifecycle
	orphans *reaper.Reaper
	// What Run has bound: rest is nil where it is not served.
	surface *admin.Server
	socket  *downstream.Socket
	rest    *listener.TCP
	// dial replaces the connections to ADS upstreams in tests.
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// groups are those of all kinds of clients.
	groups *group.Set

	mu        sync.Mutex
	listening bool
}

// New checks the configuration; it does no I/O.
func New(cfg Config) (*Agent, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Upstreams) == 0 && len(cfg.Certificates.Sources) == 0 {
		return nil, errors.New("no upstream: name at least one with --upstream, or make certificates with --ca")
	}
	if err := (admin.Config{Addr: cfg.Admin, Health: cfg.Health, Pprof: cfg.Pprof}).Check(); err != nil {
		return nil, err
	}
	if cfg.MaxGroups == 0 {
		cfg.MaxGroups = DefaultMaxGroups
	}
	a := &Agent{
		cfg:     cfg,
		born:    time.Now(),
		orphans: reaper.New(),
	}
	// The sources are made anew for each group; what is wrong with them is said
	// now.
	if _, err := a.sources(); err != nil {
		return nil, err
	}
	if len(cfg.Certificates.Sources) > 0 || len(cfg.Certificates.SecretDirs) > 0 {
		cfg.Certificates.Log = cfg.Log
		var err error
		if a.certificates, err = sds.New(cfg.Certificates); err != nil {
			return nil, err
		}
	}
	a.life.successors, a.life.over = make(chan net.Conn), make(chan struct{})
	if len(cfg.Envoy.Args) > 0 {
		cfg.Envoy.Log, cfg.Envoy.Ready, cfg.Envoy.Orphans = cfg.Log, a.servable, a.orphans
		cfg.Envoy.Crashed, cfg.Envoy.Clean = a.crashed, a.cleaned
		var err error
		if a.life.envoy, err = envoy.New(cfg.Envoy); err != nil {
			return nil, err
		}
	} else if cfg.Envoy.Admin != "" {
		a.life.admin = envoy.NewAdmin(cfg.Envoy.Admin)
	}
	if cfg.StateDir != "" {
		if cfg.StateIdentity == "" {
			a.cfg.StateIdentity = identity(cfg.Node)
		}
		a.keeper = newKeeper(store.New(store.Config{
			Dir: cfg.StateDir, Identity: a.cfg.StateIdentity, Keys: cfg.StateKeys, Logger: cfg.Log,
		}), len(cfg.StateKeys) > 0, cfg.Log)
	}
	a.metrics = admin.NewMetrics(cfg.Version)
	a.cfg.Security.Shown = a.metrics.UpstreamCertificate
	if a.cfg.PassThrough == nil {
		a.cfg.PassThrough = downstream.DefaultPassThrough
	}
	a.metrics.Downstream().PassThrough(a.cfg.PassThrough)
	for _, addr := range a.cfg.Upstreams {
		a.metrics.Upstream().Known(addr)
	}
	a.groups = a.newGroups()
	a.server = downstream.New(downstream.Config{
		State:      a,
		NodeID:     cfg.Node.GetId(),
		Identifier: "holdfast/" + cfg.Version,
		MaxMessage: cfg.MaxMessage,
		RESTHold:   cfg.RESTHold,
		RESTHost:   hostOf(cfg.REST),
		Limits:     cfg.Limits,
		Forward:    a,

		PassThrough: a.cfg.PassThrough,

		Register: a.registerCSDS,
		Log:      cfg.Log,

		OnConnections: func(open int) {
			a.metrics.Connections(open)
			if cfg.OnConnections != nil {
				cfg.OnConnections(open)
			}
		},
		Observer: a.metrics.Downstream(),
	})
	return a, nil
}

// Run serves until ctx ends and returns nil then, or returns why it cannot. The
// streams of clients are cut first; they keep what they have.
func (a *Agent) Run(ctx context.Context) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	a.surface = a.newSurface(quit)
	defer a.unbind()
	if err := a.bind(ctx); err != nil {
		if a.keeper != nil {
			a.keeper.abandon()
		}
		return err
	}
	if a.rest != nil {
		return a.serve(ctx, listener.WarnWhenFull(a.socket, a.cfg.Log), listener.WarnWhenFull(a.rest, a.cfg.Log))
	}
	return a.serve(ctx, listener.WarnWhenFull(a.socket, a.cfg.Log), nil)
}

// newSurface makes the admin surface, which ends the agent with quit.
func (a *Agent) newSurface(quit func()) *admin.Server {
	return admin.New(admin.Config{
		Addr: a.cfg.Admin, Health: a.cfg.Health, Pprof: a.cfg.Pprof,
		ReaderUIDs: a.cfg.AdminReaderUIDs, ReaderGIDs: a.cfg.AdminReaderGIDs,
		State: a, Metrics: a.metrics, Log: a.cfg.Log, Quit: quit,
		Actions: map[string]func(context.Context) error{
			"drain":       a.Drain,
			"undrain":     a.Undrain,
			"hot-restart": a.HotRestart,
			"resume":      a.Resume,
		},
		Takeover: a.Handover,
	})
}

// serve serves on listeners, of which rest may be nil, until ctx ends.
func (a *Agent) serve(ctx context.Context, lis, rest net.Listener) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	defer close(a.life.over)
	if a.surface == nil {
		a.surface = a.newSurface(quit)
	}
	// The end begins with ctx; Envoy, if it is the agent's child, drains and ends
	// before anybody is served no more.
	serving, endServing := context.WithCancel(context.WithoutCancel(ctx))
	defer endServing()
	// The groups outlive the server, what is kept of them the groups, and the admin
	// surface all.
	groups, endGroups := context.WithCancel(context.WithoutCancel(ctx))
	defer endGroups()
	late, endLate := context.WithCancel(context.WithoutCancel(ctx))
	defer endLate()
	keeping, endKeeping := context.WithCancel(context.WithoutCancel(ctx))
	defer endKeeping()
	if a.keeper != nil && !a.keeper.isOpen() { // before the first group, which would begin with nothing
		if err := a.keeper.open(); err != nil {
			a.cfg.Log.Error("nothing is restored; what is held is kept in memory only until the disk can be used", "err", err)
		}
	}

	defer context.AfterFunc(ctx, a.end)()

	eg, failed := errgroup.WithContext(serving)
	eg.Go(func() error {
		defer endServing()
		if a.life.envoy != nil {
			return a.runEnvoy(ctx, failed)
		}
		a.awaitEnd(ctx, failed)
		return nil
	})
	eg.Go(func() error { return a.watch(failed) })
	eg.Go(func() error { a.undoDrain(failed); return nil })
	eg.Go(func() error { a.orphans.Run(failed); return nil })
	eg.Go(func() error { return a.surface.Run(late) })
	if a.socket != nil {
		eg.Go(func() error { return a.keepSockets(failed) })
	}
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
	if a.cfg.Node != nil {
		// Before the first client, which would otherwise have a group of its own.
		a.prefetch()
	}
	a.mu.Lock()
	a.listening = true
	a.mu.Unlock()
	eg.Go(func() error {
		defer endGroups()
		defer a.stop()
		servers, ended := errgroup.WithContext(failed)
		servers.Go(func() error { return a.server.Serve(ended, lis) })
		if rest != nil {
			servers.Go(func() error { return a.server.ServeREST(ended, rest) })
		}
		return servers.Wait()
	})
	if err := eg.Wait(); err != nil {
		if exit, ok := errors.AsType[*envoy.ExitError](err); ok && exit.Code == 0 {
			a.cfg.Log.Info("stopped: Envoy has ended by itself")
		} else {
			a.cfg.Log.Error("stopped", "err", err)
		}
		return err
	}
	a.cfg.Log.Info("stopped")
	return nil
}

// hostOf returns the host of an address host:port; "" for none.
func hostOf(addr string) string {
	host, _, _ := net.SplitHostPort(addr)
	return host
}

// stop notes that nobody is served any more.
func (a *Agent) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listening = false
}

// withheld tells of removals that were held back (design.md I10).
func (a *Agent) withheld(typeURL string, withheld, held int) {
	a.cfg.Log.Error("the control plane removes so much that it looks like an accident: these removals, and those of what goes with them, are held back until --removal-confirm-after has passed and the control plane, asked again, confirms them",
		"type", xds.Short(typeURL), "withheld", withheld, "held", held)
}

// sources makes the upstreams, in order of priority.
func (a *Agent) sources() ([]upstream.Source, error) {
	seen := make(map[string]bool)
	var out []upstream.Source
	for _, addr := range a.cfg.Upstreams {
		if seen[addr] {
			return nil, fmt.Errorf("--upstream %s is given twice", redact.MaskURL(addr))
		}
		seen[addr] = true
		s, err := a.source(addr)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}
