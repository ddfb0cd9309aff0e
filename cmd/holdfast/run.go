package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/memory"
	"github.com/holdfast-xds/holdfast/internal/procs"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

const runLong = `Run the agent beside Envoy: take its configuration from a control plane, keep it,
and serve it on a Unix socket, until SIGTERM or SIGINT.

Envoy connects with the bootstrap that ` + "`holdfast bootstrap`" + ` writes. Several
Envoys, and other xDS clients, may use one agent. With --bootstrap or --node-id
the agent fetches the configuration before Envoy asks.`

const runExample = `
# a control plane with TLS, by a certificate of one's own authority
holdfast run --upstream xds.example.com:443 --upstream-ca /etc/holdfast/ca.pem --bootstrap /etc/envoy/envoy.yaml

# two control planes, the first one preferred; a token that is rotated
holdfast run --upstream xds-a:443 --upstream xds-b:443 --upstream-token-file /var/run/secrets/token

# without TLS, for a try on one machine
holdfast run --upstream 127.0.0.1:18000 --upstream-plaintext --socket /tmp/holdfast/xds.sock --admin unix:/tmp/holdfast/admin.sock

# from a directory of files
holdfast run --upstream file:/etc/xds`

// runFlags are the flags of `holdfast run`.
type runFlags struct {
	upstreams  list
	form       *choice
	security   dial.Security
	sans       list
	headers    headers
	maxMessage int
	ackTimeout time.Duration
	refresh    time.Duration

	socket            string
	socketMode        mode
	socketGroup       string
	allowUIDs         list
	allowGIDs         list
	linger            time.Duration
	passThrough       serviceNames
	rest              string
	restHold          time.Duration
	limits            downstream.Limits
	groups, resources int
	bytes             int64

	stateDir, stateIdentity                           string
	stateKeys                                         list
	restoreAfter, maxStale, failoverAfter, staleAfter time.Duration
	reconnectSpread, keepalive, keepaliveTimeout      time.Duration
	ttl                                               ttlPolicy
	maxRemoval                                        int
	removalConfirm, prune                             time.Duration

	certificates certificateFlags
	envoy        envoyFlags
	requires     *choice
	takeover     bool

	bootstrap string
	node      nodeFlags

	admin, health string
	adminReaders  list
	pprof         bool
	log           logFlags
}

func newRun(p process) *command {
	c := newCommand("run", "run the agent beside Envoy", runLong, runExample)
	c.takesChild = true
	f := &runFlags{form: oneOf("delta", "sotw"), socketMode: mode(downstream.DefaultSocketMode), log: newLogFlags()}
	f.add(c)
	c.run = func(ctx context.Context, warnings []string) error {
		log := f.log.logger(p.stderr, warnings)
		harden(log)
		limits := containerLimits(log)
		memory.Limit(os.Getenv, limits.Memory, log) // first of all: there is no need to collect what a start leaves
		cfg, err := f.config(log)
		if err != nil {
			return err
		}
		if err := f.checkPlaces(cfg); err != nil {
			return err
		}
		file := cmp.Or(f.bootstrap, configFile(c.child))
		if cfg.Node == nil && file != "" {
			cfg.Node = nodeOf(file, log)
		}
		if cfg.Envoy, err = f.envoy.config(c.child, file, filepath.Dir(f.socket), limits, p.stderr, log); err != nil {
			return err
		}
		if err := checkVersion(ctx, cfg.Envoy, log); err != nil {
			return failed(err)
		}
		cfg.Hurry, cfg.Signals = p.hurry, p.signals
		cfg.OnConnections = procs.New(os.Getenv).Serve
		a, err := agent.New(cfg)
		if err != nil {
			return err
		}
		f.warnExposed(log)
		if !f.pprof {
			runtime.MemProfileRate = 0 // samples of the heap cost memory, and nobody could read them
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go memory.GiveBack(ctx, log)
		return failed(a.Run(ctx))
	}
	return c
}

func (f *runFlags) add(c *command) {
	flags := c.section("Control plane")
	flags.Var(&f.upstreams, "upstream", "`ADDR` of a control plane: host:port, unix:PATH, dns:///HOST:PORT, http(s)://HOST for REST, or file:DIR for a directory of resources. Given several times, they are tried in this order. Required, unless there is --ca")
	flags.Var(f.form, "upstream-protocol", "the form of xDS that the control plane speaks")
	flags.Var(&f.headers, "upstream-header", "`NAME=VALUE` sent with every stream, for control planes that ask for it (ClusterID, x-consul-token)")
	flags.IntVar(&f.maxMessage, "upstream-max-message-bytes", upstream.DefaultMaxMessage, "the largest message that is accepted, in `BYTES`; the default is 256 MiB")
	flags.DurationVar(&f.ackTimeout, "ack-timeout", session.DefaultAckTimeout, "how long an acknowledgement to the control plane waits for what Envoy says (`DURATION`, such as 500ms or 2s); then it is given without")
	flags.DurationVar(&f.failoverAfter, "failover-after", upstream.DefaultFailoverAfter, "how long an upstream may be away before the next takes over though nothing is missing (`DURATION`); where something is, one failed attempt is enough")
	flags.DurationVar(&f.staleAfter, "stale-after", upstream.DefaultStaleAfter, "how long an upstream may say nothing before a second stream to it is tried, which takes over when it answers (`DURATION`)")
	flags.DurationVar(&f.reconnectSpread, "reconnect-spread", 0, "over how long the reconnects of many agents are spread when a control plane is back: each waits for a part of it that is drawn at random (`DURATION`); 0 to reconnect at once. For fleets of thousands")
	flags.DurationVar(&f.keepalive, "upstream-keepalive-time", upstream.DefaultKeepaliveTime, "how often a control plane that says nothing is asked whether it is there, by an HTTP/2 ping (`DURATION`, at least 10s). A gRPC server that does not allow it ends connections on which pings come more often than every 5 minutes; istiod allows 30s")
	flags.DurationVar(&f.keepaliveTimeout, "upstream-keepalive-timeout", upstream.DefaultKeepaliveTimeout, "how long it may take to answer such a ping, before its connection is given up (`DURATION`)")
	flags.DurationVar(&f.refresh, "upstream-rest-refresh", upstream.DefaultRESTRefresh, "the pause between two polls of a type, for REST (`DURATION`); up to as much again is added at random")
	flags = c.section("Security of the control plane (TLS, unless it is a Unix socket)")
	flags.StringVar(&f.security.CA, "upstream-ca", "", "PEM `FILE` of the authorities that its certificate must lead to; empty: those of the system")
	flags.StringVar(&f.security.Cert, "upstream-cert", "", "PEM `FILE` of the client certificate and its chain, if one is asked for; with --upstream-key")
	flags.StringVar(&f.security.Key, "upstream-key", "", "PEM `FILE` of the key of --upstream-cert")
	flags.StringVar(&f.security.ServerName, "upstream-server-name", "", "`NAME` that its certificate must have and that is sent as SNI; empty: the host of --upstream")
	flags.Var(&f.sans, "upstream-san", "`NAME` (DNS name, URI such as a SPIFFE ID, IP or e-mail address) that its certificate must have instead; one of several is enough")
	flags.StringVar(&f.security.TokenFile, "upstream-token-file", "", "`FILE` of a bearer token to send; it is read again at every attempt")
	flags.BoolVar(&f.security.Plaintext, "upstream-plaintext", false, "speak without TLS: everything, secrets too, is readable on the way")
	flags = c.section("Envoy")
	flags.StringVar(&f.socket, "socket", bootstrap.DefaultSocket, "`PATH` of the Unix socket where Envoy finds the agent, of at most 107 bytes; its directory is made, private, if it is missing")
	flags.Var(&f.socketMode, "socket-mode", "permissions of the socket, in `OCTAL`; in the file of --config put them into quotes")
	flags.StringVar(&f.socketGroup, "socket-group", "", "`GROUP`, by name or number, that owns the socket; empty: that of the process")
	flags.Var(&f.allowUIDs, "allow-uid", "`USER`, by name or number, that may use the socket. It and --allow-gid, both repeatable, name all who may, besides the agent's own user; without them those of --socket-group may, if it is given. The permissions of the socket and its directory must let them pass too")
	flags.Var(&f.allowGIDs, "allow-gid", "`GROUP`, by name or number, whose members may use the socket")
	flags.BoolVar(&f.takeover, "takeover", false, "take over from an agent that serves the socket, to exchange it by another version: it leaves its state, and Envoy comes over and loses nothing. Without it a second agent on a socket is refused")
	flags.DurationVar(&f.linger, "client-linger", cache.DefaultLinger, "how long the subscriptions of an Envoy that went away are kept (`DURATION`, such as 10m), so that it finds its configuration when it comes back")
	f.passThrough.names = downstream.DefaultPassThrough
	flags.Var(&f.passThrough, "pass-through", "full name of a gRPC `SERVICE`, repeatable, whose calls are passed through to the control plane, with the token and the headers of the agent; none for none. Calls of other services are refused. Unless it is given: envoy.service.load_stats.v3.LoadReportingService, envoy.service.health.v3.HealthDiscoveryService, envoy.service.accesslog.v3.AccessLogService and envoy.service.metrics.v3.MetricsService")
	flags.StringVar(&f.rest, "rest", "", "`ADDR`, host:port, where REST-JSON xDS is served too, in plaintext; a response with a secret in it (a key, a password, a header with credentials) is refused there. Empty for none. On the socket REST is always served, and whole")
	flags.DurationVar(&f.restHold, "rest-hold", 0, "how long a REST request whose version is current waits for a change (`DURATION`, such as 30s); Envoy's request_timeout must be longer. 0 answers at once")
	flags = c.section("Limits on clients and control plane (a mesh of 20,000 clusters stays below the defaults)")
	def := downstream.DefaultLimits
	flags.IntVar(&f.groups, "max-groups", agent.DefaultMaxGroups, "`NUMBER` of kinds of clients (node ids, mostly) that are served at once; each costs a stream to the control plane. Of those without a client the one that was used least recently gives way")
	flags.IntVar(&f.limits.Streams, "max-streams", def.Streams, "`NUMBER` of streams that may be open")
	flags.IntVar(&f.limits.Types, "max-types", def.Types, "`NUMBER` of types that one stream may ask for; the others are not answered")
	flags.IntVar(&f.limits.Subscriptions, "max-subscriptions", def.Subscriptions, "`NUMBER` of names of one type that one stream may subscribe to; of others it is served what is held")
	flags.IntVar(&f.limits.RequestRate, "max-request-rate", def.RequestRate, "`NUMBER` of requests of one stream that are read in a second, after a first --max-request-burst")
	flags.IntVar(&f.limits.RequestBurst, "max-request-burst", def.RequestBurst, "`NUMBER` of requests of one stream that are read at once")
	flags.IntVar(&f.limits.AnyDepth, "max-any-depth", def.AnyDepth, "`NUMBER` of Anys that may be nested in a resource that is served over REST")
	flags.IntVar(&f.resources, "max-resources", cache.DefaultMaxResources, "`NUMBER` of resources that are held for clients of one kind; what goes beyond is refused")
	flags.Int64Var(&f.bytes, "max-resource-bytes", cache.DefaultMaxBytes, "how much all their bodies together may be, in `BYTES`; the default is 1 GiB")
	flags = c.section("Last known good")
	flags.StringVar(&f.stateDir, "state-dir", "", "`DIR` where what Envoy accepted is kept for a restart without the control plane; it is made, private. Empty: in memory only")
	flags.StringVar(&f.stateIdentity, "state-identity", "", "`NAME` of whose state it is; another's is set aside. Empty: the node's cluster and id, without IP addresses")
	flags.Var(&f.stateKeys, "state-key-file", "`FILE` of a key of 32 bytes, mode 0600, to encrypt it; without one, secrets are not written. Of several the first writes, and all of them read")
	flags.DurationVar(&f.restoreAfter, "restore-after", group.DefaultRestoreAfter, "when at the latest what was kept is served though no control plane has answered (`DURATION`); as soon as all have failed, it is anyway")
	flags.DurationVar(&f.maxStale, "max-stale", 0, "how long after the last contact with a control plane an Envoy that comes anew is served (`DURATION`, such as 72h); 0 for ever")
	flags.Var(&f.ttl, "ttl-policy", "`TYPE=expire|hold`: whether resources of a type (LDS, CDS, …, or a type URL) go when their TTL ends without a word from the control plane. All expire unless told otherwise")
	flags.IntVar(&f.maxRemoval, "max-removal-percent", 0, "how many `PERCENT` of the listeners, or of the clusters, one answer may remove before that looks like an accident and is held back; 0 for no limit")
	flags.DurationVar(&f.removalConfirm, "removal-confirm-after", guard.DefaultConfirmAfter, "how long removals are held back (`DURATION`) before the control plane is asked again; what it lacks then goes")
	flags.DurationVar(&f.prune, "prune-unconfirmed-after", 0, "when listeners and clusters go that a new control plane neither confirms nor removes (`DURATION`); 0 for never")
	f.certificates.add(c)
	f.envoy.add(c)
	flags = c.section("Who Envoy is, to fetch its configuration before it asks (one way, or neither)")
	flags.StringVar(&f.bootstrap, "bootstrap", "", "`FILE` that Envoy will get as its bootstrap; the node is read from it")
	f.node.add(flags)
	flags = c.section("Watching the agent")
	flags.StringVar(&f.admin, "admin", admin.DefaultAddr, "`ADDR` for health, metrics, status and dump: unix:PATH or host:port; '' for none. `holdfast status` and `holdfast dump` ask there")
	flags.Var(&f.adminReaders, "admin-readers", "`uid:USER or gid:GROUP`, by name or number, repeatable, who may read what --admin serves on a Unix socket: status, dump, health and metrics. Everything else, such as drain, quit and takeover, is for the agent's own user and root")
	f.requires = oneOf("nothing", "upstream")
	flags.Var(f.requires, "ready-requires", "what else /readyz asks for: nothing, or that a control plane answers; without it an agent that serves what it has is ready")
	flags.StringVar(&f.health, "health", admin.DefaultHealth, "`ADDR`, host:port, for the kubelet and Prometheus: /livez, /readyz, /startupz and /metrics only; '' for none")
	flags.BoolVar(&f.pprof, "pprof", false, "serve CPU, heap and other profiles under /debug/pprof/ on --admin, which must be a Unix socket: curl --unix-socket PATH http://localhost/debug/pprof/heap")
	f.log.add(flags)
}

// minKeepalive is the least time between two pings: gRPC does not ping more often.
const minKeepalive = 10 * time.Second

// config wires the flags to the agent.
func (f *runFlags) config(log *slog.Logger) (agent.Config, error) {
	node, err := f.node.identity(f.bootstrap)
	if err != nil {
		return agent.Config{}, err
	}
	certificates, err := f.certificates.config()
	if err != nil {
		return agent.Config{}, err
	}
	switch {
	case len(f.upstreams) == 0 && len(certificates.Sources) == 0:
		return agent.Config{}, errors.New("--upstream is missing: name the control plane, such as --upstream xds.example.com:443, or a directory of resources, such as --upstream file:/etc/xds")
	case f.maxMessage <= 0:
		return agent.Config{}, fmt.Errorf("--upstream-max-message-bytes %d: want a positive number of bytes", f.maxMessage)
	case f.ackTimeout <= 0:
		return agent.Config{}, fmt.Errorf("--ack-timeout %s: want a positive duration", f.ackTimeout)
	case min(f.limits.Streams, f.limits.Types, f.limits.Subscriptions, f.limits.RequestRate, f.limits.RequestBurst, f.limits.AnyDepth) <= 0:
		return agent.Config{}, errors.New("a limit (--max-streams, --max-types, --max-subscriptions, --max-request-rate, --max-request-burst, --max-any-depth) is not positive")
	case f.groups <= 0:
		return agent.Config{}, fmt.Errorf("--max-groups %d: want a positive number", f.groups)
	case f.resources <= 0 || f.bytes <= 0:
		return agent.Config{}, errors.New("--max-resources and --max-resource-bytes: want positive numbers")
	case f.refresh <= 0:
		return agent.Config{}, fmt.Errorf("--upstream-rest-refresh %s: want a positive duration", f.refresh)
	case f.keepalive < minKeepalive:
		return agent.Config{}, fmt.Errorf("--upstream-keepalive-time %s: want at least %s", f.keepalive, minKeepalive)
	case f.keepaliveTimeout <= 0:
		return agent.Config{}, fmt.Errorf("--upstream-keepalive-timeout %s: want a positive duration", f.keepaliveTimeout)
	case f.reconnectSpread < 0:
		return agent.Config{}, fmt.Errorf("--reconnect-spread %s: want 0 or a positive duration", f.reconnectSpread)
	case f.restHold < 0:
		return agent.Config{}, fmt.Errorf("--rest-hold %s: want 0 or a positive duration", f.restHold)
	case f.linger <= 0:
		return agent.Config{}, fmt.Errorf("--client-linger %s: want a positive duration", f.linger)
	}
	if err := admin.CheckAddrs(f.admin, f.health); err != nil {
		return agent.Config{}, err
	}
	for _, d := range []struct {
		flag string
		set  time.Duration
	}{
		{"--restore-after", f.restoreAfter}, {"--failover-after", f.failoverAfter}, {"--stale-after", f.staleAfter},
		{"--removal-confirm-after", f.removalConfirm},
	} {
		if d.set <= 0 {
			return agent.Config{}, fmt.Errorf("%s %s: want a positive duration", d.flag, d.set)
		}
	}
	switch {
	case f.maxStale < 0 || f.prune < 0:
		return agent.Config{}, errors.New("--max-stale and --prune-unconfirmed-after: want 0 or a positive duration")
	case f.maxRemoval < 0 || f.maxRemoval > 100:
		return agent.Config{}, fmt.Errorf("--max-removal-percent %d: want 0 to 100", f.maxRemoval)
	case f.stateDir == "" && (len(f.stateKeys) > 0 || f.stateIdentity != ""):
		return agent.Config{}, errors.New("--state-key-file and --state-identity need --state-dir")
	}
	uids, err := numbers("--allow-uid", f.allowUIDs, userNumber)
	if err != nil {
		return agent.Config{}, err
	}
	gids, err := numbers("--allow-gid", f.allowGIDs, groupNumber)
	if err != nil {
		return agent.Config{}, err
	}
	readerUIDs, readerGIDs, err := f.readers()
	if err != nil {
		return agent.Config{}, err
	}
	keys, err := stateKeys(f.stateKeys)
	if err != nil {
		return agent.Config{}, err
	}
	form := xds.Delta
	if f.form.value == "sotw" {
		form = xds.SotW
	}
	f.security.SANs = f.sans
	return agent.Config{
		Version:       version,
		Upstreams:     f.upstreams,
		UpstreamForm:  form,
		Security:      f.security,
		Headers:       f.headers,
		MaxMessage:    f.maxMessage,
		AckTimeout:    f.ackTimeout,
		Limits:        f.limits,
		MaxGroups:     f.groups,
		MaxResources:  f.resources,
		MaxBytes:      f.bytes,
		RESTRefresh:   f.refresh,
		REST:          f.rest,
		RESTHold:      f.restHold,
		PassThrough:   f.passThrough.names,
		Socket:        downstream.SocketConfig{Path: f.socket, Mode: fs.FileMode(f.socketMode), Group: f.socketGroup},
		AllowUIDs:     uids,
		AllowGIDs:     gids,
		Node:          node,
		Linger:        f.linger,
		StateDir:      f.stateDir,
		StateIdentity: f.stateIdentity,
		StateKeys:     keys,
		RestoreAfter:  f.restoreAfter,
		MaxStale:      f.maxStale,
		FallbackFor:   f.envoy.fallback,
		FailoverAfter: f.failoverAfter,
		StaleAfter:    f.staleAfter,

		ReconnectSpread:  f.reconnectSpread,
		KeepaliveTime:    f.keepalive,
		KeepaliveTimeout: f.keepaliveTimeout,

		HoldTTL:      f.ttl,
		Certificates: certificates,
		Takeover:     f.takeover,

		ReadyRequiresUpstream: f.requires.value == "upstream",
		Guard:                 cache.Guard{MaxRemovalPercent: f.maxRemoval, ConfirmAfter: f.removalConfirm, PruneAfter: f.prune},
		Admin:                 f.admin,
		Health:                f.health,
		AdminReaderUIDs:       readerUIDs,
		AdminReaderGIDs:       readerGIDs,
		Pprof:                 f.pprof,
		Log:                   log,
	}, nil
}

// checkPlaces refuses addresses and paths that cannot be, or that contradict each other.
func (f *runFlags) checkPlaces(cfg agent.Config) error {
	if err := cfg.Socket.Check(); err != nil {
		if f.socket == "" {
			return errors.New("--socket is empty: name the path of the socket, such as " + bootstrap.DefaultSocket)
		}
		return fmt.Errorf("--socket: %w", err)
	}
	admin, unix := strings.CutPrefix(f.admin, "unix:")
	switch {
	case unix && filepath.Clean(admin) == filepath.Clean(f.socket):
		return fmt.Errorf("--admin and --socket are both %s: give each a path of its own", admin)
	case f.takeover && !unix:
		return errors.New("--takeover needs --admin unix:PATH, the same as that of the agent that is taken over from: it is asked there")
	}
	if f.rest == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(f.rest)
	if err != nil || strings.HasPrefix(f.rest, "unix:") {
		return fmt.Errorf("--rest: %q: want host:port, or '' for none; on the socket REST always is", f.rest)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("--rest: %q: port %q is not a number from 0 to 65535", f.rest, port)
	}
	return nil
}

// userNumber and groupNumber find a user, or a group, by its name.
func userNumber(name string) (string, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", err
	}
	return u.Uid, nil
}

func groupNumber(name string) (string, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}

// readers returns the numbers of --admin-readers.
func (f *runFlags) readers() (uids, gids []uint32, err error) {
	const flag = "--admin-readers"
	if _, unix := strings.CutPrefix(f.admin, "unix:"); !unix && len(f.adminReaders) > 0 {
		return nil, nil, fmt.Errorf("%s needs --admin unix:PATH: on a TCP address nobody is known", flag)
	}
	var users, groups []string
	for _, text := range f.adminReaders {
		switch kind, id, _ := strings.Cut(text, ":"); {
		case kind == "uid" && id != "":
			users = append(users, id)
		case kind == "gid" && id != "":
			groups = append(groups, id)
		default:
			return nil, nil, fmt.Errorf("%s %q: want uid:USER or gid:GROUP, such as uid:1000 or gid:monitoring", flag, text)
		}
	}
	if uids, err = numbers(flag, users, userNumber); err != nil {
		return nil, nil, err
	}
	gids, err = numbers(flag, groups, groupNumber)
	return uids, gids, err
}

// unknown says why a user or a group was not found, without its name, which may hold
// anything.
func unknown(err error) string {
	if _, ok := errors.AsType[user.UnknownUserError](err); ok {
		return "unknown user"
	}
	if _, ok := errors.AsType[user.UnknownGroupError](err); ok {
		return "unknown group"
	}
	return fmt.Sprintf("not found (%q)", err)
}

// numbers returns the numbers of users or groups, of which lookup finds those that
// are given by name.
func numbers(flag string, given []string, lookup func(name string) (string, error)) ([]uint32, error) {
	var ids []uint32
	for _, text := range given {
		number := text
		if _, err := strconv.Atoi(text); err != nil {
			if number, err = lookup(text); err != nil {
				return nil, fmt.Errorf("%s %q: %s on this machine: give the number", flag, text, unknown(err))
			}
		}
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil || id == math.MaxUint32 { // which the kernel takes for none
			return nil, fmt.Errorf("%s %s: want a name, or a number from 0 to %d", flag, text, uint32(math.MaxUint32-1))
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}
