package istio

import (
	"fmt"
	"strings"
	"testing"
)

// feature is what an operator would name as one thing that a mesh does. A case has it if it has one of
// the paths; PATH=VALUE asks for a value that begins so.
type feature struct {
	name  string
	paths []string
}

// policyPlaces are the places of a policy in a DestinationRule.
var policyPlaces = []string{"trafficPolicy.", "trafficPolicy.portLevelSettings[].", "subsets[].trafficPolicy.", "subsets[].trafficPolicy.portLevelSettings[]."}

// policy returns the paths of a policy of a DestinationRule.
func policy(name string) (paths []string) {
	for _, place := range policyPlaces {
		paths = append(paths, "DestinationRule "+place+name)
	}
	return paths
}

var allFeatures = []feature{
	{"match", []string{"HTTPRoute spec.rules[].matches[].path", "HTTPRoute spec.rules[].matches[].headers[]", "HTTPRoute spec.rules[].matches[].method", "HTTPRoute spec.rules[].matches[].queryParams[]", "GRPCRoute spec.rules[].matches[].method", "GRPCRoute spec.rules[].matches[].headers[]", "VirtualService http[].match[].uri", "VirtualService http[].match[].headers", "VirtualService http[].match[].method", "VirtualService http[].match[].queryParams", "VirtualService http[].match[].authority", "VirtualService http[].match[].scheme", "VirtualService http[].match[].withoutHeaders", "VirtualService http[].match[].port", "VirtualService http[].match[].sourceLabels", "VirtualService http[].match[].sourceNamespace", "VirtualService http[].match[].gateways"}},
	{"weights", []string{"HTTPRoute spec.rules[].backendRefs[].weight", "GRPCRoute spec.rules[].backendRefs[].weight", "TCPRoute spec.rules[].backendRefs[].weight", "VirtualService http[].route[].weight", "VirtualService tcp[].route[].weight", "VirtualService tls[].route[].weight"}},
	{"redirect", []string{"HTTPRoute spec.rules[].filters[].requestRedirect", "VirtualService http[].redirect"}},
	{"rewrite", []string{"HTTPRoute spec.rules[].filters[].urlRewrite", "VirtualService http[].rewrite"}},
	{"retries", []string{"HTTPRoute spec.rules[].retry", "VirtualService http[].retries", "MeshConfig defaultHttpRetryPolicy"}},
	{"timeout", []string{"HTTPRoute spec.rules[].timeouts", "VirtualService http[].timeout"}},
	{"fault", []string{"VirtualService http[].fault"}},
	{"mirror", []string{"HTTPRoute spec.rules[].filters[].requestMirror", "GRPCRoute spec.rules[].filters[].requestMirror", "VirtualService http[].mirror", "VirtualService http[].mirrors[]"}},
	{"headers", []string{"HTTPRoute spec.rules[].filters[].requestHeaderModifier", "HTTPRoute spec.rules[].filters[].responseHeaderModifier", "GRPCRoute spec.rules[].filters[].requestHeaderModifier", "HTTPRoute spec.rules[].backendRefs[].filters[]", "VirtualService http[].headers", "VirtualService http[].route[].headers"}},
	{"CORS", []string{"HTTPRoute spec.rules[].filters[].cors", "VirtualService http[].corsPolicy"}},
	{"delegate", []string{"VirtualService http[].delegate"}},
	{"TCP route", []string{"TCPRoute spec.rules[]", "VirtualService tcp[]"}},
	{"TLS route", []string{"TLSRoute spec.rules[]", "VirtualService tls[]"}},
	{"subset", []string{"DestinationRule subsets[].labels"}},
	{"load balancing", append(policy("loadBalancer.simple"), policy("loadBalancer.consistentHash")...)},
	{"slow start", append(policy("loadBalancer.warmup"), policy("loadBalancer.warmupDurationSecs")...)},
	{"locality", append(policy("loadBalancer.localityLbSetting"), "MeshConfig localityLbSetting")},
	{"connection pool", policy("connectionPool")},
	{"outlier detection", policy("outlierDetection")},
	{"upstream TLS", policy("tls")},
	{"proxy protocol", []string{"DestinationRule trafficPolicy.proxyProtocol", "DestinationRule subsets[].trafficPolicy.proxyProtocol"}},
	{"tunnel", []string{"DestinationRule trafficPolicy.tunnel", "DestinationRule subsets[].trafficPolicy.tunnel"}},
	{"port-level policy", []string{"DestinationRule trafficPolicy.portLevelSettings[]", "DestinationRule subsets[].trafficPolicy.portLevelSettings[]"}},
	{"DNS", []string{"ServiceEntry resolution=DNS"}},
	{"Unix socket", []string{"ServiceEntry endpoints[].address=unix:", "Sidecar ingress[].defaultEndpoint=unix:", "Sidecar egress[].bind=unix:", "WorkloadEntry address=unix:"}},
	{"IPv6", []string{"ServiceEntry endpoints[].address=::", "EndpointSlice addressType=IPv6", "WorkloadEntry address=::"}},
	{"WorkloadEntry", []string{"WorkloadEntry address"}},
	{"visibility", []string{"ServiceEntry exportTo[]", "VirtualService exportTo[]", "DestinationRule exportTo[]", "MeshConfig defaultServiceExportTo[]"}},
	{"gateway", []string{"KubernetesGateway spec.listeners[]", "Gateway servers[]"}},
	{"gateway TLS", []string{"KubernetesGateway spec.listeners[].tls", "Gateway servers[].tls"}},
	{"scope", []string{"Sidecar egress[].hosts[]"}},
	{"sidecar ingress", []string{"Sidecar ingress[]"}},
	{"patch of HTTP filters", []string{"EnvoyFilter configPatches[].applyTo=HTTP_FILTER", "EnvoyFilter configPatches[].applyTo=EXTENSION_CONFIG"}},
	{"patch of listeners", []string{"EnvoyFilter configPatches[].applyTo=LISTENER", "EnvoyFilter configPatches[].applyTo=FILTER_CHAIN", "EnvoyFilter configPatches[].applyTo=NETWORK_FILTER"}},
	{"patch of routes", []string{"EnvoyFilter configPatches[].applyTo=ROUTE_CONFIGURATION", "EnvoyFilter configPatches[].applyTo=VIRTUAL_HOST", "EnvoyFilter configPatches[].applyTo=HTTP_ROUTE"}},
	{"patch of clusters", []string{"EnvoyFilter configPatches[].applyTo=CLUSTER"}},
	{"proxies of patches", []string{"EnvoyFilter workloadSelector", "EnvoyFilter targetRefs[].name", "EnvoyFilter configPatches[].match.proxy.proxyVersion", "EnvoyFilter configPatches[].match.proxy.metadata{}"}},
	{"order of patches", []string{"EnvoyFilter priority"}},
	{"inbound pool", []string{"Sidecar inboundConnectionPool", "Sidecar ingress[].connectionPool"}},
	{"outbound policy", []string{"Sidecar outboundTrafficPolicy", "MeshConfig outboundTrafficPolicy"}},
	{"PeerAuthentication", []string{"PeerAuthentication mtls", "PeerAuthentication portLevelMtls{}"}},
	{"authorization", []string{"AuthorizationPolicy rules[]"}},
	{"identity", []string{"AuthorizationPolicy rules[].from[].source.principals[]", "AuthorizationPolicy rules[].from[].source.notPrincipals[]", "AuthorizationPolicy rules[].from[].source.namespaces[]", "AuthorizationPolicy rules[].from[].source.notNamespaces[]", "AuthorizationPolicy rules[].from[].source.serviceAccounts[]", "AuthorizationPolicy rules[].from[].source.trustDomains[]"}},
	{"external authorization", []string{"AuthorizationPolicy provider.name"}},
	{"tokens", []string{"RequestAuthentication jwtRules[]"}},
	{"access logs", []string{"Telemetry accessLogging[]", "MeshConfig defaultProviders.accessLogging", "MeshConfig accessLogFile"}},
	{"tracing", []string{"Telemetry tracing[]", "MeshConfig defaultProviders.tracing", "MeshConfig enableTracing"}},
	{"Kubernetes Service", []string{"Service spec"}},
	{"Ingress", []string{"Ingress spec"}},
	{"routes of the Gateway API", []string{"HTTPRoute spec", "GRPCRoute spec", "TLSRoute spec", "TCPRoute spec"}},
	{"grants", []string{"ReferenceGrant spec"}},
	{"TLS to a backend", []string{"BackendTLSPolicy spec"}},
	{"proxy headers", []string{"MeshConfig defaultConfig.proxyHeaders", "MeshConfig defaultConfig.gatewayTopology"}},
	{"path normalization", []string{"MeshConfig pathNormalization"}},
	{"TLS defaults", []string{"MeshConfig tlsDefaults", "MeshConfig meshMTLS", "MeshConfig verifyCertificateAtClient"}},
	{"networks", []string{"MeshNetworks networks{}", "ServiceEntry endpoints[].network", "WorkloadEntry network"}},
	{"gateway by SNI", []string{"Gateway servers[].tls.mode=AUTO_PASSTHROUGH"}},
	{captureFeature, nil},
}

// captureFeature is had by the cases whose connections are captured.
const captureFeature = "capture"

// features returns the names of the features of a case.
func (c *coveredCase) features() (found []string) {
	for _, f := range allFeatures {
		has := f.name == captureFeature && c.captured
		for _, path := range f.paths {
			path, value, _ := strings.Cut(path, "=")
			kind, path, _ := strings.Cut(path, " ")
			has = has || c.has(kind, path, value)
		}
		if has {
			found = append(found, f.name)
		}
	}
	return found
}

// featureList returns how many cases have each feature, and fails the test for one that none has.
func featureList(t *testing.T, count map[string]int) string {
	t.Helper()
	var b strings.Builder
	for _, f := range allFeatures {
		if count[f.name] == 0 {
			t.Errorf("no case has the feature %q: is its path right?", f.name)
		}
		fmt.Fprintf(&b, "- %s: %d\n", f.name, count[f.name])
	}
	return b.String()
}
