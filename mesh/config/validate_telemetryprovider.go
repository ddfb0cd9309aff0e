package config

import (
	"slices"

	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// Short names of what providers have.
type (
	extensionProvider = meshv1alpha1.MeshConfig_ExtensionProvider
	headerToAdd       = meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader
)

// telemetryProvider checks a provider of access logs or of tracing; others are accepted.
func (k *checker) telemetryProvider(at *path, p *extensionProvider) {
	switch of := p.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin:
		at, zipkin := at.field("zipkin"), of.Zipkin
		k.providerService(at, zipkin.GetService(), zipkin.GetPort())
		k.duration(at.field("timeout"), zipkin.GetTimeout())
		k.addedHeaders(at.field("headers"), zipkin.GetHeaders())
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Datadog:
		k.providerService(at.field("datadog"), of.Datadog.GetService(), of.Datadog.GetPort())
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Skywalking:
		k.providerService(at.field("skywalking"), of.Skywalking.GetService(), of.Skywalking.GetPort())
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Opentelemetry:
		at, otel := at.field("opentelemetry"), of.Opentelemetry
		k.providerService(at, otel.GetService(), otel.GetPort())
		if otel.GetHttp() != nil && otel.GetGrpc() != nil {
			k.errorf(at.field("grpc"), "only one of http and grpc may be set")
		}
		if http := otel.GetHttp(); http != nil && http.GetTimeout() == nil {
			k.errorf(at.fields("http.timeout"), "it is missing: Envoy needs one")
		}
		k.duration(at.fields("http.timeout"), otel.GetHttp().GetTimeout())
		k.addedHeaders(at.fields("http.headers"), otel.GetHttp().GetHeaders())
		k.duration(at.fields("grpc.timeout"), otel.GetGrpc().GetTimeout())
		k.addedHeaders(at.fields("grpc.initialMetadata"), otel.GetGrpc().GetInitialMetadata())
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		k.httpLogService(at.field("envoyHttpAls"), of.EnvoyHttpAls)
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		k.providerService(at.field("envoyTcpAls"), of.EnvoyTcpAls.GetService(), of.EnvoyTcpAls.GetPort())
		k.noneEmpty(at.fields("envoyTcpAls.filterStateObjectsToLog"), of.EnvoyTcpAls.GetFilterStateObjectsToLog())
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		at, log := at.field("envoyOtelAls"), of.EnvoyOtelAls
		k.providerService(at, log.GetService(), log.GetPort())
		k.format(at.fields("logFormat.text"), log.GetLogFormat().GetText())
		k.labelFormats(at.fields("logFormat.labels"), log.GetLogFormat().GetLabels())
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog:
		format := of.EnvoyFileAccessLog.GetLogFormat()
		k.format(at.fields("envoyFileAccessLog.logFormat.text"), format.GetText())
		k.labelFormats(at.fields("envoyFileAccessLog.logFormat.labels"), format.GetLabels())
	}
}

func (k *checker) httpLogService(at *path, als *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyHttpGrpcV3LogProvider) {
	k.providerService(at, als.GetService(), als.GetPort())
	k.noneEmpty(at.field("filterStateObjectsToLog"), als.GetFilterStateObjectsToLog())
	for _, list := range []valueList{
		{field: "additionalRequestHeadersToLog", values: als.GetAdditionalRequestHeadersToLog()},
		{field: "additionalResponseHeadersToLog", values: als.GetAdditionalResponseHeadersToLog()},
		{field: "additionalResponseTrailersToLog", values: als.GetAdditionalResponseTrailersToLog()},
	} {
		for i, name := range list.values {
			k.tagHeader(at.field(list.field).at(i), name)
		}
	}
}

// addedHeaders checks headers of requests to a provider.
func (k *checker) addedHeaders(at *path, headers []*headerToAdd) {
	for i, h := range headers {
		k.tagHeader(at.at(i).field("name"), h.GetName())
	}
}

// format checks a format of Envoy; "" is none.
func (k *checker) format(at *path, text string) {
	if problem := logFormatProblem(text); problem != "" {
		k.errorf(at, "%.80q %s", text, problem)
	}
}

// labelFormats checks the values of a JSON format.
func (k *checker) labelFormats(at *path, labels *structpb.Struct) {
	for _, name := range sortedKeys(labels.GetFields()) {
		k.valueFormat(at.field(name), labels.GetFields()[name])
	}
}

func (k *checker) valueFormat(at *path, v *structpb.Value) {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		k.format(at, kind.StringValue)
	case *structpb.Value_StructValue:
		k.labelFormats(at, kind.StructValue)
	case *structpb.Value_ListValue:
		for i, element := range kind.ListValue.GetValues() {
			k.valueFormat(at.at(i), element)
		}
	}
}

// builtinProviders are the providers that Istio has without a mesh configuration.
var builtinProviders = []string{"envoy", "prometheus", "stackdriver"}

// meshTelemetry warns of providers that the mesh configuration names and does not have, and checks the legacy settings
// of tracing.
func (k *checker) meshTelemetry(spec *meshv1alpha1.MeshConfig) {
	known := func(name string) bool {
		return slices.Contains(builtinProviders, name) ||
			slices.ContainsFunc(spec.GetExtensionProviders(), func(p *extensionProvider) bool { return p.GetName() == name })
	}
	root := (*path)(nil)
	for _, list := range []valueList{
		{field: "tracing", values: spec.GetDefaultProviders().GetTracing()}, {field: "accessLogging", values: spec.GetDefaultProviders().GetAccessLogging()},
	} {
		for i, name := range list.values {
			if !known(name) {
				k.warnf(UnknownProvider, root.fields("defaultProviders."+list.field).at(i), "there is no provider %q", name)
			}
		}
	}
	if spec.GetAccessLogEncoding() == meshv1alpha1.MeshConfig_TEXT {
		k.format(root.field("accessLogFormat"), spec.GetAccessLogFormat())
	}
	k.proxyTracing(root.fields("defaultConfig.tracing"), spec.GetDefaultConfig().GetTracing())
}

// proxyTracing checks the tracing of a proxy's configuration; nil is none.
func (k *checker) proxyTracing(at *path, t *meshv1alpha1.Tracing) {
	k.percent(at.field("sampling"), t.GetSampling())
	for _, name := range sortedKeys(t.GetCustomTags()) {
		at := at.field("customTags").field(name)
		switch tag := t.GetCustomTags()[name].GetType().(type) {
		case *meshv1alpha1.Tracing_CustomTag_Literal:
			k.notEmpty(at.fields("literal.value"), tag.Literal.GetValue())
		case *meshv1alpha1.Tracing_CustomTag_Environment:
			k.notEmpty(at.fields("environment.name"), tag.Environment.GetName())
		case *meshv1alpha1.Tracing_CustomTag_Header:
			k.tagHeader(at.fields("header.name"), tag.Header.GetName())
		default:
			k.errorf(at, "it does not say where its value comes from: want literal, environment or header")
		}
	}
}
