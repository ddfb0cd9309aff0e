package config

import (
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The limits of the Gateway API's own schema, which a Kubernetes API server enforces.
const (
	maxListeners  = 64
	maxParents    = 32
	maxRules      = 16
	maxMatches    = 64
	maxAllMatches = 128
	maxBackends   = 16
	maxFilters    = 16
	maxWeight     = 1000000
)

var (
	// gatewayDuration is a duration of the Gateway API (GEP-2257): at most 8 digits and four units, no fractions.
	gatewayDuration = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)
	gatewayHostname = regexp.MustCompile(`^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	controllerName  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/[A-Za-z0-9\/\-._~%!$&'()*+,;=:]+$`)
)

// gatewayAPIHost checks a hostname of the Gateway API, whose first label may be "*" if wildcard is true.
func (k *checker) gatewayAPIHost(at *path, host string, wildcard bool) {
	switch {
	case len(host) > maxName || !gatewayHostname.MatchString(host):
		k.errorf(at, "%q is no hostname: use lower case letters, digits, '-' and '.', at most 253", host)
	case !wildcard && strings.HasPrefix(host, "*"):
		k.errorf(at, "%q must not have a wildcard", host)
	case isIP(host):
		k.errorf(at, "%q must be a name and not an address", host)
	}
}

// hostnames checks the hostnames of a route.
func (k *checker) hostnames(at *path, hosts []gatewayv1.Hostname) {
	k.atMost(at, len(hosts), maxBackends)
	for i, host := range hosts {
		k.gatewayAPIHost(at.at(i), string(host), true)
	}
}

// atMost checks the length of a list.
func (k *checker) atMost(at *path, length, most int) {
	if length > most {
		k.errorf(at, "must have at most %d elements, and has %d", most, length)
	}
}

// objectName checks the name of an object that is referred to.
func (k *checker) objectName(at *path, name string) {
	switch {
	case name == "":
		k.errorf(at, "it is missing")
	case len(name) > maxName:
		k.errorf(at, "must be at most %d characters long", maxName)
	}
}

// otherNamespace checks the namespace of an object that is referred to; nil for none.
func (k *checker) otherNamespace(at *path, namespace *gatewayv1.Namespace) {
	if namespace != nil && !isDNSLabel(string(*namespace)) {
		k.errorf(at, "%q is no namespace", *namespace)
	}
}

// sectionName checks the name of a listener, a port or a rule; nil for none.
func (k *checker) sectionName(at *path, name *gatewayv1.SectionName) {
	if name != nil && !isDNSName(string(*name)) {
		k.errorf(at, "%q is no name: use lower case letters, digits, '-' and '.', at most 253", *name)
	}
}

// gatewayPort checks a port; nil for none.
func (k *checker) gatewayPort(at *path, port *gatewayv1.PortNumber) {
	if port != nil {
		k.port(at, int64(*port))
	}
}

// deref returns what a pointer points to, or the default of the field for nil.
func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// parents checks the parents of a route.
func (k *checker) parents(at *path, spec gatewayv1.CommonRouteSpec) {
	type parent struct{ group, kind, namespace, name string }
	type section struct {
		parent
		section string
		port    int32
	}
	unnamed, all, sections := make(map[parent]int), make(map[parent]int), make(map[section]bool)
	k.atMost(at, len(spec.ParentRefs), maxParents)
	if len(spec.ParentRefs) == 0 {
		k.warnf(NoEffect, at, "a route without parents has no effect")
	}
	for i, ref := range spec.ParentRefs {
		at := at.at(i)
		k.objectName(at.field("name"), string(ref.Name))
		k.otherNamespace(at.field("namespace"), ref.Namespace)
		k.sectionName(at.field("sectionName"), ref.SectionName)
		k.gatewayPort(at.field("port"), ref.Port)
		p := parent{
			string(deref(ref.Group, gatewayAPI)), string(deref(ref.Kind, "Gateway")),
			string(deref(ref.Namespace, gatewayv1.Namespace(k.config.Namespace))), string(ref.Name),
		}
		switch p.group + "/" + p.kind {
		case string(KubernetesGateway), "/Service", string(ServiceEntry):
		default:
			k.warnf(GatewayAPINotFound, at, "ignored: routes of %s %q are not served, but those of a Gateway, a Service or a ServiceEntry", p.kind, p.group)
		}
		one := section{p, string(deref(ref.SectionName, "")), deref(ref.Port, 0)}
		if one.section == "" && one.port == 0 {
			unnamed[p]++
		}
		all[p]++
		if sections[one] && all[p] > 1 {
			k.errorf(at, "repeats a parent of the list: each needs its own sectionName or port")
		} else if unnamed[p] > 0 && all[p] > 1 {
			k.errorf(at.field("sectionName"), "several references to one parent must all have a sectionName or a port")
		}
		sections[one] = true
	}
}

// backend checks to what a route sends requests or connections.
func (k *checker) backend(at *path, ref gatewayv1.BackendObjectReference) {
	k.objectName(at.field("name"), string(ref.Name))
	k.otherNamespace(at.field("namespace"), ref.Namespace)
	k.gatewayPort(at.field("port"), ref.Port)
	group, kind := string(deref(ref.Group, "")), string(deref(ref.Kind, "Service"))
	switch {
	case group == "" && kind == "Service":
		if ref.Port == nil {
			k.errorf(at.field("port"), "it is missing")
		}
		if strings.Contains(string(ref.Name), ".") {
			k.errorf(at.field("name"), "%q must be the name of a Service, and not a host", ref.Name)
		}
	case group == "networking.istio.io" && kind == "Hostname":
		if ref.Port == nil {
			k.errorf(at.field("port"), "it is missing")
		}
		if ref.Namespace != nil {
			k.errorf(at.field("namespace"), "a Hostname has no namespace: it is that of the route")
		}
	default:
		k.warnf(GatewayAPINotFound, at, "there are no backends of the kind %s %q: requests get 500, and connections are closed", kind, group)
	}
}

// weighted checks a backend that has a share of the traffic.
func (k *checker) weighted(at *path, ref gatewayv1.BackendRef) {
	k.backend(at, ref.BackendObjectReference)
	if w := deref(ref.Weight, 1); w < 0 || w > maxWeight {
		k.errorf(at.field("weight"), "must be from 0 to %d, and is %d", maxWeight, w)
	}
}

// gatewayDuration checks a duration; nil for none.
func (k *checker) gatewayDuration(at *path, d *gatewayv1.Duration) time.Duration {
	if d == nil {
		return 0
	}
	value, err := time.ParseDuration(string(*d))
	if err != nil || !gatewayDuration.MatchString(string(*d)) {
		k.errorf(at, "%q is no duration as in 1m30s or 500ms", *d)
	}
	return value
}

// kubernetesSelector checks a selector; nil for none.
func (k *checker) kubernetesSelector(at *path, selector *metav1.LabelSelector) {
	if selector == nil {
		return
	}
	if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
		k.errorf(at, "is no selector: %s", err)
	}
}

// ruleName checks the name of a rule, which must be unique.
func (k *checker) ruleName(at *path, name *gatewayv1.SectionName, seen map[gatewayv1.SectionName]bool) {
	k.sectionName(at, name)
	if name == nil {
		return
	}
	if seen[*name] {
		k.errorf(at, "%q is the name of another rule", *name)
	}
	seen[*name] = true
}

// validateGatewayClass checks a GatewayClass.
func validateGatewayClass(k *checker, class *gatewayv1.GatewayClass) {
	root := &path{name: "spec"}
	if name := string(class.Spec.ControllerName); len(name) > maxName || !controllerName.MatchString(name) {
		k.errorf(root.field("controllerName"), "%q is no controller as in istio.io/gateway-controller", name)
	} else if !IsOurController(name) {
		k.warnf(GatewayAPIOtherController, root.field("controllerName"), "ignored: Gateways of this class are for another controller, this one is %s", GatewayController)
	}
}

// GatewayController is the controller that GatewayClasses for this mesh name. HoldfastController may be named
// in its place where istiod is there too.
const (
	GatewayController  = "istio.io/gateway-controller"
	HoldfastController = "holdfast.dev/gateway-controller"
)

// IsOurController reports whether Gateways of a controller are served here.
func IsOurController(name string) bool {
	return name == GatewayController || name == HoldfastController
}

// validateReferenceGrant checks a ReferenceGrant.
func validateReferenceGrant(k *checker, grant *gatewayv1.ReferenceGrant) {
	root := &path{name: "spec"}
	from, to := root.field("from"), root.field("to")
	k.atMost(from, len(grant.Spec.From), maxBackends)
	k.atMost(to, len(grant.Spec.To), maxBackends)
	if len(grant.Spec.From) == 0 {
		k.errorf(from, "must have at least one element")
	}
	if len(grant.Spec.To) == 0 {
		k.errorf(to, "must have at least one element")
	}
	for i, f := range grant.Spec.From {
		k.objectName(from.at(i).field("kind"), string(f.Kind))
		k.otherNamespace(from.at(i).field("namespace"), &f.Namespace)
		switch Kind(string(f.Group) + "/" + string(f.Kind)) {
		case KubernetesGateway, HTTPRoute, GRPCRoute, TLSRoute, TCPRoute:
		default:
			k.warnf(NoEffect, from.at(i).field("kind"), "has no effect: %s %q refers to nothing here", f.Kind, f.Group)
		}
	}
	for i, t := range grant.Spec.To {
		k.objectName(to.at(i).field("kind"), string(t.Kind))
		if t.Name != nil {
			k.objectName(to.at(i).field("name"), string(*t.Name))
		}
		switch string(t.Group) + "/" + string(t.Kind) {
		case "/Service", "/Secret", "/ConfigMap":
		default:
			k.warnf(NoEffect, to.at(i).field("kind"), "has no effect: nothing here refers to a %s %q", t.Kind, t.Group)
		}
	}
}

// CABundle is the key in which a ConfigMap has the certificates of authorities. As in Istio, that of a generic Secret
// is understood, too.
func CABundle(m *corev1.ConfigMap) string {
	if text := m.Data[genericCA]; text != "" {
		return text
	}
	return m.Data[tlsCA]
}

// validateConfigMap checks a ConfigMap. Most are not for the mesh.
func validateConfigMap(k *checker, m *corev1.ConfigMap) {
	switch text := CABundle(m); {
	case text == "":
		k.warnf(GatewayAPICertificates, nil, "ignored: it has no certificates of authorities, in the key %s", tlsCA)
	default:
		if err := ValidCABundle(text); err != nil {
			k.warnf(GatewayAPICertificates, (&path{name: "data"}).field(tlsCA), "are not certificates: %s", err)
		}
	}
}
