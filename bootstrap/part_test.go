package bootstrap

import (
	"errors"
	"fmt"
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
	good := part(t, "good", "stats_flush_interval: 1s")
	more := part(t, "more", "static_resources: {clusters: [{name: a, type: STATIC, connect_timeout: 1s}]}")
	for _, tc := range []struct {
		name, text, want string
	}{
		{"another node", "node: {id: other}", "it changes the node, by which the agent and the control plane know this Envoy"},
		{"another cluster of the node", "node: {cluster: other}", "it changes the node, by which the agent and the control plane know this Envoy"},
		{"another namespace", "node: {metadata: {NAMESPACE: other}}", "it changes the node, by which the agent and the control plane know this Envoy"},
		{"another control plane", "dynamic_resources: {ads_config: {grpc_services: [{envoy_grpc: {cluster_name: evil}}]}}", "it changes dynamic_resources: Envoy gets its configuration from its agent"},
		{"a second cluster of the agent", "static_resources: {clusters: [{name: xds, type: STATIC}]}", `bootstrap: static_resources.clusters: "xds" is there twice`},
		{"a broken rule", "stats_flush_interval: 400s", "bootstrap: stats_flush_interval: value must be inside range [1ms, 5m0s)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bad := part(t, "bad", tc.text)
			merged, taken, left, err := MergeParts(base, []Part{good, bad, more}, rules)
			if err != nil {
				t.Fatal(err)
			}
			if len(left) != 1 || left[0].Error() != "bad is left out: "+tc.want {
				t.Errorf("left out: %v, want %s", left, tc.want)
			}
			if len(taken) != 2 || taken[0].Name != "good" || taken[1].Name != "more" {
				t.Errorf("taken: %v", taken)
			}
			clusters := merged.GetStaticResources().GetClusters()
			if merged.GetStatsFlushInterval().GetSeconds() != 1 || clusters[len(clusters)-1].GetName() != "a" {
				t.Errorf("merged: %v", merged)
			}
		})
	}
	if merged, taken, left, err := MergeParts(base, nil, rules); merged != base || taken != nil || left != nil || err != nil {
		t.Errorf("without parts: %v, %v, %v", merged, left, err)
	}
	if merged, taken, left, _ := MergeParts(base, []Part{{"empty", &bootstrapv3.Bootstrap{}}}, rules); !proto.Equal(merged, base) || len(taken) != 1 || left != nil {
		t.Errorf("an empty part: %v", left)
	}
}

// rules checks a bootstrap by the rules of Envoy's API.
func rules(b *bootstrapv3.Bootstrap) error { return Check(b) }

// What only Envoy knows is found out with few questions, and what needs another part is not left out with it.
func TestPartsThatEnvoyRejectsAreFound(t *testing.T) {
	base, err := Build(Config{Node: Node{ID: "web-0", Cluster: "web"}})
	if err != nil {
		t.Fatal(err)
	}
	cluster := func(name string) Part {
		return part(t, name, "static_resources: {clusters: [{name: "+name+", type: STATIC, connect_timeout: 1s}]}")
	}
	names := func(b *bootstrapv3.Bootstrap) (all []string) {
		for _, c := range b.GetStaticResources().GetClusters()[1:] {
			all = append(all, c.GetName())
		}
		return all
	}
	asked := 0
	envoy := func(b *bootstrapv3.Bootstrap) error {
		asked++
		all := names(b)
		switch {
		case slices.Contains(all, "evil"):
			return errors.New("unknown evil")
		case slices.Contains(all, "needs-z") && !slices.Contains(all, "z"):
			return errors.New("unknown z")
		case slices.Contains(all, "hangs"):
			return &NotCheckedError{errors.New("no answer")}
		}
		return nil
	}
	for _, tc := range []struct {
		parts, want string
		left        []string
	}{
		{"a b", "a b", nil},
		{"a evil b", "a b", []string{"evil is left out: unknown evil"}},
		{"needs-z z evil", "needs-z z", []string{"evil is left out: unknown evil"}},
		{"evil needs-z a b z c", "needs-z a b z c", []string{"evil is left out: unknown evil"}},
		{"needs-z a", "a", []string{"needs-z is left out: unknown z"}},
	} {
		var parts []Part
		for _, name := range strings.Fields(tc.parts) {
			parts = append(parts, cluster(name))
		}
		merged, taken, left, err := MergeParts(base, parts, envoy)
		var reasons []string
		for _, l := range left {
			reasons = append(reasons, l.Error())
		}
		if got := strings.Join(names(merged), " "); err != nil || got != tc.want || len(taken) != len(strings.Fields(tc.want)) || !slices.Equal(reasons, tc.left) {
			t.Errorf("%s: got %s, left %q, %v", tc.parts, got, reasons, err)
		}
	}
	var many []Part
	for i := range 100 {
		many = append(many, cluster(fmt.Sprint("c", i)))
	}
	many[70] = cluster("evil")
	asked = 0
	if _, taken, left, err := MergeParts(base, many, envoy); err != nil || len(taken) != 99 || len(left) != 1 || asked > 20 {
		t.Errorf("%d taken, %d left, asked %d times, %v", len(taken), len(left), asked, err)
	}
	if _, _, _, err := MergeParts(base, []Part{cluster("a"), cluster("hangs")}, envoy); err == nil || err.Error() != "no answer" {
		t.Errorf("Envoy did not answer: %v", err)
	}
}
