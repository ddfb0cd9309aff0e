// Command demo-mesh tells what holdfast-mesh is for, in under a minute: two versions of a service, a client
// and a gateway, each an Envoy with a holdfast agent, get their configuration from documents of Istio's API.
// The demo moves requests to a new version, injects a fault, drains an endpoint, breaks a document, and
// kills the control plane, under load.
//
// It runs bin/holdfast-mesh, bin/holdfast and the Envoy that the environment variable ENVOY names, on free
// ports of loopback and in a temporary directory; `make demo-mesh` prepares them. It exits with 1 at the
// first step that does not hold, and leaves nothing behind either way.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

const (
	// limit is the longest that a step may take.
	limit = 20 * time.Second
	// interval and connections make 200 requests a second.
	interval    = 20 * time.Millisecond
	connections = 4
)

func main() {
	d := &demo{begun: time.Now()}
	err := d.run()
	d.clean()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo-mesh: this step does not hold: %v\n", err)
		os.Exit(1)
	}
	fmt.Printf("\nEverything held, in %s. Of %d requests under load none failed; %d others met the fault that they asked for.\n",
		time.Since(d.begun).Round(100*time.Millisecond), d.sent, d.injected)
}

// demo is the stage: what runs, and what must be put away.
type demo struct {
	begun    time.Time
	dir      string
	binary   string // of holdfast-mesh
	holdfast string
	envoyBin string
	step     int
	cleanup  []func()

	service, edge  int // ports: of the service as clients reach it, and of the gateway
	xds, admin     string
	mesh           *testbed.Process
	workloads      []*workload // three of the service, then the client and the gateway
	client, outer  testbed.Request
	sent, injected int // requests under load, and those that met a fault
}

func (d *demo) clean() {
	for i := len(d.cleanup) - 1; i >= 0; i-- {
		d.cleanup[i]()
	}
}

// say prints a step.
func (d *demo) say(format string, args ...any) {
	d.step++
	fmt.Printf("\n%d. %s\n", d.step, fmt.Sprintf(format, args...))
}

// held prints what was seen, and how long it took.
func held(since time.Time, format string, args ...any) {
	fmt.Printf("   %-70s %8s\n", fmt.Sprintf(format, args...), time.Since(since).Round(time.Millisecond))
}

// quote prints what a program wrote.
func quote(text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n")) {
		fmt.Printf("   | %s\n", strings.TrimRight(line, "\n"))
	}
}

func (d *demo) run() error {
	for _, step := range []func() error{
		d.prepare, d.startMesh, d.startWorkloads, d.canary, d.fault, d.drain, d.breakDocument, d.outage, d.meshReturns,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) path(name string) string { return filepath.Join(d.dir, name) }

// prepare finds the programs, chooses ports, and writes the documents.
func (d *demo) prepare() error {
	var err error
	for name, into := range map[string]*string{"bin/holdfast": &d.holdfast, "bin/holdfast-mesh": &d.binary} {
		if *into, err = filepath.Abs(name); err != nil {
			return err
		}
		if _, err := os.Stat(*into); err != nil {
			return fmt.Errorf("%w: run `make demo-mesh`, which builds it", err)
		}
	}
	if d.envoyBin = os.Getenv("ENVOY"); d.envoyBin == "" {
		return errors.New("the environment variable ENVOY names no Envoy: run `make demo-mesh`, which fetches one")
	}
	if d.dir, err = os.MkdirTemp("", "holdfast-demo-"); err != nil {
		return err
	}
	d.cleanup = append(d.cleanup, func() { _ = os.RemoveAll(d.dir) })
	if err := os.Mkdir(d.path("mesh"), 0o700); err != nil {
		return err
	}
	ports := make([]int, 4)
	for i := range ports {
		if ports[i], err = testbed.FreePort(); err != nil {
			return err
		}
	}
	d.service, d.edge = ports[0], ports[1]
	d.xds, d.admin = "127.0.0.1:"+strconv.Itoa(ports[2]), "127.0.0.1:"+strconv.Itoa(ports[3])
	d.client = testbed.Request{URL: fmt.Sprintf("http://127.0.0.1:%d/", d.service), Host: "web.shop.internal"}
	d.outer = testbed.Request{URL: fmt.Sprintf("http://127.0.0.1:%d/", d.edge), Host: "shop.example.com"}
	fmt.Println("holdfast-mesh: a control plane with Istio's API, in one binary.")
	d.say("Documents: a service with two versions and three endpoints, a gateway, and a route to version 1.\n   holdfast-mesh validate mesh")
	begun := time.Now()
	if err := d.prepareWorkloads(); err != nil {
		return err
	}
	out, err := exec.Command(d.binary, "validate", d.path("mesh")).CombinedOutput()
	if err != nil || len(out) > 0 {
		return fmt.Errorf("holdfast-mesh validate: %v\n%s", err, out)
	}
	held(begun, "%d files, valid", 4)
	return nil
}

// start runs a program until clean.
func (d *demo) start(name string, argv ...string) (*testbed.Process, error) {
	p, err := testbed.Start(name, d.path(name+".log"), argv...)
	if err == nil {
		d.cleanup = append(d.cleanup, p.Kill)
	}
	return p, err
}

func (d *demo) startMesh() error {
	d.say("The control plane serves that directory.\n   holdfast-mesh serve --config mesh --listen %s --admin %s", d.xds, d.admin)
	return d.runMesh()
}

func (d *demo) runMesh() error {
	begun := time.Now()
	var err error
	d.mesh, err = d.start("holdfast-mesh", d.binary, "serve", "--config", d.path("mesh"), "--listen", d.xds, "--admin", d.admin)
	if err != nil {
		return err
	}
	err = d.mesh.Wait(limit, func() error {
		status, body, err := testbed.Get("http://" + d.admin + "/ready")
		if err == nil && status != http.StatusOK {
			err = errors.New(body)
		}
		return err
	})
	if err != nil {
		return err
	}
	held(begun, "ready")
	return nil
}

func (d *demo) startWorkloads() error {
	d.say("Three workloads of the service, a client and a gateway start: five Envoys, each with an agent.\n"+
		"   holdfast run --upstream %s --upstream-plaintext …; envoy -c envoy.yaml", d.xds)
	begun := time.Now()
	for _, w := range d.workloads {
		if err := d.startAgent(w); err != nil {
			return err
		}
		if err := d.startEnvoy(w); err != nil {
			return err
		}
	}
	for _, r := range []testbed.Request{d.client, d.outer} {
		if err := d.answered(r, "v1"); err != nil {
			return err
		}
	}
	held(begun, "the client and the gateway are answered by v1")
	if err := d.mesh.Wait(limit, func() error { return d.synced(len(d.workloads)) }); err != nil {
		return err
	}
	out, err := exec.Command(d.binary, "proxies", "--admin", d.admin).Output()
	if err != nil {
		return fmt.Errorf("holdfast-mesh proxies: %w", err)
	}
	fmt.Println("   holdfast-mesh proxies")
	quote(string(out))
	return nil
}

// status returns the status of the control plane.
func (d *demo) status() (s mesh.Status, err error) {
	_, body, err := testbed.Get("http://" + d.admin + "/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), &s)
	}
	return s, err
}

// synced returns nil if so many proxies are connected, and all have ACKed the newest configuration.
func (d *demo) synced(n int) error {
	s, err := d.status()
	if err != nil {
		return err
	}
	if len(s.Proxies) != n {
		return fmt.Errorf("%d proxies are connected, want %d", len(s.Proxies), n)
	}
	for _, p := range s.Proxies {
		for _, t := range p.Types {
			if t.State != "SYNCED" {
				return fmt.Errorf("%s of %s is %s: %s", t.Type, p.Node, t.State, t.Reason)
			}
		}
	}
	return nil
}

// answered waits until a request is answered by a version.
func (d *demo) answered(r testbed.Request, version string) error {
	return testbed.Eventually(limit, func() error {
		for _, w := range d.workloads {
			if err := w.alive(); err != nil {
				return err
			}
		}
		status, body, err := r.Get()
		if err == nil && (status != http.StatusOK || !strings.HasPrefix(body, version)) {
			err = fmt.Errorf("%s is answered %d %q, want %s", r.Host, status, body, version)
		}
		return err
	})
}

// loads are requests through the client, the gateway, or both, until stop.
type loads []*testbed.Tally

func (d *demo) load(requests ...testbed.Request) (ls loads) {
	for _, r := range requests {
		ls = append(ls, testbed.StartTally(r, interval, connections))
	}
	return ls
}

// stop ends the requests after so many further ones, of which none may have failed.
func (d *demo) stop(ls loads, more int) error {
	var failed []error
	for _, l := range ls {
		failed = append(failed, l.More(more, limit), l.Stop())
		d.sent += l.Sent()
	}
	return errors.Join(failed...)
}

// sent returns how many requests were answered.
func (ls loads) sent() (n int) {
	for _, l := range ls {
		n += l.Sent()
	}
	return n
}

func (d *demo) canary() error {
	d.say("Canary: a route sends 10 %% of the requests to version 2.")
	begun := time.Now()
	if err := d.route(90, 10, false); err != nil {
		return err
	}
	for _, r := range []testbed.Request{d.client, d.outer} {
		if err := d.answered(r, "v2"); err != nil {
			return err
		}
	}
	held(begun, "from saving the file to the first answer of v2, twice")
	for i, r := range []testbed.Request{d.client, d.outer} {
		name := []string{"client", "gateway"}[i]
		begun := time.Now()
		const n = 400
		counts, err := r.Count(n)
		if err != nil {
			return err
		}
		a, b, v2 := counts["200 v1-a"], counts["200 v1-b"], counts["200 v2"]
		// 40 are expected, with a standard deviation of 6.
		if a+b+v2 != n || a == 0 || b == 0 || v2 < 10 || v2 > 80 {
			return fmt.Errorf("of %d requests through the %s: %v", n, name, counts)
		}
		held(begun, "%d requests through the %s: %d to v1, %d to v2", n, name, a+b, v2)
	}
	return nil
}

func (d *demo) fault() error {
	d.say("Fault injection: requests with the header \"x-demo: fault\" are answered 418, under load without it.")
	ls := d.load(d.client, d.outer)
	begun := time.Now()
	if err := d.route(90, 10, true); err != nil {
		return err
	}
	for _, r := range []testbed.Request{d.client, d.outer} {
		r = r.With("x-demo", "fault")
		err := testbed.Eventually(limit, func() error {
			status, body, err := r.Get()
			if err == nil && status != http.StatusTeapot {
				err = fmt.Errorf("%s is answered %d %q, want 418", r.Host, status, body)
			}
			return err
		})
		if err != nil {
			return err
		}
		const n = 50
		counts, err := r.Count(n)
		if err != nil {
			return err
		}
		if counts["418 fault filter abort"] != n {
			return fmt.Errorf("of %d requests with the header: %v", n, counts)
		}
		d.injected += n
	}
	if err := d.stop(ls, 50); err != nil {
		return err
	}
	held(begun, "100 requests with the header: 418. %d without it: none failed", ls.sent())
	return nil
}

func (d *demo) drain() error {
	gone := d.workloads[1]
	d.say("Drain: the endpoint of %s is removed from the service under load, and then its workload ends.", gone.name)
	ls := d.load(d.client, d.outer)
	begun := time.Now()
	if err := d.web(endpoint{d.workloads[0].port, "v1"}, endpoint{d.workloads[2].port, "v2"}); err != nil {
		return err
	}
	// Each load has seen the endpoint go when 50 requests in a row were answered by others.
	for _, l := range ls {
		if err := quiet(l, gone.name); err != nil {
			return err
		}
	}
	held(begun, "from saving the file until no request came to %s any more", gone.name)
	gone.kill()
	d.workloads = slices.Delete(d.workloads, 1, 2)
	if err := d.stop(ls, 100); err != nil {
		return err
	}
	held(begun, "%d requests, none failed", ls.sent())
	return nil
}

// quiet waits until 50 requests in a row were answered by others than a workload.
func quiet(l *testbed.Tally, workload string) error {
	deadline := time.Now().Add(limit)
	for {
		before := l.Got(workload)
		if err := l.More(50, limit); err != nil {
			return err
		}
		if l.Got(workload) == before {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("requests still come to %s", workload)
		}
	}
}

func (d *demo) breakDocument() error {
	d.say("Somebody saves a route with a negative weight, under load.")
	ls := d.load(d.client, d.outer)
	begun := time.Now()
	if err := d.route(110, -10, false); err != nil {
		return err
	}
	var named string
	err := d.mesh.Wait(limit, func() error {
		s, err := d.status()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.Problems, func(p string) bool { return strings.Contains(p, "weight") })
		if i < 0 {
			return fmt.Errorf("the status names %q", s.Problems)
		}
		named = s.Problems[i]
		return nil
	})
	if err != nil {
		return err
	}
	held(begun, "the status names it")
	quote(named)
	if log := d.mesh.Tail(20); !strings.Contains(log, named) {
		return fmt.Errorf("the log does not name it:\n%s", log)
	}
	out, err := exec.Command(d.binary, "validate", d.path("mesh")).CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), named) {
		return fmt.Errorf("holdfast-mesh validate: %v\n%s", err, out)
	}
	if err := d.synced(len(d.workloads)); err != nil {
		return err
	}
	if err := d.stop(ls, 100); err != nil {
		return err
	}
	counts, err := d.client.Count(200)
	if err != nil {
		return err
	}
	if counts["200 v1-a"]+counts["200 v2"] != 200 || counts["200 v2"] == 0 {
		return fmt.Errorf("of 200 requests: %v", counts)
	}
	held(begun, "%d requests, none failed: the last valid route stays", ls.sent())
	return d.route(90, 10, false)
}

func (d *demo) outage() error {
	d.say("The control plane is killed. The client's Envoy and its agent are killed too, and start without it,\n" +
		"   under load through the gateway.")
	if err := d.mesh.Wait(limit, func() error { return d.restored() }); err != nil {
		return err
	}
	d.mesh.Kill()
	begun := time.Now()
	ls := d.load(d.client)
	through := d.load(d.outer)
	if err := d.stop(ls, 100); err != nil {
		return err
	}
	held(begun, "%d requests through the client, none failed", ls.sent())
	w := d.workloads[2]
	w.kill()
	begun = time.Now()
	if err := d.startAgent(w); err != nil {
		return err
	}
	if err := d.startEnvoy(w); err != nil {
		return err
	}
	for _, version := range []string{"v1", "v2"} {
		if err := d.answered(d.client, version); err != nil {
			return err
		}
	}
	held(begun, "from the start of both to answers of v1 and v2: last known good")
	again := d.load(d.client)
	if err := d.stop(slices.Concat(again, through), 100); err != nil {
		return err
	}
	held(begun, "%d requests through the client and the gateway, none failed", again.sent()+through.sent())
	return nil
}

// restored returns nil if no document has a problem, and every proxy has the newest configuration.
func (d *demo) restored() error {
	s, err := d.status()
	if err == nil && len(s.Problems) > 0 {
		err = fmt.Errorf("the status names %q", s.Problems)
	}
	return errors.Join(err, d.synced(len(d.workloads)))
}

func (d *demo) meshReturns() error {
	d.say("The control plane returns, with a route that sends all requests to version 2.")
	ls := d.load(d.client, d.outer)
	if err := d.route(0, 100, false); err != nil {
		return err
	}
	begun := time.Now()
	if err := d.runMesh(); err != nil {
		return err
	}
	for _, l := range ls {
		if err := quiet(l, "v1-a"); err != nil {
			return err
		}
	}
	if err := d.mesh.Wait(limit, func() error { return d.restored() }); err != nil {
		return err
	}
	held(begun, "from its start until no request came to v1 any more")
	if err := d.stop(ls, 50); err != nil {
		return err
	}
	for _, r := range []testbed.Request{d.client, d.outer} {
		counts, err := r.Count(100)
		if err != nil {
			return err
		}
		if counts["200 v2"] != 100 {
			return fmt.Errorf("of 100 requests: %v", counts)
		}
	}
	held(begun, "%d requests, none failed; then 200 of 200 to v2", ls.sent())
	return nil
}
