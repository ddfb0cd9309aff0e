package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/istio"
	"github.com/holdfast-xds/holdfast/agent/telemetry"
	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/cgroup"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
	"github.com/holdfast-xds/holdfast/internal/memory"
	"github.com/holdfast-xds/holdfast/internal/procs"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

const runLong = `Run the agent next to Envoy: fetch Envoy's configuration from a control plane, cache it, and
serve it on a Unix socket, until SIGTERM or SIGINT.

Envoy connects to the agent with the bootstrap that ` + "`holdfast bootstrap`" + ` writes. Several
Envoys, and other xDS clients, may use one agent. With --bootstrap or --node-id the agent
fetches the configuration before Envoy connects. With --write-bootstrap it writes the
bootstrap itself, with the flags of ` + "`holdfast bootstrap`" + `.

After --, give Envoy's command line to run Envoy as a child of the agent.

OpenTelemetry's variables (OTEL_EXPORTER_OTLP_ENDPOINT and others, docs/telemetry.md) switch on the
export of metrics and of a trace of each update.`

const runExample = `
# a control plane whose certificate is signed by your own CA
holdfast run --upstream xds.example.com:443 --upstream-ca /etc/holdfast/ca.pem \
    --bootstrap /etc/envoy/envoy.yaml

# two control planes, the first one preferred, and a token that is rotated
holdfast run --upstream xds-a:443 --upstream xds-b:443 \
    --upstream-token-file /var/run/secrets/token

# without TLS, to try it on one machine
holdfast run --upstream 127.0.0.1:18000 --upstream-plaintext \
    --socket /tmp/holdfast/xds.sock --admin unix:/tmp/holdfast/admin.sock

# with Envoy as a child
holdfast run --upstream xds.example.com:443 -- envoy -c /etc/envoy/envoy.yaml

# in one container: the bootstrap of the pod, the agent and Envoy
holdfast run --upstream xds.example.com:443 --write-bootstrap --out /etc/envoy/envoy.yaml \
    --wait-for pod-ip --ready-listen :15021 -- envoy -c /etc/envoy/envoy.yaml

# from a directory of files
holdfast run --upstream file:/etc/xds`

// runFlags are the flags of `holdfast run`. Most of them set fields of cfg; the others are needed to
// complete it.
type runFlags struct {
	cfg          agent.Config
	certificates certificateFlags
	seed         seedFlags
	stateKeys    []string // files
	envoyJSON    bool
	bootstrap    string
	node         nodeFlags
	written      ownBootstrap
	workload     workloadFlags
	istio        bool
	log          logFlags
}

// add declares the flags, and with them the defaults of cfg.
func (f *runFlags) add(c *command) {
	f.addUpstream(c)
	f.addSocket(c)
	f.addLimits(c)
	f.addState(c)
	f.seed.add(c)
	f.certificates.add(c)
	f.addEnvoy(c)
	flags := c.section("Envoy's node, to fetch its configuration before it connects (--bootstrap or --node-…, or neither)")
	flags.StringVar(&f.bootstrap, "bootstrap", "", "`FILE` of Envoy's bootstrap, to read the node from. Keys such as node-metadata in the file of settings are then for holdfast bootstrap, which has made it")
	f.node.add(flags)
	f.workload.add(c)
	f.addAdmin(c)
	f.addIstio(c)
}

func newRun(p process) *command {
	c := newCommand("run", "run the agent next to Envoy", runLong, runExample)
	c.takesChild = true
	f := &runFlags{}
	f.add(c)
	f.written.add(c, p)
	c.run = func(ctx context.Context, warnings []string) error {
		exported, more := telemetry.FromEnv(os.Getenv)
		f.cfg.Telemetry = exported
		return f.log.serve(p, append(warnings, more...), func(queue *logqueue.Queue, log *slog.Logger) error {
			f.cfg.Admin.Output = queue
			f.cfg.Envoy.Out = writeLines(queue.From(cli.Envoy), f.envoyJSON)
			return f.serve(ctx, c, p, log)
		})
	}
	return c
}

// serve runs the agent until ctx ends.
func (f *runFlags) serve(ctx context.Context, c *command, p process, log *slog.Logger) error {
	f.cfg.Admin.LogLevel = &f.log.current
	harden(log)
	limits := containerLimits(log)
	memory.Limit(os.Getenv, limits.Memory, log) // before anything else allocates memory
	if err := f.complete(log); err != nil {
		return err
	}
	if err := f.checkPlaces(); err != nil {
		return err
	}
	if err := f.workload.parse(c, f.cfg.Upstreams); err != nil {
		return err
	}
	child, err := f.writeBootstrap(ctx, p.environ, c)
	if err != nil {
		return err
	}
	file := cmp.Or(f.bootstrap, configFile(child))
	if f.cfg.Node == nil && file != "" {
		f.cfg.Node = nodeOf(file, log)
	}
	if err := f.completeEnvoy(child, file, limits); err != nil {
		return err
	}
	if err := checkVersion(ctx, f.cfg.Envoy, log); err != nil {
		return cli.Failed(err)
	}
	if f.cfg.Workload, err = f.workload.config(f.istio, f.cfg.Node, os.Getenv); err != nil {
		return err
	}
	f.cfg.Hurry, f.cfg.Signals = p.hurry, p.signals
	f.cfg.Downstream.OnConnections = procs.New(os.Getenv).Serve
	a, err := agent.New(f.cfg)
	if err != nil {
		return err
	}
	warnExposed(log, f.cfg)
	if !f.cfg.Admin.Pprof {
		runtime.MemProfileRate = 0 // nobody can read the samples, which cost memory
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go memory.GiveBack(ctx, log)
	return cli.Failed(a.Run(ctx))
}

// complete adds to cfg what several flags say together.
func (f *runFlags) complete(log *slog.Logger) (err error) {
	cfg := &f.cfg
	cfg.Version, cfg.Log = version, log
	if !f.written.asked { // otherwise the node is that of the bootstrap, which does not exist yet
		if cfg.Node, err = f.node.identity(f.bootstrap); err != nil {
			return err
		}
	}
	if cfg.Certificates, err = f.certificates.config(); err != nil {
		return err
	}
	if cfg.Seed, err = f.seed.config(); err != nil {
		return err
	}
	switch {
	case len(cfg.Upstreams) == 0 && len(cfg.Certificates.Sources) == 0:
		return errors.New("--upstream is missing: name the control plane, such as --upstream xds.example.com:443, or a directory of resources, such as --upstream file:/etc/xds")
	case cfg.Store.Dir == "" && (len(f.stateKeys) > 0 || cfg.Store.Identity != ""):
		return errors.New("--state-key-file and --state-identity need --state-dir")
	case len(cfg.Admin.ReaderUIDs)+len(cfg.Admin.ReaderGIDs) > 0 && !strings.HasPrefix(cfg.Admin.Addr, "unix:"):
		return errors.New("--admin-readers needs --admin unix:PATH: on a TCP address the user of a client is not known")
	}
	if err := cfg.Admin.Check(); err != nil {
		return err
	}
	if f.istio {
		if cfg.Istio, err = istioConfig(cfg.Admin.Health); err != nil {
			return err
		}
	}
	cfg.Store.Keys, err = stateKeys(f.stateKeys)
	return err
}

// writeBootstrap writes the bootstrap if --write-bootstrap says so, reads the node from it, and lets everything else be
// read from it too. It returns Envoy's command line.
func (f *runFlags) writeBootstrap(ctx context.Context, environ []string, c *command) (line []string, err error) {
	if !f.written.asked {
		return c.child, nil
	}
	if !f.cfg.Takeover { // the file is that of the agent that serves, until it is certain that there is none
		if err := downstream.Unserved(f.cfg.Socket); err != nil {
			return nil, cli.Failed(err)
		}
	}
	if f.bootstrap, line, err = f.written.write(ctx, f.cfg.Log, environ, f.bootstrap, c.child); err != nil {
		return nil, err
	}
	if drain, given := f.written.flags.istio.drain(); given && !c.given("drain-timeout") && !c.given("drain-min") {
		f.cfg.Envoy.Draining.Timeout, f.cfg.Envoy.Draining.Min = drain, min(drain, f.cfg.Envoy.Draining.Min)
	}
	if trial := f.written.flags.trial; trial != nil {
		f.cfg.Envoy.Trial = trial
	}
	f.cfg.Envoy.Admin = "" // a template or an overlay may have another one than --envoy-admin
	f.cfg.Node, err = bootstrap.ReadNode(f.bootstrap)
	return line, err
}

// istioConfig reads the variables of Istio's webhook. health is the address of the health listener.
func istioConfig(health string) (*istio.Config, error) {
	_, port, err := net.SplitHostPort(health)
	if err != nil {
		return nil, errors.New("--istio needs --health: istiod's webhook leads probes and Prometheus to port 15020")
	}
	number, _ := strconv.Atoi(port) // was checked
	return istio.FromEnv(os.Getenv, number)
}

// checkPlaces checks addresses and paths, alone and together.
func (f *runFlags) checkPlaces() error {
	socket, rest := f.cfg.Socket, f.cfg.REST
	if _, err := socket.Check(); err != nil {
		if socket.Path == "" {
			return errors.New("--socket is empty: name the path of the socket, such as " + bootstrap.DefaultSocket)
		}
		return fmt.Errorf("--socket: %w", err)
	}
	admin, unix := strings.CutPrefix(f.cfg.Admin.Addr, "unix:")
	switch {
	case unix && filepath.Clean(admin) == filepath.Clean(socket.Path):
		return fmt.Errorf("--admin and --socket are both %s: give each its own path", admin)
	case f.cfg.Takeover && !unix:
		return errors.New("--takeover needs --admin unix:PATH, the same as that of the running agent")
	}
	if rest == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(rest)
	if err != nil || strings.HasPrefix(rest, "unix:") {
		return fmt.Errorf("--rest: %q: want host:port, or '' for none; REST is always served on the socket", rest)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("--rest: %q: port %q is not a number from 0 to 65535", rest, port)
	}
	return nil
}

func (f *runFlags) addEnvoy(c *command) {
	cfg := &f.cfg.Envoy
	flags := c.section("Envoy as a child process (holdfast run … -- envoy -c envoy.yaml …), and shutdown")
	flags.Var(either(&cfg.Exit, "restart", "exit"), "on-envoy-exit", "if Envoy crashes, restart it after a growing pause, or exit with its exit code. If Envoy exits with code 0, the agent exits too")
	flags.Var(numberOf(&cfg.StartAfter, envoy.DefaultStartAfter, notNegative), "start-after", "start Envoy after this `DURATION` even if there is no configuration yet; Envoy then waits for it")
	flags.Var(numberOf(&cfg.Draining.Timeout, 30*time.Second, notNegative), "drain-timeout", "maximum `DURATION` of a drain, which SIGTERM or the command drain starts")
	flags.Var(numberOf(&cfg.Draining.Min, 5*time.Second, notNegative), "drain-min", "minimum `DURATION` of a drain, so that load balancers can stop sending requests")
	flags.Var(numberOf(&cfg.Grace, envoy.DefaultGrace, notNegative), "kill-after", "send SIGKILL if Envoy has not exited within this `DURATION` after SIGTERM, which it gets after the drain")
	flags.Var(numberOf(&f.cfg.Group.Cache.FallbackFor, fallback.DefaultDuration, positive), "fallback-for", "after Envoy has crashed three times within ten minutes, each time within a minute of its start, hold back for this `DURATION` what had changed before, and serve its last stable version")
	flags.Var(either(&f.envoyJSON, "raw", "json"), "envoy-log", "how to write Envoy's output to standard error: unchanged, or each line in a JSON object")
	flags.StringVar(&cfg.Admin, "envoy-admin", "", "`ADDR` of Envoy's admin interface, host:port or unix:PATH; empty: as in the bootstrap (--bootstrap, or -c after --)")
}

// configFile returns the bootstrap that a command line of Envoy names, "" for none.
func configFile(child []string) string {
	for i, arg := range child {
		if value, ok := strings.CutPrefix(arg, "--config-path="); ok {
			return value
		}
		if (arg == "-c" || arg == "--config-path") && i+1 < len(child) {
			return child[i+1]
		}
	}
	return ""
}

// nodeOf returns the node of a bootstrap, nil if it has none. Envoy's command line may then have
// the node, and the configuration is fetched when Envoy connects.
func nodeOf(file string, log *slog.Logger) *corev3.Node {
	node, err := bootstrap.ReadNode(file)
	if err != nil {
		log.Warn("the node cannot be read from the bootstrap: the configuration is not fetched before Envoy connects, unless --node-id and --node-cluster are given", "err", err)
		return nil
	}
	return node
}

// completeEnvoy adds to cfg what follows from Envoy's command line, its bootstrap file ("" for
// none) and the limits of the container.
func (f *runFlags) completeEnvoy(child []string, file string, limits cgroup.Limits) (err error) {
	cfg := &f.cfg.Envoy
	cfg.Dir = filepath.Dir(f.cfg.Socket.Path)
	if cfg.Admin == "" && file != "" {
		if cfg.Admin, err = bootstrap.ReadAdmin(file); err != nil {
			return err
		}
	}
	if len(child) == 0 {
		return nil
	}
	binary, err := exec.LookPath(child[0])
	if err != nil {
		return fmt.Errorf("the command after --: %w", err)
	}
	cfg.Args = append([]string{binary}, child[1:]...)
	cfg.Concurrency = bootstrap.Concurrency(limits)
	if cfg.Admin == "" {
		f.cfg.Log.Warn("the address of Envoy's admin interface is not known: Envoy will not be drained on shutdown. Set --envoy-admin, or a port in the bootstrap")
	}
	return nil
}

// checkVersion warns about a release of Envoy that this version was not tested with.
func checkVersion(ctx context.Context, cfg envoy.Config, log *slog.Logger) error {
	if len(cfg.Args) == 0 {
		return nil
	}
	release, warning, err := envoy.CheckVersion(ctx, cfg.Args[0])
	if err != nil {
		return fmt.Errorf("the command after --: %w", err)
	}
	if warning != "" {
		log.Warn(warning, "binary", filepath.Base(cfg.Args[0]))
	} else {
		log.Info("Envoy version", "version", release)
	}
	return nil
}

// writeLines returns a function that writes one line of Envoy's output, unchanged or in a JSON object.
func writeLines(w io.Writer, inJSON bool) func(line []byte) {
	out := log.New(w, "", 0) // writes whole lines, one at a time
	return func(line []byte) {
		if inJSON {
			line, _ = json.Marshal(struct { // cannot fail for texts
				Time string `json:"time"`
				From string `json:"from"`
				Msg  string `json:"msg"`
			}{time.Now().UTC().Format(time.RFC3339Nano), "envoy", string(line)})
		}
		out.Print(string(line))
	}
}

// exitCode returns Envoy's exit code if err is the exit of Envoy, with which the agent exits too.
func exitCode(err error) (code int, ok bool) {
	if exit, is := errors.AsType[*envoy.ExitError](err); is {
		return exit.Code, true
	}
	return 0, false
}

// containerLimits returns the limits of this container, or none if they cannot be read.
func containerLimits(log *slog.Logger) cgroup.Limits {
	limits, err := cgroup.Read(os.DirFS("/"))
	if err != nil {
		log.Warn("the limits of the container cannot be read: assuming that there are none", "err", err)
	}
	return limits
}

// minKeepalive is the minimum time between two pings of gRPC.
const minKeepalive = 10 * time.Second

func (f *runFlags) addUpstream(c *command) {
	up := &f.cfg.Upstream
	flags := c.section("Control plane")
	flags.Var(texts(&f.cfg.Upstreams), "upstream", "`ADDR` of a control plane: host:port, unix:PATH, dns:///HOST:PORT, http(s)://HOST for REST, or file:DIR for a directory of resources. The first of several is preferred, the others are tried in this order. Required, unless --ca is given")
	flags.Var(oneOf(&up.Form, xds.Delta, xds.SotW), "upstream-protocol", "variant of xDS that the control plane supports: delta (incremental), or sotw (state of the world)")
	addUpstreamHeaders(flags, up)
	addUpstreamProxy(flags, up)
	flags.Var(numberOf(&up.MaxMessage, upstream.DefaultMaxMessage, positive), "upstream-max-message-bytes", "maximum size of a message, in `BYTES`; the default is 256 MiB")
	flags.Var(numberOf(&up.AckTimeout, session.DefaultAckTimeout, positive), "ack-timeout", "ACK a response of the control plane after this `DURATION` (such as 500ms or 2s) even if Envoy has not answered yet")
	flags.Var(numberOf(&f.cfg.FailoverAfter, upstream.DefaultFailoverAfter, positive), "failover-after", "wait this `DURATION` before failing over while everything that Envoy needs is cached. If something is missing, fail over after one failed attempt")
	flags.Var(numberOf(&f.cfg.StaleAfter, upstream.DefaultStaleAfter, positive), "stale-after", "open a second stream to a control plane that has sent nothing for this `DURATION`; that stream takes over when it is answered")
	flags.Var(numberOf(&f.cfg.ReconnectSpread, 0, notNegative), "reconnect-spread", "reconnect within this `DURATION` after a control plane is back, each agent at a random time, so that thousands of agents do not reconnect at once; after a lost connection this delays the next upstream, too. 0: reconnect at once")
	flags.Var(numberOf(&f.cfg.StartWithProblemsAfter, 0, notNegative), "start-with-problems-after", "after this `DURATION`, a start no longer waits for files of an --upstream file:DIR that are not valid and never were: they are left out. 0: it waits until they are repaired, and serves what it had before")
	flags.Var(numberOf(&up.KeepaliveTime, upstream.DefaultKeepaliveTime, bounds{min: int64(minKeepalive)}), "upstream-keepalive-time", "send an HTTP/2 ping when the control plane has sent nothing for this `DURATION`, at least 10s. A gRPC server with default settings closes connections that are pinged more often than every 5 minutes; istiod allows 30s")
	flags.Var(numberOf(&up.KeepaliveTimeout, upstream.DefaultKeepaliveTimeout, positive), "upstream-keepalive-timeout", "close the connection if such a ping is not answered within this `DURATION`")
	flags.Var(numberOf(&up.RESTRefresh, upstream.DefaultRESTRefresh, bounds{min: int64(100 * time.Millisecond), max: int64(24 * time.Hour)}), "upstream-rest-refresh", "pause between two polls of a type over REST (`DURATION`, 100ms to 24h); a random duration of up to the same length is added")
	addUpstreamSecurity(c, up)
}

func addUpstreamHeaders(flags *pflag.FlagSet, up *upstream.Config) {
	flags.Var(headers(&up.Headers), "upstream-header", "`NAME=VALUE`, an extra request header (gRPC metadata), if the control plane requires one, such as ClusterID or x-consul-token")
}

func addUpstreamProxy(flags *pflag.FlagSet, up *upstream.Config) {
	flags.Var(scalar[dial.Proxy]{&up.Proxy, "URL", dial.ParseProxy, dial.Proxy.String}, "upstream-proxy", "reach control planes through a proxy: env (the environment variables HTTPS_PROXY and NO_PROXY), none, or its `URL` (http, https, socks5). If the proxy does not let a gRPC control plane through, it is reached directly, which status shows")
}

// addUpstreamSecurity adds the flags of how a control plane is authenticated, and the agent to it.
func addUpstreamSecurity(c *command, up *upstream.Config) {
	flags := c.section("Security of the control plane (TLS, unless it is a Unix socket)")
	flags.StringVar(&up.CA, "upstream-ca", "", "PEM `FILE` of the CAs to trust for the control plane's certificate; empty: those of the system")
	flags.StringVar(&up.Cert, "upstream-cert", "", "PEM `FILE` of the client certificate and its chain, if the control plane requires one; with --upstream-key")
	flags.StringVar(&up.Key, "upstream-key", "", "PEM `FILE` of the private key of --upstream-cert")
	flags.StringVar(&up.ServerName, "upstream-server-name", "", "`NAME` to send as SNI, and to require in the control plane's certificate; empty: the host of --upstream")
	flags.Var(texts(&up.SANs), "upstream-san", "`NAME` (DNS name, URI such as a SPIFFE ID, IP or e-mail address) to require in the certificate instead; one of several is enough")
	flags.StringVar(&up.TokenFile, "upstream-token-file", "", "`FILE` of a bearer token to send; it is read again for every connection attempt")
	flags.BoolVar(&up.Plaintext, "upstream-plaintext", false, "do not use TLS: everything, including secrets, can be read on the network")
}

func (f *runFlags) addSocket(c *command) {
	flags := c.section("Envoy")
	flags.StringVar(&f.cfg.Socket.Path, "socket", bootstrap.DefaultSocket, "`PATH` of the Unix socket that Envoy connects to, of at most 107 bytes; a missing directory is created, private")
	f.cfg.Socket.Mode = downstream.DefaultSocketMode
	flags.Var(octal(&f.cfg.Socket.Mode), "socket-mode", "permissions of the socket, in `OCTAL`; in the file of --config put them into quotes")
	flags.StringVar(&f.cfg.Socket.Group, "socket-group", "", "`GROUP`, by name or number, that owns the socket; empty: the group of the process")
	flags.Var(users(&f.cfg.Peers.UIDs), "allow-uid", "`USER`, by name or number, that may use the socket besides the agent's own user. Without --allow-uid and --allow-gid, the members of --socket-group may, if it is given. The permissions of the socket and its directory must allow it too")
	flags.Var(groups(&f.cfg.Peers.GIDs), "allow-gid", "`GROUP`, by name or number, whose members may use the socket")
	flags.BoolVar(&f.cfg.Takeover, "takeover", false, "replace the agent that serves the socket, for an upgrade: its state and its clients move to this agent without interruption. Without this flag a second agent on the same socket fails")
	flags.Var(numberOf(&f.cfg.Group.Cache.Linger, cache.DefaultLinger, positive), "client-linger", "keep the subscriptions of a disconnected client for this `DURATION` (such as 10m), so that its configuration is cached when it reconnects")
	f.cfg.Downstream.PassThrough = downstream.DefaultPassThrough
	flags.Var(serviceNames(&f.cfg.Downstream.PassThrough), "pass-through", "full name of a gRPC `SERVICE` whose calls are passed through to the control plane, with the agent's token and headers; none for no service. Calls of other services are rejected. The default is envoy.service.load_stats.v3.LoadReportingService, envoy.service.health.v3.HealthDiscoveryService, envoy.service.accesslog.v3.AccessLogService and envoy.service.metrics.v3.MetricsService")
	flags.StringVar(&f.cfg.REST, "rest", "", "`ADDR`, host:port, where xDS is also served as REST-JSON, in plaintext; a response that contains a secret (a key, a password, a header with credentials) is rejected there. Empty: none. On the socket REST is always served, without that restriction")
	flags.Var(numberOf(&f.cfg.Downstream.RESTHold, 0, notNegative), "rest-hold", "hold a REST request whose version is current until something changes, at most for this `DURATION` (such as 30s); Envoy's request_timeout must be longer. 0: answer at once")
}

func (f *runFlags) addLimits(c *command) {
	limits, def := &f.cfg.Downstream.Limits, downstream.DefaultLimits
	flags := c.section("Limits on clients and control plane (a mesh of 20,000 clusters stays below the defaults)")
	flags.Var(numberOf(&f.cfg.MaxGroups, agent.DefaultMaxGroups, positive), "max-groups", "maximum `NUMBER` of client groups. Clients with the same node id and user agent form a group, with one stream to the control plane. Beyond the limit, the group without clients that was used least recently is removed")
	flags.Var(numberOf(&limits.Streams, def.Streams, positive), "max-streams", "maximum `NUMBER` of open streams")
	flags.Var(numberOf(&limits.Types, def.Types, positive), "max-types", "maximum `NUMBER` of types per stream; requests for further types are not answered")
	flags.Var(numberOf(&limits.Subscriptions, def.Subscriptions, positive), "max-subscriptions", "maximum `NUMBER` of names per type and stream; of further names, only resources that are cached anyway are served")
	flags.Var(numberOf(&limits.RequestRate, def.RequestRate, positive), "max-request-rate", "maximum `NUMBER` of requests per stream and second, after a first --max-request-burst; further requests wait")
	flags.Var(numberOf(&limits.RequestBurst, def.RequestBurst, positive), "max-request-burst", "maximum `NUMBER` of requests per stream that are read at once")
	flags.Var(each(&f.cfg.Downstream.Wildcards, wildcardTypeOf), "envoy-wildcard", "a `TYPE` (EDS, RDS, ECDS, RTDS) of which an Envoy may ask for all resources with \"*\". By itself Envoy does not, and such a name is one that a stranger has sent, such as the server name of a TLS handshake")
	flags.Var(numberOf(&limits.AnyDepth, def.AnyDepth, positive), "max-any-depth", "maximum nesting depth (`NUMBER`) of Any messages in a resource that is served over REST")
	flags.Var(numberOf(&f.cfg.Group.Cache.MaxResources, cache.DefaultMaxResources, positive), "max-resources", "maximum `NUMBER` of cached resources per client group; an update beyond the limit gets a NACK")
	flags.Var(numberOf(&f.cfg.Group.Cache.MaxBytes, cache.DefaultMaxBytes, positive), "max-resource-bytes", "maximum size of the cached resources per client group, in `BYTES`; the default is 1 GiB")
}

func (f *runFlags) addState(c *command) {
	flags := c.section("Last known good")
	flags.StringVar(&f.cfg.Store.Dir, "state-dir", "", "`DIR` to store the accepted configuration in, for a restart without the control plane; it is created, private. Empty: in memory only")
	flags.StringVar(&f.cfg.Store.Identity, "state-identity", "", "`NAME` of the owner of the stored state; the state of another owner is set aside. Empty: the node's cluster and id, without IP addresses")
	flags.Var(texts(&f.stateKeys), "state-key-file", "`FILE` of a key of 32 bytes, mode 0600, to encrypt the state; without a key, secrets are not stored. Of several keys, the first encrypts and all decrypt")
	flags.Var(numberOf(&f.cfg.Group.RestoreAfter, group.DefaultRestoreAfter, positive), "restore-after", "serve the stored configuration after this `DURATION` even if no control plane has answered; it is served earlier if all have failed")
	flags.Var(numberOf(&f.cfg.Group.MaxStale, 0, notNegative), "max-stale", "maximum staleness: do not serve newly connecting Envoys if the last contact with a control plane is older than this `DURATION` (such as 72h); 0: no maximum")
	flags.Var(ttlPolicy(&f.cfg.Group.Cache.HoldTTL), "ttl-policy", "`TYPE=expire|hold`: whether resources of a type (LDS, CDS, …, or a type URL) are removed when their TTL expires, or held. The default of every type is expire")
	flags.Var(numberOf(&f.cfg.Group.Cache.HistoryBytes, archive.DefaultBytes, notNegative), "history-bytes", "keep earlier versions that Envoy accepted, for history, diff and rollback: the last 10 of each resource, and at most this size in total per client group, in `BYTES`; 0: none")
	removals := &f.cfg.Group.Cache.Guard
	flags.Var(numberOf(&removals.MaxRemovalPercent, guard.DefaultMaxRemovalPercent, bounds{max: 100}), "max-removal-percent", "hold removals back if more than this `PERCENT` of at least 4 listeners or clusters go within 5 s with nothing new in their place, or all of any number, which looks like an accident; 0: no limit, and nothing is held back")
	flags.Var(numberOf(&removals.ConfirmAfter, guard.DefaultConfirmAfter, positive), "removal-confirm-after", "hold removals back for this `DURATION`, then request everything again from the control plane, and remove what it does not send")
	flags.BoolVar(&removals.HoldEndpoints, "hold-endpoints", true, "keep the last endpoints for half a minute if the control plane empties those of all clusters, of at least three services, within 5 s; no effect with --max-removal-percent 0")
	flags.Var(numberOf(&removals.PruneAfter, 0, notNegative), "prune-unconfirmed-after", "remove listeners and clusters that a new control plane has not confirmed after this `DURATION`; 0: never")
}

func (f *runFlags) addAdmin(c *command) {
	cfg := &f.cfg.Admin
	flags := c.section("Health, metrics and logs")
	flags.StringVar(&cfg.Addr, "admin", admin.DefaultAddr, "`ADDR` of the admin interface (health, metrics, status, dump): unix:PATH or host:port; '' for none. The other commands connect to it")
	flags.Var(readers(users(&cfg.ReaderUIDs), groups(&cfg.ReaderGIDs)), "admin-readers", "`uid:USER or gid:GROUP`, by name or number, that may read status, dump, health and metrics if --admin is a Unix socket. Everything else, such as drain, quit and takeover, is for the agent's own user and root")
	flags.Var(either(&f.cfg.ReadyRequiresUpstream, "nothing", "upstream"), "ready-requires", "extra readiness condition: upstream requires a connected control plane. With nothing, an agent that serves cached configuration is ready")
	flags.StringVar(&cfg.Health, "health", admin.DefaultHealth, "`ADDR`, host:port, for the kubelet and Prometheus: /livez, /readyz, /startupz and /metrics, and with --istio what pilot-agent serves; '' for none")
	flags.BoolVar(&cfg.Pprof, "pprof", false, "serve CPU, heap and other profiles under /debug/pprof/ on --admin, which must be a Unix socket: curl --unix-socket PATH http://localhost/debug/pprof/heap")
	f.log.add(flags)
}

func (f *runFlags) addIstio(c *command) {
	flags := c.section("Istio")
	flags.BoolVar(&f.istio, "istio", false, "stand in for pilot-agent in a pod that istiod's webhook has changed: serve the application's probes, merged metrics (/stats/prometheus), /healthz/ready, /drain and /quitquitquit on --health, according to the variables of the webhook; and NACK Wasm modules that pilot-agent would download. With --write-bootstrap, also write the bootstrap that istiod expects (holdfast help bootstrap)")
}

// serviceNames makes a repeatable flag of names of gRPC services. Its first value replaces the
// default, and "none" is none.
func serviceNames(target *[]string) adder {
	given := false
	return func(name string) error {
		if !given {
			*target, given = []string{}, true
		}
		switch {
		case name == "none":
			return nil
		case !strings.Contains(name, ".") || !protoreflect.FullName(name).IsValid():
			return fmt.Errorf("%q is not a gRPC service: want its full name, such as envoy.service.load_stats.v3.LoadReportingService, or none", name)
		}
		if !slices.Contains(*target, name) {
			*target = append(*target, name)
		}
		return nil
	}
}

// typeURLOf returns the URL of a type by its abbreviation, or as it is.
func typeURLOf(name string) (string, error) {
	url, known := xds.TypeByShort(strings.ToUpper(name))
	switch {
	case known:
		return url, nil
	case strings.Contains(name, "/"):
		return name, nil
	}
	return "", fmt.Errorf("%q is not a type: want CDS, EDS, LDS, RDS, SRDS, VHDS, SDS, RTDS, ECDS or a type URL", name)
}

// wildcardTypeOf is typeURLOf for types of which an Envoy may have all resources. Secrets are none: a watch of all takes each for its own,
// NACKs it, and keeps the others from getting it (protocol-facts.md section 15).
func wildcardTypeOf(name string) (string, error) {
	url, err := typeURLOf(name)
	if url == xds.SecretType {
		return "", errors.New("SDS has no wildcard: an Envoy that gets all secrets NACKs each of them, and no certificate is renewed; remove it")
	}
	return url, err
}

// ttlPolicy makes a repeatable flag of TYPE=expire|hold pairs. target contains the type URLs with hold.
func ttlPolicy(target *map[string]bool) mapping {
	return textPairs("TYPE=expire or TYPE=hold", func(name, policy string) error {
		url, err := typeURLOf(name)
		if err != nil {
			return err
		}
		if *target == nil {
			*target = make(map[string]bool)
		}
		switch policy {
		case "hold":
			(*target)[url] = true
		case "expire":
			delete(*target, url)
		default:
			return fmt.Errorf("%s: %q is not a policy: want expire or hold", name, policy)
		}
		return nil
	})
}

// users makes a repeatable flag of users, by name or number.
func users(target *[]uint32) adder {
	return ids(target, func(name string) (id string, err error) {
		u, err := user.Lookup(name)
		if err == nil {
			id = u.Uid
		}
		return id, err
	})
}

// groups makes a repeatable flag of groups, by name or number.
func groups(target *[]uint32) adder {
	return ids(target, func(name string) (id string, err error) {
		g, err := user.LookupGroup(name)
		if err == nil {
			id = g.Gid
		}
		return id, err
	})
}

// ids makes a repeatable flag of numbers, or of names whose number lookup returns.
func ids(target *[]uint32, lookup func(name string) (string, error)) adder {
	return each(target, func(text string) (uint32, error) {
		if text == "" {
			return 0, errors.New("is empty")
		}
		digits := text
		if _, err := strconv.Atoi(text); err != nil {
			if digits, err = lookup(text); err != nil {
				return 0, fmt.Errorf("%q: %s on this machine: give the number", text, unknown(err))
			}
		}
		id, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || id == math.MaxUint32 { // which the kernel takes for none
			return 0, fmt.Errorf("%s: want a name, or a number from 0 to %d", text, uint32(math.MaxUint32-1))
		}
		return uint32(id), nil
	})
}

// unknown returns why a user or a group was not found. The name is not repeated, because the error
// quotes it.
func unknown(err error) string {
	if _, ok := errors.AsType[user.UnknownUserError](err); ok {
		return "unknown user"
	}
	if _, ok := errors.AsType[user.UnknownGroupError](err); ok {
		return "unknown group"
	}
	return fmt.Sprintf("not found (%q)", err)
}

// readers makes a repeatable flag of uid:USER or gid:GROUP.
func readers(uids, gids adder) adder {
	return func(text string) error {
		switch kind, id, _ := strings.Cut(text, ":"); {
		case kind == "uid" && id != "":
			return uids(id)
		case kind == "gid" && id != "":
			return gids(id)
		}
		return fmt.Errorf("%q: want uid:USER or gid:GROUP, such as uid:1000 or gid:monitoring", text)
	}
}
