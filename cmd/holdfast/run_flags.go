package main

import (
	"errors"
	"fmt"
	"math"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// minKeepalive is the minimum time between two pings of gRPC.
const minKeepalive = 10 * time.Second

func (f *runFlags) addUpstream(c *command) {
	up := &f.cfg.Upstream
	flags := c.section("Control plane")
	flags.Var(texts(&f.cfg.Upstreams), "upstream", "`ADDR` of a control plane: host:port, unix:PATH, dns:///HOST:PORT, http(s)://HOST for REST, or file:DIR for a directory of resources. The first of several is preferred, the others are tried in this order. Required, unless --ca is given")
	flags.Var(oneOf(&up.Form, xds.Delta, xds.SotW), "upstream-protocol", "variant of xDS that the control plane supports: delta (incremental), or sotw (state of the world)")
	flags.Var(headers(&up.Headers), "upstream-header", "`NAME=VALUE`, an extra request header (gRPC metadata), if the control plane requires one, such as ClusterID or x-consul-token")
	flags.Var(numberOf(&up.MaxMessage, upstream.DefaultMaxMessage, positive), "upstream-max-message-bytes", "maximum size of a message, in `BYTES`; the default is 256 MiB")
	flags.Var(numberOf(&up.AckTimeout, session.DefaultAckTimeout, positive), "ack-timeout", "ACK a response of the control plane after this `DURATION` (such as 500ms or 2s) even if Envoy has not answered yet")
	flags.Var(numberOf(&f.cfg.FailoverAfter, upstream.DefaultFailoverAfter, positive), "failover-after", "wait this `DURATION` before failing over while everything that Envoy needs is cached. If something is missing, fail over after one failed attempt")
	flags.Var(numberOf(&f.cfg.StaleAfter, upstream.DefaultStaleAfter, positive), "stale-after", "open a second stream to a control plane that has sent nothing for this `DURATION`; that stream takes over when it is answered")
	flags.Var(numberOf(&f.cfg.ReconnectSpread, 0, notNegative), "reconnect-spread", "reconnect within this `DURATION` after a control plane is back, each agent at a random time, so that thousands of agents do not reconnect at once; after a lost connection this delays the next upstream, too. 0: reconnect at once")
	flags.Var(numberOf(&up.KeepaliveTime, upstream.DefaultKeepaliveTime, bounds{min: int64(minKeepalive)}), "upstream-keepalive-time", "send an HTTP/2 ping when the control plane has sent nothing for this `DURATION`, at least 10s. A gRPC server with default settings closes connections that are pinged more often than every 5 minutes; istiod allows 30s")
	flags.Var(numberOf(&up.KeepaliveTimeout, upstream.DefaultKeepaliveTimeout, positive), "upstream-keepalive-timeout", "close the connection if such a ping is not answered within this `DURATION`")
	flags.Var(numberOf(&up.RESTRefresh, upstream.DefaultRESTRefresh, bounds{min: int64(100 * time.Millisecond), max: int64(24 * time.Hour)}), "upstream-rest-refresh", "pause between two polls of a type over REST (`DURATION`, 100ms to 24h); a random duration of up to the same length is added")
	flags = c.section("Security of the control plane (TLS, unless it is a Unix socket)")
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
	removals := &f.cfg.Group.Cache.Guard
	flags.Var(numberOf(&removals.MaxRemovalPercent, 0, bounds{max: 100}), "max-removal-percent", "hold removals back if one response removes more than this `PERCENT` of the listeners or of the clusters, which looks like an accident; 0: no limit")
	flags.Var(numberOf(&removals.ConfirmAfter, guard.DefaultConfirmAfter, positive), "removal-confirm-after", "hold removals back for this `DURATION`, then request everything again from the control plane, and remove what it does not send")
	flags.Var(numberOf(&removals.PruneAfter, 0, notNegative), "prune-unconfirmed-after", "remove listeners and clusters that a new control plane has not confirmed after this `DURATION`; 0: never")
}

func (f *runFlags) addAdmin(c *command) {
	cfg := &f.cfg.Admin
	flags := c.section("Health, metrics and logs")
	flags.StringVar(&cfg.Addr, "admin", admin.DefaultAddr, "`ADDR` of the admin interface (health, metrics, status, dump): unix:PATH or host:port; '' for none. The other commands connect to it")
	flags.Var(readers(users(&cfg.ReaderUIDs), groups(&cfg.ReaderGIDs)), "admin-readers", "`uid:USER or gid:GROUP`, by name or number, that may read status, dump, health and metrics if --admin is a Unix socket. Everything else, such as drain, quit and takeover, is for the agent's own user and root")
	flags.Var(either(&f.cfg.ReadyRequiresUpstream, "nothing", "upstream"), "ready-requires", "extra readiness condition: upstream requires a connected control plane. With nothing, an agent that serves cached configuration is ready")
	flags.StringVar(&cfg.Health, "health", admin.DefaultHealth, "`ADDR`, host:port, for the kubelet and Prometheus: /livez, /readyz, /startupz and /metrics only; '' for none")
	flags.BoolVar(&cfg.Pprof, "pprof", false, "serve CPU, heap and other profiles under /debug/pprof/ on --admin, which must be a Unix socket: curl --unix-socket PATH http://localhost/debug/pprof/heap")
	f.log.add(flags)
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

// ttlPolicy makes a repeatable flag of TYPE=expire|hold pairs. target contains the type URLs with hold.
func ttlPolicy(target *map[string]bool) mapping {
	return textPairs("TYPE=expire or TYPE=hold", func(name, policy string) error {
		url, known := xds.TypeByShort(strings.ToUpper(name))
		switch {
		case !known && !strings.Contains(name, "/"):
			return fmt.Errorf("%q is not a type: want CDS, EDS, LDS, RDS, SRDS, VHDS, SDS, RTDS, ECDS or a type URL", name)
		case !known:
			url = name
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
