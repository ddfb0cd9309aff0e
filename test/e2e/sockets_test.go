package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Who owns the path of the socket owns Envoy, and an Envoy that starts while there is
// nothing waits for ever.
func TestASocketThatIsDeletedOrReplacedIsMadeAnew(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	health := fmt.Sprintf("127.0.0.1:%d", w.freePort())
	w.startAgent()
	w.check(w.agent.Stop(limit))
	w.agentArgs = append(w.agentArgs, "--health", health)
	w.runAgent()
	w.envoy = w.startEnvoy()
	w.serves("v1")
	replace := func(path string) error {
		lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + "x", Net: "unix"})
		if err != nil {
			return err
		}
		lis.SetUnlinkOnClose(false)
		t.Cleanup(func() { _ = lis.Close() })
		return os.Rename(path+"x", path)
	}
	status := func(path string) (int, string) {
		code, body, err := testbed.Get("http://" + health + path)
		w.check(err)
		return code, body
	}
	traffic := testbed.StartTraffic(w.url, requestInterval)
	streams := w.value("control_plane.connected_state")
	for _, socket := range []string{"xds.sock", "admin.sock"} {
		for name, spoil := range map[string]func(string) error{"deleted": os.Remove, "replaced": replace} {
			w.check(w.agent.Wait(limit, func() error {
				if code, body := status("/readyz"); code != http.StatusOK {
					return errors.New(body)
				}
				return nil
			}))
			w.check(spoil(w.path(socket)))
			spoilt, _ := os.Lstat(w.path(socket)) // nil if it is deleted
			ready, reason := status("/readyz")
			started, _ := status("/startupz")
			now, _ := os.Lstat(w.path(socket))
			again := now != nil && (spoilt == nil || !os.SameFile(spoilt, now)) // created again already
			if !again && (ready != http.StatusServiceUnavailable || started != http.StatusServiceUnavailable || !strings.Contains(reason, socket)) {
				t.Errorf("%s %s: ready %d %q, started %d", socket, name, ready, reason, started)
			}
			w.check(w.agent.Wait(limit, func() error {
				code, body := status("/readyz")
				if code != http.StatusOK || !strings.Contains(w.log(), "and created again") {
					return fmt.Errorf("%d %s", code, body)
				}
				_, err := w.client().Status(t.Context())
				return err
			}))
		}
	}
	if got := w.value("control_plane.connected_state"); got != streams {
		t.Errorf("connected_state %d, it was %d", got, streams)
	}
	w.check(traffic.Stop())
	w.envoy.Kill()
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.envoy = w.startEnvoy()
	w.serves("v2")
}
