package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// What holdfast is for: agent and Envoy are killed and start again with no control
// plane reachable, and Envoy serves from what was kept on disk. When the control
// plane is back, what it changed meanwhile swaps in without a failed request.
func TestAgentAndEnvoyStartWithoutAControlPlane(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		w.setRoute("v2")
		w.serves("v2")
		w.saved()
		w.cp.Stop()
		w.envoy.Kill()
		w.agent.Kill()
		w.runAgent()
		w.envoy = w.startEnvoy()
		w.serves("v2")
		w.neverWaited()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.setRoute("v1")
		w.restartControlPlane()
		w.serves("v1")
		w.check(traffic.Stop())
		w.neverRemoved()
	})
}

// saved waits until everything that was accepted is on disk.
func (w *world) saved() {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		code, out := run(w.T, "status", "-o", "json", "--admin", "unix:"+w.path("admin.sock"))
		if code != 0 {
			return fmt.Errorf("status: %s", out)
		}
		var status admin.Status
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return err
		}
		st := status.Storage
		switch {
		case st == nil || !st.Durable:
			return fmt.Errorf("nothing is written: %+v", st)
		case time.Since(st.Committed) < 500*time.Millisecond:
			return fmt.Errorf("something was written at %s", st.Committed)
		}
		return nil
	}))
}
