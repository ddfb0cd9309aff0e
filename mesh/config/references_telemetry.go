package config

import (
	"maps"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// telemetry warns of providers that do not log or do not trace, and of a Telemetry without effect because an older one is
// for the same namespace.
func (p *policies) telemetry(c *Config, older []*Config) {
	root, spec := &path{name: "spec"}, c.Spec.(*telemetry.Telemetry)
	for i, log := range spec.GetAccessLogging() {
		for j, ref := range log.GetProviders() {
			p.provides(c, root.field("accessLogging").at(i).field("providers").at(j).field("name"), ref.GetName(), "writes access logs", logs)
		}
	}
	for i, tracing := range spec.GetTracing() {
		for j, ref := range tracing.GetProviders() {
			p.provides(c, root.field("tracing").at(i).field("providers").at(j).field("name"), ref.GetName(), "traces requests", traces)
		}
	}
	p.targets(c, spec)
	if hasTargets(spec) {
		return
	}
	labels := spec.GetSelector().GetMatchLabels()
	for _, other := range older {
		of := other.Spec.(*telemetry.Telemetry)
		if other.Namespace == c.Namespace && !hasTargets(of) && maps.Equal(labels, of.GetSelector().GetMatchLabels()) {
			what := "workloads"
			if len(labels) == 0 {
				what = "namespace"
			}
			p.warn(SameWorkloads, c, root, "has no effect: %s is older and is for the same %s", other.Key, what)
			return
		}
	}
}

// provides warns of a provider that the mesh configuration does not have, or that does something else.
func (p *policies) provides(c *Config, at *path, name, what string, does func(*extensionProvider) bool) {
	for _, m := range p.reader.List(MeshConfig, "") {
		for _, provider := range m.Spec.(*meshv1alpha1.MeshConfig).GetExtensionProviders() {
			if strings.EqualFold(provider.GetName(), name) && does(provider) {
				return
			}
		}
	}
	if name != "" && !(strings.EqualFold(name, builtinProviders[0]) && what == "writes access logs") {
		p.warn(UnknownProvider, c, at, "the MeshConfig has no provider %q that %s: it has no effect", name, what)
	}
}

func logs(p *extensionProvider) bool {
	return p.GetEnvoyFileAccessLog() != nil || p.GetEnvoyHttpAls() != nil || p.GetEnvoyTcpAls() != nil || p.GetEnvoyOtelAls() != nil
}

func traces(p *extensionProvider) bool {
	return p.GetZipkin() != nil || p.GetDatadog() != nil || p.GetSkywalking() != nil || p.GetOpentelemetry() != nil
}

// groupLabels returns the labels that a WorkloadGroup gives to its workloads.
func groupLabels(group *networking.WorkloadGroup) map[string]string {
	labels := make(map[string]string)
	for _, of := range []map[string]string{group.GetTemplate().GetLabels(), group.GetMetadata().GetLabels()} {
		maps.Copy(labels, of)
	}
	return labels
}
