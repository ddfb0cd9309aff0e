// Command demo tells what holdfast is for, in under a minute: a real Envoy gets
// its configuration through the agent, follows a change, and keeps serving while
// the control plane is dead, even through a restart of Envoy itself, and of the agent
// with it.
//
// It runs bin/holdfast and the Envoy that the environment variable ENVOY names,
// on free ports of loopback and in a temporary directory; `make demo` prepares
// both. It exits with 1 at the first step that does not hold, and leaves nothing
// behind either way.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// limit is the longest that a step may take.
const limit = 20 * time.Second

func main() {
	d := &demo{begun: time.Now()}
	err := d.run()
	d.clean()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: this step does not hold: %v\n", err)
		os.Exit(1)
	}
	fmt.Printf("\nEverything held, in %s. No request failed.\n", time.Since(d.begun).Round(100*time.Millisecond))
}

// demo is the stage: what runs, and what must be put away.
type demo struct {
	begun    time.Time
	dir      string
	holdfast string
	envoyBin string
	step     int
	cleanup  []func()

	ports map[string]int // by the port that stands in examples/
	url   string
	cp    *testbed.Process
	agent *testbed.Process
	envoy *testbed.Envoy
}

func (d *demo) clean() {
	for i := len(d.cleanup) - 1; i >= 0; i-- {
		d.cleanup[i]()
	}
}

// say prints a step; its time follows when it holds.
func (d *demo) say(format string, args ...any) {
	d.step++
	fmt.Printf("\n%d. %s\n", d.step, fmt.Sprintf(format, args...))
}

// held prints what was seen, and how long it took.
func held(since time.Time, format string, args ...any) {
	took := time.Since(since)
	round := time.Millisecond
	if took < 10*time.Millisecond {
		round = 100 * time.Microsecond
	}
	fmt.Printf("   %-62s %8s\n", fmt.Sprintf(format, args...), took.Round(round))
}

func (d *demo) run() error {
	for _, step := range []func() error{
		d.prepare, d.startControlPlane, d.startAgent, d.startEnvoy, d.changeRoute,
		d.killControlPlane, d.restartEnvoy, d.restartBoth, d.controlPlaneReturns,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// prepare copies the example mesh, with free ports, and starts its backends.
func (d *demo) prepare() error {
	var err error
	if d.holdfast, err = filepath.Abs("bin/holdfast"); err != nil {
		return err
	}
	if _, err := os.Stat(d.holdfast); err != nil {
		return fmt.Errorf("%w: run `make demo`, which builds it", err)
	}
	if d.envoyBin = os.Getenv("ENVOY"); d.envoyBin == "" {
		return errors.New("the environment variable ENVOY names no Envoy: run `make demo`, which fetches one")
	}
	if d.dir, err = os.MkdirTemp("", "holdfast-demo-"); err != nil {
		return err
	}
	d.cleanup = append(d.cleanup, func() { _ = os.RemoveAll(d.dir) })
	fmt.Println("holdfast: an xDS agent beside Envoy that keeps it configured when the control plane is gone.")
	d.say("Two backends answer \"hello from v1\" and \"hello from v2\"; the mesh of examples/mesh leads to them.")
	begun := time.Now()
	d.ports = make(map[string]int)
	for _, port := range []string{"8081", "8082", "10000", "18000"} {
		if d.ports[port], err = testbed.FreePort(); err != nil {
			return err
		}
	}
	d.url = fmt.Sprintf("http://127.0.0.1:%d/", d.ports["10000"])
	for port, text := range map[string]string{"8081": "hello from v1", "8082": "hello from v2"} {
		b, err := testbed.StartBackend("127.0.0.1:"+strconv.Itoa(d.ports[port]), text)
		if err != nil {
			return err
		}
		d.cleanup = append(d.cleanup, b.Stop)
	}
	if err := os.Mkdir(d.mesh(), 0o700); err != nil {
		return err
	}
	for _, name := range []string{"clusters.yaml", "endpoints.yaml", "listeners.yaml", "routes.yaml"} {
		if err := d.copy(name, nil); err != nil {
			return err
		}
	}
	held(begun, "running")
	return nil
}

func (d *demo) mesh() string { return filepath.Join(d.dir, "mesh") }

// copy puts an example file into the control plane's directory, edited, by rename
// as an editor does.
func (d *demo) copy(name string, edit func(string) string) error {
	b, err := os.ReadFile(filepath.Join("examples", "mesh", name))
	if err != nil {
		return err
	}
	text := string(b)
	for port, free := range d.ports {
		text = strings.ReplaceAll(text, "port_value: "+port+" ", "port_value: "+strconv.Itoa(free)+" ")
	}
	if edit != nil {
		text = edit(text)
	}
	tmp := filepath.Join(d.dir, name)
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(d.mesh(), name))
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

// start runs a program until clean.
func (d *demo) start(name string, argv ...string) (*testbed.Process, error) {
	p, err := testbed.Start(name, d.path(name+".log"), argv...)
	if err == nil {
		d.cleanup = append(d.cleanup, p.Kill)
	}
	return p, err
}

func (d *demo) cpAddr() string { return "127.0.0.1:" + strconv.Itoa(d.ports["18000"]) }

func (d *demo) startControlPlane() error {
	d.say("The built-in control plane serves that directory over ADS.\n   holdfast controlplane --dir mesh --listen %s", d.cpAddr())
	return d.runControlPlane()
}

func (d *demo) runControlPlane() error {
	begun := time.Now()
	p, err := d.start("controlplane", d.holdfast, "controlplane", "--dir", d.mesh(), "--listen", d.cpAddr())
	if err != nil {
		return err
	}
	d.cp = p
	if err := p.Wait(limit, func() error { return d.accepts("tcp", d.cpAddr()) }); err != nil {
		return err
	}
	held(begun, "listening")
	return nil
}

func (d *demo) accepts(network, addr string) error { return testbed.Dial(network, addr) }

func (d *demo) startAgent() error {
	d.say("The agent, as it runs in every pod: one upstream, one Unix socket.\n   holdfast run --upstream %s --upstream-plaintext --socket xds.sock --bootstrap envoy.yaml --state-dir state", d.cpAddr())
	begun := time.Now()
	out, err := exec.Command(d.holdfast, "bootstrap", "--out", d.path("envoy.yaml"), "--node-id", "demo", "--node-cluster", "demo",
		"--socket", d.path("xds.sock"), "--envoy-admin", "unix:"+d.path("envoy-admin.sock")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("holdfast bootstrap: %w\n%s", err, out)
	}
	held(begun, "holdfast bootstrap wrote envoy.yaml")
	return d.runAgent()
}

func (d *demo) runAgent() error {
	begun := time.Now()
	var err error
	d.agent, err = d.start("agent", d.holdfast, "run", "--upstream", d.cpAddr(), "--upstream-plaintext",
		"--socket", d.path("xds.sock"), "--bootstrap", d.path("envoy.yaml"), "--state-dir", d.path("state"),
		"--admin", "unix:"+d.path("admin.sock"), "--health", "")
	if err != nil {
		return err
	}
	if err := d.agent.Wait(limit, func() error { return d.accepts("unix", d.path("xds.sock")) }); err != nil {
		return err
	}
	held(begun, "listening")
	return nil
}

func (d *demo) startEnvoy() error {
	d.say("A real Envoy starts on that bootstrap.\n   envoy -c envoy.yaml")
	return d.runEnvoy("v1")
}

func (d *demo) runEnvoy(version string) error {
	begun := time.Now()
	envoy, err := testbed.StartEnvoy(d.envoyBin, d.path("envoy.yaml"), "", d.path("envoy.log"))
	if err != nil {
		return err
	}
	d.envoy = envoy
	d.cleanup = append(d.cleanup, envoy.Kill)
	if err := d.answers(version); err != nil {
		return err
	}
	held(begun, "from the start of Envoy to its first answer: \"hello from %s\"", version)
	return d.requests(100, version)
}

// answers waits until a request through Envoy gets the answer of a backend.
func (d *demo) answers(version string) error {
	return d.envoy.Wait(limit, func() error {
		status, body, err := testbed.Get(d.url)
		if err == nil && (status != http.StatusOK || body != "hello from "+version) {
			err = fmt.Errorf("the answer is %d %q, not \"hello from %s\"", status, body, version)
		}
		return err
	})
}

// requests sends n requests, each of which must be answered by a backend.
func (d *demo) requests(n int, version string) error {
	begun := time.Now()
	for i := range n {
		status, body, err := testbed.Get(d.url)
		if err != nil || status != http.StatusOK || body != "hello from "+version {
			return fmt.Errorf("request %d of %d: %d %q %w", i+1, n, status, body, err)
		}
	}
	held(begun, "%d requests, all answered by %s", n, version)
	return nil
}

// route sends all requests to another backend.
func (d *demo) route(version string) error {
	return d.copy("routes.yaml", func(text string) string {
		return strings.Replace(text, "cluster: backend-v1", "cluster: backend-"+version, 1)
	})
}

func (d *demo) changeRoute() error {
	d.say("Somebody edits routes.yaml: all requests shall go to v2.")
	begun := time.Now()
	if err := d.route("v2"); err != nil {
		return err
	}
	if err := d.answers("v2"); err != nil {
		return err
	}
	held(begun, "from saving the file to the first \"hello from v2\"")
	return nil
}

func (d *demo) killControlPlane() error {
	d.say("The control plane dies (SIGKILL).")
	d.cp.Kill()
	return d.requests(100, "v2")
}

func (d *demo) restartEnvoy() error {
	d.say("Worse: Envoy dies too, and starts again with nobody above the agent.")
	d.envoy.Kill()
	return d.runEnvoy("v2")
}

func (d *demo) restartBoth() error {
	d.say("Worse still: the agent and Envoy die together. What Envoy accepted is on disk.")
	d.envoy.Kill()
	d.agent.Kill()
	if err := d.runAgent(); err != nil {
		return err
	}
	return d.runEnvoy("v2")
}

func (d *demo) controlPlaneReturns() error {
	d.say("The control plane returns, with a route that leads back to v1.")
	if err := d.route("v1"); err != nil {
		return err
	}
	begun := time.Now()
	if err := d.runControlPlane(); err != nil {
		return err
	}
	if err := d.answers("v1"); err != nil {
		return err
	}
	held(begun, "from its start to the first \"hello from v1\"")
	return d.requests(100, "v1")
}
