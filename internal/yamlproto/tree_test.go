package yamlproto

import (
	"slices"
	"testing"
)

func TestTheTreeHasTheKeysAndTheirLines(t *testing.T) {
	documents, err := Read([]byte("a:\n  b: text\n  c: 1\nd: null\ne: [x]\n"), YAML)
	if err != nil || len(documents) != 1 {
		t.Fatal(documents, err)
	}
	d := documents[0]
	if got := d.Keys(); !slices.Equal(got, []string{"a", "d", "e"}) {
		t.Errorf("keys %q", got)
	}
	if d.LineOf("a") != 1 || d.Get("a").Line != 2 || d.LineOf("d") != 4 || d.LineOf("none") != 0 {
		t.Errorf("lines %d, %d, %d, %d", d.LineOf("a"), d.Get("a").Line, d.LineOf("d"), d.LineOf("none"))
	}
	if text, ok := d.Get("a").Get("b").Text(); text != "text" || !ok {
		t.Errorf("text %q, %v", text, ok)
	}
	for _, other := range []*Node{d, d.Get("a").Get("c"), d.Get("d"), d.Get("none")} {
		if text, ok := other.Text(); ok {
			t.Errorf("%q is taken for a string", text)
		}
	}
	if !d.Get("d").IsNull() || d.Get("a").IsNull() || !d.Get("e").IsList() || d.IsList() || d.Get("a").Get("c").Field() != "a.c" {
		t.Error("the nodes are not what they are in the file")
	}
}

func TestAMappingWithoutAKeyIsACopy(t *testing.T) {
	documents, err := Read([]byte("a: 1\nb: 2\nc: 3\n"), YAML)
	if err != nil {
		t.Fatal(err)
	}
	rest := documents[0].Without("b", "none")
	if !slices.Equal(rest.Keys(), []string{"a", "c"}) || rest.Get("b") != nil || rest.Get("c").Line != 3 || documents[0].Get("b") == nil {
		t.Errorf("rest %q of %q", rest.Keys(), documents[0].Keys())
	}
}
