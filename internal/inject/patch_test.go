package inject

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

// pods returns the pod templates of the inputs as JSON, as a webhook would get them.
func pods(t *testing.T) map[string][]byte {
	t.Helper()
	all := make(map[string][]byte)
	for name, text := range inputs(t) {
		for _, part := range split(text) {
			stream(part, func(_, template *yaml.Node) (string, []string, error) {
				expanded, err := yamledit.Expand(template)
				if err != nil {
					t.Fatal(err)
				}
				var value any
				if err := expanded.Decode(&value); err != nil { // with what merge keys add
					t.Fatal(err)
				}
				pod, err := json.Marshal(value)
				if err != nil {
					t.Fatal(err)
				}
				all[name] = pod
				return "", nil, nil
			})
		}
	}
	if len(all) < 20 {
		t.Fatalf("%d pods", len(all))
	}
	return all
}

func TestAPatchMakesTheInjectedPod(t *testing.T) {
	for name, pod := range pods(t) {
		t.Run(strings.TrimSuffix(name, filepath.Ext(name)), func(t *testing.T) {
			d, err := yamledit.Parse(pod)
			if err != nil {
				t.Fatal(err)
			}
			want := yamledit.Clone(d.Root)
			_, err = Pod(want, goldenSettings())
			patch, _, patchErr := Patch(pod, goldenSettings())
			if errors.Is(err, ErrLeftAlone) && errors.Is(patchErr, ErrLeftAlone) {
				return
			}
			if err != nil || patchErr != nil {
				t.Fatal(err, patchErr)
			}
			applied := apply(t, pod, patch)
			if got := sortedJSON(t, applied); got != sorted(t, want) {
				t.Errorf("patched:\n%s\nwant:\n%s", got, sorted(t, want))
			}
			if again, _, err := Patch(applied, goldenSettings()); err != nil || string(again) != "[]" {
				t.Errorf("a second patch is %s, %v", again, err)
			}
			other := goldenSettings()
			other.Shape, other.Image = EnvoyChild, "other:1"
			newer, _, err := Patch(applied, other)
			if err != nil {
				t.Fatal(err)
			}
			direct, _, err := Patch(pod, other)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := sortedJSON(t, apply(t, applied, newer)), sortedJSON(t, apply(t, pod, direct)); got != want {
				t.Errorf("over another injection:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func apply(t *testing.T, document, patch []byte) []byte {
	t.Helper()
	p, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.Apply(document)
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	return out
}

func sortedJSON(t *testing.T, text []byte) string {
	t.Helper()
	d, err := yamledit.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return sorted(t, d.Root)
}

func TestAPatchOfWhatIsNoPodIsAnError(t *testing.T) {
	for _, text := range []string{"", "[]", `{"spec":1}`, `{"metadata":[],"spec":{"containers":[{"name":"a"}]}}`, `{"a":1,"a":2}`, `{"spec":{"containers":"a"}}`, `{"spec":{"containers":[1]}}`} {
		if patch, _, err := Patch([]byte(text), goldenSettings()); err == nil {
			t.Errorf("%s: %s", text, patch)
		}
	}
}
