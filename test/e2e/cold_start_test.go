package e2e

import (
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestAColdEnvoyServesThroughTheAgent(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.stat("cluster_manager.warming_clusters", 0)
		w.stat("cluster_manager.cds.update_rejected", 0)
		w.stat("listener_manager.lds.update_rejected", 0)
		for _, typeURL := range []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType} {
			w.asked("that "+xds.Short(typeURL)+" was accepted", func(e xdstest.Event) bool {
				return e.Kind == xdstest.Ack && e.Type == typeURL
			})
		}
		for _, e := range w.cp.Events() {
			if e.Protocol != "" && e.Protocol != w.above {
				t.Fatalf("the agent speaks %s upstream, want %s", e.Protocol, w.above)
			}
			if e.Kind == xdstest.Nack {
				t.Errorf("NACK: %s", e)
			}
		}
	})
}

// The agent may come after Envoy: Envoy connects when the socket is there.
func TestEnvoyMayStartBeforeTheAgent(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.envoy = w.startEnvoy()
		w.startAgent()
		w.serves("v1")
	})
}

func TestTwoEnvoysShareOneUpstreamStream(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		first := w.envoy
		w.envoy = w.startEnvoy()
		w.stat("listener_manager.total_listeners_active", 1)
		w.stat("cluster.c1.membership_total", 1)
		w.stat("http.ingress.rds.ingress.update_success", 1) // a listener is active before it has its routes
		if now, ever := w.cp.Streams(); now != 1 || ever != 1 {
			t.Errorf("%d streams upstream, %d ever, want one", now, ever)
		}
		w.cp.Set(xdstest.Route("ingress", "c2"))
		for _, e := range []string{"the second", "the first"} {
			t.Log(e)
			w.stat("http.ingress.rds.ingress.update_success", 2)
			w.envoy = first
		}
	})
}
