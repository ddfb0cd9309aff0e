package gatewayapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// ignorePolicy is Istio's annotation of a policy that is for another controller.
const ignorePolicy = "istio.io/ignore-policy-attachment"

// target is what a BackendTLSPolicy is about: a service of the namespace, and one of its ports or "" for all.
type target struct{ kind, namespace, name, section string }

// key returns the key of the document of the target.
func (t target) key() config.Key {
	if t.kind == "/Service" {
		return config.Key{Kind: config.Service, Namespace: t.namespace, Name: t.name}
	}
	return config.Key{Kind: config.Kind(t.kind), Namespace: t.namespace, Name: t.name}
}

// backendPolicies converts BackendTLSPolicies. Of several for one target the oldest counts.
func (c *converter) backendPolicies() {
	taken := make(map[target]string)
	byHost := make(map[string]*Policy)
	for _, d := range c.list(config.BackendTLSPolicy) {
		if strings.EqualFold(d.Annotations[ignorePolicy], "true") {
			continue
		}
		policy := d.Spec.(*gatewayv1.BackendTLSPolicy)
		tls, unresolved := c.clientTLS(d, policy)
		var targets []policyTarget
		for i := range policy.Spec.TargetRefs {
			ref := &policy.Spec.TargetRefs[i]
			t := target{string(ref.Group) + "/" + string(ref.Kind), d.Namespace, string(ref.Name), string(or(ref.SectionName, ""))}
			hosts, port, wrong := c.targetOf(t)
			if by := taken[t]; wrong == nil && by != "" {
				wrong = &problem{string(gatewayv1.PolicyReasonConflicted), fmt.Sprintf("Conflicts with BackendTLSPolicy %q targeting the same backend", by)}
			}
			if wrong == nil {
				taken[t] = d.Name
				for _, host := range hosts {
					c.addPolicy(byHost, d, host, port, tls)
				}
			}
			c.warnOf(d.Meta.Key, fmt.Sprintf("spec.targetRefs[%d]", i), wrong)
			targets = append(targets, policyTarget{ref, wrong, c.ancestors[t.key()]})
		}
		c.warnOf(d.Meta.Key, "spec.validation.caCertificateRefs[0]", unresolved)
		c.out.Status[d.Meta.Key] = c.policyStatus(d, targets, unresolved)
	}
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		c.out.Policies = append(c.out.Policies, byHost[host])
	}
}

// policyTarget is a target of a policy, what is wrong with it, and the Gateways through which requests reach it.
type policyTarget struct {
	ref      *gatewayv1.LocalPolicyTargetReferenceWithSectionName
	wrong    *problem
	gateways []config.Key
}

// meshController is Istio's name of the controller of services, for which a policy counts in the whole mesh.
const meshController = "istio.io/mesh-controller"

// maxAncestors is how many ancestors the schema allows.
const maxAncestors = 16

// policyStatus returns the status of a policy: at each of its targets, and at each Gateway through which requests reach one of them.
func (c *converter) policyStatus(d *config.Config, targets []policyTarget, unresolved *problem) *gatewayv1.PolicyStatus {
	status := &gatewayv1.PolicyStatus{}
	add := func(ref gatewayv1.ParentReference, controller gatewayv1.GatewayController, wrong *problem) {
		if wrong == nil && unresolved != nil {
			wrong = &problem{string(gatewayv1.BackendTLSPolicyReasonNoValidCACertificate), "Certificate reference invalid: " + unresolved.message}
		}
		status.Ancestors = append(status.Ancestors, gatewayv1.PolicyAncestorStatus{AncestorRef: ref, ControllerName: controller, Conditions: conditions(d.Generation,
			condition{kind: string(gatewayv1.PolicyConditionAccepted), reason: string(gatewayv1.PolicyReasonAccepted), message: "Configuration is valid", problem: wrong},
			condition{
				kind: string(gatewayv1.BackendTLSPolicyConditionResolvedRefs), reason: string(gatewayv1.BackendTLSPolicyReasonResolvedRefs),
				message: "Configuration is valid", problem: unresolved,
			})})
	}
	var gateways []config.Key
	wrong := make(map[config.Key]*problem)
	for _, t := range targets {
		add(gatewayv1.ParentReference{Group: &t.ref.Group, Kind: &t.ref.Kind, Name: t.ref.Name, SectionName: t.ref.SectionName}, meshController, t.wrong)
		for _, gw := range t.gateways {
			if !slices.Contains(gateways, gw) {
				gateways = append(gateways, gw)
			}
			wrong[gw] = firstProblem(wrong[gw], t.wrong)
		}
	}
	slices.SortFunc(gateways, func(a, b config.Key) int { return strings.Compare(a.String(), b.String()) })
	group, kind := gatewayv1.Group(gatewayv1.GroupName), gatewayv1.Kind("Gateway")
	for _, gw := range gateways {
		namespace := gatewayv1.Namespace(gw.Namespace)
		add(gatewayv1.ParentReference{Group: &group, Kind: &kind, Namespace: &namespace, Name: gatewayv1.ObjectName(gw.Name)}, c.listeners[gw][0].controller, wrong[gw])
	}
	status.Ancestors = status.Ancestors[:min(len(status.Ancestors), maxAncestors)]
	return status
}

// clientTLS returns the TLS of connections to the targets of a policy. Without certificates to verify the server with, it
// verifies nothing that could be there.
func (c *converter) clientTLS(d *config.Config, policy *gatewayv1.BackendTLSPolicy) (*networking.ClientTLSSettings, *problem) {
	v := &policy.Spec.Validation
	out := &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, Sni: string(v.Hostname)}
	for _, san := range v.SubjectAltNames {
		if san.Type == gatewayv1.URISubjectAltNameType {
			out.SubjectAltNames = append(out.SubjectAltNames, string(san.URI))
		} else {
			out.SubjectAltNames = append(out.SubjectAltNames, string(san.Hostname))
		}
	}
	if len(out.SubjectAltNames) == 0 {
		out.SubjectAltNames = []string{string(v.Hostname)} // which istiod does not verify
	}
	if len(v.CACertificateRefs) == 0 {
		return out, nil // those of the system
	}
	ref := v.CACertificateRefs[0]
	name, wrong := c.roots(string(ref.Group), string(ref.Kind), d.Namespace, string(ref.Name), false)
	out.CredentialName = name
	if wrong == nil {
		return out, nil
	}
	out.CredentialName = NoRoots
	if wrong.reason == string(gatewayv1.ListenerReasonInvalidCACertificateKind) {
		wrong.reason = string(gatewayv1.BackendTLSPolicyReasonInvalidKind)
	} else {
		wrong.reason = string(gatewayv1.BackendTLSPolicyReasonInvalidCACertificateRef)
	}
	return out, wrong
}

// targetOf returns the hosts of a target, and its port or 0.
func (c *converter) targetOf(t target) (hosts []string, port uint32, wrong *problem) {
	ports := make(map[string]uint32)
	switch t.kind {
	case "/Service":
		if svc := c.service(t.name, t.namespace); svc != nil {
			hosts = []string{c.hostOf(t.name, t.namespace)}
			for _, p := range svc.Spec.Ports {
				ports[p.Name] = uint32(p.Port) //nolint:gosec // ports are validated
			}
		}
	case string(config.ServiceEntry):
		if entry := c.serviceEntry(t.name, t.namespace); entry != nil {
			hosts = entry.GetHosts()
			for _, p := range entry.GetPorts() {
				ports[p.GetName()] = p.GetNumber()
			}
		}
	}
	if len(hosts) == 0 {
		return nil, 0, &problem{string(gatewayv1.PolicyReasonTargetNotFound), fmt.Sprintf("targetRefs invalid: reference %s/%s (of kind %s) not found", t.namespace, t.name, t.kind)}
	}
	if t.section != "" && ports[t.section] == 0 {
		return nil, 0, &problem{string(gatewayv1.PolicyReasonTargetNotFound), fmt.Sprintf("targetRefs invalid: sectionName %q does not exist in %s/%s", t.section, t.namespace, t.name)}
	}
	return hosts, ports[t.section], nil
}

// addPolicy adds TLS to the DestinationRule of a host: for one port, or for all.
func (c *converter) addPolicy(byHost map[string]*Policy, d *config.Config, host string, port uint32, tls *networking.ClientTLSSettings) {
	key := d.Namespace + "/" + host
	p := byHost[key]
	if p == nil {
		p = &Policy{Of: d.Meta.Key, Rule: &networking.DestinationRule{Host: host, TrafficPolicy: &networking.TrafficPolicy{}}}
		byHost[key] = p
	}
	if port == 0 {
		p.Rule.TrafficPolicy.Tls = tls
		return
	}
	p.Rule.TrafficPolicy.PortLevelSettings = append(p.Rule.TrafficPolicy.PortLevelSettings, &networking.TrafficPolicy_PortTrafficPolicy{
		Port: &networking.PortSelector{Number: port}, Tls: tls,
	})
}
