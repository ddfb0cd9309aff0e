// Package rig is what the tests of test/peers share. Each of them is a module of its own, because it plays holdfast with a
// program of others (a control plane, a gRPC client, SPIRE) whose dependencies the main module must not have. The package
// itself is part of the main module and imports nothing of theirs.
//
// Everything that a Rig starts ends with the test. Its functions end the test when something cannot be done, and so may be
// called from the test's goroutine only.
package rig

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3" // in the bootstraps that are edited

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Limit bounds every wait for something that should happen at once or nearly so. It is long because the machine may be
// busy; nothing is measured with it.
const Limit = 20 * time.Second

// Node is the id and the cluster of the node in every bootstrap that a Rig writes.
const Node = "peers"

// Rig is the temporary directory of a test, and the processes in it.
type Rig struct {
	testing.TB
	// Dir is short enough for Unix sockets.
	Dir string
}

// New makes the directory. It stays, when the test fails and HOLDFAST_E2E_KEEP is set.
func New(t testing.TB) *Rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-peers-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() || os.Getenv("HOLDFAST_E2E_KEEP") == "" {
			_ = os.RemoveAll(dir)
		}
	})
	return &Rig{TB: t, Dir: dir}
}

// Path returns the path of a file in the directory.
func (r *Rig) Path(name string) string { return filepath.Join(r.Dir, name) }

// Check ends the test if there is an error.
func (r *Rig) Check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// Eventually waits until a condition holds, at most for Limit.
func (r *Rig) Eventually(condition func() error) {
	r.Helper()
	r.Check(testbed.Eventually(Limit, condition))
}

// FreePort returns a TCP port of loopback that nobody listens on.
func (r *Rig) FreePort() int {
	r.Helper()
	port, err := testbed.FreePort()
	r.Check(err)
	return port
}

// FreeAddr returns a free address of loopback, host:port.
func (r *Rig) FreeAddr() string {
	r.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.FreePort()))
}

// Backend starts an HTTP server that answers everything with a text, and returns its address.
func (r *Rig) Backend(text string) (addr string) {
	r.Helper()
	b, err := testbed.StartBackend("127.0.0.1:0", text)
	r.Check(err)
	r.Cleanup(b.Stop)
	return b.Addr
}

// Start runs a program that ends with the test, by SIGTERM. Its output is in the file NAME.log.
func (r *Rig) Start(name string, argv ...string) *testbed.Process {
	r.Helper()
	p, err := testbed.Start(name, r.Path(name+".log"), argv...)
	r.Check(err)
	r.Cleanup(func() {
		select {
		case <-p.Exited():
		default:
			if err := p.Stop(10 * time.Second); err != nil {
				r.Errorf("%s at SIGTERM: %v\n%s", name, err, p.Tail(20))
			}
		}
		if r.Failed() {
			r.Logf("end of the log of %s:\n%s", name, p.Tail(60))
		}
	})
	return p
}

// Holdfast returns the binary under test: HOLDFAST_BIN, or that of `make build`.
func Holdfast(t testing.TB) string {
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

// Agent is a `holdfast run`.
type Agent struct {
	*testbed.Process
	rig  *Rig
	name string
	args []string
	disk string
}

// StartAgent starts holdfast with flags, and waits until it listens. Its sockets are named after it.
func (r *Rig) StartAgent(name string, flags ...string) *Agent {
	r.Helper()
	a := &Agent{rig: r, name: name, args: append([]string{Holdfast(r), "run",
		"--socket", r.Path(name + ".sock"), "--admin", "unix:" + r.Path(name+"-admin.sock"), "--health", ""}, flags...)}
	a.Restart()
	return a
}

// StartAgentOnDisk is StartAgent with a state directory on a disk of its own of a few hundred kilobytes.
func (r *Rig) StartAgentOnDisk(name string, flags ...string) *Agent {
	r.Helper()
	disk := r.Path(name + "-disk")
	r.Check(os.Mkdir(disk, 0o700))
	a := &Agent{rig: r, name: name, disk: disk, args: slices.Concat(testbed.OnDisk(disk, "512k"), []string{Holdfast(r), "run",
		"--socket", r.Path(name + ".sock"), "--admin", "unix:" + r.Path(name+"-admin.sock"), "--health", "", "--state-dir", filepath.Join(disk, "state")}, flags)}
	a.Restart()
	return a
}

// FillDisk fills the disk of an agent that StartAgentOnDisk has started.
func (a *Agent) FillDisk() {
	a.rig.Helper()
	a.rig.Check(testbed.FillDisk(a.PID(), a.disk))
}

// TakeOver lets another agent take over from this one, and waits until this one has ended.
func (a *Agent) TakeOver() {
	a.rig.Helper()
	before := a.Process
	a.args = append(a.args, "--takeover")
	a.Restart()
	a.rig.Check(a.Wait(Limit, func() error {
		select {
		case <-before.Exited():
			return nil
		default:
			return errors.New("the former agent is still there")
		}
	}))
}

// Restart starts the agent, with the flags that it had, after a Kill or a Stop.
func (a *Agent) Restart() {
	a.rig.Helper()
	a.Process = a.rig.Start(a.name, a.args...)
	a.rig.Check(a.Wait(Limit, func() error {
		return errors.Join(testbed.Dial("unix", a.Socket()), testbed.Dial("unix", a.rig.Path(a.name+"-admin.sock")))
	}))
}

// Socket is where the agent serves xDS.
func (a *Agent) Socket() string { return a.rig.Path(a.name + ".sock") }

// Status returns what `holdfast status` prints, as text or as json.
func (a *Agent) Status(form string) string {
	a.rig.Helper()
	return a.Does("status", "-o", form)
}

// Does runs a command that asks the agent, and returns what it prints.
func (a *Agent) Does(args ...string) string {
	a.rig.Helper()
	out, err := exec.Command(Holdfast(a.rig), append(args, "--admin", "unix:"+a.rig.Path(a.name+"-admin.sock"))...).CombinedOutput()
	if err != nil {
		a.rig.Fatalf("holdfast %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// Log returns everything that the agent and those of its name before it have logged.
func (a *Agent) Log() string {
	a.rig.Helper()
	b, err := os.ReadFile(a.Process.Log)
	a.rig.Check(err)
	return string(b)
}

// GRPCBootstrap lets holdfast write the bootstrap of a gRPC client of the agent.
func (a *Agent) GRPCBootstrap() []byte {
	a.rig.Helper()
	file := a.rig.Path(a.name + "-grpc.json")
	a.rig.writeBootstrap("--grpc-out", file, "--socket", a.Socket())
	b, err := os.ReadFile(file)
	a.rig.Check(err)
	return b
}

// Envoy starts an Envoy behind the agent, on a bootstrap that holdfast writes, to which edits may be made. form is delta or
// sotw. It does not wait until the Envoy is ready.
func (a *Agent) Envoy(name, form string, edits ...func(*bootstrapv3.Bootstrap)) *testbed.Envoy {
	a.rig.Helper()
	return a.rig.envoy(name, form, a.Socket(), edits...)
}

// DirectEnvoy starts an Envoy that is connected to a control plane, host:port, without an agent between them. All else in
// its bootstrap is as behind an agent.
func (r *Rig) DirectEnvoy(name, form, controlPlane string, edits ...func(*bootstrapv3.Bootstrap)) *testbed.Envoy {
	r.Helper()
	host, digits, err := net.SplitHostPort(controlPlane)
	r.Check(err)
	port, err := strconv.ParseUint(digits, 10, 16)
	r.Check(err)
	return r.envoy(name, form, "/nowhere", append(edits, func(b *bootstrapv3.Bootstrap) {
		endpoint := b.GetStaticResources().GetClusters()[0].GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint()
		endpoint.Address = &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
		}}}
	})...)
}

func (r *Rig) envoy(name, form, socket string, edits ...func(*bootstrapv3.Bootstrap)) *testbed.Envoy {
	r.Helper()
	file, admin := r.Path(name+".json"), r.FreeAddr()
	r.writeBootstrap("--out", file, "--socket", socket, "--xds-protocol", form, "--envoy-admin", admin)
	for _, edit := range edits {
		r.edit(file, edit)
	}
	e, err := testbed.StartEnvoy(envoytest.Binary(r), file, admin, r.Path(name+".log"))
	r.Check(err)
	r.Cleanup(func() {
		e.Kill()
		if r.Failed() {
			r.Logf("end of the log of %s:\n%s", name, e.Tail(30))
		}
	})
	return e
}

func (r *Rig) writeBootstrap(flags ...string) {
	r.Helper()
	out, err := exec.Command(Holdfast(r), append([]string{"bootstrap", "--node-id", Node, "--node-cluster", Node}, flags...)...).CombinedOutput()
	if err != nil {
		r.Fatalf("holdfast bootstrap: %v\n%s", err, out)
	}
}

func (r *Rig) edit(file string, edit func(*bootstrapv3.Bootstrap)) {
	r.Helper()
	b, err := os.ReadFile(file)
	r.Check(err)
	var config bootstrapv3.Bootstrap
	r.Check(protojson.Unmarshal(b, &config))
	edit(&config)
	b, err = protojson.Marshal(&config)
	r.Check(err)
	r.Check(os.WriteFile(file, b, 0o600))
}

// NeverRejected fails the test if an Envoy has rejected an update.
func (r *Rig) NeverRejected(name string, e *testbed.Envoy) {
	r.Helper()
	_, stats, err := testbed.Get("http://" + e.Admin + "/stats?filter=update_rejected$")
	r.Check(err)
	if stats == "" {
		r.Errorf("%s counts no updates", name)
	}
	for line := range strings.Lines(stats) {
		if !strings.HasSuffix(strings.TrimSpace(line), ": 0") {
			r.Errorf("%s has rejected an update: %s", name, line)
		}
	}
}

// Serves waits until an URL is answered with 200 and a text by an Envoy.
func (r *Rig) Serves(e *testbed.Envoy, url, text string) {
	r.Helper()
	r.Check(e.Wait(Limit, func() error {
		status, body, err := testbed.Get(url)
		if err == nil && (status != 200 || body != text) {
			err = fmt.Errorf("%s answers %d %q, want 200 %q", url, status, body, text)
		}
		return err
	}))
}
