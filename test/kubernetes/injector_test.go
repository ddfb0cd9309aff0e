package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

const (
	injectorSelector = "app.kubernetes.io/name=holdfast-injector"
	webhooks         = "mutatingwebhookconfiguration/holdfast-injector"
)

// injector is deploy/injector in its own namespace.
type injector struct{ *rig.Namespace }

// deployInjector deploys deploy/injector with the tests' control plane, and returns when both replicas are Ready.
func deployInjector(t *testing.T, args ...string) injector {
	t.Helper()
	i := injector{rig.NewNamespace(t, "holdfast")}
	t.Cleanup(func() {
		for _, object := range []string{webhooks, "clusterrole/holdfast-injector", "clusterrolebinding/holdfast-injector"} {
			_, _ = rig.Node.Kubectl("delete", object, "--ignore-not-found")
		}
	})
	i.Check(rig.Node.Apply(i.manifests(args...)))
	i.RolledOut("holdfast-injector")
	i.AllReady(injectorSelector, 2)
	return i
}

func (i injector) manifests(args ...string) string {
	i.Helper()
	dir := i.TempDir()
	i.Check(os.CopyFS(dir, os.DirFS(filepath.Join(rig.Repository(), "deploy", "injector"))))
	i.Write(dir, "settings.yaml", "upstream: "+controlPlane+"\ntoken-audience: xds.example\nca-config-map: controlplane-ca\nproxy-cpu: 10m\nagent-cpu: 10m\n"+
		"namespaces: {child: {shape: envoy-child}}\n")
	text, err := rig.Node.Kubectl("kustomize", dir)
	i.Check(err)
	var documents []string
	for document := range strings.SplitSeq(text, "\n---\n") {
		var doc map[string]any
		i.Check(yaml.Unmarshal([]byte(document), &doc))
		lessCPU(doc)
		if spec := podSpec(doc); spec != nil {
			container := spec["containers"].([]any)[0].(map[string]any)
			for _, arg := range args {
				container["args"] = append(container["args"].([]any), arg)
			}
		}
		made, err := yaml.Marshal(doc)
		i.Check(err)
		documents = append(documents, string(made))
	}
	return strings.Join(documents, "---\n")
}

// application deploys an application without sidecars of its own in a namespace with labels.
func application(t *testing.T, namespace string, replicas int, labels ...string) *world {
	t.Helper()
	w := &world{Namespace: rig.NewNamespace(t, namespace, append(labels, "pod-security.kubernetes.io/enforce: restricted")...), deployment: "web", agent: "holdfast", envoy: "envoy"}
	ca, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "controlplane-ca"}, "data": map[string]string{"ca.crt": roots}})
	w.Check(err)
	w.Apply(string(ca))
	w.Apply(fmt.Sprintf(plainApplication, replicas, rig.Agnhost))
	return w
}

const plainApplication = `
apiVersion: v1
kind: Service
metadata: {name: load}
spec: {selector: {app.kubernetes.io/name: web}, ports: [{port: 80, targetPort: 9080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app.kubernetes.io/name: web}}
  template:
    metadata: {labels: {app.kubernetes.io/name: web}}
    spec:
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: application
        image: %s
        args: [netexec, --http-port=8080]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        securityContext: {runAsNonRoot: true, runAsUser: 65534, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`

// during is the world for a part of its test.
func (w *world) during(t *testing.T) *world {
	part := *w
	part.Namespace = w.During(t)
	return &part
}

// sidecars returns the names of the init containers that a pod has, with blanks between them.
func sidecars(pod cluster.Pod) string {
	var names []string
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}

const (
	native = "bootstrap holdfast envoy"
	child  = "bootstrap holdfast"
)

// somePod is a pod of a namespace with restricted Pod Security; %s are further metadata.
const somePod = `{apiVersion: v1, kind: Pod, metadata: {name: some%s}, spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}},
  containers: [{name: a, image: none, securityContext: {runAsUser: 1, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]}}`

// tried creates a pod without creating it, which asks the webhooks nevertheless, and returns its init containers and what
// kubectl said on standard error.
func (w *world) tried(metadata string) (string, string, error) {
	cmd := rig.Node.KubectlCommand("create", "--namespace", w.Name, "--dry-run=server", "-f", "-", "-o", "jsonpath={.spec.initContainers[*].name}")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(somePod, metadata))
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	return out.String(), said.String(), err
}

// wants waits until a pod that would be created now had some init containers: the API server knows of a change of a
// configuration or of a namespace after a moment.
func (w *world) wants(metadata, containers string) {
	w.Helper()
	w.Eventually(30*time.Second, func() error {
		got, said, err := w.tried(metadata)
		if err != nil || got != containers {
			return fmt.Errorf("%q, %s, %v; want %q", got, said, err, containers)
		}
		return nil
	})
}

// creations tries pods one after the other until it is stopped, and counts those that were not injected.
type creations struct {
	stop  chan struct{}
	ended sync.WaitGroup
	tried int
	wrong []string
}

// create wants pods with the init containers of one of the shapes.
func (w *world) create(shapes ...string) *creations {
	c := &creations{stop: make(chan struct{})}
	c.ended.Go(func() {
		for {
			select {
			case <-c.stop:
				return
			default:
			}
			c.tried++
			if got, said, err := w.tried(""); err != nil || !slices.Contains(shapes, got) {
				c.wrong = append(c.wrong, fmt.Sprintf("%s: %q %s %v", time.Now().Format(time.TimeOnly), got, said, err))
			}
		}
	})
	return c
}

// end fails the test if a pod was not injected.
func (c *creations) end(t *testing.T, least int) {
	t.Helper()
	close(c.stop)
	c.ended.Wait()
	t.Logf("%d pods, %d not injected", c.tried, len(c.wrong))
	if c.tried < least {
		t.Errorf("only %d pods: the load does not say anything", c.tried)
	}
	if len(c.wrong) > 0 {
		t.Errorf("not injected: %s", strings.Join(c.wrong, "\n"))
	}
}

func TestTheInjector(t *testing.T) {
	i := deployInjector(t)
	w := application(t, "injected", 2, "holdfast.dev/injection: enabled")
	w.rolledOut()
	w.allReady(2)
	w.answers() // at Envoy's port
	for _, pod := range w.pods() {
		if got := sidecars(pod); got != native {
			t.Errorf("pod %s has %q", pod.Metadata.Name, got)
		}
	}
	if testing.Short() {
		return
	}
	t.Run("which pods", func(t *testing.T) {
		w := w.during(t)
		others := application(t, "others", 1)
		kid := application(t, "child", 0, "holdfast.dev/injection: enabled")
		off := application(t, "disabled", 0, "holdfast.dev/injection: disabled")
		others.rolledOut()
		if got := sidecars(others.pod()); got != "" {
			t.Errorf("a pod of a namespace without a label has %q", got)
		}
		const yes, no = `, labels: {holdfast.dev/inject: "true"}`, `, labels: {holdfast.dev/inject: "false"}`
		others.wants(yes, native)
		others.wants(no, "")
		off.wants(yes, "")
		kid.wants("", child)
		w.wants(no, "")
		w.wants(`, annotations: {holdfast.dev/inject: "false"}`, "")
		w.wants(`, annotations: {holdfast.dev/shape: envoy-child}`, child)
		if got, said, err := w.tried(`, annotations: {holdfast.dev/shap: envoy-child}`); err != nil || got != "" || !strings.Contains(said, "Warning: holdfast is not injected into pod some: its annotation holdfast.dev/shap is not known, did you mean holdfast.dev/shape?") {
			t.Errorf("%q %v: %s", got, err, said)
		}
	})
	t.Run("a rolling upgrade", func(t *testing.T) {
		w, i := w.during(t), injector{i.During(t)}
		load := w.create(native)
		i.Kubectl("set", "image", "deployment/holdfast-injector", "injector=holdfast-injector:"+rig.NextVersion)
		i.RolledOut("holdfast-injector")
		i.AllReady(injectorSelector, 2)
		pod := i.Pod(injectorSelector)
		i.Kubectl("delete", "pod", pod.Metadata.Name)
		i.RolledOut("holdfast-injector")
		load.end(t, 20)
	})
	t.Run("certificates", func(t *testing.T) { injector{i.During(t)}.repairs(w.during(t)) })
	t.Run("the injector down", func(t *testing.T) { injector{i.During(t)}.down(w.during(t)) })
	t.Run("uninjected", func(t *testing.T) {
		w := w.during(t)
		w.Kubectl("label", "namespace", w.Name, "holdfast.dev/injection-")
		w.wants("", "")
		w.Kubectl("rollout", "restart", "deployment/web")
		w.rolledOut()
		for _, pod := range w.pods() {
			if got := sidecars(pod); got != "" {
				t.Errorf("pod %s has %q", pod.Metadata.Name, got)
			}
		}
	})
}

// repairs takes away what the injector needs.
func (i injector) repairs(w *world) {
	secret := func() string {
		return i.Kubectl("get", "secret", "holdfast-injector-ca", "-o", `jsonpath={.data.ca\.crt}`)
	}
	before := secret()
	manifests := i.manifests()
	for _, row := range []struct {
		name  string
		taken func()
	}{
		{"a caBundle is taken away", func() {
			i.Kubectl("patch", webhooks, "--type=json", "--patch", `[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
		}},
		{"the other caBundle is taken away", func() {
			i.Kubectl("patch", webhooks, "--type=json", "--patch", `[{"op":"remove","path":"/webhooks/1/clientConfig/caBundle"}]`)
		}},
		{"the Secret is emptied", func() {
			i.Kubectl("patch", "secret", "holdfast-injector-ca", "--type=json", "--patch", `[{"op":"remove","path":"/data"}]`)
		}},
		{"the Secret is deleted, and applied again", func() {
			i.Kubectl("delete", "secret", "holdfast-injector-ca")
			i.Check(rig.Node.Apply(manifests))
		}},
		{"the configuration is deleted, and applied again", func() {
			i.Kubectl("delete", webhooks)
			i.Check(rig.Node.Apply(manifests))
		}},
	} {
		row.taken()
		i.Eventually(30*time.Second, func() error {
			if got, err := rig.Node.Kubectl("get", "secret", "-n", i.Name, "holdfast-injector-ca", "-o", `jsonpath={.data.ca\.crt}`); err != nil || got != before {
				return fmt.Errorf("%s: the authority is %q, want %q (%v)", row.name, got, before, err)
			}
			bundles, err := rig.Node.Kubectl("get", webhooks, "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}")
			if err != nil || bundles != before+" "+before {
				return fmt.Errorf("%s: the caBundles are %q (%v)", row.name, bundles, err)
			}
			return nil
		})
		w.wants("", native)
	}
	// Applied again, the manifests take nothing away.
	i.Check(rig.Node.Apply(manifests))
	if got := secret(); got != before {
		i.Errorf("the authority is %q", got)
	}
	i.RolledOut("holdfast-injector")
}

// down takes the injector away, with each failure policy.
func (i injector) down(w *world) {
	i.Kubectl("scale", "deployment", "holdfast-injector", "--replicas=0")
	i.AllReady(injectorSelector, 0)
	i.Eventually(30*time.Second, func() error {
		_, said, err := w.tried("")
		if err == nil || !strings.Contains(said, `failed calling webhook "namespace.injector.holdfast.dev"`) {
			return fmt.Errorf("with Fail: %v, %s", err, said)
		}
		return nil
	})
	w.wants(`, labels: {holdfast.dev/inject: "false"}`, "") // who is not injected does not need it
	w.answers()                                             // nor those that run
	policy := func(name string) {
		i.Kubectl("patch", webhooks, "--type=json", "--patch", fmt.Sprintf(`[{"op":"replace","path":"/webhooks/0/failurePolicy","value":%q},{"op":"replace","path":"/webhooks/1/failurePolicy","value":%q}]`, name, name))
	}
	policy("Ignore")
	w.wants("", "")
	policy("Fail")
	counted(i.Namespace, `apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="namespace.injector.holdfast.dev",`)
	counted(i.Namespace, `apiserver_admission_webhook_fail_open_count{name="namespace.injector.holdfast.dev",`)
	// A Deployment waits for it, and goes on by itself.
	w.Kubectl("rollout", "restart", "deployment/web")
	w.Eventually(time.Minute, func() error {
		if events := w.Kubectl("get", "events", "--field-selector=reason=FailedCreate"); !strings.Contains(events, "namespace.injector.holdfast.dev") {
			return errors.New("no event says that the webhook failed")
		}
		return nil
	})
	w.answers()
	i.Kubectl("scale", "deployment", "holdfast-injector", "--replicas=2")
	i.RolledOut("holdfast-injector")
	w.wants("", native)
	w.rolledOut()
	for _, pod := range w.pods() {
		if got := sidecars(pod); got != native {
			w.Errorf("pod %s has %q", pod.Metadata.Name, got)
		}
	}
}

// counted fails the test unless the API server has a metric that an alert of deploy/monitoring is about.
func counted(n *rig.Namespace, metric string) {
	n.Helper()
	if all := n.Kubectl("get", "--raw", "/metrics"); !strings.Contains(all, "\n"+metric) {
		n.Errorf("the API server has no %s", metric)
	}
}

// An authority of four minutes is replaced while pods are created: the API server trusts the replicas all the time.
func TestTheInjectorsAuthorityIsReplaced(t *testing.T) {
	rig.OnlyLong(t)
	i := deployInjector(t, "--ca-lifetime=4m", "--cert-lifetime=1m")
	w := application(t, "rotated", 0, "holdfast.dev/injection: enabled")
	w.wants("", native)
	get := func(key string) string {
		return i.Kubectl("get", "secret", "holdfast-injector-ca", "-o", "jsonpath={.data."+strings.ReplaceAll(key, ".", `\.`)+"}")
	}
	before := get("ca.crt")
	load := w.create(native)
	for _, step := range []struct {
		name string
		done func() bool
	}{
		{"the next one is trusted", func() bool { return get("next.crt") != "" }},
		{"it signs", func() bool { return get("ca.crt") != before && get("previous.crt") == before }},
		{"the former one is removed", func() bool { return get("previous.crt") == "" }},
	} {
		i.Eventually(4*time.Minute, func() error {
			if !step.done() {
				return errors.New(step.name)
			}
			return nil
		})
		t.Logf("%s: %s", time.Now().Format(time.TimeOnly), step.name)
	}
	load.end(t, 100)
}
