package config

import (
	"crypto/x509"
	"maps"
	"net/netip"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// The options of a listener's TLS that are read; they are Istio's.
const (
	// TLSModeOption says whether clients must have certificates: MUTUAL, OPTIONAL_MUTUAL, or ISTIO_MUTUAL for those of the mesh.
	TLSModeOption = "gateway.istio.io/tls-terminate-mode"
	// TLSCiphersOption lists cipher suites, with commas between them.
	TLSCiphersOption = "gateway.istio.io/tls-cipher-suites"
)

// validateKubernetesGateway checks a Gateway of the Gateway API.
func validateKubernetesGateway(k *checker, gateway *gatewayv1.Gateway) {
	root, spec := &path{name: "spec"}, &gateway.Spec
	k.objectName(root.field("gatewayClassName"), string(spec.GatewayClassName))
	at := root.field("listeners")
	if len(spec.Listeners) == 0 {
		k.errorf(at, "must have at least one listener")
	}
	k.atMost(at, len(spec.Listeners), maxListeners)
	type place struct {
		port     int32
		protocol gatewayv1.ProtocolType
		hostname string
	}
	names, places := make(map[gatewayv1.SectionName]int), make(map[place]int)
	for i := range spec.Listeners {
		l := &spec.Listeners[i]
		k.listener(at.at(i), l)
		if before, twice := names[l.Name]; twice {
			k.errorf(at.at(i).field("name"), "%q is the name of listeners[%d] too", l.Name, before)
		}
		names[l.Name] = i
		where := place{l.Port, l.Protocol, string(deref(l.Hostname, ""))}
		if before, twice := places[where]; twice {
			k.errorf(at.at(i), "has the port, the protocol and the hostname of listeners[%d]", before)
		}
		places[where] = i
	}
	k.gatewayAddresses(root.field("addresses"), spec.Addresses)
	if spec.TLS != nil && spec.TLS.Frontend != nil {
		at, frontend := root.fields("tls.frontend"), spec.TLS.Frontend
		k.frontendValidation(at.fields("default.validation"), frontend.Default.Validation)
		ports := make(map[int32]bool)
		for i, p := range frontend.PerPort {
			k.port(at.field("perPort").at(i).field("port"), int64(p.Port))
			if ports[p.Port] {
				k.errorf(at.field("perPort").at(i).field("port"), "%d is there twice", p.Port)
			}
			ports[p.Port] = true
			k.frontendValidation(at.field("perPort").at(i).fields("tls.validation"), p.TLS.Validation)
		}
	}
}

// listener checks a listener of a Gateway.
func (k *checker) listener(at *path, l *gatewayv1.Listener) {
	k.sectionName(at.field("name"), &l.Name)
	k.port(at.field("port"), int64(l.Port))
	hostname := string(deref(l.Hostname, ""))
	if hostname != "" {
		k.gatewayAPIHost(at.field("hostname"), hostname, true)
	}
	switch l.Protocol {
	case "":
		k.errorf(at.field("protocol"), "it is missing")
	case gatewayv1.HTTPProtocolType, gatewayv1.TCPProtocolType, gatewayv1.UDPProtocolType:
		if l.TLS != nil {
			k.errorf(at.field("tls"), "a listener of %s has no TLS", l.Protocol)
		}
	case gatewayv1.HTTPSProtocolType:
		if l.TLS != nil && deref(l.TLS.Mode, gatewayv1.TLSModeTerminate) != gatewayv1.TLSModeTerminate {
			k.errorf(at.fields("tls.mode"), "must be Terminate for HTTPS")
		}
	case gatewayv1.TLSProtocolType:
		if l.TLS == nil || l.TLS.Mode == nil {
			k.errorf(at.fields("tls.mode"), "it is missing: write Terminate or Passthrough")
		}
	}
	switch l.Protocol {
	case gatewayv1.TCPProtocolType, gatewayv1.UDPProtocolType:
		if hostname != "" {
			k.errorf(at.field("hostname"), "a listener of %s has no hostname", l.Protocol)
		}
	case gatewayv1.HTTPProtocolType, gatewayv1.HTTPSProtocolType, gatewayv1.TLSProtocolType:
	default:
		if l.Protocol != "" {
			k.warnf(ProtocolNotProxied, at.field("protocol"), "the listener is not served: there is no protocol %q, but HTTP, HTTPS, TLS and TCP", l.Protocol)
		}
	}
	if l.Protocol == gatewayv1.UDPProtocolType {
		k.warnf(ProtocolNotProxied, at.field("protocol"), "the listener is not served: UDP is not proxied")
	}
	if l.Protocol == gatewayv1.HTTPSProtocolType && l.TLS == nil {
		k.warnf(NoCertificate, at.field("tls"), "the listener is not served: it has no certificate")
	}
	k.listenerTLS(at.field("tls"), l.TLS)
	k.allowedRoutes(at.field("allowedRoutes"), l.AllowedRoutes)
}

// listenerTLS checks the TLS of a listener; nil for none.
func (k *checker) listenerTLS(at *path, tls *gatewayv1.ListenerTLSConfig) {
	if tls == nil {
		return
	}
	mode := deref(tls.Mode, gatewayv1.TLSModeTerminate)
	switch {
	case mode != gatewayv1.TLSModeTerminate && mode != gatewayv1.TLSModePassthrough:
		k.errorf(at.field("mode"), "must be Terminate or Passthrough")
	case mode == gatewayv1.TLSModeTerminate && len(tls.CertificateRefs) == 0 && len(tls.Options) == 0:
		k.errorf(at.field("certificateRefs"), "must have a certificate: the mode is Terminate")
	}
	if mode == gatewayv1.TLSModeTerminate && len(tls.CertificateRefs) > 2 {
		k.warnf(GatewayAPINotServed, at.field("certificateRefs"), "the listener is not served: at most 2 certificates are supported")
	}
	for i, ref := range tls.CertificateRefs {
		at := at.field("certificateRefs").at(i)
		k.objectName(at.field("name"), string(ref.Name))
		k.otherNamespace(at.field("namespace"), ref.Namespace)
		if deref(ref.Group, "") != "" || deref(ref.Kind, "Secret") != "Secret" {
			k.warnf(NoEffect, at.field("kind"), "has no effect: only a Secret has certificates")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(tls.Options)) {
		at := at.field("options").field(string(key))
		switch key {
		case TLSModeOption:
			switch tls.Options[key] {
			case "MUTUAL", "OPTIONAL_MUTUAL", "ISTIO_MUTUAL":
			default:
				k.warnf(FieldNotSupported, at, "not supported: write MUTUAL, OPTIONAL_MUTUAL or ISTIO_MUTUAL")
			}
		case TLSCiphersOption:
		default:
			k.warnf(FieldNotSupported, at, "not supported: the options are %s and %s", TLSModeOption, TLSCiphersOption)
		}
	}
}

// allowedRoutes checks which routes a listener accepts; nil for the default.
func (k *checker) allowedRoutes(at *path, allowed *gatewayv1.AllowedRoutes) {
	if allowed == nil {
		return
	}
	if n := allowed.Namespaces; n != nil {
		at := at.field("namespaces")
		switch deref(n.From, gatewayv1.NamespacesFromSame) {
		case gatewayv1.NamespacesFromAll, gatewayv1.NamespacesFromSame:
		case gatewayv1.NamespacesFromSelector:
			if n.Selector == nil {
				k.errorf(at.field("selector"), "it is missing: from is Selector")
			}
		default:
			k.errorf(at.field("from"), "must be All, Selector or Same")
		}
		k.kubernetesSelector(at.field("selector"), n.Selector)
	}
	k.atMost(at.field("kinds"), len(allowed.Kinds), 8)
	for i, kind := range allowed.Kinds {
		k.objectName(at.field("kinds").at(i).field("kind"), string(kind.Kind))
	}
}

// gatewayAddresses checks the addresses of a Gateway.
func (k *checker) gatewayAddresses(at *path, addresses []gatewayv1.GatewaySpecAddress) {
	k.atMost(at, len(addresses), maxBackends)
	seen := make(map[gatewayv1.GatewaySpecAddress]bool)
	for i, a := range addresses {
		at, kind := at.at(i), deref(a.Type, gatewayv1.IPAddressType)
		switch kind {
		case gatewayv1.HostnameAddressType:
			if a.Value != "" {
				k.gatewayAPIHost(at.field("value"), a.Value, true)
			}
		case gatewayv1.IPAddressType:
			if _, err := netip.ParseAddr(a.Value); a.Value != "" && err != nil {
				k.errorf(at.field("value"), "%q is no IP address", a.Value)
			}
			k.warnf(NoEffect, at.field("type"), "has no effect: no address is assigned to the proxies of a Gateway")
		default:
			k.warnf(NoEffect, at.field("type"), "has no effect: only addresses of the type Hostname name proxies, by their Service")
		}
		one := gatewayv1.GatewaySpecAddress{Value: string(kind) + "/" + a.Value}
		if seen[one] && a.Value != "" {
			k.errorf(at.field("value"), "%q is there twice", a.Value)
		}
		seen[one] = true
	}
}

// frontendValidation checks how the certificates of clients are validated; nil for not at all.
func (k *checker) frontendValidation(at *path, v *gatewayv1.FrontendTLSValidation) {
	if v == nil {
		return
	}
	refs := at.field("caCertificateRefs")
	if len(v.CACertificateRefs) == 0 {
		k.errorf(refs, "must have at least one element")
	}
	if len(v.CACertificateRefs) > 1 {
		k.warnf(GatewayAPINotServed, refs, "the listeners are not served: only one reference is supported")
	}
	for i, ref := range v.CACertificateRefs {
		k.objectName(refs.at(i).field("name"), string(ref.Name))
		k.otherNamespace(refs.at(i).field("namespace"), ref.Namespace)
		if ref.Group != "" || ref.Kind != "ConfigMap" && ref.Kind != "Secret" {
			k.warnf(GatewayAPINotServed, refs.at(i).field("kind"), "the listeners are not served: the certificates of authorities are in a ConfigMap or a Secret")
		}
	}
	switch v.Mode {
	case "", gatewayv1.AllowValidOnly, gatewayv1.AllowInsecureFallback:
	default:
		k.errorf(at.field("mode"), "must be AllowValidOnly or AllowInsecureFallback")
	}
}

// validateBackendTLSPolicy checks a BackendTLSPolicy.
func validateBackendTLSPolicy(k *checker, policy *gatewayv1.BackendTLSPolicy) {
	root, spec := &path{name: "spec"}, &policy.Spec
	at := root.field("targetRefs")
	if len(spec.TargetRefs) == 0 {
		k.errorf(at, "must have at least one element")
	}
	k.atMost(at, len(spec.TargetRefs), maxBackends)
	seen := make(map[string]bool)
	for i, ref := range spec.TargetRefs {
		k.objectName(at.at(i).field("name"), string(ref.Name))
		k.sectionName(at.at(i).field("sectionName"), ref.SectionName)
		switch string(ref.Group) + "/" + string(ref.Kind) {
		case "/Service", string(ServiceEntry):
		default:
			k.warnf(NoEffect, at.at(i).field("kind"), "has no effect: the target must be a Service or a ServiceEntry")
		}
		target := strings.Join([]string{string(ref.Group), string(ref.Kind), string(ref.Name)}, "/")
		section := target + "/" + string(deref(ref.SectionName, ""))
		switch {
		case seen[section]:
			k.errorf(at.at(i), "repeats a target of the list: each needs its own sectionName")
		case seen[target] && ref.SectionName == nil, seen[target+"/"]:
			k.errorf(at.at(i).field("sectionName"), "several references to one target must all have a sectionName")
		}
		seen[target], seen[section] = true, true
	}
	at = root.field("validation")
	v := &spec.Validation
	if v.Hostname == "" {
		k.errorf(at.field("hostname"), "it is missing")
	} else {
		k.gatewayAPIHost(at.field("hostname"), string(v.Hostname), false)
	}
	switch known := v.WellKnownCACertificates != nil && *v.WellKnownCACertificates != ""; {
	case known && len(v.CACertificateRefs) > 0:
		k.errorf(at.field("wellKnownCACertificates"), "there are caCertificateRefs too: write one of them")
	case !known && len(v.CACertificateRefs) == 0:
		k.errorf(at.field("caCertificateRefs"), "it is missing: write it, or wellKnownCACertificates")
	case known && *v.WellKnownCACertificates != gatewayv1.WellKnownCACertificatesSystem:
		k.errorf(at.field("wellKnownCACertificates"), "must be System")
	}
	if len(v.CACertificateRefs) > 1 {
		k.warnf(OnlyFirstUsed, at.field("caCertificateRefs").at(1), "has no effect: only the first reference is used")
	}
	for i, ref := range v.CACertificateRefs {
		k.objectName(at.field("caCertificateRefs").at(i).field("name"), string(ref.Name))
		if ref.Group != "" || ref.Kind != "ConfigMap" {
			k.warnf(GatewayAPICertificates, at.field("caCertificateRefs").at(i).field("kind"), "nothing is trusted: the certificates of authorities must be in a ConfigMap")
		}
	}
	for i, san := range v.SubjectAltNames {
		k.subjectAltName(at.field("subjectAltNames").at(i), san)
	}
	for _, key := range slices.Sorted(maps.Keys(spec.Options)) {
		k.warnf(FieldNotSupported, root.field("options").field(string(key)), "not supported: there are no options")
	}
}

// subjectAltName checks a name that the certificate of a backend may have.
func (k *checker) subjectAltName(at *path, san gatewayv1.SubjectAltName) {
	switch san.Type {
	case gatewayv1.HostnameSubjectAltNameType:
		if san.URI != "" {
			k.errorf(at.field("uri"), "the type is Hostname")
		}
		k.gatewayAPIHost(at.field("hostname"), string(san.Hostname), true)
	case gatewayv1.URISubjectAltNameType:
		if san.Hostname != "" {
			k.errorf(at.field("hostname"), "the type is URI")
		}
		if !strings.Contains(string(san.URI), ":") {
			k.errorf(at.field("uri"), "%q is no absolute URI", san.URI)
		}
	default:
		k.errorf(at.field("type"), "must be Hostname or URI")
	}
}

// ValidCABundle returns why a text has no certificates of authorities; nil if it has.
func ValidCABundle(text string) error {
	return blocks([]byte(text), "CERTIFICATE", x509.ParseCertificate)
}
