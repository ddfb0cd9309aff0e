package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// world is one overlay of deploy/ in a namespace of its own, which enforces the Pod Security Standard "restricted".
type world struct {
	*rig.Namespace
	// deployment is the name of the overlay's Deployment, and of the Service that leads to its Envoys.
	deployment string
	// agent and envoy are the containers where each runs; the same if Envoy is the agent's child.
	agent, envoy string
}

// setting changes what an overlay is deployed with.
type setting func(*overlay)

// overlay is what is deployed.
type overlay struct {
	path         string // below deploy/
	components   []string
	controlPlane string
	settings     []string // lines of holdfast.yaml
	change       func(doc map[string]any)
}

// hardened adds deploy/components/hardened.
func hardened(o *overlay) { o.components = append(o.components, "hardened") }

// changed changes each document before it is applied.
func changed(change func(doc map[string]any)) setting {
	return func(o *overlay) { o.change = change }
}

// from sets the control plane.
func from(controlPlane string) setting {
	return func(o *overlay) { o.controlPlane = controlPlane }
}

// deploy deploys an overlay, and returns when its pods are Ready.
func deploy(t *testing.T, path string, settings ...setting) *world {
	t.Helper()
	w := apply(t, path, settings...)
	w.rolledOut()
	return w
}

// apply applies an overlay, with a Service for its Envoys' port 9080.
func apply(t *testing.T, path string, settings ...setting) *world {
	t.Helper()
	namespace := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(strings.TrimPrefix(t.Name(), "Test")))
	return applyIn(t, namespace[:min(len(namespace), 60)], path, settings...)
}

// deployIn deploys an overlay in a namespace.
func deployIn(t *testing.T, namespace, path string, settings ...setting) *world {
	t.Helper()
	w := applyIn(t, namespace, path, settings...)
	w.rolledOut()
	return w
}

func applyIn(t *testing.T, namespace, path string, settings ...setting) *world {
	t.Helper()
	o := &overlay{path: path, controlPlane: controlPlane}
	for _, set := range settings {
		set(o)
	}
	w := &world{Namespace: rig.NewNamespace(t, namespace, "pod-security.kubernetes.io/enforce: restricted"), deployment: "web", agent: "holdfast", envoy: "envoy"}
	switch {
	case strings.HasSuffix(path, "gateway"):
		w.deployment, w.envoy = "gateway", "holdfast"
	case strings.HasSuffix(path, "envoy-child"):
		w.envoy = "holdfast"
	}
	if slices.Contains(o.components, "hardened") {
		w.Kubectl("create", "secret", "generic", "holdfast-state-key", "--from-literal=state.key=0123456789abcdef0123456789abcdef")
	}
	w.Apply(w.render(o))
	w.Apply(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: load}, spec: {selector: {app.kubernetes.io/name: %s}, ports: [{port: 80, targetPort: 9080}]}}`, w.deployment))
	return w
}

// render returns the documents of an overlay with the tests' control plane, and requests that fit this machine.
func (w *world) render(o *overlay) string {
	w.Helper()
	dir := w.TempDir()
	w.Check(os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(filepath.Join(rig.Repository(), "deploy"))))
	config, err := os.ReadFile(filepath.Join(dir, "deploy/base/holdfast.yaml"))
	w.Check(err)
	const example = `upstream: ["xds.example:443"]`
	if !strings.Contains(string(config), example) {
		w.Fatalf("deploy/base/holdfast.yaml has no line %s", example)
	}
	lines := append([]string{fmt.Sprintf("upstream: [%q]", o.controlPlane), "upstream-ca: /etc/holdfast/ca.crt"}, o.settings...)
	w.Check(os.Mkdir(filepath.Join(dir, "test"), 0o755))
	w.Write(dir, "test/holdfast.yaml", strings.Replace(string(config), example, strings.Join(lines, "\n"), 1))
	w.Write(dir, "test/ca.crt", roots)
	kustomization := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: %s\nresources: [../deploy/%s]\n"+
		"configMapGenerator: [{name: holdfast, behavior: merge, files: [holdfast.yaml, ca.crt]}]\n", w.Name, o.path)
	if len(o.components) > 0 {
		kustomization += "components: [../deploy/components/" + strings.Join(o.components, ", ../deploy/components/") + "]\n"
	}
	w.Write(dir, "test/kustomization.yaml", kustomization)
	text, err := rig.Node.Kubectl("kustomize", filepath.Join(dir, "test"))
	w.Check(err)
	var documents []string
	for document := range strings.SplitSeq(text, "\n---\n") {
		var doc map[string]any
		w.Check(yaml.Unmarshal([]byte(document), &doc))
		lessCPU(doc)
		if o.change != nil {
			o.change(doc)
		}
		made, err := yaml.Marshal(doc)
		w.Check(err)
		documents = append(documents, string(made))
	}
	return strings.Join(documents, "---\n")
}

// podSpec returns the pod of a Deployment, nil for another document.
func podSpec(doc map[string]any) map[string]any {
	if doc["kind"] != "Deployment" {
		return nil
	}
	return doc["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
}

// containersOf returns the containers of a pod, those of its init containers included.
func containersOf(spec map[string]any) (all []map[string]any) {
	for _, list := range []string{"initContainers", "containers"} {
		some, _ := spec[list].([]any)
		for _, c := range some {
			all = append(all, c.(map[string]any))
		}
	}
	return all
}

// lessCPU asks for less CPU than the manifests do: all pods of the tests share two processors.
func lessCPU(doc map[string]any) {
	spec := podSpec(doc)
	if spec == nil {
		return
	}
	for _, container := range containersOf(spec) {
		resources, _ := container["resources"].(map[string]any)
		if requests, ok := resources["requests"].(map[string]any); ok {
			requests["cpu"] = "10m"
		}
	}
}

func (w *world) rolledOut() {
	w.Helper()
	w.RolledOut(w.deployment)
}

// selector selects the pods of the deployment.
func (w *world) selector() string { return "app.kubernetes.io/name=" + w.deployment }

// pods returns the pods of the deployment that are not to end.
func (w *world) pods() []cluster.Pod { return w.Pods(w.selector()) }

// pod returns the first of them.
func (w *world) pod() cluster.Pod { return w.Pod(w.selector()) }

// load starts requests through the Service that leads to the Envoys.
func (w *world) load() *cluster.Load {
	w.Helper()
	load, err := rig.Node.StartLoad(filepath.Join(rig.Programs, "load"), "http://"+w.Service("load")+"/")
	w.Check(err)
	return load
}

// answers waits until the Service answers: kube-proxy is up to a second behind the pods.
func (w *world) answers() {
	w.Helper()
	w.Eventually(time.Minute, func() error {
		r, err := rig.Node.Get(filepath.Join(rig.Programs, "load"), "http://"+w.Service("load")+"/")
		if err == nil && r.Status != 200 {
			err = fmt.Errorf("%d %s %s", r.Status, r.Body, r.Error)
		}
		return err
	})
}

// process returns the id, in the node, of the agent or the Envoy of a pod.
func (w *world) process(pod cluster.Pod, program string) int {
	w.Helper()
	switch {
	case program == "agent":
		return w.Process(pod, w.agent)
	case w.envoy == w.agent:
		return w.Child(w.Process(pod, w.agent), "envoy")
	default:
		return w.Process(pod, w.envoy)
	}
}

// allReady waits until so many pods are Ready, and none is not.
func (w *world) allReady(count int) {
	w.Helper()
	w.AllReady(w.selector(), count)
}

// fresh replaces pods whose containers were restarted: the kubelet waits ever longer before it starts one again.
func (w *world) fresh() {
	w.Helper()
	for _, pod := range w.pods() {
		for _, name := range []string{w.agent, w.envoy} {
			if status, _ := pod.Container(name); status.RestartCount > 0 {
				w.Kubectl("rollout", "restart", "deployment/"+w.deployment)
				w.rolledOut()
				return
			}
		}
	}
}

// replicas returns how many pods the deployment wants.
func (w *world) replicas() int {
	w.Helper()
	count, err := strconv.Atoi(w.Kubectl("get", "deployment", w.deployment, "-o", "jsonpath={.spec.replicas}"))
	w.Check(err)
	return count
}

// scale sets the number of pods, and waits until they are there.
func (w *world) scale(count int) {
	w.Helper()
	w.Kubectl("scale", "deployment", w.deployment, "--replicas", strconv.Itoa(count))
	w.rolledOut()
	w.allReady(count)
}
