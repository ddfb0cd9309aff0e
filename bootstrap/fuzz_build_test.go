package bootstrap

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/aymanbagabas/go-udiff"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// fieldsOfText is how many texts text takes.
const fieldsOfText = 26

// textual is a configuration whose every text comes from value(n), n from 0 on, each used in one field. An ID that is
// given and one that is made of a pod exclude each other.
func textual(value func(n int) string, givenID bool) (*bootstrapv3.Bootstrap, error) {
	id := Identity{
		Given: Node{
			Cluster: value(0), Locality: "r" + value(1) + "/z",
			Metadata: map[string]any{value(2): "v", "k": value(3), "nested": map[string]any{value(4): []any{value(5)}}},
		},
		Pod: Pod{
			IPs:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Name: value(6), Namespace: value(7), Domain: value(8), ServiceAccount: value(9),
		},
		Environ:     []string{"HOLDFAST_META_H=" + value(10), "ISTIO_META_I=" + value(11), `ISTIO_METAJSON_J={"J": ` + quoted(value(12)) + `}`},
		Labels:      map[string]string{"l" + value(13): value(14)},
		Annotations: map[string]string{"a" + value(15): value(16)},
	}
	if givenID {
		id.Given.ID = value(17)
	}
	node, err := id.Node()
	if err != nil {
		return nil, err
	}
	return Build(Config{
		Node:      node,
		XDS:       XDS{Socket: "/s" + value(18), Transport: PerType},
		Admin:     "unix:/a" + value(19),
		Endpoints: Endpoints{Ready: ":15021", Stats: ":15090"},
		Stats: Stats{
			Tags:    []Tag{{Name: value(20), Regex: value(21)}, {Name: "fixed", Fixed: value(22)}},
			Include: []Match{{Prefix, value(23)}},
			Buckets: []Buckets{{Match{Suffix, "b"}, []float64{1}}},
		},
		Runtime:  Runtime{Values: map[string]any{"runtime": value(24)}, RTDS: []string{value(25)}},
		Overload: Overload{MaxHeap: 1, MaxConnections: 1},
	})
}

func quoted(s string) string {
	text, _ := json.Marshal(s) // of a string, which never fails; what is no UTF-8 is replaced
	return string(text)
}

// marker is what stands in field n when nothing hostile does. None is in another, or anywhere else in a bootstrap.
func marker(n int) string { return fmt.Sprintf("<%02d>", n) }

// FuzzBuild puts a text into one field of a configuration. Either that is an error, or what is written, in both forms,
// says the same as with a harmless text in that field, but for the places of that text; there the text stands as it is.
func FuzzBuild(f *testing.F) {
	for n := range fieldsOfText {
		for i, s := range hostile {
			if (i+n)%6 == 0 { // of so many a sixth for each field is enough to begin with
				f.Add(uint8(n), s, i%4 == 0)
			}
		}
	}
	f.Fuzz(func(t *testing.T, field uint8, s string, givenID bool) {
		n := int(field) % fieldsOfText
		if s == "" || n == 1 && strings.Contains(s, "/") || n == 12 && strings.ToValidUTF8(s, "\ufffd") != s {
			return // an empty one is a field that is not there; a slash divides a locality; JSON is UTF-8
		}
		harmless, err := textual(marker, givenID)
		if err != nil {
			t.Fatal(err)
		}
		built, err := textual(func(i int) string {
			if i == n {
				return s
			}
			return marker(i)
		}, givenID)
		if err != nil {
			return
		}
		want := replaced(t, tree(t, harmless), marker(n), s)
		if want == nil {
			return // the text is a key that is there already, whose value it replaces
		}
		for _, format := range formats {
			text := mustEncode(t, built, format)
			if got := tree(t, decode(t, text, format)); !same(got, want) {
				t.Errorf("%s, field %d, %q:\n%s", format, n, s, udiff.Unified("want", "got", pretty(want), pretty(got)))
			}
		}
	})
}

// Without this, a comparison that sees nothing would pass.
func TestTheFuzzTargetSeesWhatStandsElsewhere(t *testing.T) {
	harmless, err := textual(marker, true)
	if err != nil {
		t.Fatal(err)
	}
	markers := pretty(tree(t, harmless))
	for n := range fieldsOfText {
		if !strings.Contains(markers, strings.Trim(quoted(marker(n)), `"`)) && n != 9 && (n < 6 || n > 8) { // of a pod whose id is given
			t.Errorf("field %d is nowhere", n)
		}
	}
	moved, err := textual(func(n int) string {
		if n == 0 || n == 3 {
			return "moved"
		}
		return marker(n)
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	if same(tree(t, moved), replaced(t, tree(t, harmless), marker(0), "moved")) {
		t.Error("a text in another field was not noticed")
	}
}

// tree is a bootstrap as JSON decodes.
func tree(t *testing.T, b *bootstrapv3.Bootstrap) any {
	t.Helper()
	text, err := protojson.MarshalOptions{Resolver: envoytypes.Resolver}.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// replaced returns v with one text in place of another, in keys too; nil if that makes two keys one.
func replaced(t *testing.T, v any, from, to string) any {
	switch v := v.(type) {
	case string:
		return strings.ReplaceAll(v, from, to)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			if out[i] = replaced(t, v[i], from, to); out[i] == nil {
				return nil
			}
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			made := strings.ReplaceAll(key, from, to)
			if _, twice := out[made]; twice {
				return nil
			}
			if out[made] = replaced(t, v[key], from, to); out[made] == nil {
				return nil
			}
		}
		return out
	default:
		return v
	}
}

func same(a, b any) bool { return pretty(a) == pretty(b) }

func pretty(v any) string {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// FuzzApply shows that no overlay does more than return an error, and that what comes of one is a bootstrap that can be
// written.
func FuzzApply(f *testing.F) {
	for _, path := range examples(f) {
		overlay, err := ReadOverlay(path)
		if err != nil {
			f.Fatal(err)
		}
		for kind := range 3 {
			f.Add(overlay.Data, uint8(kind), false)
		}
	}
	for _, text := range []string{`{"admin": null}`, `[{"op": "remove", "path": "/node/id"}]`, `[{"op": "copy", "from": "/node", "path": "/node/metadata/x"}]`, `[{}]`, `[[]]`, `{"node": {"metadata": {"a": [{}, [1, "x"]]}}, "x": 1}`} {
		f.Add([]byte(text), uint8(0), true)
		f.Add([]byte(text), uint8(1), true)
		f.Add([]byte(text), uint8(2), true)
	}
	base := mustBuild(f, full())
	f.Fuzz(func(t *testing.T, data []byte, kind uint8, isJSON bool) {
		o := Overlay{Name: "o", Kind: []OverlayKind{Merge, MergePatch, Patch}[kind%3], Format: YAML, Data: data}
		if isJSON {
			o.Format = JSON
		}
		made, err := Apply(base, o)
		if (made == nil) == (err == nil) {
			t.Fatalf("bootstrap %v and error %v", made, err)
		}
		if err != nil {
			if !strings.Contains(err.Error(), "overlay o (") {
				t.Errorf("%v does not name the overlay", err)
			}
			return
		}
		if _, err := Encode(made, YAML); err != nil {
			t.Error(err)
		}
	})
}

// FuzzParseDownward shows that what Kubernetes writes is read as it was.
func FuzzParseDownward(f *testing.F) {
	for _, s := range hostile {
		f.Add("key", s)
	}
	f.Fuzz(func(t *testing.T, key, value string) {
		if _, err := parseDownward(value); err == nil && strings.Contains(value, "\x00=") {
			t.Log("read") // anything at all ends without a panic
		}
		if key == "" || strings.ContainsAny(key, "=\n") || strings.TrimSpace(key) == "" {
			return
		}
		got, err := parseDownward(fmt.Sprintf("%v=%q\n", key, value))
		if err != nil || len(got) != 1 || got[key] != value {
			t.Errorf("%q=%q became %q, %v", key, value, got, err)
		}
	})
}
