package kubernetes

import (
	"encoding/base64"
	"fmt"
	"path/filepath"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// controlPlane is where the tests' control plane serves.
const controlPlane = "controlplane.control.svc:18000"

// roots are the CA of the control plane's certificate, in PEM.
var roots string

// setUp installs the control planes, which check tokens.
func setUp(string) error {
	image := cluster.Image{Names: []string{"localhost/controlplane:1"}, Files: []cluster.File{{Path: "/controlplane", From: filepath.Join(rig.Programs, "controlplane")}}, Entrypoint: []string{"/controlplane"}}
	if err := rig.Node.Import(image); err != nil {
		return err
	}
	authority, cert, key, err := cluster.ServerCertificate("controlplane.control.svc", "large.control.svc")
	if err != nil {
		return err
	}
	roots = string(authority)
	encode := base64.StdEncoding.EncodeToString
	if err := rig.Node.Apply(fmt.Sprintf(controlPlanes, encode(cert), encode(key))); err != nil {
		return err
	}
	for _, deployment := range []string{"controlplane", "large"} {
		if err := rig.RolledOut("control", deployment); err != nil {
			return err
		}
	}
	return nil
}

// controlPlanes has two: one of an application, and one with 10,000 clusters.
const controlPlanes = `
apiVersion: v1
kind: Namespace
metadata: {name: control}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: controlplane, namespace: control}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: controlplane}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:auth-delegator}
subjects: [{kind: ServiceAccount, name: controlplane, namespace: control}]
---
apiVersion: v1
kind: Secret
metadata: {name: controlplane, namespace: control}
data: {tls.crt: %s, tls.key: %s}
---
apiVersion: v1
kind: Service
metadata: {name: controlplane, namespace: control}
spec: {selector: {app: controlplane}, ports: [{port: 18000}]}
---
apiVersion: v1
kind: Service
metadata: {name: large, namespace: control}
spec: {selector: {app: large}, ports: [{port: 18000}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: controlplane, namespace: control}
spec:
  selector: {matchLabels: {app: controlplane}}
  template:
    metadata: {labels: {app: controlplane}}
    spec:
      serviceAccountName: controlplane
      terminationGracePeriodSeconds: 1
      containers:
      - name: controlplane
        image: localhost/controlplane:1
        args: [-cert=/tls/tls.crt, -key=/tls/tls.key]
        readinessProbe: {tcpSocket: {port: 18000}, periodSeconds: 1}
        volumeMounts: [{name: tls, mountPath: /tls}]
      volumes: [{name: tls, secret: {secretName: controlplane}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: large, namespace: control}
spec:
  selector: {matchLabels: {app: large}}
  template:
    metadata: {labels: {app: large}}
    spec:
      serviceAccountName: controlplane
      terminationGracePeriodSeconds: 1
      containers:
      - name: controlplane
        image: localhost/controlplane:1
        args: [-cert=/tls/tls.crt, -key=/tls/tls.key, -clusters=10000]
        readinessProbe: {tcpSocket: {port: 18000}, periodSeconds: 1}
        volumeMounts: [{name: tls, mountPath: /tls}]
      volumes: [{name: tls, secret: {secretName: controlplane}}]
`
