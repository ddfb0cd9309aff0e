package generate

import (
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	proxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

//lint:file-ignore SA1019 documents still have the older fields, and the older match of names matches all types of names

// The names of the secrets of mesh TLS, and of transport sockets.
const (
	meshCertificate = "default"
	meshRoots       = "ROOTCA"
	tlsSocket       = "envoy.transport_sockets.tls"
	rawSocket       = "envoy.transport_sockets.raw_buffer"
	proxySocket     = "envoy.transport_sockets.upstream_proxy_protocol"
)

// applyTLS sets how the cluster's connections are secured: as its policy says or, if that says
// nothing, by mesh TLS to the endpoints that accept it.
func (g *Generator) applyTLS(c *outboundCluster) {
	if c.bySNI {
		return
	}
	tls := c.policy.GetTls()
	detected := false
	if tls == nil {
		if !g.meshTLS(c) || !c.view.MeshTLS() {
			return
		}
		detected = true
		tls = &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL}
	}
	context := g.upstreamTLS(c, tls)
	if context == nil {
		return
	}
	socket := &corev3.TransportSocket{Name: tlsSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(context)}}
	if !detected || c.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		c.TransportSocket = socket
		return
	}
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: tlsModeIstio(), TransportSocket: socket},
		{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: plaintext()},
	}
}

func tlsModeIstio() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"tlsMode": structpb.NewStringValue("istio")}}
}

func plaintext() *corev3.TransportSocket {
	return &corev3.TransportSocket{Name: rawSocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(&rawv3.RawBuffer{})}}
}

// meshTLS reports whether the endpoints of a cluster may accept mesh TLS: automatic TLS is on, and they
// are in the mesh. Which of them do is said by the endpoints themselves, and not by the cluster, so that
// a change of modes changes no cluster. Where Envoy gets no endpoints, because connections go to their
// original destinations, all must accept it.
func (g *Generator) meshTLS(c *outboundCluster) bool {
	if !g.snap.Mesh.GetEnableAutoMtls().GetValue() || c.svc.MeshExternal || c.svc.Resolution == service.DynamicDNS {
		return false
	}
	if c.GetType() != clusterv3.Cluster_ORIGINAL_DST {
		return true
	}
	endpoints := g.selectEndpoints(c.view, c.svc, c.port, nil)
	return len(endpoints) > 0 && !slices.ContainsFunc(endpoints, func(ep *service.Endpoint) bool {
		return !ep.HasSidecar || !g.snap.AcceptsMTLS(ep)
	})
}

// upstreamTLS returns the TLS context of a cluster; nil for plaintext, and for credentials that a
// sidecar may not have.
func (g *Generator) upstreamTLS(c *outboundCluster, tls *networking.ClientTLSSettings) *tlsv3.UpstreamTlsContext {
	common := &tlsv3.CommonTlsContext{TlsParams: &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
	}}
	context := &tlsv3.UpstreamTlsContext{CommonTlsContext: common, Sni: tls.GetSni()}
	switch tls.GetMode() {
	case networking.ClientTLSSettings_ISTIO_MUTUAL:
		if context.Sni == "" {
			context.Sni = serverName(c.port.Number, c.subset.GetName(), c.svc.Hostname)
		}
		names := tls.GetSubjectAltNames()
		if len(names) == 0 {
			names = g.accountsOf(c.svc)
		}
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secret(c.view, meshCertificate)}
		common.ValidationContextType = validation(c.view, meshRoots, names)
		common.AlpnProtocols = meshALPNOf(c.port.Protocol, c.isHTTP2())
		return context
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
	default:
		return nil
	}
	if tls.GetCredentialName() != "" && !isPolicyRoots(tls.GetCredentialName()) && c.view.Type() == proxy.Sidecar && !c.rule.SelectsWorkloads() {
		// All sidecars would wait for a secret that few of them may have.
		return nil
	}
	c.detectServerName(tls)
	g.setCredentials(c, tls, common)
	if defaults := g.snap.Mesh.GetTlsDefaults(); defaults != nil {
		common.TlsParams.TlsMinimumProtocolVersion = max(common.TlsParams.TlsMinimumProtocolVersion, minimumTLS(defaults))
		common.TlsParams.EcdhCurves, common.TlsParams.CipherSuites = defaults.GetEcdhCurves(), defaults.GetCipherSuites()
	}
	if c.isHTTP2() {
		common.AlpnProtocols = []string{"h2"}
	}
	return context
}

// meshCiphers are the cipher suites of Istio's servers of mesh TLS.
var meshCiphers = []string{
	"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256",
	"AES256-GCM-SHA384", "AES128-GCM-SHA256",
}

const spiffePrefix = "spiffe://"

// accountsOf returns the names of which an endpoint of a service must have one: those that the service
// lists and the service accounts of its endpoints, each also in the other trust domains of the mesh.
func (g *Generator) accountsOf(svc *service.Service) []string {
	names := slices.Concat(svc.ServiceAccounts, g.endpoints.ServiceAccounts(svc.Key()))
	for _, name := range slices.Clone(names) {
		rest, ok := strings.CutPrefix(name, spiffePrefix)
		_, path, hasPath := strings.Cut(rest, "/")
		for _, alias := range g.snap.Mesh.GetTrustDomainAliases() {
			if ok && hasPath {
				names = append(names, spiffePrefix+alias+"/"+path)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// meshPeers returns how clients of mesh TLS are validated: their identity must be of a trust domain of
// the mesh.
func (g *Generator) meshPeers(v *proxy.View) *tlsv3.CommonTlsContext_CombinedValidationContext {
	peers := validation(v, meshRoots, nil)
	context := peers.CombinedValidationContext.DefaultValidationContext
	domains := append([]string{g.snap.Mesh.GetTrustDomain()}, g.snap.Mesh.GetTrustDomainAliases()...)
	slices.Sort(domains[1:])
	for i, domain := range domains {
		if domain != "" && !slices.Contains(domains[:i], domain) {
			context.MatchSubjectAltNames = append(context.MatchSubjectAltNames, &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: spiffePrefix + domain + "/"},
			})
		}
	}
	return peers
}

// minimumTLS returns the oldest version of TLS that the mesh configuration allows.
func minimumTLS(defaults *meshv1alpha1.MeshConfig_TLSConfig) tlsv3.TlsParameters_TlsProtocol {
	if defaults.GetMinProtocolVersion() == meshv1alpha1.MeshConfig_TLSConfig_TLSV1_3 {
		return tlsv3.TlsParameters_TLSv1_3
	}
	return tlsv3.TlsParameters_TLSv1_2
}

// detectServerName makes Envoy take the SNI, and what the certificate must name, from the request's
// host if the settings name neither.
func (c *outboundCluster) detectServerName(tls *networking.ClientTLSSettings) {
	if tls.GetSni() != "" {
		return
	}
	c.http.UpstreamHttpProtocolOptions = &corev3.UpstreamHttpProtocolOptions{
		AutoSni:           true,
		AutoSanValidation: len(tls.GetSubjectAltNames()) == 0 && !tls.GetInsecureSkipVerify().GetValue(),
	}
}

// setCredentials sets the client's certificate and what it validates the server with.
func (g *Generator) setCredentials(c *outboundCluster, tls *networking.ClientTLSSettings, common *tlsv3.CommonTlsContext) {
	mutual := tls.GetMode() == networking.ClientTLSSettings_MUTUAL
	names := tls.GetSubjectAltNames()
	if len(names) == 0 && c.svc.Registry == service.External {
		names = g.accountsOf(c.svc)
	}
	if roots := g.policyRoots(tls.GetCredentialName(), names); roots != nil {
		common.ValidationContextType = roots
		return
	}
	certificate := "file-cert:" + tls.GetClientCertificate() + "~" + tls.GetPrivateKey()
	roots := "file-root:system"
	if tls.GetCaCertificates() != "" {
		roots = "file-root:" + tls.GetCaCertificates()
	}
	if name := tls.GetCredentialName(); name != "" {
		certificate, roots = kubernetesSecret(name), kubernetesSecret(name+"-cacert")
	}
	if mutual {
		common.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{secret(c.view, certificate)}
	}
	unverified := tls.GetCaCertificates() == "" && tls.GetCredentialName() == "" && !g.snap.Mesh.GetVerifyCertificateAtClient().GetValue()
	if tls.GetInsecureSkipVerify().GetValue() || unverified {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{}}
		return
	}
	validation := validation(c.view, roots, names)
	if crl := tls.GetCaCrl(); crl != "" {
		validation.CombinedValidationContext.DefaultValidationContext.Crl = &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: crl}}
	}
	common.ValidationContextType = validation
}

// secret returns where a proxy gets a secret from. Kubernetes Secrets come from this control plane,
// all others from the proxy's agent: that of Istio has a cluster of its own for them.
func secret(v *proxy.View, name string) *tlsv3.SdsSecretConfig {
	source := ads()
	if isKubernetesSecret(name) {
		// It may not exist: a listener waits for it for Envoy's 15 s, and then works but for these hosts.
		source.InitialFetchTimeout = nil
	}
	if v.PilotAgent() && !isKubernetesSecret(name) {
		source.ConfigSourceSpecifier = &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3, SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "sds-grpc"},
			}}},
		}}
	}
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: source}
}

// validation returns how a peer is validated: by the roots in a secret, and by names of which its
// certificate must have one; any if there are none.
func validation(v *proxy.View, roots string, names []string) *tlsv3.CommonTlsContext_CombinedValidationContext {
	context := &tlsv3.CertificateValidationContext{}
	for _, name := range names {
		context.MatchSubjectAltNames = append(context.MatchSubjectAltNames, &matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name},
		})
	}
	return &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
		DefaultValidationContext: context, ValidationContextSdsSecretConfig: secret(v, roots),
	}}
}

// wrapInProxyProtocol makes each connection begin with a PROXY header.
func (c *outboundCluster) wrapInProxyProtocol(p *networking.TrafficPolicy_ProxyProtocol) {
	wrap := func(inner *corev3.TransportSocket) *corev3.TransportSocket {
		if inner == nil {
			inner = plaintext()
		}
		version := corev3.ProxyProtocolConfig_V1
		if p.GetVersion() == networking.TrafficPolicy_ProxyProtocol_V2 {
			version = corev3.ProxyProtocolConfig_V2
		}
		return &corev3.TransportSocket{Name: proxySocket, ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(
			&proxyv3.ProxyProtocolUpstreamTransport{Config: &corev3.ProxyProtocolConfig{Version: version}, TransportSocket: inner},
		)}}
	}
	if len(c.TransportSocketMatches) == 0 {
		c.TransportSocket = wrap(c.TransportSocket)
	}
	for _, m := range c.TransportSocketMatches {
		m.TransportSocket = wrap(m.TransportSocket)
	}
}
