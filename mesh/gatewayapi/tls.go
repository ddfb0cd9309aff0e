package gatewayapi

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// serverTLS returns the TLS of a listener; nil for none, and if it is not valid.
func (c *converter) serverTLS(d *config.Config, gw *gatewayv1.Gateway, l *listener) *networking.ServerTLSSettings {
	tls := l.TLS
	if tls == nil {
		return nil
	}
	out := &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE}
	for _, name := range strings.Split(string(tls.Options[config.TLSCiphersOption]), ",") {
		if name = strings.TrimSpace(name); name != "" {
			out.CipherSuites = append(out.CipherSuites, name)
		}
	}
	if or(tls.Mode, gatewayv1.TLSModeTerminate) == gatewayv1.TLSModePassthrough {
		out.Mode = networking.ServerTLSSettings_PASSTHROUGH
		return out
	}
	option := tls.Options[config.TLSModeOption]
	switch option {
	case "MUTUAL":
		out.Mode = networking.ServerTLSSettings_MUTUAL
	case "OPTIONAL_MUTUAL":
		out.Mode = networking.ServerTLSSettings_OPTIONAL_MUTUAL
	case "ISTIO_MUTUAL":
		out.Mode = networking.ServerTLSSettings_ISTIO_MUTUAL
		return out
	}
	names, wrong := c.certificates(d, tls.CertificateRefs)
	l.unresolved = wrong
	switch len(names) {
	case 0:
		return nil
	case 1:
		out.CredentialName = names[0]
	default:
		out.CredentialNames = names
	}
	if wrong = c.clientValidation(d, frontendOf(gw, l.Port), string(option), out); wrong != nil {
		l.unresolved, l.noCA = wrong, wrong
		return nil
	}
	return out
}

// certificates returns the names of the credentials of a listener, and what is wrong with those that it cannot have.
func (c *converter) certificates(d *config.Config, refs []gatewayv1.SecretObjectReference) (names []string, wrong *problem) {
	if len(refs) > 2 {
		return nil, &problem{string(gatewayv1.ListenerReasonInvalidCertificateRef), "at most 2 certificates are supported"}
	}
	for _, ref := range refs {
		namespace := string(or(ref.Namespace, gatewayv1.Namespace(d.Namespace)))
		secret := c.reader.Get(config.Key{Kind: config.Secret, Namespace: namespace, Name: string(ref.Name)})
		problemOf := func(format string, args ...any) *problem {
			return &problem{string(gatewayv1.ListenerReasonInvalidCertificateRef), fmt.Sprintf(format, args...)}
		}
		switch {
		case or(ref.Group, "") != "" || or(ref.Kind, "Secret") != "Secret":
			wrong = problemOf("certificateRef %s is a %s: only a Secret has certificates", ref.Name, or(ref.Kind, "Secret"))
		case !c.allowed(config.KubernetesGateway, d.Namespace, "/Secret", namespace, string(ref.Name)):
			wrong = &problem{string(gatewayv1.ListenerReasonRefNotPermitted), fmt.Sprintf(
				"certificateRef %s/%s not accessible to a Gateway in namespace %q (missing a ReferenceGrant?)", namespace, ref.Name, d.Namespace)}
		case secret == nil:
			wrong = problemOf("Secret %s/%s not found", namespace, ref.Name)
		default:
			credential := config.CredentialOf(secret.Spec.(*corev1.Secret))
			if len(credential.Certificate) == 0 || len(credential.Key) == 0 {
				wrong = problemOf("Secret %s/%s has no certificate with its key", namespace, ref.Name)
				continue
			}
			names = append(names, SecretPrefix+namespace+"/"+string(ref.Name))
		}
	}
	return names, wrong
}

// frontendOf returns how the clients of a port are validated; nil for not at all.
func frontendOf(gw *gatewayv1.Gateway, port int32) *gatewayv1.FrontendTLSValidation {
	if gw.Spec.TLS == nil || gw.Spec.TLS.Frontend == nil {
		return nil
	}
	for _, p := range gw.Spec.TLS.Frontend.PerPort {
		if p.Port == port {
			return p.TLS.Validation
		}
	}
	return gw.Spec.TLS.Frontend.Default.Validation
}

// insecureFrontend reports whether some clients are served without a valid certificate although their certificates are validated.
func insecureFrontend(gw *gatewayv1.Gateway) bool {
	if gw.Spec.TLS == nil || gw.Spec.TLS.Frontend == nil {
		return false
	}
	insecure := func(v *gatewayv1.FrontendTLSValidation) bool {
		return v != nil && v.Mode == gatewayv1.AllowInsecureFallback
	}
	return insecure(gw.Spec.TLS.Frontend.Default.Validation) || slices.ContainsFunc(gw.Spec.TLS.Frontend.PerPort, func(p gatewayv1.TLSPortConfig) bool {
		return insecure(p.TLS.Validation)
	})
}

// clientValidation sets how clients are validated.
func (c *converter) clientValidation(d *config.Config, v *gatewayv1.FrontendTLSValidation, option string, out *networking.ServerTLSSettings) *problem {
	if v == nil || len(v.CACertificateRefs) == 0 {
		return nil
	}
	if len(v.CACertificateRefs) > 1 {
		return &problem{string(gatewayv1.ListenerReasonInvalidCACertificateRef), "only one caCertificateRef is supported"}
	}
	ref := v.CACertificateRefs[0]
	namespace := string(or(ref.Namespace, gatewayv1.Namespace(d.Namespace)))
	name, wrong := c.roots(string(ref.Group), string(ref.Kind), namespace, string(ref.Name), true)
	if wrong != nil {
		return wrong
	}
	if !c.allowed(config.KubernetesGateway, d.Namespace, "/"+string(ref.Kind), namespace, string(ref.Name)) {
		return &problem{string(gatewayv1.ListenerReasonRefNotPermitted), fmt.Sprintf(
			"caCertificateRef %s/%s not accessible to a Gateway in namespace %q (missing a ReferenceGrant?)", namespace, ref.Name, d.Namespace)}
	}
	out.CaCertCredentialName = name
	out.Mode = networking.ServerTLSSettings_MUTUAL
	if v.Mode == gatewayv1.AllowInsecureFallback && option != "MUTUAL" || option == "OPTIONAL_MUTUAL" {
		out.Mode = networking.ServerTLSSettings_OPTIONAL_MUTUAL
		out.InsecureSkipVerify = wrapBool(option == "" && v.Mode == gatewayv1.AllowInsecureFallback)
	}
	return nil
}

// roots returns the name of certificates of authorities in a ConfigMap or, if secrets is true, in a Secret.
func (c *converter) roots(group, kind, namespace, name string, secrets bool) (string, *problem) {
	invalid := func(format string, args ...any) *problem {
		return &problem{string(gatewayv1.ListenerReasonInvalidCACertificateRef), fmt.Sprintf(format, args...)}
	}
	d := c.reader.Get(config.Key{Kind: config.Kind(kind), Namespace: namespace, Name: name})
	switch {
	case group != "" || kind != "ConfigMap" && (kind != "Secret" || !secrets):
		return "", &problem{string(gatewayv1.ListenerReasonInvalidCACertificateKind), fmt.Sprintf("certificates of authorities are not in a %s %q", kind, group)}
	case d == nil:
		return "", invalid("%s %s/%s not found", kind, namespace, name)
	}
	if secret, ok := d.Spec.(*corev1.Secret); ok {
		if len(config.CredentialOf(secret).CA) == 0 {
			return "", invalid("Secret %s/%s has no ca.crt", namespace, name)
		}
		return SecretPrefix + namespace + "/" + name, nil
	}
	text := config.CABundle(d.Spec.(*corev1.ConfigMap))
	if text == "" {
		return "", invalid("ConfigMap %s/%s has no ca.crt", namespace, name)
	}
	if err := config.ValidCABundle(text); err != nil {
		return "", invalid("ca.crt of ConfigMap %s/%s are no certificates: %v", namespace, name, err)
	}
	c.out.Roots[ConfigMapPrefix+namespace+"/"+name] = text
	return ConfigMapPrefix + namespace + "/" + name, nil
}
