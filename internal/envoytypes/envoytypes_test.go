package envoytypes

import (
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

func TestUsualMessagesAreKnown(t *testing.T) {
	const extensions = "type.googleapis.com/envoy.extensions."
	urls := append(xds.Types(), xds.WrapperType,
		"type.googleapis.com/envoy.config.bootstrap.v3.Bootstrap",
		"type.googleapis.com/xds.type.v3.TypedStruct",
		"type.googleapis.com/udpa.type.v1.TypedStruct",
		"type.googleapis.com/google.protobuf.StringValue",
	)
	for _, message := range []string{
		"access_loggers.file.v3.FileAccessLog",
		"access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig",
		"access_loggers.stream.v3.StdoutAccessLog",
		"clusters.aggregate.v3.ClusterConfig",
		"clusters.dynamic_forward_proxy.v3.ClusterConfig",
		"clusters.redis.v3.RedisClusterConfig",
		"compression.gzip.compressor.v3.Gzip",
		"filters.http.buffer.v3.Buffer",
		"filters.http.compressor.v3.Compressor",
		"filters.http.cors.v3.Cors",
		"filters.http.ext_authz.v3.ExtAuthz",
		"filters.http.fault.v3.HTTPFault",
		"filters.http.grpc_stats.v3.FilterConfig",
		"filters.http.grpc_web.v3.GrpcWeb",
		"filters.http.header_to_metadata.v3.Config",
		"filters.http.health_check.v3.HealthCheck",
		"filters.http.jwt_authn.v3.JwtAuthentication",
		"filters.http.local_ratelimit.v3.LocalRateLimit",
		"filters.http.lua.v3.Lua",
		"filters.http.on_demand.v3.OnDemand",
		"filters.http.ratelimit.v3.RateLimit",
		"filters.http.rbac.v3.RBAC",
		"filters.http.router.v3.Router",
		"filters.http.set_filter_state.v3.Config",
		"filters.http.wasm.v3.Wasm",
		"filters.listener.http_inspector.v3.HttpInspector",
		"filters.listener.original_dst.v3.OriginalDst",
		"filters.listener.proxy_protocol.v3.ProxyProtocol",
		"filters.listener.tls_inspector.v3.TlsInspector",
		"filters.network.http_connection_manager.v3.HttpConnectionManager",
		"filters.network.tcp_proxy.v3.TcpProxy",
		"formatter.metadata.v3.Metadata",
		"health_check.event_sinks.file.v3.HealthCheckEventFileSink",
		"http.original_ip_detection.xff.v3.XffConfig",
		"load_balancing_policies.round_robin.v3.RoundRobin",
		"transport_sockets.internal_upstream.v3.InternalUpstreamTransport",
		"transport_sockets.raw_buffer.v3.RawBuffer",
		"transport_sockets.tls.v3.UpstreamTlsContext",
		"upstreams.http.v3.HttpProtocolOptions",
	} {
		urls = append(urls, extensions+message)
	}
	r := with(t, nothing)
	for _, url := range urls {
		if _, err := r.FindMessageByURL(url); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}
