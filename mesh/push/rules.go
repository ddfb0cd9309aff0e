package push

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// DestinationRule is what the DestinationRules of one host in one namespace say together to those who see them: the
// traffic policy of the oldest that has one, and the subsets of all.
type DestinationRule struct {
	Rule     *networking.DestinationRule
	Host     service.Hostname
	ExportTo map[string]bool // of one document
	// From are the documents, oldest first.
	From []config.Key
}

// ruleIndex has the rules by namespace: those of exact hosts by host, those of wildcards with the
// most specific first, and those for selected workloads.
type ruleIndex struct {
	exact     map[string]map[service.Hostname]*hostRules
	wildcards map[string][]*hostRules
	selected  map[string][]*DestinationRule
	// credentials are the rules by the names of the credentials in them, each of one document.
	credentials map[string][]*DestinationRule
}

// hostRules are the rules of a host in a namespace, each of one document, oldest first.
type hostRules struct {
	host  service.Hostname
	rules []*DestinationRule

	mu sync.Mutex
	// seen are the rules that were merged, by which of them.
	seen map[string]*DestinationRule
}

func (s *Snapshot) indexRules(list []*config.Config) *ruleIndex {
	idx := &ruleIndex{
		exact:     make(map[string]map[service.Hostname]*hostRules),
		wildcards: make(map[string][]*hostRules),
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
			ExportTo: config.ExportedTo(rule.ExportTo, s.Mesh.GetDefaultDestinationRuleExportTo(), c.Namespace),
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
		slices.SortStableFunc(rules, func(a, b *hostRules) int { return service.MoreSpecific(a.host, b.host) })
	}
	return idx
}

// add adds the rule of one document, which is younger than those that were added before.
func (idx *ruleIndex) add(namespace string, one *DestinationRule) {
	var of *hostRules
	if one.Host.IsWildcard() {
		if i := slices.IndexFunc(idx.wildcards[namespace], func(r *hostRules) bool { return r.host == one.Host }); i >= 0 {
			of = idx.wildcards[namespace][i]
		} else {
			of = &hostRules{host: one.Host}
			idx.wildcards[namespace] = append(idx.wildcards[namespace], of)
		}
	} else if of = idx.exact[namespace][one.Host]; of == nil {
		if idx.exact[namespace] == nil {
			idx.exact[namespace] = make(map[service.Hostname]*hostRules)
		}
		of = &hostRules{host: one.Host}
		idx.exact[namespace][one.Host] = of
	}
	of.rules = append(of.rules, one)
}

// from returns what the rules that proxies of a namespace see say together; nil if they see none. Whoever sees the same gets the same
// pointer.
func (h *hostRules) from(namespace string) *DestinationRule {
	var sees []*DestinationRule
	which := make([]byte, len(h.rules))
	for i, r := range h.rules {
		if exportedTo(r.ExportTo, namespace) {
			sees, which[i] = append(sees, r), 1
		}
	}
	if len(sees) < 2 {
		return append(sees, nil)[0]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.seen[string(which)]
	if out == nil {
		for out = sees[0]; len(sees) > 1; sees = sees[1:] {
			out = merged(out, sees[1])
		}
		if h.seen == nil {
			h.seen = make(map[string]*DestinationRule)
		}
		h.seen[string(which)] = out
	}
	return out
}

// merged returns an older rule with what a younger one of the same host adds.
func merged(older, younger *DestinationRule) *DestinationRule {
	out := &DestinationRule{
		Rule: proto.CloneOf(older.Rule), Host: older.Host,
		From: append(slices.Clone(older.From), younger.From...),
	}
	if out.Rule.TrafficPolicy == nil {
		out.Rule.TrafficPolicy = younger.Rule.TrafficPolicy
	}
	has := make(map[string]bool, len(out.Rule.Subsets))
	for _, subset := range out.Rule.Subsets {
		has[subset.Name] = true
	}
	for _, subset := range younger.Rule.Subsets {
		if !has[subset.Name] {
			has[subset.Name] = true
			out.Rule.Subsets = append(out.Rule.Subsets, subset)
		}
	}
	return out
}

// find returns the rule of a namespace for a host, as proxies of another namespace see it: that of
// the exact host, or else that of the most specific wildcard; nil for none. It is asked who sees a document before it is merged with
// others: what is meant for one namespace is nobody else's.
func (idx *ruleIndex) find(namespace string, host service.Hostname, from string) *DestinationRule {
	if h := idx.exact[namespace][host]; h != nil {
		if r := h.from(from); r != nil {
			return r
		}
	}
	for _, h := range idx.wildcards[namespace] {
		if host.SubsetOf(h.host) {
			if r := h.from(from); r != nil {
				return r
			}
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
