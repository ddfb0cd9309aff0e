package inject

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// The component of kustomize is made of the same templates.
func TestTheComponentIsThatOfTheTemplates(t *testing.T) {
	pod, err := templates.ReadFile("templates/" + string(NativeSidecar) + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := templates.ReadFile("templates/" + configFile)
	if err != nil {
		t.Fatal(err)
	}
	var patch strings.Builder
	patch.WriteString("# Generated from internal/inject/templates: go test ./internal/inject -update\n" +
		"apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: any\n  labels:\n    holdfast.dev/shape: sidecar\nspec:\n  template:\n")
	heading := true
	for line := range strings.Lines(string(pod)) {
		if heading = heading && strings.HasPrefix(line, "#"); !heading {
			patch.WriteString("    " + line)
		}
	}
	for name, want := range map[string]string{"sidecar.yaml": patch.String(), "holdfast.yaml": string(settings)} {
		path := filepath.Join(envoytest.Root(t), "deploy", "components", "sidecar", name)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s (%v) is not that of the templates: go test ./internal/inject -update", path, err)
		}
	}
}
