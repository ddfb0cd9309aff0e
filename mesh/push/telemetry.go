package push

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Provider is a provider of access logs or of tracing in the mesh configuration.
type Provider = meshv1alpha1.MeshConfig_ExtensionProvider

// telemetryIndex has the Telemetry documents by namespace.
type telemetryIndex struct {
	root string
	// wide has the oldest document of each namespace that selects no workloads. workloads has those that do, or refer to
	// Gateways, oldest first.
	wide      map[string]*telemetry.Telemetry
	workloads map[string][]targeted[*telemetry.Telemetry]
}

func indexTelemetry(list []*config.Config, root string) *telemetryIndex {
	idx := &telemetryIndex{root, make(map[string]*telemetry.Telemetry), make(map[string][]targeted[*telemetry.Telemetry])}
	for _, c := range slices.SortedFunc(slices.Values(list), config.Older) {
		spec, ok := c.Spec.(*telemetry.Telemetry)
		refs := targetsOf(c.Namespace, spec.GetTargetRef(), spec.GetTargetRefs())
		switch {
		case !ok:
		case len(spec.GetSelector().GetMatchLabels()) > 0 || refs.any:
			idx.workloads[c.Namespace] = append(idx.workloads[c.Namespace], targeted[*telemetry.Telemetry]{c.Meta.Key, spec.GetSelector().GetMatchLabels(), refs, spec})
		case idx.wide[c.Namespace] == nil:
			idx.wide[c.Namespace] = spec
		}
	}
	return idx
}

// of returns the documents that apply to a proxy. Later ones override earlier ones: that of the root namespace comes
// first, then that of the proxy's namespace, and then those that select the proxy.
func (idx *telemetryIndex) of(v *proxy.View) (out []*telemetry.Telemetry) {
	if len(idx.wide)+len(idx.workloads) == 0 {
		return nil
	}
	own := v.Namespace()
	for _, namespace := range slices.Compact([]string{idx.root, own}) {
		if spec := idx.wide[namespace]; spec != nil {
			out = append(out, spec)
		}
	}
	for _, t := range idx.workloads[own] {
		if t.applies(v, own) {
			out = append(out, t.value)
		}
	}
	return out
}

// AccessLog is an access log of a proxy.
type AccessLog struct {
	Provider *Provider
	// Filter says which requests are logged; "" for all.
	Filter string
	// Disabled says that nothing is logged there.
	Disabled bool
}

// AccessLogs returns the access logs of a proxy for requests that it sends (CLIENT) or takes (SERVER), in the order of
// their providers' names. There are none, nor disabled ones, if neither a Telemetry nor the default providers of the mesh
// configuration say anything.
func (s *Snapshot) AccessLogs(v *proxy.View, mode telemetry.WorkloadMode) (out []AccessLog) {
	var levels [][]*telemetry.AccessLogging
	for _, spec := range s.telemetry.of(v) {
		if len(spec.GetAccessLogging()) > 0 {
			levels = append(levels, spec.GetAccessLogging())
		}
	}
	logs := mergeLogs(levels, s.Mesh.GetDefaultProviders().GetAccessLogging(), mode)
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		if log := logs[name]; s.Provider(name) != nil {
			log.Provider = s.Provider(name)
			out = append(out, log)
		}
	}
	slices.SortStableFunc(out, func(a, b AccessLog) int { return cmp.Compare(a.Provider.GetName(), b.Provider.GetName()) })
	return out
}

// mergeLogs merges the access logs of several levels as istiod does, and returns them by provider. The last level that
// names providers says which are in use at all. An element without providers is for those of the element before it.
func mergeLogs(levels [][]*telemetry.AccessLogging, defaults []string, mode telemetry.WorkloadMode) map[string]AccessLog {
	logs := make(map[string]AccessLog)
	if len(levels) == 0 {
		for _, name := range defaults {
			logs[name] = AccessLog{}
		}
		return logs
	}
	inUse, filters := defaults, make(map[string]string)
	for _, level := range levels {
		var named []string
		for _, log := range level {
			if !inMode(log.GetMatch().GetMode(), mode) {
				continue
			}
			for _, p := range log.GetProviders() {
				named = append(named, p.GetName())
				filters[p.GetName()] = log.GetFilter().GetExpression()
			}
		}
		if len(named) > 0 {
			inUse = named
		}
	}
	providers := defaults
	for _, log := range slices.Concat(levels...) {
		if len(log.GetProviders()) > 0 {
			providers = providerNames(log.GetProviders())
		}
		for _, name := range providers {
			if slices.Contains(inUse, name) && inMode(log.GetMatch().GetMode(), mode) {
				logs[name] = AccessLog{Disabled: log.GetDisabled().GetValue(), Filter: filters[name]}
			}
		}
	}
	return logs
}

// inMode reports whether what is for the requests of one mode concerns those of another one.
func inMode(of, mode telemetry.WorkloadMode) bool {
	return of == telemetry.WorkloadMode_CLIENT_AND_SERVER || of == mode
}

func providerNames(refs []*telemetry.ProviderRef) (names []string) {
	for _, ref := range refs {
		names = append(names, ref.GetName())
	}
	return names
}

// Tracing is how the requests of a proxy are traced.
type Tracing struct {
	// Provider gets the spans; nil for none.
	Provider *Provider
	Disabled bool
	// Sampling is the percentage of requests that are traced; nil for that of the proxy's configuration.
	Sampling *float64
	Tags     map[string]*telemetry.Tracing_CustomTag
	// SampledByID says that the request id says whether the request is traced, IstioTags that spans have Istio's tags, and
	// NotPropagated that requests do not get the headers of the trace.
	SampledByID, IstioTags, NotPropagated bool
}

// Tracing returns how the requests that a proxy sends (CLIENT) or takes (SERVER) are traced; nil if neither a Telemetry nor
// the default providers of the mesh configuration say anything.
func (s *Snapshot) Tracing(v *proxy.View, mode telemetry.WorkloadMode) *Tracing {
	var all []*telemetry.Tracing
	for _, spec := range s.telemetry.of(v) {
		all = append(all, spec.GetTracing()...)
	}
	defaults := s.Mesh.GetDefaultProviders().GetTracing()
	if len(all) == 0 && len(defaults) == 0 {
		return nil
	}
	out := &Tracing{SampledByID: true, IstioTags: true}
	if len(defaults) > 0 {
		out.Provider = s.Provider(defaults[0])
	}
	for _, t := range all {
		if inMode(t.GetMatch().GetMode(), mode) {
			s.overrideTracing(out, t)
		}
	}
	out.Disabled = out.Disabled || out.Provider == nil
	return out
}

// overrideTracing sets what an element of a Telemetry sets.
func (s *Snapshot) overrideTracing(out *Tracing, t *telemetry.Tracing) {
	if len(t.GetProviders()) > 0 {
		out.Provider = s.Provider(t.GetProviders()[0].GetName())
	}
	if t.GetDisableSpanReporting() != nil {
		out.Disabled = t.GetDisableSpanReporting().GetValue()
	}
	if t.GetCustomTags() != nil {
		out.Tags = t.GetCustomTags()
	}
	if t.GetRandomSamplingPercentage() != nil {
		out.Sampling = &t.GetRandomSamplingPercentage().Value
	}
	if t.GetUseRequestIdForTraceSampling() != nil {
		out.SampledByID = t.GetUseRequestIdForTraceSampling().GetValue()
	}
	if t.GetEnableIstioTags() != nil {
		out.IstioTags = t.GetEnableIstioTags().GetValue()
	}
	if t.GetDisableContextPropagation() != nil {
		out.NotPropagated = t.GetDisableContextPropagation().GetValue()
	}
}

// builtinLog is the provider that every mesh has: it writes to the standard output of Envoy.
var builtinLog = &Provider{Name: BuiltinLog, Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLog{
	EnvoyFileAccessLog: &meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider{Path: "/dev/stdout"},
}}

// BuiltinLog is the name of the provider that every mesh has.
const BuiltinLog = "envoy"

// Provider returns the provider of a name, in which capitals do not matter, as with istiod; nil for none.
func (s *Snapshot) Provider(name string) *Provider {
	for _, p := range append(slices.Clip(s.Mesh.GetExtensionProviders()), builtinLog) {
		if strings.EqualFold(p.GetName(), name) {
			return p
		}
	}
	return nil
}

// Collector returns the service to which a provider sends what it collects, NAMESPACE/HOST or HOST, as Referred; nil if there is none. A
// further service of the host takes it from nobody: istiod has none then.
func (s *Snapshot) Collector(text string) *service.Service { return s.Referred(text) }

// CollectorOf returns the service and the port that a provider of access logs or of tracing names; "" for one that names
// none.
func CollectorOf(p *Provider) (name string, port uint32) {
	var of interface {
		GetService() string
		GetPort() uint32
	}
	switch kind := p.GetProvider().(type) {
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin:
		of = kind.Zipkin
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Datadog:
		of = kind.Datadog
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Skywalking:
		of = kind.Skywalking
	case *meshv1alpha1.MeshConfig_ExtensionProvider_Opentelemetry:
		of = kind.Opentelemetry
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyHttpAls:
		of = kind.EnvoyHttpAls
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyTcpAls:
		of = kind.EnvoyTcpAls
	case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOtelAls:
		of = kind.EnvoyOtelAls
	default:
		return "", 0
	}
	return of.GetService(), of.GetPort()
}

// Collectors returns the services to which the providers of the mesh configuration send what they collect, as far as
// proxies of a namespace see them.
func (s *Snapshot) Collectors(namespace string) (out []*service.Service) {
	for _, p := range s.Mesh.GetExtensionProviders() {
		if name, _ := CollectorOf(p); name != "" {
			if svc := s.Collector(name); svc != nil && s.sees(namespace, svc) {
				out = append(out, svc)
			}
		}
	}
	return out
}
