package generate

import (
	"net/url"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	detectorsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/tracers/opentelemetry/resource_detectors/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// The names of tracers.
const (
	zipkinTracer     = "envoy.tracers.zipkin"
	datadogTracer    = "envoy.tracers.datadog"
	skyWalkingTracer = "envoy.tracers.skywalking"
	otelTracer       = "envoy.tracers.opentelemetry"
)

// spanTimeout bounds how long Zipkin may take for spans if its provider does not say it.
const spanTimeout = 5 * time.Second

// tracer returns the tracer of a provider, and how long tags may be, 0 for Envoy's default; nil if the provider has none or
// the proxy does not reach its collector.
func (g *Generator) tracer(v *proxy.View, p *push.Provider) (tracer *tracev3.Tracing_Http, length uint32) {
	to, ok := g.collectorOf(v, p)
	if !ok {
		return nil, 0
	}
	switch of := p.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin:
		return tracerOf(zipkinTracer, to.zipkin(of.Zipkin)), of.Zipkin.GetMaxTagLength()
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Datadog:
		return tracerOf(datadogTracer, &tracev3.DatadogConfig{
			CollectorCluster: to.cluster, CollectorHostname: to.host, ServiceName: serviceOf(v),
		}), of.Datadog.GetMaxTagLength()
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Skywalking:
		return tracerOf(skyWalkingTracer, &tracev3.SkyWalkingConfig{GrpcService: to.grpc()}), 0
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Opentelemetry:
		return tracerOf(otelTracer, to.openTelemetry(v, of.Opentelemetry)), of.Opentelemetry.GetMaxTagLength()
	}
	return nil, 0
}

func tracerOf(name string, config proto.Message) *tracev3.Tracing_Http {
	return &tracev3.Tracing_Http{Name: name, ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: pack(config)}}
}

// serviceOf returns the name of the service of a proxy in traces. Envoy rejects a tracer of Datadog without one.
func serviceOf(v *proxy.View) string {
	if name := v.ServiceCluster(); name != "" {
		return name
	}
	return "unknown_service"
}

// zipkin returns a tracer that sends spans as JSON to Zipkin.
func (c collector) zipkin(p *meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider) *tracev3.ZipkinConfig {
	path, timeout := p.GetPath(), p.GetTimeout()
	if path == "" {
		path = "/api/v2/spans"
	}
	if timeout == nil {
		timeout = durationpb.New(spanTimeout)
	}
	out := &tracev3.ZipkinConfig{
		CollectorEndpointVersion: tracev3.ZipkinConfig_HTTP_JSON, TraceId_128Bit: !p.GetEnable_64BitTraceId(), SharedSpanContext: truth(false),
		CollectorService: &corev3.HttpService{
			HttpUri:             &corev3.HttpUri{Uri: "http://" + c.host + path, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: c.cluster}, Timeout: timeout},
			RequestHeadersToAdd: setHeaders(p.GetHeaders()),
		},
	}
	if p.GetTraceContextOption() == meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider_USE_B3_WITH_W3C_PROPAGATION {
		out.TraceContextOption = tracev3.ZipkinConfig_USE_B3_WITH_W3C_PROPAGATION
	}
	return out
}

// openTelemetry returns a tracer that sends spans with OTLP.
func (c collector) openTelemetry(v *proxy.View, p *meshv1alpha1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) *tracev3.OpenTelemetryConfig {
	conventions := p.GetServiceAttributeEnrichment() == meshv1alpha1.MeshConfig_ExtensionProvider_OTEL_SEMANTIC_CONVENTIONS
	out := &tracev3.OpenTelemetryConfig{}
	if conventions {
		out.ServiceName = v.OTelService()
	} else {
		out.ServiceName = v.ServiceCluster()
	}
	if http := p.GetHttp(); http != nil {
		uri, err := url.JoinPath(c.host, http.GetPath())
		if err != nil {
			uri = c.host
		}
		out.HttpService = &corev3.HttpService{
			HttpUri:             &corev3.HttpUri{Uri: uri, HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: c.cluster}, Timeout: http.GetTimeout()},
			RequestHeadersToAdd: setHeaders(http.GetHeaders()),
		}
	} else {
		out.GrpcService = c.grpc()
		out.GrpcService.Timeout = p.GetGrpc().GetTimeout()
		for _, h := range p.GetGrpc().GetInitialMetadata() {
			out.GrpcService.InitialMetadata = append(out.GrpcService.InitialMetadata, &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()})
		}
	}
	if conventions || p.GetResourceDetectors().GetEnvironment() != nil {
		out.ResourceDetectors = append(out.ResourceDetectors, detector("environment", &detectorsv3.EnvironmentResourceDetectorConfig{}))
	}
	if p.GetResourceDetectors().GetDynatrace() != nil {
		out.ResourceDetectors = append(out.ResourceDetectors, detector("dynatrace", &detectorsv3.DynatraceResourceDetectorConfig{}))
	}
	return out
}

func detector(name string, config proto.Message) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: otelTracer + ".resource_detectors." + name, TypedConfig: pack(config)}
}

// setHeaders returns headers that take the place of those of the same name.
func setHeaders(in []*meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader) (out []*corev3.HeaderValueOption) {
	for _, h := range in {
		out = append(out, &corev3.HeaderValueOption{
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, Header: &corev3.HeaderValue{Key: h.GetName(), Value: h.GetValue()},
		})
	}
	return out
}
