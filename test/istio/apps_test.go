package istio

import (
	"fmt"
	"strings"
	"testing"

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

// The annotations by which a pod gets its agent.
const (
	withHoldfast   = `inject.istio.io/templates: "sidecar,holdfast"`
	withPilotAgent = `inject.istio.io/templates: sidecar`
)

// application deploys an application with a Service of its name on port 80. Its probes are by HTTP.
func (m *mesh) application(name string, replicas int, annotations ...string) {
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
