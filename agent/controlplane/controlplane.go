// Package controlplane is the built-in control plane: it serves a directory of files over ADS,
// in SotW and Delta, with the same server and cache as the agent. Every node gets the same
// resources but has a group of its own (package group), so that a NACK of one node does not
// affect the others, and that node continues with what it ACKed. The files are read once for
// all nodes.
//
// It promises for versions, order and warming what the agent promises. It does not generate
// configuration. All methods may be called concurrently; Run may be called once.
package controlplane

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/failover"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

// DefaultMaxNodes is the default limit of nodes. Each node costs memory: a few hundred bytes
// for each resource.
const DefaultMaxNodes = 1024

// linger is how long the group of a node exists after its last client disconnected: an Envoy
// that is restarted after a NACK gets the resources that it had ACKed.
const linger = time.Hour

// noWarning disables the warning of a group that waits for the directory, because the reader of
// the directory warns itself.
const noWarning = 100 * 365 * 24 * time.Hour

// Config configures a ControlPlane.
type Config struct {
	// Version is the version of holdfast.
	Version string
	// Dir contains the resources (package upstream/file).
	Dir string
	// Listen is host:port or unix:PATH.
	Listen string
	// TLSCert and TLSKey are files with the server's certificate chain and key; both or none.
	// With TLSClientCA, clients must present a certificate that leads to one of its
	// certificates.
	TLSCert, TLSKey, TLSClientCA string
	// Admin and Health are as in the agent.
	Admin, Health string
	// StartWithProblemsAfter is that of file.Config.
	StartWithProblemsAfter time.Duration
	// MaxNodes limits the nodes that are served at the same time; 0 selects DefaultMaxNodes.
	MaxNodes int
	Log      *slog.Logger
	// Output is where the log goes, as in admin.Config; nil if that is not known.
	Output *logqueue.Queue
}

// ControlPlane serves a directory. Create it with New and run Run.
type ControlPlane struct {
	cfg       Config
	tls       *tls.Config // nil for plaintext
	directory *directory
	groups    *group.Set
	server    *downstream.Server
	metrics   *admin.Metrics
	started   time.Time
	watchdog  *watchdog.Watchdog
	listening atomic.Bool
}

// New checks the configuration and reads the TLS files.
func New(cfg Config) (*ControlPlane, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.MaxNodes = cmp.Or(cfg.MaxNodes, DefaultMaxNodes)
	if cfg.Dir == "" {
		return nil, errors.New("no directory: name one with --dir")
	}
	if err := checkListen(cfg.Listen, cfg.TLSCert != ""); err != nil {
		return nil, err
	}
	if err := admin.CheckAddrs(cfg.Admin, cfg.Health); err != nil {
		return nil, err
	}
	conf, err := dial.ServerTLS{Cert: cfg.TLSCert, Key: cfg.TLSKey, ClientCA: cfg.TLSClientCA, Log: cfg.Log}.Config()
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{cfg: cfg, tls: conf, metrics: admin.NewMetrics(cfg.Version), started: time.Now()}
	cp.directory = newDirectory(file.Config{Dir: cfg.Dir, StartWithProblemsAfter: cfg.StartWithProblemsAfter, Log: cfg.Log})
	cp.groups = group.NewSet(group.SetConfig{Max: cfg.MaxNodes, Flag: "--max-nodes", Group: cp.groupConfig, Log: cfg.Log})
	cp.server = downstream.New(downstream.Config{
		State:      cp.groups,
		Identifier: "holdfast-controlplane/" + cfg.Version,
		Log:        cfg.Log,
		Observer:   cp.metrics.Downstream(),
		References: references.Keys,
	})
	cp.watchdog = watchdog.New(cp.takeLocks)
	if cfg.Output != nil {
		cp.metrics.Register(cfg.Output)
	}
	return cp, nil
}

// takeLocks takes each lock that serving needs, for the watchdog.
func (cp *ControlPlane) takeLocks(take watchdog.Take) {
	cp.groups.TakeLocks(take)
	take("the streams of clients", cp.server.TakeLocks)
	take("the directory", cp.directory.takeLocks)
	take("the metrics", cp.metrics.TakeLocks)
}

// groupConfig configures the group of a node.
func (cp *ControlPlane) groupConfig(node *corev3.Node) group.Config {
	return group.Config{
		Node: node,
		Upstreams: func() *upstream.Failover {
			return &upstream.Failover{Sources: []upstream.Source{cp.directory}, Timing: failover.Timing{FirstAnswer: noWarning}}
		},
		Cache: cache.Config{Linger: linger},
		Log:   cp.cfg.Log.With("node", node.GetId()),
	}
}

func checkListen(addr string, tls bool) error {
	path, unix := strings.CutPrefix(addr, "unix:")
	_, _, err := net.SplitHostPort(addr)
	switch {
	case unix && path == "":
		return fmt.Errorf("--listen %q: the path is missing", addr)
	case unix && tls:
		return fmt.Errorf("--listen %q: a Unix socket has no TLS: leave out --tls-cert and --tls-key, or listen on host:port", addr)
	case !unix && err != nil:
		return fmt.Errorf("--listen %q: want host:port or unix:PATH", addr)
	}
	return nil
}

// Run serves until ctx ends and then returns nil, or returns an error if it cannot serve.
func (cp *ControlPlane) Run(ctx context.Context) error {
	lis, err := cp.listen()
	if err != nil {
		return err
	}
	defer func() { _ = lis.Close() }()
	cp.cfg.Log.Info("serving xDS", "addr", lis.Addr().String(), "dir", cp.cfg.Dir)
	return cp.serve(ctx, lis)
}

// serve serves on a listener until ctx ends.
func (cp *ControlPlane) serve(ctx context.Context, lis net.Listener) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	surface := admin.New(admin.Config{
		Addr: cp.cfg.Admin, Health: cp.cfg.Health,
		State: cp, Metrics: cp.metrics, Log: cp.cfg.Log, Output: cp.cfg.Output, Quit: quit,
	})
	cp.listening.Store(true)
	defer cp.listening.Store(false)
	// The groups end after the server.
	groups, endGroups := context.WithCancel(context.WithoutCancel(ctx))
	defer endGroups()
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return surface.Run(ctx) })
	eg.Go(func() error {
		cp.watchdog.Run(ctx)
		return nil
	})
	eg.Go(func() error { return cp.directory.failover.Run(ctx, cp.directory) })
	eg.Go(func() error { return cp.groups.Run(groups) })
	eg.Go(func() error {
		defer endGroups()
		return cp.server.Serve(ctx, lis)
	})
	return eg.Wait()
}

func (cp *ControlPlane) listen() (net.Listener, error) {
	if path, ok := strings.CutPrefix(cp.cfg.Listen, "unix:"); ok {
		return downstream.Listen(downstream.SocketConfig{Path: path}, nil)
	}
	lis, err := net.Listen("tcp", cp.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if cp.tls != nil {
		lis = tls.NewListener(lis, cp.tls)
	}
	return lis, nil
}

// Live returns an error if the control plane is deadlocked, which only a restart resolves.
func (cp *ControlPlane) Live() error { return cp.watchdog.Live() }

// Started reports whether clients can connect.
func (cp *ControlPlane) Started() bool { return cp.listening.Load() }

// Ready returns whether the directory was read.
func (cp *ControlPlane) Ready() []admin.Condition {
	return []admin.Condition{admin.Holds("configuration", cp.directory.ready())}
}

// Status returns the state of the nodes and of the files.
func (cp *ControlPlane) Status() admin.Status {
	s := admin.Status{
		Version: cp.cfg.Version, Started: cp.started,
		Streams: cp.server.Streams(),
		Files:   group.FilesOf(cp.directory.files),
	}
	for _, m := range cp.groups.Members() {
		s.Groups = append(s.Groups, m.Status())
	}
	return s
}

// Resources visits the resources of the nodes that the filter admits. While there is no node,
// it visits the resources of the directory, as pending and without a node.
func (cp *ControlPlane) Resources(f admin.Filter) iter.Seq[admin.Resource] {
	if len(cp.groups.Members()) > 0 {
		return cp.groups.Resources(f)
	}
	return func(yield func(admin.Resource) bool) {
		for _, r := range cp.directory.resources() {
			if !f.Admits(r.Type, r.Name) {
				continue
			}
			row := admin.Resource{
				Type: r.Type, Name: r.Name, Source: cp.directory.Name(), Standing: xds.Pending,
				Version: r.Version, Deadline: r.Deadline(), Body: r.Body,
			}
			if !yield(row) {
				return
			}
		}
	}
}
