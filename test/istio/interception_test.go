package istio

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// The ways in which Istio leads the traffic of a pod to its Envoy, each with an application whose agent is holdfast, and one
// whose agent is pilot-agent, redirected in the same way.
func TestTheWaysOfInterception(t *testing.T) {
	const mode = "sidecar.istio.io/interceptionMode: "
	for _, way := range []struct {
		name       string
		settings   []string // of Istio's charts
		annotation string
		containers string // the pod's init containers
		rules      string // of the rules in the pod's network
		client     bool   // the application sees its client's address
	}{
		{"REDIRECT with Envoy apart", nil, envoyApart, "istio-init istio-proxy envoy", "ISTIO_OUTPUT", false},
		{"TPROXY", nil, mode + "TPROXY", "istio-init istio-proxy", "ISTIO_TPROXY", true},
		{"native nftables", nftables, mode + "REDIRECT", "istio-init istio-proxy", "table inet istio-proxy-nat", false},
		{"istio-cni", cni, mode + "REDIRECT", "istio-validation istio-proxy", "ISTIO_OUTPUT", false},
		{"istio-cni with Envoy apart", cni, envoyApart, "istio-validation istio-proxy envoy", "ISTIO_OUTPUT", false},
		{"istio-cni with native nftables", slices.Concat(cni, nftables), mode + "REDIRECT", "istio-validation istio-proxy", "table inet istio-proxy-nat", false},
	} {
		t.Run(way.name, func(t *testing.T) {
			if way.settings != nil {
				rig.OnlyLong(t)
			}
			reinstalled(t, way.settings)
			m := newMesh(t, "way-"+strings.ReplaceAll(strings.ToLower(way.name), " ", "-"))
			m.deploy("h", 2, withHoldfast, way.annotation)
			plain := way.annotation
			if plain == envoyApart {
				plain = mode + "REDIRECT"
			}
			m.deploy("p", 1, withPilotAgent, plain)
			m.RolledOut("h")
			m.RolledOut("p")
			pod := m.Pod(selector("h"))
			var names []string
			for _, c := range pod.Spec.InitContainers {
				names = append(names, c.Name)
			}
			if got := strings.Join(names, " "); got != way.containers {
				t.Errorf("init containers %s, want %s", got, way.containers)
			}
			if got := m.rules("h"); !strings.Contains(got, way.rules) {
				t.Errorf("there is no %s in\n%s", way.rules, got)
			}
			m.authenticated("h", "p", "http://p")
			m.authenticated("p", "h", "http://h")
			m.refusesPlaintext("h")
			if way.annotation == envoyApart {
				m.seenByIstioctl("h")
				m.scraped("h")
			}
			// With TPROXY an application sees who asks, and otherwise the address from which Envoy asks.
			for to, from := range map[string]string{"h": "p", "p": "h"} {
				want := "127.0.0.6"
				if way.client {
					want = m.Pod(selector(from)).Status.PodIP
				}
				if r := m.get(from, "http://"+to+"/clientip"); from == "p" && !strings.HasPrefix(r.Body, want+":") || way.client && !strings.HasPrefix(r.Body, "10.") {
					t.Errorf("%s sees the client %s, want %s", to, r.Body, want)
				}
			}
			m.Play("Istio, "+way.name, selector("h"), m.load("p", "h"), rig.Event{Name: "rolling update", Happens: func() {
				m.Kubectl("rollout", "restart", "deployment/h")
				m.RolledOut("h")
			}})
		})
	}
}

// envoyApart lets a pod have Envoy in a container of its own.
const envoyApart = "holdfast.dev/envoy-image: docker.io/istio/proxyv2:1.31.1-distroless"

// With Envoy in a container of its own, the death of the agent costs nothing, and that of Envoy its restart, although istiod
// is away. What the pod asks before its application starts goes through the mesh as far as Envoy is there.
func TestEnvoyApart(t *testing.T) {
	m := newMesh(t, "apart-killed")
	m.deploy("client", 1, withHoldfast)
	m.deploy("web", 2, withHoldfast, envoyApart)
	m.RolledOut("client")
	m.RolledOut("web")
	m.succeeds("client", "web")
	play := func(e rig.Event) {
		t.Helper()
		m.Play("Istio, Envoy apart", selector("web"), m.load("client", "web"), e)
	}
	kill := func(containers ...string) {
		pod := m.Pod(selector("web"))
		var pids []int
		for _, container := range containers {
			pids = append(pids, m.Process(pod, container))
		}
		m.Signal("KILL", pids...)
		m.restarted(pod, containers...)
	}
	play(rig.Event{Name: "agent killed (-9)", MaxNotReady: recovery, Happens: func() { kill("istio-proxy") }})
	m.Kubectl("rollout", "restart", "deployment/web") // or the kubelet waits before it starts it again
	m.RolledOut("web")
	play(rig.Event{Name: "istiod killed", Happens: func() { m.istiod(0) }})
	defer m.istiod(1)
	play(rig.Event{Name: "agent and Envoy killed (-9) while istiod is away", MayFail: "Envoy's own restart", MaxNotReady: recovery, Happens: func() { kill("envoy", "istio-proxy") }})
}

// With NONE nothing is redirected: Envoy listens where a Sidecar says, and the application asks it there.
func TestWithoutInterception(t *testing.T) {
	m := newMesh(t, "none")
	m.deploy("h", 2, withHoldfast, "sidecar.istio.io/interceptionMode: NONE")
	m.deploy("p", 1, withPilotAgent)
	m.Apply(`
apiVersion: v1
kind: Service
metadata: {name: h}
spec: {selector: {app: h}, ports: [{name: http, port: 80, targetPort: 9080}]}
---
apiVersion: v1
kind: Service
metadata: {name: p-8081}
spec: {selector: {app: p}, ports: [{name: http, port: 8081, targetPort: 8080}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: h}
spec:
  workloadSelector: {labels: {app: h}}
  ingress: [{port: {number: 9080, protocol: HTTP, name: http}, defaultEndpoint: "127.0.0.1:8080"}]
  egress: [{port: {number: 8081, protocol: HTTP, name: out}, bind: 127.0.0.1, captureMode: NONE, hosts: ["./*"]}]`)
	m.RolledOut("h")
	m.RolledOut("p")
	if got := m.rules("h"); strings.Contains(got, "ISTIO") || strings.Contains(got, "istio") {
		t.Errorf("there are rules:\n%s", got)
	}
	m.authenticated("h", "p", "http://127.0.0.1:8081", "-host", "p-8081")
	m.authenticated("p", "h", "http://h")
	m.Play("Istio, NONE", selector("h"), m.load("p", "h"), rig.Event{Name: "rolling update", Happens: func() {
		m.Kubectl("rollout", "restart", "deployment/h")
		m.RolledOut("h")
	}})
}

// rules returns the packet filter's rules of a pod's network.
func (m *mesh) rules(name string) string {
	m.Helper()
	pid := m.Process(m.Pod(selector(name)), "application")
	out, err := rig.Node.Run("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", pid), "nft", "list", "ruleset")
	m.Check(err)
	return out
}

// Settings of Istio's charts.
var (
	nftables = []string{"values.global.nativeNftables=true"}
	cni      = []string{"components.cni.enabled=true", "components.cni.namespace=" + system, "values.pilot.cni.enabled=true"}
)

// reinstalled installs Istio with other settings until the end of the test; nil for those that it has.
func reinstalled(t *testing.T, settings []string) {
	t.Helper()
	if settings == nil {
		return
	}
	dir := t.TempDir()
	restart := func() error {
		if _, err := rig.Node.Kubectl("rollout", "restart", "--namespace", system, "deployment/istiod"); err != nil {
			return err
		}
		return rig.RolledOut(system, "istiod")
	}
	t.Cleanup(func() {
		if _, err := rig.Node.Kubectl("delete", "daemonset", "--namespace", system, "istio-cni-node", "--ignore-not-found", "--cascade=foreground", "--wait"); err != nil {
			t.Error(err)
		}
		if err := install(dir); err != nil {
			t.Error(err)
		}
		if err := restart(); err != nil {
			t.Error(err)
		}
	})
	withDirs := append([]string{"values.cni.cniBinDir=" + rig.Node.CNIPlugins(), "values.cni.cniConfDir=" + rig.Node.CNISettings()}, settings...)
	if err := install(dir, withDirs...); err != nil {
		t.Fatal(err)
	}
	if slices.Contains(settings, cni[0]) {
		if _, err := rig.Node.Kubectl("rollout", "status", "--namespace", system, "daemonset/istio-cni-node", "--timeout=2m"); err != nil {
			t.Fatal(err)
		}
	}
	if err := restart(); err != nil { // or it injects with the former settings for a while
		t.Fatal(err)
	}
	time.Sleep(time.Second)
}
