package inspect

import (
	"net/netip"
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	tcprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate/authz"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// builder returns what makes the filters of policies, given as their specs.
func builder(t *testing.T, specs ...string) *authz.Builder {
	t.Helper()
	b := &authz.Builder{
		TrustDomains: []string{"cluster.local", "old.example"},
		Principals:   func(p string) []string { return []string{p} },
		Provider:     func(string) *authz.Provider { return nil },
		Pack: func(m proto.Message) *anypb.Any {
			packed, err := anypb.New(m)
			if err != nil {
				t.Fatal(err)
			}
			return packed
		},
	}
	for _, spec := range specs {
		documents, broken := config.Read("f", []byte("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\nspec: "+spec))
		if broken != nil || config.Invalid(documents[0].Problems) {
			t.Fatal(broken, documents)
		}
		c := documents[0].Config
		b.Policies = append(b.Policies, &push.AuthorizationPolicy{Key: c.Meta.Key, Policy: c.Spec.(*security.AuthorizationPolicy)})
	}
	return b
}

// rulesOf returns the rules of the first filter, of HTTP or of other connections.
func rulesOf(t *testing.T, b *authz.Builder, tcp bool) *rbacv3.RBAC {
	t.Helper()
	if tcp {
		var m tcprbacv3.RBAC
		if err := b.TCP()[0].GetTypedConfig().UnmarshalTo(&m); err != nil {
			t.Fatal(err)
		}
		return m.GetRules()
	}
	var m httprbacv3.RBAC
	_, after := b.HTTP()
	if err := after[0].GetTypedConfig().UnmarshalTo(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetRules()
}

// The matrix of test/peers/istio holds the same rules against istiod and Envoy.
func TestRulesTakeWhatTheySay(t *testing.T) {
	const web, db = "spiffe://cluster.local/ns/shop/sa/web", "spiffe://cluster.local/ns/data/sa/db"
	get := routing.Request{Method: "GET", Host: "a.test", Path: "/x?y=z"}
	for name, tc := range map[string]struct {
		rule  string
		facts facts
		want  bool
	}{
		"everything":                    {"{}", facts{}, true},
		"a principal":                   {"from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}]", facts{principal: web}, true},
		"another principal":             {"from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}]", facts{principal: db}, false},
		"a longer principal":            {"from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}]", facts{principal: web + "x"}, false},
		"no principal":                  {"from: [{source: {principals: ['*']}}]", facts{}, false},
		"not a principal, and none":     {"from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/web]}}]", facts{}, true},
		"a namespace":                   {"from: [{source: {namespaces: [shop]}}]", facts{principal: web}, true},
		"a namespace within another":    {"from: [{source: {namespaces: [shop]}}]", facts{principal: "spiffe://cluster.local/ns/x/sa/ns/shop/sa/web"}, false},
		"a namespace in a trust domain": {"from: [{source: {namespaces: [shop]}}]", facts{principal: "spiffe://x/y/ns/shop/sa/web"}, false},
		"a part of a namespace":         {"from: [{source: {namespaces: [sho]}}]", facts{principal: web}, false},
		"an account of the namespace":   {"from: [{source: {serviceAccounts: [web]}}]", facts{principal: web}, true},
		"an account of another":         {"from: [{source: {serviceAccounts: [db]}}]", facts{principal: db}, false},
		"a trust domain's alias":        {"from: [{source: {trustDomains: [cluster.local]}}]", facts{principal: "spiffe://old.example/ns/a/sa/b"}, true},
		"another trust domain":          {"from: [{source: {trustDomains: [cluster.local]}}]", facts{principal: "spiffe://cluster.local.evil/ns/a/sa/b"}, false},
		"an address":                    {"from: [{source: {ipBlocks: [10.0.0.0/8]}}]", facts{source: netip.MustParseAddr("10.1.2.3")}, true},
		"an address in IPv6":            {"from: [{source: {ipBlocks: [10.0.0.0/8]}}]", facts{source: netip.MustParseAddr("::ffff:10.1.2.3")}, true},
		"another address":               {"from: [{source: {ipBlocks: [10.0.0.0/8]}}]", facts{source: netip.MustParseAddr("11.1.2.3")}, false},
		"an address that is not known":  {"from: [{source: {ipBlocks: [0.0.0.0/0]}}]", facts{}, false},
		"a path without its query":      {"to: [{operation: {paths: [/x]}}]", facts{request: routing.NewMatcher(get), http: true}, true},
		"a template":                    {"to: [{operation: {paths: ['/{*}']}}]", facts{request: routing.NewMatcher(get), http: true}, true},
		"a host in capitals":            {"to: [{operation: {hosts: [A.TEST]}}]", facts{request: routing.NewMatcher(get), http: true}, true},
		"a method in small letters":     {"to: [{operation: {methods: [get]}}]", facts{request: routing.NewMatcher(get), http: true}, false},
		"a port":                        {"to: [{operation: {ports: ['80']}}]", facts{port: 80}, true},
		"another port":                  {"to: [{operation: {ports: ['80']}}]", facts{port: 8080}, false},
		"a claim":                       {"when: [{key: 'request.auth.claims[a][b]', values: [c]}]", facts{claims: map[string]any{"a": map[string]any{"b": "c"}}}, true},
		"a claim in a list":             {"when: [{key: 'request.auth.claims[a]', values: [c]}]", facts{claims: map[string]any{"a": []any{"b", "c"}}}, true},
		"a claim of another form":       {"when: [{key: 'request.auth.claims[a]', values: ['1']}]", facts{claims: map[string]any{"a": 1.0}}, false},
		"one of two alternatives":       {"from: [{source: {namespaces: [x]}}, {source: {namespaces: [shop]}}]", facts{principal: web}, true},
		"all of two conditions":         {"when: [{key: source.namespace, values: [shop]}, {key: destination.port, values: ['80']}]", facts{principal: web, port: 81}, false},
		"a value and not another":       {"when: [{key: source.principal, values: ['cluster.local/*'], notValues: ['*/sa/web']}]", facts{principal: web}, false},
	} {
		t.Run(name, func(t *testing.T) {
			rule := tc.rule
			if !strings.HasPrefix(rule, "{") {
				rule = "{" + rule + "}"
			}
			rbac := rulesOf(t, builder(t, "{rules: ["+rule+"]}"), false)
			if got := len(tc.facts.matching(rbac)) == 1; got != tc.want {
				t.Errorf("the rule takes the request: %v, want %v\n%s", got, tc.want, rbac)
			}
		})
	}
}

// What is not known of a connection that is not HTTP makes a rule allow nothing, and deny more.
func TestOnConnectionsARuleAboutRequestsAllowsNothingAndDeniesMore(t *testing.T) {
	for name, tc := range map[string]struct {
		spec string
		want bool // the rule takes a connection to port 80
	}{
		"allows":                  {"{rules: [{to: [{operation: {paths: [/x], ports: ['80']}}]}]}", false},
		"allows by a claim":       {"{rules: [{when: [{key: 'request.auth.claims[a]', values: [b]}]}]}", false},
		"allows by not a header":  {"{rules: [{when: [{key: 'request.headers[a]', notValues: [b]}]}]}", false},
		"allows by a port":        {"{rules: [{to: [{operation: {ports: ['80']}}]}]}", true},
		"denies":                  {"{action: DENY, rules: [{to: [{operation: {paths: [/x], ports: ['80']}}]}]}", true},
		"denies on another port":  {"{action: DENY, rules: [{to: [{operation: {paths: [/x], ports: ['81']}}]}]}", false},
		"denies by a token alone": {"{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ['*']}}]}]}", true},
		"nothing":                 {"{}", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := &facts{port: 80}
			if got := len(f.matching(rulesOf(t, builder(t, tc.spec), true))) == 1; got != tc.want {
				t.Errorf("the rule takes the connection: %v, want %v", got, tc.want)
			}
		})
	}
}

// A provider that does not exist denies what it would be asked about.
func TestAProviderThatDoesNotExistDenies(t *testing.T) {
	b := builder(t, "{action: CUSTOM, provider: {name: nobody}, rules: [{to: [{operation: {ports: ['80']}}]}]}")
	before, after := b.HTTP()
	if len(before) != 1 || len(after) != 0 {
		t.Fatalf("%d filters before tokens, %d after", len(before), len(after))
	}
	var m httprbacv3.RBAC
	if err := before[0].GetTypedConfig().UnmarshalTo(&m); err != nil {
		t.Fatal(err)
	}
	if m.GetRules().GetAction() != rbacv3.RBAC_DENY || len((&facts{port: 80}).matching(m.GetRules())) != 1 || len((&facts{port: 81}).matching(m.GetRules())) != 0 {
		t.Errorf("the filter is %s", &m)
	}
}
