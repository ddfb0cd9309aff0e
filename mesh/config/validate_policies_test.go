package config

import (
	"strings"
	"testing"
)

func TestTemplatesOfPathsThatEnvoyDoesNotTakeAreErrors(t *testing.T) {
	problem := func(path, why string) string { return `spec.rules[0].to[0].operation.paths[0]: "` + path + `": ` + why }
	for path, want := range map[string]string{
		"{**}":                             problem("{**}", "a template of a path begins with a slash"),
		"foo/{*}":                          problem("foo/{*}", "a template of a path begins with a slash"),
		"//foo/{*}":                        problem("//foo/{*}", "a template of a path has no empty segments"),
		"/foo//{*}":                        problem("/foo//{*}", "a template of a path has no empty segments"),
		"/foo/{*}//":                       problem("/foo/{*}//", "a template of a path has no empty segments"),
		"/{**}/{*}":                        problem("/{**}/{*}", "{**} must be the last template of a path"),
		"/{*}/a*":                          problem("/{*}/a*", `the segment "a*" of a template cannot be in a path`),
		"/a{*}":                            problem("/a{*}", "a segment is {*}, {**} or a text without braces"),
		"/foo/{*}":                         "",
		"/foo/{*}/":                        "",
		"/{**}":                            "",
		"/{*}/{**}/a":                      "",
		"/":                                "",
		"//a":                              "",
		"/{*}/" + strings.Repeat("a", 253): "",
		"/{*}/" + strings.Repeat("a", 254): problem("/{*}/"+strings.Repeat("a", 195), "a template of a path has at most 256 bytes, where {*} counts as 1, and {**} as 2"),
	} {
		var problems []string
		if want != "" {
			problems = []string{want}
		}
		validateRows(t, AuthorizationPolicy, []row{{path, "rules: [{to: [{operation: {paths: ['" + path + "'], ports: ['80']}}]}]", problems}})
	}
}

func TestPoliciesThatEnvoyRejectsAreErrors(t *testing.T) {
	const key = "spec.rules[0].when[0].key: "
	when := func(key string) string { return `rules: [{when: [{key: "` + key + `", values: [x]}]}]` }
	const nothing = ": values match nothing, and notValues everything [HM0105]"
	validateRows(t, AuthorizationPolicy, []row{
		{"a header with a line break", when(`request.headers[a\nb]`), []string{key + `"a\nb" is no name of a header: Envoy rejects the listener`}},
		{"a header with a zero", when(`request.headers[a\0b]`), []string{key + `"a\x00b" is no name of a header: Envoy rejects the listener`}},
		{"a header with a space", when(`request.headers[a b]`), []string{key + `warning: "request.headers[a b]": no header has such a name` + nothing}},
		{"two headers", when(`request.headers[a][b]`), []string{key + `warning: "request.headers[a][b]": no header has such a name` + nothing}},
		{"no attribute", when(`request.headersx[a]`), []string{key + `warning: "request.headersx[a]": there is no such attribute: write request.headers[NAME]` + nothing}},
		{"a header", when(`request.headers[x-a]`), nil},
		{"a pseudo-header", when(`request.headers[:path]`), nil},
		{"an empty claim at the beginning", when(`request.auth.claims[][a]`), []string{key + `warning: "request.auth.claims[][a]": a name of a claim is empty` + nothing}},
		{"an empty claim at the end", when(`request.auth.claims[a][]`), []string{key + `warning: "request.auth.claims[a][]": a name of a claim is empty` + nothing}},
		{"a text between claims", when(`request.auth.claims[a]x[b]`), []string{key + `warning: "request.auth.claims[a]x[b]" is about the one claim "a]x[b": claims in claims are written [NAME][NAME] [HM0115]`}},
		{"a claim in a claim", when(`request.auth.claims[a][b]`), nil},
		{"metadata of no filter", when(`experimental.envoy.filters.[a]`), []string{key + `warning: "experimental.envoy.filters.[a]": no filter has such a name` + nothing}},
		{"metadata", when(`experimental.envoy.filters.a.b[c]`), nil},
		{"a long namespace", "rules: [{from: [{source: {namespaces: [" + strings.Repeat("a", 2049) + "]}}]}]", []string{"spec.rules[0].from[0].source.namespaces[0]: must be at most 2048 bytes long, and has 2049"}},
		{"a long principal", "rules: [{from: [{source: {notPrincipals: ['*" + strings.Repeat("a", 2048) + "']}}]}]", []string{"spec.rules[0].from[0].source.notPrincipals[0]: must be at most 2048 bytes long, and has 2049"}},
		{"a long trust domain", "rules: [{from: [{source: {trustDomains: ['*" + strings.Repeat("a", 2048) + "']}}]}]", []string{"spec.rules[0].from[0].source.trustDomains[0]: must be at most 2048 bytes long, and has 2049"}},
		{"a long condition", "rules: [{when: [{key: source.namespace, values: [" + strings.Repeat("a", 2049) + "]}]}]", []string{"spec.rules[0].when[0].values[0]: must be at most 2048 bytes long, and has 2049"}},
		{"a principal", "rules: [{from: [{source: {principals: ['*" + strings.Repeat("a", 2047) + "']}}]}]", nil},
	})
}

func TestTokensThatEnvoyRejectsAreErrors(t *testing.T) {
	const key = `{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}`
	keys := func(text string) string { return "jwtRules: [{issuer: a, jwks: '" + text + "'}]" }
	const at = "spec.jwtRules[0].jwks: is no set of keys (JWKS): "
	validateRows(t, RequestAuthentication, []row{
		{"keys", keys(`{"keys":[` + key + `], "x": {"a": [{"a": 1}]}}`), nil},
		{"upper case", keys(`{"KEYS":[` + key + `]}`), []string{at + `"KEYS" must be written keys`}},
		{"twice", keys(`{"keys":[],"keys":[` + key + `]}`), []string{at + `the name "keys" is there twice`}},
		{"twice in a key", keys(`{"keys":[` + strings.Replace(key, "{", `{"kty":"EC",`, 1) + `]}`), []string{at + "json: duplicate key 'kty' in object"}},
		{"nothing", keys(`{}`), []string{at + "it has no keys"}},
		{"a line break in a prefix", `jwtRules: [{issuer: a, fromHeaders: [{name: x-t, prefix: "Bearer\n"}]}]`,
			[]string{`spec.jwtRules[0].fromHeaders[0].prefix: "Bearer\n" has a character that no header has: Envoy rejects the listener`}},
		{"a prefix", `jwtRules: [{issuer: a, fromHeaders: [{name: x-t, prefix: "Bearer "}]}]`, nil},
	})
}

func TestRulesThatDenyConnectionsGetAWarningThatSaysWhich(t *testing.T) {
	const at = "spec.rules[0]: warning: "
	everybody := at + "says nothing of ports or of the client's address or identity: on ports that are not HTTP it denies every connection; name the ports [HM0119]"
	clients := at + "says nothing of ports: on ports that are not HTTP it denies every connection of these clients; name the ports [HM0119]"
	for rule, want := range map[string]string{
		"to: [{operation: {paths: [/p]}}]":                                                                                     everybody,
		"to: [{operation: {paths: [/p]}}], from: [{source: {namespaces: [n1]}}]":                                               clients,
		"to: [{operation: {paths: [/p]}}], from: [{source: {namespaces: [n1]}}, {source: {requestPrincipals: ['*']}}]":         everybody,
		"to: [{operation: {paths: [/p], ports: ['80']}}]":                                                                      "",
		"to: [{operation: {paths: [/p], ports: ['80']}}, {operation: {paths: [/q]}}]":                                          everybody,
		"to: [{operation: {paths: [/p]}}], when: [{key: source.ip, values: [10.0.0.1]}]":                                       "",
		"to: [{operation: {paths: [/p]}}], when: [{key: 'request.headers[a]', values: [x]}]":                                   everybody,
		"when: [{key: 'request.headers[a]', values: [x]}]":                                                                     everybody,
		"when: [{key: 'request.auth.claims[a]', values: [x]}], from: [{source: {requestPrincipals: ['*'], namespaces: [n1]}}]": "",
		"from: [{source: {namespaces: [n1]}}]":                                                                                 "",
		"":                                                                                                                     "",
	} {
		var problems []string
		if want != "" {
			problems = []string{want}
		}
		validateRows(t, AuthorizationPolicy, []row{{rule, "action: DENY\nrules: [{" + rule + "}]", problems}})
	}
}

func TestStarsThatAreNoWildcardsGetAWarning(t *testing.T) {
	const literal = ": only one * at the beginning or at the end is a wildcard: another one is compared as it is [HM0115]"
	source := func(field, value string) string {
		return "rules: [{from: [{source: {" + field + ": ['" + value + "']}}]}]"
	}
	operation := func(field, value string) string {
		return "rules: [{to: [{operation: {" + field + ": ['" + value + "']}}]}]"
	}
	when := func(key, value string) string {
		return "rules: [{when: [{key: '" + key + "', notValues: ['" + value + "']}]}]"
	}
	const from, to, values = "spec.rules[0].from[0].source.", "spec.rules[0].to[0].operation.", "spec.rules[0].when[0].notValues[0]: warning: "
	validateRows(t, AuthorizationPolicy, []row{
		{"a principal", source("principals", "cluster.local/ns/*/sa/x"), []string{from + `principals[0]: warning: "cluster.local/ns/*/sa/x"` + literal}},
		{"a principal with two", source("notPrincipals", "*/ns/*"), []string{from + `notPrincipals[0]: warning: "*/ns/*"` + literal}},
		{"a subject", source("requestPrincipals", "a*/b"), []string{from + `requestPrincipals[0]: warning: "a*/b"` + literal}},
		{"a namespace", source("namespaces", "a*b"), nil},
		{"a path", operation("paths", "/a*b"), []string{to + `paths[0]: warning: "/a*b"` + literal}},
		{"a host", operation("hosts", "a*b"), []string{to + `hosts[0]: warning: "a*b"` + literal}},
		{"a method", operation("notMethods", "G*T"), []string{to + `notMethods[0]: warning: "G*T"` + literal}},
		{"a template", operation("paths", "/a/{*}/b"), nil},
		{"at an end", operation("paths", "/a*"), nil},
		{"at the beginning", operation("hosts", "*.b"), nil},
		{"anything", operation("hosts", "*"), nil},
		{"a header", when("request.headers[x]", "a*b"), []string{values + `"a*b"` + literal}},
		{"a claim", when("request.auth.claims[x]", "a*b"), []string{values + `"a*b"` + literal}},
		{"a server name", when("connection.sni", "a*b"), []string{values + `"a*b"` + literal}},
		{"a client", when("source.principal", "a*b"), []string{values + `"a*b"` + literal}},
		{"an audience", when("request.auth.audiences", "a*b"), []string{values + `"a*b"` + literal}},
		{"a zone", source("ipBlocks", "fe80::1%eth0"), []string{from + `ipBlocks[0]: warning: "fe80::1%eth0": Envoy does not compare zones: the address is taken on every interface, and not only on "eth0" [HM0115]`}},
	})
}
