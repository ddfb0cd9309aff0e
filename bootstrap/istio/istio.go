// Package istio builds the bootstrap of an Envoy into whose pod Istio's webhook injected holdfast.
//
// Read reads what the webhook and Kubernetes tell the proxy: variables, labels, annotations, and Istio's ProxyConfig. The
// Proxy that it returns sets what follows from them in a bootstrap.Config (Configure), in the node (Identity) and in the
// finished bootstrap (Complete).
//
// It promises that istiod can decode the metadata of the node: a number is a number, and what istiod reads as text is text.
// It promises, too, that no setting of a ProxyConfig is lost without a warning. It asks nobody: the metadata of a cloud's
// machines is taken from variables only. It does not build what belongs to Istio's own build of Envoy.
//
// All functions may be called concurrently, also on one Proxy; none changes its arguments unless it says so.
package istio

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// Role is the first part of the node id, by which istiod selects the configuration.
type Role string

const (
	Sidecar Role = "sidecar" // next to an application
	Router  Role = "router"  // a gateway
)

// DefaultVersion is the ISTIO_VERSION of a proxy whose environment does not have it: the version that this package follows.
const DefaultVersion = "1.31.0"

// Files of the downward API, where the webhook mounts them.
const (
	LabelsFile      = "/etc/istio/pod/labels"
	AnnotationsFile = "/etc/istio/pod/annotations"
)

// Ports that Istio's probes and scrape configurations expect, unless a variable names others.
const (
	ReadyPort = 15021
	StatsPort = 15090
)

// Proxy is what is known about an injected proxy.
type Proxy struct {
	role        Role
	identity    bootstrap.Identity // its environment includes the proxyMetadata of config
	config      *meshv1.ProxyConfig
	annotations map[string]string
	statsd      netip.AddrPort // the zero value for none
	warnings    []string
}

// Read returns the proxy with an identity. The ProxyConfig is that of the variable PROXY_CONFIG, overridden by the
// annotation proxy.istio.io/config, over Istio's defaults. Its proxyMetadata are variables, which the environment overrides.
func Read(role Role, id bootstrap.Identity) (*Proxy, error) {
	if role != Sidecar && role != Router {
		return nil, fmt.Errorf("istio: role %q is neither %s nor %s", role, Sidecar, Router)
	}
	p := &Proxy{role: role, identity: id}
	metadata, err := id.AllMetadata()
	if err != nil {
		return nil, fmt.Errorf("istio: %w", err)
	}
	p.annotations = texts(metadata["ANNOTATIONS"])
	p.config = defaults()
	for _, source := range []struct{ name, text string }{
		{"variable PROXY_CONFIG", variable(id.Environ, "PROXY_CONFIG")},
		{"annotation " + configAnnotation, p.annotations[configAnnotation]},
	} {
		unknown, err := override(p.config, source.text)
		if err != nil {
			return nil, fmt.Errorf("istio: %s: %w", source.name, err)
		}
		for _, unknown := range unknown {
			p.warn("%s: %s is not known to this version, and is ignored", source.name, unknown)
		}
	}
	if address := p.annotations["sidecar.istio.io/discoveryAddress"]; address != "" {
		p.config.DiscoveryAddress = address
	}
	for _, name := range slices.Sorted(maps.Keys(p.config.GetProxyMetadata())) {
		if !has(id.Environ, name) {
			p.identity.Environ = append(slices.Clip(p.identity.Environ), name+"="+p.config.GetProxyMetadata()[name])
		}
	}
	if err := p.completeConfig(); err != nil {
		return nil, fmt.Errorf("istio: %w", err)
	}
	p.warnings = append(p.warnings, ignored(p.config)...)
	for _, name := range withoutEffect.annotations {
		if p.annotations[name] != "" {
			p.warn("annotation %s has no effect with holdfast: use --overlay", name)
		}
	}
	for _, name := range withoutEffect.variables {
		if !slices.Contains([]string{"", "0", "false"}, variable(p.identity.Environ, name)) {
			p.warn("variable %s has no effect with holdfast: use --template or --overlay", name)
		}
	}
	var why string
	if p.statsd, why = p.statsdAddress(); why != "" {
		p.warn("%s", why)
	}
	return p, nil
}

// Warnings returns the settings of the ProxyConfig that have no effect, each with the reason.
func (p *Proxy) Warnings() []string { return slices.Clone(p.warnings) }

func (p *Proxy) warn(format string, args ...any) {
	p.warnings = append(p.warnings, fmt.Sprintf(format, args...))
}

// cluster returns the name of Envoy's own service, as pilot-agent forms it; "" if nothing determines it.
func (p *Proxy) cluster(labels map[string]string, workload string) string {
	namespace := p.identity.Pod.Namespace
	canonical := cmp.Or(labels["service.istio.io/canonical-name"], labels["app.kubernetes.io/name"], labels["app"], workload)
	if _, byTracing := p.config.GetClusterName().(*meshv1.ProxyConfig_TracingServiceName_); byTracing && canonical != "" {
		switch p.config.GetTracingServiceName() {
		case meshv1.ProxyConfig_CANONICAL_NAME_ONLY:
			return canonical
		case meshv1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE:
			return dotted(canonical, namespace)
		}
	}
	if name := p.config.GetServiceCluster(); name != "" && name != defaultCluster {
		return name
	}
	name := cmp.Or(labels["app"], labels["app.kubernetes.io/name"], labels["service.istio.io/canonical-name"], workload, defaultCluster)
	return dotted(name, namespace)
}

// defaultCluster is the serviceCluster that stands for none.
const defaultCluster = "istio-proxy"

func dotted(name, namespace string) string { return strings.TrimSuffix(name+"."+namespace, ".") }

// variable returns a variable of the environment, "" for none.
func variable(environ []string, name string) string {
	for _, pair := range environ {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

func has(environ []string, name string) bool {
	return slices.ContainsFunc(environ, func(pair string) bool { return strings.HasPrefix(pair, name+"=") })
}

// texts returns the texts of a JSON object.
func texts(object any) map[string]string {
	all := make(map[string]string)
	values, _ := object.(map[string]any)
	for key, value := range values {
		if text, ok := value.(string); ok {
			all[key] = text
		}
	}
	return all
}
