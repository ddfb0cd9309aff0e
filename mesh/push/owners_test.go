package push

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

const owners = `apiVersion: v1
kind: ConfigMap
metadata:
  name: istio
  namespace: istio-system
  annotations:
    mesh.holdfast.dev/host-owners: |
      shop: pay.internal *.shop.example
      billing: invoices.shop.example
`

// Whom the mesh configuration names as the owner of a host has it, whatever the ages; those of others have it for their own proxies.
func TestOwners_OfServiceEntries(t *testing.T) {
	for _, named := range []bool{false, true} {
		d := &documents{}
		if named {
			d.put(t, owners)
		}
		for i, namespace := range []string{"evil", "shop", "own"} {
			d.services = append(d.services, &service.Service{
				Hostname: "pay.internal", Namespace: namespace, Registry: "External", Age: config.Age{Created: time.Unix(int64(i), 0)}, ExportTo: everywhere,
			})
		}
		s := snapshot(d)
		want := map[string]string{"client": "evil", "shop": "shop", "own": "own", "evil": "evil"}
		if named {
			want["client"] = "shop"
		}
		for client, namespace := range want {
			if got := s.Service(client, "pay.internal"); got == nil || got.Namespace != namespace {
				t.Errorf("owners named: %t: for a client of %s it is %+v, want that of %s", named, client, got, namespace)
			}
		}
	}
	d := (&documents{}).put(t, owners)
	d.services = append(d.services, &service.Service{Hostname: "pay.internal", Namespace: "evil", Registry: "External", ExportTo: everywhere})
	if got := snapshot(d).Service("client", "pay.internal"); got != nil {
		t.Errorf("a host whose owner has none is %s's", got.Namespace)
	}
	d.services[0].Registry = kubernetes
	if got := snapshot(d).Service("client", "pay.internal"); got == nil {
		t.Error("a Service of Kubernetes has its own name, whose host nobody chooses")
	}
}

func TestOwners_OfVirtualServices(t *testing.T) {
	d := (&documents{}).serve("api.shop.example/x").put(t, owners+"---\n"+
		meta+"kind: VirtualService\nmetadata: {name: vs, namespace: evil}\nspec: {hosts: [pay.internal, free.internal], http: [{directResponse: {status: 299}}]}\n---\n"+
		meta+"kind: VirtualService\nmetadata: {name: all, namespace: evil}\nspec: {hosts: [Api.Shop.example], http: [{directResponse: {status: 299}}]}\n---\n"+
		meta+"kind: VirtualService\nmetadata: {name: sni, namespace: evil}\nspec: {hosts: ['*.example'], tls: [{match: [{sniHosts: [a.shop.example, a.example]}], route: [{destination: {host: a}}]}, {match: [{sniHosts: [b.shop.example]}], route: [{destination: {host: a}}]}]}\n---\n"+
		meta+"kind: VirtualService\nmetadata: {name: vs, namespace: shop}\nspec: {hosts: [pay.internal], http: [{directResponse: {status: 200}}]}\n")
	s := snapshot(d)
	says := func(namespace string) (out []string) {
		for _, vs := range s.VirtualServices(MeshGateway, namespace) {
			var sni []string
			for _, r := range vs.Rule.Tls {
				sni = append(sni, r.Match[0].SniHosts...)
			}
			if len(vs.Hosts) != len(vs.Rule.Hosts) {
				t.Errorf("%v and %v", vs.Hosts, vs.Rule.Hosts)
			}
			out = append(out, fmt.Sprintf("%s%v%v", vs.Namespace, vs.Hosts, sni))
		}
		return out
	}
	want := []string{"evil[free.internal][]", "evil[*.example][a.example]", "shop[pay.internal][]"}
	if got := says("client"); !slices.Equal(got, want) {
		t.Errorf("a client sees %q, want %q", got, want)
	}
	if got := says("evil"); len(got) != 4 || got[0] != "evil[pay.internal free.internal][]" || !strings.Contains(got[2], "b.shop.example") {
		t.Errorf("its own client sees %q", got)
	}
	for _, vs := range s.VirtualServices(MeshGateway, "client") {
		if vs.Name == "sni" && (s.Grants(vs, "client", "api.shop.example") || !s.Grants(vs, "client", "api.example") || !s.Grants(vs, "evil", "api.shop.example")) {
			t.Error("a wildcard that is wider than what somebody owns takes it")
		}
	}
	again := New(d, "cluster.local", s, map[config.Kind]bool{config.VirtualService: true}, false)
	if !slices.Equal(s.VirtualServices(MeshGateway, "client"), again.VirtualServices(MeshGateway, "client")) {
		t.Error("what has not changed is made anew")
	}
	d.put(t, strings.ReplaceAll(owners, "shop:", "evil:"))
	s = New(d, "cluster.local", again, map[config.Kind]bool{config.MeshConfig: true}, false)
	if got := says("client"); len(got) != 3 || !strings.HasPrefix(got[0], "evil[pay.internal") {
		t.Errorf("with another owner a client sees %q", got)
	}
}

// A Gateway of a tenant that selects the routers of another namespace does not take the hosts of a third one there. With the annotation
// it selects none of them.
func TestOwners_OfGateways(t *testing.T) {
	const gateways = meta + `kind: Gateway
metadata: {name: gw, namespace: evil}
spec:
  selector: {app: edge}
  servers:
  - {hosts: [pay.internal], port: {number: 80, name: http, protocol: HTTP}}
  - {hosts: ["./a.shop.example", "*.free.example"], port: {number: 81, name: other, protocol: HTTP}}
---
` + meta + `kind: Gateway
metadata: {name: gw, namespace: edge}
spec: {selector: {app: edge}, servers: [{hosts: ["shop/*.shop.example"], port: {number: 80, name: http, protocol: HTTP}}]}
`
	router := func(namespace string) *proxy.View {
		p, err := proxy.FromNode(&corev3.Node{Id: "n"})
		if err != nil {
			t.Fatal(err)
		}
		q := *p
		q.Namespace, q.Labels, q.Type = namespace, map[string]string{"app": "edge"}, proxy.Router
		return proxy.NewView(&q)
	}
	says := func(s *Snapshot, namespace string) (out []string) {
		for _, gw := range s.Gateways(router(namespace)) {
			for _, server := range gw.Gateway.Servers {
				out = append(out, fmt.Sprintf("%s%v", gw.Namespace, server.Hosts))
			}
		}
		return out
	}
	d := (&documents{}).put(t, owners+"---\n"+gateways)
	if got := says(snapshot(d), "edge"); !slices.Equal(got, []string{"evil[*.free.example]", "edge[shop/*.shop.example]"}) {
		t.Errorf("a shared gateway serves %q", got)
	}
	if got := says(snapshot(d), "evil"); len(got) != 3 || got[0] != "evil[pay.internal]" || got[2] != "edge[shop/*.shop.example]" {
		t.Errorf("the tenant's own gateway serves %q", got)
	}
	d.put(t, strings.Replace(owners, "    mesh.holdfast.dev/host-owners", "    mesh.holdfast.dev/scope-gateway-to-namespace: \"true\"\n    mesh.holdfast.dev/host-owners", 1))
	if got := says(snapshot(d), "edge"); !slices.Equal(got, []string{"edge[shop/*.shop.example]"}) {
		t.Errorf("with scopes a shared gateway serves %q", got)
	}
}

// An Ingress of another namespace than the owner's has neither the requests nor the TLS connections of a host.
func TestOwners_OfIngresses(t *testing.T) {
	const svc = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NAMESPACE}, spec: {ports: [{port: 80}]}}\n---\n"
	ingress := func(namespace string) string {
		return strings.ReplaceAll(svc+"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: NAMESPACE}, spec: {ingressClassName: istio, tls: [{hosts: [a.shop.example, b.test], secretName: NAMESPACE}, {hosts: [pay.internal], secretName: NAMESPACE}], rules: [{host: a.shop.example, http: {paths: [{path: /NAMESPACE, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}, {host: b.test, http: {paths: [{path: /NAMESPACE, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}\n", "NAMESPACE", namespace)
	}
	s := snapshot((&documents{}).put(t, owners+"---\n"+ingress("evil")+"---\n"+ingress("shop")))
	got := make(map[string]string)
	for _, vs := range s.ingress.virtual {
		for _, route := range vs.Rule.Http {
			got[string(vs.Hosts[0])] += route.Match[0].GetUri().GetPrefix()
		}
	}
	if want := map[string]string{"a.shop.example": "/shop", "b.test": "/evil/shop"}; !maps.Equal(got, want) {
		t.Errorf("routes %v, want %v", got, want)
	}
	var servers []string
	for _, server := range s.ingress.gateway.Gateway.Servers[1:] {
		servers = append(servers, fmt.Sprint(server.GetTls().GetCredentialName(), server.GetHosts()))
	}
	if want := []string{"evil[b.test]", "shop[a.shop.example b.test]", "shop[pay.internal]"}; !slices.Equal(servers, want) {
		t.Errorf("servers %q, want %q", servers, want)
	}
}
