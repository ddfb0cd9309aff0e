package mesh

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// meshConfig writes the mesh configuration.
func (w *world) meshConfig(text string) {
	w.Helper()
	w.write("mesh", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    "+
		strings.ReplaceAll(text, "\n", "\n    ")+"\n")
}

// A workload that is checked gets requests while its status says that it is healthy.
func TestAWorkloadGetsRequestsWhileItIsHealthy(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.remove("rule")
		w.remove("route")
		w.write("service", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: web}}
`, host, w.port))
		healthy := func(name string, backend *testbed.Backend, healthy string) {
			_, port, err := net.SplitHostPort(backend.Addr)
			w.check(err)
			w.write(name, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: %s, namespace: shop, annotations: {proxy.istio.io/health-checks-enabled: "true"}}
spec: {address: 127.0.0.1, ports: {http: %s}, labels: {app: web}}
status: {conditions: [{type: Healthy, status: "%s"}]}
`, name, port, healthy))
		}
		healthy("one", w.v1, "True")
		healthy("two", w.v2, "False")
		w.start()
		for range 10 {
			w.answers(w.request(), "200 v1")
		}
		healthy("two", w.v2, "True")
		w.answers(w.request(), "200 v2")
		healthy("one", w.v1, "False")
		healthy("two", w.v2, "False")
		w.answers(w.request(), "503 no healthy upstream")
	})
}

// Outlier detection ejects an endpoint for the status codes that a rule lists, and for no others.
func TestTheStatusCodesOfARuleEjectAnEndpoint(t *testing.T) {
	w := newWorld(t)
	backend := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/limited":
			rw.WriteHeader(http.StatusTooManyRequests)
		case "/broken":
			rw.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprint(rw, "v1")
	}))
	t.Cleanup(backend.Close)
	w.remove("route")
	w.service(&testbed.Backend{Addr: backend.Listener.Addr().String()})
	w.write("rule", `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: `+host+`
  trafficPolicy: {outlierDetection: {consecutive5xxErrors: 1, outlierDetectionHttpErrorCodes: [429], interval: 60s, baseEjectionTime: 60s, maxEjectionPercent: 100}}
`)
	w.start()
	to := func(path string) testbed.Request {
		r := w.request()
		r.URL = strings.TrimSuffix(r.URL, "/") + path
		return r
	}
	for range 5 {
		w.answers(to("/broken"), "500 v1")
	}
	w.answers(to("/"), "200 v1")
	w.answers(to("/limited"), "429 v1")
	w.answers(to("/"), "503 no healthy upstream")
}

// Requests to hosts that no document has go to the addresses of these hosts' names.
func TestUnknownHostsAreReachedByTheirNames(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.meshConfig("outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS}")
		w.start()
		other := w.backend("other")
		w.answers(w.requestTo(other.Addr, w.port), "200 other")
		_, port, err := net.SplitHostPort(other.Addr)
		w.check(err)
		w.answers(w.requestTo("localhost:"+port, w.port), "200 other")
		w.meshConfig("outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
		w.answers(w.requestTo(other.Addr, w.port), "502 ")
		w.answers(w.request(), "200 v1")
	})
}

// A sidecar takes mesh TLS from clients of the trust domains of the mesh only, and a client verifies that
// the server has the service account of an endpoint, in one of these.
func TestMeshTLSIsForTheTrustDomainsOfTheMesh(t *testing.T) {
	w := newWorld(t)
	w.through = true
	w.of.labels = `{"app":"client","security.istio.io/tlsMode":"istio"}`
	server := w.beside("web-1", "sidecar", `{"app":"web","security.istio.io/tlsMode":"istio"}`)
	inbound := w.freePort()
	w.remove("rule")
	w.remove("route")
	service := func(account string) {
		w.write("service", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %d}, serviceAccount: %s}]
`, host, w.port, inbound, account))
	}
	service("web")
	w.write("inbound", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress: [{port: {number: %d, name: http, protocol: HTTP}, defaultEndpoint: "%s"}]
  egress: [{hosts: ["~/*"]}]
`, inbound, w.v1.Addr))
	w.write("authentication", "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec: {mtls: {mode: STRICT}}\n")
	w.startMesh()
	for account, p := range map[string]*world{"web": server, "client": w} {
		p.startAgentWith("--upstream", w.xds, "--upstream-plaintext", "--ca", "dev:"+w.path("ca"), "--identity", "spiffe://old.example.org/ns/shop/sa/"+account)
		p.startEnvoy()
	}
	w.rejects("old.example.org is no trust domain of the mesh")
	w.meshConfig("trustDomain: example.org\ntrustDomainAliases: [old.example.org]")
	w.answers(w.request(), "200 v1")
	service("other")
	w.rejects("the endpoint has another service account than the server")
	service("web")
	w.answers(w.request(), "200 v1")
	w.meshConfig("trustDomain: old.example.org")
	w.answers(w.request(), "200 v1")
	w.meshConfig("trustDomain: example.org")
	w.rejects("old.example.org is no alias any more")
}

// rejects waits until a request gets 503, because a TLS handshake fails.
func (w *world) rejects(why string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		status, _, err := w.request().Get()
		if err == nil && status != http.StatusServiceUnavailable {
			err = fmt.Errorf("a request is answered %d, but %s", status, why)
		}
		return err
	}))
}

// Requests to the hosts of a wildcard go to the addresses of these hosts' names, and to no others.
func TestTheHostsOfAWildcardAreReachedByTheirNames(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.meshConfig("outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
		w.write("wild", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild, namespace: shop}
spec:
  hosts: ["*.localhost"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: %d, name: http, protocol: HTTP}, {number: %d, name: tls, protocol: TLS}]
`, w.port, w.freePort()))
		w.start()
		_, port, err := net.SplitHostPort(w.v2.Addr)
		w.check(err)
		w.answers(w.requestTo("a.localhost:"+port, w.port), "200 v2")
		w.answers(w.requestTo("b.localhost:"+port, w.port), "200 v2")
		w.answers(w.requestTo("localhost:"+port, w.port), "502 ")
		w.synced()
	})
}

// A request to an automatic address is one to the service, for a proxy whose workload has such addresses
// from a DNS proxy.
func TestAnAutomaticAddressIsTheService(t *testing.T) {
	for _, captures := range []bool{true, false} {
		t.Run(fmt.Sprintf("DNS_CAPTURE=%v", captures), func(t *testing.T) {
			w := newWorld(t)
			w.of.metadata = []string{fmt.Sprintf("DNS_CAPTURE=%v", captures)}
			w.meshConfig("outboundTrafficPolicy: {mode: REGISTRY_ONLY}")
			w.write("service", w.entry(host, w.port, w.v1)+"status: {addresses: [{value: 240.240.7.9, host: "+host+"}]}\n")
			w.start()
			want := "502 "
			if captures {
				want = "200 v1"
			}
			w.answers(w.requestTo("240.240.7.9", w.port), want)
		})
	}
}

// A proxy on a node uses the endpoints of its node, or those of its zone, if the Service says so.
func TestAServiceIsReachedOnTheOwnNode(t *testing.T) {
	for _, says := range []string{"internalTrafficPolicy: Local", "trafficDistribution: PreferSameNode", "trafficDistribution: PreferClose"} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.of.labels = `{"topology.kubernetes.io/region":"eu","topology.kubernetes.io/zone":"a"}`
			w.of.metadata = []string{"NODE_NAME=n1"}
			for _, name := range []string{"rule", "route"} {
				w.remove(name)
			}
			_, target, err := net.SplitHostPort(w.v1.Addr)
			w.check(err)
			documents := func(own, other string) {
				w.write("service", fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, %s, ports: [{name: http, port: %d}]}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: eu, topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {topology.kubernetes.io/region: eu, topology.kubernetes.io/zone: b}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: %s}]
endpoints: [{addresses: [127.0.0.1], nodeName: %s}, {addresses: [127.0.0.2], nodeName: %s}]
`, says, w.port, target, own, other))
			}
			documents("n1", "n2") // nobody listens on 127.0.0.2
			w.startMesh()
			if w.through {
				w.startAgent()
			}
			w.startEnvoy()
			r := w.requestTo("web.shop.svc.cluster.local", w.port)
			w.answers(r, "200 v1")
			for range 20 {
				if status, body, err := r.Get(); err != nil || status != http.StatusOK {
					t.Fatalf("a request is answered %d %s (%v)", status, body, err)
				}
			}
			documents("n2", "n1")
			w.check(w.envoy.Wait(limit, func() error {
				if status, _, err := r.Get(); err != nil || status != http.StatusServiceUnavailable {
					return fmt.Errorf("a request is answered %d (%v), but the endpoint of the node is not there", status, err)
				}
				return nil
			}))
		})
	}
}
