package mesh

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// bootstrapPatches are EnvoyFilters for bootstraps: one of the mesh, and one of a namespace with a patch that every Envoy
// takes, one that changes who Envoy is, and one that only Envoy knows to be wrong.
const bootstrapPatches = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: tags, namespace: istio-system}
spec:
  configPatches:
  - applyTo: BOOTSTRAP
    patch: {operation: MERGE, value: {stats_config: {stats_tags: [{tag_name: mesh, fixed_value: one}]}}}
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: shop, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  configPatches:
  - applyTo: BOOTSTRAP
    patch: {operation: MERGE, value: {static_resources: {clusters: [{name: collector, type: STATIC, connect_timeout: 1s}]}}}
  - applyTo: BOOTSTRAP
    patch: {operation: MERGE, value: {node: {id: somebody-else}}}
  - applyTo: BOOTSTRAP
    patch: {operation: MERGE, value: {layered_runtime: {layers: [{name: broken, admin_layer: {}}]}}}
`

// startOwn starts an agent that writes the bootstrap of its Envoy and runs it.
func (w *world) startOwn(flags ...string) *testbed.Process {
	w.Helper()
	file, admin := w.own("envoy.yaml"), w.freeAddr()
	line := append([]string{binary(w, "holdfast"), "run", "--upstream", w.xds, "--upstream-plaintext", "--socket", w.own("xds.sock"), "--admin", "unix:" + w.own("admin.sock"),
		"--health", "", "--write-bootstrap", "--out", file, "--envoy-admin", admin, "--node-id", w.of.id, "--node-cluster", "e2e", "--node-metadata", "NAMESPACE=shop",
		"--node-metadata", "LABELS:=" + w.of.labels, "--node-metadata", "INTERCEPTION_MODE=NONE", "--drain-timeout", "0s", "--drain-min", "0s", "--start-after", "1s"}, flags...)
	p, err := testbed.Start("agent", w.own("agent.log"), append(line, "--", envoytest.Binary(w), "-c", file, "--disable-hot-restart")...)
	w.check(err)
	w.ends(p)
	w.envoy = &testbed.Envoy{Process: p, Admin: admin}
	return p
}

// bootstrapHas waits until the bootstrap with which Envoy runs has some texts, and checks that it lacks others.
func (w *world) bootstrapHas(want, lacks []string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		dump, err := w.envoy.ConfigDump("?mask=bootstrap")
		if err != nil {
			return err
		}
		for _, text := range want {
			if !strings.Contains(dump, text) {
				return fmt.Errorf("the bootstrap has no %s:\n%s", text, dump)
			}
		}
		for _, text := range lacks {
			if strings.Contains(dump, text) {
				w.Fatalf("the bootstrap has %s:\n%s", text, dump)
			}
		}
		return nil
	}))
}

// A BOOTSTRAP patch reaches the bootstrap of a real Envoy. One that is wrong is left out alone, and told on both sides. What
// was got last holds while the control plane is away.
func TestPatchesOfTheBootstrapReachEnvoy(t *testing.T) {
	w := newWorld(t)
	w.write("patches", bootstrapPatches)
	w.startMesh()
	agent := w.startOwn("--upstream-overlay", "try")
	taken, left := []string{`"mesh"`, `"one"`, `"collector"`, `"id": "client-1"`}, []string{`"broken"`, "somebody-else"}
	w.bootstrapHas(taken, left)
	w.answers(w.request(), "200 v1")
	for name, p := range map[string]*testbed.Process{"agent": agent, "control plane": w.mesh} {
		log := p.Tail(200)
		for _, want := range []string{
			"EnvoyFilter shop/shop spec.configPatches[1] is left out: it changes the node",
			"EnvoyFilter shop/shop spec.configPatches[2] is left out",
		} {
			if !strings.Contains(log, want) {
				t.Errorf("the log of the %s does not say: %s\n%s", name, want, log)
			}
		}
	}
	w.check(agent.Stop(limit))

	// Another proxy gets the patches of the mesh only, and one that does not ask gets none.
	other := w.beside("other-1", "sidecar", `{"app":"other"}`)
	p := other.startOwn("--upstream-overlay", "require")
	other.bootstrapHas([]string{`"one"`}, []string{`"collector"`})
	w.check(p.Stop(limit))
	p = other.startOwn()
	other.bootstrapHas([]string{`"other-1"`}, []string{`"one"`})
	w.check(p.Stop(limit))

	w.check(w.mesh.Stop(limit))
	agent = w.startOwn("--upstream-overlay", "require", "--upstream-overlay-timeout", "1s")
	w.bootstrapHas(taken, left)
	w.check(agent.Says(limit, "those of the last time are used"))
	w.check(agent.Stop(limit))

	w.check(errors.Join(os.RemoveAll(w.own("envoy.yaml.upstream-overlay")), os.RemoveAll(w.own("envoy.yaml.upstream-overlay.trial"))))
	agent = w.startOwn("--upstream-overlay", "require", "--upstream-overlay-timeout", "1s")
	select {
	case <-agent.Exited():
	case <-time.After(limit):
		t.Fatal("the agent goes on without the control plane and what it said last")
	}
	if log := agent.Tail(2); !strings.Contains(log, "no control plane has answered within 1s") {
		t.Errorf("without the control plane and what it said last, the log ends with\n%s", log)
	}
	agent = w.startOwn("--upstream-overlay", "try", "--upstream-overlay-timeout", "1s")
	w.bootstrapHas([]string{`"client-1"`}, []string{`"collector"`})
	w.check(agent.Stop(limit))

	// When there are no patches any more, the last ones are forgotten: none are known.
	w.remove("patches")
	w.startMesh()
	agent = w.startOwn("--upstream-overlay", "try")
	w.bootstrapHas([]string{`"client-1"`}, []string{`"collector"`})
	w.check(agent.Stop(limit))
	w.check(w.mesh.Stop(limit))
	agent = w.startOwn("--upstream-overlay", "require", "--upstream-overlay-timeout", "1s")
	w.bootstrapHas([]string{`"client-1"`}, []string{`"collector"`})
	w.check(agent.Says(limit, "those of the last time are used")) // also that there is nothing to change
}

// An init container asks, too: without Envoy, and of two control planes the one that is there.
func TestAnInitContainerAsksForPatchesOfTheBootstrap(t *testing.T) {
	w := newWorld(t)
	w.write("patches", bootstrapPatches)
	w.startMesh()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never says a word
	w.check(err)
	defer func() { _ = silent.Close() }()
	cmd := exec.Command(binary(w, "holdfast"), "bootstrap", "--print", "--node-id", "client-1", "--node-cluster", "e2e", "--node-metadata", "NAMESPACE=shop",
		"--node-metadata", `LABELS:={"app": "client"}`, "--upstream", silent.Addr().String(), "--upstream", w.xds, "--upstream-plaintext",
		"--upstream-overlay", "require", "--upstream-overlay-timeout", "12s", "--envoy-binary", envoytest.Binary(w))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `name: "collector"`) || !strings.Contains(string(out), "configPatches[2] is left out") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Envoy's own check accepts a listener on an address that this machine does not have, and Envoy dies of it. After three deaths
// the bootstrap is that of before, also at the next start, and until the patches change.
func TestPatchesOfWhichEnvoyDiesAreWithdrawn(t *testing.T) {
	const deadly = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: deadly, namespace: shop}
spec:
  configPatches:
  - applyTo: BOOTSTRAP
    patch: {operation: MERGE, value: {static_resources: {listeners: [{name: deadly, address: {socket_address: {address: 192.0.2.1, port_value: 7}}, filter_chains: [{}]}]}}}
`
	w := newWorld(t)
	w.write("patches", bootstrapPatches)
	w.startMesh()
	agent := w.startOwn("--upstream-overlay", "try")
	w.bootstrapHas([]string{`"collector"`}, nil)
	w.check(agent.Wait(limit, func() error {
		_, err := os.Stat(w.own("envoy.yaml.upstream-overlay")) // an Envoy was live with them
		return err
	}))
	w.check(agent.Stop(limit))

	w.write("deadly", deadly)
	w.check(w.mesh.Wait(limit, func() error {
		_, out, _ := run(t, "get", "envoyfilter", "--admin", w.admin)
		if !strings.Contains(out, "deadly") {
			return fmt.Errorf("the document is not loaded: %s", out)
		}
		return nil
	}))
	for _, says := range []string{"Envoy crashed 3 times with the changes by the control plane", "Envoy crashed with these changes by the control plane before it was live, at an earlier start"} {
		agent = w.startOwn("--upstream-overlay", "try")
		w.bootstrapHas([]string{`"collector"`}, []string{`"deadly"`})
		w.answers(w.request(), "200 v1")
		w.check(agent.Says(limit, says))
		w.check(agent.Stop(limit))
	}

	w.write("deadly", strings.Replace(deadly, "192.0.2.1, port_value: 7", fmt.Sprintf("127.0.0.1, port_value: %d", w.freePort()), 1))
	w.check(w.mesh.Wait(limit, func() error {
		_, out, _ := run(t, "get", "envoyfilter", "--admin", w.admin, "-o", "yaml")
		if strings.Contains(out, "192.0.2.1") {
			return fmt.Errorf("the document has not changed: %s", out)
		}
		return nil
	}))
	agent = w.startOwn("--upstream-overlay", "try")
	w.bootstrapHas([]string{`"collector"`, `"deadly"`}, nil)
	w.check(agent.Stop(limit))
}
