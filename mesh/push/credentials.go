package push

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// caSuffix ends the name of a credential of which the certificates of the authority are meant. They are
// in the Secret of that name or, if there is none, in that without the suffix, as in Istio.
const caSuffix = "-cacert"

// Credential returns the credential that a proxy asks for by a name, with "-cacert" at its end for the
// certificates of the authority alone; nil if there is none, or none that the proxy may have: one of
// its own namespace, which a Gateway or a DestinationRule names that concerns the proxy (mesh.md M9).
// The caller has verified the proxy's identity.
func (s *Snapshot) Credential(v *proxy.View, name string) *config.Credential {
	if strings.Contains(name, "://") {
		return s.gatewayCredential(v, name)
	}
	namespace := v.Namespace()
	if !s.mayHave(v, name) && !s.mayHave(v, strings.TrimSuffix(name, caSuffix)) {
		return nil
	}
	stripped, onlyCA := strings.CutSuffix(name, caSuffix)
	c := s.credentials[config.Key{Kind: config.Secret, Namespace: namespace, Name: name}]
	if c == nil && onlyCA {
		c = s.credentials[config.Key{Kind: config.Secret, Namespace: namespace, Name: stripped}]
	}
	return partOf(c, onlyCA)
}

// partOf returns the part of a credential that is asked for: the certificates of authorities, or the certificate and its key;
// nil of none.
func partOf(c *config.Credential, onlyCA bool) *config.Credential {
	switch {
	case c == nil:
		return nil
	case onlyCA:
		return &config.Credential{CA: c.CA, CRL: c.CRL}
	}
	return &config.Credential{Certificate: c.Certificate, Key: c.Key, Staple: c.Staple}
}

// CredentialNames returns the names under which a Secret is asked for.
func CredentialNames(secret string) []string { return []string{secret, secret + caSuffix} }

// mayHave reports whether a document that concerns a proxy names a credential.
func (s *Snapshot) mayHave(v *proxy.View, name string) bool {
	if v.Type() != proxy.Sidecar {
		for _, gw := range s.Gateways(v) {
			for _, server := range gw.Gateway.Servers {
				tls := server.GetTls()
				if tls.GetCredentialName() == name || tls.GetCaCertCredentialName() == name || slices.Contains(tls.GetCredentialNames(), name) {
					return true
				}
			}
		}
	}
	for _, rule := range s.rules.credentials[name] {
		selector := rule.Rule.GetWorkloadSelector().GetMatchLabels()
		// All sidecars would get a credential that few of them need.
		if len(selector) == 0 && v.Type() != proxy.Sidecar ||
			len(selector) > 0 && rule.Origin().Namespace == v.Namespace() && v.SelectedBy(selector) {
			return true
		}
	}
	return false
}

// credentialsOf returns the names of the credentials in a DestinationRule.
func credentialsOf(rule *networking.DestinationRule) (names []string) {
	policies := []*networking.TrafficPolicy{rule.GetTrafficPolicy()}
	for _, subset := range rule.GetSubsets() {
		policies = append(policies, subset.GetTrafficPolicy())
	}
	for _, policy := range policies {
		names = append(names, policy.GetTls().GetCredentialName())
		for _, port := range policy.GetPortLevelSettings() {
			names = append(names, port.GetTls().GetCredentialName())
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}
