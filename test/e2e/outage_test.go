package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// requestInterval is that of the traffic that runs through a fault.
const requestInterval = 10 * time.Millisecond

func TestACutStreamIsOpenedAgain(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		for i := range 3 {
			w.cp.Cut(nil)
			text := []string{"v2", "v1"}[i%2]
			w.cp.Set(xdstest.Route("ingress", "c"+text[1:]))
			w.serves(text)
		}
		w.check(traffic.Stop())
		if _, ever := w.cp.Streams(); ever < 3 {
			t.Errorf("%d streams, want one more for each cut", ever)
		}
		w.neverRemoved()
	})
}

// neverRemoved fails if Envoy was told to remove or to replace anything.
func (w *world) neverRemoved() {
	w.Helper()
	for _, stat := range []string{
		"cluster_manager.cluster_removed", "cluster_manager.cluster_modified",
		"listener_manager.listener_removed", "listener_manager.listener_modified",
	} {
		if n := w.value(stat); n != 0 {
			w.Errorf("%s is %d, want 0", stat, n)
		}
	}
}

func TestAKilledAgentLosesNothing(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		for range 3 {
			w.agent.Kill()
			w.runAgent()
			w.stat("control_plane.connected_state", 1)
		}
		w.check(traffic.Stop())
		w.neverRemoved()
		w.stat("cluster_manager.warming_clusters", 0)
		traffic = testbed.StartTraffic(w.url, requestInterval)
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.serves("v2")
		w.check(traffic.Stop())
		w.neverRemoved()
	})
}

// The agent that starts while the control plane is away knows nothing, and says
// nothing: Envoy keeps what it has (design.md I1).
func TestAnAgentThatKnowsNothingTakesNothingAway(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.cp.Stop()
		w.agent.Kill()
		w.runAgent()
		w.stat("control_plane.connected_state", 1)
		time.Sleep(time.Second) // room for what must not happen
		w.check(traffic.Stop())
		w.neverRemoved()
		w.restartControlPlane()
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.serves("v2")
		w.neverRemoved()
	})
}

func TestARestartedEnvoyIsServedWithoutTheControlPlane(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.asked("that routes were accepted", func(e xdstest.Event) bool { return e.Kind == xdstest.Ack && e.Type == xds.RouteType })
		w.cp.Stop()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		time.Sleep(200 * time.Millisecond)
		w.check(traffic.Stop())
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v1")
		w.stat("cluster_manager.warming_clusters", 0)
		if n := w.value("listener_manager.total_listeners_active"); n != 1 {
			t.Errorf("%d listeners, want 1", n)
		}
		// And the control plane comes back.
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.restartControlPlane()
		w.serves("v2")
	})
}

// A backend that is exchanged while the control plane is away is not seen, and
// one that is exchanged afterwards is.
func TestWhatChangedDuringAnOutageArrivesAfterIt(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.cp.Stop()
		second := w.freePort()
		w.cp.Set(xdstest.Listener("second", uint32(second), "ingress"))
		w.cp.Remove(xds.ClusterType, "c2")
		w.serves("v1")
		w.restartControlPlane()
		w.stat("listener_manager.total_listeners_active", 2)
		w.stat("cluster_manager.active_clusters", 2)
		w.url = fmt.Sprintf("http://127.0.0.1:%d/", second)
		w.serves("v1")
	})
}
