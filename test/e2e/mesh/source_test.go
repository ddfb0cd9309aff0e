package mesh

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// accidents are what happens to the directory of the documents: begin begins it, and end repairs it.
var accidents = []struct {
	name       string
	begin, end func(w *world)
	waits      string // why a start without a state is not ready meanwhile
}{
	{"the volume is not mounted", func(w *world) {
		w.check(os.Rename(w.path("documents"), w.path("elsewhere")))
		w.check(os.Mkdir(w.path("documents"), 0o700))
	}, func(w *world) {
		w.check(os.Remove(w.path("documents")))
		w.check(os.Rename(w.path("elsewhere"), w.path("documents")))
	}, "as a volume that is not mounted"},
	{"the directory is moved away", func(w *world) {
		w.check(os.Rename(w.path("documents"), w.path("elsewhere")))
	}, func(w *world) {
		w.check(os.Rename(w.path("elsewhere"), w.path("documents")))
	}, "no such file or directory"},
	{"it is emptied, and copied file by file", func(w *world) {
		w.check(os.Rename(w.path("documents"), w.path("elsewhere")))
		w.check(os.Mkdir(w.path("documents"), 0o700))
	}, func(w *world) {
		for _, name := range []string{"rule.yaml", "service.yaml", "route.yaml"} {
			text, err := os.ReadFile(w.path("elsewhere/" + name))
			w.check(err)
			w.check(os.WriteFile(w.path("documents/."+name+".x8Tq"), text, 0o600))
			time.Sleep(300 * time.Millisecond)
			w.check(os.Rename(w.path("documents/."+name+".x8Tq"), w.path("documents/"+name)))
			time.Sleep(300 * time.Millisecond)
		}
	}, "as a volume that is not mounted"},
	{"a file is half written", func(w *world) {
		text := w.entry(host, w.port, w.v1, w.v2)
		w.check(os.WriteFile(w.path("documents/service.yaml"), []byte(text[:len(text)-40]), 0o600))
	}, func(w *world) { w.service(w.v1, w.v2) }, "service.yaml:"},
	{"a file of no bytes", func(w *world) {
		w.check(os.WriteFile(w.path("documents/route.yaml"), nil, 0o600))
	}, func(w *world) { w.write("route", w.route(100, 0)) }, "route.yaml: it is empty"},
	{"a merge conflict", func(w *world) {
		w.check(os.WriteFile(w.path("documents/route.yaml"), []byte("<<<<<<< HEAD: [\n"+w.route(100, 0)), 0o600))
	}, func(w *world) { w.write("route", w.route(100, 0)) }, "route.yaml:3"},
	{"a document is not valid", func(w *world) {
		w.check(os.WriteFile(w.path("documents/route.yaml"), []byte(strings.Replace(w.route(100, 0), "weight: 0", "weight: -1", 1)), 0o600))
	}, func(w *world) { w.write("route", w.route(100, 0)) }, "route.yaml:9"},
}

// Nothing that happens to the directory takes anything from a proxy, while the server runs, and when it restarts, with a state
// and without (findings F3 of the agent, F1 and F2 of users).
func TestAccidentsOfTheDirectoryFailNoRequest(t *testing.T) {
	const running, restarted, withoutState = "while it runs", "at a restart", "at a restart without a state"
	for _, accident := range accidents {
		for i, when := range []string{running, restarted, withoutState} {
			t.Run(accident.name+", "+when, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.through = i == 1
				if when == restarted {
					w.args = append(w.args, "--state-dir", w.path("state"))
				}
				w.write("rule", subsets("v1", "v2"))
				w.write("route", w.route(100, 0))
				w.start()
				w.synced()
				tally, stop := w.load()
				if when == running {
					accident.begin(w)
				} else {
					w.mesh.Kill()
					accident.begin(w)
					w.runMesh()
				}
				switch when {
				case withoutState:
					w.check(w.mesh.Wait(limit, func() error {
						if err := w.ready(); err == nil || !strings.Contains(err.Error(), accident.waits) {
							return fmt.Errorf("not ready because of %v, want %q", err, accident.waits)
						}
						return nil
					}))
					w.check(w.mesh.Wait(limit, func() error { // what it says is written a moment later
						if log := w.mesh.Tail(20); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, accident.waits) {
							return fmt.Errorf("the log does not say why it waits:\n%s", log)
						}
						return nil
					}))
				default:
					w.check(w.mesh.Wait(limit, w.ready))
					stop()
					w.envoy.Kill() // a new one is served what there was
					w.startEnvoy()
					w.answers(w.request(), "200 v1")
					tally, stop = w.load()
				}
				w.check(tally.More(200, limit))
				accident.end(w)
				w.check(w.mesh.Wait(limit, w.ready))
				w.write("route", w.route(0, 100))
				w.answers(w.request(), "200 v2")
				stop()
				if got := tally.Got("v1") + tally.Got("v2"); got == 0 {
					t.Error("nothing was requested")
				}
			})
		}
	}
}

// A fleet is new, its documents do not exist yet, or one of them is wrong: it starts by itself when they are there.
func TestANewServerWaitsForItsFirstDocument(t *testing.T) {
	w := newWorld(t)
	w.check(os.RemoveAll(w.path("documents")))
	w.runMesh()
	w.startEnvoy()
	w.check(w.mesh.Wait(limit, func() error {
		if err := w.ready(); err == nil || !strings.Contains(err.Error(), "no such file or directory") {
			return fmt.Errorf("not ready because of %v", err)
		}
		return nil
	}))
	w.check(os.Mkdir(w.path("documents"), 0o700))
	w.service(w.v1)
	w.check(w.mesh.Wait(limit, w.ready))
	w.answers(w.request(), "200 v1")
	if err := w.mesh.Alive(); err != nil {
		t.Error(err)
	}
	// One that is to have nothing says so.
	w = newWorld(t)
	w.check(os.Remove(w.path("documents/service.yaml")))
	w.check(os.Remove(w.path("documents/route.yaml"))) // to a service that is no more: worth a warning
	w.write("none", "# nothing on purpose\n")
	w.startMesh()
	if problems := w.status().Problems; len(problems) > 0 {
		t.Errorf("problems %q", problems)
	}
}

// The wait for a document that is not valid ends when the operator says so.
func TestAStartWithProblemsIsAWish(t *testing.T) {
	w := newWorld(t)
	w.check(os.WriteFile(w.path("documents/route.yaml"), []byte("kind: ["), 0o600))
	w.args = append(w.args, "--start-with-problems-after", "3s")
	w.runMesh()
	began := time.Now()
	w.check(w.mesh.Wait(limit, w.ready))
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("it has started after %s", took)
	}
	w.startEnvoy()
	w.answers(w.request(), "200 v1")
	w.problem("route.yaml:1: ")
}
