package mesh

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// design.md I10: all services of a sidecar are deleted, beside what every sidecar has. Its agent keeps them, and tells the control plane, which
// shows it, until an operator confirms it.
func TestTheControlPlaneIsToldWhatItsAgentsHoldBack(t *testing.T) {
	inAllForms(t, func(w *world) {
		if !w.through {
			return // there is no agent
		}
		w.start()
		w.answers(w.request(), "200 v1")
		w.synced()
		shows := func(want ...string) {
			t.Helper()
			w.check(testbed.Eventually(limit, func() error {
				code, out, problems := run(w.T, "proxies", "--admin", w.admin)
				for _, text := range want {
					if code != 0 || !strings.Contains(out, text) {
						return fmt.Errorf("exit code %d, proxies does not say %q: %s\n%s", code, text, problems, out)
					}
				}
				if len(want) == 0 && strings.Contains(out, "ccident") {
					return fmt.Errorf("proxies still says\n%s", out)
				}
				return nil
			}))
		}
		shows()
		w.remove("service")
		shows("client-1 CDS: its agent had ", "which looks like an accident", "Held back by agents, until this control plane confirms it: CDS in 1")
		w.answers(w.request(), "200 v1")
		holdfast := func(args ...string) string {
			out, _ := exec.Command(binary(t, "holdfast"), append(args, "--admin", "unix:"+w.own("admin.sock"))...).CombinedOutput()
			return string(out)
		}
		for command, want := range map[string]string{
			"status":   "which looks like an accident: clients keep what they have until it confirms that",
			"resume":   "`holdfast resume --removals` confirms them",
			"events":   "had 1 listener, the control plane sends none since ",
			"rehearse": "clients keep what they have until it is back and confirms that",
		} {
			if out := holdfast(command); !strings.Contains(out, want) {
				t.Errorf("holdfast %s does not say %q:\n%s", command, want, out)
			}
		}
		if out := holdfast("resume", "--removals"); out != "" {
			t.Errorf("holdfast resume --removals says %q", out)
		}
		w.check(testbed.Eventually(limit, func() error { // what the control plane removes a moment later may be held back again
			if out := holdfast("resume", "--removals"); !strings.Contains(out, "no removal is held back") {
				return fmt.Errorf("holdfast resume --removals says %q", out)
			}
			return nil
		}))
		shows()
		w.gone(fmt.Sprintf("outbound|%d||%s", w.port, host))
	})
}

// An operator freezes an agent, or rolls it back: what the control plane sends then is ACKed or not, and its proxy does not get it. The
// control plane says so, at once and until it is over.
func TestTheControlPlaneIsToldWhatIsFrozen(t *testing.T) {
	inAllForms(t, func(w *world) {
		if !w.through {
			return // there is no agent
		}
		w.start()
		w.answers(w.request(), "200 v1")
		w.synced()
		holdfast := func(args ...string) {
			t.Helper()
			if out, err := exec.Command(binary(t, "holdfast"), append(args, "--admin", "unix:"+w.own("admin.sock"))...).CombinedOutput(); err != nil {
				t.Fatalf("holdfast %q: %v %s", args, err, out)
			}
		}
		shows := func(want, not string) {
			t.Helper()
			w.check(testbed.Eventually(limit, func() error {
				code, out, problems := run(w.T, "proxies", "--admin", w.admin)
				if code != 0 || !strings.Contains(out, want) || not != "" && strings.Contains(out, not) {
					return fmt.Errorf("exit code %d, proxies does not say %q, or says %q: %s\n%s", code, want, not, problems, out)
				}
				return nil
			}))
		}
		shows("SYNCED", "FROZEN")
		holdfast("freeze", "--reason", "incident 4711")
		shows(": its agent is frozen since ", "")
		shows("(incident 4711)", "")
		shows("FROZEN", "")
		_, metrics, err := testbed.Get("http://" + w.admin + "/metrics")
		w.check(err)
		if want := "holdfast_mesh_proxies_frozen 1"; !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %q", want)
		}
		holdfast("resume")
		shows("SYNCED", "FROZEN")
	})
}
