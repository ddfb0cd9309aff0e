// Package chart tests deploy/chart with Helm's own code: the linter, the schema of the values, and what the templates make of five
// sets of values, which is decoded strictly.
package chart

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/injector"
	"github.com/holdfast-xds/holdfast/test/dockerfile"
)

var update = flag.Bool("update", false, "write the golden renders, and the files of the chart that are copies")

// sets are the values of the golden renders, in testdata.
var sets = []string{"least", "most", "monitoring", "mesh", "mesh-etcd"}

func path(t *testing.T, parts ...string) string {
	t.Helper()
	return filepath.Join(append([]string{envoytest.Root(t), "deploy"}, parts...)...)
}

func load(t *testing.T) *chartv2.Chart {
	t.Helper()
	c, err := loader.Load(path(t, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func valuesOf(t *testing.T, set string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", set+".values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(text))
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	values := make(map[string]any)
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values
}

// render returns what the templates make of values, by their names.
func render(c *chartv2.Chart, values map[string]any) (map[string]string, error) {
	v := common.DefaultCapabilities.Copy()
	v.KubeVersion = common.KubeVersion{Version: "v1.30.0", Major: "1", Minor: "30"}
	all, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "holdfast", Namespace: "mesh", Revision: 1, IsInstall: true}, v)
	if err != nil {
		return nil, err
	}
	made, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	short := make(map[string]string)
	for name, text := range made {
		if text = strings.TrimSpace(text); text != "" && !strings.HasSuffix(name, ".tpl") {
			short[filepath.Base(name)] = text + "\n"
		}
	}
	return short, nil
}

// decode returns the objects of a render. Unknown and repeated fields are errors.
func decode(t *testing.T, name, text string) (objects []runtime.Object) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, document)
			continue
		}
		objects = append(objects, object)
	}
	return objects
}

// objectsOf returns the objects that a set of values makes.
func objectsOf(t *testing.T, values map[string]any) (objects []runtime.Object) {
	t.Helper()
	made, err := render(load(t), values)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if name != "NOTES.txt" {
			objects = append(objects, decode(t, name, made[name])...)
		}
	}
	return objects
}

func only[T runtime.Object](t *testing.T, objects []runtime.Object, name string) T {
	t.Helper()
	var found []T
	for _, o := range objects {
		if one, ok := o.(T); ok && o.(metav1.Object).GetName() == name {
			found = append(found, one)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of %T with the name %s", len(found), *new(T), name)
	}
	return found[0]
}

func TestTheRendersAreThoseOfTheGoldenFiles(t *testing.T) {
	for _, set := range sets {
		t.Run(set, func(t *testing.T) {
			made, err := render(load(t), valuesOf(t, set))
			if err != nil {
				t.Fatal(err)
			}
			var all bytes.Buffer
			for _, name := range slices.Sorted(maps.Keys(made)) {
				all.WriteString("# " + name + "\n" + made[name])
				if name == "NOTES.txt" {
					continue
				}
				if len(decode(t, name, made[name])) == 0 {
					t.Errorf("%s: no object", name)
				}
			}
			file := filepath.Join("testdata", set+".golden.txt")
			if *update {
				if err := os.WriteFile(file, all.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(file); err != nil || !bytes.Equal(want, all.Bytes()) {
				t.Errorf("%s is not what the templates make (%v): go test . -update, and look at the difference", file, err)
			}
		})
	}
}

// The golden files leave the dashboard out, which is long.
func TestTheDashboardIsThatOfMonitoring(t *testing.T) {
	want, err := os.ReadFile(path(t, "monitoring/dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	config := only[*corev1.ConfigMap](t, objectsOf(t, parse(t, "injector: {enabled: false}\nmonitoring: {dashboard: true}\n")), "holdfast-dashboard")
	if strings.TrimSpace(config.Data["holdfast.json"]) != strings.TrimSpace(string(want)) || config.Labels["grafana_dashboard"] != "1" {
		t.Error("the dashboard is another one, or Grafana does not find it")
	}
}

// With other names the PodMonitors select other pods.
func TestThePodMonitorsSelectThePodsOfTheChart(t *testing.T) {
	values := valuesOf(t, "mesh")
	values["monitoring"] = map[string]any{"podMonitor": true}
	for kind, want := range map[string]string{"injector": "another-injector", "mesh": "another-mesh"} {
		of, _ := values[kind].(map[string]any)
		if of == nil {
			of = make(map[string]any)
			values[kind] = of
		}
		of["name"] = want
	}
	objects := objectsOf(t, values)
	for kind, deployment := range map[string]string{"holdfast-injector": "another-injector", "holdfast-mesh": "another-mesh"} {
		monitor, pods := only[*monitoringv1.PodMonitor](t, objects, kind), only[*appsv1.Deployment](t, objects, deployment).Spec.Template
		selector, err := metav1.LabelSelectorAsSelector(&monitor.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pods.Labels)) {
			t.Errorf("%s selects %v, and the pods have %v (%v)", kind, monitor.Spec.Selector, pods.Labels, err)
		}
	}
}

func TestTheLinterHasNothingToSay(t *testing.T) {
	for _, set := range append([]string{""}, sets...) {
		values := map[string]any{}
		if set != "" {
			values = valuesOf(t, set)
		}
		version := &common.KubeVersion{Version: "v1.30.0", Major: "1", Minor: "30"}
		for _, m := range lint.RunAll(path(t, "chart"), values, "mesh", lint.WithKubeVersion(version)).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%q: %v", set, m)
			}
		}
	}
}

// The files of the chart that are there for .Files.Get are those of deploy.
func TestTheFilesOfTheChartAreCopies(t *testing.T) {
	copies := map[string]string{
		"podmonitor.yaml": "monitoring", "mesh-podmonitor.yaml": "monitoring", "prometheusrule.yaml": "monitoring", "mesh-prometheusrule.yaml": "monitoring",
		"injector-podmonitor.yaml": "monitoring", "injector-prometheusrule.yaml": "monitoring",
		"dashboard.json": "monitoring", "configmaps.yaml": "components/seed", "role.yaml": "components/seed",
	}
	for name, dir := range copies {
		want, err := os.ReadFile(path(t, dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(path(t, "chart/files", name), want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path(t, "chart/files", name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("deploy/chart/files/%s is not that of deploy/%s (%v): go test ./test/chart -run Copies -update", name, dir, err)
		}
	}
	found, err := os.ReadDir(path(t, "chart/files"))
	if err != nil || len(found) != len(copies) {
		t.Errorf("%d files in deploy/chart/files, want %d (%v)", len(found), len(copies), err)
	}
}

func TestWrongValuesAreErrors(t *testing.T) {
	const upstream = "controlPlane: {upstream: ['a:1']}\n"
	for values, want := range map[string]string{
		"":                                    "controlPlane.upstream is empty: name the control plane",
		"controlplane: {upstream: ['a:1']}\n": "additional properties 'controlplane' not allowed",
		upstream + "injector: {failurePolicy: ignore}":                           "failurePolicy",
		upstream + "injector: {replicas: 0}":                                     "replicas",
		upstream + "injector: {onReject: warn}":                                  "onReject",
		upstream + "injector: {caLifetime: 1y}":                                  "caLifetime",
		upstream + "inject: {shape: gateway}":                                    "shape",
		upstream + "inject: {prestopSleep: 10}":                                  "prestopSleep",
		upstream + "inject: {proxy: {cpus: '1'}}":                                "cpus",
		upstream + "images: {holdfast: {digest: abc}}":                           "digest",
		upstream + "seed: {namespaces: [A]}":                                     "namespaces",
		upstream + "mesh: {enabled: true, config: {a.yaml: a}}":                  "mesh.tlsSecret is empty",
		upstream + "mesh: {enabled: true, tlsSecret: a}":                         "want documents in mesh.config, or mesh.etcd.endpoints",
		upstream + "mesh: {enabled: true, tlsSecret: a, config: {a.txt: a}}":     "'a.txt' does not match",
		upstream + "mesh: {enabled: true, tlsSecret: a, etcd: {endpoints: [a]}}": "endpoints",
		upstream + "mesh: {enabled: true, tlsSecret: a, config: {a.yaml: a}}":    "mesh.args say nothing of how pods prove who they are",
		upstream + "mesh: {enabled: true, tlsSecret: a, config: {a.yaml: a}, args: ['--token-issuer=', '--ca-max-lifetime=1h', '--tls-client-cas=x']}": "mesh.args say nothing",
	} {
		if _, err := render(load(t), parse(t, values)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v\nwant %s", values, err, want)
		}
	}
}

func TestEveryValueIsInTheSchemaAndEveryPropertyAValue(t *testing.T) {
	c := load(t)
	var schema map[string]any
	if err := json.Unmarshal(c.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	var compare func(where string, schema map[string]any, value any)
	compare = func(where string, s map[string]any, value any) {
		if ref, _ := s["$ref"].(string); ref != "" {
			s = schema["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
		}
		properties, _ := s["properties"].(map[string]any)
		values, _ := value.(map[string]any)
		for key, p := range properties {
			if where == "" && key == "global" || where == ".inject.proxy" || where == ".inject.agent" {
				continue // of Helm; and not set
			}
			if _, ok := values[key]; !ok {
				t.Errorf("values.yaml lacks %s.%s", where, key)
				continue
			}
			compare(where+"."+key, p.(map[string]any), values[key])
		}
		if len(properties) == 0 {
			return
		}
		for key := range values {
			if properties[key] == nil {
				t.Errorf("values.schema.json lacks %s.%s", where, key)
			}
		}
	}
	compare("", schema, c.Values)
}

// What the injector is configured with is what its own parser takes.
func TestTheSettingsAreThoseThatTheInjectorTakes(t *testing.T) {
	for _, row := range []struct{ set, name, namespace, upstream, image string }{
		{"least", "holdfast-injector", "shop", "xds.example:443", "holdfast:v0.1.0"},
		{"most", "holdfast-injector", "shop", "shop.example:443", "registry.example/holdfast@sha256:1111111111111111111111111111111111111111111111111111111111111111"},
		{"mesh", "holdfast-injector", "shop", "holdfast-mesh.mesh.svc:15012", "holdfast:v0.1.0"},
		{"mesh-etcd", "other", "shop", "holdfast-mesh.mesh.svc:15012", "holdfast:v0.1.0"},
	} {
		config := only[*corev1.ConfigMap](t, objectsOf(t, valuesOf(t, row.set)), row.name)
		s, err := injector.ParseSettings([]byte(config.Data["settings.yaml"]))
		if err != nil {
			t.Errorf("%s: %v\n%s", row.set, err, config.Data["settings.yaml"])
			continue
		}
		if got := s.Of(row.namespace); got.Upstreams[0] != row.upstream || got.Image != row.image {
			t.Errorf("%s: %+v", row.set, got)
		}
	}
}

func TestTheChartHasTheEnvoyAndVersionOfTheImages(t *testing.T) {
	recipe, err := dockerfile.Read(envoytest.Root(t))
	if err != nil {
		t.Fatal(err)
	}
	image := load(t).Values["images"].(map[string]any)["envoy"].(map[string]any)
	if got := image["repository"].(string) + ":" + image["tag"].(string); got != recipe.Arg("", "ENVOY_IMAGE") {
		t.Errorf("Envoy %s, that of the Dockerfile is %s", got, recipe.Arg("", "ENVOY_IMAGE"))
	}
	if m := load(t).Metadata; "v"+m.Version != m.AppVersion {
		t.Errorf("version %s, appVersion %s", m.Version, m.AppVersion)
	}
}

// The injector of the chart is that of deploy/injector: all but labels, the namespace, and flags that have their defaults.
func TestTheInjectorIsThatOfDeployInjector(t *testing.T) {
	got := objectsOf(t, valuesOf(t, "least"))
	files, err := filepath.Glob(path(t, "injector", "*.yaml"))
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	compared := 0
	for _, file := range files {
		base := filepath.Base(file)
		if base == "kustomization.yaml" || base == "settings.yaml" || base == "namespace.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range decode(t, base, strings.ReplaceAll(string(text), "namespace: holdfast", "namespace: mesh")) {
			at := slices.IndexFunc(got, func(o runtime.Object) bool {
				return reflect.TypeOf(o) == reflect.TypeOf(want) && o.(metav1.Object).GetName() == want.(metav1.Object).GetName()
			})
			if at < 0 {
				t.Errorf("the chart has no %T %s", want, want.(metav1.Object).GetName())
				continue
			}
			compared++
			if a, b := stripped(t, got[at]), stripped(t, want); a != b {
				t.Errorf("chart:\n%s\ndeploy/injector:\n%s", a, b)
			}
		}
	}
	if compared < 10 {
		t.Errorf("only %d objects compared", compared)
	}
}

// instance is the label that only Helm's objects have.
var instance = regexp.MustCompile(`(?m)^ *app.kubernetes.io/instance: holdfast\n`)

// stripped returns an object without what may differ.
func stripped(t *testing.T, o runtime.Object) string {
	t.Helper()
	if d, ok := o.(*appsv1.Deployment); ok {
		for i, c := range d.Spec.Template.Spec.Containers {
			d.Spec.Template.Spec.Containers[i].ImagePullPolicy = ""
			d.Spec.Template.Spec.Containers[i].Args = slices.DeleteFunc(c.Args, func(arg string) bool {
				return slices.Contains([]string{"--on-reject=allow", "--service=holdfast-injector", "--secret=holdfast-injector-ca", "--webhook-configuration=holdfast-injector",
					"--ca-lifetime=8760h", "--cert-lifetime=24h", "--drain-time=5s", "--log-level=info", "--log-format=text"}, arg)
			})
		}
	}
	if c, ok := o.(*admissionregistrationv1.MutatingWebhookConfiguration); ok {
		for i := range c.Webhooks { // the namespace of the injector
			values := c.Webhooks[i].NamespaceSelector.MatchExpressions[1].Values
			values[len(values)-1] = "mesh"
		}
	}
	meta := o.(metav1.Object)
	meta.SetLabels(nil)
	meta.SetNamespace("")
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return instance.ReplaceAllString(string(text), "")
}

func TestTheChartIsCompleteWithoutOtherFiles(t *testing.T) {
	c := load(t)
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range c.Raw {
		names = append(names, f.Name)
	}
	for _, want := range []string{"Chart.yaml", "values.yaml", "values.schema.json", "templates/NOTES.txt", "files/dashboard.json"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %v", want, names)
		}
	}
}
