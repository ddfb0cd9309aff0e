// Package mesh has the end-to-end tests of holdfast-mesh: the binary, with a real Envoy, directly and
// through a holdfast agent, in both forms of xDS.
package mesh

import (
	"cmp"
	"encoding/json"
	"errors"
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
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/server"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

const (
	// limit bounds every wait for something that should happen at once or nearly so. It is long because
	// the machine may be busy; nothing is measured with it.
	limit = 20 * time.Second
	// requestInterval and connections make 200 requests a second.
	requestInterval = 20 * time.Millisecond
	connections     = 4
	// host is the service of the tests.
	host = "web.internal"
)

// world is a holdfast-mesh, a directory of documents with one service of two versions, and the Envoy of a
// client, which gets its configuration directly or through an agent.
type world struct {
	*testing.T
	form    xdstest.Protocol
	through bool // an agent
	dir     string
	program string   // run in place of the holdfast-mesh under test, unless empty
	via     []string // a command that runs it; nil for none
	args    []string // of holdfast-mesh serve
	xds     string   // its address
	admin   string
	mesh    *testbed.Process
	agent   *testbed.Process
	envoy   *testbed.Envoy
	port    int // of the service
	v1, v2  *testbed.Backend
	// of says who the proxy is, and in which directory it has its files.
	of node
}

// node is what the Node of a proxy says.
type node struct {
	id, kind string
	labels   string   // JSON
	metadata []string // more of it, such as "NODE_NAME=n1"
	vhds     bool     // it gets virtual hosts one by one
	dir      string
	upstream bool // the Envoy of the client has connections to it
}

// inAllForms runs a test directly and through an agent, with SotW and with Delta.
func inAllForms(t *testing.T, test func(*world)) {
	t.Helper()
	for _, through := range []bool{false, true} {
		for _, form := range xdstest.Protocols() {
			name := "directly"
			if through {
				name = "through an agent"
			}
			t.Run(name+", "+string(form), func(t *testing.T) {
				t.Parallel() // most of the time goes into the scans of the directory
				w := newWorld(t)
				w.form, w.through = form, through
				test(w)
			})
		}
	}
}

// withVirtualHosts runs a test with a sidecar that gets its virtual hosts one by one, directly and through
// an agent.
func withVirtualHosts(t *testing.T, test func(*world)) {
	t.Helper()
	for _, through := range []bool{false, true} {
		t.Run(fmt.Sprintf("VHDS, through an agent %v", through), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.form, w.through, w.of.vhds = xdstest.Delta, through, true
			test(w)
		})
	}
}

// newWorld writes the documents and chooses addresses. It starts nothing but the backends "v1" and "v2".
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, form: xdstest.Delta}
	var err error
	w.dir, err = os.MkdirTemp("", "holdfast-mesh-") // shorter than t.TempDir, for Unix sockets
	w.check(err)
	t.Cleanup(func() { _ = os.RemoveAll(w.dir) })
	w.check(os.Mkdir(w.path("documents"), 0o700))
	w.of = node{id: "client-1", kind: "sidecar", labels: `{"app":"client"}`, dir: w.dir}
	w.v1, w.v2 = w.backend("v1"), w.backend("v2")
	w.port = w.freePort()
	w.xds, w.admin = w.freeAddr(), w.freeAddr()
	w.args = []string{"serve", "--config", w.path("documents"), "--listen", w.xds, "--admin", w.admin, "--debounce-after", "10ms"}
	w.service(w.v1, w.v2)
	w.write("rule", subsets("v1", "v2"))
	w.write("route", w.route(100, 0))
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// own returns the path of a file of the proxy.
func (w *world) own(name string) string { return filepath.Join(w.of.dir, name) }

// startServed starts holdfast-mesh, and the client and a server of the service web.internal behind sidecars with
// certificates: the server's takes connections at the port inbound, for a workload at an address.
func (w *world) startServed(server *world, inbound int, workload string) {
	w.Helper()
	w.write("service", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints:
  - {address: 127.0.0.1, ports: {http: %d}, serviceAccount: web, labels: {app: web, security.istio.io/tlsMode: istio}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress: [{port: {number: %[2]d, name: http, protocol: HTTP}, defaultEndpoint: "%[3]s"}]
  egress: [{hosts: ["~/*"]}]
`, w.port, inbound, workload))
	w.startMesh()
	for account, p := range map[string]*world{"web": server, "client": w} {
		p.startAgentWith("--upstream", w.xds, "--upstream-plaintext", "--ca", "dev:"+w.path("ca"), "--identity", "spiffe://cluster.local/ns/shop/sa/"+account)
		p.startEnvoy()
	}
}

// beside returns the same world as another proxy sees it.
func (w *world) beside(id, kind, labels string) *world {
	w.Helper()
	other := *w
	other.of = node{id: id, kind: kind, labels: labels, dir: w.path(id), upstream: true}
	w.check(os.Mkdir(other.of.dir, 0o700))
	return &other
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

func (w *world) freeAddr() string {
	w.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
}

// write puts a document into the directory by rename, as an editor does.
func (w *world) write(name, document string) {
	w.Helper()
	tmp := w.path("edited.tmp")
	w.check(os.WriteFile(tmp, []byte(document), 0o600))
	w.check(os.Rename(tmp, w.path("documents/"+name+".yaml")))
}

func (w *world) remove(name string) {
	w.Helper()
	w.check(os.Remove(w.path("documents/" + name + ".yaml")))
}

// service writes the ServiceEntry of the service, with endpoints whose label "version" is the text of
// their backend: v1 and v2.
func (w *world) service(backends ...*testbed.Backend) {
	w.Helper()
	w.write("service", w.entry(host, w.port, backends...))
}

// entry returns a ServiceEntry.
func (w *world) entry(host string, port int, backends ...*testbed.Backend) string {
	w.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: shop}
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
`, strings.ReplaceAll(host, ".", "-"), host, port)
	if len(backends) > 0 {
		b.WriteString("  endpoints:\n")
	}
	for _, backend := range backends {
		version := "v1"
		if backend == w.v2 {
			version = "v2"
		}
		_, port, err := net.SplitHostPort(backend.Addr)
		w.check(err)
		fmt.Fprintf(&b, "  - {address: 127.0.0.1, ports: {http: %s}, labels: {version: %s}}\n", port, version)
	}
	return b.String()
}

// subsets returns a DestinationRule with the subsets stable and canary of two versions.
func subsets(stable, canary string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec:
  host: %s
  subsets:
  - {name: stable, labels: {version: %s}}
  - {name: canary, labels: {version: %s}}
`, host, stable, canary)
}

// route returns a VirtualService with the weights of the two subsets.
func (w *world) route(stable, canary int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [%[1]s]
  http:
  - route:
    - {destination: {host: %[1]s, subset: stable}, weight: %[2]d}
    - {destination: {host: %[1]s, subset: canary}, weight: %[3]d}
`, host, stable, canary)
}

// binary returns a program under test.
func binary(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(envoytest.Root(t), "bin", name)
	if _, err := exec.LookPath(path); err != nil {
		t.Fatalf("this test needs the binary (%v): run `make build`", err)
	}
	return path
}

// start starts holdfast-mesh, the agent if there is to be one, and Envoy, and waits until requests are
// answered by v1.
func (w *world) start() {
	w.Helper()
	w.startMesh()
	if w.through {
		w.startAgent()
	}
	w.startEnvoy()
	w.answers(w.request(), "200 v1")
}

// startMesh starts holdfast-mesh, and waits until it serves.
func (w *world) startMesh() {
	w.Helper()
	w.runMesh()
	w.check(w.mesh.Wait(limit, w.ready))
}

// runMesh starts holdfast-mesh, which may have to wait for its documents.
func (w *world) runMesh() {
	w.Helper()
	program, args := cmp.Or(w.program, binary(w, "holdfast-mesh")), w.args
	if program == binary(w, "holdfast-mesh") { // a release asks issuers, and registers machines, on loopback without these
		args = append(slices.Clip(args), "--jwks-allow-loopback", "--register-any-address")
	}
	p, err := testbed.Start("holdfast-mesh", w.path("mesh.log"), slices.Concat(w.via, []string{program}, args)...)
	w.check(err)
	w.mesh = p
	w.ends(p)
}

func (w *world) ready() error {
	status, body, err := testbed.Get("http://" + w.admin + "/ready")
	if err == nil && status != http.StatusOK {
		err = errors.New(strings.TrimSpace(body))
	}
	return err
}

// ends ends a program with the test, and shows its log if the test has failed.
func (w *world) ends(p *testbed.Process) {
	w.Cleanup(func() {
		select {
		case <-p.Exited():
		default:
			if err := p.Stop(10 * time.Second); err != nil {
				w.Errorf("%s at SIGTERM: %v", p.Name, err)
			}
		}
		if w.Failed() {
			w.Logf("end of the log of %s:\n%s", p.Name, p.Tail(40))
		}
	})
}

func (w *world) startAgent() {
	w.Helper()
	w.startAgentWith("--upstream", w.xds, "--upstream-plaintext")
}

// startAgentWith starts an agent with the flags of its control plane.
func (w *world) startAgentWith(upstream ...string) {
	w.Helper()
	p, err := testbed.Start("agent", w.own("agent.log"), append([]string{binary(w, "holdfast"), "run",
		"--upstream-protocol", string(w.form), "--socket", w.own("xds.sock"), "--admin", "unix:" + w.own("admin.sock"), "--health", "",
	}, upstream...)...)
	w.check(err)
	w.agent = p
	w.ends(p)
	w.check(p.Wait(limit, func() error { return testbed.Dial("unix", w.own("xds.sock")) }))
}

// startEnvoy starts the Envoy of the client, on a bootstrap of holdfast bootstrap. It does not wait until
// it is ready.
func (w *world) startEnvoy() {
	w.Helper()
	w.startEnvoyOn(w.bootstrap())
}

// bootstrap writes the bootstrap of the client's Envoy and returns its file and the address of Envoy's
// admin interface.
func (w *world) bootstrap() (file, admin string) {
	w.Helper()
	admin, file = w.freeAddr(), w.own("envoy.json")
	args := []string{"bootstrap", "--out", file, "--node-id", w.of.id, "--node-cluster", "e2e",
		"--socket", w.own("xds.sock"), "--xds-protocol", string(w.form), "--envoy-admin", admin}
	for _, metadata := range append([]string{"TYPE=" + w.of.kind, "NAMESPACE=shop", "LABELS:=" + w.of.labels, "INTERCEPTION_MODE=NONE", fmt.Sprintf("VHDS=%v", w.of.vhds)}, w.of.metadata...) {
		args = append(args, "--node-metadata", metadata)
	}
	out, err := exec.Command(binary(w, "holdfast"), args...).CombinedOutput()
	if err != nil {
		w.Fatalf("holdfast bootstrap: %v\n%s", err, out)
	}
	if !w.through {
		w.connectDirectly(file)
	}
	return file, admin
}

// startEnvoyOn starts the Envoy of the proxy on a bootstrap.
func (w *world) startEnvoyOn(file, admin string) {
	w.Helper()
	start := testbed.StartEnvoy
	if w.of.upstream {
		start = testbed.StartUpstreamEnvoy
	}
	e, err := start(envoytest.Binary(w), file, admin, w.own("envoy.log"))
	w.check(err)
	w.envoy = e
	w.Cleanup(func() {
		e.Kill()
		if w.Failed() {
			w.Logf("end of Envoy's log:\n%s", e.Tail(60))
		}
	})
}

// connectDirectly lets a bootstrap name holdfast-mesh instead of the agent's socket.
func (w *world) connectDirectly(file string) {
	w.Helper()
	text, err := os.ReadFile(file)
	w.check(err)
	var b bootstrapv3.Bootstrap
	w.check(protojson.Unmarshal(text, &b))
	name, port, err := net.SplitHostPort(w.xds)
	w.check(err)
	number, err := strconv.ParseUint(port, 10, 16)
	w.check(err)
	endpoint := b.GetStaticResources().GetClusters()[0].GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint()
	endpoint.Address = &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: name, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(number)},
	}}}
	text, err = protojson.Marshal(&b)
	w.check(err)
	w.check(os.WriteFile(file, text, 0o600))
}

// request is a request of the client to the service.
func (w *world) request() testbed.Request { return w.requestTo(host, w.port) }

func (w *world) requestTo(host string, port int) testbed.Request {
	return testbed.Request{URL: fmt.Sprintf("http://127.0.0.1:%d/", port), Host: host}
}

// answers waits until a request gets a response, "200 v1".
func (w *world) answers(r testbed.Request, want string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		status, body, err := r.Get()
		if got := fmt.Sprintf("%d %s", status, body); err == nil && got != want {
			err = fmt.Errorf("%s answers %q, want %q", r.Host, got, want)
		}
		return err
	}))
}

// load sends requests to the service until the function that it returns is called and one more was
// answered. The function fails the test if a request has failed.
func (w *world) load() (tally *testbed.Tally, stop func()) {
	w.Helper()
	tally = testbed.StartTally(w.request(), requestInterval, connections)
	return tally, func() {
		w.Helper()
		w.check(tally.More(1, limit))
		w.check(tally.Stop())
	}
}

// value returns one of Envoy's stats.
func (w *world) value(name string) int {
	w.Helper()
	value, err := w.envoy.Stat(name)
	w.check(err)
	return value
}

// gone waits until Envoy has no cluster of a name.
func (w *world) gone(cluster string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		_, clusters, err := testbed.Get("http://" + w.envoy.Admin + "/clusters")
		if err == nil && strings.Contains(clusters, cluster+"::") {
			err = fmt.Errorf("Envoy has the cluster %s", cluster)
		}
		return err
	}))
}

// updates are the numbers of updates of each type that Envoy took in.
type updates struct{ CDS, EDS, LDS, RDS, VHDS int }

// updates returns Envoy's counts of the updates that it took in, of all resources of each type.
func (w *world) updates() updates {
	w.Helper()
	_, text, err := testbed.Get("http://" + w.envoy.Admin + `/stats?filter=(cds|lds|rds|cluster\.outbound.*)\..*update_success$`)
	w.check(err)
	var u updates
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, err := strconv.Atoi(value)
		w.check(err)
		switch {
		case strings.HasPrefix(name, "cluster_manager.cds."):
			u.CDS += n
		case strings.HasPrefix(name, "listener_manager.lds."):
			u.LDS += n
		case strings.Contains(name, ".vhds."):
			u.VHDS += n
		case strings.Contains(name, ".rds."):
			u.RDS += n
		case strings.HasPrefix(name, "cluster.outbound"):
			u.EDS += n
		}
	}
	return u
}

// changed waits until Envoy took in what a change made, and returns what it took in since before.
func (w *world) changed(before updates, done func(updates) bool) updates {
	w.Helper()
	var diff updates
	w.check(w.envoy.Wait(limit, func() error {
		now := w.updates()
		diff = updates{now.CDS - before.CDS, now.EDS - before.EDS, now.LDS - before.LDS, now.RDS - before.RDS, now.VHDS - before.VHDS}
		if !done(diff) {
			return fmt.Errorf("Envoy took in %+v", diff)
		}
		return nil
	}))
	return diff
}

// status returns the status of holdfast-mesh.
func (w *world) status() mesh.Status {
	w.Helper()
	s, err := w.tryStatus()
	w.check(err)
	return s
}

func (w *world) tryStatus() (s mesh.Status, err error) {
	_, body, err := testbed.Get("http://" + w.admin + "/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), &s)
	}
	return s, err
}

// problem waits until the status names a problem.
func (w *world) problem(texts ...string) {
	w.Helper()
	w.check(w.mesh.Wait(limit, func() error {
		status, err := w.tryStatus()
		if err != nil {
			return err
		}
		problems := status.Problems
		if !slices.ContainsFunc(problems, func(p string) bool {
			return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(p, text) })
		}) {
			return fmt.Errorf("the status names the problems %q, want one with %q", problems, texts)
		}
		return nil
	}))
}

// synced waits until the one proxy that is connected has asked for each of the four types, and has ACKed
// everything: a proxy that has only just connected has nothing that it did not ACK.
func (w *world) synced() {
	w.Helper()
	w.check(w.mesh.Wait(limit, func() error {
		proxies := w.status().Proxies
		if len(proxies) != 1 {
			return fmt.Errorf("%d proxies are connected, want 1", len(proxies))
		}
		for _, short := range []string{"CDS", "EDS", "LDS", "RDS"} {
			if !slices.ContainsFunc(proxies[0].Types, func(t server.TypeStatus) bool { return t.Type == short }) {
				return fmt.Errorf("the proxy has not asked for %s", short)
			}
		}
		for _, t := range proxies[0].Types {
			if t.State != "SYNCED" {
				return fmt.Errorf("%s is %s", t.Type, t.State)
			}
		}
		return nil
	}))
}

// answered returns nil if the proxy has answered everything of a type that it was sent.
func (w *world) answered(short string) error {
	s, err := w.tryStatus()
	if err != nil {
		return err
	}
	for _, p := range s.Proxies {
		for _, t := range p.Types {
			if t.Type == short && t.State == "STALE" {
				return fmt.Errorf("%s of %s is %s", short, p.Node, t.State)
			}
		}
	}
	return nil
}

// run runs a command of holdfast-mesh, and returns its exit code and what it wrote.
func run(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(binary(t, "holdfast-mesh"), args...)
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) {
			t.Fatal(err)
		}
		code = exit.ExitCode()
	}
	return code, out.String(), problems.String()
}
