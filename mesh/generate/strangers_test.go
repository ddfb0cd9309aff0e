package generate

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// The nodes of proxies.
const (
	atGateway = "id: router~10.0.0.9~gw.default~default.svc.cluster.local\nmetadata: {NAMESPACE: default, LABELS: {istio: gateway}}"
	inClient  = "id: sidecar~10.0.0.8~web.client~client.svc.cluster.local\nmetadata: {NAMESPACE: client, INTERCEPTION_MODE: REDIRECT, ENVOY_STATUS_PORT: '15021'}"
	inBlue    = "id: sidecar~10.0.0.8~web.blue~blue.svc.cluster.local\nmetadata: {NAMESPACE: blue, INTERCEPTION_MODE: REDIRECT, LABELS: {app: web}}"
)

// gets returns what a proxy gets of documents, of which each later one is younger.
func gets(t *testing.T, node_ string, documents ...string) (resources []*xds.Resource) {
	t.Helper()
	for i := range documents {
		documents[i] = strings.Replace(documents[i], "metadata: {", "metadata: {creationTimestamp: \"20"+string(rune('1'+i/10))+string(rune('0'+i%10))+"-01-01T00:00:00Z\", ", 1)
	}
	synctest.Test(t, func(t *testing.T) {
		m := load(t, []byte(strings.Join(documents, "\n---\n")))
		resources = m.all(m.proxy(t, node(t, []byte(node_))))
	})
	return resources
}

func istio(kind, namespace, name, spec string) string {
	return "apiVersion: networking.istio.io/v1\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {" + spec + "}\n"
}

func kubernetes(namespace, name, spec string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {" + spec + "}\n"
}

// redService is a service of red with an endpoint.
func redService(hosts, rest string) string {
	return istio("ServiceEntry", "red", "r", "hosts: ["+hosts+"], "+rest)
}

// What the younger red asks for, and blue has, blue keeps. Each is a finding of somebody who played the two against each other.
func TestWhatTheOlderTenantHas(t *testing.T) {
	payHTTP := kubernetes("blue", "pay", "clusterIP: 10.96.0.20, ports: [{name: http, port: 80}, {name: tcp, port: 9000}]")
	blueTLS := istio("Gateway", "blue", "g", "selector: {istio: gateway}, servers: [{port: {number: 8443, name: tls, protocol: TLS}, hosts: [pay.test], tls: {mode: PASSTHROUGH}}]")
	blueSNI := istio("VirtualService", "blue", "v", "hosts: [pay.test], gateways: [g], tls: [{match: [{sniHosts: [pay.test]}], route: [{destination: {host: pay.blue.svc.cluster.local, port: {number: 9000}}}]}]")
	blueHTTP := istio("Gateway", "blue", "g", "selector: {istio: gateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [pay.test]}]")
	blueRoute := istio("VirtualService", "blue", "v", "hosts: [pay.test], gateways: [g], http: [{route: [{destination: {host: pay.blue.svc.cluster.local, port: {number: 80}}}]}]")
	const static = "resolution: STATIC, endpoints: [{address: 6.6.6.6}]"
	const toBlue = "outbound|80||pay.blue.svc.cluster.local"
	for _, tc := range []struct {
		name, node string
		documents  []string
		what, has  string
	}{
		{"a range before a server name, at a gateway", atGateway, []string{payHTTP, blueTLS, blueSNI,
			istio("Gateway", "red", "g", "selector: {istio: gateway}, servers: [{port: {number: 8443, name: tls, protocol: TLS}, hosts: [r.test], tls: {mode: PASSTHROUGH}}]"),
			istio("VirtualService", "red", "v", "hosts: [r.test], gateways: [g], tls: [{match: [{sniHosts: [r.test], destinationSubnets: [10.0.0.0/8]}], route: [{destination: {host: r.test}}]}]")},
			"connection {port:8443 address:10.1.9.9 name:pay.test transport:tls application:}", "outbound|9000||pay.blue.svc.cluster.local"},
		{"a range of TCP before a server name", atGateway, []string{payHTTP, blueTLS, blueSNI,
			istio("Gateway", "red", "g", "selector: {istio: gateway}, servers: [{port: {number: 8443, name: tcp, protocol: TCP}, hosts: ['*']}]"),
			istio("VirtualService", "red", "v", "hosts: ['*'], gateways: [g], tcp: [{match: [{destinationSubnets: [10.0.0.0/8]}], route: [{destination: {host: r.test}}]}]")},
			"connection {port:8443 address:10.1.9.9 name:pay.test transport:tls application:}", "outbound|9000||pay.blue.svc.cluster.local"},
		{"a range with the address of a Service", inClient, []string{payHTTP, redService("r.test", "addresses: [10.96.0.0/12], ports: [{number: 80, name: tcp, protocol: TCP}], "+static)},
			"connection {port:80 address:10.96.0.20 name: transport:raw_buffer application:http/1.1}", `route_config_name: "80"`},
		{"the address of a Service", inClient, []string{payHTTP, redService("r.test", "addresses: [10.96.0.20], ports: [{number: 80, name: tcp, protocol: TCP}], "+static)},
			"connection {port:80 address:10.96.0.20 name: transport:raw_buffer application:http/1.1}", `route_config_name: "80"`},
		{"requests at an address of TCP", inClient, []string{istio("ServiceEntry", "blue", "b", "hosts: [b.test], addresses: [10.1.9.9], ports: [{number: 9000, name: tcp, protocol: TCP}], "+static),
			redService("r.test", "addresses: [10.1.9.9], ports: [{number: 9000, name: p}], "+static)}, "connection {port:9000 address:10.1.9.9 name: transport:raw_buffer application:http/1.1}", "absent"},
		{"a server name at an address of TCP", inClient, []string{istio("ServiceEntry", "blue", "b", "hosts: [b.test], addresses: [10.1.9.9], ports: [{number: 9000, name: tcp, protocol: TCP}], "+static),
			redService("a.test", "addresses: [10.1.9.9], ports: [{number: 9000, name: tls, protocol: TLS}], "+static),
			istio("VirtualService", "red", "v", "hosts: [a.test], tls: [{match: [{port: 9000, sniHosts: [a.test]}], route: [{destination: {host: a.test}}]}]")}, "connection {port:9000 address:10.1.9.9 name:a.test transport:tls application:}", "absent"},
		{"short names of a Service", inBlue, []string{payHTTP, redService("pay, pay.blue, pay.blue.svc, pay.blue.svc.cluster.local.", "ports: [{number: 80, name: http, protocol: HTTP}], "+static)}, "routes of pay in 80", toBlue},
		{"a short name with a namespace", inClient, []string{payHTTP, redService("pay.blue, pay.blue.svc", "ports: [{number: 80, name: http, protocol: HTTP}], "+static)}, "routes of pay.blue in 80", toBlue},
		{"a name with a dot at its end", inClient, []string{payHTTP, redService("pay.blue.svc.cluster.local.", "ports: [{number: 80, name: http, protocol: HTTP}], "+static)}, "routes of pay.blue.svc.cluster.local. in 80", toBlue},
		{"a route of a short name", inClient, []string{payHTTP, istio("VirtualService", "red", "r", "hosts: [pay.blue, pay.blue.svc, 10.96.0.20], http: [{directResponse: {status: 299}}]")}, "routes of pay.blue.svc in 80", toBlue},
		{"a route of an address", inClient, []string{payHTTP, istio("VirtualService", "red", "r", "hosts: [10.96.0.20], http: [{directResponse: {status: 299}}]")}, "routes of 10.96.0.20 in 80", toBlue},
		{"an address by a route of another service", inClient, []string{payHTTP, redService("r.test", "addresses: [10.96.0.20], ports: [{number: 80, name: http, protocol: HTTP}], "+static),
			istio("VirtualService", "red", "r", "hosts: [r.test], http: [{directResponse: {status: 299}}]")}, "routes of 10.96.0.20 in 80", toBlue},
		{"an endpoint of a headless Service", inClient, []string{kubernetes("blue", "pay", "clusterIP: None, ports: [{name: http, port: 80}]"),
			redService("pod-0.pay.blue.svc.cluster.local, pod-0.pay.blue", "ports: [{number: 80, name: http, protocol: HTTP}], "+static)}, "routes of *.pay.blue.svc.cluster.local in 80", toBlue},
		{"the host of an older entry with a dot", inClient, []string{istio("ServiceEntry", "blue", "b", "hosts: [api.test], ports: [{number: 80, name: http, protocol: HTTP}], "+static),
			redService("api.test.", "ports: [{number: 80, name: http, protocol: HTTP}], "+static)}, "routes of api.test. in 80", "outbound|80||api.test"},
		{"a host that has an owner, and nobody serves", inClient, []string{strings.Replace(owned, "shop: a.test", "blue: api.test *.pay.test\n      shop: a.test", 1),
			redService("'*.test'", "ports: [{number: 80, name: http, protocol: HTTP}], "+static)}, "routes of api.test in 80", "PassthroughCluster"},
		{"a domain that has an owner, and nobody serves", inClient, []string{strings.Replace(owned, "shop: a.test", "blue: api.test *.pay.test\n      shop: a.test", 1),
			redService("'*.test'", "ports: [{number: 80, name: http, protocol: HTTP}], "+static)}, "routes of *.pay.test in 80", "PassthroughCluster"},
		{"a port of a gateway at all addresses, in words", atGateway, []string{payHTTP, blueHTTP, blueRoute,
			istio("Gateway", "red", "g", "selector: {istio: gateway}, servers: [{bind: 0.0.0.0, port: {number: 80, name: http, protocol: HTTP}, hosts: [r.test]}]")}, "routes of pay.test in http.80", toBlue},
		{"a port of a gateway at one address", atGateway, []string{payHTTP, blueHTTP, blueRoute,
			istio("Gateway", "red", "g", "selector: {istio: gateway}, servers: [{bind: 10.0.0.9, port: {number: 80, name: http, protocol: HTTP}, hosts: [r.test]}]")}, "connections to 10.0.0.9_80", ""},
		{"a redirect", atGateway, []string{payHTTP, blueHTTP, blueRoute,
			istio("Gateway", "red", "g", "selector: {istio: gateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [pay.test], tls: {httpsRedirect: true}}]")}, "require_tls", ""},
		{"a redirect of a domain", atGateway, []string{payHTTP, istio("Gateway", "blue", "g", "selector: {istio: gateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*.test']}]"), blueRoute,
			istio("Gateway", "red", "g", "selector: {istio: gateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*.test'], tls: {httpsRedirect: true}}]"),
			istio("VirtualService", "red", "v", "hosts: [pay.test], gateways: [g], http: [{directResponse: {status: 299}}]")}, "require_tls", ""},
		{"a redirect of a host, beside an older server of all hosts", atGateway, []string{istio("Gateway", "blue", "g", "selector: {istio: gateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]"),
			istio("Gateway", "red", "g", "selector: {istio: gateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [r.test], tls: {httpsRedirect: true}}]")}, "routes of r.test in http.80", "require_tls: ALL"},
		{"the port of a proxy, inbound", inClient, []string{redService("r.test", "ports: [{number: 15006, name: http, protocol: HTTP}, {number: 15001, name: tcp, protocol: TCP}, {number: 15021, name: h2, protocol: HTTP}], resolution: DNS")},
			"connections to 0.0.0.0_150", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found := false
			for what, has := range had(t, gets(t, tc.node, tc.documents...)) {
				switch {
				case tc.has == "" && (strings.Contains(what, tc.what) || strings.Contains(has, tc.what)):
					t.Errorf("%s\n%s", what, has)
				case tc.has == "absent":
					if what == tc.what {
						t.Errorf("%s\n%s", what, has)
					}
				case tc.has != "" && what == tc.what:
					found = true
					if !strings.Contains(strings.Join(strings.Fields(has), " "), tc.has) {
						t.Errorf("%s has\n%s", what, has)
					}
				case tc.has != "" && strings.HasPrefix(what, "routes of pod-0."):
					t.Errorf("%s", what)
				}
			}
			if tc.has != "" && tc.has != "absent" && !found {
				t.Errorf("there is no %s", tc.what)
			}
		})
	}
}

// A Service may have a port with the number of one at which its own proxy listens: it is left out, and the listener of all connections stays valid.
func TestAPortOfTheProxyIsNoPortOfTheWorkload(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: blue, labels: {app: web}}\nstatus: {podIP: 10.0.0.8}\n"
	web := kubernetes("blue", "web", "clusterIP: 10.96.0.9, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 15006}, {name: http2, port: 81, targetPort: 8080}]")
	slice := "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web, namespace: blue, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{name: http, port: 15006}, {name: http2, port: 8080}]\nendpoints: [{addresses: [10.0.0.8]}]\n"
	mode := "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: blue}\nspec: {selector: {matchLabels: {app: web}}, portLevelMtls: {15006: {mode: STRICT}}}\n"
	sidecar := istio("Sidecar", "blue", "s", "workloadSelector: {labels: {app: web}}, ingress: [{port: {number: 15006, name: http, protocol: HTTP}, defaultEndpoint: '127.0.0.1:8080'}, {port: {number: 9080, name: h, protocol: HTTP}, defaultEndpoint: '127.0.0.1:8080'}]")
	for name, documents := range map[string][]string{"a Service": {pod, web, slice}, "a mode of the port": {pod, web, slice, mode}, "a Sidecar": {pod, web, slice, sidecar}} {
		t.Run(name, func(t *testing.T) {
			chains := make(map[uint32]int)
			for _, r := range gets(t, inBlue, documents...) {
				if r.Name != virtualInbound {
					continue
				}
				l := &listenerv3.Listener{}
				if err := r.Body.UnmarshalTo(l); err != nil {
					t.Fatal(err)
				}
				for _, c := range l.FilterChains {
					chains[c.GetFilterChainMatch().GetDestinationPort().GetValue()]++
				}
			}
			if chains[15006] != 1 || chains[8080]+chains[9080] == 0 {
				t.Errorf("filter chains by port: %v", chains)
			}
		})
	}
}

// A sidecar without redirection listens for its workload and for what it reaches: what it reaches has no address of the workload's.
func TestWhatASidecarReachesTakesNoAddressOfItsWorkload(t *testing.T) {
	node := "id: sidecar~127.0.0.2~web.blue~blue.svc.cluster.local\nmetadata: {NAMESPACE: blue, INTERCEPTION_MODE: NONE, LABELS: {app: web}, INSTANCE_IPS: '127.0.0.2,127.0.0.1'}"
	sidecar := istio("Sidecar", "blue", "s", "ingress: [{port: {number: 9080, name: http, protocol: HTTP}, captureMode: NONE, defaultEndpoint: '127.0.0.1:8080'}]")
	red := redService("r.test", "ports: [{number: 9080, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 6.6.6.6}]")
	var at []string
	for _, r := range gets(t, node, sidecar, red) {
		if r.Type == xds.ListenerType {
			l := &listenerv3.Listener{}
			if err := r.Body.UnmarshalTo(l); err != nil {
				t.Fatal(err)
			}
			at = append(at, addresses(l)...)
		}
	}
	slices.Sort(at)
	if twice := len(slices.Compact(slices.Clone(at))) != len(at); twice || !slices.Contains(at, "127.0.0.2:9080") || !slices.Contains(at, "127.0.0.1:9080") {
		t.Errorf("%q", at)
	}
}

// The table of ReplacePrefixMatch in the Gateway API's specification is for redirects, too: paths are joined without an empty segment, and "/" or
// nothing takes the prefix away.
func TestARedirectReplacesAPrefix(t *testing.T) {
	gateway := "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}\n"
	for with, want := range map[string]string{
		"/xyz": `prefix_rewrite: "/xyz"`, "/xyz/": `prefix_rewrite: "/xyz"`,
		"/": `regex_rewrite: { pattern: { regex: "^/a(/?)(.*)" } substitution: "/\\2" }`, "''": `regex_rewrite: { pattern: { regex: "^/a(/?)(.*)" } substitution: "/\\2" }`,
	} {
		route := "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r, namespace: shop}\nspec: {parentRefs: [{name: edge}], hostnames: [r.test], rules: [{matches: [{path: {value: /a}}], " +
			"filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: " + with + "}}}]}]}\n"
		routes := had(t, gets(t, "id: router~10.0.0.9~edge.shop~shop.svc.cluster.local\nmetadata: {NAMESPACE: shop, LABELS: {gateway.networking.k8s.io/gateway-name: edge}}", gateway, route))["routes of r.test in http.80"]
		if text := strings.Join(strings.Fields(routes), " "); !strings.Contains(text, want) {
			t.Errorf("%s: %s", with, text)
		}
	}
}

// A ServiceEntry without endpoints connects to the port that it names (istio#49450).
func TestATargetPortIsThatOfConnectionsToTheirDestination(t *testing.T) {
	for port, want := range map[string]bool{", targetPort: 443": true, ", targetPort: 80": false, "": false} {
		cluster := had(t, gets(t, inClient, redService("'*.r.test'", "location: MESH_EXTERNAL, ports: [{number: 80, name: http, protocol: HTTP"+port+"}], resolution: NONE")))["cluster outbound|80||*.r.test"]
		c := &clusterv3.Cluster{}
		if err := proto.Unmarshal([]byte(cluster), c); err != nil {
			t.Fatal(err)
		}
		if got := c.GetOriginalDstLbConfig().GetUpstreamPortOverride().GetValue(); (got == 443) != want || c.GetType() != clusterv3.Cluster_ORIGINAL_DST {
			t.Errorf("%q: %v", port, c)
		}
	}
}
