package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// With everything else gone, an Envoy is started from what the agent kept: Envoy's
// own validation accepts the files, and it serves from them.
func TestAnEnvoyStartsFromAnExportWithoutAnAgent(t *testing.T) {
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			w := newWorld(t, form, form)
			w.start("--state-dir", w.path("state"))
			w.setRoute("v2")
			w.serves("v2")
			w.saved()
			export := func() string {
				code, out := run(t, "export", "--state-dir", w.path("state"), "--out", w.path("files"),
					"--node-id", "e2e", "--node-cluster", "e2e", "--envoy-admin", w.envoy.Admin)
				if code != 0 || !strings.Contains(out, "CDS: 2") || !strings.Contains(out, "EDS: 2") || strings.Contains(out, "Missing resources") {
					t.Fatalf("export: %d\n%s", code, out)
				}
				return w.path("files/bootstrap.json")
			}
			export() // beside the agent that is running
			w.cp.Stop()
			w.agent.Kill()
			w.envoy.Kill()
			file := export()
			binary := envoytest.Binary(t)
			if out, err := exec.Command(binary, "--mode", "validate", "-c", file).CombinedOutput(); err != nil {
				t.Fatalf("Envoy does not accept it: %v\n%s", err, out)
			}
			e, err := testbed.StartEnvoy(binary, file, w.envoy.Admin, file+".log")
			w.check(err)
			w.envoy = w.keep(e)
			w.serves("v2")
			w.stat("cluster_manager.active_clusters", 2)
			w.stat("cluster_manager.cds.update_rejected", 0)
			w.stat("listener_manager.lds.update_rejected", 0)
		})
	}
}
