package config

import (
	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"
)

// targeting is a policy that may refer to what it applies to.
type targeting interface {
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// onlyRefs is an EnvoyFilter, which has only the newer of the two fields.
type onlyRefs struct{ *networking.EnvoyFilter }

func (onlyRefs) GetTargetRef() *typev1beta1.PolicyTargetReference { return nil }

// hasTargets reports whether a policy applies to what it refers to, and not to the workloads that it selects.
func hasTargets(spec targeting) bool {
	return spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
}

// targets warns of references of a policy to Gateways that do not exist.
func (p *policies) targets(c *Config, spec targeting) {
	root := &path{name: "spec"}
	check := func(at *path, ref *typev1beta1.PolicyTargetReference) {
		key := Key{KubernetesGateway, c.Namespace, ref.GetName()}
		if Kind(ref.GetGroup()+"/"+ref.GetKind()) == KubernetesGateway && p.reader.Get(key) == nil {
			p.warn(UnknownGateway, c, at.field("name"), "there is no %s of the Gateway API", key)
		}
	}
	if one := spec.GetTargetRef(); one != nil {
		check(root.field("targetRef"), one)
	}
	for i, ref := range spec.GetTargetRefs() {
		check(root.field("targetRefs").at(i), ref)
	}
}
