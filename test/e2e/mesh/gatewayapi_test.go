package mesh

import (
	"fmt"
	"strings"
	"testing"
)

// A Gateway of the Gateway API is served by the proxies that have its label: get says which, and explain which HTTPRoute made a route.
func TestAProxyWithTheLabelOfAGatewayServesIt(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.of = node{id: "edge-1", kind: "router", labels: `{"gateway.networking.k8s.io/gateway-name":"edge"}`, dir: w.dir}
		port := w.freePort()
		route := func(rules string) {
			w.write("http-route", "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: web, namespace: shop}\nspec:\n"+
				"  parentRefs: [{name: edge}]\n  hostnames: [web.test]\n  rules:\n"+rules)
		}
		w.write("gateway", fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\n"+
			"spec: {gatewayClassName: istio, listeners: [{name: http, port: %d, protocol: HTTP}]}\n", port))
		backend := fmt.Sprintf("{group: networking.istio.io, kind: Hostname, name: %s, port: %d}", host, w.port)
		route("  - backendRefs: [" + backend + "]\n")
		w.startMesh()
		gateway := func() string {
			_, text, _ := run(w, "get", "Gateway", "edge", "-o", "yaml", "--admin", w.admin)
			return text
		}
		if text := gateway(); !strings.Contains(text, "reason: NoResources") || !strings.Contains(text, "attachedRoutes: 1") {
			w.Errorf("before a proxy is connected, get shows\n%s", text)
		}
		if w.through {
			w.startAgent()
		}
		w.startEnvoy()
		w.answers(w.requestTo("web.test", port), "200 v1")
		if text := gateway(); !strings.Contains(text, "message: served by edge-1") {
			w.Errorf("get shows\n%s", text)
		}
		if _, out, _ := run(w, "get", "httproutes", "web", "-o", "yaml", "--admin", w.admin); !strings.Contains(out, "controllerName: istio.io/gateway-controller") || !strings.Contains(out, "message: Route was valid") {
			w.Errorf("get shows\n%s", out)
		}
		_, out, _ := run(w, "explain", "--proxy", "edge-1", fmt.Sprintf("web.test:%d/", port), "--admin", w.admin)
		if !strings.Contains(out, "HTTPRoute shop/web (http-route.yaml:1)") {
			w.Errorf("explain does not name the HTTPRoute:\n%s", out)
		}
		route("  - {matches: [{path: {value: /new}}], backendRefs: [" + backend + "]}\n  - {backendRefs: [{name: nobody, port: 80}]}\n")
		w.answers(w.requestTo("web.test", port), "500 ")
		code, out, stderr := run(w, "validate", w.path("documents"))
		if want := "http-route.yaml:9: HTTPRoute shop/web: spec.rules[1].backendRefs[0]: warning: BackendNotFound"; code != 0 || !strings.Contains(out+stderr, want) {
			w.Errorf("validate: %d, without %q:\n%s%s", code, want, out, stderr)
		}
	})
}
