// Package deploy tests what is deployed without a cluster: every manifest of deploy/ is
// decoded strictly and every overlay built; pods are held to rules; command lines and
// settings go through the binary's own parser; and the steps of the Dockerfile run
// without an engine. On Linux, as root, the pods also start: the image's root directory,
// volumes as the kubelet makes them, the users of the manifests, and a real Envoy.
package deploy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// overlays are what is applied to a cluster.
var overlays = []string{"overlays/native-sidecar", "overlays/envoy-child", "overlays/gateway", "istio"}

// settings are files of --config.
var settings = []string{"base/holdfast.yaml", "components/sidecar/holdfast.yaml", "istio/holdfast.yaml", "systemd/holdfast.yaml"}

// bootstrapOverlays are files of --overlay.
var bootstrapOverlays = []string{"istio/sds-grpc.yaml"}

// jsonPatches are lists of operations, whose values are containers.
var jsonPatches = []string{"components/hardened/key.yaml"}

// root returns the root of the repository.
func root(t testing.TB) string { return envoytest.Root(t) }

// tree returns the YAML files of deploy/ by their path below it.
func tree(t *testing.T) map[string][]byte {
	t.Helper()
	dir := filepath.Join(root(t), "deploy")
	files := make(map[string][]byte)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// decoder refuses fields that are unknown or given twice, and kinds that are not known.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{admissionregistrationv1.AddToScheme, corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// decode returns the objects of a file with one document or several.
func decode(t *testing.T, name string, data []byte) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		object, _, err := decoder(t).Decode(document, nil, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		objects = append(objects, object)
	}
}

func TestEveryManifestDecodesStrictly(t *testing.T) {
	for name, data := range tree(t) {
		switch {
		case strings.HasPrefix(name, "chart/"): // tested with Helm's code, in test/chart
		case strings.HasPrefix(name, "release/"), name == "systemd/holdfast-mesh.env": // a module of its own, and what its tests and test/release look at
		case filepath.Ext(name) != ".yaml":
			if filepath.Ext(name) != ".service" && name != pluginFile && name != dashboardFile {
				t.Errorf("deploy/%s is no YAML and no unit: no test looks at it", name)
			}
		case slices.ContainsFunc(ruleSets, func(set ruleSet) bool { return name == set.file }), name == valuesFile: // tested with promtool, and as a template
		case slices.Contains(settings, name), slices.Contains(bootstrapOverlays, name), name == injectorSettings: // tested as such
		case filepath.Base(name) == "kustomization.yaml":
			var k types.Kustomization
			if err := yaml.UnmarshalStrict(data, &k); err != nil {
				t.Errorf("deploy/%s: %v", name, err)
			}
		case slices.Contains(jsonPatches, name):
			var operations []struct {
				Op    string           `json:"op"`
				Path  string           `json:"path"`
				Value corev1.Container `json:"value"`
			}
			if err := yaml.UnmarshalStrict(data, &operations); err != nil {
				t.Errorf("deploy/%s: %v", name, err)
			}
		default:
			if len(decode(t, "deploy/"+name, data)) == 0 {
				t.Errorf("deploy/%s: no object", name)
			}
		}
	}
}

func TestAnUnknownOrRepeatedFieldIsNoticed(t *testing.T) {
	for name, document := range map[string]string{
		"unknown":  "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a}\nautomountToken: false\n",
		"repeated": "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, name: b}\n",
		"nested":   "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, livenesProbe: {}}]}\n",
	} {
		if _, _, err := decoder(t).Decode([]byte(document), nil, nil); err == nil {
			t.Errorf("%s: decoded without an error", name)
		}
	}
}

// deployment is what an overlay makes.
type deployment struct {
	name    string // the overlay, and + the component
	objects []runtime.Object
}

// pod returns the template of the one Deployment.
func (d deployment) pod(t *testing.T) *appsv1.Deployment {
	t.Helper()
	var found *appsv1.Deployment
	for _, object := range d.objects {
		if one, ok := object.(*appsv1.Deployment); ok {
			if found != nil {
				t.Fatalf("%s: two Deployments", d.name)
			}
			found = one
		}
	}
	if found == nil {
		t.Fatalf("%s: no Deployment", d.name)
	}
	return found
}

// config returns the files of a ConfigMap.
func (d deployment) config(t *testing.T, name string) map[string]string {
	t.Helper()
	for _, object := range d.objects {
		if c, ok := object.(*corev1.ConfigMap); ok && c.Name == name {
			return c.Data
		}
	}
	return nil
}

// components are what overlays may have in addition.
var components = []string{"hardened", "seed"}

// namespace is the namespace of the overlays with components.
const namespace = "shop"

// built returns every overlay, as it is and with each component.
func built(t *testing.T) []deployment {
	t.Helper()
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
	var all []deployment
	build := func(name, dir string) {
		made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, dir)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := made.AsYaml()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, deployment{name, decode(t, name, text)})
	}
	for _, overlay := range overlays {
		build(overlay, "/deploy/"+overlay)
		for _, component := range components {
			dir := "/with/" + component + "/" + overlay
			up := strings.Repeat("../", strings.Count(dir, "/"))
			write(dir+"/kustomization.yaml", []byte("namespace: "+namespace+"\nresources: ["+up+"deploy/"+overlay+"]\ncomponents: ["+up+"deploy/components/"+component+"]\n"))
			build(overlay+" + "+component, dir)
		}
	}
	return all
}

func TestEveryOverlayHasAPodWithItsConfigurationAndAccount(t *testing.T) {
	for _, d := range built(t) {
		pod := d.pod(t).Spec.Template.Spec
		accounts := slices.ContainsFunc(d.objects, func(o runtime.Object) bool {
			account, ok := o.(*corev1.ServiceAccount)
			return ok && account.Name == pod.ServiceAccountName
		})
		if !accounts {
			t.Errorf("%s: no ServiceAccount %q", d.name, pod.ServiceAccountName)
		}
		if d.config(t, configMap(pod)) == nil {
			t.Errorf("%s: no ConfigMap %q", d.name, configMap(pod))
		}
		if name := configMap(pod); !strings.HasPrefix(name, "holdfast-") {
			t.Errorf("%s: ConfigMap %q has no hash in its name: a change of settings would reach no pod", d.name, name)
		}
	}
}

// configMap returns the name of the volume config.
func configMap(pod corev1.PodSpec) string {
	for _, v := range pod.Volumes {
		if v.Name == "config" && v.ConfigMap != nil {
			return v.ConfigMap.Name
		}
	}
	return ""
}
