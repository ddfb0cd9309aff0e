package bootstrap

import "time"

// Config is what a bootstrap is made from. Empty fields have the defaults named here.
type Config struct {
	// Node is who Envoy is to the control plane.
	Node Node

	// XDS is how Envoy reaches the agent.
	XDS XDS

	// Admin is the address of Envoy's admin: "unix:PATH" or "host:port" on loopback; DefaultAdmin, or DefaultAdminV6 for the
	// family V6. Port 0 lets the system choose (Envoy tells it with --admin-address-path).
	Admin string

	// Family is what the listeners of Endpoints bind to: V4 (the default), V6 or Dual.
	Family Family

	// Endpoints are listeners for the kubelet and Prometheus: none.
	Endpoints Endpoints

	// Stats is what Envoy counts: everything, with Envoy's own tags and buckets.
	Stats Stats

	// Runtime is Envoy's layered runtime: none.
	Runtime Runtime

	// Overload is when Envoy takes no more: never.
	Overload Overload

	// Log is the form of Envoy's own log lines: Text.
	Log LogFormat
}

// XDS is how Envoy reaches the agent.
type XDS struct {
	// Socket is the absolute path, of at most 107 bytes, of the agent's Unix socket: DefaultSocket.
	Socket string

	// Mode is Delta (the default) or SotW. REST is always SotW.
	Mode Mode

	// Transport is ADS (the default), PerType or REST.
	Transport Transport

	// RefreshDelay is the pause between two polls of REST: DefaultRefreshDelay. At least 1 ms.
	RefreshDelay time.Duration

	// RequestTimeout is how long a poll of REST may take: DefaultRequestTimeout. It must be longer than the agent holds a
	// request whose version is current.
	RequestTimeout time.Duration
}

// Mode is the form of xDS that Envoy speaks to the agent.
type Mode string

// The modes.
const (
	Delta Mode = "delta" // incremental, the default: a change costs its own size, and a removal is said explicitly
	SotW  Mode = "sotw"  // state of the world
)

// Transport is how the types of resources travel.
type Transport string

// The transports.
const (
	ADS     Transport = "ads"  // all types on one stream, the default: only so is their order kept
	PerType Transport = "grpc" // each type on a stream of its own
	REST    Transport = "rest" // polls of JSON over HTTP/1.1
)

// Family is which addresses listeners bind to.
type Family string

// The families.
const (
	V4   Family = "v4"
	V6   Family = "v6"
	Dual Family = "dual" // both, on two sockets
)

// Endpoints are listeners that show single paths of Envoy's admin, by GET and HEAD, to everybody who reaches them. Every
// other path is answered with 404, so that the admin itself stays private. They are "host:port" with an IP address for
// host, or ":port" for every interface of the Family; empty: none. They need an Admin that is no port 0.
type Endpoints struct {
	// Ready shows ReadyPath.
	Ready string

	// Stats shows StatsPath.
	Stats string
}

// Stats is what Envoy counts.
type Stats struct {
	// Tags are taken out of the names of stats, besides those that Envoy knows, or added to all of them.
	Tags []Tag

	// NoDefaultTags leaves out the tags that Envoy knows.
	NoDefaultTags bool

	// Include, unless empty, names all stats that there shall be; RequiredStats are added. Exclude names those that there
	// shall not be. Only one of both may be given: Envoy has no place for two.
	Include, Exclude []Match

	// Buckets are the bounds of histograms; of several rules that match the first counts.
	Buckets []Buckets

	// FlushInterval is how often stats are sent to sinks, and gauges such as server.live are updated: Envoy's 5 s. From
	// 1 ms to 5 min.
	FlushInterval time.Duration
}

// Tag is a tag of stats. Exactly one of Regex and Fixed is given.
type Tag struct {
	Name string

	// Regex finds the tag in the name of a stat: its first group is cut out, its second is the value, or the first where
	// there is one only. The syntax is that of ECMAScript, in which Envoy compiles it.
	Regex string

	// Fixed is the value for every stat.
	Fixed string
}

// Match finds names of stats.
type Match struct {
	Kind MatchKind
	// Value is never empty. A Regex is one of RE2 that matches the whole name.
	Value string
}

// MatchKind is how a Match is compared.
type MatchKind string

// The kinds.
const (
	Prefix MatchKind = "prefix"
	Suffix MatchKind = "suffix"
	Regex  MatchKind = "regex"
)

// Buckets are the upper bounds of the buckets of histograms: positive, in the unit of the histogram, each once.
type Buckets struct {
	Match  Match
	Bounds []float64
}

// Runtime is Envoy's layered runtime; of layers with the same key a later one counts: Values, then RTDS, then what is set
// with POST /runtime_modify. Empty: Envoy has no runtime.
type Runtime struct {
	// Values are JSON values, as in Node.Metadata: a flag that is a boolean must be one.
	Values map[string]any

	// RTDS are names of layers to be taken from the agent, over the Transport. Envoy waits for each of them 15 s at the
	// start, and then goes on without: a control plane that has no such layer does not hold it up for ever.
	RTDS []string
}

// Overload is when Envoy takes no more.
type Overload struct {
	// MaxHeap is in bytes; 0: no limit. From 92 % of it on Envoy gives free memory back, from 98 % on it answers requests
	// with 503.
	MaxHeap uint64

	// MaxConnections is how many downstream connections may be open at once in all listeners, but for those of Endpoints;
	// 0: no limit. What comes beyond is closed at once.
	MaxConnections uint32
}

// LogFormat is the form of Envoy's own log lines.
type LogFormat string

// The forms.
const (
	Text     LogFormat = "text" // Envoy's own
	JSONLine LogFormat = "json" // an object a line: time, level, thread, logger, source, msg
)

// Defaults of Config.
const (
	DefaultSocket         = "/run/holdfast/xds.sock"
	DefaultAdmin          = "127.0.0.1:15000"
	DefaultAdminV6        = "[::1]:15000"
	DefaultRefreshDelay   = time.Second
	DefaultRequestTimeout = 5 * time.Second
)

// Names of the static resources. Resources of a control plane may refer to ClusterName, and must not have any of them.
const (
	// ClusterName leads to the agent's socket in HTTP/2; RESTClusterName in HTTP/1.1, which is how the agent tells REST from
	// gRPC.
	ClusterName     = "xds"
	RESTClusterName = "xds-rest"

	// AdminClusterName leads to Envoy's admin, for the listeners ReadyListener and StatsListener.
	AdminClusterName = "envoy-admin"
	ReadyListener    = "envoy-ready"
	StatsListener    = "envoy-stats"
)

// withDefaults returns c with the defaults in place of what is empty.
func (c Config) withDefaults() Config {
	if c.Family == "" {
		c.Family = V4
	}
	if c.Admin == "" {
		c.Admin = DefaultAdmin
		if c.Family == V6 {
			c.Admin = DefaultAdminV6
		}
	}
	if c.Log == "" {
		c.Log = Text
	}
	c.XDS = c.XDS.withDefaults()
	return c
}

func (x XDS) withDefaults() XDS {
	if x.Socket == "" {
		x.Socket = DefaultSocket
	}
	if x.Mode == "" {
		x.Mode = Delta
	}
	if x.Transport == "" {
		x.Transport = ADS
	}
	if x.RefreshDelay == 0 {
		x.RefreshDelay = DefaultRefreshDelay
	}
	if x.RequestTimeout == 0 {
		x.RequestTimeout = DefaultRequestTimeout
	}
	return x
}
