package mesh

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// mesh.md M6: a document that is not valid, a file that is no YAML, and a directory that is gone change
// nothing.
func TestAnInvalidDocumentKeepsItsLastContentAndHarmsNoOther(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.synced()
		_, stop := w.load()
		before := w.updates()
		w.write("route", strings.Replace(w.route(0, 100), "weight: 100", "weight: -1", 1))
		w.problem("route.yaml:9: VirtualService shop/web: spec.http[0].route[1].weight: ")
		w.write("rule", "apiVersion: [")
		w.problem("rule.yaml:1: ")
		if u := w.changed(before, func(updates) bool { return true }); u != (updates{}) {
			w.Errorf("Envoy took in %+v", u)
		}
		w.answers(w.request(), "200 v1")
		w.check(os.Rename(w.path("documents"), w.path("elsewhere")))
		w.problem("the directory cannot be read")
		w.answers(w.request(), "200 v1")
		w.check(os.Rename(w.path("elsewhere"), w.path("documents")))
		// Another document is used meanwhile.
		port := w.freePort()
		w.write("other", w.entry("other.internal", port, w.v2))
		w.answers(w.requestTo("other.internal", port), "200 v2")
		w.check(w.mesh.Says(limit, "document not used", "spec.http[0].route[1].weight"))
		w.write("route", w.route(0, 100))
		w.write("rule", subsets("v1", "v2"))
		w.answers(w.request(), "200 v2")
		if problems := w.status().Problems; len(problems) > 0 {
			w.Errorf("the status names %q", problems)
		}
		stop()
	})
}

// mesh.md M10: the versions of resources are hashes of their content, the same after a restart. Each first
// request of a new stream is answered (protocol.md 3.2), and Envoy finds nothing new in the answers: in Delta
// those of CDS and LDS are empty. An Envoy behind an agent gets no answer at all.
func TestARestartSendsNothingAgain(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.synced()
		_, stop := w.load()
		before, modified := w.updates(), w.modified()
		w.mesh.Kill()
		w.startMesh()
		w.synced()
		// What changes afterwards arrives, so that what came before it has been counted.
		w.write("route", w.route(0, 100))
		w.answers(w.request(), "200 v2")
		got := w.changed(before, func(updates) bool { return true })
		want := updates{RDS: 1}
		if !w.through {
			want = updates{CDS: 1, EDS: 3, LDS: 1, RDS: 2} // the service has three clusters
		}
		if got != want {
			w.Errorf("Envoy took in %+v, want %+v", got, want)
		}
		if n := w.modified() - modified; n != 1 {
			w.Errorf("%d clusters, listeners and routes were modified, want the route alone", n)
		}
		stop()
	})
}

// modified returns how many clusters, listeners and routes Envoy replaced.
func (w *world) modified() int {
	w.Helper()
	return w.value("cluster_manager.cluster_modified") + w.value("listener_manager.listener_modified") +
		w.value(`http\..*\.config_reload`)
}

// A proxy that NACKs is named with Envoy's reason, until it ACKs.
func TestANACKIsShown(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.synced()
		_, stop := w.load()
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		w.check(err)
		w.Cleanup(func() { _ = taken.Close() })
		port := taken.Addr().(*net.TCPAddr).Port
		w.write("other", w.entry("other.internal", port, w.v2))
		named := func() error {
			code, out, stderr := run(w, "proxies", "--admin", w.admin)
			if code != 0 {
				return fmt.Errorf("exit code %d: %s", code, stderr)
			}
			for _, want := range []string{"NODE ", "client-1 ", " sidecar ", " shop ", " NACKED ", "\nclient-1 LDS: ", fmt.Sprintf("127.0.0.1_%d", port)} {
				if !strings.Contains(out, want) {
					return fmt.Errorf("proxies shows no %q:\n%s", want, out)
				}
			}
			return nil
		}
		w.check(w.mesh.Wait(limit, named))
		_, metrics, err := testbed.Get("http://" + w.admin + "/metrics")
		w.check(err)
		if !strings.Contains(metrics, `pilot_total_xds_rejects{type="LDS"} `) {
			w.Errorf("no metric counts the NACK:\n%s", metrics)
		}
		// Neither routes nor other listeners wait for it.
		w.write("third", w.entry("third.internal", w.freePort(), w.v2))
		w.write("route", w.route(0, 100))
		w.answers(w.request(), "200 v2")
		third := w.freePort()
		w.write("third", w.entry("third.internal", third, w.v1))
		w.answers(w.requestTo("third.internal", third), "200 v1")
		w.check(w.mesh.Wait(limit, func() error { // until the ACK of the other listener has come
			if err := w.answered("LDS"); err != nil {
				return err
			}
			return named()
		}))
		w.remove("other")
		w.synced()
		stop()
	})
}

// design.md I6: an agent that knows its node ACKs what it gets before its first Envoy comes. What that Envoy NACKs
// is shown nevertheless.
func TestANACKOfAnEnvoyThatComesAfterItsAgentIsShown(t *testing.T) {
	inAllForms(t, func(w *world) {
		if !w.through {
			return // there is no agent
		}
		w.startMesh()
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		w.check(err)
		w.Cleanup(func() { _ = taken.Close() })
		port := taken.Addr().(*net.TCPAddr).Port
		w.write("other", w.entry("other.internal", port, w.v2))
		file, admin := w.bootstrap()
		w.startAgentWith("--upstream", w.xds, "--upstream-plaintext", "--bootstrap", file)
		w.synced()
		w.startEnvoyOn(file, admin)
		w.check(w.mesh.Wait(limit, func() error {
			code, out, stderr := run(w, "proxies", "--admin", w.admin)
			if want := fmt.Sprintf("127.0.0.1_%d", port); code != 0 || !strings.Contains(out, " NACKED ") || !strings.Contains(out, want) {
				return fmt.Errorf("exit code %d, proxies shows no NACK about %s:\n%s%s", code, want, out, stderr)
			}
			return nil
		}))
		w.answers(w.request(), "200 v1")
		w.remove("other")
		w.synced()
	})
}
