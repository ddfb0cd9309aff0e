package gatewayapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// read returns documents, which must be valid. A document without an apiVersion is of the Gateway API.
func read(t *testing.T, documents string) *config.Index {
	t.Helper()
	var b strings.Builder
	for part := range strings.SplitSeq(documents, "\n---\n") {
		if !strings.Contains(part, "apiVersion:") {
			part = "apiVersion: gateway.networking.k8s.io/v1\n" + strings.TrimLeft(part, "\n")
		}
		b.WriteString("---\n" + part + "\n")
	}
	docs, broken := config.Read("test.yaml", []byte(b.String()))
	if broken != nil {
		t.Fatal(broken)
	}
	index := &config.Index{}
	for _, d := range docs {
		if config.Invalid(d.Problems) {
			t.Fatal(d.Problems)
		}
		index.Put(d.Config)
	}
	return index
}

// ended returns a Gateway with listeners that end TLS.
func ended(listeners ...string) string {
	var all []string
	for _, l := range listeners {
		all = append(all, "{name: "+l+", tls: {mode: Terminate, options: {gateway.istio.io/tls-terminate-mode: ISTIO_MUTUAL}}}")
	}
	return "kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [" + strings.Join(all, ", ") + "]}\n---\n"
}

// describe returns a result as text: what is served, and what is wrong.
func describe(r *Result) string {
	var b strings.Builder
	for _, l := range r.Listeners {
		fmt.Fprintf(&b, "listener %s %s:%d %v", l.Name, l.Server.GetPort().GetProtocol(), l.Server.GetPort().GetNumber(), l.Server.GetHosts())
		if tls := l.Server.GetTls(); tls != nil {
			fmt.Fprintf(&b, " %s %s%s", tls.GetMode(), tls.GetCredentialName(), strings.Join(tls.GetCredentialNames(), ","))
			if tls.GetCaCertCredentialName() != "" {
				b.WriteString(" ca=" + tls.GetCaCertCredentialName())
			}
		}
		fmt.Fprintf(&b, " by %v\n", l.Services)
	}
	for _, routes := range r.Routes {
		fmt.Fprintf(&b, "%s at %v", routes.Rule.GetHosts(), routes.Rule.GetGateways())
		if routes.Namespace != "" {
			b.WriteString(" for " + routes.Namespace)
		}
		b.WriteString("\n")
		for i, route := range routes.Rule.GetHttp() {
			fmt.Fprintf(&b, "  %s: %s -> %s\n", routes.Origins[i].Name, matchText(route), targetText(route))
		}
		for _, route := range routes.Rule.GetTls() {
			fmt.Fprintf(&b, "  tls %v -> %s\n", route.GetMatch()[0].GetSniHosts(), streamText(route.GetRoute()))
		}
		for _, route := range routes.Rule.GetTcp() {
			fmt.Fprintf(&b, "  tcp -> %s\n", streamText(route.GetRoute()))
		}
	}
	for _, p := range r.Policies {
		fmt.Fprintf(&b, "policy %s %s", p.Of.Name, p.Rule.GetHost())
		for _, s := range p.Rule.GetTrafficPolicy().GetPortLevelSettings() {
			fmt.Fprintf(&b, " %d=%s", s.GetPort().GetNumber(), s.GetTls().GetCredentialName())
		}
		fmt.Fprintf(&b, " %s\n", p.Rule.GetTrafficPolicy().GetTls().GetCredentialName())
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "! %s\n", p)
	}
	return b.String()
}

func matchText(r *networking.HTTPRoute) string {
	if len(r.GetMatch()) == 0 {
		return "all"
	}
	m := r.GetMatch()[0]
	text := m.GetUri().GetExact() + m.GetUri().GetPrefix() + "*"
	if m.GetUri().GetExact() != "" {
		text = "=" + m.GetUri().GetExact()
	}
	if m.GetUri().GetRegex() != "" {
		text = "~" + m.GetUri().GetRegex()
	}
	if removed := r.GetHeaders().GetRequest().GetRemove(); len(removed) > 0 {
		text += fmt.Sprintf(" removes %v", removed)
	}
	return fmt.Sprintf("%s%s%s%s", m.GetMethod().GetExact(), text, strings.Repeat(" header", len(m.GetHeaders())), strings.Repeat(" query", len(m.GetQueryParams())))
}

func targetText(r *networking.HTTPRoute) string {
	switch {
	case r.GetDirectResponse() != nil:
		return fmt.Sprint(r.GetDirectResponse().GetStatus())
	case r.GetRedirect() != nil:
		return fmt.Sprintf("redirect %d", r.GetRedirect().GetRedirectCode())
	}
	var to []string
	for _, d := range r.GetRoute() {
		to = append(to, fmt.Sprintf("%s:%d=%d", d.GetDestination().GetHost(), d.GetDestination().GetPort().GetNumber(), d.GetWeight()))
	}
	return strings.Join(to, " ")
}

func streamText(routes []*networking.RouteDestination) string {
	var to []string
	for _, d := range routes {
		to = append(to, fmt.Sprintf("%s:%d=%d", d.GetDestination().GetHost(), d.GetDestination().GetPort().GetNumber(), d.GetWeight()))
	}
	return strings.Join(to, " ")
}

const services = "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n---\n" +
	"apiVersion: v1\nkind: Service\nmetadata: {name: b, namespace: data}\nspec: {clusterIP: 10.0.0.2, ports: [{name: http, port: 80}]}\n---\n"

const edge = "kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n"

// listenerOfEdge is the listener of edge.
const listenerOfEdge = "listener shop/edge~http HTTP:80 [shop/*] by [edge-istio.shop.svc.cluster.local]\n"

func TestDocumentsOfTheGatewayAPIBecomeThoseOfIstio(t *testing.T) {
	for _, tc := range []struct{ name, documents, want string }{
		{"a route", services + edge + "kind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: a, port: 80}]}]}",
			listenerOfEdge + "[*] at [shop/edge~http]\n  r: /* -> a.shop.svc.cluster.local:80=1\n"},
		{"a class of another controller", "kind: GatewayClass\nmetadata: {name: c}\nspec: {controllerName: example.com/c}\n---\n" +
			"kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: c, listeners: [{name: http, port: 80, protocol: HTTP}]}",
			"! Gateway shop/edge: spec.gatewayClassName: warning: ignored: the GatewayClass \"c\" is for the controller example.com/c [HM0607]\n"},
		{"no class", "kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: c, listeners: [{name: http, port: 80, protocol: HTTP}]}",
			"! Gateway shop/edge: spec.gatewayClassName: warning: ignored: there is no GatewayClass \"c\" [HM0601]\n"},
		{"addresses", "kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, addresses: [{type: Hostname, value: a}, {type: Hostname, value: b.example}], listeners: [{name: http, port: 80, protocol: HTTP}]}",
			"listener shop/edge~http HTTP:80 [shop/*] by [a.shop.svc.cluster.local b.example]\n"},
		{"a name of its own", "kind: Gateway\nmetadata: {name: edge, namespace: shop, annotations: {gateway.istio.io/name-override: own}}\nspec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}",
			"listener shop/edge~http HTTP:80 [shop/*] by [own.shop.svc.cluster.local]\n"},
		{"the order of matches", services + edge + `kind: HTTPRoute
metadata: {name: r, namespace: shop, creationTimestamp: "2026-01-02T00:00:00Z"}
spec:
  parentRefs: [{name: edge}]
  rules:
  - backendRefs: [{name: a, port: 80}]
  - matches: [{path: {value: /a}}, {path: {type: Exact, value: /a}}, {path: {value: /a/b}}, {path: {value: /a}, method: GET}, {path: {value: /a}, headers: [{name: h, value: v}]}, {path: {value: /a}, queryParams: [{name: q, value: v}]}, {path: {type: RegularExpression, value: /r.*}}]
    backendRefs: [{name: a, port: 80}]
---
kind: HTTPRoute
metadata: {name: z, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {parentRefs: [{name: edge}], rules: [{matches: [{path: {value: /a}}], backendRefs: [{name: a, port: 80}]}]}`,
			listenerOfEdge + "[*] at [shop/edge~http]\n  r: =/a -> A\n  r: /a/b* -> A\n  r: GET/a* -> A\n  r: /a* header -> A\n  r: /a* query -> A\n  z: /a* -> A\n  r: /a* -> A\n  r: /* -> A\n  r: ~/r.* -> A\n"},
		{"weights", services + edge + "kind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], rules: [{matches: [{path: {value: /1}}], backendRefs: [{name: a, port: 80, weight: 0}]}, {matches: [{path: {value: /2}}]}, {matches: [{path: {value: /3}}], backendRefs: [{name: a, port: 80, weight: 3}, {name: a, port: 80, weight: 0}, {name: a, port: 80}]}]}",
			listenerOfEdge + "[*] at [shop/edge~http]\n  r: /1* -> 500\n  r: /2* -> 500\n  r: /3* -> a.shop.svc.cluster.local:80=3 a.shop.svc.cluster.local:80=1\n"},
		{"references that lead nowhere", services + edge + "kind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: nobody, port: 80}, {name: b, namespace: data, port: 80}, {group: x.io, kind: Thing, name: t}]}]}",
			listenerOfEdge + "[*] at [shop/edge~http]\n  r: /* -> nobody.shop.svc.cluster.local:80=1 :0=1 :0=1\n" +
				"! HTTPRoute shop/r: spec.rules[0].backendRefs[0]: warning: BackendNotFound: backend(nobody.shop.svc.cluster.local) not found [HM0601]\n" +
				"! HTTPRoute shop/r: spec.rules[0].backendRefs[1]: warning: RefNotPermitted: backendRef b/data not accessible to a HTTPRoute in namespace \"shop\" (missing a ReferenceGrant?) [HM0602]\n" +
				"! HTTPRoute shop/r: spec.rules[0].backendRefs[2]: warning: InvalidKind: referencing unsupported backendRef: group \"x.io\" kind \"Thing\" [HM0601]\n"},
		{"a grant", services + edge + "kind: ReferenceGrant\nmetadata: {name: g, namespace: data}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{group: \"\", kind: Service, name: b}]}\n---\n" +
			"kind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: b, namespace: data, port: 80}]}]}",
			listenerOfEdge + "[*] at [shop/edge~http]\n  r: /* -> b.data.svc.cluster.local:80=1\n"},
		{"a parent that does not accept the route", edge + "kind: HTTPRoute\nmetadata: {name: r, namespace: data}\nspec: {parentRefs: [{name: edge, namespace: shop, sectionName: http}, {name: nobody}, {name: edge, namespace: shop, sectionName: other}], rules: []}",
			listenerOfEdge + "! HTTPRoute data/r: spec.parentRefs[1].name: warning: there is no Gateway data/nobody of the Gateway API [HM0601]\n" +
				"! HTTPRoute data/r: spec.parentRefs[0]: warning: NotAllowedByListeners: hostnames matched parent hostname \"\", but namespace \"data\" is not allowed by the parent [HM0603]\n" +
				"! HTTPRoute data/r: spec.parentRefs[2]: warning: NoMatchingParent: sectionName \"other\" not found [HM0601]\n"},
		{"namespaces by a selector", "apiVersion: v1\nkind: Namespace\nmetadata: {name: data, labels: {x: yes-1}}\n---\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP, hostname: \"*.test\", allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {x: yes-1}}}}}, {name: none, port: 81, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {x: z}}}}}]}",
			"listener shop/edge~http HTTP:80 [data/*.test] by [edge-istio.shop.svc.cluster.local]\nlistener shop/edge~none HTTP:81 [~/*] by [edge-istio.shop.svc.cluster.local]\n"},
		{"conflicts", "kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [{name: a, port: 80, protocol: HTTP}, {name: b, port: 80, protocol: TCP}, {name: c, port: 80, protocol: HTTP, hostname: c.test}, {name: d, port: 81, protocol: UDP}]}",
			"listener shop/edge~a HTTP:80 [shop/*] by [edge-istio.shop.svc.cluster.local]\nlistener shop/edge~c HTTP:80 [shop/c.test] by [edge-istio.shop.svc.cluster.local]\n" +
				"! Gateway shop/edge: spec.listeners[1]: warning: ProtocolConflict: Listener conflicts with the listener \"a\" of the same Gateway [HM0605]\n"},
		{"certificates that are not there", "kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: none}]}}, {name: b, port: 444, protocol: HTTPS, tls: {certificateRefs: [{name: none, namespace: data}]}}]}",
			"! Gateway shop/edge: spec.listeners[0].tls: warning: InvalidCertificateRef: Secret shop/none not found [HM0604]\n" +
				"! Gateway shop/edge: spec.listeners[1].tls: warning: RefNotPermitted: certificateRef data/none not accessible to a Gateway in namespace \"shop\" (missing a ReferenceGrant?) [HM0602]\n"},
		{"passthrough", services + "kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [{name: tls, port: 443, protocol: TLS, hostname: \"*.a.test\", tls: {mode: Passthrough}}]}\n---\n" +
			"kind: TLSRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], hostnames: [\"*.test\", x.a.test, other.example], rules: [{backendRefs: [{name: a, port: 80}]}]}",
			"listener shop/edge~tls TLS:443 [shop/*.a.test] PASSTHROUGH  by [edge-istio.shop.svc.cluster.local]\n[*.a.test x.a.test] at [shop/edge~tls]\n  tls [*.a.test x.a.test] -> a.shop.svc.cluster.local:80=1\n"},
		{"TLS that ends at the gateway", services + ended("a, port: 443, protocol: TLS, hostname: \"*.test\"", "b, port: 443, protocol: TLS, hostname: b.test") +
			"kind: TLSRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], hostnames: [a.test, b.test], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n" +
			"kind: TLSRoute\nmetadata: {name: s, namespace: shop}\nspec: {parentRefs: [{name: edge, sectionName: a}], hostnames: [b.test, c.test], rules: [{backendRefs: [{name: a, port: 80}]}]}",
			"listener shop/edge~a TLS:443 [shop/*.test] ISTIO_MUTUAL  by [edge-istio.shop.svc.cluster.local]\nlistener shop/edge~b TLS:443 [shop/b.test] ISTIO_MUTUAL  by [edge-istio.shop.svc.cluster.local]\n" +
				"[a.test] at [shop/edge~a]\n  tls [a.test] -> A\n[b.test] at [shop/edge~b]\n  tls [b.test] -> A\n[c.test] at [shop/edge~a]\n  tls [c.test] -> A\n"},
		{"headers that are removed twice", services + edge + "kind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], rules: [{filters: [{type: RequestHeaderModifier, requestHeaderModifier: {remove: [x-a, X-A, x-b]}}], backendRefs: [{name: a, port: 80}]}]}",
			listenerOfEdge + "[*] at [shop/edge~http]\n  r: /* removes [x-a x-b] -> A\n"},
		{"routes of the mesh", services + "kind: HTTPRoute\nmetadata: {name: own, namespace: shop}\nspec: {parentRefs: [{group: \"\", kind: Service, name: a}], rules: [{backendRefs: [{name: b, namespace: data, port: 80}]}]}\n---\n" +
			"kind: HTTPRoute\nmetadata: {name: other, namespace: data}\nspec: {parentRefs: [{group: \"\", kind: Service, name: a, namespace: shop, port: 80}, {group: \"\", kind: Service, name: nobody}], rules: [{backendRefs: [{name: b, port: 80}]}]}",
			"[a.shop.svc.cluster.local] at [mesh] for data\n  other: /* -> b.data.svc.cluster.local:80=1\n[a.shop.svc.cluster.local] at [mesh]\n  own: /* -> b.data.svc.cluster.local:80=1\n" +
				"! HTTPRoute data/other: spec.parentRefs[1]: warning: NoMatchingParent: parent service: \"nobody\" not found [HM0601]\n"},
		{"policies", services + "kind: BackendTLSPolicy\nmetadata: {name: p, namespace: shop}\nspec: {targetRefs: [{group: \"\", kind: Service, name: a, sectionName: http}, {group: \"\", kind: Service, name: a, sectionName: nothing}], validation: {hostname: a.test, wellKnownCACertificates: System}}\n---\n" +
			"kind: BackendTLSPolicy\nmetadata: {name: q, namespace: shop}\nspec: {targetRefs: [{group: \"\", kind: Service, name: a, sectionName: http}], validation: {hostname: a.test, caCertificateRefs: [{group: \"\", kind: ConfigMap, name: none}]}}",
			"policy p a.shop.svc.cluster.local 80= \n" +
				"! BackendTLSPolicy shop/p: spec.targetRefs[1]: warning: TargetNotFound: targetRefs invalid: sectionName \"nothing\" does not exist in shop/a [HM0601]\n" +
				"! BackendTLSPolicy shop/q: spec.targetRefs[0]: warning: Conflicted: Conflicts with BackendTLSPolicy \"p\" targeting the same backend [HM0605]\n" +
				"! BackendTLSPolicy shop/q: spec.validation.caCertificateRefs[0]: warning: InvalidCACertificateRef: ConfigMap shop/none not found [HM0604]\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want := strings.ReplaceAll(tc.want, "-> A\n", "-> a.shop.svc.cluster.local:80=1\n")
			if got := describe(Convert(read(t, tc.documents), config.DefaultDomain)); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// conditionText returns conditions as text: those that are as they should be by their types alone.
func conditionText(list []metav1.Condition) string {
	var out []string
	for _, c := range list {
		good := metav1.ConditionTrue
		if c.Type == string(gatewayv1.ListenerConditionConflicted) {
			good = metav1.ConditionFalse
		}
		if c.Status == good {
			out = append(out, c.Type)
		} else {
			out = append(out, fmt.Sprintf("%s=%s(%s)", c.Type, c.Status, c.Reason))
		}
	}
	return strings.Join(out, " ")
}

func TestTheStatusSaysWhatIsServed(t *testing.T) {
	r := Convert(read(t, services+`kind: GatewayClass
metadata: {name: c}
spec: {controllerName: holdfast.dev/gateway-controller}
---
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  gatewayClassName: c
  listeners: [{name: a, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: HTTPRoute}, {kind: TCPRoute}]}}, {name: b, port: 80, protocol: TCP}, {name: c, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: none}]}}, {name: d, port: 81, protocol: UDP}]
---
kind: Gateway
metadata: {name: none, namespace: shop}
spec: {gatewayClassName: c, addresses: [{type: Hostname, value: x}, {type: IPAddress, value: 1.2.3.4}], listeners: [{name: a, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: none}]}}]}
---
kind: HTTPRoute
metadata: {name: r, namespace: shop}
spec: {parentRefs: [{name: edge, sectionName: a}, {name: edge, sectionName: d}, {name: elsewhere}], rules: [{backendRefs: [{name: a, port: 80}, {name: nobody, port: 80}]}]}
---
kind: HTTPRoute
metadata: {name: s, namespace: shop}
spec: {parentRefs: [{name: other}, {group: "", kind: Service, name: a}], rules: [{backendRefs: [{name: a, port: 80}]}]}
---
kind: Gateway
metadata: {name: other, namespace: shop}
spec:
  gatewayClassName: istio
  addresses: [{type: Hostname, value: a}, {type: Hostname, value: nobody}]
  listeners: [{name: a, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: GRPCRoute}]}}]
  infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: none}}
  tls: {frontend: {default: {validation: {mode: AllowInsecureFallback, caCertificateRefs: [{group: "", kind: ConfigMap, name: none}]}}}}
---
kind: GatewayClass
metadata: {name: d}
spec: {controllerName: istio.io/gateway-controller, parametersRef: {group: x.io, kind: Thing, name: t}}
---
kind: BackendTLSPolicy
metadata: {name: q, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: b}], validation: {hostname: a.test, wellKnownCACertificates: System}}
---
kind: BackendTLSPolicy
metadata: {name: p, namespace: shop}
spec: {targetRefs: [{group: "", kind: Service, name: a}], validation: {hostname: a.test, caCertificateRefs: [{group: "", kind: Secret, name: none}]}}`), config.DefaultDomain)
	var got []string
	keys := slices.SortedFunc(maps.Keys(r.Status), func(a, b config.Key) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		switch s := r.Status[key].(type) {
		case *gatewayv1.GatewayClassStatus:
			got = append(got, key.String()+": "+conditionText(s.Conditions))
		case *gatewayv1.GatewayStatus:
			got = append(got, key.String()+": "+conditionText(s.Conditions))
			for _, l := range s.Listeners {
				got = append(got, fmt.Sprintf("  %s: %s, %d routes", l.Name, conditionText(l.Conditions), l.AttachedRoutes))
			}
		case *gatewayv1.HTTPRouteStatus:
			for _, p := range s.Parents {
				got = append(got, fmt.Sprintf("%s: %s/%s of %s: %s", key, p.ParentRef.Name, or(p.ParentRef.SectionName, ""), p.ControllerName, conditionText(p.Conditions)))
			}
		case *gatewayv1.PolicyStatus:
			for _, a := range s.Ancestors {
				ref := a.AncestorRef
				got = append(got, fmt.Sprintf("%s: %s/%s/%s of %s: %s", key, *ref.Kind, or(ref.Namespace, ""), ref.Name, a.ControllerName, conditionText(a.Conditions)))
			}
		}
	}
	want := []string{
		"BackendTLSPolicy shop/p: Service//a of istio.io/mesh-controller: Accepted=False(NoValidCACertificate) ResolvedRefs=False(InvalidKind)",
		"BackendTLSPolicy shop/p: Gateway/shop/edge of holdfast.dev/gateway-controller: Accepted=False(NoValidCACertificate) ResolvedRefs=False(InvalidKind)",
		"BackendTLSPolicy shop/q: Service//b of istio.io/mesh-controller: Accepted=False(TargetNotFound) ResolvedRefs",
		"Gateway shop/edge: Accepted Programmed ResolvedRefs",
		"  a: Accepted Conflicted Programmed ResolvedRefs=False(InvalidRouteKinds), 1 routes",
		"  b: Accepted=False(ProtocolConflict) Conflicted=True(ProtocolConflict) Programmed=False(ProtocolConflict) ResolvedRefs, 0 routes",
		"  c: Accepted Conflicted Programmed=False(Invalid) ResolvedRefs=False(InvalidCertificateRef), 0 routes",
		"  d: Accepted=False(UnsupportedProtocol) Conflicted Programmed=False(Invalid) ResolvedRefs, 0 routes",
		"Gateway shop/none: Accepted=False(UnsupportedAddress) Programmed=False(Invalid) ResolvedRefs",
		"  a: Accepted Conflicted Programmed=False(Invalid) ResolvedRefs=False(InvalidCertificateRef), 0 routes",
		"Gateway shop/other: Accepted=False(InvalidParameters) InsecureFrontendValidationMode Programmed=False(AddressNotUsable) ResolvedRefs",
		"  a: Accepted Conflicted Programmed ResolvedRefs, 0 routes",
		"GatewayClass c: Accepted",
		"GatewayClass d: Accepted=False(InvalidParameters)",
		"HTTPRoute shop/r: edge/a of holdfast.dev/gateway-controller: Accepted ResolvedRefs=False(BackendNotFound)",
		"HTTPRoute shop/r: edge/d of holdfast.dev/gateway-controller: Accepted=False(NotAllowedByListeners) ResolvedRefs=False(BackendNotFound)",
		"HTTPRoute shop/s: other/ of istio.io/gateway-controller: Accepted=False(NotAllowedByListeners) ResolvedRefs",
		"HTTPRoute shop/s: a/ of istio.io/gateway-controller: Accepted ResolvedRefs",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTheConditionsNameTheGenerationOfTheirDocument(t *testing.T) {
	r := Convert(read(t, services+`kind: GatewayClass
metadata: {name: c, generation: 2}
spec: {controllerName: holdfast.dev/gateway-controller}
---
kind: Gateway
metadata: {name: edge, namespace: shop, generation: 3}
spec: {gatewayClassName: c, listeners: [{name: a, port: 80, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {name: r, namespace: shop, generation: 4}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: a, port: 80}]}]}
---
kind: BackendTLSPolicy
metadata: {name: p, namespace: shop, generation: 5}
spec: {targetRefs: [{group: "", kind: Service, name: a}], validation: {hostname: a.test, wellKnownCACertificates: System}}`), config.DefaultDomain)
	of := make(map[string][]metav1.Condition)
	for key, status := range r.Status {
		switch s := status.(type) {
		case *gatewayv1.GatewayClassStatus:
			of[key.Name] = s.Conditions
		case *gatewayv1.GatewayStatus:
			of[key.Name] = slices.Concat(s.Conditions, s.Listeners[0].Conditions)
		case *gatewayv1.HTTPRouteStatus:
			of[key.Name] = s.Parents[0].Conditions
		case *gatewayv1.PolicyStatus:
			of[key.Name] = slices.Concat(s.Ancestors[0].Conditions, s.Ancestors[1].Conditions)
		}
	}
	for name, want := range map[string]int64{"c": 2, "edge": 3, "r": 4, "p": 5} {
		if len(of[name]) == 0 {
			t.Errorf("%s has no conditions", name)
		}
		for _, c := range of[name] {
			if c.ObservedGeneration != want {
				t.Errorf("%s, %s: got the generation %d, want %d", name, c.Type, c.ObservedGeneration, want)
			}
		}
	}
}

func TestEqualDocumentsGiveEqualResults(t *testing.T) {
	documents := services + edge + "kind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], hostnames: [a.test, b.test], rules: [{matches: [{headers: [{name: a, value: a}, {name: b, value: b}]}], backendRefs: [{name: a, port: 80}]}]}"
	first := describe(Convert(read(t, documents), config.DefaultDomain))
	for range 20 {
		if again := describe(Convert(read(t, documents), config.DefaultDomain)); again != first {
			t.Fatalf("got\n%s\nand then\n%s", first, again)
		}
	}
}

// A route that many listeners take makes so many routes: the last of these do not have it, and other documents keep theirs.
func TestRoutes_MakeSoMuch(t *testing.T) {
	for gateways, warned := range map[int]bool{6: false, 7: true} {
		var b strings.Builder
		var parents, listeners []string
		for i := range 64 {
			listeners = append(listeners, fmt.Sprintf("{name: l%[1]d, port: %[2]d, protocol: HTTP}", i, 8000+i))
		}
		for i := range gateways {
			fmt.Fprintf(&b, "kind: Gateway\nmetadata: {name: g%d, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [%s]}\n---\n", i, strings.Join(listeners, ", "))
			parents = append(parents, fmt.Sprintf("{name: g%d}", i))
		}
		var matches []string
		for i := range 64 {
			matches = append(matches, fmt.Sprintf("{path: {value: /x%d}}", i))
		}
		rule := "{matches: [" + strings.Join(matches, ", ") + "]}"
		fmt.Fprintf(&b, "kind: HTTPRoute\nmetadata: {name: large, namespace: shop}\nspec: {parentRefs: [%s], rules: [%s, %s]}\n---\n", strings.Join(parents, ", "), rule, rule)
		fmt.Fprintf(&b, "kind: HTTPRoute\nmetadata: {name: other, namespace: shop}\nspec: {parentRefs: [{name: g%d}], rules: [{}]}", gateways-1)
		made, others := 0, 0
		result := Convert(read(t, b.String()), config.DefaultDomain)
		for _, r := range result.Routes {
			for _, of := range r.Origins {
				if of.Name == "large" {
					made++
				} else {
					others++
				}
			}
		}
		told := slices.ContainsFunc(result.Problems, func(p config.Problem) bool { return p.Code == config.TooMuchTogether && p.Key.Name == "large" })
		if want := min(gateways*64*128, config.MaxRoutes/128*128); made != want || others != 64 || told != warned {
			t.Errorf("%d gateways: %d routes, want %d, and %d of another document; warned: %v", gateways, made, want, others, told)
		}
	}
}
