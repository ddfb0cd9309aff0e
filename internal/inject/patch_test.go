package inject

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
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

// patchOf returns the patch of a review.
func patchOf(pod []byte, s Settings) ([]byte, []string, error) {
	r, err := NewReview(pod)
	if err != nil {
		return nil, nil, err
	}
	return r.Patch(s)
}

// wholePatch returns the patch that is made of all of a pod, with the parser of files.
func wholePatch(pod []byte, s Settings) ([]byte, []string, error) {
	d, err := yamledit.Parse(pod)
	if err != nil {
		return nil, nil, err
	}
	after := yamledit.Clone(d.Root)
	warnings, err := Pod(after, s)
	if err != nil {
		return nil, nil, err
	}
	patch, err := yamledit.Patch(d.Root, after)
	return patch, warnings, err
}

// strew adds a key with values of every kind to each mapping, and elements to lists of texts: what newer versions of
// Kubernetes may have.
func strew(value any) any {
	switch v := value.(type) {
	case map[string]any:
		texts := len(v) > 0 // labels and annotations have texts only
		for key, of := range v {
			_, text := of.(string)
			texts = texts && text
			v[key] = strew(of)
		}
		if _, named := v["name"]; named || !texts {
			v["newField"] = map[string]any{"name": "\"}],\\", "a": []any{1, -2.5e3, true, nil, "]", map[string]any{}}, "b": []any{map[string]any{"name": "x"}, "y", []any{}}}
		}
	case []any:
		for i := range v {
			v[i] = strew(v[i])
		}
	}
	return value
}

// A review reads a part of the pod: its patches, warnings and errors are those of the whole.
func TestAPatchIsThatOfTheWholePod(t *testing.T) {
	all := pods(t)
	refused, err := filepath.Glob("testdata/refused/*.yaml")
	if err != nil || len(refused) < 20 {
		t.Fatal(len(refused), err)
	}
	for _, path := range refused {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		stream(text, func(_, template *yaml.Node) (string, []string, error) {
			var value any
			if expanded, err := yamledit.Expand(template); err == nil && expanded.Decode(&value) == nil {
				if pod, err := json.Marshal(value); err == nil {
					all[filepath.Base(path)] = pod
				}
			}
			return "", nil, nil
		})
	}
	same := func(t *testing.T, pod []byte, s Settings) []byte {
		t.Helper()
		want, wantWarnings, wantErr := wholePatch(pod, s)
		got, warnings, err := patchOf(pod, s)
		if string(got) != string(want) || !slices.Equal(warnings, wantWarnings) || (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			t.Errorf("%s\n%s %q %v, want\n%s %q %v", pod, got, warnings, err, want, wantWarnings, wantErr)
		}
		return got
	}
	child := goldenSettings()
	child.Shape = EnvoyChild
	patched := 0
	for name, pod := range all {
		t.Run(name, func(t *testing.T) {
			var value any
			if err := json.Unmarshal(pod, &value); err != nil {
				t.Fatal(err)
			}
			strewn, err := json.MarshalIndent(strew(value), "", " ")
			if err != nil {
				t.Fatal(err)
			}
			for _, form := range [][]byte{pod, strewn} {
				patch := same(t, form, goldenSettings())
				if len(patch) > len("[]") {
					patched++
					same(t, apply(t, form, patch), goldenSettings())
					same(t, apply(t, form, patch), child)
				}
			}
		})
	}
	if patched < 40 || len(all) < 50 {
		t.Errorf("%d pods, %d patches", len(all), patched)
	}
}

func TestAPodWithTooManyValuesIsAnError(t *testing.T) {
	r, err := NewReview([]byte(`{"metadata":{"name":"web"},"spec":{"containers":[` + strings.Repeat(`{"name":"a"},`, maxPodValues) + `{"name":"b"}]}}`))
	if err == nil || !strings.Contains(err.Error(), "more than 5000 values") || r.Name() != "web" {
		t.Errorf("%v", err)
	}
	for name, pod := range map[string]string{
		"a list of control planes": `{"metadata":{"annotations":{"holdfast.dev/upstream":"` + strings.Repeat("a,", maxAnnotation) + `b"}},"spec":{"containers":[{"name":"a"}]}}`,
		"a status":                 `{"metadata":{"annotations":{"holdfast.dev/status":"` + strings.Repeat(" ", maxAnnotations) + `{}"}},"spec":{"containers":[{"name":"a"}]}}`,
		"a long name":              `{"spec":{"containers":[{"name":"` + strings.Repeat("a", maxName+1) + `"}]}}`,
		"annotations of others":    `{"metadata":{"annotations":{"x":"` + strings.Repeat(" ", maxAnnotations) + `{}"}},"spec":{"containers":[{"name":"a"}]}}`,
	} {
		if _, _, err := patchOf([]byte(pod), goldenSettings()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
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
			patch, _, patchErr := patchOf(pod, goldenSettings())
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
			if again, _, err := patchOf(applied, goldenSettings()); err != nil || string(again) != "[]" {
				t.Errorf("a second patch is %s, %v", again, err)
			}
			other := goldenSettings()
			other.Shape, other.Image = EnvoyChild, "other:1"
			newer, _, err := patchOf(applied, other)
			if err != nil {
				t.Fatal(err)
			}
			direct, _, err := patchOf(pod, other)
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
		if patch, _, err := patchOf([]byte(text), goldenSettings()); err == nil {
			t.Errorf("%s: %s", text, patch)
		}
	}
}
