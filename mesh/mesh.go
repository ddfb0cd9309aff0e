// Package mesh is the control plane: it joins the configuration, the registries of services and the
// server of proxies (mesh.md). Environment is Pilot's word for that.
//
// It promises that nobody is answered before the configuration was read once (M8), and that a
// configuration that is lost later changes nothing that is served. It does not make certificates.
// An Environment is run once; its other methods may be called by several goroutines at once.
package mesh

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/dir"
	"github.com/holdfast-xds/holdfast/mesh/push/debounce"
	"github.com/holdfast-xds/holdfast/mesh/server"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// syncPoll is how often Run looks whether the configuration has synced.
const syncPoll = 10 * time.Millisecond

// Config configures an Environment.
type Config struct {
	// Version is the version of holdfast-mesh.
	Version string
	// Dir contains the documents (package dir).
	Dir string
	// Listen is host:port of the xDS server in plaintext, TLSListen that of the one with TLS, Admin
	// that of metrics and status; "" for none.
	Listen, TLSListen, Admin string
	// TLSCert and TLSKey are files with the server's certificate chain and key. With TLSClientCA,
	// clients must present a certificate that leads to one of its certificates.
	TLSCert, TLSKey, TLSClientCA string
	// Domain is the DNS domain of Kubernetes Services; "" means cluster.local.
	Domain string
	// Cluster is the id of the cluster whose Services the documents describe; "" for none.
	Cluster  string
	Debounce debounce.Options
	// Throttle is how many proxies are served at once; 0 means queue.DefaultThrottle.
	Throttle int
	Log      *slog.Logger
}

// Environment is a control plane. Create one with New.
type Environment struct {
	cfg       Config
	tls       *tls.Config // nil for none
	config    *dir.Source
	discovery *service.Discovery
	server    *server.Server
	xds       *downstream.Server
	metrics   *prometheus.Registry
	listening atomic.Bool
}

// New checks the configuration and reads the TLS files.
func New(cfg Config) (*Environment, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Domain = cmp.Or(cfg.Domain, config.DefaultDomain)
	switch {
	case cfg.Dir == "":
		return nil, errors.New("no configuration: name a directory of documents with --config")
	case cfg.Listen == "" && cfg.TLSListen == "":
		return nil, errors.New("nothing to listen on: set --listen or --tls-listen")
	case cfg.TLSListen != "" && cfg.TLSCert == "":
		return nil, errors.New("--tls-listen needs --tls-cert and --tls-key")
	}
	if err := checkAddresses(cfg); err != nil {
		return nil, err
	}
	conf, err := transport(cfg)
	if err != nil {
		return nil, err
	}
	e := &Environment{cfg: cfg, tls: conf, config: dir.New(cfg.Dir, cfg.Log), metrics: prometheus.NewRegistry()}
	e.assemble()
	return e, nil
}

// assemble joins the registries and the server. Whatever a handler is called for is in the copy of
// the configuration, and in the registries that were registered before, when it is called.
func (e *Environment) assemble() {
	shards := &service.Shards{}
	options := service.Options{
		Cluster: e.cfg.Cluster, Domain: e.cfg.Domain, Shards: shards,
		OnService:   func(ev service.ServiceEvent) { e.server.ServiceChanged(ev) },
		OnEndpoints: func(key service.Key, change service.Change) { e.server.EndpointsChanged(key, change) },
		Report: func(c *config.Config, err error) {
			e.cfg.Log.Warn("part of a document is not used", "name", c.Key.String(), "err", err)
		},
	}
	e.discovery = e.registries(e.config, options)
	metrics := server.NewMetrics(e.metrics)
	e.server = server.New(server.Config{
		Reader: e.config, Discovery: e.discovery, Shards: shards, Domain: e.cfg.Domain,
		Debounce: e.cfg.Debounce, Throttle: e.cfg.Throttle, Metrics: metrics, Log: e.cfg.Log,
	})
	for _, kind := range []config.Kind{
		config.VirtualService, config.DestinationRule, config.Gateway, config.Sidecar, config.PeerAuthentication,
		config.Ingress, config.Secret, config.MeshConfig,
	} {
		e.config.RegisterHandler(kind, e.server.ConfigChanged)
	}
	e.config.RegisterHandler(config.Namespace, e.namespaceChanged)
	e.xds = downstream.New(downstream.Config{State: e.server, Observer: metrics, Identifier: "holdfast-mesh/" + e.cfg.Version, Log: e.cfg.Log})
}

// namespaceChanged requests a push if a Namespace has other labels, which the mesh configuration
// selects by, or other annotations, which services inherit.
func (e *Environment) namespaceChanged(ev config.Event) {
	if ev.Old == nil || ev.New == nil || !maps.Equal(ev.Old.Labels, ev.New.Labels) || !maps.Equal(ev.Old.Annotations, ev.New.Annotations) {
		e.server.ConfigChanged(ev)
	}
}

// registries returns the registries of documents as one.
func (e *Environment) registries(cache config.Cache, options service.Options) *service.Discovery {
	return service.NewDiscovery(options.Shards, service.NewKubernetes(cache, options), service.NewEntries(cache, options))
}

func checkAddresses(cfg Config) error {
	for flag, addr := range map[string]string{"--listen": cfg.Listen, "--tls-listen": cfg.TLSListen, "--admin": cfg.Admin} {
		if addr == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("%s %q: want host:port", flag, addr)
		}
	}
	return nil
}

// transport reads the TLS files; nil for none.
func transport(cfg Config) (*tls.Config, error) {
	if cfg.TLSCert == "" && cfg.TLSKey == "" {
		if cfg.TLSClientCA != "" {
			return nil, errors.New("--tls-client-ca needs --tls-cert and --tls-key")
		}
		return nil, nil
	}
	conf, err := readTLS(cfg)
	if err != nil {
		return nil, err
	}
	// The files are read again for each connection: they are small, and proxies connect seldom.
	var last atomic.Pointer[tls.Config]
	last.Store(conf)
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		conf, err := readTLS(cfg)
		if err != nil {
			cfg.Log.Error("TLS files cannot be read; the last ones stay in use", "err", err)
			return last.Load(), nil
		}
		last.Store(conf)
		return conf, nil
	}}, nil
}

// readTLS reads the TLS files.
func readTLS(cfg Config) (*tls.Config, error) {
	pair, err := dial.KeyPair(cfg.TLSCert, cfg.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if cfg.TLSClientCA != "" {
		conf.ClientAuth = tls.RequireAndVerifyClientCert
		if conf.ClientCAs, err = dial.CertPool(cfg.TLSClientCA); err != nil {
			return nil, fmt.Errorf("--tls-client-ca: %w", err)
		}
	}
	return conf, nil
}

// Run serves until ctx ends and then returns nil, or returns an error if it cannot serve. Proxies
// are answered from when the configuration was read.
func (e *Environment) Run(ctx context.Context) error {
	listeners, err := e.listen()
	if err != nil {
		return err
	}
	defer func() {
		for _, lis := range listeners {
			_ = lis.Close()
		}
	}()
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error {
		if err := e.config.Run(ctx); ctx.Err() == nil {
			return err
		}
		return nil
	})
	eg.Go(func() error { return e.serveAdmin(ctx) })
	eg.Go(func() error {
		for !e.config.HasSynced() {
			if !wake.Sleep(ctx, syncPoll) {
				return nil
			}
		}
		e.server.Start()
		e.logProblems()
		e.listening.Store(true)
		for _, lis := range listeners {
			e.cfg.Log.Info("serving xDS", "addr", lis.Addr().String(), "dir", e.cfg.Dir)
			eg.Go(func() error { return e.xds.Serve(ctx, lis) })
		}
		return e.server.Run(ctx)
	})
	return eg.Wait()
}

// logProblems reports what is wrong in the configuration at the start; later changes are logged by
// the source.
func (e *Environment) logProblems() {
	if n := len(e.config.Problems()); n > 0 {
		e.cfg.Log.Warn("the configuration has problems: holdfast-mesh validate names them", "count", n)
	}
}

// listen opens the sockets.
func (e *Environment) listen() (listeners []net.Listener, err error) {
	for flag, addr := range map[string]string{"--listen": e.cfg.Listen, "--tls-listen": e.cfg.TLSListen} {
		if addr == "" {
			continue
		}
		lis, err := net.Listen("tcp", addr)
		if err != nil {
			for _, open := range listeners {
				_ = open.Close()
			}
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
		if flag == "--tls-listen" {
			lis = tls.NewListener(lis, e.tls)
		}
		listeners = append(listeners, lis)
	}
	return listeners, nil
}
