package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// swapInterval is that of the traffic: 200 requests a second.
const swapInterval = 5 * time.Millisecond

// design.md I4, protocol.md 4.7: clusters come before what leads to them, and go
// after it, whatever the order in which the control plane says so.
func TestNoRequestFailsWhileClustersAndRoutesAreSwapped(t *testing.T) {
	for _, order := range []string{"routes first", "removal first"} {
		t.Run(order, func(t *testing.T) {
			inAllForms(t, func(w *world) {
				w.start()
				// What was just learned is in the place of nothing (design.md I10): all clusters are known first.
				w.knows(xds.ClusterType)
				traffic := testbed.StartTraffic(w.url, swapInterval)
				old := "c1"
				for i := range 8 {
					name := fmt.Sprintf("swap-%d", i)
					w.cp.Set(xdstest.Cluster(name, ""), xdstest.CLA(name, w.v2.Addr))
					if order == "removal first" {
						w.cp.Remove(xds.ClusterType, old)
						w.cp.Set(xdstest.Route("ingress", name))
					} else {
						w.cp.Set(xdstest.Route("ingress", name))
						w.cp.Remove(xds.ClusterType, old)
					}
					w.stat("cluster."+name+".membership_total", 1)
					old = name
					time.Sleep(50 * time.Millisecond)
				}
				w.serves("v2")
				// The last removal comes a second after everything else.
				w.stat("cluster_manager.active_clusters", 3)
				w.check(traffic.Stop())
			})
		})
	}
}

// A listener that is replaced by one of the same address goes in the response
// that brings the other: Envoy removes before it adds.
func TestNoRequestFailsWhileListenersAreSwapped(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		traffic := testbed.StartTraffic(w.url, swapInterval)
		for i := range 5 {
			changed := xdstest.Listener("ingress", uint32(w.port), "ingress")
			changed.StatPrefix = fmt.Sprintf("change-%d", i)
			w.cp.Set(changed)
			w.stat("listener_manager.listener_modified", i+1)
			w.stat("listener_manager.total_listeners_warming", 0)
		}
		w.check(traffic.Stop())
	})
}
