package proof

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const dump = `{"configs": [
 {"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
  "static_clusters": [{"cluster": {"name": "xds"}}],
  "dynamic_active_clusters": [
   {"version_info": "7", "cluster": {"name": "c1", "type": "EDS"}, "last_updated": "2026-01-01T00:00:00Z"},
   {"version_info": "7", "cluster": {"name": "c2", "type": "EDS"}}],
  "dynamic_warming_clusters": [{"cluster": {"name": "c3"}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump",
  "dynamic_endpoint_configs": [{"endpoint_config": {"cluster_name": "c1", "endpoints": [{"lb_endpoints": [{"endpoint": {}, "health_status": "HEALTHY"}]}]}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
  "dynamic_listeners": [
   {"name": "l1", "active_state": {"listener": {"name": "l1", "address": {"pipe": {"path": "/run/app/l1.sock"}},
     "access_log": [{"typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": "/var/log/l1"}},
                    {"typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": "/dev/stdout"}}]}}},
   {"name": "l2", "warming_state": {"listener": {"name": "l2"}}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
  "dynamic_active_secrets": [{"name": "s1", "secret": {"name": "s1", "tls_certificate": {"private_key": {"inline_bytes": "W3JlZGFjdGVkXQ=="}}}}]}
]}`

func parsed(t *testing.T, text string) contents {
	t.Helper()
	got, err := parse(json.RawMessage(text))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestWhatWarmsOrIsStaticIsNotCompared(t *testing.T) {
	var names []string
	for kind, all := range parsed(t, dump) {
		for name := range all {
			names = append(names, kind+" "+name)
		}
	}
	slices.Sort(names)
	if got := strings.Join(names, ", "); got != "CDS c1, CDS c2, EDS c1, LDS l1, SDS s1" {
		t.Errorf("compared: %s", got)
	}
	if _, err := parse(json.RawMessage("<html>")); err == nil {
		t.Error("no JSON, and no error")
	}
}

func TestEveryDifferenceIsNamed(t *testing.T) {
	want := parsed(t, dump)
	// Versions, times and what health checks have found are no differences, and Secrets are redacted.
	same := strings.NewReplacer(`"version_info": "7"`, `"version_info": "8"`, "2026-01", "2027-02", "HEALTHY", "UNHEALTHY", "W3JlZGFjdGVkXQ==", "").Replace(dump)
	if losses := compare(want, parsed(t, same)); len(losses) > 0 {
		t.Errorf("%+v", losses)
	}
	other := strings.NewReplacer(`"c2", "type": "EDS"`, `"c2", "type": "STATIC"`, `"name": "s1"`, `"name": "s2"`).Replace(dump)
	var got []string
	for _, l := range compare(want, parsed(t, other)) {
		got = append(got, l.What+": "+l.Why)
	}
	for i, want := range []string{"CDS c2: the second Envoy has another content", "SDS s1: the second Envoy does not have it", "SDS s2: the second Envoy has it, and the running one does not"} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("%q, want %q at %d", got, want, i)
		}
	}
	if losses := compare(want, nil); len(losses) != 5 {
		t.Errorf("%+v", losses)
	}
}

func TestWhatTheSecondEnvoyMustNotReachIsFound(t *testing.T) {
	files, dirs := hidden(json.RawMessage(dump))
	if !slices.Equal(files, []string{"/var/log/l1"}) || !slices.Equal(dirs, []string{"/run/app"}) {
		t.Errorf("files %v, directories %v", files, dirs)
	}
}

func TestTheBootstrapOfTheSecondEnvoyLeadsToTheSecondAgent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	const text = `
node: {id: web-1, cluster: web}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15000}}}
static_resources:
  clusters:
  - name: xds
    load_assignment: {endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: /run/holdfast/../holdfast/xds.sock}}}}]}]}
  - name: other
    load_assignment: {endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: /run/other.sock}}}}]}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := rewrite(file, "/run/holdfast/xds.sock", "/d")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"/d/xds.sock"`, `"/d/envoy.sock"`, `"/run/other.sock"`, `"web-1"`} {
		if !strings.Contains(string(got), want) {
			t.Errorf("lacks %s: %s", want, got)
		}
	}
	if strings.Contains(string(got), "15000") || strings.Contains(string(got), "/run/holdfast") {
		t.Errorf("it leads to the running ones: %s", got)
	}
	if _, err := rewrite(file, "/run/elsewhere.sock", "/d"); err == nil || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("%v", err)
	}
}
