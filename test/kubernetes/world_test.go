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
)

// world is one overlay of deploy/ in a namespace of its own, which enforces the Pod Security Standard "restricted".
type world struct {
	*testing.T
	namespace string
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
	o := &overlay{path: path, controlPlane: controlPlane}
	for _, set := range settings {
		set(o)
	}
	w := &world{T: t, namespace: strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())), deployment: "web", agent: "holdfast", envoy: "envoy"}
	w.namespace = strings.TrimPrefix(w.namespace[:min(len(w.namespace), 60)], "test")
	switch {
	case strings.HasSuffix(path, "gateway"):
		w.deployment, w.envoy = "gateway", "holdfast"
	case strings.HasSuffix(path, "envoy-child"):
		w.envoy = "holdfast"
	}
	w.check(node.Apply(fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: %s, labels: {pod-security.kubernetes.io/enforce: restricted}}}`, w.namespace)))
	w.Cleanup(func() {
		if w.Failed() {
			w.describe()
		}
		_, _ = node.Kubectl("delete", "namespace", w.namespace, "--wait=false")
		_, _ = node.Kubectl("delete", "pods", "--namespace", w.namespace, "--all", "--grace-period=1", "--wait=true")
	})
	if slices.Contains(o.components, "hardened") {
		_, err := node.Kubectl("create", "secret", "generic", "holdfast-state-key", "--namespace", w.namespace, "--from-literal=state.key=0123456789abcdef0123456789abcdef")
		w.check(err)
	}
	w.check(node.Apply(w.render(o)))
	w.check(node.Apply(fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: load, namespace: %s}, spec: {selector: {app.kubernetes.io/name: %s}, ports: [{port: 80, targetPort: 9080}]}}`, w.namespace, w.deployment)))
	return w
}

// render returns the documents of an overlay with the tests' control plane, and requests that fit this machine.
func (w *world) render(o *overlay) string {
	w.Helper()
	dir := w.TempDir()
	w.check(os.CopyFS(filepath.Join(dir, "deploy"), os.DirFS(filepath.Join(repository(), "deploy"))))
	config, err := os.ReadFile(filepath.Join(dir, "deploy/base/holdfast.yaml"))
	w.check(err)
	const example = `upstream: ["xds.example:443"]`
	if !strings.Contains(string(config), example) {
		w.Fatalf("deploy/base/holdfast.yaml has no line %s", example)
	}
	lines := append([]string{fmt.Sprintf("upstream: [%q]", o.controlPlane), "upstream-ca: /etc/holdfast/ca.crt"}, o.settings...)
	w.check(os.Mkdir(filepath.Join(dir, "test"), 0o755))
	w.write(dir, "test/holdfast.yaml", strings.Replace(string(config), example, strings.Join(lines, "\n"), 1))
	w.write(dir, "test/ca.crt", roots)
	kustomization := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nnamespace: %s\nresources: [../deploy/%s]\n"+
		"configMapGenerator: [{name: holdfast, behavior: merge, files: [holdfast.yaml, ca.crt]}]\n", w.namespace, o.path)
	if len(o.components) > 0 {
		kustomization += "components: [../deploy/components/" + strings.Join(o.components, ", ../deploy/components/") + "]\n"
	}
	w.write(dir, "test/kustomization.yaml", kustomization)
	text, err := node.Kubectl("kustomize", filepath.Join(dir, "test"))
	w.check(err)
	var documents []string
	for document := range strings.SplitSeq(text, "\n---\n") {
		var doc map[string]any
		w.check(yaml.Unmarshal([]byte(document), &doc))
		lessCPU(doc)
		if o.change != nil {
			o.change(doc)
		}
		made, err := yaml.Marshal(doc)
		w.check(err)
		documents = append(documents, string(made))
	}
	return strings.Join(documents, "---\n")
}

func (w *world) write(dir, name, text string) {
	w.Helper()
	w.check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
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

// check ends the test with an error.
func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) rolledOut() {
	w.Helper()
	w.check(rolledOut(w.namespace, w.deployment))
}

// describe logs what the namespace looks like, for a test that failed.
func (w *world) describe() {
	for _, args := range [][]string{
		{"get", "pods", "-o", "wide"},
		{"get", "events", "--sort-by=.lastTimestamp"},
		{"logs", "--all-containers", "--prefix", "--tail=15", "--selector", "app.kubernetes.io/name=" + w.deployment},
	} {
		out, err := node.Kubectl(append([]string{"--namespace", w.namespace}, args...)...)
		w.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, lastLines(out, 60))
	}
}

func lastLines(text string, count int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-count):], "\n")
}

// kubectl runs kubectl in the namespace.
func (w *world) kubectl(args ...string) string {
	w.Helper()
	out, err := node.Kubectl(append([]string{"--namespace", w.namespace}, args...)...)
	w.check(err)
	return out
}

// pods returns the pods of the deployment that are not to end.
func (w *world) pods() []cluster.Pod {
	w.Helper()
	pods, err := node.Pods(w.namespace, "app.kubernetes.io/name="+w.deployment)
	w.check(err)
	return pods
}

// pod returns the first pod.
func (w *world) pod() cluster.Pod {
	w.Helper()
	pods := w.pods()
	if len(pods) == 0 {
		w.Fatal("there is no pod")
	}
	return pods[0]
}

// address returns the address of the Service that leads to the Envoys.
func (w *world) address() string {
	w.Helper()
	return w.kubectl("get", "service", "load", "-o", "jsonpath={.spec.clusterIP}")
}

// load starts requests through the Service.
func (w *world) load() *cluster.Load {
	w.Helper()
	load, err := node.StartLoad(filepath.Join(programs, "load"), "http://"+w.address()+"/")
	w.check(err)
	return load
}

// process returns the id, in the node, of the agent or the Envoy of a pod.
func (w *world) process(pod cluster.Pod, program string) int {
	w.Helper()
	container := w.agent
	if program == "envoy" {
		container = w.envoy
	}
	status, ok := pod.Container(container)
	if !ok {
		w.Fatalf("pod %s has no container %s", pod.Metadata.Name, container)
	}
	out, err := node.Run("ctr", "--address", node.ContainerdSocket(), "--namespace", "k8s.io", "task", "ls")
	w.check(err)
	id := strings.TrimPrefix(status.ContainerID, "containerd://")
	for line := range strings.Lines(out) {
		fields := strings.Fields(line) // id, pid, status
		if len(fields) != 3 || fields[0] != id {
			continue
		}
		pid, err := strconv.Atoi(fields[1])
		w.check(err)
		if program == "envoy" && w.envoy == w.agent {
			return w.child(pid)
		}
		return pid
	}
	w.Fatalf("container %s of pod %s does not run:\n%s", container, pod.Metadata.Name, out)
	return 0
}

// child returns the only child of a process, the Envoy of an agent.
func (w *world) child(pid int) int {
	w.Helper()
	out, err := node.Run("pgrep", "-P", strconv.Itoa(pid), "envoy")
	w.check(err)
	child, err := strconv.Atoi(strings.TrimSpace(out))
	w.check(err)
	return child
}

// signal sends a signal to a process of the node.
func (w *world) signal(name string, pids ...int) {
	w.Helper()
	args := []string{"-" + name}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	_, err := node.Run("kill", args...)
	w.check(err)
}

// eventually waits until a condition holds.
func (w *world) eventually(limit time.Duration, condition func() error) {
	w.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.Fatalf("not within %s: %v", limit, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// allReady waits until so many pods are Ready, and none is not.
func (w *world) allReady(count int) {
	w.Helper()
	w.eventually(3*time.Minute, func() error {
		pods := w.pods()
		for _, pod := range pods {
			if !pod.Ready() {
				return fmt.Errorf("pod %s is not Ready", pod.Metadata.Name)
			}
		}
		if len(pods) != count {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
}

// fresh replaces pods whose containers were restarted: the kubelet waits ever longer before it starts one again.
func (w *world) fresh() {
	w.Helper()
	for _, pod := range w.pods() {
		for _, name := range []string{w.agent, w.envoy} {
			if status, _ := pod.Container(name); status.RestartCount > 0 {
				w.kubectl("rollout", "restart", "deployment/"+w.deployment)
				w.rolledOut()
				return
			}
		}
	}
}

// replicas returns how many pods the deployment wants.
func (w *world) replicas() int {
	w.Helper()
	count, err := strconv.Atoi(w.kubectl("get", "deployment", w.deployment, "-o", "jsonpath={.spec.replicas}"))
	w.check(err)
	return count
}

// scale sets the number of pods, and waits until they are there.
func (w *world) scale(count int) {
	w.Helper()
	w.kubectl("scale", "deployment", w.deployment, "--replicas", strconv.Itoa(count))
	w.rolledOut()
	w.allReady(count)
}
