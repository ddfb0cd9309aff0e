package config

import (
	"slices"
	"strings"
	"testing"
)

const gatewayHead = "apiVersion: gateway.networking.k8s.io/v1\nkind: "

func TestDocumentsOfTheGatewayAPIAreChecked(t *testing.T) {
	gateway := func(spec string) string {
		return gatewayHead + "Gateway\nmetadata: {name: g, namespace: ns}\nspec:\n  gatewayClassName: istio\n  listeners:\n" + spec
	}
	route := func(rule string) string {
		return gatewayHead + "HTTPRoute\nmetadata: {name: r, namespace: ns}\nspec:\n  parentRefs: [{name: g}]\n  rules:\n  - " + rule + "\n"
	}
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"a Gateway that is fine", gateway("  - {name: a, port: 80, protocol: HTTP}\n  - {name: b, port: 443, protocol: TLS, tls: {mode: Passthrough}}\n"), nil},
		{"a Gateway without listeners", gateway("    []\n"), []string{"spec.listeners: must have at least one listener"}},
		{"the same listener twice", gateway("  - {name: a, port: 80, protocol: HTTP}\n  - {name: a, port: 80, protocol: HTTP}\n"), []string{
			`spec.listeners[1]: has the port, the protocol and the hostname of listeners[0]`, `spec.listeners[1].name: "a" is the name of listeners[0] too`}},
		{"TLS where there is none", gateway("  - {name: a, port: 0, protocol: HTTP, hostname: A.test, tls: {certificateRefs: [{name: c}]}}\n"), []string{
			`spec.listeners[0].hostname: "A.test" is no hostname: use lower case letters, digits, '-' and '.', at most 253`,
			"spec.listeners[0].port: must be a port from 1 to 65535, and is 0", "spec.listeners[0].tls: a listener of HTTP has no TLS"}},
		{"TLS that is wrong", gateway("  - {name: a, port: 1, protocol: HTTPS, tls: {mode: Passthrough}}\n  - {name: b, port: 2, protocol: TLS, tls: {}}\n  - {name: c, port: 3, protocol: TCP, hostname: c.test}\n"), []string{
			"spec.listeners[0].tls.mode: must be Terminate for HTTPS",
			"spec.listeners[1].tls.certificateRefs: must have a certificate: the mode is Terminate",
			"spec.listeners[1].tls.mode: it is missing: write Terminate or Passthrough", "spec.listeners[2].hostname: a listener of TCP has no hostname"}},
		{"a selector that is missing", gateway("  - {name: a, port: 1, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector}}}\n  - {name: b, port: 2, protocol: HTTP, allowedRoutes: {namespaces: {from: Some, selector: {matchExpressions: [{key: a, operator: Is}]}}}}\n"), []string{
			"spec.listeners[0].allowedRoutes.namespaces.selector: it is missing: from is Selector",
			"spec.listeners[1].allowedRoutes.namespaces.from: must be All, Selector or Same",
			`spec.listeners[1].allowedRoutes.namespaces.selector: is no selector: "Is" is not a valid label selector operator`}},
		{"what has no effect in a Gateway", gateway("  - {name: a, port: 1, protocol: UDP}\n  addresses: [{value: 1.2.3.4}]\n  infrastructure: {labels: {a: b}}\n  allowedListeners: {namespaces: {from: All}}\n"), []string{
			"spec.addresses[0].type: warning: has no effect: no address is assigned to the proxies of a Gateway [HM0102]",
			"spec.allowedListeners: warning: not supported: ListenerSets are not read: write all listeners in the Gateway [HM0101]",
			"spec.infrastructure: warning: not supported: nothing is deployed: run the proxies of the Gateway yourself [HM0101]",
			"spec.listeners[0].protocol: warning: the listener is not served: UDP is not proxied [HM0110]"}},
		{"client validation", gateway("  - {name: a, port: 1, protocol: HTTP}\n  tls: {frontend: {default: {validation: {caCertificateRefs: []}}, perPort: [{port: 1, tls: {}}, {port: 1, tls: {validation: {mode: Some, caCertificateRefs: [{group: '', kind: Secret, name: a}]}}}]}}\n"), []string{
			"spec.tls.frontend.default.validation.caCertificateRefs: must have at least one element",
			"spec.tls.frontend.perPort[1].port: 1 is there twice", "spec.tls.frontend.perPort[1].tls.validation.mode: must be AllowValidOnly or AllowInsecureFallback"}},
		{"a class of others", gatewayHead + "GatewayClass\nmetadata: {name: c}\nspec: {controllerName: example.com/c, parametersRef: {group: a, kind: b, name: c}}\n", []string{
			"spec.controllerName: warning: ignored: Gateways of this class are for another controller, this one is istio.io/gateway-controller [HM0607]",
			"spec.parametersRef: warning: not supported: nothing is deployed that could have parameters [HM0101]"}},
		{"a class without a controller", gatewayHead + "GatewayClass\nmetadata: {name: c}\nspec: {controllerName: c}\n", []string{`spec.controllerName: "c" is no controller as in istio.io/gateway-controller`}},

		{"a route that is fine", route("{matches: [{path: {type: Exact, value: /a%20b}}], backendRefs: [{name: a, port: 80}]}"), nil},
		{"parents", gatewayHead + "HTTPRoute\nmetadata: {name: r, namespace: ns}\nspec:\n  hostnames: ['*', a.test, 1.2.3.4]\n  parentRefs: [{name: g}, {name: g}, {kind: Thing, group: x.io, name: t}, {name: h, port: 70000}]\n", []string{
			`spec.hostnames[0]: "*" is no hostname: use lower case letters, digits, '-' and '.', at most 253`, `spec.hostnames[2]: "1.2.3.4" must be a name and not an address`,
			"spec.parentRefs[1]: repeats a parent of the list: each needs its own sectionName or port",
			`spec.parentRefs[2]: warning: ignored: routes of Thing "x.io" are not served, but those of a Gateway, a Service or a ServiceEntry [HM0601]`,
			"spec.parentRefs[3].port: must be a port from 1 to 65535, and is 70000"}},
		{"paths", route("{matches: [{path: {value: a}}, {path: {value: /a//b}}, {path: {value: /a/..}}, {path: {value: '/a b'}}, {path: {type: RegularExpression, value: '('}}, {path: {type: Glob, value: /}}, {path: {value: /%2fa}}]}"), []string{
			`spec.rules[0].matches[0].path.value: must begin with "/"`, `spec.rules[0].matches[1].path.value: must not have "//": no request has such a path`,
			`spec.rules[0].matches[2].path.value: must not end with "/.." or "/."`, "spec.rules[0].matches[3].path.value: has a character that a path must not have",
			"spec.rules[0].matches[4].path.value: is no RE2 regular expression: missing closing ): `(`",
			"spec.rules[0].matches[5].path.type: must be Exact, PathPrefix or RegularExpression", `spec.rules[0].matches[6].path.value: must not have "%2f": no request has such a path`}},
		{"headers, queries and methods", route("{matches: [{method: FETCH, headers: [{name: 'a b', value: x}, {name: X, value: ''}, {name: x, type: Prefix, value: z}], queryParams: [{name: q, value: x}, {name: q, value: z}]}]}"), []string{
			`spec.rules[0].matches[0].headers[0].name: "a b" is no name of a header`, "spec.rules[0].matches[0].headers[1].value: it is missing",
			`spec.rules[0].matches[0].headers[2].name: warning: "x" is there twice: the first one counts [HM0103]`, "spec.rules[0].matches[0].headers[2].type: must be Exact or RegularExpression",
			`spec.rules[0].matches[0].method: "FETCH" is no method that can be matched`, `spec.rules[0].matches[0].queryParams[1].name: "q" is there twice`}},
		{"unions of filters", route("{filters: [{type: RequestRedirect}, {type: CORS, urlRewrite: {hostname: a.test}}, {type: Other}, {type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replacePrefixMatch: /}}}]}"), []string{
			"spec.rules[0].filters: must not have both a RequestRedirect and a URLRewrite", "spec.rules[0].filters[0].requestRedirect: it is missing: the type is RequestRedirect",
			"spec.rules[0].filters[1].cors: it is missing: the type is CORS", "spec.rules[0].filters[1].urlRewrite: the type is CORS", `spec.rules[0].filters[2].type: "Other" is no type of a filter`,
			"spec.rules[0].filters[3].urlRewrite.path.replaceFullPath: must be there if the type is ReplaceFullPath, and only then"}},
		{"filters", route("{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: a, value: b}, {name: A, value: c}], remove: ['x y', z, Z, z]}}, {type: RequestHeaderModifier, requestHeaderModifier: {}}, {type: RequestMirror, requestMirror: {backendRef: {name: a, port: 80}, percent: 101, fraction: {numerator: 3, denominator: 2}}}, {type: CORS, cors: {allowOrigins: ['*', a.test], maxAge: -1}}]}"), []string{
			`spec.rules[0].filters[0].requestHeaderModifier.remove[0]: "x y" is no name of a header`, `spec.rules[0].filters[0].requestHeaderModifier.remove[3]: "z" is there twice`, `spec.rules[0].filters[0].requestHeaderModifier.set[1].name: warning: "A" is there twice: the first one counts [HM0103]`,
			"spec.rules[0].filters[1].type: there can be only one RequestHeaderModifier", "spec.rules[0].filters[2].requestMirror.fraction: there is a percent too: write one of them",
			"spec.rules[0].filters[2].requestMirror.fraction.numerator: must be from 0 to the denominator, 2, and is 3", "spec.rules[0].filters[2].requestMirror.percent: must be from 0 to 100, and is 101",
			`spec.rules[0].filters[3].cors.allowOrigins: "*" must be the only element`, `spec.rules[0].filters[3].cors.allowOrigins[1]: "a.test" is no origin as in https://example.com, and not "*"`,
			"spec.rules[0].filters[3].cors.maxAge: must not be negative, and is -1"}},
		{"a redirect beside backends", route("{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 200, scheme: ftp}}], backendRefs: [{name: a, port: 80}]}"), []string{
			"spec.rules[0].backendRefs: must not be there with a RequestRedirect", "spec.rules[0].filters[0].requestRedirect.scheme: must be http or https",
			"spec.rules[0].filters[0].requestRedirect.statusCode: must be 301, 302, 303, 307 or 308, and is 200"}},
		{"backends", route("{backendRefs: [{name: a}, {name: a.b, port: 80, weight: -1}, {group: networking.istio.io, kind: Hostname, name: a.test, namespace: ns, port: 80}, {group: x.io, kind: Thing, name: t}]}"), []string{
			"spec.rules[0].backendRefs[0].port: it is missing", `spec.rules[0].backendRefs[1].name: "a.b" must be the name of a Service, and not a host`, "spec.rules[0].backendRefs[1].weight: must be from 0 to 1000000, and is -1",
			"spec.rules[0].backendRefs[2].namespace: a Hostname has no namespace: it is that of the route",
			`spec.rules[0].backendRefs[3]: warning: there are no backends of the kind Thing "x.io": requests get 500, and connections are closed [HM0601]`}},
		{"times and retries", route("{timeouts: {request: 1s, backendRequest: 2s}, retry: {codes: [200], attempts: -1, backoff: 1.5s}}"), []string{
			"spec.rules[0].retry.attempts: must not be negative, and is -1", `spec.rules[0].retry.backoff: "1.5s" is no duration as in 1m30s or 500ms`, "spec.rules[0].retry.codes[0]: must be from 400 to 599, and is 200",
			"spec.rules[0].timeouts.backendRequest: must not be longer than that of the request, 1s"}},
		{"what is not supported in a route", route("{sessionPersistence: {type: Cookie}, filters: [{type: ExtensionRef, extensionRef: {group: a, kind: b, name: c}}], backendRefs: [{name: a, port: 80, filters: [{type: CORS, cors: {}}]}]}"), []string{
			"spec.rules[0].backendRefs[0].filters[0].cors: warning: not supported: a backend can change headers only, and a route that wants more is not served [HM0101]",
			"spec.rules[0].filters[0].extensionRef: warning: not supported: as in Istio, and a route that has such a filter is not served [HM0101]",
			"spec.rules[0].sessionPersistence: warning: not supported: as in Istio: write a DestinationRule with consistentHash [HM0101]"}},

		{"gRPC", gatewayHead + "GRPCRoute\nmetadata: {name: r, namespace: ns}\nspec:\n  parentRefs: [{name: g}]\n  rules: [{name: a, matches: [{method: {}}, {method: {service: a/b}}, {method: {method: '1'}}, {method: {type: RegularExpression, service: '('}}]}, {name: a}]\n", []string{
			"spec.rules[0].matches[0].method: must have a service, a method or both", `spec.rules[0].matches[1].method.service: "a/b" is no service of gRPC`, `spec.rules[0].matches[2].method.method: "1" is no method of gRPC`,
			"spec.rules[0].matches[3].method.service: is no RE2 regular expression: missing closing ): `(`", `spec.rules[1].name: "a" is the name of another rule`}},
		{"connections", gatewayHead + "TCPRoute\nmetadata: {name: r, namespace: ns}\nspec: {parentRefs: [{name: g}], rules: [{}, {backendRefs: [{name: a, port: 1}]}]}\n", []string{
			"spec.rules: must have exactly one rule", "spec.rules[0].backendRefs: must have at least one element"}},
		{"a grant", gatewayHead + "ReferenceGrant\nmetadata: {name: r, namespace: ns}\nspec: {from: [{group: a, kind: B, namespace: C_}], to: []}\n", []string{
			`spec.from[0].kind: warning: has no effect: B "a" refers to nothing here [HM0102]`, `spec.from[0].namespace: "C_" is no namespace`, "spec.to: must have at least one element"}},
		{"TLS to backends", gatewayHead + "BackendTLSPolicy\nmetadata: {name: p, namespace: ns}\nspec: {targetRefs: [{group: '', kind: Service, name: a}, {group: '', kind: Service, name: a}], validation: {hostname: '*.a', subjectAltNames: [{type: URI, uri: a}]}}\n", []string{
			"spec.targetRefs[1]: repeats a target of the list: each needs its own sectionName", "spec.validation.caCertificateRefs: it is missing: write it, or wellKnownCACertificates",
			`spec.validation.hostname: "*.a" must not have a wildcard`, `spec.validation.subjectAltNames[0].uri: "a" is no absolute URI`}},
		{"a ConfigMap", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: ns}\ndata: {ca.crt: nothing}\n", []string{"data.ca.crt: warning: are not certificates: there is something that is not PEM [HM0604]"}},
		{"a ConfigMap of others", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: ns}\ndata: {a: b}\n", []string{"warning: ignored: it has no certificates of authorities, in the key ca.crt [HM0604]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, text := range problems(t, "file.yaml", tc.text) {
				_, text, _ = strings.Cut(text, ": ")
				_, text, _ = strings.Cut(text, ": ")
				got = append(got, text)
			}
			slices.Sort(got)
			slices.Sort(tc.want)
			compare(t, got, tc.want)
		})
	}
}
