package e2e

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// limit bounds every wait for something that should happen at once or nearly so.
// It is long because the machine may be busy; nothing is measured with it.
const limit = 20 * time.Second

// T is a test or a benchmark.
type T = testing.TB

// world is a control plane in the test's process, and an agent and an Envoy in
// processes of their own.
type world struct {
	T
	above, below xdstest.Protocol
	dir          string
	cp           *xdstest.ControlPlane
	cpAddr       string
	agent        *testbed.Process
	envoy        *testbed.Envoy
	agentArgs    []string
	// program, unless empty, is run as the agent in place of the holdfast under test.
	program string
	// agentVia, if any, is a command that runs the agent.
	agentVia []string
	// edit, unless nil, changes the bootstrap that holdfast wrote before Envoy
	// gets it.
	edit func(*bootstrapv3.Bootstrap)
	// url leads through the listener "ingress", and so by the route "ingress" to
	// the cluster that it names.
	port int
	url  string
	// v1 and v2 answer "v1" and "v2".
	v1, v2 *testbed.Backend
}

// TestMain lets more tests run at once than there are processors: they wait more than they compute.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// inAllForms runs a test in the four combinations of SotW and Delta, at the same time.
func inAllForms(t *testing.T, test func(*world)) {
	t.Helper()
	for _, above := range xdstest.Protocols() {
		for _, below := range xdstest.Protocols() {
			t.Run(fmt.Sprintf("%s above, %s below", above, below), func(t *testing.T) {
				t.Parallel()
				test(newWorld(t, above, below))
			})
		}
	}
}

// newWorld starts a control plane with a mesh of two clusters, of which the route
// names the first; neither agent nor Envoy.
func newWorld(t T, above, below xdstest.Protocol) *world {
	t.Helper()
	w := &world{T: t, above: above, below: below}
	// Shorter than t.TempDir, whose path may be too long for a Unix socket.
	w.dir = w.must(os.MkdirTemp("", "holdfast-e2e-"))
	t.Cleanup(func() {
		if !t.Failed() || os.Getenv("HOLDFAST_E2E_KEEP") == "" {
			_ = os.RemoveAll(w.dir)
		}
	})
	w.v1, w.v2 = w.backend("v1"), w.backend("v2")
	w.port = w.freePort()
	w.url = fmt.Sprintf("http://127.0.0.1:%d/", w.port)
	w.cp = xdstest.New(xdstest.Config{})
	w.cpAddr = net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
	w.cp.Serve(w.listen())
	t.Cleanup(w.cp.Stop)
	w.cp.Set(w.mesh("c1")...)
	return w
}

// mesh is two clusters, of which the route names one.
func (w *world) mesh(cluster string) []proto.Message {
	return []proto.Message{
		xdstest.Cluster("c1", ""), xdstest.CLA("c1", w.v1.Addr),
		xdstest.Cluster("c2", "c2-endpoints"), xdstest.CLA("c2-endpoints", w.v2.Addr),
		xdstest.Listener("ingress", uint32(w.port), "ingress"), xdstest.Route("ingress", cluster),
	}
}

func (w *world) must(s string, err error) string {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
	return s
}

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) backend(text string) *testbed.Backend {
	w.Helper()
	b, err := testbed.StartBackend("127.0.0.1:0", text)
	w.check(err)
	w.Cleanup(b.Stop)
	return b
}

func (w *world) freePort() int {
	w.Helper()
	port, err := testbed.FreePort()
	w.check(err)
	return port
}

// restartControlPlane ends the control plane and lets it listen again, as one
// that kept its state.
func (w *world) restartControlPlane() {
	w.Helper()
	w.cp.Serve(w.listen())
}

// listen listens on the address of the control plane.
func (w *world) listen() net.Listener {
	w.Helper()
	lis, err := testbed.Listen(w.cpAddr, limit)
	w.check(err)
	return lis
}

// holdfast returns the binary under test.
func holdfast(t T) string {
	t.Helper()
	path := os.Getenv("HOLDFAST_BIN")
	if path == "" {
		path = filepath.Join(envoytest.Root(t), "bin", "holdfast")
	}
	if _, err := exec.LookPath(path); err != nil {
		t.Fatalf("this test needs the holdfast binary (%v): run `make build`", err)
	}
	return path
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// startAgent starts holdfast; extra flags may follow.
func (w *world) startAgent(extra ...string) {
	w.Helper()
	w.agentArgs = append([]string{cmp.Or(w.program, holdfast(w.T)), "run",
		"--upstream", w.cpAddr, "--upstream-plaintext", "--upstream-protocol", string(w.above),
		"--socket", w.path("xds.sock"), "--admin", "unix:" + w.path("admin.sock"), "--health", "",
		"--node-id", "e2e", "--node-cluster", "e2e", "--log-level", "debug"}, extra...)
	w.runAgent()
}

// runAgent starts holdfast with the flags it had before.
func (w *world) runAgent() {
	w.Helper()
	p, err := testbed.Start("holdfast", w.path("agent.log"), append(slices.Clone(w.agentVia), w.agentArgs...)...)
	w.check(err)
	w.agent = p
	w.Cleanup(func() {
		select {
		case <-p.Exited():
		default:
			if err := p.Stop(10 * time.Second); err != nil {
				w.Errorf("holdfast at SIGTERM: %v\n%s", err, p.Tail(20))
			}
		}
		if w.Failed() {
			w.Logf("end of the agent's log:\n%s", p.Tail(60))
		}
	})
	// The admin socket is listened on a moment after the first.
	w.check(p.Wait(limit, func() error {
		return errors.Join(testbed.Dial("unix", w.path("xds.sock")), testbed.Dial("unix", w.path("admin.sock")))
	}))
}

// startEnvoy writes a bootstrap with `holdfast bootstrap` and starts an Envoy on
// it. It does not wait for it to be ready.
func (w *world) startEnvoy() *testbed.Envoy {
	w.Helper()
	return w.runEnvoy(w.bootstrap())
}

// bootstrap writes a bootstrap, and returns its file and the admin address in it.
func (w *world) bootstrap() (file, admin string) {
	w.Helper()
	admin = net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
	file = w.path("bootstrap-" + strconv.Itoa(w.freePort()) + ".json")
	out, err := exec.Command(holdfast(w.T), "bootstrap", "--out", file, "--node-id", "e2e", "--node-cluster", "e2e",
		"--socket", w.path("xds.sock"), "--xds-protocol", string(w.below), "--envoy-admin", admin).CombinedOutput()
	if err != nil {
		w.Fatalf("holdfast bootstrap: %v\n%s", err, out)
	}
	if w.edit != nil {
		w.editFile(file)
	}
	return file, admin
}

func (w *world) editFile(bootstrap string) {
	w.Helper()
	b, err := os.ReadFile(bootstrap)
	w.check(err)
	var config bootstrapv3.Bootstrap
	w.check(protojson.Unmarshal(b, &config))
	w.edit(&config)
	b, err = protojson.Marshal(&config)
	w.check(err)
	w.check(os.WriteFile(bootstrap, b, 0o600))
}

func (w *world) runEnvoy(bootstrap, admin string) *testbed.Envoy {
	w.Helper()
	e, err := testbed.StartEnvoy(envoytest.Binary(w.T), bootstrap, admin, bootstrap+".log")
	w.check(err)
	return w.keep(e)
}

// keep ends an Envoy with the test.
func (w *world) keep(e *testbed.Envoy) *testbed.Envoy {
	w.Cleanup(func() {
		e.Kill()
		if w.Failed() {
			w.Logf("end of Envoy's log:\n%s", e.Tail(60))
		}
	})
	return e
}

// start starts agent and Envoy and waits until the mesh is served.
func (w *world) start(extra ...string) {
	w.Helper()
	w.startAgent(extra...)
	w.envoy = w.startEnvoy()
	w.serves("v1")
}

// serves waits until a request is answered with 200 and a text.
func (w *world) serves(text string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		status, body, err := testbed.Get(w.url)
		if err == nil && (status != http.StatusOK || body != text) {
			err = fmt.Errorf("%s answers %d %q, want 200 %q", w.url, status, body, text)
		}
		return err
	}))
}

// endures takes a mesh, whose Envoy runs and of which the control plane has the
// state "v1", through what holdfast is for: a change, an agent that is killed
// under traffic, a control plane that is away while Envoy restarts. set puts the
// state "v1" or "v2" into the control plane, and shows waits until Envoy has it.
func (w *world) endures(set, shows func(text string)) {
	w.Helper()
	shows("v1")
	traffic := testbed.StartTraffic(w.url, requestInterval)
	set("v2")
	shows("v2")
	accepted := w.counts()["accepted"]
	w.agent.Kill()
	w.runAgent()
	set("v1")
	shows("v1")
	// Streams of Envoy that are one for each resource come back one after the other, and until then the agent knows nothing of theirs.
	w.standings("the new agent has what the former one had", func(counts map[string]int) bool { return counts["accepted"] >= accepted })
	w.check(traffic.Stop())
	w.neverWaited()
	w.cp.Stop()
	w.envoy.Kill()
	w.envoy = w.startEnvoy()
	shows("v1")
	w.neverWaited()
	set("v2")
	w.restartControlPlane()
	shows("v2")
	w.stat("cluster_manager.warming_clusters", 0)
	w.stat("listener_manager.total_listeners_warming", 0)
}

// neverWaited fails if Envoy gave up waiting for a first answer.
func (w *world) neverWaited() {
	w.Helper()
	_, stats, err := testbed.Get("http://" + w.envoy.Admin + "/stats?usedonly&filter=init_fetch_timeout$")
	w.check(err)
	for line := range strings.Lines(stats) {
		if !strings.HasSuffix(strings.TrimSpace(line), ": 0") {
			w.Errorf("Envoy gave up waiting: %s", line)
		}
	}
}

// stat waits until one of Envoy's stats has a value.
func (w *world) stat(name string, want int) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		got, err := w.envoy.Stat(name)
		if err == nil && got != want {
			err = fmt.Errorf("%s is %d, want %d", name, got, want)
		}
		return err
	}))
}

// value returns one of Envoy's stats as it is now.
func (w *world) value(name string) int {
	w.Helper()
	got, err := w.envoy.Stat(name)
	w.check(err)
	return got
}

// asked waits until the control plane was asked something.
func (w *world) asked(what string, matches func(xdstest.Event) bool) xdstest.Event {
	w.Helper()
	var found xdstest.Event
	w.check(testbed.Eventually(limit, func() error {
		for _, e := range w.cp.Events() {
			if matches(e) {
				found = e
				return nil
			}
		}
		return fmt.Errorf("the control plane was not told %s", what)
	}))
	return found
}

// answers waits until a request is answered with a status.
func (w *world) answers(url string, status int) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		got, body, err := testbed.Get(url)
		if err == nil && got != status {
			err = fmt.Errorf("%s answers %d %q, want %d", url, got, body, status)
		}
		return err
	}))
}
