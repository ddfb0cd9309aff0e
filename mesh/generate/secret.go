package generate

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/gatewayapi"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// secretPrefix begins the names by which Secrets of the configuration are asked for.
const secretPrefix = "kubernetes://"

// kubernetesSecret returns the name by which a Secret of the configuration is asked for.
// A listener of the Gateway API names it in full.
func kubernetesSecret(name string) string {
	if strings.Contains(name, "://") {
		return name
	}
	return secretPrefix + name
}

// SecretNames returns the names by which a proxy asks for a Secret of the configuration.
func SecretNames(secret string) []string {
	names := push.CredentialNames(secret)
	for i, name := range names {
		names[i] = kubernetesSecret(name)
	}
	return names
}

// Secret returns a Secret of the configuration as a proxy gets it; nil if there is none, or none that
// the proxy may have. The caller has verified the proxy's identity.
func (g *Generator) Secret(v *proxy.View, name string) *xds.Resource {
	if !isKubernetesSecret(name) {
		return nil // the proxy's agent has it
	}
	secret := strings.TrimPrefix(name, secretPrefix)
	credential := g.snap.Credential(v, secret)
	inline := func(data []byte) *corev3.DataSource {
		if len(data) == 0 {
			return nil
		}
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: data}}
	}
	m := &tlsv3.Secret{Name: name}
	switch {
	case credential == nil:
		return nil
	case len(credential.Key) > 0:
		m.Type = &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: inline(credential.Certificate), PrivateKey: inline(credential.Key), OcspStaple: inline(credential.Staple),
		}}
	case len(credential.CA) > 0:
		m.Type = &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: inline(credential.CA), Crl: inline(credential.CRL),
		}}
	default:
		return nil
	}
	return resource(xds.SecretType, name, m)
}

func isKubernetesSecret(name string) bool {
	return strings.HasPrefix(name, secretPrefix) || strings.HasPrefix(name, gatewayapi.SecretPrefix) || strings.HasPrefix(name, gatewayapi.ConfigMapPrefix)
}
