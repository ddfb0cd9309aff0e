// Package controlplane is the built-in control plane: a directory of files served
// over ADS, SotW and Delta, by the agent's own parts assembled in another way.
// Every client sees the same.
//
// It is small, but real: what the agent promises of versions, order and warming
// holds here too, since the same server and the same state serve it. It does not
// generate configuration, and it does not know one client from another.
package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"os"
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
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

// linger is how long the names of a gone client are remembered. Here nothing is
// asked for on their behalf, so that they would only take room.
const linger = time.Second

// Config configures a ControlPlane.
type Config struct {
	// Version is holdfast's own.
	Version string
	// Dir holds the resources (package upstream/file).
	Dir string
	// Listen is host:port or unix:PATH.
	Listen string
	// TLSCert and TLSKey are files with the server's certificate chain and key;
	// both or none. With TLSClientCA, clients must show a certificate that leads
	// to one of it.
	TLSCert, TLSKey, TLSClientCA string
	// Admin and Health are as in the agent.
	Admin, Health string
	Log           *slog.Logger
}

// ControlPlane serves a directory. Make one with New and run Run.
type ControlPlane struct {
	cfg       Config
	tls       *tls.Config // nil for plaintext
	group     *group.Group
	source    *file.Source
	server    *downstream.Server
	metrics   *admin.Metrics
	born      time.Time
	listening atomic.Bool
}

// New checks the configuration and reads the TLS files.
func New(cfg Config) (*ControlPlane, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dir == "" {
		return nil, errors.New("no directory: name one with --dir")
	}
	if err := checkListen(cfg.Listen, cfg.TLSCert != ""); err != nil {
		return nil, err
	}
	if err := admin.CheckAddrs(cfg.Admin, cfg.Health); err != nil {
		return nil, err
	}
	conf, err := transport(cfg)
	if err != nil {
		return nil, err
	}
	cp := &ControlPlane{cfg: cfg, tls: conf, metrics: admin.NewMetrics(cfg.Version), born: time.Now()}
	cp.source = file.New(file.Config{Dir: cfg.Dir, Logger: cfg.Log})
	cp.group = group.New(group.Config{
		Node: &corev3.Node{Id: "controlplane"},
		Upstreams: func() *upstream.Failover {
			return &upstream.Failover{Sources: []upstream.Source{cp.source}, Log: cfg.Log}
		},
		Cache: cache.Config{Linger: linger},
	})
	cp.server = downstream.New(downstream.Config{
		State:      cp.group,
		Identifier: "holdfast-controlplane/" + cfg.Version,
		Log:        cfg.Log,
		Observer:   cp.metrics.Downstream(),
	})
	return cp, nil
}

func checkListen(addr string, tls bool) error {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		if path == "" {
			return fmt.Errorf("--listen %q: the path is missing", addr)
		}
		if tls {
			return fmt.Errorf("--listen %q: a Unix socket has no TLS: leave out --tls-cert and --tls-key, or listen on host:port", addr)
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("--listen %q: want host:port or unix:PATH", addr)
	}
	return nil
}

// transport reads the TLS files; nil for plaintext.
func transport(cfg Config) (*tls.Config, error) {
	if cfg.TLSCert == "" && cfg.TLSKey == "" {
		if cfg.TLSClientCA != "" {
			return nil, errors.New("--tls-client-ca needs --tls-cert and --tls-key")
		}
		return nil, nil
	}
	pair, err := dial.KeyPair(cfg.TLSCert, cfg.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if cfg.TLSClientCA != "" {
		pem, err := userfile.Read(cfg.TLSClientCA)
		if err != nil {
			return nil, fmt.Errorf("--tls-client-ca: %w", err)
		}
		conf.ClientAuth = tls.RequireAndVerifyClientCert
		conf.ClientCAs = x509.NewCertPool()
		if !conf.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--tls-client-ca: %s holds no PEM certificate", cfg.TLSClientCA)
		}
	}
	return conf, nil
}

// Run serves until ctx ends and returns nil then, or returns why it cannot.
func (cp *ControlPlane) Run(ctx context.Context) error {
	if _, err := os.ReadDir(cp.cfg.Dir); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
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
		State: cp, Metrics: cp.metrics, Log: cp.cfg.Log, Quit: quit,
	})
	cp.listening.Store(true)
	defer cp.listening.Store(false)
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return surface.Run(ctx) })
	eg.Go(func() error { return cp.group.Run(ctx) })
	eg.Go(func() error { return cp.server.Serve(ctx, lis) })
	return eg.Wait()
}

func (cp *ControlPlane) listen() (net.Listener, error) {
	if path, ok := strings.CutPrefix(cp.cfg.Listen, "unix:"); ok {
		return downstream.Listen(downstream.SocketConfig{Path: path})
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

var _ admin.State = (*ControlPlane)(nil)

// Live returns nil: a control plane that answers is alive.
func (cp *ControlPlane) Live() error { return nil }

// Started reports whether clients can connect.
func (cp *ControlPlane) Started() bool { return cp.listening.Load() }

// Ready returns whether the directory was read.
func (cp *ControlPlane) Ready() []admin.Condition {
	c := admin.Condition{Name: "configuration"}
	c.OK, c.Reason = cp.group.HasConfiguration()
	return []admin.Condition{c}
}

// Status returns what the control plane knows.
func (cp *ControlPlane) Status() admin.Status {
	return admin.Status{
		Version: cp.cfg.Version, Started: cp.born,
		Groups:  []admin.Group{cp.group.Status()},
		Streams: group.Streams(cp.server),
		Files:   cp.group.Files(),
	}
}

// Resources visits what the directory holds and the filter admits.
func (cp *ControlPlane) Resources(f admin.Filter) iter.Seq[admin.Resource] {
	return cp.group.Resources(f)
}
