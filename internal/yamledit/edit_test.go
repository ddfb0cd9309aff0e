package yamledit

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"go.yaml.in/yaml/v3"
)

// at returns the node at a path of keys, to be changed.
func at(n *yaml.Node, path ...string) *yaml.Node {
	for _, key := range path {
		n = n.Content[indexOf(n, key)+1]
	}
	return n
}

func str(text string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(text)
	return n
}

func set(m *yaml.Node, key string, value *yaml.Node) {
	if i := indexOf(m, key); i >= 0 {
		m.Content[i+1] = value
		return
	}
	m.Content = append(m.Content, str(key), value)
}

func drop(m *yaml.Node, key string) {
	i := indexOf(m, key)
	m.Content = slices.Delete(m.Content, i, i+2)
}

// parsedNode returns a tree of a text.
func parsedNode(text string) *yaml.Node {
	d, err := Parse([]byte(text))
	if err != nil {
		panic(err)
	}
	return d.Root
}

func TestChangesAreMadeInPlace(t *testing.T) {
	for _, tc := range []struct {
		name, before string
		change       func(*yaml.Node)
		after        string
	}{
		{"nothing", "a:   b # c\n", func(*yaml.Node) {}, "a:   b # c\n"},
		{"a scalar", "a:   'b' # c\n", func(n *yaml.Node) { set(n, "a", str("d")) }, "a:   d # c\n"},
		{"an empty value", "a: # c\nb: d\n", func(n *yaml.Node) { set(n, "a", str("d")) }, "a: d # c\nb: d\n"},
		{"a key", "a: b # c\n# end\n", func(n *yaml.Node) { set(n, "x", str("y")) }, "a: b # c\nx: y\n# end\n"},
		{"a key at the end", "a: b", func(n *yaml.Node) { set(n, "x", str("y")) }, "a: b\nx: y"},
		{"a key with CRLF", "a: b\r\n", func(n *yaml.Node) { set(n, "x", parsedNode("y: z")) }, "a: b\r\nx:\r\n  y: z\r\n"},
		{"a key before another", "# c\na: b\n# d\ne: f\n", func(n *yaml.Node) {
			n.Content = slices.Insert(n.Content, 2, str("x"), str("y"))
		}, "# c\na: b\nx: y\n# d\ne: f\n"},
		{"below an empty key", "a: # c\nb: c\n", func(n *yaml.Node) { set(n, "a", parsedNode("x: y")) }, "a: # c\n  x: y\nb: c\n"},
		{"below a null", "a: ~ # c\n", func(n *yaml.Node) { set(n, "a", parsedNode("x: y")) }, "a:\n  x: y # c\n"},
		{"a literal", "a: |\n  b\n   c\n\n  d\ne: f\n", func(n *yaml.Node) { set(n, "a", str("x\ny\n")) }, "a: |\n  x\n  y\ne: f\n"},
		{"after a literal that keeps its lines", "a: |+\n  b\n\n\n", func(n *yaml.Node) { set(n, "x", str("y")) }, "a: |+\n  b\n\n\nx: y\n"},
		{"after a literal with its width", "a:\n  b: |1\n    c\n   d\n", func(n *yaml.Node) { set(n, "x", str("y")) }, "a:\n  b: |1\n    c\n   d\nx: y\n"},
		{"after several lines", "a: b\n  c\n\n  d # e\n", func(n *yaml.Node) { set(n, "x", str("y")) }, "a: b\n  c\n\n  d # e\nx: y\n"},
		{"after quotes over lines", "a: \"b\n  c\\\"\"\n", func(n *yaml.Node) { set(n, "x", str("y")) }, "a: \"b\n  c\\\"\"\nx: y\n"},
		{"the first element", "a:\n# c\n- b\n", func(n *yaml.Node) { at(n, "a").Content = slices.Insert(at(n, "a").Content, 0, str("x")) }, "a:\n- x\n# c\n- b\n"},
		{"an indented element", "a:\n    - b\n", func(n *yaml.Node) { at(n, "a").Content = append(at(n, "a").Content, parsedNode("x: {y: z}\nv: w")) }, "a:\n    - b\n    - x: {y: z}\n      v: w\n"},
		{"no element", "a:\n- b\n- c\n# d\ne: f\n", func(n *yaml.Node) { at(n, "a").Content = nil }, "a:\n# d\ne: f\n"},
		{"one element less", "a:\n- b # 1\n- c # 2\n- d # 3\n", func(n *yaml.Node) { at(n, "a").Content = slices.Delete(at(n, "a").Content, 1, 2) }, "a:\n- b # 1\n- d # 3\n"},
		{"the first key of an element", "a:\n- b: c\n  d: e\n", func(n *yaml.Node) { drop(at(n, "a").Content[0], "b") }, "a:\n- d: e\n"},
		{"in an element", "a:\n- name: b\n  d: e\n- name: c\n", func(n *yaml.Node) { set(at(n, "a").Content[1], "x", str("y")) }, "a:\n- name: b\n  d: e\n- name: c\n  x: y\n"},
		{"in an element in braces", "a:\n- {name: b}\n", func(n *yaml.Node) { set(at(n, "a").Content[0], "x", str("y")) }, "a:\n- {name: b, x: y}\n"},
		{"an element by its name", "a:\n- name: b\n- name: c\n", func(n *yaml.Node) {
			at(n, "a").Content = []*yaml.Node{parsedNode("name: d"), at(n, "a").Content[1]}
		}, "a:\n- name: d\n- name: c\n"},
		{"in braces", "a: {b: c} # d\n", func(n *yaml.Node) { set(at(n, "a"), "x", parsedNode("y: [1, 'z']")) }, "a: {b: c, x: {y: [1, 'z']}} # d\n"},
		{"in braces over lines", "a: {\n  b: c, # d\n}\n", func(n *yaml.Node) { set(at(n, "a"), "x", str("y")) }, "a: {\n  b: c,\n  x: y, # d\n}\n"},
		{"the first in brackets", "a: [b, c]\n", func(n *yaml.Node) { at(n, "a").Content = slices.Insert(at(n, "a").Content, 0, str("x")) }, "a: [x, b, c]\n"},
		{"none in braces", "a: &b !!map {c: d}\n", func(n *yaml.Node) { drop(at(n, "a"), "c") }, "a: &b !!map {}\n"},
		{"in empty braces", "a: {}\n", func(n *yaml.Node) { set(at(n, "a"), "x", str("y")) }, "a: {x: y}\n"},
		{"a key without a value", "a: {b, c: d}\n", func(n *yaml.Node) { drop(at(n, "a"), "c") }, "a: {b}\n"},
		{"an anchor that is used", "a: &b\n  c: d\ne: *b\n", func(n *yaml.Node) { set(at(n, "a"), "x", str("y")) }, "a: &b\n  c: d\n  x: y\ne:\n  c: d\n"},
		{"a merge key", "a: &b\n  c: d\ne:\n  <<: *b\n  f: g\n", func(n *yaml.Node) { set(at(n, "a"), "x", str("y")) }, "a: &b\n  c: d\n  x: y\ne:\n  f: g\n  c: d\n"},
		{"a merge of several", "a: &b {c: d}\ne:\n  <<: [*b, *b]\n", func(n *yaml.Node) { drop(at(n, "a"), "c") }, "a: &b {}\ne:\n  <<: [{c: d}, {c: d}]\n"},
		{"an alias", "a: &b {c: d}\ne: *b # f\n", func(n *yaml.Node) { set(n, "e", parsedNode("x: y")) }, "a: &b {c: d}\ne:\n  x: y # f\n"},
		{"wide characters", "ä: {ö: ü}\n", func(n *yaml.Node) { set(at(n, "ä"), "x", str("y")) }, "ä: {ö: ü, x: y}\n"},
		{"JSON in lines", "{\n\t\"a\": {}\n}", func(n *yaml.Node) { set(at(n, "a"), "x", parsedNode("[1, true]")) }, "{\n\t\"a\": {\n\t\t\"x\": [\n\t\t\t1,\n\t\t\ttrue\n\t\t]\n\t}\n}"},
		{"JSON in one line", `{"a":[1]}`, func(n *yaml.Node) { at(n, "a").Content = append(at(n, "a").Content, str("<é\n>")) }, `{"a":[1,"<é\n>"]}`},
		{"JSON that is no YAML", `{"a":"\ud83d\ude00","b":1}`, func(n *yaml.Node) { drop(n, "b") }, `{"a":"\ud83d\ude00"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := Parse([]byte(tc.before))
			if err != nil {
				t.Fatal(err)
			}
			after := Clone(d.Root)
			tc.change(after)
			text, err := d.Edited(after)
			if err != nil {
				t.Fatal(err)
			}
			if string(text) != tc.after {
				t.Errorf("%q\nwant\n%q", text, tc.after)
			}
			checkPatch(t, d.Root, parsedNode(tc.after))
		})
	}
}

// checkPatch checks that the patch between two trees, applied to the first, makes the second.
func checkPatch(t *testing.T, before, after *yaml.Node) {
	t.Helper()
	from, err := JSON(before)
	if err != nil {
		t.Fatal(err)
	}
	to, err := JSON(after)
	if err != nil {
		t.Fatal(err)
	}
	patch, err := Patch(before, after)
	if err != nil {
		t.Fatal(err)
	}
	decoded, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	made, err := decoded.Apply(from)
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	if !sameJSON(t, made, to) {
		t.Errorf("%s makes %s, want %s", patch, made, to)
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

func TestAPatchMakesEveryTreeOfEveryOther(t *testing.T) {
	texts := []string{
		`{}`, `[]`, `{"a":1}`, `{"a":"1"}`, `{"a":null}`, `{"a":[]}`, `{"a/b~c":{"":[1,2]}}`, `{"a":[1,2,3]}`, `{"a":[3,1,2]}`, `{"a":[2]}`,
		`{"a":[{"name":"x","v":1},{"name":"y"}]}`, `{"a":[{"name":"y","v":[{"name":"x"}]},{"name":"z"},{"name":"x"}]}`, `{"a":[{"v":1},{"v":2}]}`, `{"b":true,"a":{"c":1.5}}`,
	}
	for _, a := range texts {
		for _, b := range texts {
			if a[0] == b[0] { // the library does not replace the whole document
				checkPatch(t, parsedNode(a), parsedNode(b))
			}
		}
	}
}

func TestWhatCannotBeChangedInPlaceIsAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		before string
		change func(*yaml.Node)
		want   string
	}{
		"a complex key":        {"? a\n: b\nc: d\n", func(n *yaml.Node) { set(n, "c", str("e")) }, "line 1: a key that is no plain text"},
		"a pair in brackets":   {"a: [b: c]\nd: e\n", func(n *yaml.Node) { set(n, "d", str("f")) }, "line 1: a pair without braces"},
		"an anchor of nothing": {"a: &b\nc: d\n", func(n *yaml.Node) { set(n, "c", str("e")) }, "line 1: an empty value with an anchor"},
		"a repeated anchor":    {"a: &b {c: d}\ne: &b {f: g}\n", func(n *yaml.Node) { drop(at(n, "a"), "c") }, "the anchor &b is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Parse([]byte(tc.before))
			if err != nil {
				t.Fatal(err)
			}
			after := Clone(d.Root)
			tc.change(after)
			text, err := d.Edited(after)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%q, %v, want %q", text, err, tc.want)
			}
		})
	}
}

func TestBombsAndDepthsCostLittle(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x]\n")
	for i := range 60 {
		prefix := "a" + string(rune('0'+i/10)) + string(rune('0'+i%10))
		before := "a0"
		if i > 0 {
			before = "a" + string(rune('0'+(i-1)/10)) + string(rune('0'+(i-1)%10))
		}
		bomb.WriteString(prefix + ": &" + prefix + " [*" + before + ", *" + before + "]\n")
	}
	d, err := Parse([]byte(bomb.String()))
	if err != nil {
		t.Fatal(err)
	}
	after := Clone(d.Root)
	set(after, "x", str("y"))
	if text, err := d.Edited(after); err != nil || string(text) != bomb.String()+"x: y\n" {
		t.Errorf("%v: %s", err, text)
	}
	if _, err := JSON(d.Root); err == nil {
		t.Error("the bomb was written out")
	}
	for _, deep := range []string{strings.Repeat("[", 5000) + strings.Repeat("]", 5000), strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)} {
		if _, err := Parse([]byte(deep)); err == nil {
			t.Error("too deep, and parsed")
		}
	}
	d, err = Parse([]byte("a: &b {c: *b}\n"))
	if err == nil {
		_, err = Expand(d.Root)
	}
	if err == nil {
		t.Error("a value that contains itself was written out")
	}
}

func TestJSONIsParsedAsEncodingJSONDoes(t *testing.T) {
	for _, text := range []string{`{"a":[1,-2.5e3,true,false,null,"x\n\u00e9\/\ud83d\ude00"],"b":{}}`, "[\n1 ,\t2]", `{"a" : "]}" }`} {
		root, _, ok := parseJSON(text)
		if !ok {
			t.Fatalf("%s is not taken", text)
		}
		made, err := JSON(root)
		if err != nil {
			t.Fatal(err)
		}
		if !sameJSON(t, made, []byte(text)) {
			t.Errorf("%s is %s", text, made)
		}
	}
	for _, text := range []string{"", "1", `{"a":1}{"b":2}`, "{a: b}", `{"a":1,}`, `"x"`} {
		if _, _, ok := parseJSON(text); ok {
			t.Errorf("%q is taken", text)
		}
	}
}
