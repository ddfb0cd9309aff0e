package e2e

import (
	"errors"
	"fmt"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// The two Envoys of a hot restart are one node: they share one upstream stream,
// what the first accepted is there for the second, and no request fails while one
// takes over from the other.
func TestTheTwoEnvoysOfAHotRestartShareWhatIsHeld(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.startAgent()
		file, admin := w.bootstrap()
		epoch := func(n int) *testbed.Envoy {
			t.Helper()
			e, err := testbed.StartEpoch(envoytest.Binary(t), file, admin, fmt.Sprintf("%s.%d.log", file, n), w.port, n)
			w.check(err)
			return w.keep(e)
		}
		first := epoch(0)
		w.envoy = first
		w.serves("v1")
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.envoy = epoch(1)
		w.check(testbed.Eventually(limit, func() error {
			select {
			case <-first.Exited():
				return nil
			default:
				return errors.New("the first Envoy is still there")
			}
		}))
		w.setRoute("v2")
		w.serves("v2")
		w.check(traffic.Stop())
		w.neverWaited()
		if now, ever := w.cp.Streams(); now != 1 || ever != 1 {
			t.Errorf("the control plane has %d streams and had %d, want 1", now, ever)
		}
		for _, e := range w.cp.Events() {
			if e.Kind == xdstest.Nack {
				t.Errorf("the control plane was told %s", e)
			}
		}
	})
}
