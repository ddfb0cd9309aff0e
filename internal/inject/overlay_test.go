package inject

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// overlaySettings are those with which an injection is what the overlays have.
func overlaySettings(shape Shape) Settings {
	s := NewSettings()
	s.Shape, s.ConfigMap = shape, "holdfast"
	return s
}

// overlay returns the Deployment of an overlay, and the same one without what an injection adds.
func overlay(t *testing.T, shape Shape) (whole, bare *yaml.Node) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(envoytest.Root(t), "deploy", "overlays", string(shape), "deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	d, err := yamledit.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	whole, bare = yamledit.Clone(d.Root), yamledit.Clone(d.Root)
	remove(yamledit.Value(yamledit.Value(bare, "metadata"), "labels"), shapeLabel)
	template := yamledit.Value(yamledit.Value(bare, "spec"), "template")
	remove(yamledit.Value(yamledit.Value(template, "metadata"), "labels"), shapeLabel)
	spec := yamledit.Value(template, "spec")
	for _, key := range []string{"initContainers", "volumes", "terminationGracePeriodSeconds"} {
		remove(spec, key)
	}
	remove(yamledit.Value(spec, "securityContext"), "fsGroup")
	for _, c := range list(spec, "containers") {
		remove(c, "lifecycle")
	}
	return whole, bare
}

// What is injected, and what the overlays have, is the same: whoever changes one must change the other.
func TestAnInjectedApplicationIsThatOfTheOverlay(t *testing.T) {
	for _, shape := range Shapes() {
		t.Run(string(shape), func(t *testing.T) {
			whole, bare := overlay(t, shape)
			text, err := encode(bare)
			if err != nil {
				t.Fatal(err)
			}
			injected, results := Inject(text, overlaySettings(shape))
			if len(results) != 1 || results[0].Err != nil || !results[0].Changed {
				t.Fatalf("%+v", results)
			}
			d, err := yamledit.Parse(injected)
			if err != nil {
				t.Fatal(err)
			}
			got := yamledit.Clone(d.Root)
			metadata := yamledit.Value(yamledit.Value(yamledit.Value(got, "spec"), "template"), "metadata")
			if status := text1(metadata, statusAnnotation); status == "" {
				t.Error("no status")
			}
			remove(metadata, "annotations")
			// Fields are compared without their order; the order of containers counts, that of volumes is the template's.
			if g, w := sorted(t, got), sorted(t, whole); g != w {
				t.Errorf("injected:\n%s\nthe overlay:\n%s", g, w)
			}
		})
	}
}

func text1(metadata *yaml.Node, key string) string {
	return text(yamledit.Value(metadata, "annotations"), key)
}

// sorted returns a tree as JSON with sorted keys.
func sorted(t *testing.T, n *yaml.Node) string {
	t.Helper()
	text, err := yamledit.JSON(n)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	if text, err = json.MarshalIndent(value, "", " "); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheSettingsOfAnInjectionAreThoseOfTheOverlays(t *testing.T) {
	base, err := os.ReadFile(filepath.Join(envoytest.Root(t), "deploy", "base", "holdfast.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := templates.ReadFile("templates/holdfast.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(base, own) {
		t.Error("internal/inject/templates/holdfast.yaml is not deploy/base/holdfast.yaml: copy it")
	}
}
