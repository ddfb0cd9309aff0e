package config

import "testing"

func TestNodesAreValidated(t *testing.T) {
	read := func(rest string) []string {
		return problems(t, "f", "apiVersion: v1\nkind: Node\nmetadata: {name: node, labels: {a: b}}\n"+rest)
	}
	compare(t, read("spec: {podCIDR: 10.0.0.0/8}\nstatus: {addresses: [{type: Hostname, address: x_y}, {type: InternalIP, address: z}, {type: ExternalIP, address: 192.0.2.1}, {type: ExternalIP, address: ''}, {type: ExternalIP, address: '2001:db8::1'}], capacity: {cpu: '2'}}"), nil)
	compare(t, read("status: {addresses: [{type: ExternalIP, address: node.example}]}"), []string{`f:4: Node node: status.addresses[0].address: "node.example" is no IP address`})
}

func TestTheSelectorOfNodesIsValidated(t *testing.T) {
	const at = "f:5: Service ns/a: metadata.annotations.traffic.istio.io/nodeSelector: "
	const form = `is no JSON object of labels, such as {"kubernetes.io/hostname": "node-1"} or {} for all Nodes: `
	for _, tc := range []struct{ name, kind, annotation, want string }{
		{"all", "NodePort", "'{}'", ""},
		{"nothing", "NodePort", "''", ""},
		{"labels", "NodePort", `'{"kubernetes.io/hostname": "n1", "a": ""}'`, ""},
		{"no JSON", "NodePort", "'{a: b}'", at + form + "invalid character 'a' looking for beginning of object key string"},
		{"cut off", "NodePort", `'{"a": "b"'`, at + form + "unexpected end of JSON input"},
		{"a list", "NodePort", `'["a"]'`, at + form + "a array stands where a string or the object is"},
		{"a number", "NodePort", `'{"a": 1}'`, at + form + "a number stands where a string or the object is"},
		{"a key that is none", "NodePort", `'{"a b": "c"}'`, at + `"a b" is no key of a label`},
		{"a value that is none", "NodePort", `'{"a": "c d"}'`, at + `"c d" is no value of a label`},
		{"another type", "LoadBalancer", "'{}'", at + "warning: has no effect: it is for Services of the type NodePort [HM0102]"},
		{"another type, and no JSON", "ClusterIP", "'{'", at + "warning: has no effect: it is for Services of the type NodePort [HM0102]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want []string
			if tc.want != "" {
				want = []string{tc.want}
			}
			compare(t, problems(t, "f", "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: ns,\n  annotations: {\n    traffic.istio.io/nodeSelector: "+tc.annotation+"}}\nspec: {type: "+tc.kind+", ports: [{port: 1, nodePort: 30000}]}\n"), want)
		})
	}
	validateRows(t, Service, []row{
		{"a nodePort that is none", "spec: {type: NodePort, ports: [{port: 1, nodePort: 70000}]}", []string{"spec.ports[0].nodePort: must be a port from 1 to 65535, and is 70000"}},
	})
}

func TestGatewaysThatAreReachedAtNoNodeGetAWarning(t *testing.T) {
	const gateway, at = "Service infra/g: ", "metadata.annotations.traffic.istio.io/nodeSelector: warning: "
	node := func(name, labels, kind string) string {
		return "- {apiVersion: v1, kind: Node, metadata: {name: " + name + ", labels: " + labels + "}, status: {addresses: [{type: " + kind + ", address: 192.0.2.1}]}}\n"
	}
	nodes := node("n1", "{zone: a}", "ExternalIP") + node("n2", "{zone: b}", "InternalIP")
	service := func(labels, selector, spec string) string {
		return "- {apiVersion: v1, kind: Service, metadata: {name: g, namespace: infra, labels: " + labels + ", annotations: {traffic.istio.io/nodeSelector: '" + selector + "'}}, spec: {" + spec + "}}\n"
	}
	const labelled, ports = "{topology.istio.io/network: east}", "type: NodePort, ports: [{port: 15443, nodePort: 31443}]"
	for _, tc := range []row{
		{"an external address", nodes + service(labelled, `{"zone": "a"}`, ports), nil},
		{"all Nodes", nodes + service(labelled, "{}", ports), nil},
		{"an internal address", nodes + service(labelled, `{"zone": "b"}`, ports), []string{gateway + at + "the gateway is not reached: the Nodes that it selects have no address of the type ExternalIP (status.addresses) [HM0208]"}},
		{"no Node", nodes + service(labelled, `{"zone": "c"}`, ports), []string{gateway + at + "the gateway is not reached: the annotation selects no Node [HM0208]"}},
		{"no Nodes at all", service(labelled, "{}", ports), []string{gateway + at + "the gateway is not reached: there are no Nodes [HM0208]"}},
		{"other addresses", service(labelled, "{}", ports+", externalIPs: [192.0.2.9]"), nil},
		{"of another type", service(labelled, `{"zone": "c"}`, "type: LoadBalancer, ports: [{port: 15443}]"), nil},
		{"no gateway", nodes + service("{}", "{}", ports), []string{gateway + at + "has no effect: neither the label topology.istio.io/network nor the meshNetworks make this Service the gateway of a network [HM0208]"}},
		{"named by the networks", nodes + service("{}", "{}", ports) + "- {apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {meshNetworks: 'networks: {east: {endpoints: [{fromRegistry: c}], gateways: [{registryServiceName: g.infra.svc.cluster.local, port: 15443}]}}'}}\n", nil},
		{"without a nodePort", nodes + service(labelled, "{}", "type: NodePort, ports: [{port: 15443}]"), []string{gateway + "spec.ports: warning: the gateway is not reached: its port 15443 has no nodePort, which a cluster would assign [HM0208]"}},
		{"of UDP", nodes + service(labelled, "{}", "type: NodePort, ports: [{port: 15443, nodePort: 31443, protocol: UDP}]"), []string{
			gateway + "spec.ports: warning: the gateway is not reached: there is no TCP port 15443, which is that of a gateway unless the label networking.istio.io/gatewayPort names another [HM0208]"}},
		{"another port", nodes + service("{topology.istio.io/network: east, networking.istio.io/gatewayPort: '443'}", "{}", "type: NodePort, ports: [{port: 443, nodePort: 31443}]"), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			compare(t, referencesIn(t, "apiVersion: v1\nkind: List\nitems:\n"+tc.spec), tc.want)
		})
	}
}
