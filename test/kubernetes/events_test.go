package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// An event is something that happens to a deployment under load.
type event struct {
	name string
	// happens returns when it is over, and the pods are Ready again.
	happens func(w *world)
	// mayFail says that requests may fail, and why.
	mayFail string
	// notReady is for how long a pod may be not Ready, above what Kubernetes itself needs.
	notReady time.Duration
	// long says that only the long form plays it.
	long bool
	// shapes are those it is for; nil for all.
	shapes []string
}

// A probe of the manifests runs every 2 s, and two of them must fail; the kubelet restarts a container in about a second.
const restarted = 20 * time.Second

var events = []event{
	{name: "rolling update", happens: func(w *world) {
		w.Kubectl("rollout", "restart", "deployment/"+w.deployment)
		w.rolledOut()
	}},
	{name: "a pod deleted", happens: func(w *world) {
		count := w.replicas()
		w.Kubectl("delete", "pod", w.pod().Metadata.Name, "--wait=false")
		w.allReady(count)
	}},
	{name: "scaled to 3, 1 and 2", long: true, happens: func(w *world) {
		for _, count := range []int{3, 1, 2} {
			w.scale(count)
		}
	}},
	{name: "agent killed (-9)", notReady: restarted, shapes: []string{"native-sidecar", "plain-sidecar"}, happens: func(w *world) {
		w.kill("agent")
	}},
	{name: "agent killed (-9)", notReady: restarted, shapes: []string{"envoy-child", "gateway"}, long: true, mayFail: "Envoy goes with its parent", happens: func(w *world) {
		w.kill("agent")
	}},
	{name: "Envoy killed (-9)", notReady: restarted, mayFail: "its own restart", happens: func(w *world) {
		w.kill("envoy")
	}},
	{name: "agent and Envoy killed (-9)", notReady: restarted, long: true, mayFail: "Envoy's own restart", happens: func(w *world) {
		w.kill("envoy", "agent")
	}},
	{name: "holdfast's container alone replaced", notReady: restarted, shapes: []string{"native-sidecar", "plain-sidecar"}, happens: func(w *world) {
		w.replaceContainer()
	}},
	{name: "agent hangs (SIGSTOP)", notReady: 2 * time.Minute, long: true, shapes: []string{"native-sidecar", "plain-sidecar"}, happens: func(w *world) {
		w.hang()
	}},
	{name: "kubelet restarted", notReady: time.Minute, mayFail: "Kubernetes' own: startup probes run anew (kubernetes#100277)", long: true, happens: func(w *world) {
		w.Check(rig.Node.Restart("kubelet"))
		time.Sleep(10 * time.Second) // it has probed everything again
		w.allReady(w.replicas())
	}},
	{name: "control plane gone, then agent and Envoy killed", notReady: restarted, mayFail: "Envoy's own restart", happens: func(w *world) {
		w.withoutControlPlane(func() { w.kill("envoy", "agent") })
	}},
}

// play plays the events that are for a shape, one after the other.
func play(t *testing.T, shape string, w *world) {
	for _, e := range events {
		if testing.Short() && e.long || !e.isFor(shape) {
			continue
		}
		ok := t.Run(e.name, func(t *testing.T) {
			during := *w
			during.Namespace = w.During(t)
			during.play(shape, e)
		})
		if !ok {
			return // what follows would start from a broken state
		}
	}
}

func (e event) isFor(shape string) bool {
	if e.shapes == nil {
		return true
	}
	for _, s := range e.shapes {
		if strings.HasPrefix(shape, s) {
			return true
		}
	}
	return false
}

// play plays an event under load.
func (w *world) play(shape string, e event) {
	w.Helper()
	w.fresh()
	w.answers()
	w.Play(shape, w.selector(), w.load, rig.Event{Name: e.name, Happens: func() { e.happens(w) }, MayFail: e.mayFail, MaxNotReady: e.notReady})
}

// kill kills the agent's or Envoy's process of one pod, or both, and waits until the pod has recovered. Of both, Envoy is
// named first: as a child it ends with the agent, and there may be nothing left to kill.
func (w *world) kill(programs ...string) {
	w.Helper()
	pod := w.pod()
	var pids []int
	for _, program := range programs {
		pids = append(pids, w.process(pod, program))
	}
	w.Signal("KILL", pids...)
	w.recovered(pod)
}

// recovered waits until a pod is Ready after something has happened to it, which its readiness may not show at once.
func (w *world) recovered(before cluster.Pod) {
	w.Helper()
	time.Sleep(5 * time.Second) // two readiness probes in a row
	w.allReady(w.replicas())
	for _, pod := range w.pods() {
		if pod.Metadata.UID == before.Metadata.UID {
			return
		}
	}
	w.Errorf("pod %s was replaced: it should have recovered", before.Metadata.Name)
}

// replaceContainer lets the kubelet replace the agent's container of one pod: another image.
func (w *world) replaceContainer() {
	w.Helper()
	pod := w.pod()
	before, _ := pod.Container(w.agent)
	list := "containers"
	for _, c := range pod.Spec.InitContainers {
		if c.Name == w.agent {
			list = "initContainers"
		}
	}
	w.Kubectl("patch", "pod", pod.Metadata.Name, "--type=strategic", "--patch", fmt.Sprintf(`{"spec": {%q: [{"name": %q, "image": "holdfast:%s"}]}}`, list, w.agent, rig.NextVersion))
	w.Eventually(2*time.Minute, func() error {
		for _, now := range w.pods() {
			if status, _ := now.Container(w.agent); now.Metadata.UID == pod.Metadata.UID && status.ContainerID != before.ContainerID && status.Ready {
				return nil
			}
		}
		return fmt.Errorf("the container was not replaced")
	})
	w.recovered(pod)
}

// hang stops the agent of one pod until the kubelet has replaced its container.
func (w *world) hang() {
	w.Helper()
	pod := w.pod()
	before, _ := pod.Container(w.agent)
	w.Signal("STOP", w.process(pod, "agent"))
	w.Eventually(3*time.Minute, func() error {
		for _, now := range w.pods() {
			if status, _ := now.Container(w.agent); now.Metadata.UID == pod.Metadata.UID && status.ContainerID != before.ContainerID && status.Ready {
				return nil
			}
		}
		return fmt.Errorf("the kubelet has not replaced the container")
	})
	w.recovered(pod)
}

// withoutControlPlane does something while the control plane is away.
func (w *world) withoutControlPlane(do func()) {
	w.Helper()
	scale := func(count string) error {
		_, err := rig.Node.Kubectl("scale", "--namespace", "control", "deployment/controlplane", "--replicas", count)
		return err
	}
	w.Check(scale("0"))
	w.Eventually(time.Minute, func() error {
		pods, err := rig.Node.Pods("control", "app=controlplane")
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("the control plane is still there")
		}
		return err
	})
	do()
	w.Check(scale("1"))
	w.Check(rig.RolledOut("control", "controlplane"))
}
