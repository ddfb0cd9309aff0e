package push

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

const networksHead = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  meshNetworks: |\n    networks:\n"

func TestNetworksAndTheirGateways(t *testing.T) {
	d := (&documents{}).put(t, networksHead+`      east: {endpoints: [{fromRegistry: c1}, {fromCidr: 10.1.0.0/16}], gateways: [{address: 192.0.2.2, port: 15443}, {address: 192.0.2.1, port: 15443}, {registryServiceName: gateway.infra.svc.cluster.local, port: 443}]}
      west: {endpoints: [{fromCidr: 10.0.0.0/8}], gateways: [{address: west.example, port: 15443}, {registryServiceName: gateway.infra.svc.cluster.local, port: 444}]}
      unused: {gateways: [{port: 1}]}
---
{apiVersion: v1, kind: Service, metadata: {name: gateway, namespace: infra}, spec: {type: LoadBalancer, ports: [{port: 443}]}, status: {loadBalancer: {ingress: [{ip: 198.51.100.1}, {hostname: lb.example}]}}}
---
{apiVersion: v1, kind: Service, metadata: {name: labelled, namespace: infra, labels: {topology.istio.io/network: north}}, spec: {externalIPs: [203.0.113.1], ports: [{port: 15443}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: other-port, namespace: infra, labels: {topology.istio.io/network: north, networking.istio.io/gatewayPort: "9"}}, spec: {externalIPs: [203.0.113.2], ports: [{port: 15443}]}}
`)
	s := snapshot(d)
	for _, tc := range []struct {
		network, cluster string
		dns              bool
		want             string
	}{
		{"east", "c1", false, "[{east c1 198.51.100.1 443}]"},
		{"east", "c1", true, "[{east c1 198.51.100.1 443} {east c1 lb.example 443}]"},
		{"east", "c2", false, "[{east  192.0.2.1 15443} {east  192.0.2.2 15443} {east c1 198.51.100.1 443}]"},
		{"west", "c1", false, "[]"}, // no address of the Service: it is not that of this registry
		{"west", "c1", true, "[{west  west.example 15443}]"},
		{"north", "c1", false, "[{north c1 203.0.113.1 15443}]"},
		{"unused", "", true, "[]"},
	} {
		if got := fmt.Sprint(s.Networks(tc.dns).Gateways(tc.network, tc.cluster)); got != tc.want {
			t.Errorf("the gateways of %s in %s, with names %v: %s, want %s", tc.network, tc.cluster, tc.dns, got, tc.want)
		}
	}
	for _, tc := range []struct {
		endpoint service.Endpoint
		want     string
	}{
		{service.Endpoint{Network: "own", Address: "10.1.0.1", Cluster: "c1"}, "own"},
		{service.Endpoint{Address: "10.1.0.1", Cluster: "c1"}, "east"},
		{service.Endpoint{Address: "10.1.0.1", Cluster: "c2"}, "west"}, // the widest prefix, as with istiod
		{service.Endpoint{Address: "192.0.2.9", Cluster: "c2"}, ""},
		{service.Endpoint{Address: "a.example", Cluster: "c2"}, ""},
	} {
		if got := s.NetworkOf(&tc.endpoint); got != tc.want {
			t.Errorf("the network of %s in %s is %q, want %q", tc.endpoint.Address, tc.endpoint.Cluster, got, tc.want)
		}
	}
}

// Everything that goes to a network passes its gateways: nobody adds one to the network of another namespace.
func TestWhoseServicesAreTheGatewaysOfANetwork(t *testing.T) {
	gateway := func(namespace, name, network, address, more string) string {
		return "{apiVersion: v1, kind: Service, metadata: {name: " + name + ", namespace: " + namespace + ", labels: {topology.istio.io/network: " + network + more + "}}, spec: {externalIPs: [" + address + "], ports: [{port: 15443}]}}"
	}
	mesh := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'rootNamespace: root'}\n"
	for _, tc := range []struct {
		name, want string
		documents  []string // the oldest first
	}{
		{"the root namespace's", "192.0.2.1 192.0.2.2", []string{gateway("red", "g", "net2", "6.6.6.6", ""), gateway("istio-system", "a", "net2", "192.0.2.1", ""), gateway("istio-system", "b", "net2", "192.0.2.2", "")}},
		{"another root namespace's", "192.0.2.2", []string{mesh, gateway("istio-system", "g", "net2", "192.0.2.1", ""), gateway("root", "g", "net2", "192.0.2.2", "")}},
		{"the oldest Service's namespace's", "192.0.2.1 192.0.2.2", []string{gateway("blue", "a", "net2", "192.0.2.1", ""), gateway("red", "a", "net2", "6.6.6.6", ""), gateway("blue", "b", "net2", "192.0.2.2", "")}},
		{"each network's", "192.0.2.1", []string{gateway("red", "a", "net1", "6.6.6.6", ""), gateway("blue", "a", "net2", "192.0.2.1", ""), gateway("red", "b", "net2", "6.6.6.6", "")}},
		{"one without the port is none", "192.0.2.2", []string{gateway("blue", "a", "net2", "192.0.2.1", ", networking.istio.io/gatewayPort: '9'"), gateway("red", "a", "net2", "192.0.2.2", "")}},
		{"those that the MeshNetworks name", "192.0.2.9", []string{gateway("red", "a", "net2", "6.6.6.6", ""), networksHead + "      net2: {gateways: [{address: 192.0.2.9, port: 15443}]}\n"}},
		{"and the root namespace's beside them", "192.0.2.1 192.0.2.9", []string{gateway("red", "a", "net2", "6.6.6.6", ""), networksHead + "      net2: {gateways: [{address: 192.0.2.9, port: 15443}]}\n", gateway("istio-system", "a", "net2", "192.0.2.1", "")}},
		{"a Service that the MeshNetworks name", "192.0.2.1", []string{gateway("red", "a", "net2", "6.6.6.6", ""), networksHead + "      net2: {gateways: [{registryServiceName: a.blue.svc.cluster.local, port: 15443}]}\n", gateway("blue", "a", "net2", "192.0.2.1", "")}},
		{"MeshNetworks that name none", "192.0.2.1", []string{gateway("blue", "a", "net2", "192.0.2.1", ""), networksHead + "      net2: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, gw := range snapshot((&documents{}).put(t, strings.Join(tc.documents, "\n---\n"))).Networks(false).Gateways("net2", "c2") {
				got = append(got, gw.Address)
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%v, want %s", got, tc.want)
			}
		})
	}
}

func TestNetworksStayTheSameWhileTheyDoNotChange(t *testing.T) {
	d := (&documents{}).put(t, networksHead+"      east: {gateways: [{address: 192.0.2.1, port: 15443}]}\n")
	before := snapshot(d)
	changed := map[config.Kind]bool{config.Service: true}
	d.put(t, "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b}, spec: {ports: [{port: 80}]}}")
	same := New(d, config.DefaultDomain, before, changed, false)
	if same.Since(before) != 0 {
		t.Error("a Service that is no gateway changes the networks")
	}
	d.put(t, "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: b, labels: {topology.istio.io/network: west}}, spec: {externalIPs: [192.0.2.2], ports: [{port: 15443}]}}")
	if New(d, config.DefaultDomain, same, changed, false).Since(same) != NetworkGateways {
		t.Error("a gateway changes nothing")
	}
}

func TestWhichServicesMayBeGatewaysOfNetworks(t *testing.T) {
	d := (&documents{}).put(t, networksHead+"      east: {gateways: [{registryServiceName: gateway.infra.svc.cluster.local, port: 443}]}\n")
	networks := d.List(config.MeshNetworks, "")
	named := func(name string, labels map[string]string) *config.Config {
		return &config.Config{Meta: config.Meta{Key: config.Key{Kind: config.Service, Namespace: "infra", Name: name}, Labels: labels}}
	}
	for _, tc := range []struct {
		of   *config.Config
		want bool
	}{
		{nil, false}, {named("gateway", nil), true}, {named("other", nil), false}, {named("other", map[string]string{"topology.istio.io/network": "n"}), true},
	} {
		if got := IsNetworkGateway(tc.of, networks, config.DefaultDomain); got != tc.want {
			t.Errorf("%v: %v", tc.of, got)
		}
	}
}

func TestAGatewayOfANetworkIsReachedAtTheAddressesOfNodes(t *testing.T) {
	const nodes = `
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone: a, edge: ""}}, status: {addresses: [{type: Hostname, address: n1}, {type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 192.0.2.1}, {type: ExternalIP, address: 192.0.2.11}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {zone: b}}, status: {addresses: [{type: ExternalIP, address: 192.0.2.2}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n3, labels: {zone: b}}, status: {addresses: [{type: InternalIP, address: 10.0.0.3}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n4}, status: {addresses: [{type: ExternalIP, address: ""}, {type: ExternalIP, address: "2001:db8::4"}]}}
---
`
	for _, tc := range []struct{ name, labels, selector, spec, status, want string }{
		{"all", "", "{}", "type: NodePort, ports: [{port: 15443, nodePort: 31443}]", "", "[{east c1 192.0.2.1 31443} {east c1 192.0.2.2 31443} {east c1 2001:db8::4 31443}]"},
		{"an empty annotation", "", "", "type: NodePort, ports: [{port: 15443, nodePort: 31443}]", "", "[{east c1 192.0.2.1 31443} {east c1 192.0.2.2 31443} {east c1 2001:db8::4 31443}]"},
		{"by a label", "", `{"zone": "b"}`, "type: NodePort, ports: [{port: 15443, nodePort: 31443}]", "", "[{east c1 192.0.2.2 31443}]"},
		{"by two labels", "", `{"zone": "a", "edge": ""}`, "type: NodePort, ports: [{port: 15443, nodePort: 31443}]", "", "[{east c1 192.0.2.1 31443}]"},
		{"by an empty label that is missing", "", `{"zone": "b", "edge": ""}`, "type: NodePort, ports: [{port: 15443, nodePort: 31443}]", "", "[]"},
		{"no Node", "", `{"zone": "c"}`, "type: NodePort, ports: [{port: 15443, nodePort: 31443}]", "", "[]"},
		{"another port", `, networking.istio.io/gatewayPort: "443"`, "{}", "type: NodePort, ports: [{name: a, port: 15443, nodePort: 31443}, {name: b, port: 443, nodePort: 30443}]", "", "[{east c1 192.0.2.1 30443} {east c1 192.0.2.2 30443} {east c1 2001:db8::4 30443}]"},
		{"a port for UDP beside it", "", `{"zone": "b"}`, "type: NodePort, ports: [{name: a, port: 15443, nodePort: 31443}, {name: b, port: 15443, protocol: UDP, nodePort: 30000}]", "", "[{east c1 192.0.2.2 31443}]"},
		{"without a nodePort", "", "{}", "type: NodePort, ports: [{port: 15443}]", "", "[]"},
		{"externalIPs come first, at the nodePort", "", "{}", "type: NodePort, externalIPs: [203.0.113.1], ports: [{port: 15443, nodePort: 31443}]", "", "[{east c1 203.0.113.1 31443}]"},
		{"a load balancer", "", "{}", "type: LoadBalancer, ports: [{port: 15443, nodePort: 31443}]", ", status: {loadBalancer: {ingress: [{ip: 203.0.113.2}]}}", "[{east c1 203.0.113.2 15443}]"},
		{"a load balancer without an address", "", "{}", "type: LoadBalancer, ports: [{port: 15443, nodePort: 31443}]", "", "[]"},
		{"a cluster IP", "", "{}", "ports: [{port: 15443}]", "", "[]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := (&documents{}).put(t, nodes+"{apiVersion: v1, kind: Service, metadata: {name: g, namespace: infra, labels: {topology.istio.io/network: east"+tc.labels+"}, annotations: {traffic.istio.io/nodeSelector: '"+tc.selector+"'}}, spec: {"+tc.spec+"}"+tc.status+"}")
			if got := fmt.Sprint(snapshot(d).Networks(false).Gateways("east", "c1")); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
	// By the meshNetworks: their port is one of the Service, or else is taken as it is.
	d := (&documents{}).put(t, nodes+`{apiVersion: v1, kind: Service, metadata: {name: g, namespace: infra, annotations: {traffic.istio.io/nodeSelector: '{"zone": "b"}'}}, spec: {type: NodePort, ports: [{port: 443, nodePort: 30443}]}}
---
`+networksHead+"      east: {endpoints: [{fromRegistry: c1}], gateways: [{registryServiceName: g.infra.svc.cluster.local, port: 443}, {registryServiceName: g.infra.svc.cluster.local, port: 32000}]}\n")
	if got, want := fmt.Sprint(snapshot(d).Networks(false).Gateways("east", "c1")), "[{east c1 192.0.2.2 30443} {east c1 192.0.2.2 32000}]"; got != want {
		t.Errorf("by the meshNetworks: %s, want %s", got, want)
	}
}

func TestWhichChangesOfNodesMoveGateways(t *testing.T) {
	node := func(labels, kind, address string) *config.Config {
		d := (&documents{}).put(t, "{apiVersion: v1, kind: Node, metadata: {name: node, labels: "+labels+"}, status: {addresses: [{type: "+kind+", address: "+address+"}]}}")
		return d.List(config.Node, "")[0]
	}
	services := func(labels, selector string) []*config.Config {
		return (&documents{}).put(t, "{apiVersion: v1, kind: Service, metadata: {name: g, namespace: infra, labels: "+labels+", annotations: {traffic.istio.io/nodeSelector: '"+selector+"'}}, spec: {type: NodePort, ports: [{port: 15443, nodePort: 31443}]}}").List(config.Service, "")
	}
	gateway := services("{topology.istio.io/network: east}", `{"zone": "a"}`)
	one := node("{zone: a}", "ExternalIP", "192.0.2.1")
	for _, tc := range []struct {
		name     string
		old, now *config.Config
		services []*config.Config
		want     bool
	}{
		{"added", nil, one, gateway, true},
		{"removed", one, nil, gateway, true},
		{"another address", one, node("{zone: a}", "ExternalIP", "192.0.2.2"), gateway, true},
		{"not external any more", one, node("{zone: a}", "InternalIP", "192.0.2.1"), gateway, true},
		{"not selected any more", one, node("{zone: b}", "ExternalIP", "192.0.2.1"), gateway, true},
		{"another label", one, node("{zone: a, x: z}", "ExternalIP", "192.0.2.1"), gateway, false},
		{"never selected", node("{zone: b}", "ExternalIP", "192.0.2.1"), node("{zone: b}", "ExternalIP", "192.0.2.2"), gateway, false},
		{"never external", nil, node("{zone: a}", "InternalIP", "10.0.0.1"), gateway, false},
		{"of no gateway", nil, one, services("{}", "{}"), false},
		{"without Services", nil, one, nil, false},
	} {
		if got := MovesGateways(tc.old, tc.now, tc.services, nil, config.DefaultDomain); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}
