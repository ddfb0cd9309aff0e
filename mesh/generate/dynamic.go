package generate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dynamicclusterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/dynamic_forward_proxy/v3"
	dynamiccachev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/dynamic_forward_proxy/v3"
	dynamicfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/dynamic_forward_proxy/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	snifilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/sni_dynamic_forward_proxy/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// The names of what sends requests to unknown hosts to the addresses of these hosts' names. All clusters
// and filters that resolve hosts share what they have resolved.
const (
	dynamicCluster = "AllowAnyDynamicDNSCluster"
	dynamicHost    = "allow_any_dynamic_dns"
	dynamicFilter  = "envoy.filters.http.dynamic_forward_proxy"
	// maxDynamicHosts is how many names a proxy remembers.
	maxDynamicHosts = 1024
)

// dynamicNames returns the names that the cluster and the filter resolve: they must say the same.
func dynamicNames(v *proxy.View) *dynamiccachev3.DnsCacheConfig {
	return &dynamiccachev3.DnsCacheConfig{Name: dynamicHost, DnsLookupFamily: lookupFamily(v.Families()), MaxHosts: u32(maxDynamicHosts)}
}

// addDynamicCluster adds the cluster of requests to unknown hosts, with TLS as the mesh configuration
// says.
func (g *Generator) addDynamicCluster(v *proxy.View, out *sink) {
	c := &outboundCluster{
		Cluster: &clusterv3.Cluster{Name: dynamicCluster, LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED},
		view:    v, svc: &service.Service{}, http: &httpv3.HttpProtocolOptions{},
	}
	if tls := g.snap.Mesh.GetOutboundTrafficPolicy().GetTls(); tls != nil {
		if context := g.upstreamTLS(c, tls); context != nil {
			c.TransportSocket = &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(context)}}
		}
	}
	c.resolveHosts()
	g.finishUnknown(c)
	out.add(xds.ClusterType, c.Name, c.Cluster)
}

// resolveHosts makes a cluster, whose TLS is set, resolve the host that each request names. With TLS the
// server must have that name, unless the settings have an SNI, other names, or verify nothing.
func (c *outboundCluster) resolveHosts() {
	c.ClusterDiscoveryType = &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
		Name: "envoy.clusters.dynamic_forward_proxy",
		TypedConfig: pack(&dynamicclusterv3.ClusterConfig{
			ClusterImplementationSpecifier: &dynamicclusterv3.ClusterConfig_DnsCacheConfig{DnsCacheConfig: dynamicNames(c.view)},
			// Envoy wants to be told that the name of the server is not verified.
			AllowInsecureClusterOptions: !c.http.UpstreamHttpProtocolOptions.GetAutoSanValidation(),
		}),
	}}
}

// dynamicForwardProxy returns the filter that resolves the host of a request.
func dynamicForwardProxy(v *proxy.View) *managerv3.HttpFilter {
	return httpFilter(dynamicFilter, &dynamicfilterv3.FilterConfig{
		ImplementationSpecifier: &dynamicfilterv3.FilterConfig_DnsCacheConfig{DnsCacheConfig: dynamicNames(v)},
	})
}

// sniForwardProxy returns the filter that resolves the server name of a TLS connection to a port.
func sniForwardProxy(v *proxy.View, port uint32) *listenerv3.Filter {
	return networkFilter("envoy.filters.network.sni_dynamic_forward_proxy", &snifilterv3.FilterConfig{
		DnsCacheConfig: dynamicNames(v), PortSpecifier: &snifilterv3.FilterConfig_PortValue{PortValue: port},
	})
}

// dynamicHostOf returns the virtual host of requests to unknown hosts.
func (g *Generator) dynamicHostOf() *routev3.VirtualHost {
	action := &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: dynamicCluster}}
	setTimeout(action, nil)
	return &routev3.VirtualHost{
		Name: dynamicHost, Domains: []string{"*"}, IncludeRequestAttemptCount: g.countsAttempts(),
		Routes: []*routev3.Route{{Name: dynamicHost, Match: routeMatch(nil, false), Action: &routev3.Route_Route{Route: action}}},
	}
}

// dynamicChain returns the chain of HTTP connections to ports that no service has.
func (ls *outboundListeners) dynamicChain() *chain {
	return &chain{name: "virtualOutbound-catchall-tcp-http", applications: plaintextHTTP, filters: []*listenerv3.Filter{ls.httpManager(manager{
		statPrefix: "outbound_" + virtualOutbound + "_" + dynamicHost + ";", direction: outbound, protocol: service.HTTP, dynamic: ls.view,
		config: routeConfiguration(dynamicHost, []*routev3.VirtualHost{ls.dynamicHostOf()}),
	})}}
}
