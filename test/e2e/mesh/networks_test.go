package mesh

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// A server in another network is reached through the gateway there, by mutual TLS that the gateway does not
// end; also one whose address nobody says. The change to it and back fails no request.
func TestAServerInAnotherNetworkIsReachedThroughItsGateway(t *testing.T) {
	p := newPair(t, "STRICT", "NETWORK=west")
	gateway := p.beside("gateway-1", "router", `{"app":"gateway"}`)
	gateway.of.metadata = []string{"NETWORK=east"}
	port := p.freePort()
	p.write("gateway", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gateway, namespace: shop}
spec:
  selector: {app: gateway}
  servers: [{port: {number: %d, name: tls, protocol: TLS}, bind: 0.0.0.0, hosts: ["*.internal"], tls: {mode: AUTO_PASSTHROUGH}}]
`, port))
	p.run(gateway, "gateway")
	p.check(gateway.envoy.Wait(limit, func() error { return testbed.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)) }))
	through := func() int {
		return gateway.value(fmt.Sprintf(`tcp\.outbound_\.%d_\._\.web\.internal\.downstream_cx_total`, p.port))
	}
	_, stop := p.load()
	networks := func(text string) {
		p.write("networks", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  meshNetworks: |\n    networks: "+text+"\n")
	}
	// All endpoints of loopback are in the other network now.
	networks(fmt.Sprintf(`{east: {endpoints: [{fromCidr: 127.0.0.0/8}], gateways: [{address: 127.0.0.1, port: %d}]}}`, port))
	p.check(p.envoy.Wait(limit, func() error {
		if through() == 0 {
			return errors.New("no connection comes through the gateway")
		}
		return nil
	}))
	p.answers(p.request(), "200 v1")
	// A gateway at the addresses of Nodes takes the place of the one that the networks name, and moves with the address.
	gatewayAtNode := func(address string) {
		p.write("node", "apiVersion: v1\nkind: Node\nmetadata: {name: node-1, labels: {edge: 'yes'}}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: ExternalIP, address: "+address+"}]}\n")
	}
	explained := func(gateway string) {
		p.Helper()
		p.check(p.envoy.Wait(limit, func() error {
			if _, out, _ := run(p, "explain", "--proxy", "client-1", fmt.Sprintf("web.internal:%d/", p.port), "--admin", p.admin); !strings.Contains(out, gateway) || !strings.Contains(out, "the gateway of the network east") {
				return fmt.Errorf("explain does not name the gateway %s:\n%s", gateway, out)
			}
			return nil
		}))
		p.answers(p.request(), "200 v1")
	}
	gatewayAtNode("127.0.0.1")
	p.write("at-nodes", fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: gateway, namespace: shop, labels: {topology.istio.io/network: east}, annotations: {traffic.istio.io/nodeSelector: '{"edge": "yes"}'}}
spec: {type: NodePort, ports: [{name: tls, port: 15443, nodePort: %d}]}
`, port))
	networks(`{east: {endpoints: [{fromCidr: 127.0.0.0/8}]}}`)
	explained(fmt.Sprintf("127.0.0.1:%d", port))
	gatewayAtNode("127.0.0.2") // the gateway listens on both
	explained(fmt.Sprintf("127.0.0.2:%d", port))
	networks("{}")
	p.remove("at-nodes")
	p.check(p.envoy.Wait(limit, func() error {
		before := through()
		if status, body, err := p.request().Get(); err != nil || fmt.Sprintf("%d %s", status, body) != "200 v1" {
			return fmt.Errorf("%d %s %v", status, body, err)
		}
		if through() != before {
			return errors.New("connections still come through the gateway")
		}
		return nil
	}))
	stop()
	// The gateway is no way around mutual TLS.
	if _, _, err := p.requestTo("web.internal", port).Get(); err == nil {
		t.Error("a request in plaintext comes through the gateway")
	}
	// A workload without an address: its gateway knows it, by an endpoint that it alone sees.
	before := through()
	networks(fmt.Sprintf(`{east: {gateways: [{address: 127.0.0.1, port: %d}]}}`, port))
	p.write("service", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints: [{network: east, ports: {http: 1}, serviceAccount: web, labels: {app: web, security.istio.io/tlsMode: istio}}]
`, p.port))
	p.check(p.envoy.Wait(limit, func() error {
		if status, _, err := p.request().Get(); err != nil || status != 503 {
			return fmt.Errorf("the gateway knows no endpoint, and the answer is %d %v", status, err)
		}
		if through() == before {
			return errors.New("the request did not come to the gateway")
		}
		return nil
	}))
}
