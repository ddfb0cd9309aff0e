package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// many returns n elements of a list of YAML, in each of which %[1]d is its number.
func many(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// manyOf is many without the brackets.
func manyOf(n int, format string) string {
	text := many(n, format)
	return text[1 : len(text)-1]
}

// products are documents that make a product of two lists, with what they are at a bound and the list that is one longer above it.
var products = []struct {
	name, kind string
	spec       func(a, b int) string
	a, b       int // at the bound
	over       int // a above it
	want       string
}{
	{"hosts and matches", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, http: [{match: %s, route: [{destination: {host: a.test}}]}]}", many(a, "h%d.test"), many(b, "{uri: {prefix: /x%d}}"))
	}, 250, 200, 251, "spec.http: 200 matches for each of 251 hosts make 50200 routes, and at most 50000 are allowed"},
	{"routes without a match", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, http: %s}", many(a, "h%d.test"), many(b, "{route: [{destination: {host: a%d.test}}]}"))
	}, 250, 200, 251, "make 50200 routes"},
	{"matches and destinations", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: [a.test], http: [{match: %s, route: %s}]}", many(a, "{uri: {prefix: /x%d}}"), many(b, "{weight: 1, destination: {host: a%d}}"))
	}, 1000, 500, 1001, "make 500500 destinations of routes, and at most 500000 are allowed"},
	{"matches and headers", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: [a.test], http: [{match: %s, headers: {request: {set: {%s}}}, route: [{destination: {host: a}}]}]}", many(a, "{uri: {prefix: /x%d}}"), manyOf(b, "h%d: x"))
	}, 3000, 800, 4000, "spec.http: its routes, for each of 4000 matches and 1 hosts, make more than 33554432 bytes"},
	{"a body for each host", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, http: [{directResponse: {status: 200, body: {string: %s}}}]}", many(a, "h%d.test"), strings.Repeat("x", b))
	}, 300, 100_000, 400, "make more than 33554432 bytes"},
	{"sniHosts and destinationSubnets", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: ['*.test'], tls: [{match: [{sniHosts: %s, destinationSubnets: %s}], route: [{destination: {host: a.test}}]}]}", many(a, "h%d.test"), many(b, "10.0.%d.0/24"))
	}, 250, 200, 251, "spec.tls[0].match[0]: 251 sniHosts for each of 200 destinationSubnets make 50200 matches of connections, and at most 50000 are allowed"},
	{"hosts and matches of TLS", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: ['*.test', %s], tls: %s}", manyOf(a-1, "h%d.example"), many(b, "{match: [{sniHosts: [h%d.test]}], route: [{destination: {host: a.test}}]}"))
	}, 250, 200, 251, "spec.tls: 200 destinations of matches for each of 251 hosts make 50200 filter chains"},
	{"hosts and matches of TCP", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, tcp: [{match: %s, route: [{destination: {host: a.test}}]}]}", many(a, "h%d.test"), many(b, "{port: 1%03d}"))
	}, 250, 200, 251, "spec.tcp: 200 destinations of matches for each of 251 hosts make 50200 filter chains"},
	{"hosts and gateways", "VirtualService", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, gateways: %s, http: [{route: [{destination: {host: a.test}}]}]}", many(a, "h%d.test"), many(b, "g%d"))
	}, 1000, 500, 1001, "spec.hosts: 1001 hosts for each of 500 gateways make 500500 hosts of gateways"},
	{"hosts and ports", "ServiceEntry", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, resolution: DNS, ports: %s}", many(a, "h%d.test"), many(b, "{number: 1%03d, name: http-%[1]d, protocol: HTTP}"))
	}, 200, 100, 201, "spec.ports: 100 ports for each of 201 hosts make 20100 clusters, and at most 20000 are allowed"},
	{"hosts, ports and endpoints", "ServiceEntry", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: http-1, protocol: HTTP}], endpoints: %s}", many(a, "h%d.test"), many(b, "{address: 10.0.0.1, labels: {n: x%d}}"))
	}, 500, 500, 501, "spec.endpoints: 500 endpoints for each of 2 ports for each of 501 hosts make 501000 endpoints of clusters"},
	{"hosts and addresses", "ServiceEntry", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, resolution: STATIC, addresses: %s, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}", many(a, "h%d.test"), many(b, "10.0.1.%d"))
	}, 2000, 250, 2001, "spec.addresses: 250 addresses for each of 2001 hosts make 500250 addresses of listeners"},
	{"hosts and subjectAltNames", "ServiceEntry", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, resolution: DNS, subjectAltNames: %s, ports: [{number: 80, name: http, protocol: HTTP}]}", many(a, "h%d.test"), many(b, "n%d.test"))
	}, 1000, 500, 1001, "spec.subjectAltNames: 500 subjectAltNames for each of 1001 hosts make 500500 names of clusters"},
	{"hosts and exportTo", "ServiceEntry", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, resolution: DNS, exportTo: %s, ports: [{number: 80, name: http, protocol: HTTP}]}", many(a, "h%d.test"), many(b, "n%d"))
	}, 1000, 500, 1001, "spec.exportTo: 500 namespaces for each of 1001 hosts make 500500 namespaces of services"},
	{"hosts that select workloads", "ServiceEntry", func(a, b int) string {
		return fmt.Sprintf("{hosts: %s, resolution: STATIC, workloadSelector: {labels: {a: b}}, ports: %s}", many(a, "h%d.test"), many(b, "{number: 1%03d, name: http-%[1]d, protocol: HTTP}"))
	}, 100, 10, 101, "make 1010 clusters of workloads that it selects, and at most 1000 are allowed"},
	{"subsets and settings", "DestinationRule", func(a, b int) string {
		return fmt.Sprintf("{host: a.test, trafficPolicy: {tls: {mode: SIMPLE, subjectAltNames: %s}}, subsets: %s}", many(b, "name-%05d.test"), many(a, "{name: s%d, labels: {a: b}}"))
	}, 1500, 1000, 2500, "spec.trafficPolicy: its settings, for each of 2501 clusters of a port, make more than 33554432 bytes"},
	{"subsets", "DestinationRule", func(a, _ int) string {
		return fmt.Sprintf("{host: a.test, subsets: %s}", many(a, "{name: s%d, labels: {a: b}}"))
	}, 20_000, 0, 20_001, "spec.subsets: 20001 subsets make 20001 clusters of a port, and at most 20000 are allowed"},
	{"hosts of servers", "Gateway", func(a, b int) string {
		return fmt.Sprintf("{selector: {a: b}, servers: %s}", many(b, "{port: {number: 1%03d, name: http-%[1]d, protocol: HTTP}, hosts: "+strings.ReplaceAll(many(a, "h%d.test"), "%", "%%")+"}"))
	}, 4000, 5, 4001, "spec.servers: 20005 hosts make 20005 hosts of servers, and at most 20000 are allowed"},
	{"listeners of a Sidecar", "Sidecar", func(a, _ int) string {
		return fmt.Sprintf("{egress: %s}", many(a, "{port: {number: 1%03d, name: http-%[1]d, protocol: HTTP}, hosts: ['*/*']}"))
	}, 500, 0, 501, "spec.egress: 501 elements make 501 listeners, and at most 500 are allowed"},
	{"patches", "EnvoyFilter", func(a, _ int) string {
		return fmt.Sprintf("{configPatches: %s}", many(a, "{applyTo: CLUSTER, patch: {operation: MERGE, value: {per_connection_buffer_limit_bytes: %d}}}"))
	}, 500, 0, 501, "spec.configPatches: 501 elements make 501 patches, and at most 500 are allowed"},
	{"rules of a policy", "AuthorizationPolicy", func(a, b int) string {
		return fmt.Sprintf("{rules: [{to: [{operation: {paths: %s}}]}]}", many(a, "/"+strings.Repeat("x", b)+"%06d"))
	}, 9000, 100, 10_000, "the rules, which each listener has, make more than 1048576 bytes"},
	{"an expression of a Telemetry", "Telemetry", func(a, _ int) string {
		return fmt.Sprintf("{accessLogging: [{providers: [{name: envoy}], filter: {expression: %q}}]}", strings.Repeat("response.code >= 400 && ", a)+"true")
	}, 600, 0, 700, "spec.accessLogging[0].filter.expression: must be at most 16384 bytes long"},
	{"paths and hosts of TLS", "Ingress", func(a, b int) string {
		return fmt.Sprintf("{tls: [{secretName: x, hosts: %s}], rules: [{http: {paths: %s}}]}", many(b, "h%d.test"), many(a, "{path: /x%d, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}"))
	}, 250, 200, 251, "spec.rules: 251 paths without a host, or of a wildcard, for each of 200 hosts of tls make 50200 routes"},
	{"matches of a GRPCRoute", "GRPCRoute", func(a, _ int) string {
		return fmt.Sprintf("{parentRefs: [{name: g}], rules: [{matches: %[1]s}, {matches: %[1]s}, {matches: %[2]s}]}", many(a, "{method: {service: s%d}}"), many(1, "{method: {service: s%d}}"))
	}, 63, 0, 64, "must have at most 128 matches in all, and have 129"},
}

// apiVersions are those of the kinds of products.
var apiVersions = map[string]string{
	"AuthorizationPolicy": "security.istio.io/v1", "Telemetry": "telemetry.istio.io/v1", "EnvoyFilter": "networking.istio.io/v1alpha3", "Ingress": "networking.k8s.io/v1", "GRPCRoute": "gateway.networking.k8s.io/v1",
}

func productOf(kind, spec string) string {
	version := apiVersions[kind]
	if version == "" {
		version = "networking.istio.io/v1"
	}
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: large, namespace: red}\nspec: %s\n", version, kind, spec)
}

// errorsOf returns the errors of a text.
func errorsOf(t *testing.T, text string) (out []string) {
	t.Helper()
	documents, broken := Read("a.yaml", []byte(text))
	if broken != nil {
		t.Fatal(broken)
	}
	for _, d := range documents {
		for _, p := range d.Problems {
			if p.Severity == SeverityError {
				out = append(out, p.Field+": "+p.Message)
			}
		}
	}
	return out
}

// Each bound of what a document makes lets pass what is at it, and nothing above it, with a sentence that says of which lists it is.
func TestProducts_AreBounded(t *testing.T) {
	for _, tc := range products {
		t.Run(tc.name, func(t *testing.T) {
			if found := errorsOf(t, productOf(tc.kind, tc.spec(tc.a, tc.b))); len(found) > 0 {
				t.Errorf("at the bound: %.300q", found[:min(2, len(found))])
			}
			if tc.want == "" {
				return
			}
			if found := errorsOf(t, productOf(tc.kind, tc.spec(tc.over, tc.b))); len(found) != 1 || !strings.Contains(found[0], tc.want) {
				t.Errorf("above the bound: %.300q, want %q", found[:min(2, len(found))], tc.want)
			}
		})
	}
}

// What is far above a bound is refused in the time that it takes to read it: no list is compared with another one first.
func TestProducts_OfAnySizeAreNumbers(t *testing.T) {
	for _, text := range []string{
		productOf("VirtualService", fmt.Sprintf("{hosts: %s, http: [{match: %s, route: [{destination: {host: a.test}}]}]}", many(20_000, "h%d.test"), many(20_000, "{uri: {prefix: /x%d}}"))),
		productOf("VirtualService", fmt.Sprintf("{hosts: %[1]s, tls: [{match: [{sniHosts: %[1]s}], route: [{destination: {host: a.test}}]}]}", many(20_000, "h%d.test"))),
	} {
		if found := errorsOf(t, text); len(found) != 1 || !strings.Contains(found[0], "are allowed: divide the document") {
			t.Errorf("%.300q", found)
		}
	}
	for _, factors := range [][]factor{{{1 << 31, "a"}, {1 << 31, "b"}, {1 << 31, "c"}}, {{MaxRoutes + 1, "a"}, {0, "b"}}} {
		k := &checker{}
		if k.product(nil, MaxRoutes, "routes", factors...); !k.failed() {
			t.Errorf("%v is allowed", factors)
		}
	}
}

// What others have published is far below the bounds.
func TestProducts_OfPublicDocumentsAreAllowed(t *testing.T) {
	for _, root := range []string{filepath.Join("..", "..", "test", "peers", "istio", "testdata"), filepath.Join("..", "..", "examples"), "testdata"} {
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			documents, _ := Read(path, text)
			for _, d := range documents {
				for _, p := range d.Problems {
					if strings.Contains(p.Message, "are allowed: divide the document") {
						t.Errorf("%s", p)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
