package deploy

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// podSpecs returns the specifications of pods in a text, decoded strictly by Kubernetes' own types. What is of a kind that
// they do not know is left out.
func podSpecs(t *testing.T, name string, text []byte) (specs []corev1.PodSpec, templates []corev1.PodTemplateSpec) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, batchv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	strict := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var visit func(object runtime.Object)
	visit = func(object runtime.Object) {
		switch o := object.(type) {
		case *appsv1.Deployment:
			templates = append(templates, o.Spec.Template)
		case *appsv1.DeploymentList:
			for i := range o.Items {
				visit(&o.Items[i])
			}
		case *appsv1.StatefulSet:
			templates = append(templates, o.Spec.Template)
		case *appsv1.DaemonSet:
			templates = append(templates, o.Spec.Template)
		case *appsv1.ReplicaSet:
			templates = append(templates, o.Spec.Template)
		case *batchv1.Job:
			templates = append(templates, o.Spec.Template)
		case *batchv1.CronJob:
			templates = append(templates, o.Spec.JobTemplate.Spec.Template)
		case *corev1.ReplicationController:
			templates = append(templates, *o.Spec.Template)
		case *corev1.PodTemplate:
			templates = append(templates, o.Template)
		case *corev1.Pod:
			templates = append(templates, corev1.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec})
		case *corev1.List:
			for _, item := range o.Items {
				inner, _, err := strict.Decode(item.Raw, nil, nil)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				visit(inner)
			}
		}
	}
	documents := utilyaml.NewYAMLOrJSONDecoder(bufio.NewReader(bytes.NewReader(text)), 4096)
	for {
		var raw runtime.RawExtension
		err := documents.Decode(&raw)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(raw.Raw) == 0 || string(raw.Raw) == "null" {
			continue
		}
		object, _, err := strict.Decode(raw.Raw, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		visit(object)
	}
	for _, template := range templates {
		specs = append(specs, template.Spec)
	}
	return specs, templates
}

func TestWhatIsInjectedDecodesStrictly(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root(t), "internal", "inject", "testdata", "*.out.*"))
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.TrimPrefix(bytes.TrimPrefix(text, []byte("%YAML 1.1\n")), []byte("--- ")) // kubectl takes neither
		specs, templates := podSpecs(t, filepath.Base(path), text)
		injected := 0
		for i, spec := range specs {
			if templates[i].Annotations["holdfast.dev/status"] == "" {
				continue
			}
			injected++
			names := make(map[string]bool)
			for _, v := range spec.Volumes {
				if names[v.Name] {
					t.Errorf("%s: two volumes %s", path, v.Name)
				}
				names[v.Name] = true
			}
			if spec.InitContainers[0].Name != "bootstrap" || spec.InitContainers[1].Name != "holdfast" {
				t.Errorf("%s: the sidecars are not the first containers", path)
			}
			for _, c := range containers(spec) {
				for _, m := range c.VolumeMounts {
					if !names[m.Name] {
						t.Errorf("%s: container %s: no volume %s", path, c.Name, m.Name)
					}
				}
				if slices.Contains([]string{"bootstrap", "holdfast", "envoy"}, c.Name) {
					for _, problem := range restricted(c) {
						t.Errorf("%s: container %s: %s", path, c.Name, problem)
					}
				}
			}
			if spec.TerminationGracePeriodSeconds == nil || *spec.TerminationGracePeriodSeconds <= 35 {
				t.Errorf("%s: the pod has no time to end", path)
			}
		}
		if injected == 0 {
			t.Errorf("%s: no pod is injected", path)
		}
	}
}

// application is a Deployment as a user has it.
const application = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  selector:
    matchLabels: {app: web}
  template:
    metadata:
      labels: {app: web}
    spec:
      initContainers:
        - {name: schema, image: "example.org/schema:1"}
      containers:
        - name: application
          image: example.org/web:1
          lifecycle: {preStop: {sleep: {seconds: 10}}}
      volumes:
        - {name: data, emptyDir: {}}
`

// inject runs the command.
func inject(t *testing.T, in string, flags ...string) []byte {
	t.Helper()
	cmd := exec.Command(binary(t), append([]string{"inject", "-f", "-"}, flags...)...)
	cmd.Env, cmd.Stdin = []string{}, strings.NewReader(in)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	return out
}

// The component makes the same pod as the command, up to the order of volumes and the annotation of the command.
func TestTheSidecarComponentIsWhatIsInjected(t *testing.T) {
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		t.Run(kind, func(t *testing.T) {
			app := strings.Replace(application, "kind: Deployment", "kind: "+kind, 1)
			files := filesys.MakeFsInMemory()
			write := func(name string, data []byte) {
				if err := files.WriteFile(name, data); err != nil {
					t.Fatal(err)
				}
			}
			for name, data := range tree(t) {
				if filepath.Ext(name) == ".yaml" {
					write("/deploy/"+name, data)
				}
			}
			write("/app/app.yaml", []byte(app))
			write("/app/kustomization.yaml", []byte("resources: [app.yaml]\ncomponents: [../deploy/components/sidecar]\n"))
			made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/app")
			if err != nil {
				t.Fatal(err)
			}
			text, err := made.AsYaml()
			if err != nil {
				t.Fatal(err)
			}
			_, built := podSpecs(t, "component", text)
			if len(built) != 1 {
				t.Fatalf("%d pods in\n%s", len(built), text)
			}
			_, injected := podSpecs(t, "inject", inject(t, app, "--config-map", configMap(built[0].Spec), "--token-audience", "xds.example"))
			delete(injected[0].Annotations, "holdfast.dev/status")
			if len(injected[0].Annotations) == 0 {
				injected[0].Annotations = nil
			}
			for _, template := range []corev1.PodTemplateSpec{built[0], injected[0]} {
				slices.SortFunc(template.Spec.Volumes, func(a, b corev1.Volume) int { return cmp.Compare(a.Name, b.Name) })
			}
			if !reflect.DeepEqual(built[0], injected[0]) {
				b, _ := yaml.Marshal(built[0])
				i, _ := yaml.Marshal(injected[0])
				t.Errorf("the component:\n%s\ninject:\n%s", b, i)
			}
		})
	}
}

// injectedPods returns the application with each shape, as the command injects it, with its settings in an annotation.
func injectedPods(t *testing.T) (all []deployment) {
	t.Helper()
	app := strings.Replace(application, "    spec:\n", "    spec:\n      securityContext: {runAsUser: 0, fsGroup: 2000}\n", 1)
	for _, shape := range []string{"native-sidecar", "envoy-child"} {
		out := inject(t, app, "--upstream", "xds.example:443", "--shape", shape)
		all = append(all, deployment{"injected " + shape, decode(t, shape, out)})
	}
	return all
}
