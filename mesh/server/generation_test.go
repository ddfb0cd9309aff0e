package server

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

const worlds = services + `
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "extensionProviders: [{name: als, envoyHttpAls: {service: default/b.internal, port: 80}}]"}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: t, namespace: other}
spec: {hosts: [t.internal], addresses: [10.7.7.7], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 90, name: tcp, protocol: TCP}], endpoints: [{address: 10.0.0.3}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: narrow, namespace: narrow}
spec: {egress: [{port: {number: 80, protocol: HTTP, name: http}, hosts: ["*/a.internal"]}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
`

// randomChange returns a document of a mesh.
func randomChange(random *rand.Rand) string {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	name := pick("a", "x", "z")
	switch random.IntN(18) {
	case 0, 1, 2:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s}\nspec: {hosts: [%s], gateways: [mesh, edge], http: [{timeout: %ds, route: [{destination: {host: %s}}]}]}",
			name, pick("a.internal", "b.internal", "nobody.internal"), 1+random.IntN(3), pick("a.internal", "b.internal"))
	case 3:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s}\nspec: {hosts: [t.internal], tcp: [{route: [{destination: {host: %s}}]}]}", name, pick("t.internal", "b.internal"))
	case 4:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: %s}\nspec: {host: %s, trafficPolicy: {connectionPool: {tcp: {maxConnections: %d}}}}", name, pick("a.internal", "t.internal"), 1+random.IntN(3))
	case 5:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: narrow, namespace: narrow}\nspec: {egress: [{port: {number: 80, protocol: HTTP, name: http}, hosts: [%q]}]}", pick("*/a.internal", "*/b.internal", "*/*"))
	case 8:
		return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: %s, namespace: %s}\nspec: {selector: {matchLabels: {app: %s}}, action: %s, rules: [{to: [{operation: {ports: ['%d']}}]}]}",
			name, pick("default", "other", "istio-system"), pick("x", "edge"), pick("ALLOW", "DENY"), 1+random.IntN(3))
	case 9:
		return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: %s}\nspec: {jwtRules: [{issuer: i%d}]}", name, random.IntN(3))
	case 10:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: %s, namespace: %s}\nspec: {configPatches: [{applyTo: CLUSTER, match: {cluster: {service: %s}}, patch: {operation: MERGE, value: {alt_stat_name: x%d}}}, "+
			"{applyTo: %s, patch: {operation: REMOVE}}, {applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: e, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 1}}}}]}",
			name, pick("default", "istio-system"), pick("a.internal", "t.internal"), random.IntN(3), pick("HTTP_ROUTE", "VIRTUAL_HOST", "FILTER_CHAIN", "LISTENER"))
	case 11:
		return fmt.Sprintf("apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: %s, namespace: %s}\nspec: {%saccessLogging: [{providers: [{name: %s}], match: {mode: %s}, disabled: %v}]}",
			name, pick("default", "other", "narrow"), pick("", "", "selector: {matchLabels: {app: edge}}, "), pick("envoy", "als", "als"), pick("CLIENT", "SERVER", "CLIENT_AND_SERVER"), random.IntN(2) == 0)
	case 12: // a service of TCP, whose address another one may have, with accounts that its clusters name
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: u, namespace: other}\nspec: {hosts: [u.internal], addresses: [10.7.7.%d], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 90, name: tcp, protocol: %s}], endpoints: [{address: 10.0.0.%d, serviceAccount: %s}]}",
			7+random.IntN(2), pick("TCP", "TCP", "TLS", ""), 4+random.IntN(2), pick("one", "two"))
	case 13:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: %s, namespace: %s}\nspec: {host: %s, subsets: [{name: v1, labels: {version: v1}}], trafficPolicy: {tls: {mode: %s}, loadBalancer: {simple: %s}}}",
			name, pick("default", "other", "istio-system"), pick("a.internal", "b.internal", "u.internal", "'*.internal'"), pick("ISTIO_MUTUAL", "DISABLE"), pick("PASSTHROUGH", "RANDOM"))
	case 14:
		return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: %s}\nspec: {mtls: {mode: %s}}", pick("default", "other", "istio-system"), pick("DISABLE", "PERMISSIVE"))
	case 15:
		return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: \"extensionProviders: [{name: als, envoyHttpAls: {service: default/b.internal, port: 80}}]\\nconnectTimeout: %ds\\naccessLogFile: '%s'\"}", 1+random.IntN(2), pick("", "/dev/stdout"))
	case 16:
		return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: default, annotations: {networking.istio.io/traffic-distribution: %s}}", pick("PreferClose", "Any"))
	case 17:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: extra-%s}\nspec: {hosts: [extra-%s.internal], exportTo: ['%s'], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 91, name: tcp, protocol: TCP}], endpoints: [{address: 10.0.0.%d}]}", name, name, pick("*", "."), 2+random.IntN(3))
	case 6:
		return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\nstringData: {a: b%d}", name, random.IntN(3))
	default:
		return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: b}\nspec: {hosts: [b.internal], location: MESH_INTERNAL, resolution: %s, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.%d}]}",
			pick("STATIC", "DNS"), 2+random.IntN(3))
	}
}

// What proxies are served after any number of changes is what they would be served if everything was
// generated anew: nothing is kept that a change concerns (mesh.md M1, M5).
func TestWhatIsKeptIsAsIfGeneratedAnew(t *testing.T) {
	on(t, worlds, func(r *rig) {
		random := rand.New(rand.NewPCG(7, 8))
		var clients []*client
		for _, namespace := range []string{"default", "other", "narrow"} {
			for _, meta := range []map[string]any{
				{"LABELS": map[string]any{"app": "x"}}, {"INTERCEPTION_MODE": "REDIRECT"}, {"VHDS": "true"}, {"TYPE": "router", "LABELS": map[string]any{"app": "edge"}},
			} {
				meta["NAMESPACE"] = namespace
				clients = append(clients, r.connect(fmt.Sprint("n", len(clients)), meta))
			}
		}
		kept, steps := 0, 300
		if testing.Short() {
			steps = 100
		}
		for step := range steps {
			for range 1 + random.IntN(2) {
				gone := config.Key{Kind: config.VirtualService, Namespace: "default", Name: "x"}
				if random.IntN(2) == 0 {
					gone = config.Key{Kind: config.EnvoyFilter, Namespace: []string{"default", "istio-system"}[random.IntN(2)], Name: []string{"a", "x", "z"}[random.IntN(3)]}
				}
				if random.IntN(3) == 0 && r.store.Get(gone) != nil {
					if err := r.store.Delete(t.Context(), gone, ""); err != nil {
						t.Fatal(err)
					}
					continue
				}
				r.put(randomChange(random))
			}
			for range 5 { // the steps of changes of accounts and of modes of mutual TLS
				r.settle()
				for _, c := range clients {
					c.answer()
				}
			}
			anew := newGeneration(push.New(r.server.source, config.DefaultDomain, nil, nil, true), r.server.cfg.Shards, nil, nil, NewMetrics(nil), func([]generate.Failure) {})
			for _, c := range clients {
				for name, cluster := range c.tables[0][xds.ClusterType].Set {
					if cluster.EDSName == "" {
						continue
					}
					if got, want := r.server.gen.assignment(c.proxy, c.clusters, name), anew.Assignment(proxy.NewView(c.proxy), name); got.Version != want.Version {
						t.Fatalf("step %d: endpoints of %s of %s in %s: not as if generated anew", step, name, c.proxy.Node, c.proxy.Namespace)
					}
				}
				for half, want := range generated(anew, c.proxy).tables {
					for url := range maps.Keys(want) {
						if got, want := contents(c.tables[half][url]), contents(want[url]); !slices.Equal(got, want) {
							t.Fatalf("step %d: %s of %s in %s\n%q, want\n%q", step, xds.Short(url), c.proxy.Node, c.proxy.Namespace, got, want)
						}
					}
				}
			}
			if _, keeps := r.server.gen.clusters.past(); keeps != nil {
				kept++
			}
		}
		if kept < 20 {
			t.Errorf("clusters were kept %d times: the test shows little", kept)
		}
	})
}

// Each kind of document on which parts of resources depend that are kept makes them anew.
func TestPartsOfResourcesAreMadeAgainWhenWhatTheyDependOnChanges(t *testing.T) {
	const world = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "extensionProviders: [{name: als, envoyTcpAls: {service: default/b.internal, port: 80}}]"}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: t}
spec: {hosts: [t.internal], addresses: [10.7.7.7], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 90, name: tcp, protocol: TCP}, {number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.3, serviceAccount: one}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: d}
spec: {hosts: [d.internal], location: MESH_INTERNAL, resolution: DNS, ports: [{number: 91, name: tcp, protocol: TCP}], endpoints: [{address: one.test, labels: {security.istio.io/tlsMode: istio}}]}
` + "---" + services
	for name, change := range map[string]string{
		"the telemetry":     "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: default, namespace: default}\nspec: {accessLogging: [{providers: [{name: als}]}]}",
		"the file of logs":  "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'accessLogFile: /dev/stdout'}",
		"attempts":          "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: '{defaultConfig: {proxyHeaders: {attemptCount: {disabled: true}}}, defaultHttpRetryPolicy: {attempts: 7}}'}",
		"a namespace":       "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, annotations: {networking.istio.io/traffic-distribution: PreferClose}}",
		"modes of TLS":      "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: istio-system}\nspec: {mtls: {mode: DISABLE}}",
		"a rule":            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: t}\nspec: {host: t.internal, trafficPolicy: {connectionPool: {tcp: {maxConnections: 3, idleTimeout: 7s}}, loadBalancer: {consistentHash: {useSourceIp: true}}}}",
		"an address":        strings.Replace(world, "10.7.7.7", "10.7.7.8", 1),
		"endpoints of DNS":  strings.Replace(world, "one.test", "two.test", 1),
		"an EnvoyFilter":    "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: e}\nspec: {configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: x}}}, {applyTo: FILTER_CHAIN, patch: {operation: MERGE, value: {name: x}}}, {applyTo: VIRTUAL_HOST, patch: {operation: MERGE, value: {include_request_attempt_count: false}}}]}",
		"a route of TCP":    "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: t}\nspec: {hosts: [t.internal], tcp: [{route: [{destination: {host: b.internal}}]}], http: [{timeout: 4s, route: [{destination: {host: b.internal}}]}]}",
		"another of a port": "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: v}\nspec: {hosts: [v.internal], addresses: [10.7.7.7], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 90, name: http, protocol: HTTP}, {number: 91, name: tcp, protocol: TLS}], endpoints: [{address: 10.0.0.3}]}",
	} {
		t.Run(name, func(t *testing.T) {
			on(t, world, func(r *rig) {
				var clients []*client
				for i, meta := range []map[string]any{{"INTERCEPTION_MODE": "REDIRECT"}, {"VHDS": "true", "NAMESPACE": "other"}, {"INTERCEPTION_MODE": "REDIRECT", "NAMESPACE": "other", "PROXY_CONFIG": map[string]any{"proxyHeaders": map[string]any{"attemptCount": map[string]any{"disabled": true}}}}} {
					clients = append(clients, r.connect(fmt.Sprint("n", i), meta))
				}
				before := fmt.Sprint(clients[0].tables)
				r.put(change)
				for range 8 {
					r.settle()
					for _, c := range clients {
						c.answer()
					}
				}
				if fmt.Sprint(clients[0].tables) == before {
					t.Error("the change concerns nothing: the test shows nothing")
				}
				for _, c := range clients {
					anew := newGeneration(push.New(r.server.source, config.DefaultDomain, nil, nil, true), r.server.cfg.Shards, nil, nil, NewMetrics(nil), func([]generate.Failure) {})
					for half, want := range generated(anew, c.proxy).tables {
						for url := range want {
							if got, want := contents(c.tables[half][url]), contents(want[url]); !slices.Equal(got, want) {
								t.Errorf("%s of %s\n%q, want\n%q", xds.Short(url), c.proxy.Node, got, want)
							}
						}
					}
				}
			})
		})
	}
}

// Endpoints are generated once for all proxies that mean the same service by a cluster and apply the same rule to it, of
// whichever namespace they are.
func TestNamespacesShareEndpoints(t *testing.T) {
	on(t, services+`
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a, namespace: ruled}
spec: {host: a.internal, trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}}}}
`, func(r *rig) {
		const cluster = "outbound|80||a.internal"
		endpoints := make(map[string]*xds.Resource)
		for _, namespace := range []string{"default", "other", "ruled"} {
			c := r.connect(namespace, map[string]any{"NAMESPACE": namespace})
			endpoints[namespace] = r.server.gen.assignment(c.proxy, c.clusters, cluster)
			if endpoints[namespace] == nil {
				t.Fatalf("%s has no endpoints", namespace)
			}
		}
		if endpoints["default"] != endpoints["other"] {
			t.Error("two namespaces do not share endpoints")
		}
		if endpoints["default"] == endpoints["ruled"] {
			t.Error("a namespace with a rule of its own shares endpoints with one without")
		}
	})
}

// A proxy that did not have a cluster that others have gets its endpoints once its scope has grown.
func TestAProxyGetsTheEndpointsThatItsScopeHasGrownBy(t *testing.T) {
	on(t, worlds, func(r *rig) {
		const cluster = "outbound|80||b.internal"
		others, narrow := r.connect("others", nil), r.connect("narrow", map[string]any{"NAMESPACE": "narrow"})
		if r.server.gen.assignment(others.proxy, others.clusters, cluster) == nil || r.server.gen.assignment(narrow.proxy, narrow.clusters, cluster) != nil {
			t.Fatal("the scopes are not as the test wants them")
		}
		r.put("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{route: [{destination: {host: b.internal}}]}]}")
		r.settle()
		if narrow.tables[0][xds.ClusterType].Set[cluster] == nil {
			t.Fatal("the proxy has not got the cluster")
		}
		if r.server.gen.assignment(narrow.proxy, narrow.clusters, cluster) == nil {
			t.Error("the proxy has the cluster, and does not get its endpoints")
		}
	})
}

// generated returns the configuration of a proxy.
func generated(gen *generation, who *proxy.Proxy) configuration {
	c, _ := gen.of(who, nil)
	return c
}

func contents(t *table) (out []string) {
	if t == nil {
		return nil
	}
	for name, r := range t.Set {
		out = append(out, name+" "+r.Version)
	}
	slices.Sort(out)
	return out
}

func TestWouldServe_EndsWithItsContext(t *testing.T) {
	on(t, worlds, func(r *rig) {
		c := r.connect("c", nil)
		c.answer()
		snap, who := c.gen.Snapshot(), r.server.Served("c")[0].Proxy
		ctx, leave := context.WithCancel(context.Background())
		if s, ok := WouldServe(ctx, snap, r.server.cfg.Shards, r.server.cfg.Discovery, who); !ok || s == nil {
			t.Error("a proxy would be served nothing")
		}
		leave()
		if s, ok := WouldServe(ctx, snap, r.server.cfg.Shards, r.server.cfg.Discovery, who); ok || s != nil {
			t.Error("something is generated for a client that has left")
		}
	})
}
