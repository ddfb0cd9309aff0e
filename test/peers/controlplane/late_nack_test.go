package controlplane

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
)

// design.md I6: an agent that knows its node ACKs before its first Envoy comes. When that Envoy NACKs, go-control-plane is
// told: in Delta at once, with the nonce that was ACKed, in SotW when the type is asked for again. It goes on answering, and
// does not send the same without end.
func TestANACKAfterTheACKReachesTheControlPlane(t *testing.T) {
	inAllForms(t, func(w *world) {
		backend, port := w.Backend("served"), w.FreePort()
		good := generationOf(0, uint32(port), backend)
		bad := make(resources)
		for typeURL, list := range good {
			bad[typeURL] = list
		}
		bad[resource.ListenerType] = append([]types.Resource{xdstest.BadListener("bad")}, good[resource.ListenerType]...)
		bad[resource.RouteType] = append([]types.Resource{xdstest.Route("bad", "generation-0-0")}, good[resource.RouteType]...)
		s := newSnapshots(true)
		w.Check(s.set("0", bad))
		w.serve(s)
		agent := w.startAgent("--node-id", rig.Node, "--node-cluster", rig.Node)
		w.Eventually(func() error {
			if w.sent(resource.ListenerType) == 0 {
				return errors.New("no listener was sent")
			}
			return nil
		})
		w.neverNacked()
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		envoy := agent.Envoy("envoy", w.below)
		w.Eventually(func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.nacks) == 0 || !strings.Contains(w.nacks[0], "not-an-ip") {
				return fmt.Errorf("the control plane was sent the NACKs %q", w.nacks)
			}
			return nil
		})
		w.Serves(envoy, url, "served")
		if n := w.sent(resource.ListenerType); n > 10 {
			t.Errorf("%d responses with listeners", n)
		}
		w.Check(s.set("1", good))
		before := w.sent(resource.ListenerType)
		w.Eventually(func() error {
			if status := agent.Status("text"); strings.Contains(status, "NACKed by clients") {
				return fmt.Errorf("%d responses since; the status is\n%s", w.sent(resource.ListenerType)-before, status)
			}
			return nil
		})
		w.Serves(envoy, url, "served")
	})
}
