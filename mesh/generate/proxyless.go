package generate

import (
	"net"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/generate/authz"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

//lint:file-ignore SA1019 gRPC matches names by the older field, which matches all types of names

// serverListenerPrefix begins the names of the listeners that proxyless gRPC servers ask for, with their address after it:
// server_listener_resource_name_template of Istio's bootstrap of gRPC.
const serverListenerPrefix = "xds.istio.io/grpc/lds/inbound/"

// certificateProvider is the instance of the plugin of certificates in Istio's bootstrap of gRPC.
const certificateProvider = "default"

// grpcClusters adds the clusters of proxyless gRPC: what gRPC knows of them, and nothing else (gRFCs A27, A29, A32).
func (g *Generator) grpcClusters(v *proxy.View, services []*service.Service, out Set) {
	for _, svc := range services {
		rule := g.snap.DestinationRule(v, svc)
		for _, port := range svc.Ports {
			if port.Protocol == service.UDP || svc.Resolution == service.DynamicDNS || svc.Resolution == service.Passthrough {
				continue // gRPC needs endpoints
			}
			g.addGRPCCluster(v, svc, port, nil, rule, out)
			for _, subset := range rule.Subsets()[:g.snap.SubsetsWithin(rule, svc)] {
				g.addGRPCCluster(v, svc, port, subset, rule, out)
			}
		}
	}
}

func (g *Generator) addGRPCCluster(v *proxy.View, svc *service.Service, port service.Port, subset *networking.Subset, rule *push.DestinationRule, out Set) {
	name := ClusterName(port.Number, subset.GetName(), svc.Hostname)
	c := &outboundCluster{
		Cluster: &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: name},
			Metadata:         originMetadata(rule.Origin(), svc.Origin),
		},
		view: v, svc: svc, port: port, subset: subset, rule: rule, policy: g.clusterPolicyOf(rule, subset, port),
	}
	if lb := c.policy.GetLoadBalancer(); lb.GetConsistentHash() != nil || lb.GetSimple() == networking.LoadBalancerSettings_LEAST_REQUEST {
		c.applyLoadBalancer(lb)
		if c.LbPolicy == clusterv3.Cluster_MAGLEV { // gRPC has rings only
			c.LbPolicy, c.LbConfig = clusterv3.Cluster_RING_HASH, nil
		}
	}
	if n := c.policy.GetConnectionPool().GetHttp().GetHttp2MaxRequests(); n > 0 {
		c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxRequests: u32(uint32(n))}}}
	}
	// As with istiod, mutual TLS has to be asked for: nobody knows whether a client uses the credentials of xDS.
	if c.policy.GetTls().GetMode() == networking.ClientTLSSettings_ISTIO_MUTUAL {
		names := c.policy.GetTls().GetSubjectAltNames()
		if len(names) == 0 {
			names = g.accountsOf(svc)
		}
		c.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{
			TypedConfig: pack(&tlsv3.UpstreamTlsContext{CommonTlsContext: grpcTLS(names)}),
		}}
	}
	out.add(xds.ClusterType, name, c.Cluster)
}

// grpcTLS returns mutual TLS with the certificates of gRPC's plugin (gRFC A29), with a peer that has one of the names; any
// for none.
func grpcTLS(names []string) *tlsv3.CommonTlsContext {
	peers := &tlsv3.CertificateValidationContext{CaCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{
		InstanceName: certificateProvider, CertificateName: meshRoots,
	}}
	for _, name := range names {
		peers.MatchSubjectAltNames = append(peers.MatchSubjectAltNames, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}})
	}
	return &tlsv3.CommonTlsContext{
		TlsCertificateProviderInstance: &tlsv3.CertificateProviderPluginInstance{InstanceName: certificateProvider, CertificateName: meshCertificate},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{DefaultValidationContext: peers},
		},
	}
}

// addGRPCOutbound adds a listener for each name by which a service may be dialled, and the routes of each of its ports;
// nil for one of them adds none.
func (g *Generator) addGRPCOutbound(v *proxy.View, scope *push.Scope, listeners, routes Set) {
	catchAll := scope.Egress[len(scope.Egress)-1]
	byPort := make(map[uint32]map[string]*routev3.VirtualHost) // and by domain
	for _, svc := range catchAll.Services {
		for _, port := range svc.Ports {
			if port.Protocol == service.UDP {
				continue
			}
			byDomain := byPort[port.Number]
			if byDomain == nil {
				byDomain = make(map[string]*routev3.VirtualHost)
				h := g.newHosts(v, scope, catchAll, port.Number)
				h.anyProtocol = true
				h.addAll()
				for _, vh := range slices.Backward(h.out) { // of several with one domain the first counts
					for _, domain := range vh.Domains {
						byDomain[domain] = vh
					}
				}
				byPort[port.Number] = byDomain
			}
			name, vh := ClusterName(port.Number, "", svc.Hostname), byDomain[string(svc.Hostname)]
			if vh == nil {
				continue
			}
			if routes != nil {
				routes.add(xds.RouteType, name, grpcRoutes(name, vh))
			}
			if listeners == nil {
				continue
			}
			number := strconv.FormatUint(uint64(port.Number), 10)
			for _, host := range append([]string{string(svc.Hostname)}, shortNames(string(svc.Hostname), v.DNSDomain())...) {
				dialled := net.JoinHostPort(host, number)
				if listeners[dialled] == nil {
					listeners.add(xds.ListenerType, dialled, grpcListener(dialled, name))
				}
			}
		}
	}
}

// grpcListener returns what a client that dials a name is told: which routes it takes.
func grpcListener(name, routes string) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: pack(&managerv3.HttpConnectionManager{
		RouteSpecifier: &managerv3.HttpConnectionManager_Rds{Rds: &managerv3.Rds{ConfigSource: ads(), RouteConfigName: routes}},
		HttpFilters:    []*managerv3.HttpFilter{httpFilter(faultFilter, &faultv3.HTTPFault{}), httpFilter(routerFilter, &routerv3.Router{})},
	})}}
}

// grpcRoutes returns the routes of a service and a port, as a virtual host has them.
func grpcRoutes(name string, of *routev3.VirtualHost) *routev3.RouteConfiguration {
	vh := &routev3.VirtualHost{Name: of.Name, Domains: []string{"*"}} // whatever name was dialled, it is this service
	for _, r := range of.Routes {
		if r := grpcRoute(r); r != nil {
			vh.Routes = append(vh.Routes, r)
		}
	}
	return &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{vh}}
}

// grpcRoute returns a route with what gRPC knows of routes (gRFCs A28, A31, A33, A44); nil for one that gRPC cannot follow:
// a redirect, an answer, or one by query parameters or claims.
func grpcRoute(r *routev3.Route) *routev3.Route {
	action := r.GetRoute()
	if action == nil || len(r.GetMatch().GetQueryParameters())+len(r.GetMatch().GetDynamicMetadata()) > 0 {
		return nil
	}
	out := &routev3.Route{Name: r.GetName(), Match: r.GetMatch(), Metadata: r.GetMetadata()}
	to := &routev3.RouteAction{
		ClusterSpecifier: action.GetClusterSpecifier(), MaxStreamDuration: action.GetMaxStreamDuration(), HashPolicy: action.GetHashPolicy(),
	}
	if d := action.GetTimeout(); d.AsDuration() > 0 && to.GetMaxStreamDuration().GetMaxStreamDuration() == nil {
		to.MaxStreamDuration = &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: d}
	}
	if retry := action.GetRetryPolicy(); retry != nil {
		to.RetryPolicy = &routev3.RetryPolicy{RetryOn: retry.GetRetryOn(), NumRetries: retry.GetNumRetries(), RetryBackOff: retry.GetRetryBackOff()}
	}
	if fault := r.GetTypedPerFilterConfig()[faultFilter]; fault != nil {
		out.TypedPerFilterConfig = map[string]*anypb.Any{faultFilter: fault}
	}
	out.Action = &routev3.Route_Route{Route: to}
	return out
}

// addGRPCInbound adds the listeners of a proxyless gRPC server (gRFC A36): one for each address on which it may listen.
func (g *Generator) addGRPCInbound(v *proxy.View, out Set) {
	seen := make(map[uint32]bool)
	for _, t := range v.Targets() {
		if seen[t.TargetPort] || t.Protocol == service.UDP || !g.snap.Discovers(t.Service.Namespace) {
			continue
		}
		seen[t.TargetPort] = true
		chain := g.grpcInboundChain(v, t.TargetPort)
		hosts := []string{"0.0.0.0", "::"}
		for _, ip := range v.IPs() {
			if text := ip.String(); !slices.Contains(hosts, text) {
				hosts = append(hosts, text)
			}
		}
		for _, host := range hosts {
			name := serverListenerPrefix + net.JoinHostPort(host, strconv.FormatUint(uint64(t.TargetPort), 10))
			out.add(xds.ListenerType, name, &listenerv3.Listener{
				Name: name, Address: addressOf(host, t.TargetPort), FilterChains: []*listenerv3.FilterChain{chain},
			})
		}
	}
}

// grpcInboundChain returns how a server takes connections. gRPC cannot tell mutual TLS from plaintext: PERMISSIVE is mutual
// TLS for workloads that say that they have certificates, because clients use it for these, and plaintext for others, as
// with istiod.
func (g *Generator) grpcInboundChain(v *proxy.View, port uint32) *listenerv3.FilterChain {
	b := &authz.Builder{
		Policies: g.snap.AuthorizationPolicies(v), Principals: g.snap.Principals, TrustDomains: g.snap.TrustDomains(),
		Provider: func(name string) *authz.Provider { return g.provider(v, name) }, Pack: pack,
	}
	chain := &listenerv3.FilterChain{
		Name: "inbound-plaintext",
		Filters: []*listenerv3.Filter{networkFilter(managerFilter, &managerv3.HttpConnectionManager{
			RouteSpecifier: &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
				Name: "inbound", VirtualHosts: []*routev3.VirtualHost{{Name: "inbound", Domains: []string{"*"}, Routes: []*routev3.Route{{
					Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
					Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
				}}}},
			}},
			HttpFilters: append(b.GRPC(), httpFilter(routerFilter, &routerv3.Router{})),
		})},
	}
	switch mode := g.snap.MTLS(v.Namespace(), port, v.SelectedBy); {
	case mode == security.PeerAuthentication_MutualTLS_DISABLE:
		return chain
	case mode != security.PeerAuthentication_MutualTLS_STRICT && !v.MeshTLS():
		return chain
	}
	chain.Name = strings.Replace(chain.Name, "plaintext", "mtls", 1)
	chain.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: pack(&tlsv3.DownstreamTlsContext{CommonTlsContext: grpcTLS(nil), RequireClientCertificate: truth(true)}),
	}}
	return chain
}
