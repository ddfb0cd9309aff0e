package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// previous is the commit of the last version that wrote format 1 of the state.
const previous = "96c94e4"

// previousBinary returns holdfast as it was at that commit.
func previousBinary(t T) string {
	t.Helper()
	path := filepath.Join(envoytest.Root(t), "bin", "holdfast-"+previous)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%v: run `make previous` in a clone that has the commit %s", err, previous)
	}
	return path
}

// replaceAgent kills the agent and starts another version of it, with the same flags.
func (w *world) replaceAgent(binary string) {
	w.Helper()
	w.agent.Kill()
	w.agentArgs = slices.Clone(w.agentArgs)
	w.agentArgs[0] = binary
	w.runAgent()
}

// The state that the version before wrote is read, and written again in the format of
// today, with no control plane to ask; in plain text and encrypted.
func TestAnUpgradeKeepsTheState(t *testing.T) {
	inFormat1(t, func(w *world) {
		w.replaceAgent(holdfast(w.T))
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v2")
		w.neverWaited()
		if strings.Contains(w.log(), "set aside") || len(w.files("*")) != 1 {
			w.Errorf("the state of the version before is not read as it should be: %q\n%s", w.files("*"), w.agent.Tail(20))
		}
		w.agent.Kill()
		w.runAgent()
		c := w.scripted()
		c.Subscribe(xds.RouteType, "ingress")
		w.leadsTo(c, "c2")
	})
}

// The version before does not take the state of today for damage, nor overwrites it: it
// says that a later version wrote it, sets it aside and begins with nothing. Under its old
// name this version reads it again.
func TestADowngradeSetsTheStateAside(t *testing.T) {
	inFormat1(t, func(w *world) {
		w.replaceAgent(holdfast(w.T))
		w.check(testbed.Eventually(limit, func() error {
			if names := w.files("*"); len(names) != 1 {
				return fmt.Errorf("there are %q", names)
			}
			return w.format(2)
		}))
		w.replaceAgent(previousBinary(w.T))
		var future []string
		w.check(testbed.Eventually(limit, func() error { // it reads the state when its socket is there
			if future = w.files("*.future"); len(future) != 1 {
				return fmt.Errorf("there are %q", w.files("*"))
			}
			return nil
		}))
		if !strings.Contains(w.log(), "written by a later version of holdfast: its format is 2, this one reads 1") {
			w.Fatalf("the version before says nothing of it\n%s", w.agent.Tail(20))
		}
		c := w.scripted()
		c.Subscribe(xds.RouteType, "ingress")
		time.Sleep(time.Second) // nothing can be shown to come but by waiting
		if n := len(c.Names(xds.RouteType)); n > 0 {
			w.Error("the version before serves something of it")
		}
		c.Disconnect()
		w.agent.Kill()
		for _, name := range w.files("*.log") {
			w.check(os.Remove(name))
		}
		w.check(os.Rename(future[0], strings.TrimSuffix(future[0], ".future")))
		w.replaceAgent(holdfast(w.T))
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v2")
	})
}

// inFormat1 runs a test on a state that the version before wrote, which serves it to an
// Envoy; the control plane has gone.
func inFormat1(t *testing.T, test func(w *world)) {
	old := previousBinary(t)
	for _, encrypted := range []bool{false, true} {
		name := "plain"
		if encrypted {
			name = "encrypted"
		}
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, xdstest.Delta, xdstest.Delta)
			extra := []string{"--state-dir", w.path("state")}
			if encrypted {
				w.check(os.WriteFile(w.path("key"), []byte(strings.Repeat("k", 32)), 0o600))
				extra = append(extra, "--state-key-file", w.path("key"))
			}
			w.startAgent(extra...)
			w.agent.Kill()
			w.check(os.RemoveAll(w.path("state")))
			w.replaceAgent(old)
			w.envoy = w.startEnvoy()
			w.setRoute("v2")
			w.serves("v2")
			w.saved()
			w.cp.Stop()
			w.check(w.format(1))
			test(w)
		})
	}
}

// files are the logs of the state that match a pattern.
func (w *world) files(pattern string) []string {
	w.Helper()
	found, err := filepath.Glob(filepath.Join(w.path("state"), "state-"+pattern))
	w.check(err)
	return found
}

// format returns nil if the state on disk is of a format.
func (w *world) format(want byte) error {
	for _, name := range w.files("*.log") {
		b, err := os.ReadFile(name)
		if err == nil && len(b) > 8 && b[8] == want {
			return nil
		}
	}
	return fmt.Errorf("no state of format %d: there are %q", want, w.files("*"))
}

// Versions are exchanged under load: the new one by taking over from the one before, with a state
// directory and without, and by a restart on one state directory, both ways. No request fails.
func TestVersionsAreExchangedUnderLoad(t *testing.T) {
	old := previousBinary(t)
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("with state %t", kept), func(t *testing.T) {
			inAllForms(t, func(w *world) {
				var extra []string
				if kept {
					extra = []string{"--state-dir", w.path("state")}
				}
				w.startAgent(extra...)
				if kept {
					w.agent.Kill()
					w.check(os.RemoveAll(w.path("state")))
				}
				w.replaceAgent(old)
				w.envoy = w.startEnvoy()
				w.serves("v1")
				traffic := testbed.StartTraffic(w.url, requestInterval)
				// Up, by taking over.
				w.agentArgs = append(slices.Clone(w.agentArgs), "--takeover")
				w.agentArgs[0] = holdfast(w.T)
				w.runNextAgent()
				w.setRoute("v2")
				w.serves("v2")
				// Down and up, by a restart.
				w.agentArgs = slices.DeleteFunc(w.agentArgs, func(arg string) bool { return arg == "--takeover" })
				for i, binary := range []string{old, holdfast(w.T)} {
					w.replaceAgent(binary)
					text := []string{"v1", "v2"}[i]
					w.setRoute(text)
					w.serves(text)
				}
				w.check(traffic.Stop())
				w.neverRemoved()
			})
		})
	}
}

// The version before cannot take over from this one: it says so, and this one serves on.
func TestTheVersionBeforeCannotTakeOver(t *testing.T) {
	old := previousBinary(t)
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start()
	traffic := testbed.StartTraffic(w.url, requestInterval)
	args := append(slices.Clone(w.agentArgs), "--takeover")
	args[0] = old
	next, err := testbed.Start("successor", w.path("successor.log"), args...)
	w.check(err)
	w.Cleanup(next.Kill)
	select {
	case <-next.Exited():
	case <-time.After(limit):
		t.Fatalf("it has not ended:\n%s", next.Tail(20))
	}
	if said := next.Tail(20); !strings.Contains(said, "takeover") && !strings.Contains(said, "take over") {
		t.Errorf("it says %s", said)
	}
	w.setRoute("v2")
	w.serves("v2")
	w.check(traffic.Stop())
	w.neverRemoved()
}
