package config

import (
	"fmt"
	"strconv"
	"strings"
)

// Annotations of the ConfigMap of the mesh configuration, for what Istio's MeshConfig has no fields.
const (
	// HostOwnersAnnotation names the namespaces whose hosts are: a line for each, "NAMESPACE: HOST HOST…". A host may begin with "*.".
	// Documents of other namespaces have such a host for proxies of their own namespace alone.
	HostOwnersAnnotation = "mesh.holdfast.dev/host-owners"
	// ScopeGatewaysAnnotation, with "true", lets a Gateway select proxies of its own namespace alone, as istiod does with
	// PILOT_SCOPE_GATEWAY_TO_NAMESPACE.
	ScopeGatewaysAnnotation = "mesh.holdfast.dev/scope-gateway-to-namespace"
)

// HostOwners are namespaces by the hosts that are theirs, in lower case.
type HostOwners map[string]string

// ParseHostOwners reads the value of HostOwnersAnnotation. The error says what is wrong in which line.
func ParseHostOwners(text string) (HostOwners, error) {
	owners := make(HostOwners)
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		namespace, hosts, ok := strings.Cut(line, ":")
		if !ok || !isDNSLabel(namespace) || strings.TrimSpace(hosts) == "" {
			return nil, fmt.Errorf("line %d, %q: want NAMESPACE: HOST HOST…", i+1, line)
		}
		for _, host := range strings.FieldsFunc(hosts, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' }) {
			host = withoutDot(strings.ToLower(host))
			if problem := wildcardHostProblem(host); problem != "" || host == "*" {
				return nil, fmt.Errorf("line %d: %q is no host or *.DOMAIN", i+1, host)
			}
			if other := owners[host]; other != "" && other != namespace {
				return nil, fmt.Errorf("line %d: %q is the namespace %s's already", i+1, host, other)
			}
			owners[host] = namespace
		}
	}
	return owners, nil
}

// Of returns the namespace whose a host is, and "" for nobody's. Of several the narrowest counts: the host itself, or else the longest
// domain. A host with a wildcard is somebody's if all hosts that it stands for are.
func (o HostOwners) Of(host string) string {
	if len(o) == 0 {
		return ""
	}
	host = strings.ToLower(host)
	if namespace, ok := o[host]; ok {
		return namespace
	}
	for at := strings.IndexByte(host, '.'); at >= 0; {
		if namespace, ok := o["*"+host[at:]]; ok {
			return namespace
		}
		next := strings.IndexByte(host[at+1:], '.')
		if next < 0 {
			break
		}
		at += 1 + next
	}
	return ""
}

// HostOwnersOf returns the owners that a mesh configuration names; nil for none.
func HostOwnersOf(mesh *Config) HostOwners {
	owners, _ := ParseHostOwners(mesh.Annotations[HostOwnersAnnotation]) // it is valid
	return owners
}

// ScopesGateways reports whether a mesh configuration lets Gateways select proxies of their own namespace alone.
func ScopesGateways(mesh *Config) bool {
	scopes, _ := strconv.ParseBool(mesh.Annotations[ScopeGatewaysAnnotation]) // it is valid
	return scopes
}

// meshAnnotations checks the annotations of the mesh configuration.
func (k *checker) meshAnnotations() {
	root := (&path{name: "metadata"}).field("annotations")
	for name, value := range k.config.Annotations {
		switch at := root.field(name); {
		case name == HostOwnersAnnotation:
			if _, err := ParseHostOwners(value); err != nil {
				k.errorf(at, "%v", err)
			}
		case name == ScopeGatewaysAnnotation:
			if _, err := strconv.ParseBool(value); err != nil {
				k.errorf(at, "must be \"true\" or \"false\", and is %q", value)
			}
		case strings.HasPrefix(name, "mesh.holdfast.dev/"):
			k.errorf(at, "is no annotation of holdfast-mesh: want %s or %s", HostOwnersAnnotation, ScopeGatewaysAnnotation)
		}
	}
}
