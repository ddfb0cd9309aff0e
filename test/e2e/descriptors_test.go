package e2e

import (
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Finding F11. Others hold more connections than the agent has descriptors, and never use them: on the socket, where some speak HTTP/2,
// and on the address of health. Envoy gets its configuration, changes arrive, what is accepted is written, and the agent answers
// questions.
func TestIdleConnectionsLeaveDescriptors(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	health := net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
	w.agentVia = []string{"sh", "-c", `ulimit -n 64 && exec "$@"`, "sh"}
	w.startAgent("--state-dir", w.path("state"), "--health", health)
	hold := func(network, addr, hello string) {
		for range 100 {
			c, err := net.Dial(network, addr)
			w.check(err)
			w.Cleanup(func() { _ = c.Close() })
			_, _ = c.Write([]byte(hello)) // it may be closed at once
		}
	}
	hold("unix", w.path("xds.sock"), "")
	hold("unix", w.path("xds.sock"), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	hold("unix", w.path("admin.sock"), "")
	hold("tcp", health, "")
	w.envoy = w.startEnvoy()
	w.answersWith(w.url, "v1", 5*time.Second)
	hold("unix", w.path("xds.sock"), "")
	w.setRoute("v2")
	w.answersWith(w.url, "v2", 5*time.Second)
	w.saved()
	if code, _, err := testbed.Get("http://" + health + "/readyz"); err != nil || code != http.StatusOK {
		t.Errorf("readiness: %d, %v", code, err)
	}
	if out := w.does("status"); !strings.Contains(out, "e2e") {
		t.Errorf("status:\n%s", out)
	}
	if got, err := w.ask("/metrics"); err != nil || strings.Contains(got.body, `holdfast_refused_total{limit="connections"} 0`) || !strings.Contains(got.body, `{limit="connections"}`) {
		t.Errorf("it is not counted: %v", err)
	}
	if n := strings.Count(w.log(), "stream opened"); n != 1 {
		t.Errorf("Envoy has opened %d streams: a connection with a stream is not idle", n)
	}
	// It goes on when the control plane has gone and comes back.
	w.cp.Stop()
	w.restartControlPlane()
	w.setRoute("v1")
	w.answersWith(w.url, "v1", 15*time.Second)
}
