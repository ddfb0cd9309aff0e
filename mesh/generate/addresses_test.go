package generate

import (
	"strings"
	"testing"
)

// dated gives documents an age.
func dated(year, text string) string {
	return strings.ReplaceAll(text, "metadata: {", "metadata: {creationTimestamp: \""+year+"-01-01T00:00:00Z\", ")
}

const (
	clientNode = "id: sidecar~10.0.0.8~web.client~client.svc.cluster.local\nmetadata: {NAMESPACE: client, INTERCEPTION_MODE: REDIRECT, DNS_CAPTURE: \"true\"}"
	blueNode   = "id: sidecar~10.0.0.7~web.blue~blue.svc.cluster.local\nmetadata: {NAMESPACE: blue, INTERCEPTION_MODE: REDIRECT, DNS_CAPTURE: \"true\"}"
)

// Where documents of two namespaces name one address, the younger takes nothing of it that the older one has, but for what docs/mesh.md says.
func TestAYoungerTenantTakesNoAddress(t *testing.T) {
	const (
		db = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db, namespace: blue}
spec: {hosts: [db.test], addresses: [10.1.2.3], ports: [{number: 9000, name: a, protocol: TCP}, {number: 80, name: b, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.4.4.4}]}
`
		automatic = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: db, namespace: blue}
spec: {hosts: [db.test], ports: [{number: 9000, name: a, protocol: TCP}], resolution: STATIC, endpoints: [{address: 10.4.4.4}]}
`
		external = `apiVersion: v1
kind: Service
metadata: {name: db, namespace: blue}
spec: {type: ExternalName, externalName: db.example.com, ports: [{name: http, port: 80}]}
`
		headless = `apiVersion: v1
kind: Service
metadata: {name: hl, namespace: NAMESPACE}
spec: {clusterIP: None, ports: [{name: tcp, port: 9000}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hl, namespace: NAMESPACE, labels: {kubernetes.io/service-name: hl}}
addressType: IPv4
endpoints: [{addresses: [10.1.2.3], conditions: {ready: true}}]
ports: [{name: tcp, port: 9000}]
`
		ip = `apiVersion: v1
kind: Service
metadata: {name: ip, namespace: red}
spec: {clusterIP: 10.1.2.3, ports: [{name: tcp, port: 9000}, {name: http, port: 80}]}
`
	)
	of := func(namespace string) string { return strings.ReplaceAll(headless, "NAMESPACE", namespace) }
	entry := func(rest string) string {
		return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: red, namespace: red}\nspec: {" + rest + ", resolution: STATIC, endpoints: [{address: 6.6.6.6}]}\n"
	}
	for _, tc := range []struct {
		name, blue, red string
		nodes           []string
	}{
		{"the address of a Service", db, ip, []string{blueNode}}, // for others those of Kubernetes come first
		{"the address of an endpoint of a headless Service", db, of("red"), []string{blueNode, clientNode}},
		{"an endpoint of a headless Service as the address of a Service", of("blue"), ip, []string{blueNode, clientNode}},
		{"an endpoint of a headless Service as the address of a ServiceEntry", of("blue"), entry("hosts: [r.test], addresses: [10.1.2.3], ports: [{number: 9000, name: a, protocol: TCP}]"), []string{blueNode, clientNode}},
		{"an automatic address", automatic, entry("hosts: [r.test], addresses: [240.240.32.201, '2001:2::f0f0:20c9'], ports: [{number: 9000, name: a, protocol: TCP}]"), []string{blueNode, clientNode}},
		{"an automatic address as an endpoint of a headless Service", automatic, strings.ReplaceAll(of("red"), "10.1.2.3", "240.240.32.201"), []string{blueNode, clientNode}},
		{"an automatic address as that of a Service", automatic, strings.ReplaceAll(ip, "10.1.2.3", "240.240.32.201"), []string{blueNode, clientNode}},
		{"an external name that is for red alone", external, entry(`hosts: [db.example.com], exportTo: ["."], ports: [{number: 81, name: a, protocol: TCP}]`), []string{blueNode, clientNode}},
		{"an external name that is for the client alone", external, entry(`hosts: [db.example.com], exportTo: [client], ports: [{number: 80, name: a, protocol: HTTP}]`), []string{blueNode, clientNode}},
		{"an external name that is blue's", external + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system, annotations: {mesh.holdfast.dev/host-owners: \"blue: db.example.com\"}}\n",
			entry("hosts: [db.example.com], ports: [{number: 80, name: a, protocol: HTTP}]"), []string{blueNode, clientNode}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			blue := dated("2020", tc.blue)
			for _, node := range tc.nodes {
				for _, what := range changed(t, node, blue, blue+"---\n"+dated("2021", tc.red)) {
					t.Errorf("%s: %s", node, what)
				}
			}
		})
	}
}
