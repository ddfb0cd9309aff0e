package generate

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	casev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/header_formatters/preserve_case/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

//lint:file-ignore SA1019 documents still have the older fields

// The names of filters.
const (
	managerFilter   = "envoy.filters.network.http_connection_manager"
	tcpFilter       = "envoy.filters.network.tcp_proxy"
	faultFilter     = "envoy.filters.http.fault"
	corsFilter      = "envoy.filters.http.cors"
	grpcStatsFilter = "envoy.filters.http.grpc_stats"
	grpcWebFilter   = "envoy.filters.http.grpc_web"
	routerFilter    = "envoy.filters.http.router"
)

// direction is what a listener is for; the server header and client certificates depend on it.
type direction int

const (
	outbound direction = iota
	inbound
	gateway
)

// manager describes an HTTP connection manager.
type manager struct {
	statPrefix string
	direction  direction
	protocol   service.Protocol
	// routes is the name of its routes (RDS), or config has them.
	routes string
	config *routev3.RouteConfiguration
	// dynamic is the proxy if some requests go to the addresses of the hosts that they name; nil if none
	// does.
	dynamic *proxy.View
	// hops is how many proxies before a gateway are trusted.
	hops  uint32
	guard *guard
}

// httpManager returns the filter that handles HTTP connections.
func (g *Generator) httpManager(m manager) *listenerv3.Filter {
	out := &managerv3.HttpConnectionManager{
		StatPrefix: m.statPrefix, CodecType: managerv3.HttpConnectionManager_AUTO,
		StreamIdleTimeout: seconds(0), UseRemoteAddress: truth(m.direction == gateway),
		UpgradeConfigs:    []*managerv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		AccessLog:         g.accessLogs(nil),
		XffNumTrustedHops: m.hops, Proxy_100Continue: true,
		RouteSpecifier: &managerv3.HttpConnectionManager_RouteConfig{RouteConfig: m.config},
	}
	if m.config == nil {
		out.RouteSpecifier = &managerv3.HttpConnectionManager_Rds{Rds: &managerv3.Rds{ConfigSource: ads(), RouteConfigName: m.routes}}
	}
	g.observe(out)
	headers := g.config().GetProxyHeaders()
	g.setServerHeader(out, m.direction, headers.GetServer())
	g.setClientCertificate(out, m.direction, headers)
	if headers.GetRequestId().GetDisabled().GetValue() {
		out.GenerateRequestId = truth(false)
	}
	out.AppendXForwardedPort = headers.GetXForwardedPort().GetEnabled().GetValue()
	if headers.GetPreserveHttp1HeaderCase().GetValue() {
		out.HttpProtocolOptions = &corev3.Http1ProtocolOptions{HeaderKeyFormat: preservedCase()}
	}
	g.normalizePaths(out)
	g.setConnections(out, m.direction)
	out.HttpFilters = m.guard.beforeHTTP()
	if m.protocol == service.GRPCWeb {
		out.HttpFilters = append(out.HttpFilters, httpFilter(grpcWebFilter, &grpcwebv3.GrpcWeb{}))
	}
	out.HttpFilters = append(out.HttpFilters,
		httpFilter(grpcStatsFilter, &grpcstatsv3.FilterConfig{
			EmitFilterState:        true,
			PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: truth(false)},
		}),
		httpFilter(faultFilter, &faultv3.HTTPFault{}),
		httpFilter(corsFilter, &corsv3.Cors{}),
	)
	if m.dynamic != nil {
		out.HttpFilters = append(out.HttpFilters, dynamicForwardProxy(m.dynamic))
	}
	out.HttpFilters = append(out.HttpFilters,
		httpFilter(routerFilter, &routerv3.Router{SuppressEnvoyHeaders: headers.GetEnvoyDebugHeaders().GetDisabled().GetValue()}))
	return networkFilter(managerFilter, out)
}

// setServerHeader says what the header "server" of responses is: for requests of the workload Envoy's
// default, "envoy", as in Istio.
func (g *Generator) setServerHeader(m *managerv3.HttpConnectionManager, d direction, server *meshv1alpha1.ProxyConfig_ProxyHeaders_Server) {
	if d != outbound {
		m.ServerName = "istio-envoy"
	}
	switch {
	case server.GetDisabled().GetValue():
		m.ServerName, m.ServerHeaderTransformation = "", managerv3.HttpConnectionManager_PASS_THROUGH
	case server.GetValue() != "":
		m.ServerName = server.GetValue()
	}
}

// setClientCertificate says what is told of the client's certificate (x-forwarded-client-cert): a
// gateway replaces what the client says, and a sidecar adds to it.
func (g *Generator) setClientCertificate(m *managerv3.HttpConnectionManager, d direction, headers *meshv1alpha1.ProxyConfig_ProxyHeaders) {
	if d == outbound {
		return
	}
	forward := headers.GetForwardedClientCert()
	m.ForwardClientCertDetails = managerv3.HttpConnectionManager_APPEND_FORWARD
	if d == gateway {
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_SANITIZE_SET
		forward = g.config().GetGatewayTopology().GetForwardClientCertDetails()
	}
	switch forward {
	case meshv1alpha1.ForwardClientCertDetails_SANITIZE:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_SANITIZE
	case meshv1alpha1.ForwardClientCertDetails_FORWARD_ONLY:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_FORWARD_ONLY
	case meshv1alpha1.ForwardClientCertDetails_APPEND_FORWARD:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_APPEND_FORWARD
	case meshv1alpha1.ForwardClientCertDetails_SANITIZE_SET:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_SANITIZE_SET
	case meshv1alpha1.ForwardClientCertDetails_ALWAYS_FORWARD_ONLY:
		m.ForwardClientCertDetails = managerv3.HttpConnectionManager_ALWAYS_FORWARD_ONLY
	}
	says := headers.GetSetCurrentClientCertDetails()
	unlessFalse := func(b *wrapperspb.BoolValue) bool { return b == nil || b.GetValue() }
	m.SetCurrentClientCertDetails = &managerv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: truth(unlessFalse(says.GetSubject())), Dns: unlessFalse(says.GetDns()), Uri: unlessFalse(says.GetUri()),
		Cert: says.GetCert().GetValue() || d == gateway && says.GetCert() == nil, Chain: says.GetChain().GetValue(),
	}
}

// preservedCase makes the names of headers keep their case.
func preservedCase() *corev3.Http1ProtocolOptions_HeaderKeyFormat {
	return &corev3.Http1ProtocolOptions_HeaderKeyFormat{HeaderFormat: &corev3.Http1ProtocolOptions_HeaderKeyFormat_StatefulFormatter{
		StatefulFormatter: &corev3.TypedExtensionConfig{Name: "preserve_case", TypedConfig: pack(&casev3.PreserveCaseFormatterConfig{})},
	}}
}

// normalizePaths makes paths that mean the same the same, as the mesh configuration says.
func (g *Generator) normalizePaths(m *managerv3.HttpConnectionManager) {
	n := g.snap.Mesh.GetPathNormalization().GetNormalization()
	m.NormalizePath = truth(n != meshv1alpha1.MeshConfig_ProxyPathNormalization_NONE)
	m.MergeSlashes = n == meshv1alpha1.MeshConfig_ProxyPathNormalization_MERGE_SLASHES ||
		n == meshv1alpha1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES
	m.PathWithEscapedSlashesAction = managerv3.HttpConnectionManager_KEEP_UNCHANGED
	if n == meshv1alpha1.MeshConfig_ProxyPathNormalization_DECODE_AND_MERGE_SLASHES {
		m.PathWithEscapedSlashesAction = managerv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	}
}

func httpFilter(name string, config proto.Message) *managerv3.HttpFilter {
	return &managerv3.HttpFilter{Name: name, ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: pack(config)}}
}

func networkFilter(name string, config proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(config)}}
}

// faultOf returns the fault that a route injects; nil for none.
func faultOf(in *networking.HTTPFaultInjection) *faultv3.HTTPFault {
	out := &faultv3.HTTPFault{}
	if d := in.GetDelay(); d.GetFixedDelay() != nil {
		share := &typev3.FractionalPercent{Numerator: uint32(d.GetPercent())}
		if d.GetPercentage() != nil {
			share = percent(d.GetPercentage().GetValue())
		}
		out.Delay = &commonfaultv3.FaultDelay{
			Percentage:         share,
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: d.GetFixedDelay()},
		}
	}
	abort := &faultv3.FaultAbort{}
	switch kind := in.GetAbort().GetErrorType().(type) {
	case *networking.HTTPFaultInjection_Abort_HttpStatus:
		abort.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(kind.HttpStatus)}
	case *networking.HTTPFaultInjection_Abort_GrpcStatus:
		abort.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: grpcStatus(kind.GrpcStatus)}
	}
	if abort.ErrorType != nil {
		if p := in.GetAbort().GetPercentage(); p != nil {
			abort.Percentage = percent(p.GetValue())
		}
		out.Abort = abort
	}
	if out.Delay == nil && out.Abort == nil {
		return nil
	}
	return out
}

// grpcStatus returns the number of a gRPC status by its name; UNKNOWN for what is none.
func grpcStatus(name string) uint32 {
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(strconv.Quote(name))); err != nil {
		code = codes.Unknown
	}
	return uint32(code)
}

func corsOf(in *networking.CorsPolicy) *corsv3.CorsPolicy {
	out := &corsv3.CorsPolicy{
		AllowMethods: strings.Join(in.GetAllowMethods(), ","), AllowHeaders: strings.Join(in.GetAllowHeaders(), ","),
		ExposeHeaders: strings.Join(in.GetExposeHeaders(), ","), AllowCredentials: in.GetAllowCredentials(),
		ForwardNotMatchingPreflights: truth(in.GetUnmatchedPreflights() != networking.CorsPolicy_IGNORE),
		FilterEnabled:                &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{Numerator: 100}},
	}
	for _, origin := range in.GetAllowOrigins() {
		out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, stringMatch(origin))
	}
	if len(in.GetAllowOrigins()) == 0 {
		for _, origin := range in.GetAllowOrigin() {
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: origin}})
		}
	}
	if in.GetMaxAge() != nil {
		out.MaxAge = strconv.FormatInt(in.GetMaxAge().GetSeconds(), 10)
	}
	return out
}
