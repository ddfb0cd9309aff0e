package config

import (
	"strings"
	"testing"
)

// row is a spec in YAML and its problems, as "field: message".
type row struct {
	name, spec string
	want       []string
}

// validateRows reads a document of a kind for each row and compares its problems.
func validateRows(t *testing.T, kind Kind, rows []row) {
	t.Helper()
	schema := SchemaOf(kind)
	for _, tc := range rows {
		t.Run(tc.name, func(t *testing.T) {
			spec := "spec:\n  " + strings.ReplaceAll(strings.TrimSpace(tc.spec), "\n", "\n  ")
			if !schema.IsIstio() {
				spec = tc.spec
			}
			got := problems(t, "f", "apiVersion: "+schema.APIVersion()+"\nkind: "+kind.Short()+"\nmetadata: {name: a, namespace: ns}\n"+spec+"\n")
			for i, text := range got {
				_, after, found := strings.Cut(text, kind.Short()+" ns/a: ")
				if !found {
					t.Errorf("%q does not name the document", text)
				}
				got[i] = after
			}
			compare(t, got, tc.want)
		})
	}
}

func route(rest string) string {
	return "hosts: [a]\nhttp:\n- route: [{destination: {host: a}}]\n" + rest
}

const tooFewActions = "must have a route, a redirect, a directResponse or a delegate"

func TestVirtualServicesAreValidated(t *testing.T) {
	validateRows(t, VirtualService, []row{
		{"valid", route("  timeout: 0s"), nil},
		{"empty", "{}", []string{"spec: must have http, tls or tcp routes"}},
		{"a delegate with more than http", "gateways: [g]\ntls: []\ntcp: [{route: [{destination: {host: a}}]}]", []string{
			"spec.gateways: a VirtualService without hosts is a delegate, which has http routes only",
			"spec.tcp: a VirtualService without hosts is a delegate, which has http routes only"}},
		{"a delegate that delegates", "http: [{delegate: {name: b}}]", []string{"spec.http[0].delegate: a delegate cannot delegate"}},
		{"hosts", "hosts: ['*', a_b, '*.a.com', b.a.com]\nhttp: [{route: [{destination: {host: a}}]}]", []string{
			`spec.hosts[0]: "*" is for gateways only: sidecars do not accept it`,
			`spec.hosts[1]: "a_b" is no host: its first label must have letters, digits and '-', and may be or begin with '*'`}},
		{"hosts that overlap", "hosts: ['*.a.com', b.a.com]\nhttp: [{route: [{destination: {host: a}}]}]", []string{`spec.hosts[1]: "*.a.com" and "b.a.com" have hosts in common`}},
		{"every host at a gateway and at sidecars", "hosts: ['*']\ngateways: [ns/g, mesh]\nhttp: [{route: [{destination: {host: a}}]}]", []string{`spec.hosts[0]: "*" is for gateways only: sidecars do not accept it`}},
		{"every host at a gateway", "hosts: ['*']\ngateways: [ns/g]\nhttp: [{route: [{destination: {host: a}}]}]", nil},
		{"gateways", "hosts: [a]\ngateways: [mesh, g.ns.svc.cluster.local, a_b, /g, ns/a_b]\nhttp: [{route: [{destination: {host: a}}]}]", []string{
			"spec.gateways[1]: warning: write namespace/name: names with dots are Istio's old form [HM0107]", `spec.gateways[2]: "a_b" is no name of a gateway`,
			`spec.gateways[3]: "/g" is no namespace/name of a gateway`, `spec.gateways[4]: "ns/a_b" is no namespace/name of a gateway`}},
		{"exportTo", route("exportTo: ['*', b]"), []string{`spec.exportTo[0]: "*" must be the only element`}},
		{"exportTo its own namespace twice", route("exportTo: ['.', ns]"), []string{`spec.exportTo[1]: "ns" repeats a namespace of the list`}},
		{"exportTo nobody", route("exportTo: ['~']"), []string{`spec.exportTo[0]: "~", to no namespace, is only for a ServiceEntry`}},
		{"no action", "hosts: [a]\nhttp: [{timeout: 1s}]", []string{"spec.http[0]: " + tooFewActions}},
		{"two actions", route("  redirect: {uri: /}"), []string{"spec.http[0].redirect: a route can have only one of route and redirect"}},
		{"a redirect with a fault and a rewrite", "hosts: [a]\nhttp: [{redirect: {uri: /}, fault: {abort: {httpStatus: 500}}, rewrite: {uri: /}}]", []string{
			"spec.http[0].fault: cannot be combined with redirect", "spec.http[0].rewrite: cannot be combined with redirect"}},
		{"an unreachable route", "hosts: [a]\nhttp: [{route: [{destination: {host: a}}]}, {route: [{destination: {host: a}}]}]", []string{
			"spec.http[1]: warning: is never used: http[0] has no match and takes every request [HM0106]"}},
		{"weights", "hosts: [a]\nhttp: [{route: [{destination: {host: a}, weight: -1}]}, {match: [{}], route: [{destination: {host: a}}, {destination: {host: b}}]}]", []string{
			"spec.http[0].route[0].weight: must not be negative, and is -1", "spec.http[1].route: all weights are 0: no destination would get anything",
			"spec.http[1]: warning: is never used: http[0] has no match and takes every request [HM0106]"}},
		{"destinations", "hosts: [a]\nhttp: [{route: [{destination: {host: '*', subset: a_b, port: {number: 0}}, weight: 1}, {weight: 1}, {destination: {host: a, port: {}}, weight: 1}]}]", []string{
			`spec.http[0].route[0].destination.host: "*" is no destination`,
			`spec.http[0].route[0].destination.subset: "a_b" is no name of a subset: use letters, digits and '-', at most 63`,
			"spec.http[0].route[0].destination.port.number: must be a port from 1 to 65535, and is 0",
			"spec.http[0].route[1].destination: it is missing",
			"spec.http[0].route[2].destination.port.number: must be a port from 1 to 65535, and is 0"}},
		{"a value that is none of an enumeration", route("  corsPolicy: {unmatchedPreflights: 7}"), []string{"spec.http[0].corsPolicy.unmatchedPreflights: 7 is no value of this field"}},
	})
}

func TestMatchesAreValidated(t *testing.T) {
	validateRows(t, VirtualService, []row{
		{"regular expressions", route("  match: [{uri: {regex: '('}, headers: {a: {regex: ''}, b: {regex: '*'}}, withoutHeaders: {b: {regex: '*'}}, method: {prefix: ''}}]"), []string{
			"spec.http[0].match[0].uri.regex: is no RE2 regular expression: missing closing ): `(`",
			"spec.http[0].match[0].method.prefix: must not be empty",
			"spec.http[0].match[0].headers.a.regex: must not be empty",
			"spec.http[0].match[0].headers.b.regex: is no RE2 regular expression: missing argument to repetition operator: `*`"}},
		{"a lookahead, which RE2 has not", route("  match: [{uri: {regex: '(?=a)'}}]"), []string{"spec.http[0].match[0].uri.regex: is no RE2 regular expression: invalid or unsupported Perl syntax: `(?=`"}},
		{"a long regular expression", route("  match: [{uri: {regex: '" + strings.Repeat("a", 1025) + "'}}]"), []string{"spec.http[0].match[0].uri.regex: must be at most 1024 bytes long"}},
		{"two UUIDs", route("  match: [{uri: {regex: '/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'}}]"), nil},
		{"protocol.md V15: a regular expression with a large program", route("  match: [{uri: {regex: '/" + strings.Repeat("a{1000}", 33) + "'}}]"), []string{
			"spec.http[0].match[0].uri.regex: is too large for Envoy: its repetitions make a program of 33003 instructions, and at most 32768 are allowed"}},
		{"an empty prefix of the URI", route("  match: [{uri: {prefix: ''}}]"), nil},
		{"headers", route("  match: [{headers: {'a b': {}, ':path': {exact: /}}, withoutHeaders: {'@request.auth.claims.sub': {}}}]"), []string{
			`spec.http[0].match[0].headers.a b: "a b" is no name of a header`,
			"spec.http[0].match[0].withoutHeaders.@request.auth.claims.sub: claims of tokens are matched at gateways only"}},
		{"query parameters", route("  match: [{queryParams: {q: {regex: '['}}}]"), []string{"spec.http[0].match[0].queryParams.q.regex: is no RE2 regular expression: missing closing ]: `[`"}},
		{"origin", route("  match: [{port: 70000, sourceLabels: {'a b': c}, sourceNamespace: a_b, gateways: [a_b]}]"), []string{
			"spec.http[0].match[0].port: must be a port from 1 to 65535, and is 70000",
			`spec.http[0].match[0].sourceLabels.a b: "a b" is no key of a label`,
			`spec.http[0].match[0].gateways[0]: "a_b" is no name of a gateway`,
			`spec.http[0].match[0].sourceNamespace: "a_b" is no namespace`}},
	})
}

func TestActionsOfRoutesAreValidated(t *testing.T) {
	validateRows(t, VirtualService, []row{
		{"headers", route("  headers: {request: {set: {':path': a, host: b, x: '%y'}, remove: [host]}, response: {add: {host: c, 'b d': \"\\x01\"}}}"), []string{
			`spec.http[0].headers.request.set.:path: ":path" is no header, and cannot be changed`,
			`spec.http[0].headers.request.set.x: "%y" is no format: "%y" is no command, such as %PROTOCOL% or %REQ(X-REQUEST-ID)%; write %% for a percent sign`,
			"spec.http[0].headers.request.remove[0]: the Host header can only be set or added, in requests",
			`spec.http[0].headers.response.add.b d: "b d" is no name of a header`,
			`spec.http[0].headers.response.add.b d: "\x01" has a control character`,
			"spec.http[0].headers.response.add.host: the Host header can only be set or added, in requests"}},
		{"variables in headers", route(`  headers: {request: {set: {a: '100%% %REQ(x?y:%z)% %START_TIME(%s)%', b: "\t"}}}`), nil},
		{"two authorities", route("  rewrite: {authority: a}\n  headers: {request: {set: {host: b}}}"), []string{"spec.http[0].headers: the authority is set more than once, by rewrite and headers"}},
		{"rewrite", route("  rewrite: {}"), []string{"spec.http[0].rewrite: must have a uri, a uriRegexRewrite or an authority"}},
		{"rewrite by a regular expression", route("  rewrite: {uri: /, uriRegexRewrite: {match: '('}}"), []string{
			"spec.http[0].rewrite.uriRegexRewrite: a rewrite can have only one of uri and uriRegexRewrite",
			"spec.http[0].rewrite.uriRegexRewrite.match: is no RE2 regular expression: missing closing ): `(`",
			"spec.http[0].rewrite.uriRegexRewrite.rewrite: must not be empty"}},
		{"mirrors", route("  mirror: {host: a}\n  mirrorPercentage: {value: -1}\n  mirrors: [{percentage: {value: 101}}]"), []string{
			"spec.http[0].mirrors: a route can have only one of mirror and mirrors",
			"spec.http[0].mirrorPercentage.value: must be a percentage from 0 to 100, and is -1",
			"spec.http[0].mirrors[0].destination: it is missing",
			"spec.http[0].mirrors[0].percentage.value: must be a percentage from 0 to 100, and is 101"}},
		{"a percentage in the deprecated field", route("  mirrorPercent: 101"), []string{"spec.http[0].mirrorPercent: must be a percentage from 0 to 100, and is 101"}},
		{"redirect", "hosts: [a]\nhttp: [{redirect: {redirectCode: 200, scheme: ftp, port: 0, uri: a, prefixRewrite: b}, match: [{uri: {exact: /}}]}]", []string{
			"spec.http[0].redirect.prefixRewrite: a redirect can have only one of uri and prefixRewrite",
			"spec.http[0].redirect.prefixRewrite: every match of the route must be a prefix of the URI",
			"spec.http[0].redirect.redirectCode: must be 301, 302, 303, 307 or 308, and is 200",
			`spec.http[0].redirect.scheme: must be "http" or "https"`,
			"spec.http[0].redirect.port: must be a port from 1 to 65535, and is 0"}},
		{"an empty redirect", "hosts: [a]\nhttp: [{redirect: {}}]", []string{"spec.http[0].redirect: must change the URI, the authority, the port or the scheme"}},
		{"a direct response", "hosts: [a]\nhttp: [{directResponse: {status: 600}}]", []string{"spec.http[0].directResponse.status: must be an HTTP status from 200 to 599, and is 600"}},
		{"a large direct response", "hosts: [a]\nhttp: [{directResponse: {status: 200, body: {string: '" + strings.Repeat("a", 200<<10) + "'}}}]", []string{
			"spec.http[0].directResponse.body: warning: is sent to every proxy, and has 204800 bytes [HM0109]"}},
		{"a direct response that is too large", "hosts: [a]\nhttp: [{directResponse: {status: 200, body: {string: '" + strings.Repeat("a", 2<<20) + "'}}}]", []string{
			"spec.http[0].directResponse.body: must be at most 1 MiB, and has 2097152 bytes"}},
		{"retries", route("  retries: {attempts: -1, perTryTimeout: 1ns, backoff: 0s, retryOn: '5xx,503,often'}"), []string{
			"spec.http[0].retries.attempts: must not be negative, and is -1",
			"spec.http[0].retries.perTryTimeout: must be a duration of at least 1ms, and is 1ns",
			"spec.http[0].retries.backoff: must be a duration of at least 1ms, and is 0s",
			`spec.http[0].retries.retryOn: "often" is neither a condition of Envoy nor an HTTP status`}},
		{"retries without attempts", route("  retries: {retryOn: reset}"), []string{"spec.http[0].retries.attempts: is 0, which disables retries: the other fields would have no effect"}},
		{"no retries", route("  retries: {attempts: 0}"), nil},
		{"a fault of nothing", route("  fault: {}"), []string{"spec.http[0].fault: must have an abort or a delay"}},
		{"a delay of nothing", route("  fault: {delay: {percentage: {value: 1}}}"), []string{"spec.http[0].fault.delay: warning: has no effect without a fixedDelay [HM0102]"}},
		{"an exponential delay", route("  fault: {delay: {exponentialDelay: 1s, percentage: {value: 200}}}"), []string{
			"spec.http[0].fault.delay.percentage.value: must be a percentage from 0 to 100, and is 200",
			"spec.http[0].fault.delay.exponentialDelay: is not supported by Envoy: write fixedDelay"}},
		{"aborts", route("  fault: {abort: {httpStatus: 199, percentage: {value: 0.00001}}, delay: {fixedDelay: 0.5ms}}"), []string{
			"spec.http[0].fault.abort.percentage.value: must be 0 or at least 0.0001, and is 1e-05",
			"spec.http[0].fault.abort.httpStatus: must be an HTTP status from 200 to 599, and is 199",
			"spec.http[0].fault.delay.fixedDelay: must be a duration of at least 1ms, and is 500µs"}},
		{"an abort with a status of gRPC", route("  fault: {abort: {grpcStatus: GONE}}"), []string{`spec.http[0].fault.abort.grpcStatus: "GONE" is no status of gRPC, such as NOT_FOUND`}},
		{"an abort with an error of HTTP/2", route("  fault: {abort: {http2Error: a}}"), []string{"spec.http[0].fault.abort.http2Error: is not supported by Envoy: write httpStatus or grpcStatus"}},
		{"an abort with nothing", route("  fault: {abort: {}}"), []string{"spec.http[0].fault.abort: warning: has no effect without an httpStatus or a grpcStatus [HM0102]"}},
		{"CORS", route("  corsPolicy: {allowOrigins: [{}, {regex: '('}], allowMethods: [GOT], allowHeaders: ['*', 'a b'], exposeHeaders: [''], maxAge: 1.5s}"), []string{
			"spec.http[0].corsPolicy.allowOrigins[0]: must have an exact, prefix or regex that is not empty",
			"spec.http[0].corsPolicy.allowOrigins[1].regex: is no RE2 regular expression: missing closing ): `(`",
			`spec.http[0].corsPolicy.allowMethods[0]: "GOT" is no HTTP method`,
			`spec.http[0].corsPolicy.allowHeaders[1]: "a b" is no name of a header`,
			`spec.http[0].corsPolicy.exposeHeaders[0]: "" is no name of a header`,
			"spec.http[0].corsPolicy.maxAge: must be in whole seconds"}},
	})
}

func TestTLSAndTCPRoutesAreValidated(t *testing.T) {
	validateRows(t, VirtualService, []row{
		{"valid", "hosts: ['*.a.com']\ntls: [{match: [{sniHosts: [b.a.com], port: 443}], route: [{destination: {host: b}}]}]\ntcp: [{route: [{destination: {host: b}}]}]", nil},
		{"no match and no route", "hosts: [a]\ntls: [{}]\ntcp: [{}]", []string{
			"spec.tls[0].match: must have at least one match, with sniHosts", "spec.tls[0].route: must have at least one destination",
			"spec.tcp[0].route: must have at least one destination"}},
		{"hosts of TLS", "hosts: [a.com]\ntls: [{match: [{}, {sniHosts: [b.com, a_b, 192.0.2.1]}], route: [{destination: {host: b}}]}]", []string{
			"spec.tls[0].match[0].sniHosts: must have at least one host",
			`spec.tls[0].match[1].sniHosts[0]: "b.com" is within none of the hosts of the VirtualService`,
			`spec.tls[0].match[1].sniHosts[1]: "a_b" is no host: its first label must have letters, digits and '-', and may be or begin with '*'`,
			"spec.tls[0].match[1].sniHosts[2]: warning: clients send names as SNI, and no addresses [HM0105]"}},
		{"subnets", "hosts: [a]\ntcp: [{match: [{destinationSubnets: [10.0.0.0/8, 10.0.0.1, '10.0.0.0/33', x]}], route: [{destination: {host: b}}]}]", []string{
			`spec.tcp[0].match[0].destinationSubnets[2]: "10.0.0.0/33" is no IP prefix as in 10.0.0.0/8`, `spec.tcp[0].match[0].destinationSubnets[3]: "x" is no IP address`}},
		{"a field that Istio does not implement", "hosts: [a]\ntcp: [{match: [{sourceSubnet: 10.0.0.0/8}], route: [{destination: {host: b}}]}]", []string{
			"spec.tcp[0].match[0].sourceSubnet: warning: not supported: reserved: Istio does not implement it [HM0101]"}},
	})
}
