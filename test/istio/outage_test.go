package istio

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// recovery is for how long a pod may be not Ready after its sidecar was killed: the kubelet starts it again in about a
// second, and probes every 15 s, as Istio's template says.
const recovery = 40 * time.Second

// istiod dies, and everything else with it in turn. No request fails but while an Envoy starts again.
func TestIstiodIsAway(t *testing.T) {
	m := newMesh(t, "outage")
	m.deploy("client", 1, withHoldfast)
	m.deploy("web", 2, withHoldfast)
	m.RolledOut("client")
	m.RolledOut("web")
	m.succeeds("client", "web")
	const shape = "Istio, holdfast"
	play := func(e rig.Event) {
		t.Helper()
		m.Play(shape, selector("web"), m.load("client", "web"), e)
	}
	play(rig.Event{Name: "rolling update", Happens: func() {
		m.Kubectl("rollout", "restart", "deployment/web")
		m.RolledOut("web")
	}})
	play(rig.Event{Name: "istiod killed, for " + m.away().String(), Happens: func() {
		m.istiod(0)
		time.Sleep(m.away())
	}})
	play(rig.Event{Name: "sidecar killed (-9) while istiod is away", MayFail: "Envoy's own restart", MaxNotReady: recovery, Happens: func() {
		pod := m.Pod(selector("web"))
		m.Signal("KILL", m.Process(pod, "istio-proxy"))
		m.restarted(pod)
	}})
	play(rig.Event{Name: "Envoy killed (-9) while istiod is away", MayFail: "Envoy's own restart", MaxNotReady: recovery, Happens: func() {
		pod := m.Pods(selector("web"))[1]
		m.Signal("KILL", m.Child(m.Process(pod, "istio-proxy"), "envoy"))
		time.Sleep(3 * time.Second)
		m.AllReady(selector("web"), 2)
	}})
	play(rig.Event{Name: "application killed (-9) while istiod is away", MayFail: "its own restart", MaxNotReady: recovery, Happens: func() {
		m.Signal("KILL", m.Process(m.Pod(selector("web")), "application"))
		time.Sleep(5 * time.Second)
		m.AllReady(selector("web"), 2)
	}})
	// What changes meanwhile arrives when istiod is back.
	m.Apply(`{apiVersion: v1, kind: Service, metadata: {name: meanwhile}, spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}}`)
	play(rig.Event{Name: "istiod back, with changes", Happens: func() {
		m.istiod(1)
		m.succeeds("client", "meanwhile")
	}})
	m.deploy("late", 1, withHoldfast)
	m.RolledOut("late")
	m.succeeds("late", "web")
	m.succeeds("client", "late")
}

// away is for how long istiod is away at first.
func (m *mesh) away() time.Duration {
	if testing.Short() {
		return 10 * time.Second
	}
	return 5 * time.Minute
}

// restarted waits until containers of a pod, or its sidecar, were started again, and all pods are Ready.
func (m *mesh) restarted(before cluster.Pod, containers ...string) {
	m.Helper()
	if len(containers) == 0 {
		containers = []string{"istio-proxy"}
	}
	m.Eventually(3*time.Minute, func() error {
		for _, pod := range m.Pods("") {
			if pod.Metadata.UID != before.Metadata.UID {
				continue
			}
			for _, name := range containers {
				was, _ := before.Container(name)
				if now, _ := pod.Container(name); now.RestartCount <= was.RestartCount || !now.Ready {
					return fmt.Errorf("%s has not restarted", name)
				}
			}
			return nil
		}
		return errors.New("the pod is gone")
	})
	m.AllReady(selector("web"), 2)
}
