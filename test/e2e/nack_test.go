package e2e

import (
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

func TestARejectedListenerLeavesTheGoodOnesServing(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		second := w.freePort()
		w.cp.Set(xdstest.BadListener("bad"), xdstest.Listener("second", uint32(second), "ingress"))
		nack := w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
		// Envoy's own words, after the id of the node that said them.
		if msg := nack.Error.GetMessage(); !strings.HasPrefix(msg, "e2e: ") || !strings.Contains(msg, "not-an-ip") {
			t.Errorf("the control plane was told %q", msg)
		}
		w.stat("listener_manager.total_listeners_active", 2)
		// A repaired listener is taken, and the good ones stay.
		third := w.freePort()
		w.cp.Set(xdstest.Listener("bad", uint32(third), "ingress"))
		w.stat("listener_manager.total_listeners_active", 3)
		// A removed one that was once rejected goes (protocol.md V6).
		w.cp.Remove(xds.ListenerType, "bad")
		w.stat("listener_manager.total_listeners_active", 2)
		w.check(traffic.Stop())
	})
}

// design.md I7: a fresh Envoy is not given what was refused.
func TestAFreshEnvoyGetsWhatWasAccepted(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		bad := xdstest.BadListener("ingress")
		w.cp.Set(bad)
		w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v1")
		w.stat("listener_manager.lds.update_rejected", 0)
	})
}
