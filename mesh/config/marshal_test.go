package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// otherDocuments are of the kinds that the tests of generation have no files for.
const otherDocuments = `
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: shop, namespace: shop, creationTimestamp: "2026-01-02T03:04:05Z", annotations: {note: "a: b"}}
spec: {template: {serviceAccount: shop, labels: {app: shop}}, probe: {httpGet: {path: /healthz, port: 8080}}}
---
apiVersion: networking.istio.io/v1beta1
kind: ProxyConfig
metadata: {name: shop, namespace: shop}
spec: {concurrency: 2, environmentVariables: {A: "1"}}
---
apiVersion: v1
kind: Secret
metadata: {name: token, namespace: shop}
type: Opaque
data: {token: c2VjcmV0}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: shop, namespace: shop, generation: 7}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: web}], to: [{group: "", kind: Service}]}
`

// goldenDocuments are those of the tests of generation: every kind, with most of its fields.
func goldenDocuments(t *testing.T) map[string][]Document {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "generate", "testdata", "*", "config.yaml"))
	if err != nil || len(files) < 12 {
		t.Fatalf("%d files of documents, %v", len(files), err)
	}
	all := make(map[string][]Document)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents, broken := Read(file, text)
		if broken != nil {
			t.Fatal(broken)
		}
		all[file] = documents
	}
	documents, broken := Read("others.yaml", []byte(otherDocuments))
	if broken != nil {
		t.Fatal(broken)
	}
	all["others.yaml"] = documents
	return all
}

func TestWhatIsMarshalledIsReadAsTheSame(t *testing.T) {
	kinds := make(map[Kind]int)
	for file, documents := range goldenDocuments(t) {
		for _, d := range documents {
			if d.Config == nil {
				continue
			}
			kinds[d.Key.Kind]++
			by := Author{"somebody", time.Unix(1000, 0)}
			text, err := Marshal(d.Config, by)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			again := find(t, text, d.Key)
			if again == nil || ContentVersion(again) != ContentVersion(d.Config) {
				t.Errorf("%s: %s is not read as it was: %s", file, d.Key, text)
			}
			if got := AuthorOf(text); got.Name != by.Name || !got.Time.Equal(by.Time) {
				t.Errorf("%s: the author is %s", file, got)
			}
			same, err := Marshal(again, by)
			if err != nil || string(same) != string(text) {
				t.Errorf("%s: %s is written in another way: %v", file, d.Key, err)
			}
		}
	}
	for _, schema := range Schemas {
		if kinds[schema.Kind] == 0 {
			t.Errorf("no document of kind %s", schema.Kind)
		}
	}
}

// find reads a document of a text.
func find(t *testing.T, text []byte, key Key) *Config {
	t.Helper()
	if !json.Valid(text) {
		t.Errorf("%s: not JSON: %s", key, text)
		return nil
	}
	documents, broken := Read("stored.json", text)
	if broken != nil {
		t.Error(broken)
	}
	for _, d := range documents {
		if d.Key == key {
			if Invalid(d.Problems) {
				t.Errorf("%s: %v", key, d.Problems)
			}
			return d.Config
		}
	}
	return nil
}

func TestAnAuthorIsSomebodyAtATime(t *testing.T) {
	for _, tc := range []struct {
		author Author
		want   string
	}{
		{Author{}, "somebody"},
		{Author{"alice", time.Unix(0, 0)}, "alice at 1970-01-01T00:00:00Z"},
		{Author{"alice", time.Time{}}, "alice"},
	} {
		if got := tc.author.String(); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
	if got := AuthorOf([]byte("not JSON")); got != (Author{}) {
		t.Errorf("author %v", got)
	}
}
