package authz

import (
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// enforced returns the rules of a policy with one rule, in what is known.
func enforced(t *testing.T, known scope, action security.AuthorizationPolicy_Action, rule *security.Rule) *rbacv3.RBAC {
	t.Helper()
	b := &Builder{
		Policies: []*push.AuthorizationPolicy{{
			Key:    config.Key{Kind: config.AuthorizationPolicy, Namespace: "a", Name: "p"},
			Policy: &security.AuthorizationPolicy{Action: action, Rules: []*security.Rule{rule}},
		}},
		Principals: func(p string) []string { return []string{p} },
	}
	sets := b.local(known)
	if len(sets) != 1 || sets[0].enforced == nil {
		t.Fatalf("%d sets of rules, want one that is enforced", len(sets))
	}
	return sets[0].enforced
}

func byPath(path string) *security.Rule {
	return &security.Rule{To: []*security.Rule_To{{Operation: &security.Operation{Paths: []string{path}}}}}
}

func byNotPath(path string) *security.Rule {
	return &security.Rule{To: []*security.Rule_To{{Operation: &security.Operation{NotPaths: []string{path}}}}}
}

func from(source *security.Source) *security.Rule {
	return &security.Rule{From: []*security.Rule_From{{Source: source}}}
}

func byAttribute(key, value string) *security.Rule {
	return &security.Rule{When: []*security.Condition{{Key: key, Values: []string{value}}}}
}

func TestWhatEnvoyDoesNotTakeAllowsNothingAndDeniesMore(t *testing.T) {
	long := strings.Repeat("a", config.MaxPattern+1)
	for name, tc := range map[string]struct {
		known scope
		rule  *security.Rule
	}{
		"a template without a slash":    {everything, byPath("{**}")},
		"a template with two slashes":   {everything, byPath("//foo/{*}")},
		"a template that is not meant":  {everything, byNotPath("/foo/{*}//")},
		"a long template":               {everything, byPath("/{*}/" + long)},
		"a long namespace":              {connections, from(&security.Source{Namespaces: []string{long}})},
		"a long principal":              {connections, from(&security.Source{NotPrincipals: []string{"*" + long}})},
		"a long trust domain":           {connections, byAttribute(config.AttributeTrustDomain, "*"+long)},
		"a header with a line break":    {everything, byAttribute("request.headers[a\nb]", "x")},
		"the name in TLS, for gRPC":     {requests, byAttribute(config.AttributeSNI, "*")},
		"the header TE, for gRPC":       {requests, byAttribute("request.headers[TE]", "x")},
		"metadata of filters, for gRPC": {requests, byAttribute("experimental.envoy.filters.a[b]", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			if allow := enforced(t, tc.known, security.AuthorizationPolicy_ALLOW, tc.rule); len(allow.GetPolicies()) != 0 {
				t.Errorf("it allows %v, want nothing", allow)
			}
			deny := enforced(t, tc.known, security.AuthorizationPolicy_DENY, tc.rule).GetPolicies()["ns[a]-policy[p]-rule[0]"]
			if deny == nil || len(deny.GetPermissions()) != 1 || len(deny.GetPrincipals()) != 1 ||
				!deny.GetPermissions()[0].GetAndRules().GetRules()[0].GetAny() || !deny.GetPrincipals()[0].GetAndIds().GetIds()[0].GetAny() {
				t.Errorf("it denies %v, want everything", deny)
			}
		})
	}
}

func TestWhatEnvoyTakesIsSent(t *testing.T) {
	for name, tc := range map[string]struct {
		known scope
		rule  *security.Rule
	}{
		"a template":           {everything, byPath("/foo/{*}/")},
		"the name in TLS":      {connections, byAttribute(config.AttributeSNI, "*")},
		"the header TE":        {everything, byAttribute("request.headers[te]", "x")},
		"a namespace":          {connections, from(&security.Source{Namespaces: []string{"a"}})},
		"the path, for gRPC":   {requests, byPath("/foo")},
		"the header, for gRPC": {requests, byAttribute("request.headers[x-a]", "x")},
	} {
		t.Run(name, func(t *testing.T) {
			policy := enforced(t, tc.known, security.AuthorizationPolicy_ALLOW, tc.rule).GetPolicies()["ns[a]-policy[p]-rule[0]"]
			if policy == nil || policy.GetPermissions()[0].GetAndRules().GetRules()[0].GetAny() && policy.GetPrincipals()[0].GetAndIds().GetIds()[0].GetAny() {
				t.Errorf("it allows %v, want what the rule takes", policy)
			}
		})
	}
}
