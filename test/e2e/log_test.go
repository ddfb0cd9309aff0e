package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// With a standard error that takes nothing, whatever the reason, an agent does all that it does otherwise, with Envoy as
// its child, too, says in its status that the log is lost, and ends when it is told to.
func TestALogThatTakesNothingStopsNothing(t *testing.T) {
	for _, kind := range []string{testbed.NobodyReads, testbed.ReaderGone, testbed.DiskFull} {
		for _, withChild := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, Envoy is a child %v", kind, withChild), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, xdstest.Delta, xdstest.Delta)
				sink := testbed.NewSink(t, kind)
				w.agentVia = sink.Via
				health := net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
				if withChild {
					file, adminAddr := w.bootstrap()
					w.startAgentOf([]string{"--bootstrap", file, "--drain-min", "0s", "--log-level", "debug", "--health", health},
						"--", envoytest.Binary(t), "-c", file, "-l", "debug")
					w.envoy = &testbed.Envoy{Process: w.agent, Admin: adminAddr}
				} else {
					w.startAgent("--health", health)
					w.envoy = w.startEnvoy()
				}
				sink.Started()
				w.serves("v1")
				for i := range 10 { // more than the pipe takes
					w.cp.Set(xdstest.Route("ingress", []string{"c1", "c2"}[(i+1)%2]))
					w.serves([]string{"v1", "v2"}[(i+1)%2])
				}
				if withChild {
					before := w.child().PID
					w.check(syscall.Kill(before, syscall.SIGKILL))
					w.alive(before)
				} else {
					w.envoy.Kill()
					w.envoy = w.startEnvoy()
				}
				w.serves("v1")
				w.check(w.agent.Wait(limit, func() error {
					s, err := w.status()
					if err != nil {
						return err
					}
					for _, p := range s.Found {
						if strings.HasPrefix(p.Text, "the log cannot be written to standard error, for ") {
							return nil
						}
					}
					return fmt.Errorf("the status does not say that the log is lost: %+v, %+v", s.Output, s.Found)
				}))
				code, text, err := testbed.Get("http://" + health + "/livez")
				if err != nil || code != http.StatusOK {
					t.Errorf("/livez: %d %s %v", code, text, err)
				}
				_, metrics, err := testbed.Get("http://" + health + "/metrics")
				w.check(err)
				if !strings.Contains(metrics, `holdfast_log_lines_dropped_total{from="holdfast"} `) {
					t.Error("the metrics do not count the lines that were lost")
				}
				if kind == testbed.NobodyReads { // who comes back reads what has waited, and what is new
					sink.Read()
					w.check(testbed.Eventually(limit, func() error { return sink.Has("client group created") }))
					w.check(w.agent.Wait(limit, func() error {
						if s, err := w.status(); err != nil || !s.Output.Stuck.IsZero() {
							return fmt.Errorf("the log is still lost: %+v %w", s.Output, err)
						}
						return nil
					}))
				}
			})
		}
	}
}

// So does the built-in control plane. An end with an error ends, too, with its code.
func TestOtherServicesOutliveTheirLog(t *testing.T) {
	for _, kind := range []string{testbed.NobodyReads, testbed.ReaderGone, testbed.DiskFull} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, xdstest.Delta, xdstest.Delta)
			sink := testbed.NewSink(t, kind)
			w.check(os.Mkdir(w.path("resources"), 0o700))
			set := func(file, text string) {
				w.check(os.WriteFile(w.path("new"), []byte(text), 0o600))
				w.check(os.Rename(w.path("new"), w.path("resources/"+file)))
			}
			cluster := func(name string) {
				set("clusters.yaml", "resources:\n- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: "+name+"\n")
			}
			cluster("c1")
			socket := w.path("cp.sock")
			args := append(sink.Via, holdfast(t), "controlplane", "--dir", w.path("resources"), "--listen", "unix:"+socket, "--log-level", "debug")
			cp, err := testbed.Start("controlplane", w.path("cp.log"), args...)
			w.check(err)
			t.Cleanup(cp.Kill)
			w.check(cp.Wait(limit, func() error { return testbed.Dial("unix", socket) }))
			sink.Started()
			w.cpAddr = "unix:" + socket
			w.startAgent()
			holds := func(name string) {
				w.check(testbed.Eventually(limit, func() error {
					if dump := w.does("dump", "--type", "CDS"); !strings.Contains(dump, name) {
						return fmt.Errorf("%s is not among %s", name, dump)
					}
					return nil
				}))
			}
			holds("c1")
			for i := range 40 { // each with a line in the log, which are more than the pipe takes
				set(fmt.Sprintf("broken-%d.yaml", i), "resources: [")
			}
			cluster("c2")
			holds("c2")
			w.check(cp.Stop(10 * time.Second))

			again, err := testbed.Start("controlplane", w.path("cp.log"), append(testbed.NewSink(t, testbed.DiskFull).Via,
				holdfast(t), "controlplane", "--dir", w.path("resources"), "--listen", "192.0.2.1:18000")...)
			w.check(err)
			t.Cleanup(again.Kill)
			select {
			case <-again.Exited():
				if again.Err() == nil || again.Err().Error() != "exit status 1" {
					t.Errorf("ended with %v", again.Err())
				}
			case <-time.After(limit):
				t.Error("it does not end")
			}
		})
	}
}
