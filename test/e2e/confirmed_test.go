package e2e

import (
	"fmt"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// What an agent has read from disk is confirmed when the control plane agrees, although it sends nothing that has not changed: servers are silent
// about versions that are current.
func TestWhatWasRestoredIsConfirmedByAServerThatIsSilent(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"))
		w.saved()
		w.check(w.agent.Stop(limit))
		w.runAgent()
		w.check(testbed.Eventually(2*limit, func() error {
			status, err := w.client().Status(w.Context())
			if err != nil || len(status.Groups) != 1 || len(status.Groups[0].Upstreams) != 1 || !status.Groups[0].Upstreams[0].Active {
				return fmt.Errorf("the control plane has not answered: %+v, %v", status, err)
			}
			if n := status.Groups[0].Restored; n > 0 {
				return fmt.Errorf("%d resources are restored and not confirmed", n)
			}
			return nil
		}))
		w.serves("v1")
	})
}
