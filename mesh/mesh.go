// Package mesh is the control plane: it joins the configuration, the registries of services and the
// server of proxies (mesh.md). Environment is Pilot's word for that.
//
// It promises that nobody is answered before the configuration was read once (M8), and that a
// configuration that is lost later changes nothing that is served. Package ca issues certificates to its clients.
// An Environment is run once; its other methods may be called by several goroutines at once.
package mesh

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/authn"
	"github.com/holdfast-xds/holdfast/mesh/ca"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/dir"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/mesh/config/seal"
	"github.com/holdfast-xds/holdfast/mesh/jwks"
	"github.com/holdfast-xds/holdfast/mesh/push/debounce"
	"github.com/holdfast-xds/holdfast/mesh/register"
	"github.com/holdfast-xds/holdfast/mesh/replica"
	"github.com/holdfast-xds/holdfast/mesh/server"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// syncPoll is how often Run looks whether the configuration has synced.
const syncPoll = 10 * time.Millisecond

// listenRetry is the pause before an address is listened on again that somebody else has.
const listenRetry = time.Second

// What a client may cost before it has proved who it is: the size of a message in bytes, of which a proxy with 50,000
// resources sends half, and the calls of one connection, of which a proxy needs a few.
const (
	maxMessage = 16 << 20
	maxCalls   = 100
)

// writeBuffer is the size in bytes of the write buffer of a connection. A change of endpoints is a few KiB for each of
// thousands of proxies, which get it at the same time.
const writeBuffer = 32 << 10

// Config configures an Environment.
type Config struct {
	// Version is the version of holdfast-mesh.
	Version string
	// Dir contains the documents (package dir), or Etcd says where they are (package etcd): one of both.
	Dir  string
	Etcd etcd.Options
	// Listen is host:port of the xDS server in plaintext, TLSListen that of the one with TLS, Health that of probes and metrics, Admin that
	// of status and what commands ask for, or unix:PATH; "" for none. Where others than this machine can connect, they have to prove who they
	// are (TLSClientCA, CA, Authn; AdminClientCA), unless AllowUnauthenticated.
	Listen, TLSListen, Admin, Health string
	AllowUnauthenticated             bool
	// AdminClientCA is a file with the authorities of certificates with which Admin can be used; it speaks TLS then. AdminAllow are the SPIFFE
	// IDs and DNS names in them that may; nil for all.
	AdminClientCA string
	AdminAllow    []string
	// MaxDiff is the size of a configuration that can be compared at Admin, in bytes; 0 means DefaultMaxDiff.
	MaxDiff int64
	// TLSCert and TLSKey are files with the server's certificate chain and key. With TLSClientCA,
	// clients must present a certificate that leads to one of its certificates.
	TLSCert, TLSKey, TLSClientCA string
	// TLSNames are the DNS names and addresses of the server's certificate that CA signs, if TLSCert is "".
	TLSNames []string
	// CA is the authority of the mesh (ca.Parse); "" for none. Its certificates, and MaxLifetime at most, are for
	// clients that authenticate.
	CA          string
	MaxLifetime time.Duration
	// Authn says how clients authenticate besides by certificates of TLSClientCA and CA.
	Authn authn.Config
	// JWKSFetch says who gets the keys at the jwksUri of a RequestAuthentication: ControlPlane, or Proxy; "" means
	// ControlPlane. JWKSCA is a file with the CAs to trust for that besides those of the system; "" for none.
	JWKSFetch, JWKSCA string
	// JWKSLoopback allows a jwksUri to lead to loopback addresses: what listens there may trust who is beside it.
	JWKSLoopback bool
	// Domain is the DNS domain of Kubernetes Services; "" means cluster.local.
	Domain string
	// Cluster is the id of the cluster whose Services the documents describe; "" for none.
	Cluster  string
	Debounce debounce.Options
	// Throttle is how many proxies are served at once; 0 means queue.DefaultThrottle.
	Throttle int
	// MaxProxies is how many proxies may be connected; 0 for any number. MaxConnectionAge is how long a connection may be
	// open, 10 % more or less at random; 0 for any time. DrainTime bounds how long Run takes, after its context has ended,
	// to send proxies to other replicas one after the other; 0 cuts their connections at once.
	MaxProxies       int
	MaxConnectionAge time.Duration
	// MaxConnectionIdle is how long a connection may be open without a stream, on which nobody has authenticated; 0 is for ever.
	MaxConnectionIdle time.Duration
	DrainTime         time.Duration
	// StateDir keeps the documents of Etcd, the workloads that have registered, and the keys of issuers of tokens, over a
	// restart; "" for nowhere.
	StateDir string
	// StartWithProblemsAfter is how long after its start a server with documents in Dir serves although some of them are not
	// valid and have no last valid content; 0 for never.
	StartWithProblemsAfter time.Duration
	// AllowEmpty lets an Etcd without any document count as one that has none, and not as one that is not filled yet.
	AllowEmpty bool
	// MaxNamespaceDocuments and MaxNamespaceBytes bound what a namespace may have in Etcd; 0 for any number.
	MaxNamespaceDocuments, MaxNamespaceBytes int
	// MaxProxiesPerIdentity is how many of MaxProxies may be of one identity; 0 for half of them. Registration bounds workloads that register.
	MaxProxiesPerIdentity int
	Registration          register.Limits
	// TimeIsAge takes the creationTimestamp of a document in Etcd, which its author writes, for its age, and not its create_revision.
	TimeIsAge bool
	// Pprof adds profiles of the process to Admin, below /debug/pprof/.
	Pprof bool
	Log   *slog.Logger
	// Output counts the lines of the log that were not written; nil for none.
	Output prometheus.Collector
}

// identifies reports whether clients of TLSListen have to prove who they are, by a token or by a certificate of CA.
func (c Config) identifies() bool { return c.CA != "" || len(c.Authn.Issuers) > 0 }

// Environment is a control plane. Create one with New.
type Environment struct {
	cfg       Config
	started   time.Time
	tls       *tls.Config // nil for none
	authn     *authn.Authenticator
	ca        *ca.Server   // nil for none
	store     *etcd.Client // nil if the documents are in a directory
	config    config.Source
	lacks     func(config.Key) bool // of the copy of the store
	replica   *replica.Replica      // nil if nobody else has the documents
	stored    func() etcd.State     // of store
	lock      *os.File              // of the state directory; nil for none
	keys      *jwks.Store
	registrar *register.Registrar
	warnings  *warnings
	discovery *service.Discovery
	server    *server.Server
	xds       *downstream.Server
	metrics   *prometheus.Registry
	doors     doors
	listening atomic.Bool
	stopping  atomic.Bool
}

// New checks the configuration and reads the TLS files.
func New(cfg Config) (*Environment, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Domain = cmp.Or(cfg.Domain, config.DefaultDomain)
	switch {
	case cfg.Dir == "" && len(cfg.Etcd.Endpoints) == 0:
		return nil, errors.New("no configuration: name a directory of documents with --config, or a store with --etcd")
	case cfg.Dir != "" && len(cfg.Etcd.Endpoints) > 0:
		return nil, errors.New("--config and --etcd: the documents are in a directory or in etcd; `holdfast-mesh migrate` copies them")
	case cfg.Dir != "" && cfg.Etcd.IsSet():
		return nil, errors.New("the flags --etcd-* are for --etcd, and --config is given")
	case cfg.Dir != "" && cfg.AllowEmpty:
		return nil, errors.New("--allow-empty is for --etcd, and --config is given: a file with a comment alone says that a directory has no documents on purpose")
	case cfg.Dir != "" && len(cfg.Etcd.SecretKeys) > 0 && cfg.StateDir == "":
		return nil, errors.New("--secret-key-file with --config encrypts the Secrets in --state-dir, which is not given")
	case cfg.Dir == "" && cfg.StartWithProblemsAfter > 0:
		return nil, errors.New("--start-with-problems-after is for --config: a document that is not valid in etcd holds nobody up")
	case cfg.Listen == "" && cfg.TLSListen == "":
		return nil, errors.New("nothing to listen on: set --listen or --tls-listen")
	case cfg.TLSListen != "" && cfg.TLSCert == "" && cfg.CA == "":
		return nil, errors.New("--tls-listen needs --tls-cert and --tls-key, or a --ca that signs a certificate for it")
	case cfg.TLSListen == "" && cfg.identifies():
		return nil, errors.New("--ca and --token-issuer need --tls-listen: over plaintext nobody can prove anything")
	}
	if err := errors.Join(checkAddresses(cfg), cfg.checkDoors()); err != nil {
		return nil, err
	}
	e := &Environment{cfg: cfg, started: time.Now(), metrics: prometheus.NewRegistry()}
	if cfg.Output != nil {
		e.metrics.MustRegister(cfg.Output)
	}
	cfg.Authn.Log = cfg.Log
	cfg.Authn.Required = cfg.identifies()
	var err error
	if err = e.source(); err != nil {
		return nil, err
	}
	if e.authn, err = authn.New(cfg.Authn); err != nil {
		return nil, fmt.Errorf("--token-issuer: %w", err)
	}
	if err := e.authority(); err != nil {
		return nil, err
	}
	if e.keys, err = e.keyStore(); err != nil {
		return nil, err
	}
	if e.tls, err = e.transport(); err != nil {
		return nil, err
	}
	if err := e.openDoors(); err != nil {
		return nil, err
	}
	e.assemble()
	e.countReady()
	if err := e.loadState(); err != nil {
		return nil, err
	}
	return e, nil
}

// source opens where the documents are.
func (e *Environment) source() (err error) {
	file := func(name string) string {
		if e.cfg.StateDir == "" {
			return ""
		}
		return filepath.Join(e.cfg.StateDir, name)
	}
	if e.cfg.Dir != "" {
		sealer, err := seal.Load(e.cfg.Etcd.SecretKeys)
		if err != nil {
			return err
		}
		e.config = dir.New(dir.Config{
			Dir: e.cfg.Dir, State: file(storedFiles), Sealer: sealer, StartWithProblemsAfter: e.cfg.StartWithProblemsAfter, Log: e.cfg.Log,
		})
		return nil
	}
	if e.store, err = etcd.Open(e.cfg.Etcd); err != nil {
		return err
	}
	source := etcd.NewSource(etcd.SourceConfig{
		Client: e.store, File: file(storedDocuments), AllowEmpty: e.cfg.AllowEmpty, TimeIsAge: e.cfg.TimeIsAge,
		MaxDocuments: e.cfg.MaxNamespaceDocuments, MaxBytes: e.cfg.MaxNamespaceBytes, Log: e.cfg.Log,
	})
	e.lacks = source.Lacks
	e.metrics.MustRegister(etcd.NewCollector(source))
	e.config, e.stored = source, source.State
	e.replica = replica.New(replica.Config{
		Client: e.store, State: source.State, Proxies: func() []server.ProxyStatus { return e.server.Proxies() },
		Version: e.cfg.Version, MaxProxies: e.cfg.MaxProxies, Log: e.cfg.Log,
	})
	return nil
}

// authority makes the authority of the mesh, if it has one.
func (e *Environment) authority() error {
	if e.cfg.CA == "" {
		return nil
	}
	signer, err := ca.Parse(e.cfg.CA, e.cfg.Log)
	if err != nil {
		return fmt.Errorf("--ca: %w", err)
	}
	names := e.cfg.TLSNames
	if len(names) == 0 {
		names = localNames(e.cfg.TLSListen)
	}
	e.ca, err = ca.New(ca.Config{
		Authority: signer, Identify: e.authn.Identify, TrustDomains: func() ([]string, error) { return e.server.TrustDomains() },
		Assigned: e.authn.Assigned, MaxLifetime: e.cfg.MaxLifetime, Names: names, OptionalNames: e.cfg.TLSCert != "", Metrics: ca.NewMetrics(e.metrics), Log: e.cfg.Log,
	})
	if err != nil {
		return fmt.Errorf("--tls-name: %w", err)
	}
	return nil
}

// localNames are those of this machine, and of an address.
func localNames(addr string) []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	if host, err := os.Hostname(); err == nil && !slices.Contains(names, host) {
		names = append(names, host)
	}
	if host, _, err := net.SplitHostPort(addr); err == nil && host != "" && !slices.Contains(names, host) {
		if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
			names = append(names, host)
		}
	}
	return names
}

// assemble joins the registries and the server.
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
	e.warnings = newWarnings(e.config, e.config.Problems, e.cfg.Domain, e.metrics, e.cfg.Log)
	e.registrar = register.New(e.config, e.cfg.Log)
	e.registrar.Limit(e.cfg.Registration)
	e.metrics.MustRegister(register.NewCollector(e.registrar))
	if e.replica != nil {
		e.registrar.Share(register.Sharing{Replica: e.replica.ID(), Store: e.store, Live: e.liveReplicas, Lacks: e.lacks})
	}
	e.discovery = e.registries(e.registrar, options)
	metrics := server.NewMetrics(e.metrics)
	e.server = server.New(server.Config{
		Reader: e.config, Discovery: e.discovery, Shards: shards, Domain: e.cfg.Domain,
		Debounce: e.cfg.Debounce, Throttle: e.cfg.Throttle, MaxProxies: e.cfg.MaxProxies, MaxProxiesPerIdentity: e.cfg.maxPerIdentity(), Metrics: metrics, Keys: e.keyReader(), Registrar: e.registrar, Authn: e.authn, Log: e.cfg.Log,
	})
	e.server.Follow(e.config, e.tokensChanged)
	xds := downstream.Config{
		State: e.server, Observer: metrics, Identifier: "holdfast-mesh/" + e.cfg.Version, Log: e.cfg.Log,
		Identify:   func(ctx context.Context, c downstream.Credentials) (any, error) { return e.server.Identify(ctx, c) },
		MaxMessage: maxMessage, ConnectionStreams: maxCalls, WriteBuffer: writeBuffer,
		MaxConnectionIdle: e.cfg.MaxConnectionIdle, MaxConnectionAge: e.cfg.MaxConnectionAge, Drain: e.cfg.DrainTime,
	}
	if e.ca != nil {
		xds.Register = e.ca.Register
	}
	e.xds = downstream.New(xds)
}

// registries returns the registries of documents as one.
func (e *Environment) registries(cache config.Cache, options service.Options) *service.Discovery {
	return service.NewDiscovery(options.Shards, service.NewKubernetes(cache, options), service.NewEntries(cache, options))
}

// maxPerIdentity returns how many proxies of one identity may be connected; 0 for any number.
func (c *Config) maxPerIdentity() int {
	if c.MaxProxiesPerIdentity == 0 && c.MaxProxies > 0 {
		return (c.MaxProxies + 1) / 2
	}
	return c.MaxProxiesPerIdentity
}

func checkAddresses(cfg Config) error {
	for flag, addr := range map[string]string{"--listen": cfg.Listen, "--tls-listen": cfg.TLSListen, "--admin": cfg.Admin, "--health": cfg.Health} {
		if addr == "" || flag == "--admin" && strings.HasPrefix(addr, "unix:") {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return fmt.Errorf("%s %q: want host:port", flag, addr)
		}
	}
	return nil
}

// transport returns the settings of TLS; nil for none.
func (e *Environment) transport() (*tls.Config, error) {
	files := dial.ServerTLS{Cert: e.cfg.TLSCert, Key: e.cfg.TLSKey, ClientCA: e.cfg.TLSClientCA, Clients: e.acceptClients, Log: e.cfg.Log}
	if e.ca != nil {
		files.Certificate = e.ca.Certificate
	}
	return files.Config()
}

// acceptClients makes the settings of a connection accept certificates of the CA, too. Clients need a certificate if that is all by which they
// can authenticate.
func (e *Environment) acceptClients(conf *tls.Config) {
	if e.ca != nil {
		pool := x509.NewCertPool()
		if conf.ClientCAs != nil {
			pool = conf.ClientCAs.Clone()
		}
		for _, root := range e.ca.Roots() {
			pool.AddCert(root)
		}
		conf.ClientAuth, conf.ClientCAs = tls.RequireAndVerifyClientCert, pool
	}
	if conf.ClientCAs != nil && e.cfg.identifies() {
		conf.ClientAuth = tls.VerifyClientCertIfGiven
	}
}

// Run serves until ctx ends and then returns nil, or returns an error if it cannot serve. Proxies
// are answered from when the configuration was read. When ctx ends it is not ready any more and accepts no connection;
// proxies get changes until they have been sent away.
func (e *Environment) Run(ctx context.Context) error {
	listeners, err := e.listen()
	if err != nil {
		return err
	}
	defer closeAll(listeners)
	if e.lock != nil {
		defer func() { _ = e.lock.Close() }() // it was only read
	}
	if e.store != nil {
		defer e.store.Close()
	}
	eg, ctx := errgroup.WithContext(ctx)
	// What the streams get their content from ends after them.
	behind, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	eg.Go(func() error {
		if err := e.config.Run(behind); behind.Err() == nil {
			return err
		}
		return nil
	})
	e.warnOfDoors()
	eg.Go(func() error { return e.serveAdmin(behind) })
	eg.Go(func() error { return e.serveHealth(behind) })
	if e.replica != nil {
		eg.Go(func() error {
			e.replica.Run(behind)
			return nil
		})
	}
	eg.Go(func() error { return e.keys.Run(behind) })
	eg.Go(func() error { return e.registrar.Keep(behind) })
	eg.Go(func() error { return e.registrar.Publish(behind) })
	if e.ca != nil {
		eg.Go(func() error { return e.ca.Run(behind) })
	}
	defer context.AfterFunc(ctx, func() {
		e.stopping.Store(true)
		e.cfg.Log.Info("stopping: proxies are sent away", "proxies", len(e.server.Proxies()))
	})()
	eg.Go(func() error {
		defer end()
		for !e.config.HasSynced() {
			if !wake.Sleep(ctx, syncPoll) {
				return nil
			}
		}
		e.awaitKeys(ctx)
		e.server.Start()
		e.logProblems()
		e.listening.Store(true)
		eg.Go(func() error { return e.server.Run(behind) })
		eg.Go(func() error {
			e.warnings.Run(behind)
			return nil
		})
		return e.serve(ctx, listeners)
	})
	return eg.Wait()
}

// logProblems reports what is wrong in the configuration at the start; later changes are logged by
// the source.
func (e *Environment) logProblems() {
	if n := len(e.config.Problems()); n > 0 {
		e.cfg.Log.Warn("the configuration has problems: the status names them", "count", n)
	}
}
