// Package bootstrap builds, modifies, validates and writes the bootstrap file of an Envoy that takes its whole
// configuration from the agent, and reads the node identity from any Envoy bootstrap.
//
// Build builds a bootstrap from a Config, and Identity builds the node in it from what is known about a pod; Complete and
// Apply add templates and overlays; Check and CheckWithEnvoy validate the result; Encode and Write write it to disk.
//
// It promises that equal configurations give equal bytes, that the result of Build passes Envoy's own field rules, and that
// text from outside (a node id, metadata, the name of a stat) cannot change the structure of the file: nothing is assembled
// from text. It writes only the requested file, by atomic rename, and the temporary file that CheckWithEnvoy passes to an
// Envoy; only that function runs one. It does not talk to a control plane, and does not check that an agent listens on the
// socket.
//
// All functions may be called concurrently; none retains its arguments.
package bootstrap

import (
	"cmp"
	"time"
)

// Config is the input of Build. Empty fields have the defaults named here.
type Config struct {
	// Node is the identity of Envoy towards the control plane.
	Node Node
	// XDS is how Envoy connects to the agent.
	XDS XDS
	// Admin is the address of Envoy's admin interface: "unix:PATH" or "host:port" on loopback; DefaultAdmin, or
	// DefaultAdminV6 for the family V6. With port 0 the system chooses the port (Envoy writes it to the file of
	// --admin-address-path).
	Admin string
	// Family selects the addresses that the listeners of Endpoints bind to: V4 (the default), V6 or Dual.
	Family Family
	// Endpoints are listeners for the kubelet and Prometheus; none by default.
	Endpoints Endpoints
	// Stats selects Envoy's statistics; by default all of them, with Envoy's own tags and buckets.
	Stats Stats
	// Runtime is Envoy's layered runtime.
	Runtime Runtime
	// Overload limits what Envoy accepts; unlimited by default.
	Overload Overload
	// Log is the format of Envoy's own log lines; Text by default.
	Log LogFormat
}

// XDS is how Envoy connects to the agent.
type XDS struct {
	// Socket is the absolute path of the agent's Unix socket, at most 107 bytes; DefaultSocket.
	Socket string
	// Mode is Delta (the default) or SotW. REST is always SotW.
	Mode Mode
	// Transport is ADS (the default), PerType or REST.
	Transport Transport
	// RefreshDelay is the pause between two REST polls, at least 1 ms; DefaultRefreshDelay.
	RefreshDelay time.Duration
	// RequestTimeout bounds a REST poll; DefaultRequestTimeout. It must be longer than the time for which the agent delays
	// the response to a request with the current version.
	RequestTimeout time.Duration
}

// Mode is the form of xDS that Envoy speaks to the agent.
type Mode string

const (
	Delta Mode = "delta" // incremental, the default: only changes are sent, and removals are explicit
	SotW  Mode = "sotw"  // state of the world
)

// Transport is how the resource types are transported.
type Transport string

const (
	ADS     Transport = "ads"  // all types on one stream, the default; the only transport that preserves their order
	PerType Transport = "grpc" // each type on a stream of its own
	REST    Transport = "rest" // polling with JSON over HTTP/1.1
)

// Family is the set of addresses that listeners bind to.
type Family string

const (
	V4   Family = "v4"
	V6   Family = "v6"
	Dual Family = "dual" // both, on two sockets
)

// Endpoints are listeners that expose single paths of Envoy's admin interface, for GET and HEAD, without authentication.
// Every other path is answered with 404, so that the rest of the admin interface stays private. An address is "host:port"
// with an IP address, or ":port" for every interface of the Family; empty for none. The Admin port must not be 0.
type Endpoints struct {
	// Ready is the address that exposes ReadyPath.
	Ready string
	// Stats is the address that exposes StatsPath.
	Stats string
}

// Stats configures Envoy's statistics.
type Stats struct {
	// Tags are extracted from the names of stats, in addition to Envoy's default tags, or added to all stats.
	Tags []Tag
	// NoDefaultTags disables Envoy's default tags.
	NoDefaultTags bool
	// Include, unless empty, selects the stats; RequiredStats are added. Exclude selects the stats to leave out. Envoy
	// accepts only one of them.
	Include, Exclude []Match
	// Buckets are the bounds of histograms; the first rule that matches a histogram applies.
	Buckets []Buckets
	// FlushInterval is how often stats are sent to sinks and gauges such as server.live are updated, from 1 ms to 5 min;
	// Envoy's default is 5 s.
	FlushInterval time.Duration
}

// Tag is a tag of stats. Exactly one of Regex and Fixed is set.
type Tag struct {
	Name string
	// Regex extracts the tag from the name of a stat: the text of its first group is removed, and the value is the second
	// group, or the first if there is no second. The syntax is that of ECMAScript, as in Envoy.
	Regex string
	// Fixed is the value for every stat.
	Fixed string
}

// Match selects stats by name.
type Match struct {
	Kind MatchKind
	// Value is never empty. A Regex has RE2 syntax and must match the whole name.
	Value string
}

// MatchKind is how a Match compares names.
type MatchKind string

const (
	Prefix MatchKind = "prefix"
	Suffix MatchKind = "suffix"
	Regex  MatchKind = "regex"
)

// Buckets are the upper bounds of the buckets of histograms: positive, in the unit of the histogram, without duplicates.
type Buckets struct {
	Match  Match
	Bounds []float64
}

// Runtime is Envoy's layered runtime. A later layer overrides the keys of earlier ones: Values, then RTDS, then the values
// set with POST /runtime_modify.
type Runtime struct {
	// Values are JSON values, as in Node.Metadata: a boolean flag must be a boolean. The default of
	// re2.max_program_size.error_level is 32768, as Istio's; Envoy's own is 100.
	Values map[string]any
	// RTDS are names of layers from the agent. Envoy waits up to 15 s for each of them at the start, and continues without
	// a layer that the control plane does not have.
	RTDS []string
}

// Overload limits what Envoy accepts.
type Overload struct {
	// MaxHeap is in bytes; 0 is unlimited. At 92 % of it Envoy releases free memory, and at 98 % it answers requests with
	// 503.
	MaxHeap uint64
	// MaxConnections bounds the open downstream connections of all listeners except those of Endpoints; 0 is unlimited.
	// Envoy closes further connections immediately.
	MaxConnections uint32
}

// LogFormat is the format of Envoy's own log lines.
type LogFormat string

const (
	Text     LogFormat = "text" // Envoy's default format
	JSONLine LogFormat = "json" // one object per line: time, level, thread, logger, source, msg
)

// Defaults of Config.
const (
	DefaultSocket         = "/run/holdfast/xds.sock"
	DefaultAdmin          = "127.0.0.1:15000"
	DefaultAdminV6        = "[::1]:15000"
	DefaultRefreshDelay   = time.Second
	DefaultRequestTimeout = 5 * time.Second
)

// Names of the static resources. A control plane may refer to ClusterName, and must not use these names for its own resources.
const (
	// ClusterName is the cluster of the agent's socket for HTTP/2, and RESTClusterName for HTTP/1.1; the protocol is how
	// the agent distinguishes gRPC from REST.
	ClusterName     = "xds"
	RESTClusterName = "xds-rest"

	// AdminClusterName is the cluster of Envoy's admin interface, for the listeners ReadyListener and StatsListener.
	AdminClusterName = "envoy-admin"
	ReadyListener    = "envoy-ready"
	StatsListener    = "envoy-stats"
)

// withDefaults returns c with defaults for empty fields.
func (c Config) withDefaults() Config {
	c.Family = cmp.Or(c.Family, V4)
	if c.Family == V6 {
		c.Admin = cmp.Or(c.Admin, DefaultAdminV6)
	}
	c.Admin = cmp.Or(c.Admin, DefaultAdmin)
	c.Log = cmp.Or(c.Log, Text)
	x := &c.XDS
	x.Socket = cmp.Or(x.Socket, DefaultSocket)
	x.Mode = cmp.Or(x.Mode, Delta)
	x.Transport = cmp.Or(x.Transport, ADS)
	x.RefreshDelay = cmp.Or(x.RefreshDelay, DefaultRefreshDelay)
	x.RequestTimeout = cmp.Or(x.RequestTimeout, DefaultRequestTimeout)
	return c
}
