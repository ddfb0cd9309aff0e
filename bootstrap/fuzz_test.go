package bootstrap

import (
	"testing"

	"google.golang.org/protobuf/proto"
)

// FuzzEncodeThenReadNode shows that whatever Build accepts survives both text forms, and that nothing of it leaks out of
// its field. More seeds are in testdata/fuzz.
func FuzzEncodeThenReadNode(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, "cluster", "", s, s)
		f.Add("id", s, s, "key", "value")
	}
	f.Fuzz(func(t *testing.T, id, cluster, locality, key, value string) {
		cfg := Config{Node: Node{ID: id, Cluster: cluster, Locality: locality,
			Metadata: map[string]any{key: value, "nested": map[string]any{key: []any{value}}}}}
		b, err := Build(cfg)
		if err != nil {
			return
		}
		for _, format := range formats {
			text := mustEncode(t, b, format)
			document, err := parseDocument(text, format)
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			node, err := decodeNode(document)
			if err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if !proto.Equal(node, b.GetNode()) {
				t.Errorf("%s: got %v, want %v", format, node, b.GetNode())
			}
			if !proto.Equal(decode(t, text, format), b) {
				t.Errorf("%s: the bootstrap means something else after encoding:\n%s", format, text)
			}
		}
	})
}

// FuzzReadNode shows that no file, however broken, does more than return an error, and that a node that is returned has
// its identity.
func FuzzReadNode(f *testing.F) {
	for _, format := range formats {
		f.Add(mustEncode(f, mustBuild(f, full()), format), format == YAML)
	}
	f.Fuzz(func(t *testing.T, data []byte, isYAML bool) {
		format := JSON
		if isYAML {
			format = YAML
		}
		document, err := parseDocument(data, format)
		if err != nil {
			return
		}
		node, err := decodeNode(document)
		if (node == nil) == (err == nil) {
			t.Fatalf("node %v and error %v", node, err)
		}
		if err == nil && (node.GetId() == "" || node.GetCluster() == "") {
			t.Errorf("no identity: %v", node)
		}
	})
}
