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

// edition is a holdfast, and the version that it says it is.
type edition struct{ program, version string }

// editions returns the holdfast under test and that of the last release.
func editions(t T) (this, released edition) {
	t.Helper()
	testbed.Long(t)
	program, version, err := testbed.Released(envoytest.Root(t), "holdfast")
	if err != nil {
		t.Skip(err)
	}
	_, out := run(t, "version")
	own := strings.Fields(out)
	if len(own) < 2 || own[0] != "holdfast" {
		t.Fatalf("holdfast version prints %q", out)
	}
	return edition{holdfast(t), own[1]}, edition{program, version}
}

// bothWays runs a test in which the holdfast under test comes after that of the last release, and the other way round.
func bothWays(t *testing.T, test func(t *testing.T, from, to edition)) {
	t.Helper()
	this, released := editions(t)
	t.Run("upgrade", func(t *testing.T) {
		t.Parallel()
		test(t, released, this)
	})
	t.Run("downgrade", func(t *testing.T) {
		t.Parallel()
		test(t, this, released)
	})
}

// runs waits until the status says that the agent is of a version: another process would answer for it otherwise.
func (w *world) runs(e edition) {
	w.Helper()
	w.says([]string{"status"}, "holdfast "+e.version+", up ")
}

// replaceAgent kills the agent and starts another version of it, with the same flags.
func (w *world) replaceAgent(binary string) {
	w.Helper()
	w.agent.Kill()
	w.agentArgs = slices.Clone(w.agentArgs)
	w.agentArgs[0] = binary
	w.runAgent()
}

// files are the logs of the state that match a pattern.
func (w *world) files(pattern string) []string {
	w.Helper()
	found, err := filepath.Glob(filepath.Join(w.path("state"), "state-"+pattern))
	w.check(err)
	return found
}

// What one version has stored is served by the other while the control plane is away: resources, a freeze, history and
// events; in plain text and encrypted. So is what the other one stores then, once the first is back.
func TestTheStateIsReadByTheVersionsBesideIt(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		t.Run(fmt.Sprintf("encrypted %v", encrypted), func(t *testing.T) {
			bothWays(t, func(t *testing.T, from, to edition) {
				w := newWorld(t, xdstest.Delta, xdstest.Delta)
				flags, key := []string{"--state-dir", w.path("state")}, []string(nil)
				if encrypted {
					w.check(os.WriteFile(w.path("key"), []byte(strings.Repeat("k", 32)), 0o600))
					key = []string{"--state-key-file", w.path("key")}
				}
				w.program = from.program
				w.start(append(flags, key...)...)
				w.setRoute("v2")
				w.serves("v2")
				w.does("freeze", "RDS", "--reason", "incident 4711")
				w.saved()
				w.agent.Kill()
				w.cp.Stop()

				for _, e := range []edition{to, from} {
					w.replaceAgent(e.program)
					w.runs(e)
					w.envoy.Kill()
					w.envoy = w.startEnvoy()
					w.serves("v2")
					w.neverWaited()
					if f := w.frozen(); f == nil || f.Reason != "incident 4711" {
						t.Errorf("%s knows of the freeze %+v", e.version, f)
					}
					w.says([]string{"history", "RDS/ingress"}, "before 20", "now")
					if strings.Contains(w.log(), "set aside") || len(w.files("*")) != 1 {
						t.Errorf("%s does not read the state as it should: %q\n%s", e.version, w.files("*"), w.agent.Tail(20))
					}
					w.saved()
					w.agent.Kill()
					// And without an agent, by the commands of both.
					for _, by := range []edition{from, to} {
						for _, args := range [][]string{{"history", "RDS/ingress"}, {"dump", "--type", "RDS"}, {"explain", strings.TrimPrefix(w.url, "http://")}, {"events"}} {
							if args[0] != "events" {
								args = append(args, key...)
							}
							code, out := runProgram(t, by.program, nil, append(args, "--offline", w.path("state"))...)
							if code != 0 || !strings.Contains(out, map[string]string{"history": "now", "dump": `"cluster": "c2"`, "explain": "goes to the cluster c2", "events": "control plane connected"}[args[0]]) {
								t.Errorf("holdfast %s %q of what %s stored: exit code %d\n%s", by.version, args, e.version, code, out)
							}
						}
					}
				}

				// What changes meanwhile goes into the same state.
				w.replaceAgent(to.program)
				w.restartControlPlane()
				w.does("resume")
				w.setRoute("v1")
				w.serves("v1")
				w.saved()
				w.cp.Stop()
				w.replaceAgent(from.program)
				w.envoy.Kill()
				w.envoy = w.startEnvoy()
				w.serves("v1")
				w.neverWaited()
			})
		})
	}
}

// Under requests, agents of the two versions take over from one another, without a state directory and with one; none fails,
// and Envoy loses nothing.
func TestVersionsTakeOverFromOneAnother(t *testing.T) {
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprintf("with state %v", kept), func(t *testing.T) {
			bothWays(t, func(t *testing.T, from, to edition) {
				form := xdstest.Delta
				var flags []string
				if kept {
					form = xdstest.SotW
				}
				w := newWorld(t, form, form)
				if kept {
					flags = []string{"--state-dir", w.path("state")}
				}
				w.program = from.program
				w.start(flags...)
				w.runs(from)
				traffic := testbed.StartTraffic(w.url, requestInterval)
				w.agentArgs = append(slices.Clone(w.agentArgs), "--takeover")
				for i, e := range []edition{to, from, to} {
					w.agentArgs = slices.Clone(w.agentArgs)
					w.agentArgs[0] = e.program
					w.runNextAgent()
					w.runs(e)
					text := []string{"v2", "v1"}[i%2]
					w.setRoute(text)
					w.serves(text)
				}
				w.check(traffic.Stop())
				w.neverRemoved()
				w.neverWaited()
			})
		})
	}
}

// Commands of one version do at an agent of the other what they do at one of their own.
func TestCommandsOfOneVersionWorkAtAnAgentOfTheOther(t *testing.T) {
	bothWays(t, func(t *testing.T, agent, commands edition) {
		w := newWorld(t, xdstest.Delta, xdstest.Delta)
		w.program = agent.program
		w.start("--state-dir", w.path("state"), "--drain-min", "0s")
		w.runs(agent)
		before := time.Now().UTC().Format(time.RFC3339Nano)
		w.setRoute("v2")
		w.serves("v2")
		w.saved()
		for _, step := range []struct {
			args string
			code int
			want []string
		}{
			{"version", 0, []string{commands.version}},
			{"wait --timeout 5s", 0, nil},
			{"status", 0, []string{"holdfast " + agent.version, `Node "e2e"`, w.cpAddr, "RDS ", "Last known good in"}},
			{"status -o json", 0, []string{`"version": "` + agent.version + `"`, `"groups"`}},
			{"explain " + strings.TrimPrefix(w.url, "http://"), 0, []string{"→ the request goes to the cluster c2"}},
			{"explain RDS/ingress", 0, []string{"RDS/ingress", "CDS/c2"}},
			{"events", 0, []string{"control plane connected"}},
			{"events --type RDS -o json", 0, []string{`"ingress"`}},
			{"history RDS/ingress", 0, []string{"before 20", "now"}},
			{"diff RDS/ingress", 0, []string{"-          cluster: c1", "+          cluster: c2"}},
			{"diff --since " + before, 0, []string{"cluster: c2"}},
			{"dump --type RDS", 0, []string{`"cluster": "c2"`}},
			{"dump -o table", 0, []string{"ingress", "c2-endpoints"}},
			{"rehearse", 0, []string{"control plane"}},
			{"rehearse --live 1s", 0, []string{"Cut off from the control plane"}},
			{"loglevel info", 0, []string{"info"}},
			{"freeze --reason 4711", 0, []string{"frozen since 20", "4711"}},
			{"resume", 0, nil},
			{"rollback --to " + before, 0, nil},
			{"status", 0, []string{"rolled back"}},
			{"resume", 0, nil},
			{"resume", 1, []string{"nothing is ", "frozen", "held back"}},
			{"export --seed " + w.path("web.seed"), 0, []string{"RDS: 1"}},
			{"drain", 0, nil},
			{"undrain", 0, nil},
		} {
			code, out := runProgram(t, commands.program, nil, append(strings.Fields(step.args), adminOf(w, step.args)...)...)
			missing := slices.DeleteFunc(slices.Clone(step.want), func(text string) bool { return strings.Contains(out, text) })
			if code != step.code || len(missing) > 0 {
				t.Errorf("holdfast %s exits with %d, want %d, and lacks %q:\n%s", step.args, code, step.code, missing, out)
			}
		}
		w.serves("v2")
	})
}

// adminOf is the flag of the agent, for commands that have it.
func adminOf(w *world, command string) []string {
	if command == "version" {
		return nil
	}
	return []string{"--admin", "unix:" + w.path("admin.sock")}
}

// A seed that one version wrote is served by the other to a pod that is new, while the control plane is away: one that an
// agent publishes, and one that was exported.
func TestASeedIsReadByTheVersionsBesideIt(t *testing.T) {
	bothWays(t, func(t *testing.T, from, to edition) {
		w := newWorld(t, xdstest.Delta, xdstest.Delta)
		private, public := w.seedKeys()
		published, exported := w.path("published.seed"), w.path("exported.seed")
		w.program = from.program
		w.start("--state-dir", w.path("state"), "--seed-publish", published, "--seed-publish-every", "1s", "--seed-key", private)
		w.published(published)
		w.says([]string{"dump", "--type", "RDS"}, `"accepted"`)
		if code, out := runProgram(t, from.program, nil, "export", "--seed", exported, "--seed-key", private, "--admin", "unix:"+w.path("admin.sock")); code != 0 || !strings.Contains(out, "RDS: 1") {
			t.Fatalf("exit code %d:\n%s", code, out)
		}
		w.cp.Stop()
		w.program = to.program
		for _, file := range []string{published, exported} {
			w.newPod("pod-"+filepath.Base(file), "--seed", file, "--seed-trust", public)
			w.runs(to)
			w.serves("v1")
			w.neverWaited()
			if s := w.seed(); s == nil || !s.Used || s.Role != "e2e" || s.Resources != 6 {
				t.Errorf("the status says of the seed %+v", s)
			}
		}
		w.setRoute("v2")
		w.restartControlPlane()
		w.serves("v2")
	})
}

// An agent does not take the state of a later format for damage, nor overwrites it: it says that a later version wrote it, sets it aside and
// serves nothing of it. Under its old name the version that reads the format serves it again.
func TestAStateOfALaterFormatIsSetAside(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start("--state-dir", w.path("state"))
	w.setRoute("v2")
	w.serves("v2")
	w.saved()
	w.agent.Kill()
	w.cp.Stop()
	state := w.files("*.log")
	if len(state) != 1 {
		t.Fatalf("there are %q", state)
	}
	const format = len("HOLDFAST") // where the header says it, see agent/store/FORMAT.md
	written, err := os.ReadFile(state[0])
	w.check(err)
	later := slices.Clone(written)
	later[format]++
	w.check(os.WriteFile(state[0], later, 0o600))

	w.runAgent()
	aside := state[0] + ".future"
	want := fmt.Sprintf("written by a later version of holdfast: its format is %d, this one reads %d", later[format], written[format])
	w.check(w.agent.Wait(limit, func() error {
		if !strings.Contains(w.log(), want) {
			return fmt.Errorf("the agent does not say %q", want)
		}
		_, err := os.Stat(aside)
		return err
	}))
	c := w.scripted()
	c.Subscribe(xds.RouteType, "ingress")
	time.Sleep(time.Second) // nothing can be shown to come but by waiting
	if n := len(c.Names(xds.RouteType)); n > 0 {
		t.Error("the agent serves something of a state that it cannot read")
	}
	c.Disconnect()
	w.agent.Kill()
	for _, name := range w.files("*.log") {
		w.check(os.Remove(name))
	}
	if kept, err := os.ReadFile(aside); err != nil || !slices.Equal(kept, later) {
		t.Errorf("the state was not kept as it was: %v, %d bytes of %d", err, len(kept), len(later))
	}
	w.check(os.WriteFile(state[0], written, 0o600))
	w.runAgent()
	w.envoy.Kill()
	w.envoy = w.startEnvoy()
	w.serves("v2")
}
