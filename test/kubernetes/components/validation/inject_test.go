// Package validation holds what `holdfast inject` makes against the API server's own validation, without a cluster. It is
// in the module of Kubernetes' components, because the validation is no library.
package validation

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"
)

func TestMain(m *testing.M) {
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true}) // as --allow-privileged of the API server
	m.Run()
}

// templates returns the pod templates of an object, with those in lists.
func templates(t *testing.T, object runtime.Object) (all []corev1.PodTemplateSpec) {
	t.Helper()
	switch o := object.(type) {
	case *appsv1.Deployment:
		return []corev1.PodTemplateSpec{o.Spec.Template}
	case *appsv1.StatefulSet:
		return []corev1.PodTemplateSpec{o.Spec.Template}
	case *appsv1.DaemonSet:
		return []corev1.PodTemplateSpec{o.Spec.Template}
	case *appsv1.ReplicaSet:
		return []corev1.PodTemplateSpec{o.Spec.Template}
	case *batchv1.Job:
		return []corev1.PodTemplateSpec{o.Spec.Template}
	case *batchv1.CronJob:
		return []corev1.PodTemplateSpec{o.Spec.JobTemplate.Spec.Template}
	case *corev1.ReplicationController:
		return []corev1.PodTemplateSpec{*o.Spec.Template}
	case *corev1.PodTemplate:
		return []corev1.PodTemplateSpec{o.Template}
	case *corev1.Pod:
		o.Spec.EphemeralContainers = nil // a pod is not created with them
		return []corev1.PodTemplateSpec{{ObjectMeta: o.ObjectMeta, Spec: o.Spec}}
	case *appsv1.DeploymentList:
		for i := range o.Items {
			all = append(all, o.Items[i].Spec.Template)
		}
	case *corev1.List:
		for _, item := range o.Items {
			inner, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(item.Raw, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, templates(t, inner)...)
		}
	}
	return all
}

// The API server's own validation takes every pod that `holdfast inject` makes in its tests, with the settings in an
// annotation that a volume shows.
func TestTheAPIServerTakesInjectedPods(t *testing.T) {
	paths, err := filepath.Glob("../../../../internal/inject/testdata/*.out.*")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// Kubernetes' reader takes neither directives nor a value in the line of a marker.
		text = bytes.TrimPrefix(bytes.TrimPrefix(text, []byte("%YAML 1.1\n")), []byte("--- "))
		injected := 0
		documents := utilyaml.NewYAMLOrJSONDecoder(bufio.NewReader(bytes.NewReader(text)), 4096)
		for {
			var raw runtime.RawExtension
			if err := documents.Decode(&raw); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if len(raw.Raw) == 0 || string(raw.Raw) == "null" {
				continue
			}
			object, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(raw.Raw, nil, nil)
			if runtime.IsNotRegisteredError(err) {
				continue
			}
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			for _, template := range templates(t, object) {
				if template.Annotations["holdfast.dev/status"] == "" {
					continue
				}
				injected++
				for _, problem := range problems(t, template) {
					t.Errorf("%s: %s", path, problem)
				}
			}
		}
		if injected == 0 {
			t.Errorf("%s: nothing is injected", path)
		}
	}
}

func TestTheAPIServersValidationCanFail(t *testing.T) {
	grace := int64(3)
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: &grace,
		Containers:                    []corev1.Container{{Name: "a", Image: "b", Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 10}}}}},
		Volumes: []corev1.Volume{{Name: "c", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{{Path: "d", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['a b']"}}},
		}}}},
	}}
	if found := problems(t, pod); len(found) != 2 {
		t.Errorf("problems %q, want those of the sleep and of the annotation", found)
	}
}

// problems returns what the API server says against a pod of a template.
func problems(t *testing.T, template corev1.PodTemplateSpec) (all []string) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace = "a", "shop"
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = "default" // as admission does before the validation
	}
	legacyscheme.Scheme.Default(pod)
	var internal core.Pod
	if err := legacyscheme.Scheme.Convert(pod, &internal, nil); err != nil {
		t.Fatal(err)
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&internal.Spec, nil, &internal.ObjectMeta, nil)
	for _, err := range validation.ValidatePodCreate(&internal, options) {
		all = append(all, err.Error())
	}
	return all
}
