package server

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

const otherNetwork = services + `
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: b}
spec: {hosts: [b.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.2, network: east, labels: {security.istio.io/tlsMode: istio}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: of-a-node}
spec: {hosts: [a.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: a}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, labels: {app: a}}, spec: {nodeName: node-1, containers: []}, status: {podIP: 10.0.0.9}}
---
{apiVersion: v1, kind: Service, metadata: {name: gateway, namespace: infra, labels: {topology.istio.io/network: east}, annotations: {traffic.istio.io/nodeSelector: '{"edge": "yes"}'}}, spec: {type: NodePort, ports: [{port: 15443, nodePort: 31443}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-1, labels: {edge: "yes"}}, status: {addresses: [{type: ExternalIP, address: 192.0.2.1}]}}
`

// addresses returns the addresses of the endpoints of b.internal as a client is served them.
func (c *client) addresses(gen *generation) string {
	r := gen.assignment(c.proxy, generated(gen, c.proxy).clusters, "outbound|80||b.internal")
	if r == nil {
		return "none"
	}
	var all endpointv3.ClusterLoadAssignment
	if err := r.Body.UnmarshalTo(&all); err != nil {
		c.Fatal(err)
	}
	var out []string
	for _, locality := range all.GetEndpoints() {
		for _, ep := range locality.GetLbEndpoints() {
			at := ep.GetEndpoint().GetAddress().GetSocketAddress()
			out = append(out, fmt.Sprint(at.GetAddress(), ":", at.GetPortValue()))
		}
	}
	return strings.Join(out, " ")
}

func TestAChangeOfANodeMovesTheGatewayOfANetwork(t *testing.T) {
	node := func(labels, kind, address string) string {
		return "{apiVersion: v1, kind: Node, metadata: {name: node-1, labels: " + labels + "}, status: {addresses: [{type: " + kind + ", address: " + address + "}]}}"
	}
	on(t, otherNetwork, func(r *rig) {
		c := r.connect("n", map[string]any{"NETWORK": "west", "NAMESPACE": "default"})
		if got := c.addresses(r.server.gen); got != "192.0.2.1:31443" {
			t.Fatalf("at first: %s", got)
		}
		const told = "EDS outbound|80||b.internal"
		for _, step := range []struct{ change, want, told string }{
			{node(`{edge: "yes"}`, "ExternalIP", "192.0.2.2"), "192.0.2.2:31443", told},
			{node(`{edge: "yes", other: label}`, "ExternalIP", "192.0.2.2"), "192.0.2.2:31443", ""},
			{strings.Replace(node(`{edge: "yes"}`, "ExternalIP", "192.0.2.3"), "node-1", "node-2", 1), "192.0.2.2:31443 192.0.2.3:31443", told},
			{node(`{edge: "no"}`, "ExternalIP", "192.0.2.2"), "192.0.2.3:31443", told},
			{node(`{edge: "yes"}`, "InternalIP", "10.9.9.9"), "192.0.2.3:31443", ""},
			{node(`{edge: "yes", topology.kubernetes.io/zone: z}`, "ExternalIP", "192.0.2.2"), "192.0.2.2:31443 192.0.2.3:31443", told},
		} {
			c.changes()
			r.put(step.change)
			r.settle()
			if got := c.changes(); !strings.Contains(got, step.told) || step.told == "" && got != "" {
				t.Errorf("%s: told %q, want %q", step.change, got, step.told)
			}
			if got := c.addresses(r.server.gen); got != step.want {
				t.Errorf("%s: %s, want %s", step.change, got, step.want)
			}
			for place := range strings.SplitSeq(step.want, " ") {
				if network := r.server.Served("n")[0].NetworkAt(place); network != "east" {
					t.Errorf("at %s is a gateway of %q", place, network)
				}
			}
		}
		if network := r.server.Served("n")[0].NetworkAt("10.0.0.2:80"); network != "" {
			t.Errorf("an endpoint is a gateway of %q", network)
		}
		for _, step := range [][2]string{{"node-1", "192.0.2.3:31443"}, {"node-2", "10.0.0.2:80"}} { // a network without a gateway is reached directly
			c.changes()
			if err := r.store.Delete(t.Context(), config.Key{Kind: config.Node, Name: step[0]}, ""); err != nil {
				t.Fatal(err)
			}
			r.settle()
			if got := c.addresses(r.server.gen); got != step[1] || !strings.Contains(c.changes(), told) {
				t.Errorf("without %s: %s, want %s", step[0], got, step[1])
			}
		}
	})
}

// What proxies are served after any number of changes of Nodes and gateways is what they would be served if everything
// was generated anew, and they are told of what differs.
func TestGatewaysAtNodesAreAsIfGeneratedAnew(t *testing.T) {
	on(t, otherNetwork, func(r *rig) {
		random := rand.New(rand.NewPCG(3, 4))
		clients := []*client{
			r.connect("n1", map[string]any{"NETWORK": "west", "NAMESPACE": "default"}), r.connect("n2", map[string]any{"NETWORK": "east", "NAMESPACE": "default"}),
			r.connect("n3", map[string]any{"NAMESPACE": "other"}),
		}
		pick := func(of ...string) string { return of[random.IntN(len(of))] }
		moves := 0
		for step := range 200 {
			before := make([]string, len(clients))
			for i, c := range clients {
				c.changes()
				before[i] = fmt.Sprint(c.addresses(r.server.gen))
			}
			for range 1 + random.IntN(2) {
				gone := config.Key{Kind: config.Node, Name: pick("node-1", "node-2", "node-3")}
				if random.IntN(5) == 0 && r.store.Get(gone) != nil {
					if err := r.store.Delete(t.Context(), gone, ""); err != nil {
						t.Fatal(err)
					}
					continue
				}
				if random.IntN(8) == 0 {
					r.put("{apiVersion: v1, kind: Service, metadata: {name: gateway, namespace: infra, labels: {topology.istio.io/network: east}, annotations: {traffic.istio.io/nodeSelector: '" + pick("{}", `{"edge": "yes"}`, `{"topology.kubernetes.io/zone": "a"}`) +
						"'}}, spec: {type: " + pick("NodePort", "NodePort", "ClusterIP") + ", ports: [{port: 15443, nodePort: " + pick("31443", "31444") + "}]}}")
					continue
				}
				r.put("{apiVersion: v1, kind: Node, metadata: {name: " + pick("node-1", "node-2", "node-3") + ", labels: {edge: '" + pick("yes", "no") + "', topology.kubernetes.io/zone: " + pick("a", "b") + ", other: " + pick("a", "b") + "}}, status: {addresses: [{type: " +
					pick("ExternalIP", "ExternalIP", "InternalIP") + ", address: 192.0.2." + pick("1", "2", "3") + "}]}}")
			}
			r.settle()
			anew := newGeneration(push.New(r.server.source, config.DefaultDomain, nil, nil, true), r.server.cfg.Shards, nil, nil, NewMetrics(nil), func([]generate.Failure) {})
			for i, c := range clients {
				got, want := c.addresses(r.server.gen), c.addresses(anew)
				if got != want {
					t.Fatalf("step %d: %s is served %s, want %s", step, c.proxy.Node, got, want)
				}
				if told := strings.Contains(c.changes(), "EDS outbound|80||b.internal"); got != before[i] && !told {
					t.Fatalf("step %d: %s is not told that the endpoints are %s and not %s", step, c.proxy.Node, got, before[i])
				}
				if got != before[i] {
					moves++
				}
				for _, cluster := range []string{"outbound|80||a.internal", "outbound|80||b.internal"} {
					if got, want := r.server.gen.assignment(c.proxy, c.clusters, cluster), anew.Assignment(proxy.NewView(c.proxy), cluster); got.Version != want.Version {
						t.Fatalf("step %d: %s of %s differs from what is generated anew", step, cluster, c.proxy.Node)
					}
				}
			}
		}
		if moves < 50 {
			t.Errorf("endpoints moved %d times: the test shows little", moves)
		}
	})
}
