package fleet

import (
	"fmt"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// pool has the documents that a history changes, each with its contents.
var pool = func() (out [][]*config.Config) {
	for _, document := range []func(variant int) string{
		entry("a", "shop"), entry("b", "shop"), entry("c", "infra"), selecting("d", "shop"),
		workload("d-1", 1), workload("d-2", 2), kubernetesService, slice("e-1", 1), slice("e-2", 3),
		route("a", "shop"), route("b", "shop"), rule("a", "shop"), rule("c", "infra"),
		sidecar, peer("shop"), peer("istio-system"), gateway, bound, policy, telemetry, filter, namespace, meshConfig,
	} {
		var contents []*config.Config
		for variant := range variants {
			contents = append(contents, read(document(variant)))
		}
		out = append(out, contents)
	}
	return out
}()

// variants is the number of contents that a document has.
const variants = 4

func read(text string) *config.Config {
	documents, broken := config.Read("pool.yaml", []byte(text))
	if broken != nil || len(documents) != 1 || config.Invalid(documents[0].Problems) {
		panic(fmt.Sprint(broken, documents, text))
	}
	return documents[0].Config
}

func head(group, kind, namespace, name string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s}\n", group, kind, name, namespace)
}

func istio(kind, namespace, name string) string {
	return head("networking.istio.io/v1", kind, namespace, name)
}

func entry(name, namespace string) func(int) string {
	return func(v int) string {
		return istio("ServiceEntry", namespace, name) + fmt.Sprintf("spec:\n  hosts: [%s.test]\n  resolution: %s\n  location: MESH_INTERNAL\n  ports: [{number: 80, name: http, protocol: HTTP}, {number: 9000, name: tcp, protocol: TCP}]\n  endpoints: %s\n",
			name, []string{"STATIC", "STATIC", "STATIC", "DNS"}[v], []string{
				"[{address: 10.0.0.1, labels: {version: v1}}]",
				"[{address: 10.0.0.1, labels: {version: v1}}, {address: 10.0.0.2, labels: {version: v2}}]",
				"[{address: 10.0.0.3, labels: {version: v2}, weight: 3, locality: r/z/s}]",
				"[{address: h.test}]",
			}[v])
	}
}

func selecting(name, namespace string) func(int) string {
	return func(v int) string {
		return istio("ServiceEntry", namespace, name) + fmt.Sprintf("spec:\n  hosts: [%s.test]\n  resolution: STATIC\n  location: MESH_INTERNAL\n  ports: [{number: %d, name: http, protocol: HTTP}]\n  workloadSelector: {labels: {app: %s}}\n", name, 80+v/2, []string{"d", "other"}[v%2])
	}
}

func workload(name string, host int) func(int) string {
	return func(v int) string {
		return istio("WorkloadEntry", "shop", name) + fmt.Sprintf("spec: {address: 10.0.1.%d, labels: {app: %s, version: v%d}, serviceAccount: %s}\n", host+v/2, []string{"d", "d", "d", "other"}[v], 1+v%2, []string{"one", "two"}[v/2])
	}
}

func kubernetesService(v int) string {
	return head("v1", "Service", "shop", "e") + fmt.Sprintf("spec:\n  clusterIP: %s\n  ports: [{name: http, port: %d}]\n", []string{"10.1.0.1", "10.1.0.1", "None", "10.1.0.2"}[v], 8080+v/3)
}

func slice(name string, host int) func(int) string {
	return func(v int) string {
		return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s, namespace: shop, labels: {kubernetes.io/service-name: e}}\naddressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints:\n- {addresses: [10.0.2.%d], conditions: {ready: %v}}\n- {addresses: [10.0.2.%d]}\n", name, host, v != 1, host+v)
	}
}

func route(name, namespace string) func(int) string {
	return func(v int) string {
		return istio("VirtualService", namespace, name) + fmt.Sprintf("spec:\n  hosts: [%[1]s.test]\n  http: %[2]s\n", name, []string{
			fmt.Sprintf("[{route: [{destination: {host: %[1]s.test}}], timeout: 3s}]", name),
			fmt.Sprintf("[{route: [{destination: {host: %[1]s.test, subset: v1}, weight: 30}, {destination: {host: %[1]s.test, subset: v2}, weight: 70}]}]", name),
			fmt.Sprintf("[{match: [{uri: {prefix: /x}}], route: [{destination: {host: c.test}}]}, {route: [{destination: {host: %[1]s.test, port: {number: 80}}}], retries: {attempts: 2}}]", name),
			fmt.Sprintf("[{match: [{sourceLabels: {app: web}}], fault: {abort: {httpStatus: 503, percentage: {value: 1}}}, route: [{destination: {host: %[1]s.test}}]}]", name),
		}[v])
	}
}

func rule(name, namespace string) func(int) string {
	return func(v int) string {
		return istio("DestinationRule", namespace, name) + fmt.Sprintf("spec:\n  host: %s.test\n%s", name, []string{
			"  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]\n",
			"  trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}\n  subsets: [{name: v1, labels: {version: v1}}]\n",
			"  trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}\n  exportTo: [\".\"]\n",
			"  trafficPolicy: {connectionPool: {tcp: {maxConnections: 5}}, outlierDetection: {consecutive5xxErrors: 3}}\n",
		}[v])
	}
}

func sidecar(v int) string {
	return istio("Sidecar", "shop", "default") + "spec:\n" + []string{
		"  egress: [{hosts: [\"./*\"]}]\n", "  egress: [{hosts: [\"*/*\"]}]\n", "  workloadSelector: {labels: {app: web}}\n  egress: [{hosts: [\"infra/*\"]}]\n", "  egress: [{hosts: [\"shop/a.test\", \"infra/*\"]}]\n  outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n",
	}[v]
}

func peer(namespace string) func(int) string {
	return func(v int) string {
		return head("security.istio.io/v1", "PeerAuthentication", namespace, "default") + "spec: {mtls: {mode: " + []string{"STRICT", "PERMISSIVE", "DISABLE", "UNSET"}[v] + "}}\n"
	}
}

func gateway(v int) string {
	return istio("Gateway", "infra", "edge") + fmt.Sprintf("spec:\n  selector: {app: edge}\n  servers: [{port: {number: %d, name: http, protocol: HTTP}, hosts: [%s]}]\n", 8080+v/2, []string{"\"*\"", "\"shop/*\""}[v%2])
}

func bound(v int) string {
	return istio("VirtualService", "shop", "bound") + fmt.Sprintf("spec:\n  hosts: [www.test]\n  gateways: [infra/edge%s]\n  http: [{route: [{destination: {host: %s.test, port: {number: 80}}}]}]\n", []string{"", ", mesh"}[v%2], []string{"a", "d"}[v/2])
}

func policy(v int) string {
	return head("security.istio.io/v1", "AuthorizationPolicy", "shop", "policy") + "spec:\n" + []string{
		"  action: DENY\n  rules: [{to: [{operation: {paths: [/admin]}}]}]\n", "  rules: [{from: [{source: {namespaces: [infra]}}]}]\n", "  selector: {matchLabels: {app: web}}\n  rules: [{}]\n", "  {}\n",
	}[v]
}

func telemetry(v int) string {
	return head("telemetry.istio.io/v1", "Telemetry", "istio-system", "default") + fmt.Sprintf("spec: {accessLogging: [{disabled: %v}], metrics: [{overrides: [{disabled: %v}]}]}\n", v%2 == 0, v/2 == 0)
}

func filter(v int) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: patch, namespace: %s}\nspec:\n  configPatches:\n  - applyTo: CLUSTER\n    match: {cluster: {service: a.test}}\n    patch: {operation: MERGE, value: {connect_timeout: %ds}}\n", "istio-system", 1+v)
}

func namespace(v int) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: t%d}, annotations: {%s}}\n", v, []string{"", "networking.istio.io/exportTo: \".\""}[v%2])
}

func meshConfig(v int) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    " + []string{
		"accessLogFile: /dev/stdout", "outboundTrafficPolicy: {mode: REGISTRY_ONLY}", "trustDomainAliases: [old.test]", "discoverySelectors: [{matchLabels: {team: t1}}]",
	}[v] + "\n"
}
