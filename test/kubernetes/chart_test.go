package kubernetes

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// chart is a release "holdfast" of deploy/chart in a namespace of its own, made by Helm itself.
type chart struct {
	*rig.Namespace
	dir    string   // what Helm keeps
	before []string // the objects before the release
}

// newChart makes the namespace of a release.
func newChart(t *testing.T, namespace string) *chart {
	t.Helper()
	c := &chart{Namespace: rig.NewNamespace(t, namespace, "pod-security.kubernetes.io/enforce: restricted"), dir: t.TempDir()}
	t.Cleanup(func() {
		_, _ = rig.Helm(c.dir, "uninstall", "holdfast", "--namespace", c.Name, "--ignore-not-found")
	})
	c.Eventually(30*time.Second, func() error { // what every namespace has
		_, err := rig.Node.Kubectl("get", "--namespace", c.Name, "serviceaccount/default", "configmap/kube-root-ca.crt")
		return err
	})
	c.before = c.objects()
	return c
}

// helm runs a command of Helm for the release, waits until all is ready, and returns what Helm said.
func (c *chart) helm(command string, args ...string) string {
	c.Helper()
	out, err := rig.Helm(c.dir, slices.Concat([]string{command, "holdfast"}, args, []string{"--namespace", c.Name, "--wait", "--timeout", "3m"})...)
	c.Check(err)
	return out
}

// install installs the chart with values.
func (c *chart) install(values string) string {
	c.Helper()
	c.Write(c.dir, "values.yaml", values)
	return c.helm("install", filepath.Join(rig.Repository(), "deploy", "chart"), "--values", filepath.Join(c.dir, "values.yaml"))
}

// upgrade changes values of the release.
func (c *chart) upgrade(values ...string) {
	c.Helper()
	args := []string{filepath.Join(rig.Repository(), "deploy", "chart"), "--reuse-values"}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	c.helm("upgrade", args...)
}

// objects returns the names of all objects of the cluster that are in the namespace or in none.
func (c *chart) objects() (names []string) {
	c.Helper()
	for _, namespaced := range []string{"true", "false"} {
		var kinds []string
		for kind := range strings.FieldsSeq(c.Kubectl("api-resources", "--verbs=list", "--namespaced="+namespaced, "-o", "name")) {
			// Namespaces of tests come and go, with Services whose addresses are objects in no namespace; and events are no part
			// of a release.
			if kind != "namespaces" && kind != "componentstatuses" && !strings.HasPrefix(kind, "ipaddresses.") && !strings.HasPrefix(kind, "events") {
				kinds = append(kinds, kind)
			}
		}
		names = slices.AppendSeq(names, strings.FieldsSeq(c.Kubectl("get", strings.Join(kinds, ","), "-o", "name")))
	}
	return names
}

// isGone waits until nothing of the release is left.
func (c *chart) isGone() {
	c.Helper()
	c.Eventually(time.Minute, func() error {
		left := slices.DeleteFunc(c.objects(), func(name string) bool { return slices.Contains(c.before, name) })
		if len(left) > 0 {
			return fmt.Errorf("after helm uninstall there are %s", strings.Join(left, " "))
		}
		return nil
	})
}

// trust returns the authority of the injector, which must be the caBundle of both webhooks.
func (c *chart) trust() string {
	c.Helper()
	authority := c.Kubectl("get", "secret", "holdfast-injector-ca", "-o", `jsonpath={.data.ca\.crt}`)
	if bundles := c.Kubectl("get", webhooks, "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}"); authority == "" || bundles != authority+" "+authority {
		c.Errorf("the authority is %q, the caBundles are %q", authority, bundles)
	}
	return authority
}

// replaced replaces the pods of an application, and wants the new ones to have some init containers.
func (w *world) replaced(containers string) {
	w.Helper()
	w.Kubectl("rollout", "restart", "deployment/web")
	w.rolledOut()
	for _, pod := range w.pods() {
		if got := sidecars(pod); got != containers {
			w.Errorf("pod %s has %q, want %q", pod.Metadata.Name, got, containers)
		}
	}
}

const chartValues = `
controlPlane: {upstream: ["` + controlPlane + `"], tokenAudience: xds.example, caConfigMap: controlplane-ca}
inject: {proxy: {cpu: 10m}, agent: {cpu: 10m}}
injector: {resources: {requests: {cpu: 10m}}}
`

// What Helm installs injects; an upgrade changes with what, and loses neither a pod nor the authority; and after it is
// uninstalled nothing of it is left, while pods that were injected go on.
func TestTheChart(t *testing.T) {
	c := newChart(t, "chart")
	if said := c.install(chartValues); !strings.Contains(said, "kubectl label namespace NAMESPACE holdfast.dev/injection=enabled") {
		t.Errorf("helm install: %s", said)
	}
	c.AllReady(injectorSelector, 2)
	authority := c.trust()
	w := application(t, "charted", 1, "holdfast.dev/injection: enabled")
	w.rolledOut()
	if got := sidecars(w.pod()); got != native {
		t.Errorf("the pod has %q", got)
	}
	w.answers()

	load := w.create(native, child)
	c.upgrade("inject.shape=envoy-child", "images.injector.tag="+rig.NextVersion)
	load.end(t, 5)
	if got := c.trust(); got != authority {
		t.Error("the upgrade has replaced the authority")
	}
	w.wants("", child)
	w.answers()

	if !testing.Short() {
		t.Run("replaced", func(t *testing.T) {
			w := w.during(t)
			w.replaced(child)
			w.answers()
		})
		t.Run("only the settings are upgraded", func(t *testing.T) {
			c, w := c.during(t), w.during(t)
			pods := c.Pods(injectorSelector)
			c.upgrade("inject.shape=native-sidecar")
			w.Eventually(2*time.Minute, func() error { // the kubelet brings the ConfigMap
				if got, said, err := w.tried(""); err != nil || got != native {
					return fmt.Errorf("%q %s %v", got, said, err)
				}
				return nil
			})
			for _, pod := range c.Pods(injectorSelector) {
				if !slices.ContainsFunc(pods, func(p cluster.Pod) bool { return p.Metadata.UID == pod.Metadata.UID }) {
					t.Errorf("pod %s is a new one", pod.Metadata.Name)
				}
			}
		})
		t.Run("rolled back", func(t *testing.T) {
			c, w := c.during(t), w.during(t)
			c.helm("rollback", "1")
			if got := c.trust(); got != authority {
				t.Error("the authority is another one")
			}
			w.wants("", native)
			w.replaced(native)
			w.answers()
		})
		t.Run("uninjected", func(t *testing.T) {
			w := w.during(t)
			w.Kubectl("label", "namespace", w.Name, "holdfast.dev/injection-")
			w.wants("", "")
			w.replaced("")
			w.Kubectl("label", "namespace", w.Name, "holdfast.dev/injection=enabled")
			w.wants("", native)
			w.replaced(native)
		})
	}

	c.helm("uninstall")
	c.isGone()
	w.wants("", "")
	w.answers()
}

// during is the release for a part of its test.
func (c *chart) during(t *testing.T) *chart {
	part := *c
	part.Namespace = c.During(t)
	return &part
}

// Pods that the chart's injector has injected have their configuration from the chart's holdfast-mesh.
func TestTheChartsMesh(t *testing.T) {
	rig.OnlyLong(t)
	c := newChart(t, "chart-mesh")
	authority, cert, key, err := cluster.ServerCertificate("holdfast-mesh.chart-mesh.svc")
	c.Check(err)
	encode := base64.StdEncoding.EncodeToString
	c.Apply(fmt.Sprintf(`{apiVersion: v1, kind: Secret, metadata: {name: mesh-tls}, type: kubernetes.io/tls, data: {tls.crt: %s, tls.key: %s}}`, encode(cert), encode(key)))
	c.before = c.objects()
	c.install(meshValues)
	c.AllReady("app.kubernetes.io/name=holdfast-mesh", 2)

	w := application(t, "meshed", 0, "holdfast.dev/injection: enabled")
	w.Apply(fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {name: mesh-ca}, data: {ca.crt: %q}}`, authority))
	w.Kubectl("scale", "deployment/web", "--replicas=1")
	w.rolledOut()
	asks := func() error {
		r, err := rig.Node.GetIn(w.Name, w.pod().Metadata.Name, "application", "http://127.0.0.1:9090/echo?msg=meshed", "-host", "echo.internal")
		if err == nil && (r.Status != 200 || r.Body != "meshed") {
			err = fmt.Errorf("%d %s %s", r.Status, r.Body, r.Error)
		}
		return err
	}
	w.Eventually(time.Minute, asks)
	// The last known good outlives the control plane.
	c.Kubectl("scale", "deployment/holdfast-mesh", "--replicas=0")
	c.AllReady("app.kubernetes.io/name=holdfast-mesh", 0)
	w.Check(asks())
	c.helm("uninstall")
	c.isGone()
	w.Check(asks())
}

const meshValues = `
controlPlane: {caConfigMap: mesh-ca}
inject:
  proxy: {cpu: 10m}
  agent: {cpu: 10m}
injector: {resources: {requests: {cpu: 10m}}}
mesh:
  enabled: true
  tlsSecret: mesh-tls
  allowUnauthenticated: true
  resources: {requests: {cpu: 10m}}
  config:
    echo.yaml: |
      apiVersion: networking.istio.io/v1
      kind: ServiceEntry
      metadata: {name: echo, namespace: meshed}
      spec:
        hosts: [echo.internal]
        ports: [{number: 9090, name: http, protocol: HTTP, targetPort: 8080}]
        resolution: STATIC
        endpoints: [{address: 127.0.0.1}]
`
