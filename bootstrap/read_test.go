package bootstrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/atomicfile"
)

func writeFile(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheNodeThatWasWrittenIsRead(t *testing.T) {
	b := mustBuild(t, full())
	for ext, format := range formats {
		t.Run(ext, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "envoy."+ext)
			if err := atomicfile.Write(path, mustEncode(t, b, format), 0o644); err != nil {
				t.Fatal(err)
			}
			node, err := ReadNode(path)
			if err != nil {
				t.Fatal(err)
			}
			want := proto.CloneOf(b.GetNode())
			if format == YAML { // in which Envoy takes a number with a fraction for text, where it may be either
				want.GetMetadata().GetFields()["PORTS"].GetListValue().GetValues()[1] = structpb.NewStringValue("9090.5")
			}
			if !proto.Equal(node, want) {
				t.Errorf("got %v, want %v", node, want)
			}
		})
	}
}

func TestOnlyTheNodeOfABootstrapIsLookedAt(t *testing.T) {
	for name, text := range map[string]string{
		"unknown.yaml": `
field_of_the_future: {a: [1, 2]}
static_resources:
  clusters:
  - name: 17
    typed_config: {"@type": type.googleapis.com/vendor.never.Heard.Of, x: 1}
node:
  id: web
  cluster: c
  field_of_the_future: yes
  metadata: {A: [1, {B: "no"}], C: null}
  locality: {region: r, sub_zone: s}
`,
		"camel.json": `{"admin": 5, "node": {"id": "web", "cluster": "c", "userAgentBuildVersion": {"version": {"majorNumber": 1}}, "locality": {"region": "r", "subZone": "s"},
			"metadata": {"A": [1, {"B": "no"}], "C": null}}, "extra": {"@type": "type.googleapis.com/vendor.never.Heard.Of"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			node, err := ReadNode(writeFile(t, name, text))
			if err != nil {
				t.Fatal(err)
			}
			if node.GetId() != "web" || node.GetCluster() != "c" || node.GetLocality().GetSubZone() != "s" {
				t.Errorf("got %v", node)
			}
			if got := node.GetMetadata().GetFields()["A"].GetListValue().GetValues()[1].GetStructValue().GetFields()["B"].GetStringValue(); got != "no" {
				t.Errorf("metadata A[1].B is %q", got)
			}
		})
	}
}

func TestABadBootstrapIsAnErrorThatNamesFileAndField(t *testing.T) {
	for _, tc := range []struct {
		name, file, text, want string
	}{
		{"no node", "a.json", `{"admin": {}}`, "node is missing"},
		{"no node in YAML", "a.yaml", "admin: {}", "node is missing"},
		{"node is null", "a.json", `{"node": null}`, "line 1: field node: "},
		{"no id", "a.yaml", "node: {cluster: c}", "node.id is missing or empty"},
		{"no cluster", "a.json", `{"node": {"id": "n", "cluster": ""}}`, "node.cluster is missing or empty"},
		{"id is a number", "a.json", "{\n  \"node\": {\n    \"id\": 7}}", "line 3: field node.id: must be a string, and is a number: put it into quotes"},
		{"id is a number in YAML", "a.yaml", "node:\n  id: 7\n  cluster: c", "line 2: field node.id: must be a string, and is a number: put it into quotes"},
		{"node is a list", "a.yaml", "node: []", "line 1: field node: "},
		{"node twice", "a.json", `{"node": {"id": "n", "cluster": "c"}, "node": {}}`, `line 1: field node: duplicate field "node": first on line 1`},
		{"node twice in YAML", "a.yaml", "node: {}\nnode: {}", `line 2: field node: duplicate field "node": first on line 1`},
		{"syntax error", "a.json", "{\n\"admin\": {},\n\"node\": {\"id\" 1}}", "line 3: "},
		{"syntax error in YAML", "a.yaml", "node:\n  id: [", "line 2: did not find expected node content"},
		{"cut short", "a.json", `{"node": {"id":`, "line 1: the document ends early"},
		{"cut short before the last brace", "a.json", "{\"node\": {}\n", "line 2: the document ends early"},
		{"text behind it", "a.json", `{"node": {"id": "n", "cluster": "c"}} {}`, "line 1: a second document"},
		{"a list", "a.json", `[]`, "is not a mapping of bootstrap fields"},
		{"empty", "a.json", "", "is empty"},
		{"empty YAML", "a.yaml", "", "is empty"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := writeFile(t, tc.file, tc.text)
			node, err := ReadNode(path)
			if err == nil {
				t.Fatalf("accepted: %v", node)
			}
			// protobuf varies the kind of space in its messages on purpose
			if text := strings.ReplaceAll(err.Error(), "\u00a0", " "); !strings.Contains(text, tc.want) || !strings.Contains(text, path) {
				t.Errorf("%q does not say %q and the path", text, tc.want)
			}
		})
	}
}

func TestAnUnreadableFileIsAnErrorThatNamesIt(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.json")
	if _, err := ReadNode(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("%v", err)
	}
	if _, err := ReadNode(writeFile(t, "envoy.toml", "")); err == nil || !strings.Contains(err.Error(), ".yaml") {
		t.Errorf("%v", err)
	}
	// The type of a file is checked before its extension.
	if _, err := ReadNode("/nope"); err == nil || !strings.Contains(err.Error(), "/nope: no such file") {
		t.Errorf("%v", err)
	}
	if _, err := ReadNode(t.TempDir()); err == nil || !strings.Contains(err.Error(), "it is a directory: name a regular file") {
		t.Errorf("%v", err)
	}
}
