package deploy

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// injectorSettings is the file of holdfast-injector's --settings.
const injectorSettings = "injector/settings.yaml"

// injectorObjects returns what deploy/injector makes.
func injectorObjects(t *testing.T) []runtime.Object {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root(t), "deploy/injector"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, "deploy/injector", text)
}

// only returns the one object of a type.
func only[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	var found []T
	for _, o := range objects {
		if one, ok := o.(T); ok {
			found = append(found, one)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects of %T", len(found), *new(T))
	}
	return found[0]
}

func TestTheInjectorsSettingsAreValid(t *testing.T) {
	out, err := exec.Command(binary(t)+"-injector", "check", filepath.Join(root(t), "deploy", injectorSettings)).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestTheInjectorsPodIsRestrictedAndLookedAfter(t *testing.T) {
	objects := injectorObjects(t)
	deployment := only[*appsv1.Deployment](t, objects)
	pod := deployment.Spec.Template.Spec
	for _, c := range pod.Containers {
		if problems := append(restricted(c), lookedAfter(c)...); len(problems) > 0 {
			t.Errorf("%s: %v", c.Name, problems)
		}
		if c.LivenessProbe == nil || c.ReadinessProbe == nil {
			t.Errorf("%s has not both probes", c.Name)
		}
		out, err := exec.Command(binary(t)+"-injector", append(slices.Clone(c.Args), sentinel)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "unknown flag: "+sentinel) {
			t.Errorf("holdfast-injector %v: %s", c.Args, out)
		}
	}
	if *deployment.Spec.Replicas != 2 || pod.ServiceAccountName != only[*corev1.ServiceAccount](t, objects).Name {
		t.Error("it has not two replicas with an account of their own")
	}
	if service := only[*corev1.Service](t, objects); !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(deployment.Spec.Template.Labels)) {
		t.Error("its Service selects other pods")
	}
}

// The names in the rights are those of the objects; there is no right to create, or to see others.
func TestTheInjectorsRightsAreTheLeast(t *testing.T) {
	objects := injectorObjects(t)
	secret, configuration := only[*corev1.Secret](t, objects), only[*admissionregistrationv1.MutatingWebhookConfiguration](t, objects)
	if len(secret.Data)+len(secret.StringData) > 0 {
		t.Error("the Secret is not empty: applied again, it would take the authority away")
	}
	rules := append(slices.Clone(only[*rbacv1.Role](t, objects).Rules), only[*rbacv1.ClusterRole](t, objects).Rules...)
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{secret.Name}, Verbs: []string{"get", "watch", "update"}},
		{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"mutatingwebhookconfigurations"}, ResourceNames: []string{configuration.Name}, Verbs: []string{"get", "watch", "patch"}},
	}
	if !slices.EqualFunc(rules, want, func(a, b rbacv1.PolicyRule) bool { return a.String() == b.String() }) {
		t.Errorf("%v", rules)
	}
	for _, w := range configuration.Webhooks {
		if len(w.ClientConfig.CABundle) > 0 {
			t.Errorf("%s has a caBundle, which would be taken away when it is applied again", w.Name)
		}
		if s := w.ClientConfig.Service; s.Name != only[*corev1.Service](t, objects).Name || s.Namespace != secret.Namespace || *s.Path != "/inject" {
			t.Errorf("%s: %+v", w.Name, s)
		}
	}
}

// Which of the two webhooks selects a pod: the table of docs/injector.md.
func TestAtMostOneWebhookSelectsAPod(t *testing.T) {
	webhooks := only[*admissionregistrationv1.MutatingWebhookConfiguration](t, injectorObjects(t)).Webhooks
	for _, row := range []struct {
		name, injection, inject string
		want                    []string
	}{
		{"shop", "enabled", "", []string{"namespace"}},
		{"shop", "enabled", "true", []string{"namespace"}},
		{"shop", "enabled", "false", nil},
		{"shop", "", "true", []string{"pod"}},
		{"shop", "", "", nil},
		{"shop", "", "false", nil},
		{"shop", "disabled", "true", nil},
		{"shop", "disabled", "", nil},
		{"kube-system", "enabled", "true", nil},
		{"kube-system", "", "true", nil},
		{"kube-public", "enabled", "", nil},
		{"kube-node-lease", "", "true", nil},
		{"holdfast", "enabled", "true", nil},
		{"holdfast", "", "true", nil},
	} {
		namespace, pod := labels.Set{"kubernetes.io/metadata.name": row.name}, labels.Set{}
		if row.injection != "" {
			namespace["holdfast.dev/injection"] = row.injection
		}
		if row.inject != "" {
			pod["holdfast.dev/inject"] = row.inject
		}
		var got []string
		for _, w := range webhooks {
			if selects(t, w.NamespaceSelector, namespace) && selects(t, w.ObjectSelector, pod) {
				got = append(got, strings.TrimSuffix(w.Name, ".injector.holdfast.dev"))
			}
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%+v: %v", row, got)
		}
	}
}

func selects(t *testing.T, s *metav1.LabelSelector, set labels.Set) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(set)
}
