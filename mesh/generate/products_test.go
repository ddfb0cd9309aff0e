package generate

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// many returns n elements of a list of YAML.
func many(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func product(kind, name, spec string) string {
	version := "networking.istio.io/v1"
	if kind == "EnvoyFilter" {
		version = "networking.istio.io/v1alpha3"
	}
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: red}\nspec: %s\n", version, kind, name, spec)
}

// made is how much a proxy is given.
type made struct{ clusters, routes, chains, ranges, destinations int }

func madeOf(t testing.TB, r *Resources) (n made) {
	t.Helper()
	n.clusters = len(r.Clusters)
	for _, of := range r.Routes {
		rc := &routev3.RouteConfiguration{}
		if err := of.Body.UnmarshalTo(rc); err != nil {
			t.Fatal(err)
		}
		for _, vh := range rc.VirtualHosts {
			n.routes += len(vh.Routes)
			for _, route := range vh.Routes {
				n.destinations += len(route.GetRoute().GetWeightedClusters().GetClusters())
			}
		}
	}
	for _, of := range r.Listeners {
		l := &listenerv3.Listener{}
		if err := of.Body.UnmarshalTo(l); err != nil {
			t.Fatal(err)
		}
		n.chains += len(l.FilterChains)
		for _, c := range l.FilterChains {
			n.ranges += max(1, len(c.GetFilterChainMatch().GetPrefixRanges())) * max(1, len(c.GetFilterChainMatch().GetServerNames()))
		}
	}
	return n
}

// Documents at their bounds are generated, and what two make together is no more than the bounds say: some megabytes for a class of
// proxies.
func TestProducts_AtTheirBoundsAreGenerated(t *testing.T) {
	const http = "ports: [{number: 80, name: http, protocol: HTTP}]"
	const sidecar, router = "id: a\nmetadata: {NAMESPACE: red, INTERCEPTION_MODE: REDIRECT}", "id: router~10.9.9.9~a.red~red.svc.cluster.local\nmetadata: {NAMESPACE: red, LABELS: {app: edge}}"
	matches := func(n int) string { return many(n, "{uri: {prefix: /x%d}}") }
	for _, tc := range []struct {
		name, documents, node string
		is                    func(made) bool
	}{
		{"hosts and matches", product("ServiceEntry", "s", "{hosts: [s.test], resolution: DNS, "+http+"}") +
			product("VirtualService", "v", fmt.Sprintf("{hosts: %s, http: [{match: %s, route: [{destination: {host: s.test}}]}]}", many(200, "h%d.test"), matches(250))), sidecar,
			func(n made) bool { return n.routes == config.MaxRoutes+2 }}, // and those of s.test, and of hosts that are not known
		{"matches and destinations", product("ServiceEntry", "s", "{hosts: [s.test], resolution: DNS, "+http+"}") +
			product("VirtualService", "v", fmt.Sprintf("{hosts: [s.test], http: [{match: %s, route: %s}]}", matches(1000), many(500, "{weight: 1, destination: {host: h%d.test}}"))), sidecar,
			func(n made) bool { return n.destinations == config.MaxParts }},
		{"sniHosts and destinationSubnets", product("ServiceEntry", "s", "{hosts: ['*.test'], resolution: NONE, ports: [{number: 443, name: tls, protocol: TLS}]}") +
			product("VirtualService", "v", fmt.Sprintf("{hosts: ['*.test'], tls: [{match: [{sniHosts: %s, destinationSubnets: %s}], route: [{destination: {host: s.test}}]}]}", many(250, "h%d.test"), many(200, "10.0.%d.0/24"))), sidecar,
			func(n made) bool { return n.ranges >= config.MaxRoutes && n.chains < 10 }},
		{"hosts and matches of TLS", product("ServiceEntry", "s", fmt.Sprintf("{hosts: %s, resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}", many(220, "h%d.test"))) +
			product("VirtualService", "v", fmt.Sprintf("{hosts: %s, tls: %s}", many(220, "h%d.test"), many(220, "{match: [{sniHosts: [h%d.test]}], route: [{destination: {host: h1.test}}]}"))), sidecar,
			func(n made) bool { return n.chains >= 220 && n.chains < 230 }},
		{"hosts and ports", product("ServiceEntry", "s", fmt.Sprintf("{hosts: %s, resolution: DNS, ports: %s}", many(200, "h%d.test"), many(100, "{number: 1%03d, name: http-%[1]d, protocol: HTTP}"))), sidecar,
			func(n made) bool { return n.clusters == config.MaxClusters+2 }},
		{"a wildcard and services, together", product("ServiceEntry", "s", fmt.Sprintf("{hosts: %s, resolution: DNS, %s}", many(500, "h%d.test"), http)) +
			product("VirtualService", "v", fmt.Sprintf("{hosts: ['*.test'], http: [{match: %s, route: [{destination: {host: h1.test}}]}]}", matches(1000))), sidecar,
			func(n made) bool { return n.routes == config.MaxJoined+400+1 }}, // 400 services have their own route
		{"ports and matches, together", product("ServiceEntry", "s", fmt.Sprintf("{hosts: [s.test], resolution: DNS, ports: %s}", many(300, "{number: 1%03d, name: http-%[1]d, protocol: HTTP}"))) +
			product("VirtualService", "v", fmt.Sprintf("{hosts: [s.test], http: [{match: %s, route: [{destination: {host: s.test}}]}]}", matches(4000))), sidecar,
			func(n made) bool { return n.routes == config.MaxJoined+275+300 }},
		{"ports and subsets, together", product("ServiceEntry", "s", fmt.Sprintf("{hosts: [s.test], resolution: STATIC, endpoints: [{address: 1.2.3.4}], ports: %s}", many(100, "{number: 1%03d, name: http-%[1]d, protocol: HTTP}"))) +
			product("DestinationRule", "r", fmt.Sprintf("{host: s.test, subsets: %s}", many(1000, "{name: s%d, labels: {a: b}}"))), sidecar,
			func(n made) bool { return n.clusters == config.MaxClusters+2 }},
		{"servers and matches, together", product("Gateway", "g", fmt.Sprintf("{selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: %s}]}", many(100, "h%d.test"))) +
			product("VirtualService", "v", fmt.Sprintf("{hosts: ['*'], gateways: [g], http: [{match: %s, route: [{destination: {host: s.test}}]}]}", matches(1000))), router,
			func(n made) bool { return n.routes == config.MaxJoined }},
		{"servers and matches, above the bound", product("Gateway", "g", fmt.Sprintf("{selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: %s}]}", many(4000, "h%d.test"))) +
			product("VirtualService", "v", fmt.Sprintf("{hosts: ['*'], gateways: [g], http: [{match: %s, route: [{destination: {host: s.test}}]}]}", matches(4000))), router,
			func(n made) bool { return n.routes == 0 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := load(t, []byte(tc.documents))
				g := New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards)
				if n := madeOf(t, g.Outbound(proxy.NewView(m.proxy(t, node(t, []byte(tc.node)))))); !tc.is(n) {
					t.Errorf("%+v", n)
				}
			})
		})
	}
}

// Patches add so many bytes to the resources of a proxy: further resources are as they are without patches, which is told once.
func TestPatches_AddSoManyBytes(t *testing.T) {
	for clusters, whole := range map[int]bool{30: true, 60: false} {
		synctest.Test(t, func(t *testing.T) {
			m := load(t, []byte(product("ServiceEntry", "s", fmt.Sprintf("{hosts: %s, resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}", many(clusters, "h%d.test")))+
				product("EnvoyFilter", "f", "{configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {metadata: {filter_metadata: {x: {k: "+strings.Repeat("x", 1_000_000)+"}}}}}}]}")))
			g := New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards)
			r := g.OutboundClusters(proxy.NewView(m.proxy(t, node(t, []byte("id: a\nmetadata: {NAMESPACE: red}")))))
			size := 0
			for _, c := range r.Clusters {
				size += len(c.Body.GetValue())
			}
			if len(r.Clusters) != clusters+2 || size > config.MaxBytes+2_000_000 || (size > clusters*1_000_000) != whole || (len(r.Failures) == 0) != whole || len(r.Failures) > 1 {
				t.Errorf("%d clusters have %d bytes: %v", len(r.Clusters), size, r.Failures)
			}
			for _, f := range r.Failures {
				if f.TypeURL != xds.ClusterType || !strings.Contains(f.String(), "EnvoyFilter red/f spec.configPatches[0] is left out of ") || !strings.Contains(f.String(), "patches have added more than 33554432 bytes") {
					t.Error(f)
				}
			}
		})
	}
}

// BenchmarkProducts generates what a VirtualService at its bound makes.
func BenchmarkProducts(b *testing.B) {
	m := loadAnd(b, []byte(product("VirtualService", "v", fmt.Sprintf("{hosts: %s, http: [{match: %s, route: [{destination: {host: s.test}}]}]}", many(200, "h%d.test"), many(250, "{uri: {prefix: /x%d}}")))+
		product("ServiceEntry", "s", "{hosts: [s.test], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}")), func(store *config.Memory) {
		for !store.HasSynced() {
			runtime.Gosched()
		}
	})
	p, err := proxy.FromNode(&corev3.Node{Id: "sidecar~10.9.9.9~a.red~red.svc.cluster.local"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards).Outbound(proxy.NewView(p))
	}
}
