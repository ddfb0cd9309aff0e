package controlplane

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
)

// A freeze is a NACK to go-control-plane, with the reason. In SotW it answers a NACK with the same again, which
// must not become a loop. After the freeze it is sent the ACK.
func TestAFreezeIsANACKToTheControlPlane(t *testing.T) {
	inAllForms(t, func(w *world) {
		one, two, port := w.Backend("one"), w.Backend("two"), w.FreePort()
		s := newSnapshots(true)
		w.Check(s.set("0", generationOf(0, uint32(port), one)))
		w.serve(s)
		agent := w.startAgent("--node-id", rig.Node, "--node-cluster", rig.Node)
		envoy := agent.Envoy("envoy", w.below)
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		w.Serves(envoy, url, "one")
		agent.Does("freeze", "--reason", "incident 4711")
		w.Check(s.set("1", generationOf(1, uint32(port), two)))
		w.Eventually(func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, nack := range w.nacks {
				if strings.Contains(nack, "frozen: incident 4711") {
					return nil
				}
			}
			return fmt.Errorf("the control plane was sent the NACKs %q", w.nacks)
		})
		before := w.sent(resource.RouteType) + w.sent(resource.ListenerType) + w.sent(resource.ClusterType)
		time.Sleep(3 * time.Second)
		if n := w.sent(resource.RouteType) + w.sent(resource.ListenerType) + w.sent(resource.ClusterType) - before; n > 9 {
			t.Errorf("%d responses in three seconds of a freeze", n)
		}
		w.Serves(envoy, url, "one")
		agent.Does("resume")
		w.Serves(envoy, url, "two")
		w.Eventually(func() error {
			if status := agent.Status("text"); strings.Contains(status, "frozen") {
				return errors.New(status)
			}
			return nil
		})
	})
}
