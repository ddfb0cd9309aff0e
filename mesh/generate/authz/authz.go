// Package authz translates AuthorizationPolicies into Envoy's filters: RBAC for what policies decide themselves, and
// external authorization for the action CUSTOM.
//
// It promises that what cannot be translated is denied rather than allowed: a policy that allows loses a rule, one that
// denies denies more, and a provider that does not exist denies what it would have decided about. Which policies apply is
// the caller's to say. All functions are pure, and may be called by several goroutines at once.
package authz

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// The names of the filters.
const (
	HTTPFilter     = "envoy.filters.http.rbac"
	TCPFilter      = "envoy.filters.network.rbac"
	httpAuthorizer = "envoy.filters.http.ext_authz"
	tcpAuthorizer  = "envoy.filters.network.ext_authz"
)

// The prefixes of statistics and of dynamic metadata of what is evaluated and not enforced, as in Istio.
const (
	DryAllow  = "istio_dry_run_allow_"
	DryDeny   = "istio_dry_run_deny_"
	AskPrefix = "istio_ext_authz_" // of the rules that say when a provider is asked
	tcpStats  = "tcp."
)

// Builder makes the filters of a workload.
type Builder struct {
	// Policies are those that apply to it.
	Policies []*push.AuthorizationPolicy
	// Principals returns what a principal of a policy stands for, and TrustDomains has those of the mesh.
	Principals   func(principal string) []string
	TrustDomains []string
	// Provider returns the provider of a name; nil if there is none that decides about requests, or none that can be
	// reached.
	Provider func(name string) *Provider
	// Pack encodes a message with stable bytes.
	Pack func(proto.Message) *anypb.Any
}

// PolicyName returns the name by which a rule of a policy is known to Envoy, and to the tools of Istio.
func PolicyName(policy config.Key, rule int) string {
	return fmt.Sprintf("ns[%s]-policy[%s]-rule[%d]", policy.Namespace, policy.Name, rule)
}

var policyName = regexp.MustCompile(`^ns\[(.*)\]-policy\[(.*)\]-rule\[(\d+)\]$`)

// ParsePolicyName returns the policy and the rule of a PolicyName; ok is false if it is none.
func ParsePolicyName(name string) (policy config.Key, rule int, ok bool) {
	m := policyName.FindStringSubmatch(name)
	if m == nil {
		return policy, 0, false
	}
	rule, err := strconv.Atoi(m[3])
	return config.Key{Kind: config.AuthorizationPolicy, Namespace: m[1], Name: m[2]}, rule, err == nil
}

// HTTP returns the filters of HTTP connections: those that ask providers, which come before tokens are checked, and
// those that come after.
func (b *Builder) HTTP() (before, after []*managerv3.HttpFilter) {
	for _, s := range b.custom(everything) {
		switch p := b.Provider(s.provider); {
		case p == nil:
			before = append(before, b.http(HTTPFilter, &httprbacv3.RBAC{Rules: s.shadow}))
		default:
			before = append(before,
				b.http(HTTPFilter, &httprbacv3.RBAC{ShadowRules: s.shadow, ShadowRulesStatPrefix: s.prefix()}),
				b.http(httpAuthorizer, p.http(HTTPFilter, s.prefix())))
		}
	}
	for _, s := range b.local(everything) {
		after = append(after, b.http(HTTPFilter, &httprbacv3.RBAC{Rules: s.enforced, ShadowRules: s.shadow, ShadowRulesStatPrefix: s.prefix()}))
	}
	return before, after
}

// TCP returns the filters of connections that are not HTTP. Providers that speak HTTP decide about none of them, as in
// Istio.
func (b *Builder) TCP() (out []*listenerv3.Filter) {
	for _, s := range b.custom(connections) {
		switch p := b.Provider(s.provider); {
		case p == nil:
			out = append(out, b.tcp(TCPFilter, &tcprbacv3.RBAC{Rules: s.shadow, StatPrefix: tcpStats}))
		case p.GRPC != nil:
			out = append(out,
				b.tcp(TCPFilter, &tcprbacv3.RBAC{ShadowRules: s.shadow, ShadowRulesStatPrefix: s.prefix(), StatPrefix: tcpStats}),
				b.tcp(tcpAuthorizer, p.tcp(TCPFilter, s.prefix())))
		}
	}
	for _, s := range b.local(connections) {
		out = append(out, b.tcp(TCPFilter, &tcprbacv3.RBAC{Rules: s.enforced, ShadowRules: s.shadow, ShadowRulesStatPrefix: s.prefix(), StatPrefix: tcpStats}))
	}
	return out
}

// GRPC returns the filters of a proxyless gRPC server. It knows nothing of tokens, templates of paths and dry runs, and asks
// no providers: what one would be asked about is denied.
func (b *Builder) GRPC() (out []*managerv3.HttpFilter) {
	for _, s := range b.custom(requests) {
		out = append(out, b.http(HTTPFilter+".CUSTOM."+s.provider, &httprbacv3.RBAC{Rules: s.shadow}))
	}
	for _, s := range b.local(requests) {
		if s.enforced != nil && s.action != security.AuthorizationPolicy_AUDIT {
			out = append(out, b.http(HTTPFilter+"."+s.action.String(), &httprbacv3.RBAC{Rules: s.enforced}))
		}
	}
	return out
}

func (b *Builder) http(name string, m proto.Message) *managerv3.HttpFilter {
	return &managerv3.HttpFilter{Name: name, ConfigType: &managerv3.HttpFilter_TypedConfig{TypedConfig: b.Pack(m)}}
}

func (b *Builder) tcp(name string, m proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: b.Pack(m)}}
}

// ruleSet is the rules of one filter: those of all policies with an action, or of all that name a provider.
type ruleSet struct {
	provider string // "" unless a provider is asked
	action   security.AuthorizationPolicy_Action
	// enforced and shadow are nil for none. Shadow rules are evaluated only; for a provider they say when it is asked.
	enforced, shadow *rbacv3.RBAC
}

// prefix returns that of the statistics and the metadata of the shadow rules. Each provider has its own, so that none is
// asked because of another's rule.
func (s *ruleSet) prefix() string {
	switch {
	case s.provider != "":
		return AskPrefix + s.provider + "_"
	case s.shadow == nil:
		return ""
	case s.action == security.AuthorizationPolicy_ALLOW:
		return DryAllow
	case s.action == security.AuthorizationPolicy_DENY:
		return DryDeny
	}
	return ""
}

// actions are those that Envoy decides about itself, in their order: what one denies no other allows.
var actions = []struct {
	action security.AuthorizationPolicy_Action
	rbac   rbacv3.RBAC_Action
}{
	{security.AuthorizationPolicy_AUDIT, rbacv3.RBAC_LOG},
	{security.AuthorizationPolicy_DENY, rbacv3.RBAC_DENY},
	{security.AuthorizationPolicy_ALLOW, rbacv3.RBAC_ALLOW},
}

// local returns the rules of the policies that Envoy decides about itself.
func (b *Builder) local(known scope) (sets []*ruleSet) {
	for _, a := range actions {
		set := &ruleSet{action: a.action}
		for _, p := range b.Policies {
			if p.Policy.GetAction() != a.action {
				continue
			}
			into := &set.enforced
			if p.DryRun {
				into = &set.shadow
			}
			if *into == nil {
				*into = &rbacv3.RBAC{Action: a.rbac, Policies: make(map[string]*rbacv3.Policy)}
			}
			maps.Copy((*into).GetPolicies(), b.policies(p, known))
		}
		if set.enforced != nil || set.shadow != nil {
			sets = append(sets, set)
		}
	}
	return sets
}

// custom returns, for each provider, when it is asked.
func (b *Builder) custom(known scope) (sets []*ruleSet) {
	for _, p := range b.Policies {
		if p.Policy.GetAction() != security.AuthorizationPolicy_CUSTOM || p.DryRun {
			continue
		}
		name := p.Policy.GetProvider().GetName()
		i := slices.IndexFunc(sets, func(s *ruleSet) bool { return s.provider == name })
		if i < 0 {
			i = len(sets)
			sets = append(sets, &ruleSet{
				provider: name, action: security.AuthorizationPolicy_CUSTOM,
				shadow: &rbacv3.RBAC{Action: rbacv3.RBAC_DENY, Policies: make(map[string]*rbacv3.Policy)},
			})
		}
		maps.Copy(sets[i].shadow.GetPolicies(), b.policies(p, known))
	}
	slices.SortFunc(sets, func(a, b *ruleSet) int { return cmp.Compare(a.provider, b.provider) })
	return sets
}

// policies returns the rules of a policy by their names. A policy without rules has one that takes nothing, because a
// policy that allows nothing denies everything.
func (b *Builder) policies(p *push.AuthorizationPolicy, known scope) map[string]*rbacv3.Policy {
	out := make(map[string]*rbacv3.Policy)
	for i, rule := range p.Policy.GetRules() {
		t := &translation{Builder: b, namespace: p.Namespace, known: known, strict: p.Policy.GetAction() == security.AuthorizationPolicy_ALLOW}
		if made := t.rule(rule); made != nil {
			out[PolicyName(p.Key, i)] = made
		}
	}
	if len(p.Policy.GetRules()) == 0 {
		out[PolicyName(p.Key, 0)] = never()
	}
	return out
}

// never returns a rule that takes nothing.
func never() *rbacv3.Policy {
	return &rbacv3.Policy{
		Permissions: []*rbacv3.Permission{{Rule: &rbacv3.Permission_NotRule{NotRule: anyPermission()}}},
		Principals:  []*rbacv3.Principal{{Identifier: &rbacv3.Principal_NotId{NotId: anyPrincipal()}}},
	}
}
