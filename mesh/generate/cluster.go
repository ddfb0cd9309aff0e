package generate

import (
	"maps"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

//lint:file-ignore SA1019 the DNS settings of the cluster itself are those that every supported Envoy has

// httpOptions is the key of the HTTP options of a cluster.
const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// outboundCluster is a cluster that is being made.
type outboundCluster struct {
	*clusterv3.Cluster
	view   *proxy.View
	svc    *service.Service
	port   service.Port
	subset *networking.Subset // nil for the whole service
	policy *networking.TrafficPolicy
	rule   *push.DestinationRule // nil for none
	http   *httpv3.HttpProtocolOptions
	// bySNI says that it forwards connections whose mesh TLS its endpoints end.
	bySNI bool
}

// outboundClusters adds the clusters of services: one for each port, and one for each subset of a
// port. With bySNI they are those that forward connections whose mesh TLS the endpoints end.
func (g *Generator) outboundClusters(v *proxy.View, services []*service.Service, bySNI bool, out *sink) {
	for _, svc := range services {
		t := Target{svc, g.snap.DestinationRule(v, svc)}
		if out.patches != nil {
			g.clustersOf(v, t, bySNI, out)
			continue
		}
		made := g.pieces.clusters.get(clusterPiece{t, bySNI}, v, func(v *proxy.View) []*xds.Resource {
			one := &sink{Resources: newResources(), view: v}
			g.pieceOf(v, t).clustersOf(v, t, bySNI, one)
			return slices.Collect(maps.Values(one.Clusters))
		})
		for _, r := range made {
			out.Clusters[r.Name] = r
		}
	}
}

// clustersOf adds the clusters of a service.
func (g *Generator) clustersOf(v *proxy.View, t Target, bySNI bool, out *sink) {
	for _, port := range t.service.Ports {
		if port.Protocol == service.UDP {
			continue
		}
		g.addCluster(v, t.service, port, nil, t.rule, bySNI, out)
		if t.service.Resolution == service.DynamicDNS {
			continue // it has no endpoints of which a subset could be some
		}
		for _, subset := range t.rule.Subsets()[:g.snap.SubsetsWithin(t.rule, t.service)] {
			g.addCluster(v, t.service, port, subset, t.rule, bySNI, out)
		}
	}
}

// addCluster adds the cluster of a port or a subset of it; bySNI the one that forwards connections whose
// mesh TLS the endpoints end.
func (g *Generator) addCluster(v *proxy.View, svc *service.Service, port service.Port, subset *networking.Subset, rule *push.DestinationRule, bySNI bool, out *sink) {
	name := ClusterName(port.Number, subset.GetName(), svc.Hostname)
	if bySNI {
		name = serverName(port.Number, subset.GetName(), svc.Hostname)
	}
	c := &outboundCluster{
		Cluster: &clusterv3.Cluster{
			Name:           name,
			CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{},
		},
		view: v, svc: svc, port: port, subset: subset, rule: rule, bySNI: bySNI,
		policy: g.clusterPolicyOf(rule, subset, port),
		http:   &httpv3.HttpProtocolOptions{},
	}
	c.AltStatName = g.outboundStatName(c.Name, svc, port, subset.GetName()) + ";"
	c.setProtocol(port.Protocol)
	if !g.setDiscovery(c) {
		return
	}
	g.applyPolicy(c)
	if svc.Resolution == service.DynamicDNS {
		c.resolveHosts()
	}
	if g.config().GetProxyHeaders().GetPreserveHttp1HeaderCase().GetValue() {
		c.preserveCase()
	}
	if proxied := c.policy.GetProxyProtocol(); proxied != nil && !bySNI {
		c.wrapInProxyProtocol(proxied)
	}
	c.Metadata = originMetadata(rule.Origin(), svc.Origin)
	c.finish()
	out.add(xds.ClusterType, c.Name, c.Cluster)
}

// setDiscovery says where the cluster's endpoints come from. It returns false if the cluster has
// endpoints of DNS names and there is none, which Envoy would reject, or if it is to resolve hosts that
// a protocol does not name.
func (g *Generator) setDiscovery(c *outboundCluster) bool {
	if c.svc.Resolution == service.DynamicDNS {
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		return c.port.Protocol.IsHTTP() || c.port.Protocol.IsTLS()
	}
	kind := clusterv3.Cluster_EDS
	switch c.svc.Resolution {
	case service.DNS:
		kind = clusterv3.Cluster_STRICT_DNS
	case service.DNSRoundRobin:
		kind = clusterv3.Cluster_LOGICAL_DNS
	case service.Passthrough:
		kind = clusterv3.Cluster_ORIGINAL_DST
	}
	if c.svc.Headless && c.view.Capture() == proxy.None {
		kind = clusterv3.Cluster_EDS // only a captured connection has an original destination
	}
	if c.policy.GetLoadBalancer().GetSimple() == networking.LoadBalancerSettings_PASSTHROUGH {
		kind = clusterv3.Cluster_ORIGINAL_DST
	}
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: kind}
	switch kind {
	case clusterv3.Cluster_EDS:
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads(), ServiceName: c.Name}
	case clusterv3.Cluster_ORIGINAL_DST:
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		if c.port.TargetPort != 0 { // istio#49450
			c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{UpstreamPortOverride: u32(c.port.TargetPort)}}
		}
	case clusterv3.Cluster_STRICT_DNS, clusterv3.Cluster_LOGICAL_DNS:
		c.LoadAssignment = g.assignment(c)
		if len(c.LoadAssignment.Endpoints) == 0 {
			return false
		}
		c.DnsLookupFamily = lookupFamily(c.view.Families())
		c.DnsRefreshRate = g.snap.Mesh.GetDnsRefreshRate()
		c.RespectDnsTtl = true
	}
	return true
}

func lookupFamily(f proxy.Families) clusterv3.Cluster_DnsLookupFamily {
	switch f {
	case proxy.IPv6:
		return clusterv3.Cluster_V6_ONLY
	case proxy.DualStack:
		return clusterv3.Cluster_ALL
	}
	return clusterv3.Cluster_V4_ONLY
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   seconds(0),
	}
}

// setProtocol says which HTTP the endpoints speak: HTTP/2 if the port says so, what the client
// speaks if the protocol is detected, and otherwise HTTP/1.1.
func (c *outboundCluster) setProtocol(p service.Protocol) {
	switch {
	case p.IsHTTP2():
		c.useHTTP2()
	case p == service.Unsupported:
		c.useClientProtocol()
	}
}

func (c *outboundCluster) useHTTP2() {
	c.http.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: http2Options(),
			},
		},
	}
}

func (c *outboundCluster) useClientProtocol() {
	c.http.UpstreamProtocolOptions = clientProtocol()
}

// preserveCase makes the names of headers to HTTP/1.1 endpoints keep their case.
func (c *outboundCluster) preserveCase() {
	switch o := c.http.UpstreamProtocolOptions.(type) {
	case *httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig:
		o.UseDownstreamProtocolConfig.HttpProtocolOptions.HeaderKeyFormat = preservedCase()
	case nil:
		c.http.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
					HttpProtocolOptions: &corev3.Http1ProtocolOptions{HeaderKeyFormat: preservedCase()},
				},
			},
		}
	}
}

func clientProtocol() *httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig {
	return &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
		UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
			HttpProtocolOptions:  &corev3.Http1ProtocolOptions{},
			Http2ProtocolOptions: http2Options(),
		},
	}
}

// http2Options bounds what a stream of HTTP/2 may be ahead of its reader, as Istio does.
func http2Options() *corev3.Http2ProtocolOptions { return &corev3.Http2ProtocolOptions{} }

// isHTTP2 reports whether the cluster always speaks HTTP/2.
func (c *outboundCluster) isHTTP2() bool {
	return c.http.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil
}

// finish adds the HTTP options, if anything is set in them. Options that choose no protocol choose
// HTTP/1.1.
func (c *outboundCluster) finish() {
	o := c.http
	if o.CommonHttpProtocolOptions == nil && o.UpstreamProtocolOptions == nil && o.UpstreamHttpProtocolOptions == nil && o.OutlierDetection == nil {
		return
	}
	if o.UpstreamProtocolOptions == nil {
		o.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}},
			},
		}
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: pack(o)}
}

// addStandardClusters adds the clusters of requests and connections to nowhere and, for a sidecar, to
// where the application wanted them to go.
func (g *Generator) addStandardClusters(sidecar bool, out *sink) {
	out.add(xds.ClusterType, blackHole, &clusterv3.Cluster{
		Name: blackHole, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout: g.snap.Mesh.GetConnectTimeout(), LbPolicy: clusterv3.Cluster_ROUND_ROBIN,
	})
	if sidecar {
		out.add(xds.ClusterType, passthrough, g.originalDestination(passthrough, ""))
	}
}

// originalDestination returns a cluster that forwards a connection to its original destination,
// bound to a source address if that is not empty.
func (g *Generator) originalDestination(name, source string) *clusterv3.Cluster {
	c := &outboundCluster{
		Cluster: &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
			LbPolicy: clusterv3.Cluster_CLUSTER_PROVIDED,
		},
		http: &httpv3.HttpProtocolOptions{},
	}
	if source != "" {
		c.UpstreamBindConfig = &corev3.BindConfig{SourceAddress: socketAddress(source, 0)}
	}
	g.finishUnknown(c)
	return c.Cluster
}

// finishUnknown gives a cluster of unknown destinations the limits that the mesh configuration sets for
// all clusters, and makes it speak what the client speaks.
func (g *Generator) finishUnknown(c *outboundCluster) {
	g.applyConnectionPool(c, g.snap.Mesh.GetDefaultTrafficPolicy().GetConnectionPool(), nil)
	c.useClientProtocol()
	if c.http.CommonHttpProtocolOptions == nil {
		c.http.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{}
	}
	if c.http.CommonHttpProtocolOptions.IdleTimeout == nil {
		c.http.CommonHttpProtocolOptions.IdleTimeout = seconds(5 * time.Minute)
	}
	c.finish()
}

// assignment returns the endpoints of a cluster of DNS names.
func (g *Generator) assignment(c *outboundCluster) *endpointv3.ClusterLoadAssignment {
	preference := g.preferenceOf(c.policy, c.svc)
	endpoints := g.reach(c.view, c.svc, usable(g.selectEndpoints(c.view, c.svc, c.port, c.subset), preference), c.policy.GetTls())
	if c.bySNI {
		endpoints = onlyMTLS(endpoints, c.policy.GetTls())
	}
	a := assign(c.Name, c.view, endpoints, preference)
	if c.svc.Resolution == service.DNSRoundRobin && len(a.Endpoints) > 1 {
		// LOGICAL_DNS has one endpoint: the first.
		a.Endpoints = a.Endpoints[:1]
	}
	for _, l := range a.Endpoints {
		if c.svc.Resolution == service.DNSRoundRobin && len(l.LbEndpoints) > 1 {
			l.LbEndpoints = l.LbEndpoints[:1]
		}
	}
	return a
}

// selectEndpoints returns the endpoints of a port of a service that a subset selects and the proxy may
// use: of its own node or cluster only, if the service or the mesh configuration says so.
func (g *Generator) selectEndpoints(v *proxy.View, svc *service.Service, port service.Port, subset *networking.Subset) []*service.Endpoint {
	cluster := ""
	if svc.NodeLocal || g.snap.ClusterLocal(svc.Hostname) {
		cluster = v.Cluster()
	}
	return slices.DeleteFunc(slices.Clone(g.endpoints.Endpoints(svc.Key())), func(ep *service.Endpoint) bool {
		return ep.PortName != port.Name || !proxy.Selects(subset.GetLabels(), ep.Labels) ||
			cluster != "" && ep.Cluster != cluster || svc.NodeLocal && ep.Node != v.NodeName()
	})
}

// virtualAddresses returns the addresses by which clients of a proxy reach a service: its own or, if it
// has none and the proxy captures DNS, its automatic ones.
func virtualAddresses(v *proxy.View, svc *service.Service) []string {
	if own := svc.AddressesIn(v.Cluster()); len(own) > 0 || len(svc.AutoAddresses) == 0 || !v.CapturesDNS() {
		return own
	}
	return svc.AutoAddresses
}
