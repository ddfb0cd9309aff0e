package xds

import "strings"

const googleapis = "type.googleapis.com/"

// EnvoyUserAgent is what Envoy calls itself in its Node.
const EnvoyUserAgent = "envoy"

// Client features that holdfast has or looks for, as the xDS specification names them
// (protocol.md 8.9).
const (
	FeatureResourceInSotW = "xds.config.resource-in-sotw"
	FeatureResourceTTL    = "xds.config.supports-resource-ttl"
)

// Type URLs of the resources that Envoy 1.40 asks a management server for.
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

	// WrapperType is the type URL of discovery.v3.Resource, in which a SotW
	// response may wrap a resource to give it a name, a TTL or aliases
	// (xDS specification, "SotW and TTL"; protocol.md 1.14).
	WrapperType = googleapis + "envoy.service.discovery.v3.Resource"
)

// typeInfo is what the protocol says of one type.
type typeInfo struct {
	short string
	// order is the place in a push (design.md I4).
	order int
	// fullState: a SotW response is the complete set, and absence is deletion
	// (protocol.md 1.13; design.md I3).
	fullState bool
}

// pushOrder is design.md I4: a cluster before its endpoints, both before the
// listeners and routes that lead to them; what a listener needs after it, since
// a client asks for it only then.
var pushOrder = []struct {
	url  string
	info typeInfo
}{
	{ClusterType, typeInfo{short: "CDS", fullState: true}},
	{EndpointType, typeInfo{short: "EDS"}},
	{ListenerType, typeInfo{short: "LDS", fullState: true}},
	{RouteType, typeInfo{short: "RDS"}},
	{ScopedRouteType, typeInfo{short: "SRDS", fullState: true}},
	{VirtualHostType, typeInfo{short: "VHDS"}},
	{ThriftRouteType, typeInfo{short: "TRDS"}},
	{SecretType, typeInfo{short: "SDS"}},
	{RuntimeType, typeInfo{short: "RTDS"}},
	{ExtensionConfigType, typeInfo{short: "ECDS"}},
}

var knownTypes = func() map[string]typeInfo {
	m := make(map[string]typeInfo, len(pushOrder))
	for i, t := range pushOrder {
		t.info.order = i
		m[t.url] = t.info
	}
	return m
}()

// Types returns the known type URLs in push order.
func Types() []string {
	urls := make([]string, len(pushOrder))
	for i, t := range pushOrder {
		urls[i] = t.url
	}
	return urls
}

// CompareTypes orders type URLs as they are pushed (design.md I4): the known
// ones in their order, then the others alphabetically.
func CompareTypes(a, b string) int {
	ia, oka := knownTypes[a]
	ib, okb := knownTypes[b]
	switch {
	case oka && okb:
		return ia.order - ib.order
	case oka:
		return -1
	case okb:
		return 1
	default:
		return strings.Compare(a, b)
	}
}

// CompareReferences orders type URLs so that what others refer to comes first: endpoints
// and secrets, the clusters that name them, the routes that lead to those, listeners at
// the end. Types that nobody knows come first, too.
func CompareReferences(a, b string) int { return depth(a) - depth(b) }

// depth returns how many types may stand between a type and what refers to nothing.
func depth(typeURL string) int {
	switch typeURL {
	case ClusterType:
		return 1
	case ExtensionConfigType, VirtualHostType:
		return 2
	case RouteType:
		return 3
	case ScopedRouteType:
		return 4
	case ListenerType:
		return 5
	}
	return 0
}

// FullState reports whether a SotW response of the type is the complete set, so
// that absence is deletion: LDS, CDS and SRDS (design.md I3, protocol.md 1.13).
func FullState(typeURL string) bool { return knownTypes[typeURL].fullState }

// LegacyWildcard reports whether a first request of the type that names nothing
// means everything. The xDS specification says so of all types; of Envoy's it is true of LDS,
// CDS and SRDS, and VHDS, which exists in Delta only: of others Envoy sends such requests to
// say that it wants nothing (protocol.md 2.1, V8, V11). So it is true of types that are not
// Envoy's, such as Istio's.
func LegacyWildcard(typeURL string) bool {
	if _, known := knownTypes[typeURL]; !known {
		return typeURL != "" && !strings.HasPrefix(typeURL, googleapis+"envoy.")
	}
	return typeURL == VirtualHostType || knownTypes[typeURL].fullState
}

// Short returns the customary abbreviation of a known type URL ("CDS"), and of
// any other the message name after the last slash.
func Short(typeURL string) string {
	if info, ok := knownTypes[typeURL]; ok {
		return info.short
	}
	return typeURL[strings.LastIndexByte(typeURL, '/')+1:]
}

// TypeByShort is the inverse of Short for the known types; ok is false for
// anything else. Letter case is ignored.
func TypeByShort(short string) (typeURL string, ok bool) {
	for _, t := range pushOrder {
		if strings.EqualFold(t.info.short, short) {
			return t.url, true
		}
	}
	return "", false
}

// Wildcard is the name that subscribes to every resource of a type
// (xDS specification, "How the client specifies what resources to return").
const Wildcard = "*"
