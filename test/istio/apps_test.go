package istio

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// mesh is a namespace with mutual TLS that is STRICT, and applications in it.
type mesh struct {
	*rig.Namespace
}

func newMesh(t *testing.T, name string) *mesh {
	t.Helper()
	m := &mesh{rig.NewNamespace(t, name, "istio-injection: enabled")}
	m.Apply("{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default}, spec: {mtls: {mode: STRICT}}}")
	return m
}

// The annotations by which a pod gets its agent, and one by which it gets none.
const (
	withHoldfast   = `inject.istio.io/templates: "sidecar,holdfast"`
	withPilotAgent = `inject.istio.io/templates: sidecar`
	withoutSidecar = `sidecar.istio.io/inject: "false"`
)

// deploy deploys an application with a Service of its name on port 80, whose probes are by HTTP.
func (m *mesh) deploy(name string, replicas int, annotations ...string) {
	m.Helper()
	m.Apply(fmt.Sprintf(application, name, replicas, strings.Join(annotations, ", ")))
}

const application = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec: {selector: {app: %[1]s}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata:
      labels: {app: %[1]s}
      annotations: {%[3]s}
    spec:
      serviceAccountName: %[1]s
      containers:
      - name: application
        image: registry.k8s.io/e2e-test-images/agnhost:2.53
        args: [netexec, --http-port=8080]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 2}
        livenessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 5}
        lifecycle: {preStop: {sleep: {seconds: 10}}}
`

// selector selects the pods of an application.
func selector(name string) string { return "app=" + name }

// get sends a GET from an application.
func (m *mesh) get(from, url string, args ...string) cluster.Response {
	m.Helper()
	response, err := rig.Node.GetIn(m.Name, m.Pod(selector(from)).Metadata.Name, "application", url, args...)
	m.Check(err)
	return response
}

// load returns a load from an application to another.
func (m *mesh) load(from, to string) func() *cluster.Load {
	return func() *cluster.Load {
		m.Helper()
		load, err := rig.Node.StartLoadIn(m.Name, m.Pod(selector(from)).Metadata.Name, "application", "http://"+to+"/hostname")
		m.Check(err)
		return load
	}
}

// loadProgram is the program load on the node.
func loadProgram() string { return filepath.Join(rig.Programs, "load") }

// succeeds waits until an application answers another.
func (m *mesh) succeeds(from, to string) {
	m.Helper()
	m.Eventually(time.Minute, func() error {
		if r := m.get(from, "http://"+to+"/hostname"); r.Status != 200 {
			return fmt.Errorf("%s to %s: %d %s %s", from, to, r.Status, r.Body, r.Error)
		}
		return nil
	})
}

// holdfast runs a command of holdfast in the sidecar of a pod.
func (m *mesh) holdfast(pod cluster.Pod, args ...string) (string, error) {
	return rig.Node.Kubectl(append([]string{"exec", "--namespace", m.Name, pod.Metadata.Name, "--container", "istio-proxy", "--", "/usr/local/bin/holdfast"}, args...)...)
}

// istioctl runs istioctl on the node.
func (m *mesh) istioctl(args ...string) string {
	m.Helper()
	out, err := rig.Node.Run(filepath.Join(programs(), "istioctl"), append([]string{"--kubeconfig", rig.Node.Kubeconfig(), "--namespace", m.Name}, args...)...)
	m.Check(err)
	return out
}

// istiod lets istiod run, or kills it and lets it stay away.
func (m *mesh) istiod(replicas int) {
	m.Helper()
	of := &rig.Namespace{T: m.T, Name: system}
	running := of.Pods("app=istiod")
	if replicas == 0 {
		for _, pod := range running {
			of.Signal("KILL", of.Process(pod, "discovery"))
		}
	}
	of.Kubectl("scale", "deployment/istiod", "--replicas", fmt.Sprint(replicas))
	if replicas > 0 {
		of.RolledOut("istiod")
		return
	}
	m.Eventually(time.Minute, func() error {
		out, err := rig.Node.Run("ctr", "--address", rig.Node.ContainerdSocket(), "--namespace", "k8s.io", "task", "ls")
		for _, pod := range running {
			status, _ := pod.Container("discovery")
			if strings.Contains(out, strings.TrimPrefix(status.ContainerID, "containerd://")) {
				return errors.New("istiod is still there")
			}
		}
		return err
	})
}
