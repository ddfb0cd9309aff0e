package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
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
	text, err := render(t, annotations)
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict(text, &pod); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return pod
}

// render is injected's text; lifecycle are hooks that the mesh has for all of its proxies.
func render(t *testing.T, annotations map[string]string, lifecycle ...any) ([]byte, error) {
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
		"fail": func(why string) (string, error) { return "", errors.New(why) },
		"toJson": func(value any) (string, error) {
			text, err := json.Marshal(value)
			return string(text), err
		},
		"ternary": func(yes, no any, which bool) any {
			if which {
				return yes
			}
			return no
		},
		"contains": func(part, whole string) bool { return strings.Contains(whole, part) },
		"quote":    func(text string) string { return fmt.Sprintf("%q", text) },
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
			"InterceptionMode":                "REDIRECT",
			"Concurrency":                     map[string]any{"GetValue": 0},
		},
		"ProxyUID": 2000, "ProxyGID": nil,
		"Values": map[string]any{
			"pilot": map[string]any{"cni": map[string]any{"enabled": false}},
			"global": map[string]any{
				"logAsJson": true, "imagePullPolicy": "IfNotPresent",
				"proxy": map[string]any{
					"clusterDomain": "cluster.local", "logLevel": "warning", "componentLogLevel": "misc:error", "statusPort": 15020,
					"holdApplicationUntilProxyStarts": false, "lifecycle": append(lifecycle, nil)[0], "seccompProfile": map[string]any{"type": "RuntimeDefault"},
					"resources": map[string]any{"limits": map[string]any{"cpu": "2", "memory": "1Gi"}},
				},
			},
		},
	}
	var text bytes.Buffer
	err = parsed.Execute(&text, data)
	return text.Bytes(), err
}

// What the template makes of a pod is a pod, its command line is one of the binary, and it is where Istio's own template
// has the proxy.
func TestTheTemplateOfIstiosWebhook(t *testing.T) {
	const templates, native, status, mode = "inject.istio.io/templates", "sidecar.istio.io/nativeSidecar", "status.sidecar.istio.io/port", "sidecar.istio.io/interceptionMode"
	const apart = "holdfast.dev/envoy-image"
	for _, tc := range []struct {
		name        string
		annotations map[string]string
		containers  string // of the pod's init containers, a slash, and those of the others
		role, port  string
	}{
		{"a native sidecar", map[string]string{templates: "sidecar,holdfast"}, "istio-init istio-proxy/", "sidecar", "15020"},
		{"the default of a revision", nil, "istio-init istio-proxy/", "sidecar", "15020"},
		{"without redirection", map[string]string{mode: "NONE"}, "istio-proxy/", "sidecar", "15020"},
		{"a sidecar", map[string]string{native: "false"}, "istio-init/istio-proxy", "sidecar", "15020"},
		{"a sidecar without redirection", map[string]string{native: "false", mode: "NONE"}, "/istio-proxy", "sidecar", "15020"},
		{"another status port", map[string]string{status: "15025"}, "istio-init istio-proxy/", "sidecar", "15025"},
		{"Envoy apart", map[string]string{apart: "envoy:1"}, "istio-init istio-proxy envoy/", "sidecar", "15020"},
		{"Envoy apart, with TPROXY", map[string]string{apart: "envoy:1", mode: "TPROXY"}, "istio-init istio-proxy envoy/", "sidecar", "15020"},
		{"a gateway", map[string]string{templates: "gateway,holdfast"}, "/istio-proxy", "router", "15020"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pod := injected(t, tc.annotations)
			var c corev1.Container
			names := func(list []corev1.Container) string {
				var all []string
				for _, one := range list {
					if all = append(all, one.Name); one.Name == "istio-proxy" {
						c = one
					}
				}
				return strings.Join(all, " ")
			}
			if got := names(pod.Spec.InitContainers) + "/" + names(pod.Spec.Containers); got != tc.containers {
				t.Fatalf("containers %s, want %s", got, tc.containers)
			}
			line := slices.Clone(c.Args)
			if end := slices.Index(line, "--"); end >= 0 != (tc.annotations[apart] == "") {
				t.Errorf("the command line has a child at %d: %q", end, line)
			} else if end >= 0 {
				line = line[:end]
			}
			for i := range line {
				line[i] = variables.ReplaceAllString(line[i], "x")
			}
			if err := accepts(t, line); err != nil {
				t.Error(err)
			}
			for _, want := range []string{"--istio-role=" + tc.role, "--health=:" + tc.port, "--identity=spiffe://example.org/ns/x/sa/x"} {
				if !slices.Contains(line, want) {
					t.Errorf("no %s in %q", want, line)
				}
			}
			if hold := c.Lifecycle.PostStart != nil; hold == strings.HasSuffix(tc.containers, "/") {
				t.Errorf("a hook delays the application: %t", hold)
			}
			for _, probe := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe} {
				if probe == nil || probe.HTTPGet.Port.String() != tc.port {
					t.Errorf("probe %+v", probe)
				}
			}
		})
	}
	if c := injected(t, map[string]string{status: "0", mode: "NONE"}).Spec.InitContainers[0]; c.ReadinessProbe != nil || c.LivenessProbe != nil {
		t.Error("status.sidecar.istio.io/port 0 leaves probes")
	}
	// Hooks that the mesh has for all proxies stay Istio's.
	for _, native := range []string{"true", "false"} {
		text, err := render(t, map[string]string{"sidecar.istio.io/nativeSidecar": native}, map[string]any{"preStop": nil})
		if err != nil || strings.Contains(string(text), "lifecycle:") || strings.Contains(string(text), "preStop:") {
			t.Errorf("with hooks of the mesh: %v\n%s", err, text)
		}
	}
	if c := injected(t, map[string]string{"sidecar.istio.io/discoveryAddress": "istiod-canary:15012", mode: "NONE"}).Spec.InitContainers[0]; !slices.Contains(c.Args, "--upstream=istiod-canary:15012") {
		t.Errorf("another istiod: %q", c.Args)
	}
	// An annotation is a text, whatever YAML would make of it.
	if c := injected(t, map[string]string{"sidecar.istio.io/componentLogLevel": "upstream: debug", mode: "NONE"}).Spec.InitContainers[0]; c.Args[len(c.Args)-1] != "upstream: debug" {
		t.Errorf("%q", c.Args)
	}
}

// Envoy in a container of its own starts when the bootstrap is there, as a user whose traffic is not redirected.
func TestTheTemplateWithEnvoyApart(t *testing.T) {
	const apart, native, mode = "holdfast.dev/envoy-image", "sidecar.istio.io/nativeSidecar", "sidecar.istio.io/interceptionMode"
	for name, user := range map[string]int64{"REDIRECT": 2000, "TPROXY": 0} {
		pod := injected(t, map[string]string{apart: "envoy:1", mode: name})
		agent, envoy := pod.Spec.InitContainers[1], pod.Spec.InitContainers[2]
		if probe := agent.StartupProbe; agent.Image != "holdfast:v0.1.0" || probe == nil || probe.HTTPGet.Path != "/startupz" || probe.HTTPGet.Port.String() != "15020" {
			t.Errorf("%s: image %s, startup probe %+v", name, agent.Image, probe)
		}
		if envoy.Image != "envoy:1" || envoy.RestartPolicy == nil || *envoy.SecurityContext.RunAsUser != user || *envoy.SecurityContext.RunAsGroup != 1337 {
			t.Errorf("%s: %+v", name, envoy)
		}
		if caps := envoy.SecurityContext.Capabilities; (len(caps.Add) > 0) != (name == "TPROXY") {
			t.Errorf("%s: capabilities %+v", name, caps)
		}
	}
	for _, annotations := range []map[string]string{{apart: "envoy:1", native: "false"}, {apart: "envoy:1", "inject.istio.io/templates": "gateway,holdfast"}} {
		if _, err := render(t, annotations); err == nil || !strings.Contains(err.Error(), "takes native sidecars") {
			t.Errorf("%v: %v", annotations, err)
		}
	}
}
