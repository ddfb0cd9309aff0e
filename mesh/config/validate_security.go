package config

import (
	"strings"

	type_beta "istio.io/api/type/v1beta1"
)

// policyTarget checks to which workloads a policy applies: at most one of a selector and references may say that.
func (k *checker) policyTarget(selector *type_beta.WorkloadSelector, one *type_beta.PolicyTargetReference, more []*type_beta.PolicyTargetReference) {
	root := &path{name: "spec"}
	set := 0
	for _, is := range []bool{selector != nil, one != nil, len(more) > 0} {
		if is {
			set++
		}
	}
	if set > 1 {
		k.errorf(root.field("selector"), "only one of selector, targetRef and targetRefs may be set")
	}
	if selector != nil {
		k.selector(root.field("selector"), selector.MatchLabels)
	}
	if one != nil {
		k.targetReference(root.field("targetRef"), one)
	}
	if len(more) > maxTargets {
		k.errorf(root.field("targetRefs"), "must have at most %d elements, and has %d", maxTargets, len(more))
	}
	for i, ref := range more {
		k.targetReference(root.field("targetRefs").at(i), ref)
	}
}

// maxTargets bounds the references of a policy, as Istio does.
const maxTargets = 16

// targetReference checks a reference to what a policy applies to.
func (k *checker) targetReference(at *path, ref *type_beta.PolicyTargetReference) {
	if ref.GetName() == "" {
		k.errorf(at.field("name"), "it is missing")
	}
	if ref.GetNamespace() != "" {
		k.errorf(at.field("namespace"), "must not be set: a policy applies to its own namespace")
	}
	group, kind := ref.GetGroup(), ref.GetKind()
	switch {
	case group == gatewayAPI && kind == "Gateway":
	case group == gatewayAPI && kind == "GatewayClass", group == "" && kind == "Service", group == "networking.istio.io" && kind == "ServiceEntry":
		k.warnf(NoEffect, at.field("kind"), "has no effect: a %s stands for waypoints, which there are not: refer to a Gateway", kind)
	default:
		k.errorf(at.field("kind"), "a policy cannot refer to a %q of the group %q: want Gateway or GatewayClass of gateway.networking.k8s.io, Service, or ServiceEntry of networking.istio.io", kind, group)
	}
}

// claimsAttribute begins the names by which routes and policies mean claims of a token.
const claimsAttribute = "request.auth.claims"

// RoutingClaim returns the path to the claim that a header match of a VirtualService means, such as
// @request.auth.claims[group][id] or @request.auth.claims.group.id; nil if it means none.
func RoutingClaim(header string) []string {
	rest, ok := strings.CutPrefix(header, "@"+claimsAttribute)
	switch {
	case !ok || len(rest) < 2:
		return nil
	case rest[0] == '.':
		return strings.Split(rest[1:], ".")
	}
	return ClaimPath(rest)
}

// ClaimPath returns the path to a claim in the form [group][id]; nil for another form.
func ClaimPath(text string) (path []string) {
	inner, ok := strings.CutPrefix(text, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if !ok || !closed {
		return nil
	}
	for name := range strings.SplitSeq(inner, "][") {
		if name == "" {
			return nil
		}
		path = append(path, name)
	}
	if strings.ContainsAny(strings.Join(path, ""), "[]") {
		return []string{inner} // the name of one claim that has brackets, such as a URL
	}
	return path
}
