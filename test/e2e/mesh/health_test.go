package mesh

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/mesh/register"
	"github.com/holdfast-xds/holdfast/test/testbed"
	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

// machine is a workload that registers, with its application, agent and Envoy.
type machine struct {
	*world
	sick atomic.Bool // what /healthz of the application says; it serves requests all the same
}

// startMachine starts an application at an address that answers with a text, and a proxy that registers it with the group
// machines. probe returns the further flags of its agent, and metadata of its node, for the URL of its health.
func (w *world) startMachine(text, address string, port int, account []string, probe func(url string) (flags, metadata []string)) *machine {
	w.Helper()
	m := &machine{world: w.beside(text, "sidecar", `{"rack":"machine"}`)}
	lis, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(port)))
	w.check(err)
	app := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" && m.sick.Load() {
			out.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(out, text)
	})}
	go func() { _ = app.Serve(lis) }()
	w.Cleanup(func() { _ = app.Close() })
	flags, metadata := probe("http://" + lis.Addr().String() + "/healthz")
	m.of.metadata = append([]string{"AUTO_REGISTER_GROUP=machines", "INSTANCE_IPS=" + address}, metadata...)
	file, admin := m.bootstrap()
	m.startAgentWith(append(append([]string{"--bootstrap", file}, account...), flags...)...)
	m.startEnvoyOn(file, admin)
	return m
}

// health waits until holdfast-mesh says this of the health of a machine: "UNHEALTHY the answer has the status 503".
func (m *machine) health(want string) {
	m.Helper()
	m.check(m.mesh.Wait(limit, func() error {
		got := "not connected"
		for _, p := range m.status().Proxies {
			if p.Node == m.of.id && p.Workload != nil {
				got = strings.TrimSpace(p.Workload.Health + " " + p.Workload.Message)
			}
		}
		if got != want {
			return fmt.Errorf("%s is %q, want %q", m.of.id, got, want)
		}
		return nil
	}))
}

// answeredBy waits until the last requests were answered by these machines, and no other one.
func (w *world) answeredBy(r testbed.Request, want ...string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		seen := make(map[string]bool)
		for range 20 {
			status, body, err := r.Get()
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("%d %s %w", status, body, err)
			}
			seen[body] = true
		}
		for _, name := range want {
			if !seen[name] {
				return fmt.Errorf("answers of %v, want %v", seen, want)
			}
		}
		if len(seen) != len(want) {
			return fmt.Errorf("answers of %v, want %v", seen, want)
		}
		return nil
	}))
}

// Requests go to the machines whose agents report them as healthy, and to no other: one with flags, one with the
// readinessProbe of Istio's ProxyConfig.
func TestRequestsGoToHealthyMachines(t *testing.T) {
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			w := newWorld(t)
			w.form, w.through = form, true
			issuer, err := tokens.New()
			w.check(err)
			w.check(os.WriteFile(w.path("keys.json"), issuer.Keys, 0o600))
			account := func(name string) []string {
				t.Helper()
				text, err := issuer.Token("shop", name)
				w.check(err)
				w.check(os.WriteFile(w.path("token-"+name), text, 0o600))
				return []string{"--upstream", w.xds, "--upstream-ca", w.path("ca/root-cert.pem"), "--upstream-token-file", w.path("token-" + name)}
			}
			port, inbound := w.freePort(), w.freePort()
			group := strings.Replace(fmt.Sprintf(workloadGroup, fmt.Sprint(inbound), port), "spec:\n  metadata", "spec:\n  probe: {httpGet: {path: /healthz, port: 1}}\n  metadata", 1)
			w.write("group", group)
			// The Envoys of machines must not listen for the service, too: they would take requests of the client, and end with them.
			w.write("sidecar", `{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: machines, namespace: shop}, spec: {workloadSelector: {labels: {rack: machine}}, egress: [{hosts: ["~/*"]}]}}`)
			w.args = append(w.args, "--listen", "", "--tls-listen", w.xds, "--state-dir", w.path("state"), "--ca", "dev:"+w.path("ca"), "--token-issuer", issuer.URL, "--token-keys", issuer.URL+"="+w.path("keys.json"))
			w.startMesh()
			w.startAgentWith(account("client")...)
			w.startEnvoy()
			machines := w.requestTo("machines.internal", port)
			w.answers(machines, "503 no healthy upstream")

			first := w.startMachine("machine-1", "127.0.0.1", inbound, account("machine"), func(url string) (flags, _ []string) {
				return []string{"--workload-probe", url, "--workload-probe-period", "1s", "--workload-probe-failures", "1"}, nil
			})
			first.health("HEALTHY")
			w.answeredBy(machines, "machine-1")
			second := w.startMachine("machine-2", "127.0.0.2", inbound, account("machine"), func(string) (flags, metadata []string) {
				probe := map[string]any{"readinessProbe": map[string]any{"periodSeconds": 1, "httpGet": map[string]any{"path": "/healthz", "port": inbound}}}
				text, err := json.Marshal(probe)
				w.check(err)
				return []string{"--istio", "--health", w.freeAddr()}, []string{"PROXY_CONFIG:=" + string(text)}
			})
			second.health("HEALTHY")
			w.answeredBy(machines, "machine-1", "machine-2")
			// One whose probe never succeeds gets no request.
			third := w.startMachine("machine-3", "127.0.0.3", inbound, account("machine"), func(string) (flags, _ []string) {
				return []string{"--workload-probe", "tcp://" + w.freeAddr(), "--workload-probe-period", "1s", "--workload-probe-failures", "1000"}, nil
			})
			third.health("UNKNOWN no report has come yet")
			w.answeredBy(machines, "machine-1", "machine-2")

			// One becomes unhealthy and healthy again. It serves meanwhile, as an application does that ends: nothing fails.
			tally := testbed.StartTally(machines, requestInterval, connections)
			for _, m := range []*machine{first, second} {
				other := map[*machine]*machine{first: second, second: first}[m]
				m.sick.Store(true)
				m.health("UNHEALTHY the answer has the status 503")
				w.answeredBy(machines, other.of.id)
				m.sick.Store(false)
				m.health("HEALTHY")
				w.answeredBy(machines, "machine-1", "machine-2")
			}
			w.checkDocuments(first)

			// holdfast-mesh restarts while the agent of one is away: what was healthy stays.
			second.envoy.Kill()
			w.check(second.agent.Stop(limit))
			w.check(w.mesh.Stop(limit))
			w.startMesh()
			began := time.Now()
			first.world.mesh, second.world.mesh = w.mesh, w.mesh
			w.connected()
			first.health("HEALTHY")
			for time.Since(began) < register.Grace/2 {
				w.answeredBy(machines, "machine-1", "machine-2")
			}
			w.check(tally.Stop())
			if status := readStatus(t, first); !strings.Contains(status, "/healthz: healthy for ") {
				t.Errorf("status of the agent:\n%s", status)
			}
			for _, m := range []*machine{first, second} { // their tallies are over
				m.sick.Store(true)
			}
			first.health("UNHEALTHY the answer has the status 503")
			w.answeredBy(machines, "machine-2") // whose agent is away: the last that is known
		})
	}
}

// checkDocuments checks what holdfast-mesh shows of a machine.
func (w *world) checkDocuments(m *machine) {
	w.Helper()
	code, out, problems := run(w.T, "get", "workloadentry", "shop/machines-127.0.0.1", "-o", "yaml", "--admin", w.admin)
	for _, want := range []string{"name: machines-127.0.0.1", "status: \"True\"", "type: Healthy", "lastTransitionTime:"} {
		if code != 0 || !strings.Contains(out, want) {
			w.Errorf("get: %d %s without %s:\n%s", code, problems, want, out)
		}
	}
	code, out, problems = run(w.T, "proxies", "--admin", w.admin)
	for _, want := range []string{"HEALTH", "HEALTHY", "UNKNOWN", "machine-3 HEALTH: shop/machines-127.0.0.3: no report has come yet"} {
		if code != 0 || !strings.Contains(out, want) {
			w.Errorf("proxies: %d %s without %s:\n%s", code, problems, want, out)
		}
	}
	if strings.Contains(out, "HealthInformation") {
		w.Errorf("reports are shown as a type:\n%s", out)
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "mesh.log"))
	w.check(err)
	if !strings.Contains(string(text), "a workload is unhealthy") {
		w.Errorf("the log does not say that %s was unhealthy", m.of.id)
	}
}

// readStatus returns what `holdfast status` says of a machine's agent.
func readStatus(t *testing.T, m *machine) string {
	t.Helper()
	out, err := exec.Command(binary(t, "holdfast"), "status", "--admin", "unix:"+m.own("admin.sock")).CombinedOutput()
	if err != nil {
		t.Errorf("status: %v\n%s", err, out)
	}
	return string(out)
}
