package config

import (
	"maps"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// policies are the policies of a mesh about who may do what.
type policies struct {
	*references
	root string // the root namespace
	// workloads are the labels of the workloads that documents describe, by namespace.
	workloads map[string][]map[string]string
	// authorization, tokens and peers are the AuthorizationPolicies, RequestAuthentications and PeerAuthentications, oldest first.
	authorization, tokens, peers []*Config
}

// scope is which workloads a policy is for: those of a namespace that have labels, or of all namespaces.
type scope struct {
	namespace string // "" for all
	labels    map[string]string
}

// covers reports whether a scope has every workload of another one.
func (s scope) covers(o scope) bool {
	if s.namespace != "" && s.namespace != o.namespace {
		return false
	}
	return hasLabels(o.labels, s.labels)
}

// hasLabels reports whether labels have all of a selector.
func hasLabels(labels, selector map[string]string) bool {
	for key, value := range selector {
		if has, ok := labels[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// overlaps reports whether two scopes may have a workload in common.
func (s scope) overlaps(o scope) bool {
	if s.namespace != "" && o.namespace != "" && s.namespace != o.namespace {
		return false
	}
	for key, value := range s.labels {
		if has, ok := o.labels[key]; ok && has != value {
			return false
		}
	}
	return true
}

// policies warns of policies that select nothing, that have no effect because of others, and that open what others close.
func (x *references) policies() {
	p := &policies{references: x, root: RootNamespace, workloads: x.workloads()}
	for _, c := range x.reader.List(MeshConfig, "") {
		if root := c.Spec.(*meshv1alpha1.MeshConfig).GetRootNamespace(); root != "" {
			p.root = root
		}
	}
	list := func(kind Kind) []*Config { return slices.SortedFunc(slices.Values(x.reader.List(kind, "")), Older) }
	p.authorization, p.tokens, p.peers = list(AuthorizationPolicy), list(RequestAuthentication), list(PeerAuthentication)
	p.compare(maxComparisons)
	for _, c := range p.authorization {
		p.selects(c, c.Spec.(*security.AuthorizationPolicy).GetSelector().GetMatchLabels())
		p.targets(c, c.Spec.(*security.AuthorizationPolicy))
		p.provider(c)
	}
	for _, c := range p.tokens {
		p.targets(c, c.Spec.(*security.RequestAuthentication))
		p.selects(c, c.Spec.(*security.RequestAuthentication).GetSelector().GetMatchLabels())
		p.asksForTokens(c)
	}
	if len(p.tokens) == 0 {
		p.claimsWithoutTokens()
	}
	for _, c := range list(EnvoyFilter) {
		spec := c.Spec.(*networking.EnvoyFilter)
		p.selects(c, spec.GetWorkloadSelector().GetLabels())
		p.targets(c, onlyRefs{spec})
	}
	telemetries := list(Telemetry)
	for i, c := range telemetries {
		p.selects(c, c.Spec.(*telemetry.Telemetry).GetSelector().GetMatchLabels())
		p.telemetry(c, telemetries[:i])
	}
	sidecars := list(Sidecar)
	for i, c := range sidecars {
		p.selects(c, c.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels())
		p.sidecar(c, sidecars[:i])
	}
	for i, c := range p.peers {
		p.selects(c, c.Spec.(*security.PeerAuthentication).GetSelector().GetMatchLabels())
		p.peer(c, p.peers[:i])
	}
}

// scopeOf returns which workloads a document is for.
func (p *policies) scopeOf(c *Config, labels map[string]string) scope {
	s := scope{c.Namespace, labels}
	if c.Namespace == p.root {
		s.namespace = ""
	}
	return s
}

// selects warns of a selector that selects no workload. It says nothing if no document describes a workload of the
// namespace: proxies that connect may be others.
func (p *policies) selects(c *Config, labels map[string]string) {
	if len(labels) == 0 {
		return
	}
	in, known := p.scopeOf(c, labels), 0
	for namespace, workloads := range p.workloads {
		if in.namespace != "" && in.namespace != namespace {
			continue
		}
		known += len(workloads)
		for _, workload := range workloads {
			if in.covers(scope{namespace, workload}) {
				return
			}
		}
	}
	if known > 0 {
		field := "selector.matchLabels"
		if c.Kind == EnvoyFilter || c.Kind == Sidecar {
			field = "workloadSelector.labels"
		}
		p.warn(SelectsNothing, c, (&path{name: "spec"}).fields(field), "selects none of the workloads that documents describe: it has no effect")
	}
}

// sidecar warns of a Sidecar that an older one of the same workloads replaces.
func (p *policies) sidecar(c *Config, older []*Config) {
	labels := c.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels()
	for _, other := range older {
		if other.Namespace == c.Namespace && maps.Equal(labels, other.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels()) {
			p.warn(SameWorkloads, c, &path{name: "spec"}, "has no effect: %s is for the same workloads, and older", other.Meta.Key)
			return
		}
	}
}

// provider warns of a provider that the mesh configuration does not have.
func (p *policies) provider(c *Config) {
	name := c.Spec.(*security.AuthorizationPolicy).GetProvider().GetName()
	if name == "" {
		return
	}
	for _, m := range p.reader.List(MeshConfig, "") {
		for _, provider := range m.Spec.(*meshv1alpha1.MeshConfig).GetExtensionProviders() {
			if provider.GetName() == name && (provider.GetEnvoyExtAuthzHttp() != nil || provider.GetEnvoyExtAuthzGrpc() != nil) {
				return
			}
		}
	}
	p.warn(UnknownProvider, c, (&path{name: "spec"}).fields("provider.name"), "the MeshConfig has no provider %q that decides about requests: all that the rules take is denied", name)
}

// asksForTokens warns of a RequestAuthentication without a policy that asks for a token: requests without one pass.
func (p *policies) asksForTokens(c *Config) {
	in := p.scopeOf(c, c.Spec.(*security.RequestAuthentication).GetSelector().GetMatchLabels())
	for _, other := range p.authorization {
		spec := other.Spec.(*security.AuthorizationPolicy)
		if p.scopeOf(other, spec.GetSelector().GetMatchLabels()).overlaps(in) && slices.ContainsFunc(spec.GetRules(), readsTokens) {
			return
		}
	}
	if !p.routesByClaims() {
		p.warn(NoTokenRequired, c, (&path{name: "spec"}).field("jwtRules"), "requests without a token pass: no AuthorizationPolicy of these workloads asks for one (requestPrincipals, or request.auth in a condition)")
	}
}

func readsTokens(rule *security.Rule) bool {
	for _, from := range rule.GetFrom() {
		if len(from.GetSource().GetRequestPrincipals())+len(from.GetSource().GetNotRequestPrincipals()) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(rule.GetWhen(), func(c *security.Condition) bool {
		return len(c.GetKey()) > len("request.auth.") && c.GetKey()[:len("request.auth.")] == "request.auth."
	})
}

// claimsWithoutTokens warns of routes by claims in a mesh in which nobody verifies tokens.
func (p *policies) claimsWithoutTokens() {
	for _, c := range p.reader.List(VirtualService, "") {
		for i, route := range c.Spec.(*networking.VirtualService).GetHttp() {
			for j, match := range route.GetMatch() {
				for _, name := range sortedKeys(match.GetHeaders()) {
					if RoutingClaim(name) != nil {
						at := (&path{name: "spec"}).field("http").at(i).field("match").at(j).field("headers").field(name)
						p.warn(ClaimWithoutTokens, c, at, "no request matches: there is no RequestAuthentication that verifies tokens")
					}
				}
			}
		}
	}
}

// routesByClaims reports whether a VirtualService routes by what tokens say.
func (p *policies) routesByClaims() bool {
	for _, c := range p.reader.List(VirtualService, "") {
		for _, route := range c.Spec.(*networking.VirtualService).GetHttp() {
			for _, match := range route.GetMatch() {
				for name := range match.GetHeaders() {
					if RoutingClaim(name) != nil {
						return true
					}
				}
			}
		}
	}
	return false
}

// peer warns of a PeerAuthentication that an older one of the same workloads replaces, and of one that opens what a wider
// one closes.
func (p *policies) peer(c *Config, older []*Config) {
	spec := c.Spec.(*security.PeerAuthentication)
	labels, mode := spec.GetSelector().GetMatchLabels(), (&path{name: "spec"}).fields("mtls.mode")
	for _, other := range older {
		has := other.Spec.(*security.PeerAuthentication).GetSelector().GetMatchLabels()
		if other.Namespace == c.Namespace && maps.Equal(labels, has) {
			p.warn(SameWorkloads, c, &path{name: "spec"}, "has no effect: %s is for the same workloads, and older", other.Meta.Key)
			return
		}
	}
	if m := spec.GetMtls().GetMode(); m != security.PeerAuthentication_MutualTLS_PERMISSIVE && m != security.PeerAuthentication_MutualTLS_DISABLE {
		return
	}
	in := p.scopeOf(c, labels)
	for _, other := range p.peers {
		wide := other.Spec.(*security.PeerAuthentication)
		if other != c && wide.GetMtls().GetMode() == security.PeerAuthentication_MutualTLS_STRICT && len(wide.GetSelector().GetMatchLabels()) == 0 &&
			p.scopeOf(other, nil).covers(in) {
			p.warn(OpensWhatIsClosed, c, mode, "%s opens what %s closes: it accepts plaintext", spec.GetMtls().GetMode(), other.Meta.Key)
			return
		}
	}
}
