package config

import (
	"slices"
	"strings"
	"testing"
)

func TestPoliciesThatHaveNoEffectOrOpenWhatOthersCloseGetAWarning(t *testing.T) {
	policy := func(name, spec string) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: a}\nspec: " + spec
	}
	peer := func(name, namespace, spec string) string {
		return "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: " + spec
	}
	const web = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w, namespace: a}\nspec: {address: 10.0.0.1, labels: {app: web}}"
	const tokens = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: t, namespace: a}\nspec: {jwtRules: [{issuer: x}]}"
	const providers = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'extensionProviders: [{name: ext, envoyExtAuthzHttp: {service: x.test, port: 80}}]'}"
	const nothing = "a selector of nobody"
	for name, tc := range map[string]struct {
		documents []string
		want      string // of one warning; "" for none
	}{
		"a selector of a workload":         {[]string{web, policy("p", "{selector: {matchLabels: {app: web}}, rules: [{to: [{operation: {ports: ['80']}}]}]}")}, ""},
		nothing:                            {[]string{web, policy("p", "{selector: {matchLabels: {app: wep}}, rules: [{to: [{operation: {ports: ['80']}}]}]}")}, "AuthorizationPolicy a/p: spec.selector.matchLabels: warning: selects none of the workloads"},
		"nobody knows the workloads":       {[]string{policy("p", "{selector: {matchLabels: {app: wep}}, rules: [{to: [{operation: {ports: ['80']}}]}]}")}, ""},
		"a provider":                       {[]string{providers, policy("p", "{action: CUSTOM, provider: {name: ext}, rules: [{}]}")}, ""},
		"no such provider":                 {[]string{providers, policy("p", "{action: CUSTOM, provider: {name: other}, rules: [{}]}")}, `spec.provider.name: warning: the MeshConfig has no provider "other"`},
		"the same rule twice":              {[]string{policy("p", "{action: DENY, rules: [{to: [{operation: {paths: [/x], ports: ['80']}}]}]}"), policy("q", "{action: DENY, rules: [{to: [{operation: {paths: [/x], ports: ['80']}}], when: [{key: source.ip, values: [10.0.0.1]}]}]}")}, "a/q: spec.rules[0]: warning: has no effect: AuthorizationPolicy a/p takes all"},
		"another condition":                {[]string{policy("p", "{action: DENY, rules: [{to: [{operation: {ports: ['80']}}], when: [{key: source.ip, values: [10.0.0.2]}]}]}"), policy("q", "{action: DENY, rules: [{to: [{operation: {ports: ['80']}}]}]}")}, ""},
		"denied what is allowed":           {[]string{policy("p", "{action: DENY, rules: [{}]}"), policy("q", "{rules: [{to: [{operation: {ports: ['80']}}]}]}")}, "a/q: spec.rules[0]: warning: allows nothing: AuthorizationPolicy a/p denies all"},
		"denied elsewhere":                 {[]string{policy("p", "{selector: {matchLabels: {app: db}}, action: DENY, rules: [{}]}"), policy("q", "{rules: [{to: [{operation: {ports: ['80']}}]}]}")}, ""},
		"denied on trial":                  {[]string{strings.Replace(policy("p", "{action: DENY, rules: [{}]}"), "namespace: a", "namespace: a, annotations: {istio.io/dry-run: 'true'}", 1), policy("q", "{rules: [{to: [{operation: {ports: ['80']}}]}]}")}, ""},
		"everything beside something":      {[]string{policy("p", "{rules: [{to: [{operation: {ports: ['80']}}]}]}"), policy("q", "{selector: {matchLabels: {app: web}}, rules: [{}]}")}, "a/q: spec.rules[0]: warning: allows every request, and so opens what AuthorizationPolicy a/p closes"},
		"everything elsewhere":             {[]string{policy("p", "{selector: {matchLabels: {app: db}}, rules: [{to: [{operation: {ports: ['80']}}]}]}"), policy("q", "{selector: {matchLabels: {app: web}}, rules: [{}]}")}, ""},
		"nobody asks for a token":          {[]string{tokens, policy("p", "{rules: [{to: [{operation: {ports: ['80']}}]}]}")}, "RequestAuthentication a/t: spec.jwtRules: warning: requests without a token pass"},
		"somebody asks for a token":        {[]string{tokens, policy("p", "{rules: [{from: [{source: {requestPrincipals: ['*']}}]}]}")}, ""},
		"somebody asks for a claim":        {[]string{tokens, policy("p", "{rules: [{when: [{key: 'request.auth.claims[a]', values: [b]}]}]}")}, ""},
		"two modes of a namespace":         {[]string{peer("p", "a", "{mtls: {mode: STRICT}}"), peer("q", "a", "{mtls: {mode: DISABLE}}")}, "a/q: spec: warning: has no effect: PeerAuthentication a/p is for the same workloads, and older"},
		"plaintext in a mesh without":      {[]string{peer("p", "istio-system", "{mtls: {mode: STRICT}}"), peer("q", "a", "{mtls: {mode: PERMISSIVE}}")}, "a/q: spec.mtls.mode: warning: PERMISSIVE opens what PeerAuthentication istio-system/p closes"},
		"a stricter one in a namespace":    {[]string{peer("p", "istio-system", "{mtls: {mode: PERMISSIVE}}"), peer("q", "a", "{mtls: {mode: STRICT}}")}, ""},
		"an exception in another one":      {[]string{peer("p", "b", "{mtls: {mode: STRICT}}"), peer("q", "a", "{mtls: {mode: DISABLE}}")}, ""},
		"the same principal in both lists": {[]string{policy("p", "{rules: [{from: [{source: {namespaces: [x]}}, {source: {namespaces: [z]}}]}]}"), policy("q", "{rules: [{from: [{source: {namespaces: [z]}}]}]}")}, "a/q: spec.rules[0]: warning: has no effect"},
	} {
		t.Run(name, func(t *testing.T) {
			documents, broken := Read("f", []byte(strings.Join(tc.documents, "\n---\n")))
			if broken != nil {
				t.Fatal(broken)
			}
			index := &Index{}
			for _, d := range documents {
				if d.Config == nil || Invalid(d.Problems) {
					t.Fatal(d.Problems)
				}
				index.Put(d.Config)
			}
			var texts []string
			problems, _ := References(index, DefaultDomain)
			for _, p := range problems {
				texts = append(texts, p.String())
			}
			if tc.want == "" && len(texts) > 0 || tc.want != "" && !slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, tc.want) }) {
				t.Errorf("the warnings are %q, want %q", texts, tc.want)
			}
		})
	}
}
