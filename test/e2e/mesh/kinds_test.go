package mesh

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Services that are found by DNS, and TCP, serve and change, too. Their endpoints are part of the cluster.
func TestServicesOfDNSAndOfTCPServeAndChange(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		service := func(name, resolution, protocol string, port int, backend *testbed.Backend) testbed.Request {
			_, target, err := net.SplitHostPort(backend.Addr)
			w.check(err)
			address := "127.0.0.1"
			if resolution == "DNS" {
				address = "localhost"
			}
			w.write(name, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.internal]
  resolution: %[2]s
  ports: [{number: %[3]d, name: port, protocol: %[4]s}]
  endpoints: [{address: %[5]s, ports: {port: %[6]s}}]
`, name, resolution, port, protocol, address, target))
			return w.requestTo(name+".internal", port)
		}
		dns, tcp := w.freePort(), w.freePort()
		w.answers(service("dns", "DNS", "HTTP", dns, w.v1), "200 v1")
		w.answers(service("tcp", "STATIC", "TCP", tcp, w.v1), "200 v1")
		_, stop := w.load()
		w.answers(service("dns", "DNS", "HTTP", dns, w.v2), "200 v2")
		w.answers(service("tcp", "STATIC", "TCP", tcp, w.v2), "200 v2")
		w.synced()
		stop()
	})
}

// A service that loses its last endpoint answers 503, and serves again when it has one.
func TestAServiceWithoutEndpointsComesBack(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.service(w.v2) // the subset stable has none any more
		w.answers(w.request(), "503 no healthy upstream")
		w.service(w.v1, w.v2)
		w.answers(w.request(), "200 v1")
		w.service()
		w.answers(w.request(), "503 no healthy upstream")
		w.service(w.v1)
		w.answers(w.request(), "200 v1")
		w.synced()
	})
}

// The certificates of a gateway are files, which its agent reads.
func TestAGatewayEndsTLSWithCertificatesOfFiles(t *testing.T) {
	w := newWorld(t)
	w.through = true
	edge := w.beside("edge-1", "router", `{"app":"edge"}`)
	ca := newAuthority(w, "ca")
	w.check(os.Mkdir(w.path("tls"), 0o700))
	ca.issue("tls/server")
	port := w.freePort()
	w.write("gateway", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - port: {number: %d, name: https, protocol: HTTPS}
    bind: 127.0.0.1
    hosts: ["*"]
    tls: {mode: SIMPLE, serverCertificate: %s, privateKey: %s}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{route: [{destination: {host: web.internal, subset: canary}}]}]
`, port, w.path("tls/server.pem"), w.path("tls/server.key")))
	w.startMesh()
	edge.startAgentWith("--upstream", w.xds, "--upstream-plaintext", "--secret-dir", w.path("tls"))
	edge.startEnvoy()
	edge.answers(testbed.Request{URL: fmt.Sprintf("https://127.0.0.1:%d/", port), Host: "anything.example.com"}, "200 v2")
}

// Two sidecars with certificates of their agents speak mesh TLS, because the documents say so and not the
// applications; a PeerAuthentication decides whether plaintext is taken as well.
func TestSidecarsSpeakMeshTLS(t *testing.T) {
	w := newWorld(t)
	w.through = true
	w.of.labels = `{"app":"client","security.istio.io/tlsMode":"istio"}`
	server := w.beside("web-1", "sidecar", `{"app":"web","security.istio.io/tlsMode":"istio"}`)
	inbound := w.freePort()
	w.remove("rule")
	w.remove("route")
	authenticate := func(mode string) {
		w.write("authentication", fmt.Sprintf(`apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: %s}}
`, mode))
	}
	authenticate("STRICT")
	w.startServed(server, inbound, w.v1.Addr)
	w.answers(w.request(), "200 v1")
	handshakes := fmt.Sprintf(`listener\.127\.0\.0\.1_%d\.ssl\.handshake`, inbound)
	if server.value(handshakes) == 0 {
		t.Error("requests come without TLS")
	}
	plain := w.requestTo("web.internal", inbound)
	if status, _, err := plain.Get(); err == nil {
		t.Errorf("a request in plaintext is answered %d", status)
	}
	_, stop := w.load()
	authenticate("PERMISSIVE")
	server.answers(plain, "200 v1")
	authenticate("STRICT")
	w.check(server.envoy.Wait(limit, func() error {
		if _, _, err := plain.Get(); err == nil {
			return errors.New("requests in plaintext are answered")
		}
		return nil
	}))
	stop()
	if log := w.mesh.Tail(100); strings.Contains(log, "level=ERROR") {
		t.Errorf("the log has errors:\n%s", log)
	}
}

// A Secret that does not exist is missing where it is named, and nowhere else: the gateway starts, after the
// time that Envoy waits, serves its other ports, and the status names what is missing.
func TestAMissingSecretHarmsNothingElse(t *testing.T) {
	testbed.Long(t)
	inAllForms(t, func(w *world) {
		w.of = node{id: "edge-1", kind: "router", labels: `{"app":"edge"}`, dir: w.dir}
		plain, secure := w.freePort(), w.freePort()
		w.write("gateway", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - {port: {number: %d, name: http, protocol: HTTP}, bind: 127.0.0.1, hosts: ["*"]}
  - {port: {number: %d, name: https, protocol: HTTPS}, bind: 127.0.0.1, hosts: ["*"], tls: {mode: SIMPLE, credentialName: typo}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{route: [{destination: {host: web.internal, subset: canary}}]}]
`, plain, secure))
		w.startMesh()
		if w.through {
			w.startAgent()
		}
		w.startEnvoy()
		w.check(w.envoy.Wait(2*limit, func() error { // Envoy waits 15 s for the Secret
			status, body, err := w.requestTo("any.example.com", plain).Get()
			if err == nil && fmt.Sprintf("%d %s", status, body) != "200 v2" {
				err = fmt.Errorf("the other port answers %d %s", status, body)
			}
			return err
		}))
		code, out, _ := run(w, "proxies", "--admin", w.admin)
		if code != 0 || !strings.Contains(out, "edge-1 SDS: there is no Secret, or none for this proxy: kubernetes://typo") {
			w.Errorf("proxies does not name the Secret:\n%s", out)
		}
	})
}

// The HTTP proxy has the services of all ports: the port in the Host header tells them apart.
func TestTheHTTPProxyLeadsToThePortThatTheClientNames(t *testing.T) {
	inAllForms(t, func(w *world) {
		proxy := w.freePort()
		w.write("mesh", fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'proxyHttpPort: %d'}\n", proxy))
		w.start()
		port := func(backend *testbed.Backend) string {
			_, port, err := net.SplitHostPort(backend.Addr)
			w.check(err)
			return port
		}
		one, other := w.freePort(), w.freePort()
		w.write("ports", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: ports, namespace: shop}
spec:
  hosts: [ports.internal]
  resolution: STATIC
  ports: [{number: %d, name: one, protocol: HTTP}, {number: %d, name: other, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {one: %s, other: %s}}]
`, one, other, port(w.v1), port(w.v2)))
		w.answers(w.requestTo(fmt.Sprintf("ports.internal:%d", one), proxy), "200 v1")
		w.answers(w.requestTo(fmt.Sprintf("ports.internal:%d", other), proxy), "200 v2")
		w.synced()
	})
}

// protocol.md V15: Envoy's own limit rejects two UUIDs, and with them all routes of the port.
func TestALargeRegularExpressionWorks(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		const uuid = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
		w.write("route", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [%[1]s]
  http:
  - match: [{uri: {regex: '/tenants/%[2]s/orders/%[2]s'}}]
    route: [{destination: {host: %[1]s, subset: canary}}]
  - route: [{destination: {host: %[1]s, subset: stable}}]
`, host, uuid))
		match := w.request()
		match.URL += "tenants/0b0e1c9e-8f0a-4c52-9f57-0d7c2f8b8a55/orders/5f0c7c7e-2f3e-4a44-8d44-2ab9e1d06a11"
		w.answers(match, "200 v2")
		w.answers(w.request(), "200 v1")
		w.synced()
	})
}
