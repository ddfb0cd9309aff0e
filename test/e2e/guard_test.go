package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// filed is a world whose control plane is holdfast's own, on a directory with a file for
// each type of the mesh.
type filed struct {
	*world
	resources string
	own       *testbed.Process
}

func newFiled(t *testing.T, above, below xdstest.Protocol) *filed {
	t.Helper()
	w := &filed{world: newWorld(t, above, below)}
	w.cp.Stop()
	w.cpAddr, w.resources = "unix:"+w.path("cp.sock"), w.path("resources")
	w.writeMesh()
	w.runControlPlane()
	return w
}

// writeMesh writes the mesh.
func (w *filed) writeMesh() {
	w.Helper()
	w.check(os.MkdirAll(w.resources, 0o700))
	files := make(map[string][]string)
	for _, m := range w.mesh("c1") {
		packed := xdstest.Pack(m)
		text, err := protojson.Marshal(packed)
		w.check(err)
		name := xds.Short(packed.GetTypeUrl())
		files[name] = append(files[name], string(text))
	}
	for name, list := range files {
		w.check(os.WriteFile(filepath.Join(w.resources, name+".yaml"), []byte(`{"resources": [`+strings.Join(list, ",")+"]}\n"), 0o600))
	}
}

// moveAway moves all files to a folder beside the directory, and leaves one which says that there is nothing: without it nothing
// would be removed at all.
func (w *filed) moveAway() {
	w.Helper()
	w.check(os.MkdirAll(w.path("away"), 0o700))
	files, err := filepath.Glob(filepath.Join(w.resources, "*"))
	w.check(err)
	w.check(os.WriteFile(filepath.Join(w.resources, "none.yaml"), []byte("resources: []\n"), 0o600))
	for _, f := range files {
		w.check(os.Rename(f, filepath.Join(w.path("away"), filepath.Base(f))))
	}
}

func (w *filed) runControlPlane() {
	w.Helper()
	p, err := testbed.Start("control plane", w.path("cp.log"), holdfast(w.T), "controlplane", "--dir", w.resources, "--listen", w.cpAddr)
	w.check(err)
	w.own = p
	w.Cleanup(p.Kill)
	w.check(p.Wait(limit, func() error { return testbed.Dial("unix", w.path("cp.sock")) }))
}

// withholds waits until as many removals are held back of a type, and of the types that go with it.
func (w *filed) withholds(want map[string]int) {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		s, err := w.status()
		if err != nil || len(s.Groups) != 1 {
			return fmt.Errorf("%d groups, %w", len(s.Groups), err)
		}
		for _, t := range s.Groups[0].Types {
			if t.Withheld != want[t.Type] {
				return fmt.Errorf("%d removals of %s are held back, want %d", t.Withheld, t.Type, want[t.Type])
			}
		}
		return nil
	}))
}

// anotherEnvoy kills the Envoy and starts another, which is served the mesh.
func (w *filed) anotherEnvoy() {
	w.Helper()
	w.envoy.Kill()
	w.envoy = w.startEnvoy()
	w.serves("v1")
	w.neverWaited()
}

// design.md I10: a control plane that loses its source removes everything. An Envoy that
// restarts is served all the same; also after the control plane has started anew with
// nothing, and after the agent has, with and without it. What confirms it is an answer to
// what is asked after the time.
func TestWhatIsHeldBackIsServedUntilItsRemovalIsConfirmed(t *testing.T) {
	t.Parallel()
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			w := newFiled(t, form, form)
			state := []string{"--state-dir", w.path("state"), "--max-removal-percent", "50"}
			w.start(append(state, "--removal-confirm-after", "10m")...)
			all := map[string]int{"CDS": 2, "LDS": 1}
			if form == xdstest.Delta {
				all["EDS"], all["RDS"] = 2, 1 // SotW does not say that they are gone
			}
			w.moveAway()
			w.withholds(all)
			w.anotherEnvoy()

			w.own.Kill()
			since := time.Now()
			w.runControlPlane()
			w.connects(since)
			w.withholds(all)
			w.anotherEnvoy()

			w.agent.Kill()
			w.own.Kill()
			w.runAgent()
			w.withholds(all)
			w.anotherEnvoy()
			since = time.Now()
			w.runControlPlane()
			w.connects(since)
			w.withholds(all)
			w.serves("v1")

			// The time counts from when they were held back first.
			w.agent.Kill()
			w.startAgent(append(state, "--removal-confirm-after", "1s")...)
			w.withholds(nil)
			w.stat("listener_manager.total_listeners_active", 0)
			w.writeMesh()
			w.serves("v1")
			log, err := os.ReadFile(w.path("agent.log"))
			w.check(err)
			for _, line := range []string{"which looks like an accident", "requesting everything again, to confirm what is held back", "control plane confirmed the removals: they take effect"} {
				if !strings.Contains(string(log), line) {
					t.Errorf("the log does not say %q", line)
				}
			}
		})
	}
}

// connects waits until a control plane that was just started has answered for listeners and
// clusters.
func (w *filed) connects(since time.Time) {
	w.Helper()
	w.check(testbed.Eventually(limit, func() error {
		s, err := w.status()
		if err != nil || len(s.Groups) != 1 {
			return fmt.Errorf("%d groups, %w", len(s.Groups), err)
		}
		for _, t := range s.Groups[0].Types {
			if (t.Type == "CDS" || t.Type == "LDS") && t.LastUpdate.Before(since) {
				return fmt.Errorf("the control plane has not answered for %s", t.Type)
			}
		}
		return nil
	}))
}

// What a full disk or a shell's redirection leaves of a file removes nothing.
func TestAFileThatBecameEmptyRemovesNothing(t *testing.T) {
	w := newFiled(t, xdstest.Delta, xdstest.Delta)
	w.start()
	for _, name := range []string{"CDS.yaml", "EDS.yaml", "LDS.yaml", "RDS.yaml"} {
		w.check(os.Truncate(filepath.Join(w.resources, name), 0))
	}
	w.check(testbed.Eventually(limit, func() error {
		log, err := os.ReadFile(w.path("cp.log"))
		if n := strings.Count(string(log), "its last valid content stays in use"); err == nil && n != 4 {
			err = fmt.Errorf("%d files are said to be bad, want 4", n)
		}
		return err
	}))
	w.anotherEnvoy()
	w.own.Kill()
	w.runControlPlane() // which cannot know what was in them
	w.anotherEnvoy()
	w.neverRemoved()
	w.writeMesh()
	w.anotherEnvoy()
}

// Envoy refuses a second listener of an address: under a guard, a listener that is replaced by one
// of another name on its port was held back beside that, and after the time to confirm the removal
// neither was there. An Envoy that starts afterwards gets the new one too.
func TestAListenerThatIsRenamedUnderAGuardServes(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--max-removal-percent", "50", "--removal-confirm-after", "1s")
		w.cp.Hold()
		w.cp.Remove(xds.ListenerType, "ingress")
		w.cp.Set(xdstest.Listener("green", uint32(w.port), "green"), xdstest.Route("green", "c2"))
		w.cp.Release()
		w.serves("v2")
		w.stat("listener_manager.lds.update_rejected", 0)
		time.Sleep(2 * time.Second) // longer than until what is held back would be confirmed
		w.serves("v2")
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v2")
	})
}
