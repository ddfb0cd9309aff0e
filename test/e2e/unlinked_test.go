package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// The agent has no code for most of Envoy's messages, only their descriptors: they are read
// from YAML, served, shown and exported all the same.
func TestAFilterThatTheAgentHasNoCodeOfGoesAllWays(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	dir := w.path("resources")
	w.check(os.Mkdir(dir, 0o700))
	const listener = `
"@type": %s
name: ingress
address: {socket_address: {address: 127.0.0.1, port_value: %d}}
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: ingress
      route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 404}}]}]}
      http_filters:
      - name: lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code:
            inline_string: 'function envoy_on_request(handle) handle:respond({[":status"] = "200"}, "by lua") end'
      - name: router
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`
	w.check(os.WriteFile(filepath.Join(dir, "listener.yaml"), fmt.Appendf(nil, listener, xds.ListenerType, w.port), 0o600))
	w.startAgentWith(w.cpAddr, "file:"+dir, "--state-dir", w.path("state"))
	w.envoy = w.startEnvoy()
	w.serves("by lua")
	w.saved()
	code, out := run(t, "dump", "--admin", "unix:"+w.path("admin.sock"), "--type", "LDS")
	if code != 0 || !strings.Contains(out, "handle:respond") {
		t.Errorf("dump: %d\n%s", code, out)
	}
	code, out = run(t, "export", "--state-dir", w.path("state"), "--out", w.path("files"),
		"--node-id", "e2e", "--node-cluster", "e2e", "--envoy-admin", w.envoy.Admin)
	if code != 0 || strings.Contains(out, "Missing resources") {
		t.Fatalf("export: %d\n%s", code, out)
	}
	w.agent.Kill()
	w.envoy.Kill()
	file := w.path("files/bootstrap.json")
	e, err := testbed.StartEnvoy(envoytest.Binary(t), file, w.envoy.Admin, file+".log")
	w.check(err)
	w.envoy = w.keep(e)
	w.serves("by lua")
	if text, err := os.ReadFile(w.path("files/listeners.json")); err != nil || !strings.Contains(string(text), "handle:respond") {
		t.Errorf("%v\n%s", err, text)
	}
	if out, err := exec.Command(envoytest.Binary(t), "--mode", "validate", "-c", file).CombinedOutput(); err != nil {
		t.Errorf("Envoy does not accept it: %v\n%s", err, out)
	}
}
