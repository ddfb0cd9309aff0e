package e2e

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// systemd learns from the agent when it serves, how it is, that it lives, and when it stops; Envoy, as its child,
// does not see systemd's variables.
func TestSystemdIsTold(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: w.path("notify"), Net: "unixgram"})
	w.check(err)
	var mu sync.Mutex
	var messages []string
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			mu.Lock()
			messages = append(messages, string(buf[:n]))
			mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = conn.Close() })
	told := func(parts ...string) {
		t.Helper()
		w.check(testbed.Eventually(limit, func() error {
			mu.Lock()
			defer mu.Unlock()
			return inOrder(strings.Join(messages, "\n")+"\n", parts...)
		}))
	}
	w.agentVia = []string{"env", "NOTIFY_SOCKET=" + w.path("notify"), "WATCHDOG_USEC=400000"}
	w.cp.Stop() // an agent without a configuration is started, too
	w.startAgent()
	told("configuration: no ", "READY=1\n", "WATCHDOG=1\n", "WATCHDOG=1\n") // at first the socket may be missing, too
	w.restartControlPlane()
	told("READY=1\n", "STATUS=ready\n")
	w.does("freeze", "--reason", "night")
	told("STATUS=ready\n", "STATUS=freeze: frozen since ", "night")
	w.check(w.agent.Stop(limit))
	told("STATUS=ready\n", "STOPPING=1\n")
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(strings.Join(messages, "\n"), "READY=1"); n != 1 {
		t.Error(fmt.Sprint(n, " times ready"))
	}
}
