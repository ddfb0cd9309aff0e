package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// rehearse returns the rehearsal of the running agent, and the exit code.
func (w *world) rehearse() (code int, r admin.Rehearsal) {
	w.Helper()
	code, out := run(w.T, "rehearse", "-o", "json", "--admin", "unix:"+w.path("admin.sock"))
	w.check(json.NewDecoder(strings.NewReader(out)).Decode(&r))
	return code, r
}

// What `holdfast rehearse` says while the control plane is there is what is when it is gone, and the agent and
// Envoy restart.
func TestARehearsalSaysWhatWouldBe(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		promised := func() (r admin.Rehearsal) {
			w.Helper()
			_, r = w.rehearse()
			w.cp.Stop()
			w.envoy.Kill()
			w.agent.Kill()
			w.runAgent()
			w.envoy = w.startEnvoy()
			w.says([]string{"dump", "--type", "LDS"}, `"ingress"`)
			_, again := w.rehearse()
			for kind, n := range r.Groups[0].Stored {
				if got := again.Groups[0].Served[kind]; got != n {
					w.Errorf("%d %s are served after the restart, and %d were promised", got, kind, n)
				}
			}
			return r
		}
		if code, r := w.rehearse(); code != 0 || r.Lost() || r.Groups[0].Stored["RDS"] != 1 {
			w.Fatalf("exit code %d: %+v", code, r)
		}
		promised()
		w.serves("v1")

		// A route with a password is not stored without a key.
		route := xdstest.Route("ingress", "c2")
		route.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: "Basic c2VjcmV0"}}}
		w.cp.Set(route)
		w.restartControlPlane()
		w.serves("v2")
		w.check(testbed.Eventually(limit, func() error {
			code, r := w.rehearse()
			if code != 1 || len(r.Losses) != 1 || r.Losses[0].After != "a restart of the agent" || r.Losses[0].What != "RDS ingress" || r.Groups[0].Stored["RDS"] != 0 {
				return fmt.Errorf("exit code %d: %+v", code, r)
			}
			return nil
		}))
		promised()
		if code, out := run(w.T, "rehearse", "--admin", "unix:"+w.path("admin.sock")); code != 1 || !strings.Contains(out, "RDS ingress") || strings.Contains(out, "c2VjcmV0") {
			w.Errorf("exit code %d:\n%s", code, out)
		}
	})
}
