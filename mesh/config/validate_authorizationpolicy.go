package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"
)

// validateAuthorizationPolicy checks an AuthorizationPolicy.
func validateAuthorizationPolicy(k *checker, spec *security.AuthorizationPolicy) {
	root := &path{name: "spec"}
	k.policyTarget(spec.GetSelector(), spec.GetTargetRef(), spec.GetTargetRefs())
	k.dryRun(spec)
	rules := root.field("rules")
	custom := spec.GetAction() == security.AuthorizationPolicy_CUSTOM
	switch {
	case spec.GetRules() == nil && (custom || spec.GetAction() == security.AuthorizationPolicy_DENY):
		k.errorf(rules, "is missing: without a rule the policy has no effect, and the rule {} takes every request")
	case custom && spec.GetProvider().GetName() == "":
		k.errorf(root.fields("provider.name"), "is missing: the action CUSTOM needs an extension provider of the MeshConfig")
	}
	if spec.GetProvider() != nil && !custom {
		k.errorf(root.field("provider"), "is for the action CUSTOM only")
	}
	for i, rule := range spec.GetRules() {
		k.authorizationRule(rules.at(i), rule, spec.GetAction())
	}
}

// dryRun checks the annotation of a policy that is evaluated and not enforced.
func (k *checker) dryRun(spec *security.AuthorizationPolicy) {
	text, found := k.config.Annotations[DryRun]
	if !found {
		return
	}
	at := (&path{name: "metadata"}).field("annotations").field(DryRun)
	dry, err := strconv.ParseBool(text)
	switch {
	case err != nil:
		k.errorf(at, "must be true or false, and is %.40q", text)
	case dry && spec.GetAction() == security.AuthorizationPolicy_CUSTOM:
		k.warnf(NoEffect, at, "the provider of a policy with the action CUSTOM cannot be tried without effect: the policy is not applied")
	}
}

// authorizationRule checks a rule.
func (k *checker) authorizationRule(at *path, rule *security.Rule, action security.AuthorizationPolicy_Action) {
	custom := action == security.AuthorizationPolicy_CUSTOM
	if rule.GetFrom() != nil && len(rule.GetFrom()) == 0 {
		k.errorf(at.field("from"), "must not be empty")
	}
	for i, from := range rule.GetFrom() {
		if from.GetSource() == nil {
			k.errorf(at.field("from").at(i).field("source"), "it is missing")
			continue
		}
		k.source(at.field("from").at(i).field("source"), from.GetSource(), custom)
	}
	if rule.GetTo() != nil && len(rule.GetTo()) == 0 {
		k.errorf(at.field("to"), "must not be empty")
	}
	for i, to := range rule.GetTo() {
		if to.GetOperation() == nil {
			k.errorf(at.field("to").at(i).field("operation"), "it is missing")
			continue
		}
		k.operation(at.field("to").at(i).field("operation"), to.GetOperation())
	}
	for i, when := range rule.GetWhen() {
		k.condition(at.field("when").at(i), when, custom)
	}
	if action == security.AuthorizationPolicy_DENY {
		k.deniedConnections(at, rule)
	}
}

// valueList is a list of values of a field.
type valueList struct {
	field  string
	values []string
	// identity says that the values are of the peer or of a token, which is not known yet when a provider is asked.
	identity bool
	check    func(*checker, *path, []string)
}

// source checks from whom a request is.
func (k *checker) source(at *path, s *security.Source, custom bool) {
	lists := []valueList{
		{"principals", s.GetPrincipals(), true, nil}, {"notPrincipals", s.GetNotPrincipals(), true, nil},
		{"requestPrincipals", s.GetRequestPrincipals(), true, nil}, {"notRequestPrincipals", s.GetNotRequestPrincipals(), true, nil},
		{"namespaces", s.GetNamespaces(), true, nil}, {"notNamespaces", s.GetNotNamespaces(), true, nil},
		{"serviceAccounts", s.GetServiceAccounts(), true, (*checker).serviceAccounts}, {"notServiceAccounts", s.GetNotServiceAccounts(), true, (*checker).serviceAccounts},
		{"trustDomains", s.GetTrustDomains(), true, (*checker).trustDomains}, {"notTrustDomains", s.GetNotTrustDomains(), true, (*checker).trustDomains},
		{"ipBlocks", s.GetIpBlocks(), false, (*checker).ipBlocks}, {"notIpBlocks", s.GetNotIpBlocks(), false, (*checker).ipBlocks},
		{"remoteIpBlocks", s.GetRemoteIpBlocks(), false, (*checker).ipBlocks}, {"notRemoteIpBlocks", s.GetNotRemoteIpBlocks(), false, (*checker).ipBlocks},
	}
	k.valueLists(at, lists, custom)
	for _, list := range lists {
		if patterns[list.field] {
			k.patternLengths(at.field(list.field), list.values)
		}
	}
	accounts := len(s.GetServiceAccounts()) + len(s.GetNotServiceAccounts())
	if accounts > 0 && len(s.GetPrincipals())+len(s.GetNotPrincipals())+len(s.GetNamespaces())+len(s.GetNotNamespaces()) > 0 {
		k.errorf(at.field("serviceAccounts"), "cannot be beside namespaces or principals, which say the same")
	}
	for _, principal := range slices.Concat(s.GetPrincipals(), s.GetNotPrincipals()) {
		if strings.HasPrefix(principal, "spiffe://") {
			k.warnf(MatchesNothing, at.field("principals"), "%.200q matches nobody: principals are written without spiffe://", principal)
		}
	}
}

// operation checks what is done by a request.
func (k *checker) operation(at *path, o *security.Operation) {
	k.valueLists(at, []valueList{
		{"hosts", o.GetHosts(), false, nil}, {"notHosts", o.GetNotHosts(), false, nil},
		{"ports", o.GetPorts(), false, (*checker).portTexts}, {"notPorts", o.GetNotPorts(), false, (*checker).portTexts},
		{"methods", o.GetMethods(), false, (*checker).methods}, {"notMethods", o.GetNotMethods(), false, (*checker).methods},
		{"paths", o.GetPaths(), false, (*checker).paths}, {"notPaths", o.GetNotPaths(), false, (*checker).paths},
	}, false)
}

// valueLists checks the lists of a source or an operation, of which one at least must have values.
func (k *checker) valueLists(at *path, lists []valueList, custom bool) {
	any := false
	for _, list := range lists {
		any = any || len(list.values) > 0
		at := at.field(list.field)
		if custom && list.identity && len(list.values) > 0 {
			k.errorf(at, "is not supported with the action CUSTOM: who the client is, is not known when the provider is asked")
		}
		k.noneEmpty(at, list.values)
		if wildcardAtAnEnd[list.field] {
			k.literalStars(at, list.values)
		}
		if list.check != nil {
			list.check(k, at, list.values)
		}
	}
	if !any {
		k.errorf(at, "must not be empty: leave it out, or say what it takes")
	}
}

func (k *checker) noneEmpty(at *path, values []string) {
	for i, value := range values {
		if value == "" {
			k.errorf(at.at(i), "must not be empty")
		}
	}
}

// ipBlocks checks addresses and prefixes.
func (k *checker) ipBlocks(at *path, values []string) {
	for i, value := range values {
		if value == "" {
			continue
		}
		_, problem := netip.ParseAddr(value) // which may have a zone
		if _, err := netip.ParsePrefix(value); err != nil && problem != nil {
			k.errorf(at.at(i), "%.100q is no IP address and no prefix, such as 10.0.0.0/8", value)
		} else if _, zone, found := strings.Cut(value, "%"); found {
			k.warnf(ComparedAsWritten, at.at(i), "%.100q: Envoy does not compare zones: the address is taken on every interface, and not only on %.50q", value, zone)
		}
	}
}

// portTexts checks ports, which policies have as texts.
func (k *checker) portTexts(at *path, values []string) {
	for i, value := range values {
		if n, err := strconv.ParseUint(value, 10, 16); value != "" && (err != nil || n > 65535) {
			k.errorf(at.at(i), "%.100q is no port from 0 to 65535", value)
		}
	}
}

// methods warns of methods that no client sends.
func (k *checker) methods(at *path, values []string) {
	for i, value := range values {
		if slices.Contains([]string{"get", "head", "post", "put", "patch", "delete", "options"}, strings.ToLower(value)) && value != strings.ToUpper(value) {
			k.warnf(MatchesNothing, at.at(i), "methods are compared with their case: write %s", strings.ToUpper(value))
		}
	}
}

// Istio's limits of service accounts in a policy.
const (
	maxAccounts      = 16
	maxAccountLength = 320
)

// serviceAccounts checks service accounts: ACCOUNT of the policy's namespace, or NAMESPACE/ACCOUNT.
func (k *checker) serviceAccounts(at *path, values []string) {
	if len(values) > maxAccounts {
		k.errorf(at, "must have at most %d elements, and has %d", maxAccounts, len(values))
	}
	for i, value := range values {
		namespace, account, both := strings.Cut(value, "/")
		switch {
		case value == "":
		case strings.Contains(value, "*"):
			k.errorf(at.at(i), "%.100q: there are no wildcards of service accounts", value)
		case len(value) > maxAccountLength:
			k.errorf(at.at(i), "must be at most %d bytes long", maxAccountLength)
		case both && (namespace == "" || account == "" || strings.Contains(account, "/")):
			k.errorf(at.at(i), "%.100q: want ACCOUNT or NAMESPACE/ACCOUNT", value)
		}
	}
}

// trustDomains checks trust domains, which may begin or end with a wildcard.
func (k *checker) trustDomains(at *path, values []string) {
	k.patternLengths(at, values)
	for i, value := range values {
		if strings.Contains(value, "/") {
			k.errorf(at.at(i), "%.100q is no trust domain: it has a slash", value)
		}
	}
	k.wildcards(at, values)
}

// wildcards checks values that may have one wildcard, at the beginning or at the end.
func (k *checker) wildcards(at *path, values []string) {
	for i, value := range values {
		if n := strings.Count(value, "*"); n > 1 || n == 1 && value[0] != '*' && value[len(value)-1] != '*' {
			k.errorf(at.at(i), "%.100q: one wildcard is allowed, at the beginning or at the end", value)
		}
	}
}
