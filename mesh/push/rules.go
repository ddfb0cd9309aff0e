package push

import (
	"slices"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// DestinationRule is what the DestinationRules of one host in one namespace say together: the
// traffic policy of the oldest that has one, and the subsets of all.
type DestinationRule struct {
	Rule     *networking.DestinationRule
	Host     service.Hostname
	ExportTo map[string]bool
	// From are the documents, oldest first.
	From []config.Key
}

// ruleIndex has the rules by namespace: those of exact hosts by host, those of wildcards with the
// most specific first, and those for selected workloads.
type ruleIndex struct {
	exact     map[string]map[service.Hostname]*DestinationRule
	wildcards map[string][]*DestinationRule
	selected  map[string][]*DestinationRule
	// credentials are the rules by the names of the credentials in them, each of one document.
	credentials map[string][]*DestinationRule
}

func (s *Snapshot) indexRules(list []*config.Config) *ruleIndex {
	idx := &ruleIndex{
		exact:     make(map[string]map[service.Hostname]*DestinationRule),
		wildcards: make(map[string][]*DestinationRule),
		selected:  make(map[string][]*DestinationRule),

		credentials: make(map[string][]*DestinationRule),
	}
	for _, c := range slices.SortedFunc(slices.Values(list), config.Older) {
		rule, ok := c.Spec.(*networking.DestinationRule)
		if !ok {
			continue
		}
		host := s.fqdn(rule.Host, c.Namespace)
		one := &DestinationRule{
			Rule: rule, Host: host, From: []config.Key{c.Meta.Key},
			ExportTo: visible(rule.ExportTo, s.Mesh.GetDefaultDestinationRuleExportTo(), c.Namespace),
		}
		for _, name := range credentialsOf(rule) {
			idx.credentials[name] = append(idx.credentials[name], one)
		}
		if len(rule.GetWorkloadSelector().GetMatchLabels()) > 0 {
			// It holds for proxies of its own namespace only.
			idx.selected[c.Namespace] = append(idx.selected[c.Namespace], one)
			continue
		}
		idx.add(c.Namespace, one)
	}
	for _, rules := range idx.wildcards {
		slices.SortStableFunc(rules, func(a, b *DestinationRule) int { return service.MoreSpecific(a.Host, b.Host) })
	}
	return idx
}

// add adds the rule of one document, and merges it with an older one of the same host.
func (idx *ruleIndex) add(namespace string, one *DestinationRule) {
	if one.Host.IsWildcard() {
		i := slices.IndexFunc(idx.wildcards[namespace], func(r *DestinationRule) bool { return r.Host == one.Host })
		if i < 0 {
			idx.wildcards[namespace] = append(idx.wildcards[namespace], one)
		} else {
			idx.wildcards[namespace][i] = merged(idx.wildcards[namespace][i], one)
		}
		return
	}
	if idx.exact[namespace] == nil {
		idx.exact[namespace] = make(map[service.Hostname]*DestinationRule)
	}
	if older := idx.exact[namespace][one.Host]; older != nil {
		one = merged(older, one)
	}
	idx.exact[namespace][one.Host] = one
}

// merged returns an older rule with what a younger one of the same host adds.
func merged(older, younger *DestinationRule) *DestinationRule {
	out := &DestinationRule{
		Rule: proto.CloneOf(older.Rule), Host: older.Host, ExportTo: older.ExportTo,
		From: append(slices.Clone(older.From), younger.From...),
	}
	if out.Rule.TrafficPolicy == nil {
		out.Rule.TrafficPolicy = younger.Rule.TrafficPolicy
	}
	for _, subset := range younger.Rule.Subsets {
		if !slices.ContainsFunc(out.Rule.Subsets, func(has *networking.Subset) bool { return has.Name == subset.Name }) {
			out.Rule.Subsets = append(out.Rule.Subsets, subset)
		}
	}
	return out
}

// find returns the rule of a namespace for a host, as proxies of another namespace see it: that of
// the exact host, or else that of the most specific wildcard; nil for none.
func (idx *ruleIndex) find(namespace string, host service.Hostname, from string) *DestinationRule {
	sees := func(r *DestinationRule) bool { return namespace == from || exportedTo(r.ExportTo, from) }
	if r := idx.exact[namespace][host]; r != nil && sees(r) {
		return r
	}
	for _, r := range idx.wildcards[namespace] {
		if host.SubsetOf(r.Host) && sees(r) {
			return r
		}
	}
	return nil
}

// DestinationRule returns the rule that a proxy applies to a service; nil for none. It is, in this
// order, one of the proxy's namespace that selects its labels; one of its namespace; one of the
// service's namespace; one of the root namespace.
func (s *Snapshot) DestinationRule(v *proxy.View, svc *service.Service) *DestinationRule {
	namespace := v.Namespace()
	for _, r := range s.rules.selected[namespace] {
		if svc.Hostname.SubsetOf(r.Host) && v.SelectedBy(r.Rule.WorkloadSelector.MatchLabels) {
			return r
		}
	}
	root := s.Mesh.GetRootNamespace()
	if namespace != root {
		if r := s.rules.find(namespace, svc.Hostname, namespace); r != nil {
			return r
		}
	}
	if svc.Namespace != namespace && svc.Namespace != "" {
		if r := s.rules.find(svc.Namespace, svc.Hostname, namespace); r != nil {
			return r
		}
	}
	return s.rules.find(root, svc.Hostname, namespace)
}

// Subsets returns the subsets of the rule; r may be nil.
func (r *DestinationRule) Subsets() []*networking.Subset {
	if r == nil {
		return nil
	}
	return r.Rule.GetSubsets()
}

// Policy returns the traffic policy of the rule; r may be nil.
func (r *DestinationRule) Policy() *networking.TrafficPolicy {
	if r == nil {
		return nil
	}
	return r.Rule.GetTrafficPolicy()
}

// Origin returns the oldest document of the rule; the zero Key if r is nil.
func (r *DestinationRule) Origin() config.Key {
	if r == nil {
		return config.Key{}
	}
	return r.From[0]
}

// SelectsWorkloads reports whether the rule is for selected workloads; r may be nil.
func (r *DestinationRule) SelectsWorkloads() bool {
	return r != nil && len(r.Rule.GetWorkloadSelector().GetMatchLabels()) > 0
}
