package istio

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/test/kubernetes/rig"
)

// Pods that come while istiod is away. istiod's webhook would refuse them, so they are injected beforehand, as a pipeline may
// do it. One whose certificate is istiod's is not Ready, and says why; one with a mounted CA and a seed serves.
func TestPodsThatComeWhileIstiodIsAway(t *testing.T) {
	rig.OnlyLong(t)
	m := &mesh{rig.NewNamespace(t, "scaled")}
	m.Apply("{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default}, spec: {mtls: {mode: STRICT}}}")
	m.mountedCA()
	m.Apply(seedObjects)
	m.Apply(m.injected("plain", nil))
	m.Apply(m.injected("seeded", withSeed))
	m.RolledOut("plain")
	m.RolledOut("seeded")
	m.succeeds("seeded", "plain")
	seed := func() string {
		return m.Kubectl("get", "configmap", "holdfast-seed", "-o", "jsonpath={.metadata.resourceVersion}")
	}
	before := seed()
	m.Eventually(time.Minute, func() error {
		if seed() == before {
			return errors.New("no agent has published a seed since it knows the other application")
		}
		return nil
	})
	known := map[string]bool{m.Pod(selector("plain")).Metadata.UID: true, m.Pod(selector("seeded")).Metadata.UID: true}
	m.istiod(0)
	m.Kubectl("scale", "deployment", "plain", "seeded", "--replicas", "2")
	m.AllReady(selector("seeded"), 2)
	for _, pod := range m.Pods(selector("seeded")) {
		if known[pod.Metadata.UID] {
			continue
		}
		r, err := rig.Node.GetIn(m.Name, pod.Metadata.Name, "application", "http://plain/header?key=X-Forwarded-Client-Cert")
		if err != nil || r.Status != 200 || !strings.Contains(r.Body, "URI=spiffe://cluster.local/ns/scaled/sa/seeded") {
			t.Errorf("the new pod's request: %+v (%v)", r, err)
		}
		if said, err := m.holdfast(pod, "status"); err != nil || !strings.Contains(said, "seed") {
			t.Errorf("status does not say that it is a seed: %v\n%s", err, said)
		}
	}
	m.Eventually(time.Minute, func() error {
		for _, pod := range m.Pods(selector("plain")) {
			if known[pod.Metadata.UID] {
				continue
			}
			said, err := m.holdfast(pod, "status")
			if !strings.Contains(said, "certificate default: none yet") || pod.Ready() {
				return fmt.Errorf("Ready: %t, status: %v\n%s", pod.Ready(), err, said)
			}
			return nil
		}
		return errors.New("there is no new pod")
	})
	m.istiod(1)
	m.AllReady(selector("plain"), 2)
}

// injected returns an application as `istioctl kube-inject` injects it.
func (m *mesh) injected(name string, change func(pod map[string]any)) string {
	m.Helper()
	dir := m.TempDir()
	m.Write(dir, "application.yaml", fmt.Sprintf(application, name, 1, withHoldfast))
	var documents []string
	for document := range strings.SplitSeq(m.istioctl("kube-inject", "--filename", dir+"/application.yaml"), "\n---\n") {
		var doc map[string]any
		m.Check(yaml.Unmarshal([]byte(document), &doc))
		if doc["kind"] == "Deployment" && change != nil {
			change(doc["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any))
		}
		text, err := yaml.Marshal(doc)
		m.Check(err)
		documents = append(documents, string(text))
	}
	return strings.Join(documents, "---\n")
}

// withSeed lets a pod issue its certificate by a mounted CA, and publish and use a seed.
func withSeed(pod map[string]any) {
	for _, c := range pod["initContainers"].([]any) {
		container := c.(map[string]any)
		if container["name"] != "istio-proxy" {
			continue
		}
		var args []any
		for _, a := range container["args"].([]any) {
			switch arg := a.(string); {
			case strings.HasPrefix(arg, "--ca="):
				args = append(args, "--ca=dir:/etc/holdfast-ca", "--seed=/etc/holdfast-seed", "--seed-publish=configmap:$(POD_NAMESPACE)/holdfast-seed", "--seed-publish-every=2s")
			case strings.HasPrefix(arg, "--istio-ca="), strings.HasPrefix(arg, "--istio-token"), strings.HasPrefix(arg, "--istio-header"):
			default:
				args = append(args, arg)
			}
		}
		container["args"] = args
		container["volumeMounts"] = append(container["volumeMounts"].([]any),
			map[string]any{"name": "ca", "mountPath": "/etc/holdfast-ca", "readOnly": true},
			map[string]any{"name": "seed", "mountPath": "/etc/holdfast-seed", "readOnly": true})
	}
	pod["volumes"] = append(pod["volumes"].([]any),
		map[string]any{"name": "ca", "secret": map[string]any{"secretName": "mounted-ca"}},
		map[string]any{"name": "seed", "projected": map[string]any{"sources": []any{map[string]any{"configMap": map[string]any{"name": "holdfast-seed"}}}}})
}

// mountedCA gives the namespace istiod's own CA, so that what it signs is trusted by all.
func (m *mesh) mountedCA() {
	m.Helper()
	text, err := rig.Node.Kubectl("get", "secret", "istio-ca-secret", "--namespace", system, "-o", "jsonpath={.data}")
	m.Check(err)
	var data map[string]string
	m.Check(json.Unmarshal([]byte(text), &data))
	files := map[string]string{"ca-cert.pem": data["ca-cert.pem"], "ca-key.pem": data["ca-key.pem"]}
	secret, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]string{"name": "mounted-ca"}, "data": files})
	m.Check(err)
	m.Apply(string(secret))
}

const seedObjects = `
apiVersion: v1
kind: ConfigMap
metadata: {name: holdfast-seed}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: holdfast-seed}
rules: [{apiGroups: [""], resources: [configmaps], resourceNames: [holdfast-seed], verbs: [get, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: holdfast-seed}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: holdfast-seed}
subjects: [{kind: ServiceAccount, name: seeded}]
`
