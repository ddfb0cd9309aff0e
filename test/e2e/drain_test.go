package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// startBeside starts an agent and an Envoy as in containers of their own: the agent knows
// Envoy's admin from the bootstrap.
func (w *world) startBeside(extra ...string) {
	w.Helper()
	file, adminAddr := w.bootstrap()
	w.startAgentOf(append([]string{"--bootstrap", file}, extra...))
	w.envoy = w.runEnvoy(file, adminAddr)
	w.serves("v1")
}

// holdfast runs a command that asks the agent, and returns what it wrote.
func (w *world) holdfast(command string) (string, error) {
	out, err := exec.Command(holdfast(w.T), command, "--admin", "unix:"+w.path("admin.sock")).CombinedOutput()
	return string(out), err
}

// envoyIsReady waits until Envoy's /ready answers with a status.
func (w *world) envoyIsReady(want int) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		status, body, err := testbed.Get("http://" + w.envoy.Admin + "/ready")
		if err == nil && status != want {
			err = fmt.Errorf("/ready answers %d %q, want %d", status, body, want)
		}
		return err
	}))
}

// agentIsReady waits until the agent says that it is ready.
func (w *world) agentIsReady() {
	w.Helper()
	w.check(w.agent.Wait(limit, func() error {
		missing, err := w.client().Ready(w.Context())
		if err == nil && missing != "" {
			err = fmt.Errorf("not ready: %s", missing)
		}
		return err
	}))
}

// The kubelet replaces a container alone when its liveness probe fails or its image changes. It
// runs the preStop hook then, too, and Envoy stays: it must not be left drained.
func TestAnAgentThatIsReplacedAloneLeavesEnvoyServing(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(w *world)
	}{
		{"by the kubelet: hook, then SIGTERM", func(w *world) {
			out, err := w.holdfast("drain")
			if err != nil {
				t.Fatalf("the hook: %v\n%s", err, out)
			}
			w.envoyIsReady(http.StatusServiceUnavailable)
			w.check(w.agent.Stop(limit))
		}},
		{"by the kubelet, while it drains", func(w *world) {
			hook := exec.Command(holdfast(w.T), "drain", "--admin", "unix:"+w.path("admin.sock"))
			w.check(hook.Start())
			w.envoyIsReady(http.StatusServiceUnavailable)
			w.agent.Kill()
			_ = hook.Wait()
		}},
		{"after a crash", func(w *world) { w.agent.Kill() }},
		{"by SIGTERM alone", func(w *world) { w.check(w.agent.Stop(limit)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, xdstest.Delta, xdstest.Delta)
			w.startBeside("--drain-min", "1s", "--drain-timeout", "2s", "--state-dir", w.path("state"))
			load := testbed.StartLoad(w.url, loadInterval, loadConnections)
			load.Wait(200)
			began := time.Now()
			tc.end(w)
			ended := time.Now()
			w.runAgent()
			w.agentIsReady()
			w.envoyIsReady(http.StatusOK)
			t.Logf("the old agent took %s to end; agent and Envoy are ready %s after the new one was started",
				ended.Sub(began).Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
			w.cp.Set(xdstest.Route("ingress", "c2"))
			w.serves("v2") // the new agent feeds it
			w.check(load.Stop())
			t.Logf("%d requests, none failed", load.Sent())
			w.envoyIsReady(http.StatusOK)
		})
	}
}

func TestADrainIsUndoneByHand(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startBeside("--drain-min", "0s", "--drain-timeout", "1s")
	load := testbed.StartLoad(w.url, loadInterval, loadConnections)
	load.Wait(50)
	if out, err := w.holdfast("drain"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.envoyIsReady(http.StatusServiceUnavailable)
	if missing, err := w.client().Ready(t.Context()); err != nil || !strings.Contains(missing, "draining") {
		t.Errorf("%q, %v", missing, err)
	}
	if out, err := w.holdfast("undrain"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	w.envoyIsReady(http.StatusOK)
	w.agentIsReady()
	if out, err := w.holdfast("undrain"); err == nil || !strings.Contains(out, "there is no drain to undo") {
		t.Errorf("once more: %v\n%s", err, out)
	}
	w.check(load.Stop())
}

// A hook that waits for an agent that hangs would use up the time that the pod has to end.
func TestDrainGivesUpOnAnAgentThatIsSilent(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startBeside()
	w.check(w.agent.Signal(syscall.SIGSTOP))
	defer func() { w.check(w.agent.Signal(syscall.SIGCONT)) }()
	began := time.Now()
	out, err := w.holdfast("drain")
	if took := time.Since(began); err == nil || took < 4*time.Second || took > limit || !strings.Contains(out, "not answered for 5s") {
		t.Errorf("after %s: %v\n%s", took, err, out)
	}
}

// An agent that ends because another has taken over leaves Envoy to that one.
func TestATakeoverDoesNotDrainEnvoy(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.startBeside()
	load := testbed.StartLoad(w.url, loadInterval, loadConnections)
	load.Wait(50)
	old := w.agent
	w.agentArgs = append(w.agentArgs, "--takeover")
	w.runAgent()
	select {
	case <-old.Exited():
	case <-time.After(limit):
		t.Fatal("the old agent has not ended")
	}
	w.agentIsReady()
	w.envoyIsReady(http.StatusOK)
	w.check(load.Stop())
	for _, log := range []string{old.Tail(1000), w.agent.Tail(1000)} {
		if strings.Contains(log, "draining") || strings.Contains(log, "drained") {
			t.Errorf("it was drained:\n%s", log)
		}
	}
	if _, err := os.Stat(w.path("xds.sock.drained")); !os.IsNotExist(err) {
		t.Errorf("it is marked as drained: %v", err)
	}
}
