package generate

import (
	"cmp"
	"slices"

	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/holdfast-xds/holdfast/mesh/generate/authz"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// defaultSampling is the percentage of requests that are traced if nothing says it, as with istiod.
const defaultSampling = 1

// tracingOf returns how a proxy traces requests, nil for not, and whether their request id says which are traced. The
// Telemetry documents and the default providers decide or, if they have nothing, the mesh configuration: then the tracer
// is that of the bootstrap.
func (g *Generator) tracingOf(v *proxy.View, mode telemetry.WorkloadMode) (*managerv3.HttpConnectionManager_Tracing, bool) {
	spec := g.snap.Tracing(v, mode)
	if spec == nil && !g.snap.Mesh.GetEnableTracing() || spec != nil && spec.Disabled {
		return nil, true
	}
	own := g.config().GetTracing()
	sampling := cmp.Or(own.GetSampling(), defaultSampling)
	if spec == nil {
		out := tracing(sampling)
		istio := own.GetEnableIstioTags() == nil || own.GetEnableIstioTags().GetValue()
		out.CustomTags = tags(v, istio, configuredTags(own))
		if own.GetMaxPathTagLength() != 0 {
			out.MaxPathTagLength = u32(own.GetMaxPathTagLength())
		}
		return out, true
	}
	tracer, length := g.tracer(v, spec.Provider)
	if tracer == nil {
		return nil, true
	}
	if spec.Sampling != nil {
		sampling = *spec.Sampling
	}
	out := tracing(sampling)
	out.Provider = tracer
	if v.Type() != proxy.Sidecar || tracer.GetName() == skyWalkingTracer {
		out.SpawnUpstreamSpan = truth(true)
	}
	custom := configuredTags(own)
	if len(spec.Tags) > 0 {
		custom = telemetryTags(v, spec.Tags)
	}
	out.CustomTags = tags(v, spec.IstioTags, custom)
	if length = cmp.Or(length, own.GetMaxPathTagLength()); length != 0 {
		out.MaxPathTagLength = u32(length)
	}
	out.NoContextPropagation = spec.NotPropagated
	return out, spec.SampledByID
}

// tracing returns the tracing of a percentage of the requests.
func tracing(sampling float64) *managerv3.HttpConnectionManager_Tracing {
	return &managerv3.HttpConnectionManager_Tracing{
		ClientSampling: &typev3.Percent{Value: 100}, OverallSampling: &typev3.Percent{Value: 100}, RandomSampling: &typev3.Percent{Value: sampling},
	}
}

// tags returns the tags of spans in the order of their names.
func tags(v *proxy.View, istio bool, custom []*tracingv3.CustomTag) []*tracingv3.CustomTag {
	if istio {
		custom = append(custom, istioTags(v)...)
	}
	slices.SortStableFunc(custom, func(a, b *tracingv3.CustomTag) int { return cmp.Compare(a.GetTag(), b.GetTag()) })
	return custom
}

// istioTags returns the tags that say which workload a proxy is, and what policies without effect say of a request.
// Because of them hardly any two workloads share their listeners.
func istioTags(v *proxy.View) (out []*tracingv3.CustomTag) {
	for _, tag := range [][2]string{
		{"istio.canonical_revision", cmp.Or(v.Label("service.istio.io/canonical-revision"), "latest")},
		{"istio.canonical_service", cmp.Or(v.Label("service.istio.io/canonical-name"), "unknown")},
		{"istio.mesh_id", cmp.Or(v.MeshID(), "unknown")},
		{"istio.namespace", v.Namespace()},
		{"istio.cluster_id", cmp.Or(v.Cluster(), "unknown")},
	} {
		out = append(out, literalTag(tag[0], tag[1]))
	}
	for _, dry := range [][2]string{{"allow", authz.DryAllow}, {"deny", authz.DryDeny}} {
		for _, of := range [][2]string{{"name", "shadow_effective_policy_id"}, {"result", "shadow_engine_result"}} {
			out = append(out, &tracingv3.CustomTag{
				Tag: "istio.authorization.dry_run." + dry[0] + "_policy." + of[0],
				Type: &tracingv3.CustomTag_Metadata_{Metadata: &tracingv3.CustomTag_Metadata{
					Kind: &metadatav3.MetadataKind{Kind: &metadatav3.MetadataKind_Request_{Request: &metadatav3.MetadataKind_Request{}}},
					MetadataKey: &metadatav3.MetadataKey{Key: authz.HTTPFilter, Path: []*metadatav3.MetadataKey_PathSegment{{
						Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: dry[1] + of[1]},
					}}},
				}},
			})
		}
	}
	return out
}

func literalTag(name, value string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: value}}}
}

func environmentTag(name, variable, otherwise string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Environment_{
		Environment: &tracingv3.CustomTag_Environment{Name: variable, DefaultValue: otherwise},
	}}
}

func headerTag(name, header, otherwise string) *tracingv3.CustomTag {
	return &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_RequestHeader{
		RequestHeader: &tracingv3.CustomTag_Header{Name: header, DefaultValue: otherwise},
	}}
}

// telemetryTags returns the tags of a Telemetry.
func telemetryTags(v *proxy.View, in map[string]*telemetry.Tracing_CustomTag) (out []*tracingv3.CustomTag) {
	for _, name := range sortedKeys(in) {
		switch tag := in[name].GetType().(type) {
		case *telemetry.Tracing_CustomTag_Literal:
			out = append(out, literalTag(name, tag.Literal.GetValue()))
		case *telemetry.Tracing_CustomTag_Environment:
			out = append(out, environmentTag(name, tag.Environment.GetName(), tag.Environment.GetDefaultValue()))
		case *telemetry.Tracing_CustomTag_Header:
			out = append(out, headerTag(name, tag.Header.GetName(), tag.Header.GetDefaultValue()))
		case *telemetry.Tracing_CustomTag_Formatter:
			if !v.TagFormats() {
				continue
			}
			out = append(out, &tracingv3.CustomTag{Tag: name, Type: &tracingv3.CustomTag_Value{Value: tag.Formatter.GetValue()}})
		}
	}
	return out
}

// configuredTags returns the tags of a ProxyConfig.
func configuredTags(in *meshv1alpha1.Tracing) (out []*tracingv3.CustomTag) {
	for _, name := range sortedKeys(in.GetCustomTags()) {
		switch tag := in.GetCustomTags()[name].GetType().(type) {
		case *meshv1alpha1.Tracing_CustomTag_Literal:
			out = append(out, literalTag(name, tag.Literal.GetValue()))
		case *meshv1alpha1.Tracing_CustomTag_Environment:
			out = append(out, environmentTag(name, tag.Environment.GetName(), tag.Environment.GetDefaultValue()))
		case *meshv1alpha1.Tracing_CustomTag_Header:
			out = append(out, headerTag(name, tag.Header.GetName(), tag.Header.GetDefaultValue()))
		}
	}
	return out
}
