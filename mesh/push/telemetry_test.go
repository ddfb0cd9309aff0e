package push

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	telemetry "istio.io/api/telemetry/v1alpha1"
	"sigs.k8s.io/yaml"
)

// mergedLogs returns what mergeLogs makes of levels, each in YAML.
func mergedLogs(t *testing.T, mode telemetry.WorkloadMode, defaults []string, levels ...string) string {
	t.Helper()
	var all [][]*telemetry.AccessLogging
	for _, text := range levels {
		json, err := yaml.YAMLToJSON([]byte("{accessLogging: " + text + "}"))
		if err != nil {
			t.Fatal(err)
		}
		var spec telemetry.Telemetry
		if err := protojson.Unmarshal(json, &spec); err != nil {
			t.Fatal(err)
		}
		all = append(all, spec.GetAccessLogging())
	}
	logs := mergeLogs(all, defaults, mode)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		out = append(out, fmt.Sprintf("%s%s%s", name, map[bool]string{true: " off"}[logs[name].Disabled], strings.TrimSuffix(" if "+logs[name].Filter, " if ")))
	}
	return strings.Join(out, ", ")
}

func TestAccessLogsAreMergedLevelByLevel(t *testing.T) {
	const client, server = telemetry.WorkloadMode_CLIENT, telemetry.WorkloadMode_SERVER
	for _, tc := range []struct {
		name     string
		mode     telemetry.WorkloadMode
		defaults []string
		levels   []string
		want     string
	}{
		{"nothing", client, nil, nil, ""},
		{"defaults", client, []string{"d", "e"}, nil, "d, e"},
		{"the last level that names providers", client, []string{"d"}, []string{"[{providers: [{name: a}]}]", "[{providers: [{name: b}]}]"}, "b"},
		{"several of a level", client, nil, []string{"[{providers: [{name: a}]}, {providers: [{name: b}], filter: {expression: x}}]"}, "a, b if x"},
		{"the defaults, switched off", client, []string{"d"}, []string{"[{disabled: true}]"}, "d off"},
		{"one of the level above, switched off", client, nil, []string{"[{providers: [{name: a}]}]", "[{disabled: true}]"}, "a off"},
		{"for clients", client, nil, []string{"[{providers: [{name: a}], match: {mode: CLIENT}}, {providers: [{name: b}], match: {mode: SERVER}}]"}, "a"},
		{"for servers", server, nil, []string{"[{providers: [{name: a}], match: {mode: CLIENT}}, {providers: [{name: b}], match: {mode: SERVER}}]"}, "b"},
		{"a level of the other mode changes nothing", server, nil, []string{"[{providers: [{name: a}]}]", "[{providers: [{name: b}], match: {mode: CLIENT}}]"}, "a"},
		{"an element without providers is for those before it", client, nil, []string{"[{providers: [{name: a}]}, {providers: [{name: b}]}, {disabled: true}]"}, "a, b off"},
		{"on again", client, nil, []string{"[{providers: [{name: a}], disabled: true}]", "[{providers: [{name: a}]}]"}, "a"},
		{"a filter alone", client, []string{"d"}, []string{"[{filter: {expression: x}}]"}, "d"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := mergedLogs(t, tc.mode, tc.defaults, tc.levels...); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
