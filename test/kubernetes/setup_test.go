package kubernetes

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// controlPlane is where the tests' control plane serves.
const controlPlane = "controlplane.control.svc:18000"

// roots are the CA of the control plane's certificate, in PEM.
var roots string

// setUp installs what all tests use: CoreDNS, and a control plane that checks tokens.
func setUp() error {
	if err := node.Apply(strings.ReplaceAll(nameServer, "DNS_IP", cluster.DNS)); err != nil {
		return err
	}
	authority, cert, key, err := cluster.ServerCertificate("controlplane.control.svc", "large.control.svc")
	if err != nil {
		return err
	}
	roots = string(authority)
	encode := base64.StdEncoding.EncodeToString
	if err := node.Apply(fmt.Sprintf(controlPlanes, encode(cert), encode(key))); err != nil {
		return err
	}
	for _, name := range []string{"kube-system/coredns", "control/controlplane", "control/large"} {
		namespace, deployment, _ := strings.Cut(name, "/")
		if err := rolledOut(namespace, deployment); err != nil {
			return err
		}
	}
	return nil
}

// rolledOut waits until a deployment has only new pods, and all of them are Ready.
func rolledOut(namespace, deployment string) error {
	_, err := node.Kubectl("rollout", "status", "--namespace", namespace, "deployment/"+deployment, "--timeout=3m")
	return err
}

const nameServer = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: coredns}
subjects: [{kind: ServiceAccount, name: coredns, namespace: kube-system}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    .:53 {
      errors
      health
      ready
      kubernetes cluster.local
    }
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: DNS_IP
  selector: {app: coredns}
  ports: [{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53, protocol: TCP}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: coredns, namespace: kube-system}
spec:
  selector: {matchLabels: {app: coredns}}
  template:
    metadata: {labels: {app: coredns}}
    spec:
      serviceAccountName: coredns
      dnsPolicy: Default
      containers:
      - name: coredns
        image: localhost/coredns:1
        args: [-conf, /etc/coredns/Corefile]
        readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /etc/coredns}]
      volumes: [{name: config, configMap: {name: coredns}}]
`

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
