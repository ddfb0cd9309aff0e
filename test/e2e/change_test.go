package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

func TestChangesTakeEffect(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		// RDS
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.serves("v2")
		// EDS
		w.cp.Set(xdstest.CLA("c2-endpoints", w.v1.Addr))
		w.serves("v1")
		// CDS: the cluster takes its endpoints from elsewhere.
		w.cp.Set(xdstest.Cluster("c2", "more-endpoints"), xdstest.CLA("more-endpoints", w.v2.Addr))
		w.serves("v2")
		// LDS: the listener moves to another port.
		w.port = w.freePort()
		w.url = fmt.Sprintf("http://127.0.0.1:%d/", w.port)
		w.cp.Set(xdstest.Listener("ingress", uint32(w.port), "ingress"))
		w.serves("v2")
		w.stat("cluster_manager.warming_clusters", 0)
	})
}

// protocol.md V1, 4.1: without the agent's doing Envoy would wait 15 seconds for
// endpoints that did not change, and in Delta never ask for them.
func TestAChangedClusterWithUnchangedEndpointsDoesNotStayWarming(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		updates := w.value("cluster_manager.cluster_modified")
		changed := xdstest.Cluster("c1", "")
		changed.AltStatName = "again"
		w.cp.Set(changed)
		w.stat("cluster_manager.cluster_modified", updates+1)
		w.check(testbed.Eventually(5*time.Second, func() error {
			if n := w.value("cluster_manager.warming_clusters"); n != 0 {
				return fmt.Errorf("%d clusters warm", n)
			}
			return nil
		}))
		if n := w.value("cluster.again.assignment_use_cached"); n != 0 {
			t.Errorf("Envoy gave up waiting for endpoints %d times", n)
		}
		w.serves("v1")
	})
}

func TestWhatIsRemovedGoes(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		second := w.freePort()
		w.cp.Set(xdstest.Listener("second", uint32(second), "ingress"))
		w.stat("listener_manager.total_listeners_active", 2)
		w.cp.Remove(xds.ClusterType, "c2")
		w.cp.Remove(xds.ListenerType, "second")
		w.stat("listener_manager.total_listeners_active", 1)
		// Two clusters stay: c1, and the one that leads to the agent.
		w.stat("cluster_manager.active_clusters", 2)
		if _, _, err := testbed.Get(fmt.Sprintf("http://127.0.0.1:%d/", second)); err == nil {
			t.Error("the removed listener still answers")
		}
		w.serves("v1")
	})
}
