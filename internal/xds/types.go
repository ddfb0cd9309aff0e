// Package xds has holdfast's vocabulary of xDS: type URLs and the order in which they are pushed,
// resources and updates, the reading of a resource's name from its bytes, content hashes, and TTLs.
//
// It promises that the body of a resource is never decoded and never re-encoded: a client gets the
// bytes that the control plane sent, also for types that did not exist when this was built. What
// must be known of a body (its name, the EDS name of a cluster, the clusters that a route leads to,
// the address of a listener) is read by a shallow scan of its wire form.
//
// Everything in it may be called concurrently; a *Resource must not be changed after it was handed on.
package xds

import (
	"cmp"
	"strings"
)

const googleapis = "type.googleapis.com/"

// AgentUserAgent is the beginning of the user agent of an agent's streams, as gRPC sends it.
const AgentUserAgent = "holdfast"

// EnvoyUserAgent is the user_agent_name of Envoy's Node.
const EnvoyUserAgent = "envoy"

// Client features that holdfast has or looks for, as the xDS specification names them
// (protocol.md 8.9).
const (
	FeatureResourceInSotW = "xds.config.resource-in-sotw"
	FeatureResourceTTL    = "xds.config.supports-resource-ttl"
)

// Type URLs of resources that Envoy 1.40 requests.
const (
	ListenerType        = googleapis + "envoy.config.listener.v3.Listener"
	RouteType           = googleapis + "envoy.config.route.v3.RouteConfiguration"
	ScopedRouteType     = googleapis + "envoy.config.route.v3.ScopedRouteConfiguration"
	VirtualHostType     = googleapis + "envoy.config.route.v3.VirtualHost"
	ClusterType         = googleapis + "envoy.config.cluster.v3.Cluster"
	EndpointType        = googleapis + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	SecretType          = googleapis + "envoy.extensions.transport_sockets.tls.v3.Secret"
	RuntimeType         = googleapis + "envoy.service.runtime.v3.Runtime"
	ExtensionConfigType = googleapis + "envoy.config.core.v3.TypedExtensionConfig"
	ThriftRouteType     = googleapis + "envoy.extensions.filters.network.thrift_proxy.v3.RouteConfiguration"

	// FilterChainType is that of the filter chains of a listener that are discovered (FCDS).
	FilterChainType = googleapis + "envoy.config.listener.v3.FilterChain"

	// BootstrapType is the type under which holdfast-mesh serves what EnvoyFilters change in the bootstrap of an
	// Envoy, for its agent: one part of a bootstrap each. No Envoy requests it.
	BootstrapType = googleapis + "envoy.config.bootstrap.v3.Bootstrap"

	// WrapperType is the type URL of discovery.v3.Resource, in which a SotW response may wrap a
	// resource to give it a name, a TTL or aliases (protocol.md 1.14).
	WrapperType = googleapis + "envoy.service.discovery.v3.Resource"

	// HealthType is the type URL with which Istio's agent reports the health of its workload in a request that subscribes
	// to nothing and gets no response: with an error_detail the workload is unhealthy, and without one it is healthy.
	HealthType = googleapis + "istio.v1.HealthInformation"

	// AgentReportType is the type URL with which an agent tells holdfast-mesh of itself, in a request that subscribes to nothing
	// and gets no response: the message of its error_detail is an AgentReport, and without error_detail there is nothing to tell
	// any more. It is sent only to a server whose control_plane.identifier begins with MeshIdentifier.
	AgentReportType = googleapis + "holdfast.v1.AgentReport"
	MeshIdentifier  = "holdfast-mesh/"
)

// TypeInfo describes how holdfast treats the resources of one type.
type TypeInfo struct {
	url string
	// Short is the customary abbreviation; for a type that is not in the table, the name of its
	// message.
	Short string
	// RESTName is the end of the path at which the type is fetched over REST
	// ("/v3/discovery:clusters"); "" if it is not available over REST. Secrets do not belong in
	// plain JSON.
	RESTName string
	// FullState says that a SotW response is the complete set, so that absence is deletion
	// (protocol.md 1.13; design.md I3).
	FullState bool
	// LegacyWildcard says that a first request without names subscribes to the wildcard. The xDS
	// specification says so for all types. Of Envoy's types it holds for LDS, CDS, SRDS and, in
	// Delta, VHDS; for others Envoy sends such requests when it needs nothing (protocol.md 2.1, V8,
	// V11). It also holds for types that are not Envoy's, such as Istio's.
	LegacyWildcard bool
	// PassTTL says that Envoy enforces the TTL of a Delta resource. In SotW it enforces none:
	// there an expiry crashes Envoy 1.40 (protocol.md V4, 6.4, 6.5).
	PassTTL bool
	// RemoveExpired says that the end of a TTL is sent to clients as a removal. For other types
	// Envoy ignores the removal or, for extension configurations, answers every request with 500
	// (protocol.md 6.3, V5).
	RemoveExpired bool
	// GuardRemovals says that the removal guard counts the removals of the type (design.md I10).
	GuardRemovals bool
	// FallBack says that after a crash loop the stable version may be served in place of the
	// newest. It does not hold for endpoints, because old endpoints lead nowhere.
	FallBack bool
	// LeadsToClusters says that the resources send requests to clusters, which must be there before
	// (design.md I4; see LeadsToClusters).
	LeadsToClusters bool
	// RemoveLate says that a removal is sent after everything else, which may have led to the
	// resource (design.md I4).
	RemoveLate bool
	// OnDemand says that Envoy waits for an answer about the type: at its start about any name, and
	// then, while a request waits, about each name that the request made it subscribe to
	// (protocol.md 3.15, V11). So clients are also sent that a name does not exist if they never
	// had it.
	OnDemand bool
	// Parent says that the resources refer to others by subscriptions of their own, and Follows that a client may lack a resource after what
	// refers to it has changed, although it had it (protocol.md V16).
	Parent, Follows bool

	order     int // the place in a push (design.md I4)
	reference int // see CompareReferences
}

// types is in push order (design.md I4): a cluster before its endpoints, both before the listeners
// and routes that lead to them, and after a listener what it refers to, because a client subscribes
// to that only then.
var types = []TypeInfo{
	{url: ClusterType, Short: "CDS", RESTName: "clusters", FullState: true, LegacyWildcard: true, PassTTL: true, RemoveExpired: true, GuardRemovals: true, FallBack: true, RemoveLate: true, Parent: true, reference: 1},
	{url: EndpointType, Short: "EDS", RESTName: "endpoints"},
	{url: ListenerType, Short: "LDS", RESTName: "listeners", FullState: true, LegacyWildcard: true, PassTTL: true, RemoveExpired: true, GuardRemovals: true, FallBack: true, LeadsToClusters: true, Parent: true, reference: 5},
	{url: RouteType, Short: "RDS", RESTName: "routes", FallBack: true, LeadsToClusters: true, reference: 3},
	{url: ScopedRouteType, Short: "SRDS", RESTName: "scoped-routes", FullState: true, LegacyWildcard: true, RemoveExpired: true, FallBack: true, LeadsToClusters: true, reference: 4},
	{url: VirtualHostType, Short: "VHDS", LegacyWildcard: true, FallBack: true, LeadsToClusters: true, OnDemand: true, reference: 2},
	{url: ThriftRouteType, Short: "TRDS", RemoveExpired: true, FallBack: true},
	{url: SecretType, Short: "SDS", FallBack: true, Follows: true},
	{url: RuntimeType, Short: "RTDS", RESTName: "runtime", PassTTL: true, RemoveExpired: true, FallBack: true},
	{url: ExtensionConfigType, Short: "ECDS", RESTName: "extension_configs", FallBack: true, Parent: true, Follows: true, reference: 2},
}

var infos = func() map[string]TypeInfo {
	m := make(map[string]TypeInfo, len(types))
	for i := range types {
		types[i].order = i
		m[types[i].url] = types[i]
	}
	return m
}()

// Info returns how a type is treated.
func Info(typeURL string) TypeInfo {
	if info, known := infos[typeURL]; known {
		return info
	}
	return TypeInfo{
		Short:          typeURL[strings.LastIndexByte(typeURL, '/')+1:],
		LegacyWildcard: typeURL != "" && !strings.HasPrefix(typeURL, googleapis+"envoy."),
		RemoveExpired:  true,
		FallBack:       true,
		order:          len(types),
	}
}

// Types returns the type URLs of the table in push order.
func Types() []string { return TypesWhere(func(TypeInfo) bool { return true }) }

// TypesWhere returns the type URLs of the table for which match returns true, in push order.
func TypesWhere(match func(TypeInfo) bool) (urls []string) {
	for _, t := range types {
		if match(t) {
			urls = append(urls, t.url)
		}
	}
	return urls
}

// CompareTypes orders type URLs as they are pushed (design.md I4): those of the table in its order,
// then the others alphabetically.
func CompareTypes(a, b string) int {
	return cmp.Or(Info(a).order-Info(b).order, strings.Compare(a, b))
}

// CompareShort orders short names as CompareTypes orders their type URLs; types that have none come last, alphabetically.
func CompareShort(a, b string) int {
	x, _ := TypeByShort(a)
	y, _ := TypeByShort(b)
	return cmp.Or(CompareTypes(x, y), strings.Compare(a, b))
}

// CompareReferences orders type URLs so that a type comes before those that refer to it: endpoints
// and secrets first, then clusters, then routes, and listeners last. Types that are not in the
// table come first, too.
func CompareReferences(a, b string) int { return Info(a).reference - Info(b).reference }

// NamedByEnvoy reports whether Envoy asks for resources of a type by their names only: it has no way to be configured to ask
// for all of them.
func NamedByEnvoy(typeURL string) bool {
	info, known := infos[typeURL]
	return known && !info.LegacyWildcard
}

// builtIn are the listeners and clusters that meshes give every sidecar, whatever services there are: Istio's and holdfast-mesh's,
// those of Consul, and those of Kuma.
var builtIn = map[string][]string{
	ListenerType: {
		"virtualInbound", "virtualOutbound",
		"public_listener", "outbound_listener",
		"inbound:passthrough:ipv4", "inbound:passthrough:ipv6", "outbound:passthrough:ipv4", "outbound:passthrough:ipv6",
	},
	ClusterType: {
		"BlackHoleCluster", "PassthroughCluster", "InboundPassthroughCluster", "InboundPassthroughClusterIpv4", "InboundPassthroughClusterIpv6",
		"original-destination", "local_app",
		"inbound:passthrough:ipv4", "inbound:passthrough:ipv6", "outbound:passthrough:ipv4", "outbound:passthrough:ipv6",
	},
}

// BuiltIn returns the names of the listeners or clusters that a mesh gives every sidecar, whatever services there are; nil for
// another type.
func BuiltIn(typeURL string) []string { return builtIn[typeURL] }

// FullState reports whether a SotW response of the type is the complete set.
func FullState(typeURL string) bool { return Info(typeURL).FullState }

// Short returns TypeInfo.Short of a type.
func Short(typeURL string) string { return Info(typeURL).Short }

// TypeByShort is the inverse of Short for the types of the table, regardless of letter case; ok is
// false for anything else.
func TypeByShort(short string) (typeURL string, ok bool) {
	return find(func(info TypeInfo) bool { return strings.EqualFold(info.Short, short) })
}

// TypeByRESTName returns the type with a RESTName; ok is false if there is none.
func TypeByRESTName(name string) (typeURL string, ok bool) {
	return find(func(info TypeInfo) bool { return name != "" && info.RESTName == name })
}

// find returns the first type of the table for which match returns true.
func find(match func(TypeInfo) bool) (typeURL string, ok bool) {
	for _, t := range types {
		if match(t) {
			return t.url, true
		}
	}
	return "", false
}

// Wildcard is the name that subscribes to every resource of a type.
const Wildcard = "*"
