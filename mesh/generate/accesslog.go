package generate

import (
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otellogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	withoutqueryv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/formatter/req_without_query/v3"
	otlpv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// The names of access loggers, and of the logs that they send if the provider does not say it. They are Istio's.
const (
	fileLogger = "envoy.access_loggers.file"
	httpLogger = "envoy.http_grpc_access_log"
	tcpLogger  = "envoy.tcp_grpc_access_log"
	otelLogger = "envoy.access_loggers.open_telemetry"

	httpLogName = "http_envoy_accesslog"
	tcpLogName  = "tcp_envoy_accesslog"
	otelLogName = "otel_envoy_accesslog"
)

// defaultLogFormat is Istio's.
const defaultLogFormat = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" " +
	"%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% " +
	"\"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% " +
	"%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" " +
	"\"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% " +
	"%UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% " +
	"%REQUESTED_SERVER_NAME% %ROUTE_NAME%\n"

// accessLogs returns the access logs of the proxies of the class; filter, which may be nil, restricts what they have.
func (g *Generator) accessLogs(filter *accesslogv3.AccessLogFilter) []*accesslogv3.AccessLog {
	if filter == nil {
		return g.logs()
	}
	var out []*accesslogv3.AccessLog
	for _, log := range g.logs() {
		log = proto.CloneOf(log)
		both := filter
		if log.Filter != nil {
			both = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{
				AndFilter: &accesslogv3.AndFilter{Filters: []*accesslogv3.AccessLogFilter{filter, log.Filter}},
			}}
		}
		log.Filter = both
		out = append(out, log)
	}
	return out
}

// accessLogsOf returns the access logs of a proxy: those that the Telemetry documents and the default providers say or,
// if they have none, that of the mesh configuration.
func (g *Generator) accessLogsOf(v *proxy.View, mode telemetry.WorkloadMode) (out []*accesslogv3.AccessLog) {
	configured := false
	for _, log := range g.snap.AccessLogs(v, mode) {
		to := g.accessLogTo(v, log.Provider)
		if to == nil {
			continue
		}
		configured = true
		if log.Disabled {
			continue
		}
		if log.Filter != "" {
			to.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslogv3.ExtensionFilter{
				Name:       "envoy.access_loggers.extension_filters.cel",
				ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: pack(&celv3.ExpressionFilter{Expression: log.Filter})},
			}}}
		}
		out = append(out, to)
	}
	if path := g.snap.Mesh.GetAccessLogFile(); !configured && path != "" {
		out = append(out, g.meshFileLog(path))
	}
	return out
}

// accessLogTo returns the access log of a provider; nil if it takes none, or if the proxy does not reach it.
func (g *Generator) accessLogTo(v *proxy.View, p *push.Provider) *accesslogv3.AccessLog {
	if file := p.GetEnvoyFileAccessLog(); file != nil {
		if p.GetName() == push.BuiltinLog && file.GetLogFormat() == nil && !file.GetOmitEmptyValues() {
			return g.meshFileLog(file.GetPath())
		}
		return providerFileLog(file)
	}
	to, ok := g.collectorOf(v, p)
	if !ok {
		return nil
	}
	switch of := p.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		als := of.EnvoyHttpAls
		return accessLog(httpLogger, &grpclogv3.HttpGrpcAccessLogConfig{
			CommonConfig:                    to.logService(als.GetLogName(), httpLogName, als.GetFilterStateObjectsToLog()),
			AdditionalRequestHeadersToLog:   als.GetAdditionalRequestHeadersToLog(),
			AdditionalResponseHeadersToLog:  als.GetAdditionalResponseHeadersToLog(),
			AdditionalResponseTrailersToLog: als.GetAdditionalResponseTrailersToLog(),
		})
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		als := of.EnvoyTcpAls
		return accessLog(tcpLogger, &grpclogv3.TcpGrpcAccessLogConfig{
			CommonConfig: to.logService(als.GetLogName(), tcpLogName, als.GetFilterStateObjectsToLog()),
		})
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		return to.otelLog(of.EnvoyOtelAls)
	}
	return nil
}

func accessLog(name string, config proto.Message) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: name, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(config)}}
}

// logService returns how entries are sent over gRPC.
func (c collector) logService(name, otherwise string, state []string) *grpclogv3.CommonGrpcAccessLogConfig {
	if name == "" {
		name = otherwise
	}
	return &grpclogv3.CommonGrpcAccessLogConfig{
		LogName: name, GrpcService: c.grpc(), TransportApiVersion: corev3.ApiVersion_V3, FilterStateObjectsToLog: state,
	}
}

// otelLog returns the access log that is sent as logs of OpenTelemetry.
func (c collector) otelLog(p *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider) *accesslogv3.AccessLog {
	text := p.GetLogFormat().GetText()
	if text == "" {
		text = defaultLogFormat
	}
	labels := p.GetLogFormat().GetLabels()
	out := &otellogv3.OpenTelemetryAccessLogConfig{
		//lint:ignore SA1019 Envoy 1.36 has nothing else
		CommonConfig:         c.logService(p.GetLogName(), otelLogName, nil),
		DisableBuiltinLabels: true, Body: otlpText(text), Formatters: formatters(text, labels),
	}
	for _, name := range sortedKeys(labels.GetFields()) {
		if out.Attributes == nil {
			out.Attributes = &otlpv1.KeyValueList{}
		}
		out.Attributes.Values = append(out.Attributes.Values, &otlpv1.KeyValue{Key: name, Value: otlpText(labels.GetFields()[name].GetStringValue())})
	}
	return accessLog(otelLogger, out)
}

func otlpText(text string) *otlpv1.AnyValue {
	return &otlpv1.AnyValue{Value: &otlpv1.AnyValue_StringValue{StringValue: text}}
}

// meshFileLog returns the access log in a file in the format of the mesh configuration.
func (g *Generator) meshFileLog(path string) *accesslogv3.AccessLog {
	format := g.snap.Mesh.GetAccessLogFormat()
	if g.snap.Mesh.GetAccessLogEncoding() != meshv1alpha1.MeshConfig_JSON {
		return fileLog(path, textFormat(format), formatters(format, nil))
	}
	fields := &structpb.Struct{}
	if format == "" || fields.UnmarshalJSON([]byte(format)) != nil {
		fields = defaultJSONLog()
	}
	return fileLog(path, jsonFormat(fields), formatters("", fields))
}

// providerFileLog returns the access log in a file as a provider describes it.
func providerFileLog(p *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider) *accesslogv3.AccessLog {
	path := p.GetPath()
	if path == "" {
		path = "/dev/stdout"
	}
	text, fields := p.GetLogFormat().GetText(), p.GetLogFormat().GetLabels()
	format := textFormat(text)
	if _, labels := p.GetLogFormat().GetLogFormat().(*meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Labels); labels {
		if len(fields.GetFields()) == 0 {
			fields = defaultJSONLog()
		}
		format = jsonFormat(fields)
	}
	format.OmitEmptyValues = p.GetOmitEmptyValues()
	return fileLog(path, format, formatters(text, fields))
}

func fileLog(path string, format *corev3.SubstitutionFormatString, formatters []*corev3.TypedExtensionConfig) *accesslogv3.AccessLog {
	format.Formatters = formatters
	return accessLog(fileLogger, &filev3.FileAccessLog{Path: path, AccessLogFormat: &filev3.FileAccessLog_LogFormat{LogFormat: format}})
}

// textFormat returns a format of lines; "" is Istio's.
func textFormat(format string) *corev3.SubstitutionFormatString {
	if format == "" {
		format = defaultLogFormat
	}
	if !strings.HasSuffix(format, "\n") {
		format += "\n"
	}
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: format}},
	}}
}

func jsonFormat(fields *structpb.Struct) *corev3.SubstitutionFormatString {
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}}
}

// withoutQuery is the command that Envoy does not know without an extension.
const withoutQuery = "%REQ_WITHOUT_QUERY"

// formatters returns the extensions that a format needs.
func formatters(text string, fields *structpb.Struct) []*corev3.TypedExtensionConfig {
	inFields := slices.ContainsFunc(slices.Collect(maps.Values(fields.GetFields())), func(v *structpb.Value) bool {
		return strings.Contains(v.GetStringValue(), withoutQuery)
	})
	if !inFields && !strings.Contains(text, withoutQuery) {
		return nil
	}
	return []*corev3.TypedExtensionConfig{{Name: "envoy.formatter.req_without_query", TypedConfig: pack(&withoutqueryv3.ReqWithoutQuery{})}}
}

// defaultJSONLog returns the fields of Istio's JSON access log.
func defaultJSONLog() *structpb.Struct {
	fields := make(map[string]*structpb.Value)
	for name, command := range map[string]string{
		"start_time": "START_TIME", "method": "REQ(:METHOD)", "path": "REQ(X-ENVOY-ORIGINAL-PATH?:PATH)", "protocol": "PROTOCOL",
		"response_code": "RESPONSE_CODE", "response_flags": "RESPONSE_FLAGS", "response_code_details": "RESPONSE_CODE_DETAILS",
		"connection_termination_details": "CONNECTION_TERMINATION_DETAILS", "bytes_received": "BYTES_RECEIVED", "bytes_sent": "BYTES_SENT",
		"duration": "DURATION", "upstream_service_time": "RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)", "x_forwarded_for": "REQ(X-FORWARDED-FOR)",
		"user_agent": "REQ(USER-AGENT)", "request_id": "REQ(X-REQUEST-ID)", "authority": "REQ(:AUTHORITY)", "upstream_host": "UPSTREAM_HOST",
		"upstream_cluster": "UPSTREAM_CLUSTER_RAW", "upstream_local_address": "UPSTREAM_LOCAL_ADDRESS",
		"downstream_local_address": "DOWNSTREAM_LOCAL_ADDRESS", "downstream_remote_address": "DOWNSTREAM_REMOTE_ADDRESS",
		"requested_server_name": "REQUESTED_SERVER_NAME", "route_name": "ROUTE_NAME",
		"upstream_transport_failure_reason": "UPSTREAM_TRANSPORT_FAILURE_REASON",
	} {
		fields[name] = structpb.NewStringValue("%" + command + "%")
	}
	return &structpb.Struct{Fields: fields}
}
