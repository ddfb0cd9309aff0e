package kubernetes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// A node that boots while its control plane is away has all pods back from their state on disk: an emptyDir outlives the
// containers. The pods get new addresses, for which their bootstrap is written anew.
func TestTheNodeRebootsWithoutAControlPlane(t *testing.T) {
	native := deployIn(t, "reboot-native", "overlays/native-sidecar")
	child := deployIn(t, "reboot-child", "overlays/envoy-child")
	native.withoutControlPlane(func() {
		before := make(map[string]string)
		for _, w := range []*world{native, child} {
			for _, pod := range w.pods() {
				application, _ := pod.Container("application")
				before[pod.Metadata.UID] = application.ContainerID
			}
		}
		rig.Node.PowerOff()
		began := time.Now()
		native.Check(rig.Node.Boot())
		booted := time.Since(began)
		for _, w := range []*world{native, child} {
			w.restarted(before)
			w.allReady(2)
			w.answers()
			if report := w.requests(2 * time.Second); report.Sent < 100 || len(report.Failures) > 0 {
				t.Errorf("%s: %s", w.Name, report)
			}
		}
		t.Logf("node Ready after %.1f s, all pods %.1f s later", booted.Seconds(), (time.Since(began) - booted).Seconds())
	})
}

// requests sends requests for a time.
func (w *world) requests(duration time.Duration) cluster.Report {
	w.Helper()
	load := w.load()
	time.Sleep(duration)
	report, err := load.Stop()
	w.Check(err)
	return report
}

// restarted waits until the applications of all pods run in other containers than before: what the API server has of a pod
// is what it was before the power cut, until the kubelet says something else.
func (w *world) restarted(before map[string]string) {
	w.Helper()
	w.Eventually(3*time.Minute, func() error {
		for _, pod := range w.pods() {
			if application, _ := pod.Container("application"); application.ContainerID == before[pod.Metadata.UID] || !application.Ready {
				return fmt.Errorf("pod %s has not restarted", pod.Metadata.Name)
			}
		}
		return nil
	})
}

// A Job ends although its sidecars do not: they are native ones. Its container starts when Envoy serves.
func TestAJobEnds(t *testing.T) {
	w := apply(t, "overlays/native-sidecar", changed(job))
	w.Eventually(2*time.Minute, func() error {
		status := w.Kubectl("get", "job", "web", "-o", "jsonpath={.status.succeeded} {.status.failed}")
		if status != "1 " {
			return fmt.Errorf("succeeded and failed: %q", status)
		}
		return nil
	})
	for _, pod := range w.pods() {
		if pod.Status.Phase != "Succeeded" {
			t.Errorf("pod %s: %s", pod.Metadata.Name, pod.Status.Phase)
		}
	}
}

// job makes the Deployment a Job whose container asks Envoy for a connection, and is done.
func job(doc map[string]any) {
	spec := podSpec(doc)
	if spec == nil {
		return
	}
	doc["apiVersion"], doc["kind"] = "batch/v1", "Job"
	template := doc["spec"].(map[string]any)["template"]
	doc["spec"] = map[string]any{"template": template, "backoffLimit": 0}
	spec["restartPolicy"] = "Never"
	application := spec["containers"].([]any)[0].(map[string]any)
	delete(application, "readinessProbe")
	delete(application, "lifecycle")
	application["args"] = []any{"connect", "127.0.0.1:9080", "--timeout=1s"}
}

// The control plane asks the API server whether a token is for it. One that is for another is refused, and the agent
// says so; nothing of the pod is Ready.
func TestATokenOfAnotherAudienceIsRefused(t *testing.T) {
	w := apply(t, "overlays/native-sidecar", changed(func(doc map[string]any) {
		spec := podSpec(doc)
		if spec == nil {
			return
		}
		for _, v := range spec["volumes"].([]any) {
			if volume := v.(map[string]any); volume["name"] == "token" {
				source := volume["projected"].(map[string]any)["sources"].([]any)[0].(map[string]any)
				source["serviceAccountToken"].(map[string]any)["audience"] = "somebody.else"
			}
		}
	}))
	w.Eventually(2*time.Minute, func() error {
		for _, pod := range w.pods() {
			said, err := w.holdfast(pod, "status")
			if !strings.Contains(said, "Unauthenticated") || !strings.Contains(said, "the token is not valid") {
				return fmt.Errorf("status of %s: %s (%v)", pod.Metadata.Name, said, err)
			}
		}
		if len(w.pods()) == 0 {
			return errors.New("there is no pod")
		}
		return nil
	})
	for _, pod := range w.pods() {
		if pod.Ready() {
			t.Errorf("pod %s is Ready without a configuration", pod.Metadata.Name)
		}
	}
}

// An agent with a tenth of a processor and 64 MiB takes 10,000 clusters: its limits are those of its cgroup, and nobody
// kills it.
func TestTenThousandClustersInSmallLimits(t *testing.T) {
	w := deploy(t, "overlays/native-sidecar", from("large.control.svc:18000"), changed(func(doc map[string]any) {
		spec := podSpec(doc)
		if spec == nil {
			return
		}
		doc["spec"].(map[string]any)["replicas"] = 1
		for _, container := range containersOf(spec) {
			switch container["name"] {
			case "holdfast":
				container["resources"].(map[string]any)["limits"] = map[string]any{"cpu": "100m", "memory": "64Mi"}
			case "envoy": // needs some 40 KiB for a cluster
				container["resources"].(map[string]any)["limits"] = map[string]any{"cpu": "2", "memory": "2Gi"}
			}
		}
	}))
	said, err := w.holdfast(w.pod(), "status")
	w.Check(err)
	t.Logf("%s", said)
	w.kill("agent")
	for _, pod := range w.pods() {
		agent, _ := pod.Container("holdfast")
		if envoy, _ := pod.Container("envoy"); agent.RestartCount != 1 || envoy.RestartCount != 0 {
			t.Errorf("restarts: %d of the agent, want the one of the test; %d of Envoy, want none", agent.RestartCount, envoy.RestartCount)
		}
	}
}

// holdfast runs a command of holdfast in the agent's container of a pod.
func (w *world) holdfast(pod cluster.Pod, args ...string) (string, error) {
	return rig.Node.Kubectl(append([]string{"exec", "--namespace", w.Name, pod.Metadata.Name, "--container", w.agent, "--", "/usr/local/bin/holdfast"}, args...)...)
}

// A change of the settings gives the ConfigMap another name, and so replaces the pods, under load.
func TestTheConfigMapChanges(t *testing.T) {
	rig.OnlyLong(t)
	w := deploy(t, "overlays/native-sidecar")
	before := w.pod().Metadata.UID
	w.play("native-sidecar", event{name: "ConfigMap changed", happens: func(w *world) {
		o := &overlay{path: "overlays/native-sidecar", controlPlane: controlPlane, settings: []string{"log-level: debug"}}
		w.Apply(w.render(o))
		w.rolledOut()
	}})
	if w.pod().Metadata.UID == before {
		t.Error("the pods were not replaced")
	}
}

// A key of the state that is replaced in its Secret reaches the pods without a restart. The next agent cannot read what
// the one before had encrypted, and takes its configuration from the control plane; Envoy notices nothing.
func TestTheSecretOfTheStateChanges(t *testing.T) {
	rig.OnlyLong(t)
	w := deploy(t, "overlays/native-sidecar", hardened)
	w.play("native-sidecar, hardened", event{name: "Secret of the state changed, then agent killed (-9)", notReady: restarted, happens: func(w *world) {
		const key = "fedcba9876543210fedcba9876543210"
		patch, err := json.Marshal(map[string]any{"stringData": map[string]string{"state.key": key}})
		w.Check(err)
		w.Kubectl("patch", "secret", "holdfast-state-key", "--patch", string(patch))
		pod := w.pod()
		file := rig.Node.PodPath(pod.Metadata.UID, "volumes/kubernetes.io~secret/state-key/state.key")
		w.Eventually(3*time.Minute, func() error {
			if text, err := rig.Node.Run("cat", file); err != nil || text != key {
				return fmt.Errorf("the kubelet has not updated %s: %v", filepath.Base(file), err)
			}
			return nil
		})
		w.kill("agent")
	}})
}

// So is what Helm makes of the chart, in the golden files of test/chart.
func TestTheChartIsAccepted(t *testing.T) {
	rig.OnlyLong(t)
	n := rig.NewNamespace(t, "mesh", "pod-security.kubernetes.io/enforce: restricted")
	for _, set := range []string{"least", "most", "mesh", "mesh-etcd"} {
		text, err := os.ReadFile(filepath.Join(rig.Repository(), "test/chart/testdata", set+".golden.txt"))
		n.Check(err)
		// The notes, which are no manifest, come first.
		_, manifests, ok := strings.Cut(string(text), "\n# injector.yaml\n")
		if !ok {
			t.Fatalf("%s: no injector.yaml", set)
		}
		manifests = strings.Replace(manifests, "\n# mesh.yaml\n", "\n---\n", 1)
		if err := rig.Node.Apply(manifests, "--dry-run=server", "--validate=strict"); err != nil {
			t.Errorf("%s: %v", set, err)
		}
	}
}

// What deploy/ has is what an API server accepts, with nothing that it would drop.
func TestTheManifestsAreAccepted(t *testing.T) {
	for _, overlay := range []string{"overlays/native-sidecar", "overlays/envoy-child", "overlays/gateway", "istio"} {
		t.Run(overlay, func(t *testing.T) {
			text, err := rig.Node.Kubectl("kustomize", filepath.Join(rig.Repository(), "deploy", overlay))
			if err != nil {
				t.Fatal(err)
			}
			if err := rig.Node.Apply(text, "--dry-run=server", "--validate=strict"); err != nil {
				t.Error(err)
			}
		})
	}
}
