package generate

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// passthroughSource is the address from which a sidecar connects to its workload: iptables does not
// send connections from it back to the sidecar.
const (
	passthroughSource   = "127.0.0.6"
	passthroughSourceV6 = "::6"
)

// inboundPort is a port on which a sidecar takes connections for its workload.
type inboundPort struct {
	number   uint32
	protocol service.Protocol
	binds    []string
	bound    bool   // it has a socket of its own
	endpoint string // where the workload listens: host:port or unix:///path; "" for where the connection went to
	pool     *networking.ConnectionPoolSettings
	tls      *networking.ServerTLSSettings
	origin   config.Key
	target   *proxy.Target // nil for a port of a Sidecar alone
	unknown  bool          // nobody says what it is: connections are passed on
	guard    *guard
}

// addInbound adds what a sidecar needs for connections to its workload.
func (g *Generator) addInbound(v *proxy.View, scope *push.Scope, clusters, listeners *sink) {
	ports := g.inboundPorts(v, scope)
	guard := g.guardOf(v)
	var chains []*chain
	var quiet []uint32
	for _, p := range ports {
		p.guard = guard
		g.addInboundCluster(v, p, clusters)
		own := g.inboundChains(v, p)
		if p.bound {
			m := &listenerv3.Listener{
				Name: listenerName(p.binds[0], p.number), TrafficDirection: corev3.TrafficDirection_INBOUND,
				ContinueOnListenerFiltersTimeout: true, ListenerFiltersTimeout: g.snap.Mesh.GetProtocolDetectionTimeout(),
			}
			setAddresses(m, p.binds, p.number)
			inspects(m, own)
			setChains(m, own, nil)
			g.logUnmatched(m)
			listeners.add(xds.ListenerType, m.Name, m)
			continue
		}
		for _, c := range own {
			c.port = p.number
		}
		if !needsInspection(own) {
			quiet = append(quiet, p.number)
		}
		chains = append(chains, own...)
	}
	if v.Capture() == proxy.None {
		return
	}
	source := passthroughSource
	if v.Families() == proxy.IPv6 {
		source = passthroughSourceV6
	}
	clusters.add(xds.ClusterType, inboundPassthrough, g.originalDestination(inboundPassthrough, source))
	listeners.add(xds.ListenerType, virtualInbound, g.virtualInbound(v, guard, chains, quiet))
}

// needsInspection reports whether the first bytes of a connection decide between the chains.
func needsInspection(chains []*chain) bool {
	return slices.ContainsFunc(chains, func(c *chain) bool { return c.transport != "" || len(c.applications) > 0 })
}

// inboundPorts returns the ports of the workload: those that its Sidecar lists, or else those of its
// services if connections are captured.
func (g *Generator) inboundPorts(v *proxy.View, scope *push.Scope) (ports []inboundPort) {
	captured := v.Capture() != proxy.None
	seen := make(map[uint32]bool)
	for _, in := range scope.Sidecar.GetIngress() {
		number, bound := in.GetPort().GetNumber(), isBound(in, captured)
		if seen[number] || bound && v.Unprivileged() && number < firstUnprivileged || captured && g.isCapturePort(number) {
			continue
		}
		seen[number] = true
		p := inboundPort{
			number: number, protocol: service.ParseProtocol(in.GetPort().GetProtocol()), bound: bound,
			endpoint: in.GetDefaultEndpoint(), pool: scope.Sidecar.GetInboundConnectionPool(), tls: in.GetTls(), origin: scope.Config.Meta.Key,
		}
		if in.GetConnectionPool() != nil {
			p.pool = in.GetConnectionPool()
		}
		if p.tls != nil {
			p.protocol = afterTLS(p.protocol)
		}
		switch {
		case in.GetBind() != "":
			p.binds = []string{in.GetBind()}
		case bound:
			for _, ip := range v.IPs() {
				p.binds = append(p.binds, ip.String())
			}
		}
		ports = append(ports, p)
	}
	if len(scope.Sidecar.GetIngress()) > 0 || !captured {
		return ports
	}
	for _, t := range v.Targets() {
		if !seen[t.TargetPort] && !g.isCapturePort(t.TargetPort) && t.Protocol != service.UDP && g.snap.Discovers(t.Service.Namespace) {
			seen[t.TargetPort] = true
			ports = append(ports, inboundPort{
				number: t.TargetPort, protocol: t.Protocol, target: &t, pool: scope.Sidecar.GetInboundConnectionPool(),
			})
		}
	}
	return ports
}

// isBound reports whether a port of a Sidecar has a socket of its own.
func isBound(in *networking.IstioIngressListener, captured bool) bool {
	if mode := in.GetCaptureMode(); mode != networking.CaptureMode_DEFAULT {
		return mode == networking.CaptureMode_NONE
	}
	return !captured
}

// listensInbound reports whether a sidecar listens at an address for its workload. The addresses of the proxy, which no other one has, are only
// looked at if the port is one of its Sidecar.
func listensInbound(v *proxy.View, scope *push.Scope, bind string, port uint32) bool {
	return slices.ContainsFunc(scope.Sidecar.GetIngress(), func(in *networking.IstioIngressListener) bool {
		switch {
		case in.GetPort().GetNumber() != port || !isBound(in, v.Capture() != proxy.None):
			return false
		case in.GetBind() != "":
			return in.GetBind() == bind
		}
		return slices.ContainsFunc(v.IPs(), func(ip netip.Addr) bool { return ip.String() == bind })
	})
}

// afterTLS returns the protocol of connections whose TLS was ended.
func afterTLS(p service.Protocol) service.Protocol {
	switch p {
	case service.HTTPS:
		return service.HTTP
	case service.TLS:
		return service.TCP
	}
	return p
}

// addInboundCluster adds the cluster of a port of the workload.
func (g *Generator) addInboundCluster(v *proxy.View, p inboundPort, out *sink) {
	name := inboundClusterName(p.number)
	c := &outboundCluster{
		Cluster: &clusterv3.Cluster{Name: name, AltStatName: g.inboundStatName(name, p) + ";", Metadata: originMetadata(p.origin)},
		view:    v, port: service.Port{Number: p.number, Protocol: p.protocol}, http: &httpv3.HttpProtocolOptions{},
	}
	c.setProtocol(p.protocol)
	pool := p.pool
	if pool == nil {
		var rule *push.DestinationRule
		if p.target != nil {
			// What a client may open, the server must accept.
			rule, c.port = g.snap.DestinationRule(v, p.target.Service), p.target.Port
		}
		pool = g.clusterPolicyOf(rule, nil, c.port).GetConnectionPool()
	}
	g.applyConnectionPool(c, pool, nil)
	if address := g.workloadAddress(v, p); address != nil {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}}},
		}}}
	} else {
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST}
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		c.UpstreamBindConfig = &corev3.BindConfig{SourceAddress: socketAddress(passthroughSource, 0)}
		if v.Families() == proxy.IPv6 {
			c.UpstreamBindConfig.SourceAddress.Address = passthroughSourceV6
		}
	}
	c.finish()
	out.add(xds.ClusterType, name, c.Cluster)
}

// workloadAddress returns where the workload listens; nil for where the connection went to. The mesh
// configuration may say that workloads listen on loopback.
func (g *Generator) workloadAddress(v *proxy.View, p inboundPort) *corev3.Address {
	if strings.HasPrefix(p.endpoint, "unix://") {
		return addressOf(p.endpoint, 0)
	}
	host, text, err := net.SplitHostPort(p.endpoint)
	port := p.number
	if err != nil {
		loopback := g.snap.Mesh.GetInboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_InboundTrafficPolicy_LOCALHOST
		if !p.bound && (p.target == nil || !loopback) {
			return nil
		}
		host = locals(v.Families())[0]
	} else if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		port = uint32(n)
	}
	if host == "0.0.0.0" || host == "::" || host == "" {
		host = v.IPs()[0].String()
	}
	return addressOf(host, port)
}

// inboundChains returns the chains of a port: for mesh TLS, for plaintext, or for both, as the
// PeerAuthentications say.
func (g *Generator) inboundChains(v *proxy.View, p inboundPort) (out []*chain) {
	mode := g.snap.MTLS(v.Namespace(), p.number, v.SelectedBy)
	if !v.MeshTLS() && mode != security.PeerAuthentication_MutualTLS_STRICT {
		mode = security.PeerAuthentication_MutualTLS_DISABLE // it has no certificate
	}
	if p.tls != nil && mode == security.PeerAuthentication_MutualTLS_DISABLE {
		context := downstreamTLS(v, p.tls, p.protocol.IsHTTP())
		return g.inboundByProtocol(p, func(c *chain) { c.transport, c.tls = "tls", context })
	}
	if mode != security.PeerAuthentication_MutualTLS_DISABLE {
		out = g.inboundByProtocol(p, func(c *chain) {
			detected := len(c.applications) > 0
			c.transport, c.tls = "tls", g.meshServerTLS(v, p.protocol.IsHTTP() || detected)
			c.applications = meshTLSApplications(p.protocol, detected, mode == security.PeerAuthentication_MutualTLS_PERMISSIVE)
		})
	}
	if mode != security.PeerAuthentication_MutualTLS_STRICT {
		out = append(out, g.inboundByProtocol(p, func(c *chain) {
			if len(c.applications) > 0 || len(out) > 0 && p.protocol.IsHTTP() {
				c.transport = "raw_buffer"
			}
		})...)
	}
	return byTransport(out)
}

// inboundByProtocol returns an HTTP chain, a TCP chain, or both if the protocol is detected.
func (g *Generator) inboundByProtocol(p inboundPort, finish func(*chain)) (out []*chain) {
	name := listenerName("0.0.0.0", p.number)
	cluster := inboundClusterName(p.number)
	if p.unknown {
		name, cluster = virtualInbound, inboundPassthrough
	}
	if p.protocol.IsHTTP() || p.protocol == service.Unsupported {
		c := &chain{name: name, origin: p.origin, filters: []*listenerv3.Filter{g.httpManager(manager{
			statPrefix: "inbound_" + name + ";", direction: inbound, protocol: p.protocol, config: g.inboundRoutes(p, cluster), guard: p.guard,
		})}}
		if p.protocol == service.Unsupported {
			c.applications = plaintextHTTP
		}
		if p.unknown {
			c.name += "-catchall-http" // the name that Istio's EnvoyFilters have
		}
		out = append(out, c)
	}
	if !p.protocol.IsHTTP() {
		out = append(out, &chain{name: name, origin: p.origin, filters: p.guard.beforeTCP(g.tcpProxyNamed(g.inboundStatName(cluster, p), cluster))})
	}
	for _, c := range out {
		finish(c)
	}
	return out
}

// inboundRoutes returns the routes of a port of the workload: everything goes to it.
func (g *Generator) inboundRoutes(p inboundPort, cluster string) *routev3.RouteConfiguration {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}, Timeout: seconds(0),
		MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{MaxStreamDuration: seconds(0), GrpcTimeoutHeaderMax: seconds(0)},
	}
	if p.protocol != service.GRPC {
		action.RetryPolicy = &routev3.RetryPolicy{RetryOn: "reset-before-request", NumRetries: u32(2)}
	}
	operation, port := "workload:"+strconv.Itoa(int(p.number))+"/*", p.number
	if p.target != nil {
		port = p.target.Number
		operation = string(p.target.Service.Hostname) + ":" + strconv.Itoa(int(p.target.Number)) + "/*"
	}
	return &routev3.RouteConfiguration{
		Name: cluster, ValidateClusters: truth(false),
		VirtualHosts: []*routev3.VirtualHost{{
			Name: "inbound|http|" + strconv.Itoa(int(port)), Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name: "default", Match: routeMatch(nil, false), Action: &routev3.Route_Route{Route: action},
				Decorator: &routev3.Decorator{Operation: operation},
			}},
		}},
	}
}

// meshServerTLS returns how mesh TLS is ended.
func (g *Generator) meshServerTLS(v *proxy.View, http bool) *tlsv3.DownstreamTlsContext {
	common := &tlsv3.CommonTlsContext{
		TlsParams:                      &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{secret(v, meshCertificate)},
		ValidationContextType:          g.meshPeers(v),
		AlpnProtocols:                  []string{"istio-peer-exchange", "h2", "http/1.1"},
	}
	if http {
		common.AlpnProtocols = []string{"h2", "http/1.1"}
	}
	common.TlsParams.TlsMinimumProtocolVersion = minimumTLS(g.snap.Mesh.GetMeshMTLS())
	common.TlsParams.CipherSuites = meshCiphers
	if own := g.snap.Mesh.GetMeshMTLS().GetCipherSuites(); len(own) > 0 {
		common.TlsParams.CipherSuites = own
	}
	return &tlsv3.DownstreamTlsContext{CommonTlsContext: common, RequireClientCertificate: truth(true)}
}

// virtualInbound returns the listener to which iptables sends inbound connections. Those to ports that
// no service has are passed on.
func (g *Generator) virtualInbound(v *proxy.View, guard *guard, chains []*chain, quiet []uint32) *listenerv3.Listener {
	port := uint32(g.snap.Mesh.GetProxyInboundListenPort())
	m := &listenerv3.Listener{
		Name: virtualInbound, TrafficDirection: corev3.TrafficDirection_INBOUND,
		ContinueOnListenerFiltersTimeout: true, ListenerFiltersTimeout: g.snap.Mesh.GetProtocolDetectionTimeout(),
	}
	if v.Capture() == proxy.TProxy {
		m.Transparent = truth(true)
	}
	setAddresses(m, wildcards(v.Families()), port)
	all := append([]*chain{
		// A connection to the listener itself would be passed to itself without end.
		{name: "virtualInbound-blackhole", port: port, filters: []*listenerv3.Filter{g.tcpProxy(blackHole)}},
	}, g.inboundChains(v, inboundPort{protocol: service.Unsupported, unknown: true, guard: guard})...)
	all = append(all, chains...)
	all = append(all, g.unknownPortChains(v, guard, chains)...)
	m.ListenerFilters = append(m.ListenerFilters, originalDestinationFilter())
	inspects(m, all)
	for _, f := range m.ListenerFilters[1:] {
		excludePorts(f, quiet)
	}
	setChains(m, all, nil)
	g.logUnmatched(m)
	return m
}

// unknownPortChains returns the chains of the ports for which a PeerAuthentication has a mode of its own,
// and which nobody else knows: their connections are passed on, but in this mode.
func (g *Generator) unknownPortChains(v *proxy.View, guard *guard, known []*chain) (out []*chain) {
	for _, number := range g.snap.MTLSPorts(v.Namespace(), v.SelectedBy) {
		if g.isCapturePort(number) || slices.ContainsFunc(known, func(c *chain) bool { return c.port == number }) {
			continue
		}
		own := g.inboundChains(v, inboundPort{number: number, protocol: service.Unsupported, unknown: true, guard: guard})
		for _, c := range own {
			c.port = number
		}
		out = append(out, own...)
	}
	return out
}

// downstreamTLS returns how TLS is ended as a Gateway or a Sidecar says.
func downstreamTLS(v *proxy.View, tls *networking.ServerTLSSettings, http bool) *tlsv3.DownstreamTlsContext {
	common := &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsVersion(tls.GetMinProtocolVersion(), tlsv3.TlsParameters_TLSv1_2),
		TlsMaximumProtocolVersion: tlsVersion(tls.GetMaxProtocolVersion(), tlsv3.TlsParameters_TLS_AUTO),
		CipherSuites:              tls.GetCipherSuites(),
	}}
	if http {
		common.AlpnProtocols = []string{"h2", "http/1.1"}
	}
	mutual := tls.GetMode() == networking.ServerTLSSettings_MUTUAL || tls.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL
	context := &tlsv3.DownstreamTlsContext{CommonTlsContext: common, RequireClientCertificate: truth(tls.GetMode() == networking.ServerTLSSettings_MUTUAL)}
	certificates := tls.GetCredentialNames()
	if tls.GetCredentialName() != "" {
		certificates = []string{tls.GetCredentialName()}
	}
	roots := "file-root:" + tls.GetCaCertificates()
	switch {
	case tls.GetMode() == networking.ServerTLSSettings_ISTIO_MUTUAL:
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secret(v, meshCertificate)}
		common.ValidationContextType = validation(v, meshRoots, tls.GetSubjectAltNames())
		context.RequireClientCertificate = truth(true)
		if !http {
			common.AlpnProtocols = []string{"istio-peer-exchange", "h2", "http/1.1"}
		}
		return context
	case len(certificates) > 0:
		for _, name := range certificates {
			common.TlsCertificateSdsSecretConfigs = append(common.TlsCertificateSdsSecretConfigs, secret(v, kubernetesSecret(name)))
		}
		roots = kubernetesSecret(certificates[0] + "-cacert")
		if ca := tls.GetCaCertCredentialName(); ca != "" {
			roots = kubernetesSecret(ca + "-cacert")
		}
	default:
		files := [][2]string{{tls.GetServerCertificate(), tls.GetPrivateKey()}}
		if len(tls.GetTlsCertificates()) > 0 {
			files = nil
			for _, pair := range tls.GetTlsCertificates() {
				files = append(files, [2]string{pair.GetServerCertificate(), pair.GetPrivateKey()})
			}
		}
		for _, pair := range files {
			common.TlsCertificateSdsSecretConfigs = append(common.TlsCertificateSdsSecretConfigs, secret(v, "file-cert:"+pair[0]+"~"+pair[1]))
		}
	}
	if mutual {
		combined := validation(v, roots, tls.GetSubjectAltNames())
		context := combined.CombinedValidationContext.DefaultValidationContext
		if tls.GetInsecureSkipVerify().GetValue() {
			context.TrustChainVerification = tlsv3.CertificateValidationContext_ACCEPT_UNTRUSTED
		}
		context.VerifyCertificateSpki, context.VerifyCertificateHash = tls.GetVerifyCertificateSpki(), tls.GetVerifyCertificateHash()
		if crl := tls.GetCaCrl(); crl != "" {
			context.Crl = &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: crl}}
		}
		common.ValidationContextType = combined
	}
	return context
}

func tlsVersion(v networking.ServerTLSSettings_TLSProtocol, otherwise tlsv3.TlsParameters_TlsProtocol) tlsv3.TlsParameters_TlsProtocol {
	switch v {
	case networking.ServerTLSSettings_TLSV1_0:
		return tlsv3.TlsParameters_TLSv1_0
	case networking.ServerTLSSettings_TLSV1_1:
		return tlsv3.TlsParameters_TLSv1_1
	case networking.ServerTLSSettings_TLSV1_2:
		return tlsv3.TlsParameters_TLSv1_2
	case networking.ServerTLSSettings_TLSV1_3:
		return tlsv3.TlsParameters_TLSv1_3
	}
	return otherwise
}
