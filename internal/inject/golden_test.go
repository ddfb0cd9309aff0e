package inject

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the expected outputs in testdata and deploy/components/sidecar")

// goldenSettings are those of the golden files.
func goldenSettings() Settings {
	s := NewSettings()
	s.Upstreams = []string{"xds.example.org:443"}
	return s
}

// rewritten are the inputs of which uninject restores the meaning and not every byte, with the reason.
var rewritten = map[string]string{
	"anchors":     "an alias that is to be changed is written out, and stays so",
	"null-fields": "a written null or an empty list with content is written as what it was, without null",
}

func inputs(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.in.*")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d inputs, %v", len(paths), err)
	}
	all := make(map[string][]byte)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.Replace(filepath.Base(path), ".in.", ".", 1)] = text
	}
	return all
}

// must returns the output of an injection that refuses nothing.
func must(t *testing.T, out []byte, results []Result) []byte {
	t.Helper()
	for _, r := range results {
		if r.Err != nil {
			t.Fatalf("%s: %v", r.Object, r.Err)
		}
	}
	return out
}

// say returns what the command says of results, without warnings.
func say(results []Result) string {
	var b strings.Builder
	for _, r := range results {
		what := r.Note
		if r.Err != nil {
			what = r.Err.Error()
		}
		fmt.Fprintf(&b, "document %d, line %d: %s: %s\n", r.Document, r.Line, r.Object, what)
	}
	return b.String()
}

// golden compares with a file in testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s (%v): go test ./internal/inject -update writes it. Got:\n%s", path, err, got)
	}
}

func TestInjectionsAreThoseOfTheGoldenFiles(t *testing.T) {
	for name, in := range inputs(t) {
		t.Run(name, func(t *testing.T) {
			base, ext := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name)
			out, results := Inject(in, goldenSettings())
			must(t, out, results)
			golden(t, base+".out"+ext, out)
			golden(t, base+".say.txt", []byte(say(results)))

			again, results := Inject(out, goldenSettings())
			if !bytes.Equal(must(t, again, results), out) {
				t.Errorf("a second injection changes it:\n%s", again)
			}
			for _, r := range results {
				if r.Changed {
					t.Errorf("a second injection says that it changes %s", r.Object)
				}
			}
			other := goldenSettings()
			other.Shape, other.Upstreams, other.Image = EnvoyChild, []string{"other.example:1"}, "registry.example/holdfast:v2"
			newer, results := Inject(out, other)
			must(t, newer, results)
			back, results := Uninject(newer)
			restored(t, base, in, must(t, back, results))
			back, results = Uninject(out)
			restored(t, base, in, must(t, back, results))
			direct, results := Inject(in, other)
			must(t, direct, results)
			if !sameMeaning(t, newer, direct) {
				t.Errorf("an injection over another one is not that with its own settings:\n%s", newer)
			}
		})
	}
}

// restored checks that an injection was taken away.
func restored(t *testing.T, base string, in, back []byte) {
	t.Helper()
	if _, ok := rewritten[base]; ok && sameMeaning(t, in, back) {
		return
	}
	if !bytes.Equal(in, back) {
		t.Errorf("uninject does not restore the input:\n%s", back)
	}
}

// sameMeaning compares texts by their documents. Null and empty collections are the same.
func sameMeaning(t *testing.T, a, b []byte) bool {
	t.Helper()
	x, y := split(a), split(b)
	if len(x) != len(y) {
		return false
	}
	for i := range x {
		if meaning(t, x[i]) != meaning(t, y[i]) {
			return false
		}
	}
	return true
}

func meaning(t *testing.T, text []byte) string {
	t.Helper()
	var value any
	if json.Unmarshal(text, &value) != nil {
		if err := yaml.Unmarshal(bytes.TrimPrefix(text, bom), &value); err != nil {
			t.Fatal(err)
		}
	}
	made, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(":null", ":{}", ":[]", ":{}").Replace(string(made))
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	paths, err := filepath.Glob("testdata/refused/*.yaml")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d inputs, %v", len(paths), err)
	}
	var all strings.Builder
	for _, path := range paths {
		in, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out, results := Inject(in, goldenSettings())
		if !bytes.Equal(out, in) {
			t.Errorf("%s is changed", path)
		}
		refused := false
		for _, r := range results {
			refused = refused || r.Err != nil
		}
		if !refused {
			t.Errorf("%s is not refused", path)
		}
		fmt.Fprintf(&all, "%s\n%s\n", filepath.Base(path), say(results))
	}
	golden(t, "refused.txt", []byte(all.String()))
}
