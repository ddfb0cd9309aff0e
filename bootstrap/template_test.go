package bootstrap

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
)

func TestATemplateKeepsWhatItHas(t *testing.T) {
	template, err := Read("template", writeFile(t, "template.yaml", `
node: {id: its, metadata: {TEAM: its}}
admin: {address: {pipe: {path: /its.sock}}}
dynamic_resources: {lds_config: {path_config_source: {path: /its.yaml}}}
static_resources:
  clusters: [{name: xds, type: STATIC}, {name: other}]
stats_flush_on_admin: true
`))
	if err != nil {
		t.Fatal(err)
	}
	before := proto.CloneOf(template)
	cfg := full()
	cfg.Node.Metadata["TEAM"] = "made"
	cfg.Endpoints.Ready = ":15021"
	b, err := Complete(template, cfg)
	if err != nil {
		t.Fatal(err)
	}
	node, metadata := b.GetNode(), b.GetNode().GetMetadata().AsMap()
	if node.GetId() != "its" || node.GetCluster() != "web.default" || metadata["TEAM"] != "its" || metadata["GENERATOR"] != "api" {
		t.Errorf("node %v", node)
	}
	if b.GetAdmin().GetAddress().GetPipe().GetPath() != "/its.sock" {
		t.Errorf("admin %v", b.GetAdmin())
	}
	d := b.GetDynamicResources()
	if d.GetLdsConfig().GetPathConfigSource().GetPath() != "/its.yaml" || d.GetCdsConfig().GetAds() == nil || d.GetAdsConfig() == nil {
		t.Errorf("sources %v", d)
	}
	var names []string
	for _, c := range b.GetStaticResources().GetClusters() {
		names = append(names, c.GetName())
	}
	if got := strings.Join(names, " "); got != "xds other envoy-admin" || b.GetStaticResources().GetClusters()[0].GetLoadAssignment() != nil {
		t.Errorf("clusters %s", got)
	}
	if len(b.GetStaticResources().GetListeners()) != 1 || !b.GetStatsFlushOnAdmin() {
		t.Errorf("%v", b)
	}
	if !proto.Equal(template, before) {
		t.Error("the template has changed")
	}
}

// Finding E1: a template with metadata, and flags without, as Istio's bootstraps and examples/bootstrap/template.yaml.
func TestATemplateMayHaveMetadataThatTheFlagsDoNot(t *testing.T) {
	files := []string{
		writeFile(t, "template.yaml", "node: {metadata: {A: b}}"),
		writeFile(t, "empty.yaml", "node: {metadata: {}}"),
		filepath.Join("..", "examples", "bootstrap", "template.yaml"),
	}
	for _, file := range files {
		template, err := Read("template", file)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Complete(template, Config{Node: Node{ID: "n1", Cluster: "c"}})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if got, want := b.GetNode().GetMetadata().AsMap(), template.GetNode().GetMetadata().AsMap(); !maps.Equal(got, want) {
			t.Errorf("%s: the metadata is %v, want %v", file, got, want)
		}
	}
}

func TestAnEmptyTemplateBecomesTheBootstrap(t *testing.T) {
	for name, text := range map[string]string{"nothing": "{}", "messages without fields": "{node: {metadata: {}}, static_resources: {}, dynamic_resources: {}}"} {
		t.Run(name, func(t *testing.T) {
			template, err := Read("template", writeFile(t, "template.json", strings.NewReplacer("{n", `{"n`, ", s", `, "s`, ", d", `, "d`, "{m", `{"m`, ":", `":`).Replace(text)))
			if err != nil {
				t.Fatal(err)
			}
			b, err := Complete(template, full())
			if err != nil || !proto.Equal(b, mustBuild(t, full())) {
				t.Errorf("%v, %v", b, err)
			}
		})
	}
}

func TestABadTemplateIsAnErrorThatNamesFileAndField(t *testing.T) {
	for name, tc := range map[string]struct{ file, text, want string }{
		"an unknown field": {"a.yaml", "node:\n  idd: x", "line 2: field node.idd: unknown field"},
		"an extension":     {"a.txt", "", ".yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, tc.file, tc.text)
			if _, err := Read("template", path); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := Read("template", "/does/not/exist.yaml"); err == nil || !strings.Contains(err.Error(), "/does/not/exist.yaml") {
		t.Errorf("%v", err)
	}
	if _, err := Complete(mustBuild(t, minimal()), Config{}); err == nil || !strings.Contains(err.Error(), "--node-id") {
		t.Errorf("%v", err)
	}
}
