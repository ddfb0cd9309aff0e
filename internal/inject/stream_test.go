package inject

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

func TestDocumentsAreSplitWithoutALoss(t *testing.T) {
	for text, want := range map[string]int{
		"":                            1,
		"a: b\n":                      1,
		"---\na: b\n":                 1,
		"# c\n---\na: b\n":            1,
		"%YAML 1.1\n---\na: b\n":      1,
		"a: b\n---\n---\nc: d\n":      3,
		"a: b\n--- # c\nc: d":         2,
		"a: b\n...\n# c\n---\nd: e\n": 2,
		"a: b\n...\nc: d\n":           2,
		"a: |\n  ---\n  b\n":          1,
		"a: b\r\n---\r\nc: d\r\n":     2,
		"a: b\n---c: d\n":             1,
		`{"a":1}{"b":2}` + "\n":       2,
		`{"a":1}` + "\n\n":            1,
		"{a: b}\n---\n{c: d}\n":       2,
		"{}{}\n---\na: b\n":           3,
	} {
		parts := split([]byte(text))
		if got := string(bytes.Join(parts, nil)); got != text || len(parts) != want {
			t.Errorf("%q: %d parts %q, want %d", text, len(parts), parts, want)
		}
	}
}

// What has no pod template passes, whatever it is.
func TestAllElsePassesByteForByte(t *testing.T) {
	for _, text := range []string{
		"", "\n", "# nothing\n", "---\n---\n", "a:   b\n", "\ttabs: yes\n", "{{ .Values.x }}\n", "\xff\xfe", "- Pod\n", "Pod\n",
		"apiVersion: v1\nkind: Podlike\nspec:   {}\n", "kind: List\napiVersion: v1\nitems:   [{kind: Pods}]\n",
		"kind: PodList\nitems: 3\n", "apiVersion: apps/v1\nkind: Pod\n",
	} {
		if out, results := Inject([]byte(text), goldenSettings()); string(out) != text || len(results) > 0 {
			t.Errorf("%q: %q %+v", text, out, results)
		}
	}
}

// Kubernetes' own command reads UTF-16, which PowerShell writes: what would pass untouched has pods.
func TestATextThatIsNotUTF8IsRejected(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		var text []byte
		for _, unit := range utf16.Encode([]rune("\ufeff" + bare)) {
			text = order.AppendUint16(text, unit)
		}
		out, results := Inject(text, goldenSettings())
		if !bytes.Equal(out, text) || len(results) != 1 || results[0].Err == nil || !strings.Contains(results[0].Err.Error(), "save it as UTF-8") {
			t.Errorf("%+v", results)
		}
	}
}

// What somebody has changed since the injection is theirs: it stays, also when it is taken away.
func TestWhatWasChangedSinceStays(t *testing.T) {
	in := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  terminationGracePeriodSeconds: 5\n  containers:\n    - name: c\n      image: i\n"
	out, results := Inject([]byte(in), goldenSettings())
	text := string(must(t, out, results))
	for _, change := range [][2]string{
		{"terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 600"},
		{"    fsGroup: 65532", "    fsGroup: 1000"},
		{"preStop:\n          sleep: {seconds: 10}", "preStop:\n          exec: {command: [drain]}"},
	} {
		if strings.Count(text, change[0]) != 1 {
			t.Fatalf("%q is not there once:\n%s", change[0], text)
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	again, results := Inject([]byte(text), goldenSettings())
	back, others := Uninject(must(t, again, results))
	direct, more := Uninject([]byte(text))
	for name, got := range map[string][]byte{"injected again": again, "taken away after that": must(t, back, others), "taken away": must(t, direct, more)} {
		for _, want := range []string{"terminationGracePeriodSeconds: 600\n", "fsGroup: 1000\n", "exec: {command: [drain]}\n"} {
			if !strings.Contains(string(got), want) {
				t.Errorf("%s: %q is not there:\n%s", name, want, got)
			}
		}
	}
	if strings.Contains(string(direct), "holdfast") {
		t.Errorf("something of the injection stays:\n%s", direct)
	}
}

// A number is the same in each form of YAML, and an alias the same as its value.
func TestNumbersInOtherForms(t *testing.T) {
	for _, port := range []string{"0x3a98", "15_000", "+15000"} {
		_, results := Inject([]byte("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, ports: [{containerPort: "+port+"}]}]}\n"), goldenSettings())
		if len(results) != 1 || results[0].Err == nil || !strings.Contains(results[0].Err.Error(), "port 15000") {
			t.Errorf("%s: %+v", port, results)
		}
	}
	in := "apiVersion: v1\nkind: Pod\nmetadata: {annotations: {n: &g 5}}\nspec:\n  terminationGracePeriodSeconds: *g\n  containers: [{name: a}]\n"
	out, results := Inject([]byte(in), goldenSettings())
	if text := string(must(t, out, results)); !strings.Contains(text, "n: &g 5") || !strings.Contains(text, "terminationGracePeriodSeconds: 60\n") {
		t.Error(text)
	}
}

func TestALargeFileIsInjected(t *testing.T) {
	if testing.Short() {
		t.Skip("10 MB")
	}
	var all strings.Builder
	for i := 0; all.Len() < 10<<20; i++ {
		fmt.Fprintf(&all, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d}\ndata:\n  text: |\n%s", i, strings.Repeat("    kind: Deployment, and a line of text\n", 2000))
	}
	all.WriteString("---\n" + bare)
	out, results := Inject([]byte(all.String()), goldenSettings())
	if len(results) != 1 || !results[0].Changed || len(out) < all.Len() {
		t.Fatalf("%+v", results)
	}
	back, _ := Uninject(out)
	if string(back) != all.String() {
		t.Error("not restored")
	}
}

// FuzzInject holds for every text: it is injected or refused as a whole; a second injection changes nothing; and what is taken away
// leaves what was there, byte for byte unless an alias or a null had to be written in another way.
func FuzzInject(f *testing.F) {
	for _, in := range inputs(f) {
		f.Add(in)
	}
	for _, seed := range []string{bare, "---\n" + bare + "---\n" + bare, strings.ReplaceAll(bare, "\n", "\r\n"), `{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"name":"a"}]}}`,
		"kind: Pod\napiVersion: v1\nspec: {containers: [{name: a, },],}\n", "apiVersion: v1\nkind: Pod\nspec:\n containers:\n - name: a\n   args: [\"a\n  b\", 'c']\n   x: |2+\n\n     y\n\n",
		"? kind\n: Pod\n", "&a apiVersion: v1\nkind: Pod\nspec: &s\n  containers: &c\n  - &d {name: a}\nx: *c\ny: *d\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		out, results := Inject(in, goldenSettings())
		for _, r := range results {
			if r.Err != nil {
				return
			}
		}
		if len(results) == 0 {
			if !bytes.Equal(in, out) {
				t.Fatalf("changed to %q", out)
			}
			return
		}
		again, results := Inject(out, goldenSettings())
		for _, r := range results {
			if r.Err != nil {
				t.Fatalf("injected once, and then: %v:\n%s", r.Err, out)
			}
		}
		if !bytes.Equal(again, out) {
			t.Fatalf("a second injection:\n%q\nafter\n%q", again, out)
		}
		back, results := Uninject(out)
		for _, r := range results {
			if r.Err != nil {
				t.Fatalf("uninject: %v:\n%s", r.Err, out)
			}
		}
		if bytes.Equal(back, in) || bytes.ContainsAny(in, "*~&!") || bytes.Contains(in, []byte("null")) || !utf8.Valid(in) {
			return
		}
		squeeze := func(text []byte) string { return strings.Join(strings.Fields(string(text)), "") } // blanks in empty braces are lost
		if squeeze(back) != squeeze(in) {
			t.Fatalf("not restored: %q", back)
		}
	})
}
