package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// servesOn sees that the agent which was to be taken over from has everything that it had:
// it is ready, on its sockets and addresses, configures a new Envoy, and writes its state.
func (w *world) servesOn(pid int, health string) {
	w.Helper()
	w.check(w.agent.Alive())
	w.check(w.agent.Wait(limit, func() error {
		status, body, err := testbed.Get("http://" + health + "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, body)
		}
		if err != nil {
			return err
		}
		s, err := w.client().Status(w.Context())
		if err != nil {
			return err
		}
		if s.Storage == nil || !s.Storage.Durable {
			return fmt.Errorf("the state is not written: %+v", s.Storage)
		}
		return errors.Join(testbed.Dial("unix", w.path("xds.sock")), testbed.Dial("unix", w.path("admin.sock")))
	}))
	if w.agent.PID() != pid {
		w.Fatal("it is another process")
	}
	w.envoy.Kill()
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.envoy = w.startEnvoy()
	w.serves("v2")
	w.saved()
	w.cp.Set(xdstest.Route("ingress", "c1"))
	w.serves("v1")
	w.saved()
	// Nobody else gets in.
	args := slices.DeleteFunc(slices.Clone(w.agentArgs), func(arg string) bool { return arg == "--takeover" })
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another holdfast") {
		w.Errorf("a second agent: %v\n%s", err, out)
	}
}

// inTakeover runs a test with an agent that could be taken over from, on every kind of
// address, and its Envoy.
func inTakeover(t *testing.T) (w *world, health string) {
	t.Helper()
	w = newWorld(t, xdstest.Delta, xdstest.Delta)
	health = fmt.Sprintf("127.0.0.1:%d", w.freePort())
	w.startAgent("--state-dir", w.path("state"), "--rest", fmt.Sprintf("127.0.0.1:%d", w.freePort()))
	w.check(w.agent.Stop(limit))
	w.agentArgs[slices.Index(w.agentArgs, "--health")+1] = health
	w.runAgent()
	w.envoy = w.startEnvoy()
	w.serves("v1")
	w.saved()
	return w, health
}

func TestASuccessorThatCannotStartTakesNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world, args []string) []string{
		"an address of REST that is not this machine's": func(_ *world, args []string) []string {
			args[slices.Index(args, "--rest")+1] = "203.0.113.1:1"
			return args
		},
		"an address of REST that another process has": func(w *world, args []string) []string {
			lis, err := testbed.StartBackend("127.0.0.1:0", "taken")
			w.check(err)
			w.Cleanup(lis.Stop)
			args[slices.Index(args, "--rest")+1] = lis.Addr
			return args
		},
		"an address of health that cannot be": func(_ *world, args []string) []string {
			args[slices.Index(args, "--health")+1] = "203.0.113.1:1"
			return args
		},
		"a directory of state that is a file": func(w *world, args []string) []string {
			w.check(os.WriteFile(w.path("file"), nil, 0o600))
			args[slices.Index(args, "--state-dir")+1] = w.path("file")
			return args
		},
		"a group of the socket that does not exist": func(_ *world, args []string) []string {
			return append(args, "--socket-group", "no-such-group")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, health := inTakeover(t)
			pid := w.agent.PID()
			args := append(change(w, slices.Clone(w.agentArgs)), "--takeover")
			load := testbed.StartTraffic(w.url, requestInterval)
			out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
			if err == nil {
				t.Errorf("it has started:\n%s", out)
			}
			w.check(load.Stop())
			w.servesOn(pid, health)
		})
	}
}

// A successor may end at any moment between its request and its confirmation; here it is
// stopped while it waits for an address, and killed, or ends by itself.
func TestASuccessorThatIsKilledInTheMiddleTakesNothing(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped before: %v", stopped), func(t *testing.T) {
			w, health := inTakeover(t)
			pid := w.agent.PID()
			busy, err := testbed.StartBackend("127.0.0.1:0", "busy")
			w.check(err)
			t.Cleanup(busy.Stop)
			args := slices.Clone(w.agentArgs)
			args[slices.Index(args, "--rest")+1] = busy.Addr
			next, err := testbed.Start("successor", w.path("successor.log"), append(args, "--takeover")...)
			w.check(err)
			t.Cleanup(next.Kill)
			// The admin socket is that of the successor by now, and the lock of the state too.
			w.check(next.Wait(limit, func() error {
				if log := next.Tail(50); !strings.Contains(log, "serving HTTP") {
					return fmt.Errorf("it has not got so far:\n%s", log)
				}
				return nil
			}))
			if stopped {
				w.check(next.Signal(syscall.SIGSTOP))
			}
			next.Kill()
			w.servesOn(pid, health)
			// And a takeover that succeeds still does.
			w.agentArgs = append(w.agentArgs, "--takeover")
			w.runNextAgent()
			w.check(w.agent.Wait(limit, func() error {
				missing, err := w.client().Ready(t.Context())
				if err == nil && missing != "" {
					err = errors.New(missing)
				}
				return err
			}))
		})
	}
}

func TestARequestToTakeOverAloneEndsNothing(t *testing.T) {
	w, health := inTakeover(t)
	pid := w.agent.PID()
	curl := func(args ...string) string {
		out, _ := exec.Command("curl", append([]string{"-sS", "-m", "3", "--unix-socket", w.path("admin.sock"), "-X", "POST", "http://x/takeover"}, args...)...).CombinedOutput()
		return string(out)
	}
	if out := curl(); !strings.Contains(out, "this request is part of its protocol") {
		t.Errorf("answered %q", out)
	}
	w.servesOn(pid, health)
	if log := w.log(); strings.Contains(log, "takeover by another agent started") {
		t.Error("something was released")
	}
	// One that knows the protocol, and leaves.
	began := time.Now()
	curl("-H", "Connection: Upgrade", "-H", "Upgrade: holdfast-takeover")
	w.check(w.agent.Wait(limit, func() error {
		if !strings.Contains(w.log(), "sockets and addresses taken back") {
			return errors.New("nothing was taken back")
		}
		return nil
	}))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	w.servesOn(pid, health)
}

// Finding F11. An agent that hangs is no agent that has gone: its successor says so, ends, and has taken nothing; the other goes on when
// it turns again, and when it was ended as the message says a successor starts.
func TestASuccessorOfAnAgentThatHangsSaysSo(t *testing.T) {
	t.Parallel()
	w, health := inTakeover(t)
	pid := w.agent.PID()
	w.check(syscall.Kill(pid, syscall.SIGSTOP))
	w.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	out, err := exec.Command(w.agentArgs[0], append(slices.Clone(w.agentArgs[1:]), "--takeover")...).CombinedOutput()
	for _, want := range []string{fmt.Sprintf("process %d, has not answered for 5s", pid), fmt.Sprintf("process %d, has not answered for 15s", pid), "nothing was taken over", "kill -9"} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, no %q:\n%s", err, want, out)
		}
	}
	w.check(syscall.Kill(pid, syscall.SIGCONT))
	w.servesOn(pid, health)
	w.check(syscall.Kill(pid, syscall.SIGSTOP))
	w.agent.Kill()
	w.agentArgs = append(w.agentArgs, "--takeover")
	w.runAgent()
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.serves("v2")
}
