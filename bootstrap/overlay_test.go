package bootstrap

import (
	"path/filepath"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
)

func overlay(kind OverlayKind, text string) Overlay {
	return Overlay{Name: "mine.yaml", Kind: kind, Format: YAML, Data: []byte(text)}
}

func TestOverlaysOfEachKind(t *testing.T) {
	clusters := func(b *bootstrapv3.Bootstrap) string {
		var names []string
		for _, c := range b.GetStaticResources().GetClusters() {
			names = append(names, c.GetName())
		}
		return strings.Join(names, " ")
	}
	for _, tc := range []struct {
		name     string
		overlays []Overlay
		show     func(*bootstrapv3.Bootstrap) string
		want     string
	}{
		{"protobuf merge appends to a list", []Overlay{
			overlay(Merge, "static_resources: {clusters: [{name: a, type: STATIC}]}"),
			overlay(Merge, "staticResources: {clusters: [{name: b, type: STATIC}]}"),
		}, clusters, "xds a b"},
		{"protobuf merge sets a field and leaves its neighbours", []Overlay{
			overlay(Merge, "node: {locality: {zone: z}}"),
		}, func(b *bootstrapv3.Bootstrap) string {
			return b.GetNode().GetLocality().GetZone() + " " + b.GetNode().GetId()
		}, "z web-0"},
		{"a merge patch replaces a list", []Overlay{
			overlay(MergePatch, "static_resources: {clusters: [{name: a, type: STATIC}]}"),
		}, clusters, "a"},
		{"a merge patch removes a field", []Overlay{
			overlay(MergePatch, "admin: null\nnode: {id: new}"),
		}, func(b *bootstrapv3.Bootstrap) string { return b.GetAdmin().String() + b.GetNode().GetId() }, "<nil>new"},
		{"a patch replaces, adds and removes", []Overlay{
			overlay(Patch, "- {op: replace, path: /node/id, value: new}\n- {op: add, path: /static_resources/clusters/0, value: {name: a}}\n- {op: remove, path: /static_resources/clusters/1}"),
		}, func(b *bootstrapv3.Bootstrap) string { return b.GetNode().GetId() + " " + clusters(b) }, "new a"},
		{"they come in their order", []Overlay{
			overlay(Merge, "static_resources: {clusters: [{name: a}]}"),
			overlay(Patch, "[{op: replace, path: /static_resources/clusters/1/name, value: b}]"),
			overlay(MergePatch, "node: {cluster: last}"),
			overlay(Merge, "node: {cluster: very last}"),
		}, func(b *bootstrapv3.Bootstrap) string { return b.GetNode().GetCluster() + " " + clusters(b) }, "very last xds b"},
		{"numbers are exact", []Overlay{
			overlay(MergePatch, "stats_server_version_override: 18446744073709551615"), overlay(Patch, "[]"),
		}, func(b *bootstrapv3.Bootstrap) string { return b.GetStatsServerVersionOverride().String() }, "value:18446744073709551615"},
		{"text is not escaped for HTML or as a template", []Overlay{
			{Name: "a.json", Kind: MergePatch, Format: JSON, Data: []byte(`{"node": {"id": "<&>\u2028{{x}}\ud83d\ude42"}}`)},
		}, func(b *bootstrapv3.Bootstrap) string { return b.GetNode().GetId() }, "<&>\u2028{{x}}🙂"},
		{"none", nil, clusters, "xds"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			base := mustBuild(t, minimal())
			before := proto.CloneOf(base)
			made, err := Apply(base, tc.overlays...)
			if err != nil {
				t.Fatal(err)
			}
			if got := tc.show(made); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if !proto.Equal(base, before) {
				t.Error("the bootstrap that was given has changed")
			}
		})
	}
}

func TestABadOverlayIsAnErrorThatNamesItAndThePlace(t *testing.T) {
	for _, tc := range []struct {
		name string
		kind OverlayKind
		text string
		want string
	}{
		{"an unknown field", Merge, "admin: {}\nstatic_resources:\n  clusters:\n  - name: a\n    nmae: b\n", `overlay mine.yaml (merge): line 5: field static_resources.clusters[0].nmae: unknown field "nmae"`},
		{"a wrong value", Merge, "static_resources:\n  clusters:\n  - name: a\n  - connect_timeout: 5\n", `line 4: field static_resources.clusters[1].connect_timeout: `},
		{"a wrong value behind text that is no ASCII", Merge, "node:\n  id: \"日本🙂\"\n  cluster: [x]\n", `line 3: field node.cluster: `},
		{"a wrong value of an anchor", Merge, "node: &n\n  id: 7\n", `line 2: field node.id: must be a string, and is a number: put it into quotes`},
		{"a wrong enum", Merge, "static_resources:\n  clusters:\n  - type: STATTIC", `line 3: field static_resources.clusters[0].type: `},
		{"a list for a message", Merge, "admin:\n- a", `line 2: field admin: `},
		{"an unknown type", Merge, "bootstrap_extensions:\n- name: x\n  typed_config:\n    \"@type\": type.googleapis.com/vendor.Heard.Of\n", `line 4: field bootstrap_extensions[0].typed_config.@type: type "type.googleapis.com/vendor.Heard.Of" is not known to this build`},
		{"an unknown field in an Any", Merge, "bootstrap_extensions:\n- typed_config:\n    \"@type\": type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener\n    buffer: 1", `line 4: field bootstrap_extensions[0].typed_config.buffer: unknown field "buffer"`},
		{"no YAML", Merge, "admin: [", "overlay mine.yaml (merge): line 1: did not find expected node content"},
		{"a key twice", Merge, "admin: {}\nadmin: {}", `line 2: field admin: duplicate field "admin": first on line 1`},
		{"two documents", Merge, "admin: {}\n---\nnode: {}", "line 3: a second document"},
		{"nothing", Merge, "# later", "is empty"},
		{"a patch that is called a merge", Merge, "- op: remove\n  path: /admin", "the file name must end in .patch.yaml"},
		{"a broken rule", Merge, "static_resources: {clusters: [{name: ''}]}", "static_resources.clusters[1].name: value length must be at least 1"},
		{"not UTF-8", Merge, "node: {id: \xff}", "line 1: not UTF-8 text"},
		{"a merge patch with a key twice", MergePatch, "node:\n  id: a\n  id: b", `line 3: field node.id: duplicate field "id": first on line 2`},
		{"a merge patch that is a list", MergePatch, "[]", "is not a mapping"},
		{"a merge patch with an unknown field", MergePatch, "node: {idd: x}", `overlay mine.yaml (JSON merge patch): field node.idd: unknown field "idd"`},
		{"a patch that is a mapping", Patch, "admin: null", "is not a list of operations"},
		{"an operation on nothing", Patch, "- {op: test, path: /node/id, value: web-0}\n- {op: remove, path: /static_resources/listeners/0}", "operation 2 (remove /static_resources/listeners/0): "},
		{"a test that fails", Patch, "- {op: test, path: /node/id, value: x}", "operation 1 (test /node/id): "},
		{"an unknown operation", Patch, "- {op: delete, path: /node/id}", "operation 1 (delete /node/id): is not a valid operation: "},
		{"an operation without a path", Patch, "- {op: remove}", "operation 1 (remove ): is not a valid operation: "},
		{"an index from the end", Patch, "- {op: remove, path: /static_resources/clusters/-1}", "operation 1"},
		{"a patch that makes no bootstrap", Patch, "- {op: replace, path: /node/id, value: {}}", "node.id: "},
		{"an unknown kind", "x", "{}", "unknown kind of overlay"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			made, err := Apply(mustBuild(t, minimal()), overlay(Merge, "node: {}"), overlay(tc.kind, tc.text))
			if err == nil {
				t.Fatalf("accepted: %v", made)
			}
			if text := strings.ReplaceAll(err.Error(), "\u00a0", " "); !strings.Contains(text, tc.want) || !strings.Contains(text, "overlay mine.yaml (") || strings.Count(text, "bootstrap: ") != 1 {
				t.Errorf("%q\ndoes not say %q", text, tc.want)
			}
		})
	}
}

func TestAnErrorInJSONNamesTheLineOfTheFile(t *testing.T) {
	for text, want := range map[string]string{
		"{\n\"node\": {\n  \"id\": 7}}": "line 3: field node.id: ",
		"{\n\n\"node\": {]}":            "line 3: ",
		"{\"node\": {}} {}":             "line 1: a second document",
		"":                              "is empty",
		"{\"node\":\n":                  "line 2: the document ends early",
		"{\"node\": {\"id\": \"a\",\n\"id\": 1}}": "line 2: field node.id: duplicate field \"id\": first on line 1",
	} {
		o := Overlay{Name: "mine.json", Kind: Merge, Format: JSON, Data: []byte(text)}
		if _, err := Apply(mustBuild(t, minimal()), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestTheKindOfAnOverlayFollowsItsName(t *testing.T) {
	for path, want := range map[string]OverlayKind{
		"a.yaml": Merge, "a.json": Merge, "merge.yaml": Merge, "patch.yml": Merge, "/x.patch/a.yaml": Merge,
		"a.merge.yaml": MergePatch, "a.b.merge.json": MergePatch, "/x/a.patch.yml": Patch, ".patch.yaml": Patch,
	} {
		if got := KindOf(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	for _, path := range []string{"a.toml", filepath.Join(t.TempDir(), "none.yaml")} {
		if _, err := ReadOverlay(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
