package istio

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// The webhook injects holdfast in the place of pilot-agent: one native sidecar of Istio's name. Everybody reaches everybody
// with mutual TLS, probes by HTTP are answered, Istio's tools see the proxies, and Prometheus its metrics.
func TestInjected(t *testing.T) {
	m := newMesh(t, "injected")
	m.deploy("a", 1, withHoldfast)
	// Probes at another port, and names by a DNS proxy, which holdfast does not have: the pod asks the cluster's.
	m.deploy("b", 1, withHoldfast, `status.sidecar.istio.io/port: "15025"`, `proxy.istio.io/config: "proxyMetadata: {ISTIO_META_DNS_CAPTURE: 'true'}"`)
	m.deploy("p", 1, withPilotAgent)
	for _, name := range []string{"a", "b", "p"} {
		m.RolledOut(name)
	}
	pod := m.Pod(selector("a"))
	var names []string
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); got != "istio-init istio-proxy" || pod.Spec.InitContainers[1].Image != "holdfast-istio:"+rig.Version {
		t.Errorf("init containers %s, with the image %s", got, pod.Spec.InitContainers[1].Image)
	}

	for _, pair := range []string{"a b", "b a", "a p", "p a"} {
		from, to, _ := strings.Cut(pair, " ")
		m.authenticated(from, to, "http://"+to)
		sent := 0
		m.Eventually(time.Minute, func() error {
			load := m.load(from, to)()
			time.Sleep(time.Second)
			report, err := load.Stop()
			m.Check(err)
			if len(report.Failures) > 0 {
				t.Errorf("%s to %s: %s", from, to, report)
			}
			if sent += report.Sent; sent < 50 {
				return fmt.Errorf("%s to %s: %d requests in a minute", from, to, sent)
			}
			return nil
		})
	}
	m.refusesPlaintext("a")
	m.refusesPlaintext("p")
	m.seenByIstioctl("a", "p")
	m.scraped("a")
}

// authenticated checks that an application reaches another at a URL, with mutual TLS.
func (m *mesh) authenticated(from, to, url string, args ...string) {
	m.Helper()
	m.Eventually(time.Minute, func() error {
		r := m.get(from, url+"/header?key=X-Forwarded-Client-Cert", args...)
		client, server := fmt.Sprintf("URI=spiffe://cluster.local/ns/%s/sa/%s", m.Name, from), fmt.Sprintf("By=spiffe://cluster.local/ns/%s/sa/%s", m.Name, to)
		if r.Status != 200 || !strings.Contains(r.Body, client) || !strings.Contains(r.Body, server) {
			return fmt.Errorf("%s to %s: %d %s %s", from, to, r.Status, r.Body, r.Error)
		}
		return nil
	})
}

// refusesPlaintext checks that an application is not reached from outside of the mesh.
func (m *mesh) refusesPlaintext(name string) {
	m.Helper()
	if r, err := rig.Node.Get(loadProgram(), "http://"+m.Pod(selector(name)).Status.PodIP+":8080/"); err != nil || r.Status != 0 {
		m.Errorf("plaintext to %s: %+v (%v)", name, r, err)
	}
}

// seenByIstioctl checks what istioctl shows of the proxies.
func (m *mesh) seenByIstioctl(names ...string) {
	m.Helper()
	status := m.istioctl("proxy-status")
	for _, name := range names {
		pod := m.Pod(selector(name)).Metadata.Name
		if !strings.Contains(status, pod+"."+m.Name) && !strings.Contains(status, pod) {
			m.Errorf("istioctl proxy-status does not show %s:\n%s", pod, status)
		}
		for _, what := range []string{"cluster", "listener", "route", "secret", "bootstrap"} {
			out := m.istioctl("proxy-config", what, pod)
			if what != "bootstrap" && strings.Count(out, "\n") < 3 {
				m.Errorf("istioctl proxy-config %s %s:\n%s", what, pod, out)
			}
		}
	}
	if out := m.istioctl("analyze"); strings.Contains(out, "Error") {
		m.Errorf("istioctl analyze:\n%s", out)
	}
}

// scraped checks that Prometheus finds the metrics of Envoy and of the agent where the webhook's annotations lead it.
func (m *mesh) scraped(name string) {
	m.Helper()
	pod := m.Pod(selector(name))
	if pod.Metadata.Annotations["prometheus.io/path"] != "/stats/prometheus" || pod.Metadata.Annotations["prometheus.io/port"] != "15020" {
		m.Errorf("annotations %v", pod.Metadata.Annotations)
	}
	r, err := rig.Node.Get(loadProgram(), "http://"+pod.Status.PodIP+":15020/stats/prometheus")
	m.Check(err)
	for _, want := range []string{"envoy_cluster_upstream_rq", "holdfast_upstream_connected"} {
		if r.Status != 200 || !strings.Contains(r.Body, want) {
			m.Errorf("/stats/prometheus: %d, without %s", r.Status, want)
		}
	}
}

// From pilot-agent to holdfast and back, under load: no request fails.
func TestTheWayThereAndBack(t *testing.T) {
	m := newMesh(t, "back")
	m.deploy("client", 1, withHoldfast)
	m.deploy("web", 2, withPilotAgent)
	m.RolledOut("client")
	m.RolledOut("web")
	m.succeeds("client", "web")
	for _, to := range []struct{ name, annotation string }{{"pilot-agent to holdfast", withHoldfast}, {"holdfast to pilot-agent", withPilotAgent}} {
		m.Play("Istio", selector("web"), m.load("client", "web"), rig.Event{Name: to.name, Happens: func() {
			m.deploy("web", 2, to.annotation)
			m.RolledOut("web")
		}})
	}
}

// A WasmPlugin names a module that pilot-agent would fetch. holdfast does not yet: it tells istiod so, and requests go on.
func TestAWasmPluginIsRefused(t *testing.T) {
	m := newMesh(t, "wasm")
	m.deploy("client", 1, withHoldfast)
	m.deploy("web", 1, withHoldfast)
	m.RolledOut("client")
	m.RolledOut("web")
	m.succeeds("client", "web")
	m.Play("Istio", selector("web"), m.load("client", "web"), rig.Event{Name: "WasmPlugin", Happens: func() {
		m.Apply(`
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: filter}
spec: {selector: {matchLabels: {app: web}}, url: "http://modules.wasm.svc/filter.wasm", failStrategy: FAIL_CLOSE}`)
		m.Eventually(30*time.Second, func() error {
			said, err := m.holdfast(m.Pod(selector("web")), "status")
			if err != nil || !strings.Contains(said, "does not download Wasm modules") {
				return fmt.Errorf("holdfast status: %v\n%s", err, said)
			}
			return nil
		})
		time.Sleep(3 * time.Second)
	}})
}

// The pod of deploy/istio that is not injected: four containers, and nothing redirected. Envoy listens where a Sidecar says.
func TestThePodOfFourContainers(t *testing.T) {
	rig.OnlyLong(t)
	m := newMesh(t, "apart")
	m.deploy("client", 1, withHoldfast)
	text, err := rig.Node.Kubectl("kustomize", filepath.Join(rig.Repository(), "deploy/istio"))
	m.Check(err)
	m.Apply(strings.ReplaceAll(text, "namespaces/default/", "namespaces/apart/"))
	m.Apply(`
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app.kubernetes.io/name: web}, ports: [{name: http, port: 80, targetPort: 9080}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web}
spec:
  workloadSelector: {labels: {app.kubernetes.io/name: web}}
  ingress: [{port: {number: 9080, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:8080"}]
  egress: [{port: {number: 80, protocol: HTTP, name: out}, bind: 127.0.0.1, captureMode: NONE, hosts: ["./*"]}]`)
	m.RolledOut("client")
	m.RolledOut("web")
	m.succeeds("client", "web")
	if got := m.get("client", "http://web/header?key=X-Forwarded-Client-Cert").Body; !strings.Contains(got, "By=spiffe://cluster.local/ns/apart/sa/holdfast") {
		t.Errorf("X-Forwarded-Client-Cert: %s", got)
	}
	m.Play("Istio, four containers", "app.kubernetes.io/name=web", m.load("client", "web"), rig.Event{Name: "rolling update", Happens: func() {
		m.Kubectl("rollout", "restart", "deployment/web")
		m.RolledOut("web")
	}})
}
