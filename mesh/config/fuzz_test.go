package config

import (
	"bytes"
	"slices"
	"testing"
)

// FuzzDocument shows that no file, however broken, does more than have problems that name a line of
// it; that a document without an error has content, and one with an error has none; and that reading
// it again gives the same.
func FuzzDocument(f *testing.F) {
	f.Add(false, []byte(reviews+"---\n"+mesh))
	f.Add(true, []byte(`{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"b": "!"}}`))
	f.Add(false, []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    connectTimeout: 1s\n    localityLbSetting: {failover: [null]}\n"))
	f.Add(false, []byte("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {http: [{match: [{headers: {a: {regex: '('}}}], route: [{}]}], tls: [{match: [{}]}]}\n"))
	f.Fuzz(func(t *testing.T, json bool, data []byte) {
		name := "f.yaml"
		if json {
			name = "f.json"
		}
		lines := 2 + bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + bytes.Count(data, []byte("\u0085")) + bytes.Count(data, []byte("\u2028")) + bytes.Count(data, []byte("\u2029"))
		documents, broken := Read(name, data)
		if broken != nil && (len(documents) > 0 || broken.Line < 0 || broken.Line > lines) {
			t.Fatalf("documents %v, problem %v", documents, broken)
		}
		again, _ := Read(name, data)
		index := &Index{}
		for i, d := range documents {
			for _, p := range d.Problems {
				if p.File != name || p.Line < 1 || p.Line > lines || p.Message == "" {
					t.Errorf("a problem that says no place: %#v", p)
				}
			}
			if !slices.Equal(d.Problems, again[i].Problems) {
				t.Errorf("problems %v, and the second time %v", d.Problems, again[i].Problems)
			}
			if d.Config == nil {
				if len(d.Problems) == 0 {
					t.Errorf("%s is not used without a reason", d.Key)
				}
				continue
			}
			if Invalid(d.Problems) || Invalid(Validate(d.Config)) || d.Config.Meta.Key != d.Key || d.Key.Name == "" {
				t.Errorf("%s has an error and is used: %v", d.Key, d.Problems)
			}
			if ContentVersion(d.Config) != ContentVersion(again[i].Config) {
				t.Errorf("%s has two versions", d.Key)
			}
			index.Put(d.Config)
		}
		References(index, DefaultDomain)
	})
}
