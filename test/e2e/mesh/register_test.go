package mesh

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/register"
	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

// workloadGroup is a WorkloadGroup of the namespace shop, and a service of which its workloads are endpoints.
const workloadGroup = `apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: machines, namespace: shop}
spec:
  metadata: {labels: {app: machines}}
  template: {serviceAccount: machine, ports: {http: %[1]s}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: machines, namespace: shop}
spec:
  hosts: [machines.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %[2]d, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: machines}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: machines, namespace: shop}
spec: {host: machines.internal, trafficPolicy: {tls: {mode: DISABLE}}}
`

// A machine whose agent connects with the account of the group takes requests without a document of its own, and none any
// more when it has been gone for the time of grace. One with another account takes none.
func TestAMachineRegistersItself(t *testing.T) {
	w := newWorld(t)
	w.through = true
	issuer, err := tokens.New()
	w.check(err)
	w.check(os.WriteFile(w.path("keys.json"), issuer.Keys, 0o600))
	flags := func(account string) []string {
		t.Helper()
		text, err := issuer.Token("shop", account)
		w.check(err)
		w.check(os.WriteFile(w.path("token-"+account), text, 0o600))
		return []string{"--upstream", w.xds, "--upstream-ca", w.path("ca/root-cert.pem"), "--upstream-token-file", w.path("token-" + account)}
	}
	_, backendPort, err := net.SplitHostPort(w.v1.Addr)
	w.check(err)
	port := w.freePort()
	w.write("group", fmt.Sprintf(workloadGroup, backendPort, port))
	w.args = append(w.args, "--listen", "", "--tls-listen", w.xds, "--state-dir", w.path("state"), "--ca", "dev:"+w.path("ca"), "--token-issuer", issuer.URL, "--token-keys", issuer.URL+"="+w.path("keys.json"))
	w.startMesh()
	w.startAgentWith(flags("client")...)
	w.startEnvoy()
	w.answers(w.request(), "200 v1")
	machines := w.requestTo("machines.internal", port)
	w.answers(machines, "503 no healthy upstream")

	metadata := []string{"AUTO_REGISTER_GROUP=machines", "INSTANCE_IPS=127.0.0.1"}
	thief := w.beside("machine-2", "sidecar", "{}")
	thief.of.metadata = metadata
	thief.startAgentWith(flags("thief")...)
	thief.startEnvoy()
	thief.connected()
	w.answers(machines, "503 no healthy upstream")

	machine := w.beside("machine-1", "sidecar", `{"rack":"r1"}`)
	machine.of.metadata = metadata
	machine.startAgentWith(flags("machine")...)
	machine.startEnvoy()
	w.answers(machines, "200 v1")

	// The same documents would change nothing: diff knows the machine, too.
	if code, out, problems := run(t, "diff", "--admin", w.admin, w.path("documents")); code != 0 || !strings.Contains(out, "client-1: nothing changes") {
		t.Errorf("diff: %d %s %s", code, out, problems)
	}

	// It stays while its agent is away for a short time, also when holdfast-mesh restarts meanwhile.
	machine.envoy.Kill()
	w.check(machine.agent.Stop(limit))
	w.check(w.mesh.Stop(limit))
	w.startMesh()
	began := time.Now()
	w.connected()
	for range 30 {
		if status, body, err := machines.Get(); err != nil || status != 200 {
			t.Fatalf("after a restart: %d %s %v", status, body, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	machine.startAgentWith(flags("machine")...)
	machine.mesh = w.mesh
	machine.startEnvoy()
	machine.connected()
	time.Sleep(time.Until(began.Add(register.Grace + 2*time.Second)))
	w.answers(machines, "200 v1")

	machine.envoy.Kill()
	w.check(machine.agent.Stop(limit))
	w.answers(machines, "503 no healthy upstream")
}

// connected waits until the proxy is connected.
func (w *world) connected() {
	w.Helper()
	w.check(w.mesh.Wait(limit, func() error {
		for _, p := range w.status().Proxies {
			if p.Node == w.of.id {
				return nil
			}
		}
		return fmt.Errorf("%s is not connected", w.of.id)
	}))
}
