package push

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/jwks"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// AuthorizationPolicy is an AuthorizationPolicy document.
type AuthorizationPolicy struct {
	config.Key
	Policy *security.AuthorizationPolicy
	// DryRun says that the policy is evaluated and not enforced.
	DryRun bool
}

// TokenRule is a rule of a RequestAuthentication: which tokens are accepted.
type TokenRule struct {
	*security.JWTRule
	// Keys are the issuer's, as JWKS; "" if they could not be had yet.
	Keys string
	// ByProxy says that proxies get the keys themselves if they are at a service of the mesh.
	ByProxy bool
}

// KeyReader has the keys of issuers.
type KeyReader interface {
	// Keys returns keys as JWKS; "" for those that could not be had yet.
	Keys(from jwks.Source) string
	// Pending reports whether keys were not asked for yet.
	Pending(from []jwks.Source) bool
	// ProxiesFetchKeys reports whether proxies get the keys themselves if they are at a service of the mesh.
	ProxiesFetchKeys() bool
}

// NoKeys is a KeyReader that knows no keys.
type NoKeys struct{}

// Keys returns "".
func (NoKeys) Keys(jwks.Source) string { return "" }

// Pending returns false: nothing is asked for.
func (NoKeys) Pending([]jwks.Source) bool { return false }

// ProxiesFetchKeys returns false.
func (NoKeys) ProxiesFetchKeys() bool { return false }

// KeySourceOf returns where the keys of a rule are; ok is false if the rule has them itself.
func KeySourceOf(rule *security.JWTRule) (from jwks.Source, ok bool) {
	return jwks.Source{Issuer: rule.GetIssuer(), URI: rule.GetJwksUri(), Timeout: rule.GetTimeout().AsDuration()}, rule.GetJwks() == ""
}

// targeted is a document that applies to the workloads of a namespace that a selector selects; those of the root
// namespace apply to all namespaces. If it refers to targets, it applies to the proxies of these Gateways of its
// namespace, and to no others.
type targeted[T any] struct {
	key      config.Key
	selector map[string]string
	targets  targets
	value    T
}

// applies reports whether a document of a namespace applies to a proxy.
func (t *targeted[T]) applies(v *proxy.View, namespace string) bool {
	if !t.targets.any {
		return v.SelectedBy(t.selector)
	}
	return v.Namespace() == namespace && slices.ContainsFunc(t.targets.gateways, func(name string) bool {
		return v.SelectedBy(map[string]string{gatewayNameLabel: name})
	})
}

// targets are the Gateways of the Gateway API to which a policy refers. any says that it refers to something; what is no
// Gateway of its namespace has no proxies.
type targets struct {
	any      bool
	gateways []string
}

func targetsOf(namespace string, one *typev1beta1.PolicyTargetReference, more []*typev1beta1.PolicyTargetReference) targets {
	refs := more
	if len(refs) == 0 && one != nil {
		refs = []*typev1beta1.PolicyTargetReference{one}
	}
	out := targets{any: len(refs) > 0}
	for _, ref := range refs {
		own := ref.GetNamespace() == "" || ref.GetNamespace() == namespace
		if own && config.Kind(ref.GetGroup()+"/"+ref.GetKind()) == config.KubernetesGateway {
			out.gateways = append(out.gateways, ref.GetName())
		}
	}
	return out
}

// policyIndex has documents by namespace, oldest first.
type policyIndex[T any] struct {
	root        string
	byNamespace map[string][]targeted[T]
}

// of returns the documents that apply to a proxy: first those of the root namespace.
func (idx *policyIndex[T]) of(v *proxy.View) (out []T) {
	if idx == nil || len(idx.byNamespace) == 0 {
		return nil
	}
	namespaces := []string{idx.root}
	if own := v.Namespace(); own != idx.root {
		namespaces = append(namespaces, own)
	}
	for _, namespace := range namespaces {
		for _, t := range idx.byNamespace[namespace] {
			if t.applies(v, namespace) {
				out = append(out, t.value)
			}
		}
	}
	return out
}

func indexAuthorization(list []*config.Config, root string) *policyIndex[*AuthorizationPolicy] {
	idx := &policyIndex[*AuthorizationPolicy]{root, make(map[string][]targeted[*AuthorizationPolicy])}
	for _, c := range slices.SortedFunc(slices.Values(list), config.Older) {
		spec, ok := c.Spec.(*security.AuthorizationPolicy)
		if !ok {
			continue
		}
		dry, _ := strconv.ParseBool(c.Annotations[config.DryRun])
		idx.byNamespace[c.Namespace] = append(idx.byNamespace[c.Namespace], targeted[*AuthorizationPolicy]{
			c.Meta.Key, spec.GetSelector().GetMatchLabels(), targetsOf(c.Namespace, spec.GetTargetRef(), spec.GetTargetRefs()), &AuthorizationPolicy{Key: c.Meta.Key, Policy: spec, DryRun: dry},
		})
	}
	return idx
}

// AuthorizationPolicies returns the policies that apply to a proxy: those of the root namespace and of its own, each
// oldest first.
func (s *Snapshot) AuthorizationPolicies(v *proxy.View) []*AuthorizationPolicy {
	return s.authorization.of(v)
}

// indexTokens returns the index of RequestAuthentications that follows before, which may be nil. A document whose keys were
// not asked for yet is not in force: what the index before had of it is.
func indexTokens(list []*config.Config, root string, keys KeyReader, before *policyIndex[[]TokenRule]) *policyIndex[[]TokenRule] {
	idx := &policyIndex[[]TokenRule]{root, make(map[string][]targeted[[]TokenRule])}
	for _, c := range slices.SortedFunc(slices.Values(list), config.Older) {
		spec, ok := c.Spec.(*security.RequestAuthentication)
		if !ok {
			continue
		}
		if before != nil && keys.Pending(slices.Collect(maps.Keys(KeySources([]*config.Config{c})))) {
			former := slices.DeleteFunc(slices.Clone(before.byNamespace[c.Namespace]), func(t targeted[[]TokenRule]) bool { return t.key != c.Meta.Key })
			idx.byNamespace[c.Namespace] = append(idx.byNamespace[c.Namespace], former...)
			continue
		}
		var rules []TokenRule
		for _, rule := range spec.GetJwtRules() {
			r := TokenRule{JWTRule: rule}
			if rule.GetJwks() != "" && jwks.IsUsable([]byte(rule.GetJwks())) {
				r.Keys = rule.GetJwks()
			}
			if from, elsewhere := KeySourceOf(rule); elsewhere {
				r.Keys, r.ByProxy = keys.Keys(from), keys.ProxiesFetchKeys()
			}
			rules = append(rules, r)
		}
		idx.byNamespace[c.Namespace] = append(idx.byNamespace[c.Namespace], targeted[[]TokenRule]{
			c.Meta.Key, spec.GetSelector().GetMatchLabels(), targetsOf(c.Namespace, spec.GetTargetRef(), spec.GetTargetRefs()), rules,
		})
	}
	return idx
}

// TokenRules returns which tokens are accepted in requests to a proxy, in the order of their issuers.
func (s *Snapshot) TokenRules(v *proxy.View) []TokenRule {
	rules := slices.Concat(s.tokens.of(v)...)
	slices.SortStableFunc(rules, func(a, b TokenRule) int { return cmp.Compare(a.GetIssuer(), b.GetIssuer()) })
	return rules
}

// KeySources returns where the keys are that RequestAuthentications do not have themselves, each with the documents
// that need it.
func KeySources(list []*config.Config) map[jwks.Source][]config.Key {
	out := make(map[jwks.Source][]config.Key)
	for _, c := range list {
		spec, _ := c.Spec.(*security.RequestAuthentication)
		for _, rule := range spec.GetJwtRules() {
			from, elsewhere := KeySourceOf(rule)
			if last := len(out[from]) - 1; elsewhere && (last < 0 || out[from][last] != c.Meta.Key) { // of two rules of the document
				out[from] = append(out[from], c.Meta.Key)
			}
		}
	}
	return out
}

// Referred returns the service that a MeshConfig or a URL means by NAMESPACE/HOST or HOST: whichever namespace it is in, and of several
// the first of those that the owner of the host grants: that of Kubernetes, or else the oldest; nil for none.
func (s *Snapshot) Referred(text string) *service.Service {
	namespace, host, both := strings.Cut(text, "/")
	if !both {
		namespace, host = "", text
	}
	for _, svc := range s.services.byHost[service.Hostname(lower(host))] {
		granted := svc.Registry == kubernetes || s.grants(svc.Namespace, "", svc.Hostname)
		if both && svc.Namespace == namespace || !both && granted {
			return svc
		}
	}
	return nil
}

// MeansReferred reports whether the proxies of a scope mean by the host of NAMESPACE/HOST the service of that namespace: a cluster has the
// name of the host alone, so that it may be another's. By HOST each proxy means what it means by it.
func (sc *Scope) MeansReferred(text string) bool {
	namespace, host, both := strings.Cut(text, "/")
	if !both {
		return true
	}
	svc := sc.Service(service.Hostname(lower(host)))
	return svc == nil || svc.Namespace == namespace || svc.Hostname != service.Hostname(lower(host)) // of an alias, its service
}

// samePolicies reports whether two snapshots have the same policies of who may do what.
func (s *Snapshot) samePolicies(before *Snapshot) bool {
	return s.authorization == before.authorization && s.tokens == before.tokens
}

// trustDomainBoundary ends a trust domain in a principal.
const trustDomainBoundary = "/"

// Principals returns the principals that a principal of a policy stands for: one in a trust domain of the mesh, or in
// cluster.local, which is another name for it, in all of the mesh's trust domains.
func (s *Snapshot) Principals(principal string) []string {
	domain, path, ok := strings.Cut(principal, trustDomainBoundary)
	if !ok || strings.Count(path, trustDomainBoundary) != 3 || domain == "*" {
		return []string{principal}
	}
	domains := s.TrustDomains()
	if domain != config.DefaultDomain && !slices.ContainsFunc(domains, func(d string) bool { return matchesWildcard(domain, d) }) {
		return []string{principal}
	}
	out := make(map[string]bool)
	for _, d := range domains {
		if suffix, wild := strings.CutPrefix(domain, "*"); wild && strings.HasSuffix(d, suffix) {
			out[principal] = true
		} else {
			out[d+trustDomainBoundary+path] = true
		}
	}
	return slices.Sorted(maps.Keys(out))
}

// TrustDomains returns the trust domain of the mesh and its aliases.
func (s *Snapshot) TrustDomains() []string {
	return append([]string{s.Mesh.GetTrustDomain()}, s.Mesh.GetTrustDomainAliases()...)
}

// matchesWildcard reports whether a text is one that a pattern stands for, which may begin or end with "*".
func matchesWildcard(pattern, text string) bool {
	switch {
	case pattern == "*":
		return true
	case strings.HasPrefix(pattern, "*"):
		return strings.HasSuffix(text, pattern[1:])
	case strings.HasSuffix(pattern, "*"):
		return strings.HasPrefix(text, pattern[:len(pattern)-1])
	}
	return pattern == text
}
