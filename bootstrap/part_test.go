package bootstrap

import (
	"errors"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/proto"
)

// part returns a part of a bootstrap from its YAML.
func part(t *testing.T, name, text string) Part {
	t.Helper()
	document, err := parseDocument([]byte(text), YAML)
	if err != nil {
		t.Fatal(err)
	}
	b, err := decodeBootstrap(document)
	if err != nil {
		t.Fatal(err)
	}
	return Part{name, b}
}

func TestAPartThatHarmsIsLeftOutAlone(t *testing.T) {
	base, err := Build(Config{Node: Node{ID: "web-0", Cluster: "web"}})
	if err != nil {
		t.Fatal(err)
	}
	good := part(t, "good", "stats_flush_interval: 1s\nnode: {locality: {zone: z}}")
	more := part(t, "more", "static_resources: {clusters: [{name: a, type: STATIC, connect_timeout: 1s}]}")
	for _, tc := range []struct {
		name, text, want string
	}{
		{"another node", "node: {id: other}", "it changes the id or the cluster of the node, by which the agent and the control plane know this Envoy"},
		{"another cluster of the node", "node: {cluster: other}", "it changes the id or the cluster of the node, by which the agent and the control plane know this Envoy"},
		{"another control plane", "dynamic_resources: {ads_config: {grpc_services: [{envoy_grpc: {cluster_name: evil}}]}}", "it changes dynamic_resources: Envoy gets its configuration from its agent"},
		{"a second cluster of the agent", "static_resources: {clusters: [{name: xds, type: STATIC}]}", `bootstrap: static_resources.clusters: "xds" is there twice`},
		{"a broken rule", "stats_flush_interval: 400s", "bootstrap: stats_flush_interval: value must be inside range [1ms, 5m0s)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad := part(t, "bad", tc.text)
			merged, taken, left := MergeParts(base, []Part{good, bad, more}, nil)
			if len(left) != 1 || left[0].Error() != "bad is left out: "+tc.want {
				t.Errorf("left out: %v, want %s", left, tc.want)
			}
			if len(taken) != 2 || taken[0].Name != "good" || taken[1].Name != "more" {
				t.Errorf("taken: %v", taken)
			}
			clusters := merged.GetStaticResources().GetClusters()
			if merged.GetStatsFlushInterval().GetSeconds() != 1 || merged.GetNode().GetLocality().GetZone() != "z" || clusters[len(clusters)-1].GetName() != "a" {
				t.Errorf("merged: %v", merged)
			}
		})
	}
	unknown := Part{"unknown", &bootstrapv3.Bootstrap{}}
	more.Bootstrap = proto.CloneOf(more.Bootstrap)
	if merged, _, left := MergeParts(base, nil, func(*bootstrapv3.Bootstrap) error { return errors.New("never asked") }); merged != base || left != nil {
		t.Errorf("without parts: %v, %v", merged, left)
	}
	if merged, taken, left := MergeParts(base, []Part{unknown}, nil); !proto.Equal(merged, base) || len(taken) != 1 || left != nil {
		t.Errorf("an empty part: %v", left)
	}
}

// What only Envoy knows is found out part by part, and only if it must be.
func TestAPartThatEnvoyRejectsIsFound(t *testing.T) {
	base, err := Build(Config{Node: Node{ID: "web-0", Cluster: "web"}})
	if err != nil {
		t.Fatal(err)
	}
	var parts []Part
	for _, name := range []string{"a", "evil", "b"} {
		parts = append(parts, part(t, name, "static_resources: {clusters: [{name: "+name+", type: STATIC, connect_timeout: 1s}]}"))
	}
	asked := 0
	envoy := func(b *bootstrapv3.Bootstrap) error {
		asked++
		for _, c := range b.GetStaticResources().GetClusters() {
			if c.GetName() == "evil" {
				return errors.New("unknown evil")
			}
		}
		return nil
	}
	merged, taken, left := MergeParts(base, parts, envoy)
	var names []string
	for _, c := range merged.GetStaticResources().GetClusters() {
		names = append(names, c.GetName())
	}
	if got := strings.Join(names, " "); got != "xds a b" || len(taken) != 2 || len(left) != 1 || left[0].Error() != "evil is left out: unknown evil" || asked != 4 {
		t.Errorf("clusters %s, left %v, Envoy was asked %d times", got, left, asked)
	}
	asked = 0
	if _, taken, left := MergeParts(base, slices.Delete(parts, 1, 2), envoy); len(taken) != 2 || left != nil || asked != 1 {
		t.Errorf("left %v, Envoy was asked %d times", left, asked)
	}
}
