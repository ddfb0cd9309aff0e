package deploy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// valuesFile has a template for Istio's webhook; test/istio lets a real istiod inject it.
const valuesFile = "istio/values.yaml"

// injected renders the template as the webhook does, for a pod with annotations.
func injected(t *testing.T, annotations map[string]string) corev1.Pod {
	t.Helper()
	var values struct {
		SidecarInjectorWebhook struct {
			Templates map[string]string `json:"templates"`
		} `json:"sidecarInjectorWebhook"`
	}
	if err := yaml.UnmarshalStrict(tree(t)[valuesFile], &values); err != nil {
		t.Fatal(err)
	}
	parsed, err := template.New("holdfast").Funcs(template.FuncMap{
		"contains": func(part, whole string) bool { return strings.Contains(whole, part) },
		"default": func(otherwise, value any) any {
			if value == nil || value == "" {
				return otherwise
			}
			return value
		},
		"valueOrDefault": func(value, otherwise any) any {
			if value == nil || value == "" {
				return otherwise
			}
			return value
		},
		"annotation": func(meta metav1.ObjectMeta, name string, otherwise any) string {
			if value, ok := meta.Annotations[name]; ok {
				return value
			}
			return fmt.Sprint(otherwise)
		},
	}).Option("missingkey=error").Parse(values.SidecarInjectorWebhook.Templates["holdfast"])
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]any{
		"ObjectMeta":     metav1.ObjectMeta{Annotations: annotations},
		"NativeSidecars": true,
		"MeshConfig":     map[string]any{"TrustDomain": "example.org"},
		"ProxyConfig": map[string]any{
			"DiscoveryAddress":                "istiod.istio-system.svc:15012",
			"HoldApplicationUntilProxyStarts": map[string]any{"GetValue": true},
		},
		"Values": map[string]any{"global": map[string]any{
			"logAsJson": true,
			"proxy": map[string]any{
				"clusterDomain": "cluster.local", "logLevel": "warning", "componentLogLevel": "misc:error", "statusPort": 15020, "holdApplicationUntilProxyStarts": false,
			},
		}},
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, data); err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(text.Bytes(), &pod); err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	return pod
}

// What the template makes of a pod is a pod, its command line is one of the binary, and it is where Istio's own template
// has the proxy.
func TestTheTemplateOfIstiosWebhook(t *testing.T) {
	const templates, native = "inject.istio.io/templates", "sidecar.istio.io/nativeSidecar"
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		inits       bool
		role        string
	}{
		{"a native sidecar", map[string]string{templates: "sidecar,holdfast"}, true, "sidecar"},
		{"the default of a revision", nil, true, "sidecar"},
		{"a sidecar", map[string]string{native: "false"}, false, "sidecar"},
		{"a gateway", map[string]string{templates: "gateway,holdfast"}, false, "router"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := injected(t, tc.annotations)
			list := pod.Spec.Containers
			if tc.inits {
				list = pod.Spec.InitContainers
			}
			if len(list) != 1 || len(pod.Spec.Containers)+len(pod.Spec.InitContainers) != 1 || list[0].Name != "istio-proxy" {
				t.Fatalf("%+v", pod.Spec)
			}
			c := list[0]
			line := slices.Clone(c.Args[:slices.Index(c.Args, "--")])
			for i := range line {
				line[i] = variables.ReplaceAllString(line[i], "x")
			}
			if err := accepts(t, line); err != nil {
				t.Error(err)
			}
			if !slices.Contains(line, "--istio-role="+tc.role) || !slices.Contains(line, "--identity=spiffe://example.org/ns/x/sa/x") {
				t.Errorf("%q", line)
			}
			if hold := c.Lifecycle.PostStart != nil; hold == tc.inits {
				t.Errorf("a hook delays the application: %t", hold)
			}
			for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
				if probe == nil || probe.HTTPGet.Port.IntValue() != 15020 {
					t.Errorf("probe %+v", probe)
				}
			}
		})
	}
	if c := injected(t, map[string]string{"status.sidecar.istio.io/port": "0"}).Spec.InitContainers[0]; c.ReadinessProbe != nil || c.LivenessProbe != nil {
		t.Error("status.sidecar.istio.io/port 0 leaves probes")
	}
}
