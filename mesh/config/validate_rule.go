package config

import (
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"
)

// deniedConnections warns of a rule that denies more connections that are not HTTP than requests: it ignores what is not
// known of them.
func (k *checker) deniedConnections(at *path, rule *security.Rule) {
	if isEverything(rule) {
		return
	}
	// One source with nothing that is known stands for any client, and one operation for anything.
	anyClient := len(rule.GetFrom()) == 0 || slices.ContainsFunc(rule.GetFrom(), func(f *security.Rule_From) bool { return !knowsClient(f.GetSource()) })
	anything := len(rule.GetTo()) == 0 || slices.ContainsFunc(rule.GetTo(), func(t *security.Rule_To) bool {
		return len(t.GetOperation().GetPorts())+len(t.GetOperation().GetNotPorts()) == 0
	})
	conditions := slices.ContainsFunc(rule.GetWhen(), func(c *security.Condition) bool { return knownOfConnections(c.GetKey()) })
	switch {
	case !anything || conditions:
	case anyClient:
		k.warnf(DeniesConnections, at, "says nothing of ports or of the client's address or identity: on ports that are not HTTP it denies every connection; name the ports")
	case len(rule.GetTo()) > 0:
		k.warnf(DeniesConnections, at, "says nothing of ports: on ports that are not HTTP it denies every connection of these clients; name the ports")
	}
}

func isEverything(rule *security.Rule) bool {
	return len(rule.GetFrom())+len(rule.GetTo())+len(rule.GetWhen()) == 0
}

// knowsClient reports whether a source has something that is known of a connection that is not HTTP.
func knowsClient(s *security.Source) bool {
	return len(s.GetPrincipals())+len(s.GetNotPrincipals())+len(s.GetIpBlocks())+len(s.GetNotIpBlocks())+
		len(s.GetNamespaces())+len(s.GetNotNamespaces())+len(s.GetRemoteIpBlocks())+len(s.GetNotRemoteIpBlocks())+
		len(s.GetServiceAccounts())+len(s.GetNotServiceAccounts())+len(s.GetTrustDomains())+len(s.GetNotTrustDomains()) > 0
}

// knownOfConnections reports whether an attribute is known of a connection that is not HTTP.
func knownOfConnections(attribute string) bool {
	return !strings.HasPrefix(attribute, AttributeHeader) && !strings.HasPrefix(attribute, "request.auth.")
}

// wildcardAtAnEnd are the fields in which a "*" at the beginning or at the end stands for anything.
var wildcardAtAnEnd = map[string]bool{
	"principals": true, "notPrincipals": true, "requestPrincipals": true, "notRequestPrincipals": true,
	"hosts": true, "notHosts": true, "methods": true, "notMethods": true, "paths": true, "notPaths": true,
}

// literalStars warns of a "*" that is compared as it is.
func (k *checker) literalStars(at *path, values []string) {
	for i, value := range values {
		rest, found := strings.CutPrefix(value, "*")
		if !found {
			rest = strings.TrimSuffix(value, "*")
		}
		if strings.Contains(rest, "*") && !IsPathTemplate(value) {
			k.warnf(ComparedAsWritten, at.at(i), "%.200q: only one * at the beginning or at the end is a wildcard: another one is compared as it is", value)
		}
	}
}
