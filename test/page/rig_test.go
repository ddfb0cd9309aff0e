package page

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// limit bounds every wait for something that should happen at once or nearly so.
const limit = 30 * time.Second

// mesh is a control plane, an agent with its admin interface on TCP, and an Envoy.
type mesh struct {
	*testing.T
	dir            string
	cp             *xdstest.ControlPlane
	cpAddr, admin  string
	port           int
	agent          *testbed.Process
	envoy          *testbed.Envoy
	v1, v2         *testbed.Backend
	bootstrap, own string // the file, and the admin address in it
	args           []string
}

// newMesh starts all of it; with unix, the admin interface is a Unix socket.
func newMesh(t *testing.T, unix bool) *mesh {
	t.Helper()
	m := &mesh{T: t, cp: xdstest.New(xdstest.Config{})}
	var err error
	m.dir, err = os.MkdirTemp("", "holdfast-page-") // shorter than t.TempDir, for the socket
	m.check(err)
	t.Cleanup(func() { _ = os.RemoveAll(m.dir) })
	m.v1, m.v2 = m.backend("v1"), m.backend("v2")
	m.port, m.cpAddr, m.admin, m.own = m.freePort(), m.freeAddr(), m.freeAddr(), m.freeAddr()
	if unix {
		m.admin = "unix:" + filepath.Join(m.dir, "admin.sock")
	}
	m.serveControlPlane()
	t.Cleanup(m.cp.Stop)
	m.cp.Set(
		xdstest.Cluster("c1", ""), xdstest.CLA("c1", m.v1.Addr), xdstest.Cluster("c2", "c2-endpoints"), xdstest.CLA("c2-endpoints", m.v2.Addr),
		xdstest.Listener("ingress", uint32(m.port), "ingress"), xdstest.Route("ingress", "c1"),
	)
	m.bootstrap = filepath.Join(m.dir, "bootstrap.json")
	out, err := exec.Command(m.holdfast(), "bootstrap", "--out", m.bootstrap, "--node-id", "web-1", "--node-cluster", "web",
		"--socket", filepath.Join(m.dir, "xds.sock"), "--envoy-admin", m.own).CombinedOutput()
	if err != nil {
		t.Fatalf("holdfast bootstrap: %v\n%s", err, out)
	}
	m.args = []string{m.holdfast(), "run", "--upstream", m.cpAddr, "--upstream-plaintext", "--socket", filepath.Join(m.dir, "xds.sock"),
		"--admin", m.admin, "--health", "", "--node-id", "web-1", "--node-cluster", "web", "--state-dir", filepath.Join(m.dir, "state"),
		"--ca", "dev:" + filepath.Join(m.dir, "ca"), "--identity", "spiffe://example.org/ns/shop/sa/web"}
	m.startAgent()
	m.envoy, err = testbed.StartEnvoy(envoytest.Binary(t), m.bootstrap, m.own, filepath.Join(m.dir, "envoy.log"))
	m.check(err)
	t.Cleanup(func() {
		m.envoy.Kill()
		if t.Failed() {
			t.Logf("end of Envoy's log:\n%s", m.envoy.Tail(30))
		}
	})
	m.serves("v1")
	return m
}

func (m *mesh) check(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func (m *mesh) freePort() int {
	m.Helper()
	port, err := testbed.FreePort()
	m.check(err)
	return port
}

func (m *mesh) freeAddr() string {
	m.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(m.freePort()))
}

func (m *mesh) backend(text string) *testbed.Backend {
	m.Helper()
	b, err := testbed.StartBackend("127.0.0.1:0", text)
	m.check(err)
	m.Cleanup(b.Stop)
	return b
}

// holdfast returns the binary under test.
func (m *mesh) holdfast() string {
	m.Helper()
	path := os.Getenv("HOLDFAST_BIN")
	if path == "" {
		path = filepath.Join(envoytest.Root(m), "bin", "holdfast")
	}
	if _, err := exec.LookPath(path); err != nil {
		m.Fatalf("this test needs the holdfast binary (%v): run `make build`", err)
	}
	return path
}

func (m *mesh) serveControlPlane() {
	m.Helper()
	lis, err := testbed.Listen(m.cpAddr, limit)
	m.check(err)
	m.cp.Serve(lis)
}

// startAgent starts the agent with the flags that it had before.
func (m *mesh) startAgent() {
	m.Helper()
	p, err := testbed.Start("holdfast", filepath.Join(m.dir, "agent.log"), m.args...)
	m.check(err)
	m.agent = p
	m.Cleanup(func() {
		select {
		case <-p.Exited():
		default:
			if err := p.Stop(10 * time.Second); err != nil {
				m.Errorf("holdfast at SIGTERM: %v\n%s", err, p.Tail(20))
			}
		}
		if m.Failed() {
			m.Logf("end of the agent's log:\n%s", p.Tail(40))
		}
	})
	network, addr := "tcp", m.admin
	if path, unix := strings.CutPrefix(m.admin, "unix:"); unix {
		network, addr = "unix", path
	}
	m.check(p.Wait(limit, func() error { return testbed.Dial(network, addr) }))
}

// serves waits until a request is answered with a text.
func (m *mesh) serves(text string) {
	m.Helper()
	m.check(m.envoy.Wait(limit, func() error {
		status, body, err := testbed.Get(fmt.Sprintf("http://127.0.0.1:%d/", m.port))
		if err == nil && (status != 200 || body != text) {
			err = fmt.Errorf("Envoy answers %d %q, want %q", status, body, text)
		}
		return err
	}))
}

func (m *mesh) set(resources ...proto.Message) { m.cp.Set(resources...) }

// browser is a tab of a real Chromium.
type browser struct {
	*testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string // what the console says, and requests to other origins
	leaves   bool     // the agent goes away in this test: that connections fail is no problem
}

// found returns a file that `make browser` fetches.
func found(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(envoytest.Root(t), ".peers", "browser", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("this test needs Chromium and axe-core (%v): run `make browser`", err)
	}
	return path
}

// newBrowser opens a tab on an address; it fails the test at its end if the page had an error, or asked another origin.
func newBrowser(t *testing.T, address string) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(found(t, "chromium")), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WindowSize(1600, 1200))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel) // waits for the end of the process
	b := &browser{T: t, ctx: ctx}
	if err := chromedp.Do(ctx); err != nil { // opens the tab, which lives as long as ctx
		t.Fatal(err)
	}
	err := chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		add := func(format string, args ...any) { b.problems = append(b.problems, fmt.Sprintf(format, args...)) }
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			add("exception: %s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
		case *runtime.EventConsoleAPICalled:
			add("console.%s: %s", e.Type, remote(e.Args))
		case *cdplog.EventEntryAdded:
			if !b.leaves || e.Entry.Source != cdplog.EntrySourceNetwork || !strings.Contains(e.Entry.Text, "net::ERR_") && !strings.Contains(e.Entry.Text, "502") {
				add("log: %s %s %s", e.Entry.Level, e.Entry.Text, e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			u, err := url.Parse(e.Request.URL)
			if err != nil || u.Scheme != "data" && !strings.HasPrefix(address, "http://"+u.Host+"/") {
				add("a request to %s", e.Request.URL)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, p := range b.problems {
			t.Error(p)
		}
	})
	call(b, cdplog.Enable, cdp.Empty{})
	call(b, network.Enable, network.EnableParams{})
	b.do(chromedp.Navigate(address))
	return b
}

// leaving says that the agent goes away: that connections fail is no problem from then on. Chromium logs that late.
func (b *browser) leaving() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaves = true
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fatal(err)
	}
}

// call sends a command of the DevTools protocol.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) R {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	result, err := chromedp.Call(ctx, command, params)
	if err != nil {
		b.Fatal(err)
	}
	return result
}

// eval returns the value of a JavaScript expression.
func eval[T any](b *browser, expression string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatal(err)
	}
	return value
}

// text returns the text of an element as it is shown.
func (b *browser) text(selector string) string {
	b.Helper()
	return eval[string](b, fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// shows waits until an element has all of the texts.
func (b *browser) shows(selector string, texts ...string) {
	b.Helper()
	b.until(func() error {
		got := b.text(selector)
		var missing []string
		for _, want := range texts {
			if !strings.Contains(got, want) {
				missing = append(missing, want)
			}
		}
		if missing != nil {
			return fmt.Errorf("%s lacks %q: it is\n%s", selector, missing, got)
		}
		return nil
	})
}

// lacks waits until an element does not have a text.
func (b *browser) lacks(selector, text string) {
	b.Helper()
	b.until(func() error {
		if got := b.text(selector); strings.Contains(got, text) {
			return fmt.Errorf("%s has %q:\n%s", selector, text, got)
		}
		return nil
	})
}

func (b *browser) until(condition func() error) {
	b.Helper()
	if err := testbed.Eventually(limit, condition); err != nil {
		b.Fatal(err)
	}
}

// look is how the page is looked at.
type look struct {
	scheme        string // light or dark
	width, height int64
}

func (b *browser) as(l look) {
	b.Helper()
	b.do(chromedp.EmulateViewport(l.width, l.height))
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}}})
}

// takenListener is the listener "ingress" on a port that is taken.
func (m *mesh) takenListener() proto.Message {
	m.Helper()
	_, port, err := net.SplitHostPort(m.v1.Addr)
	m.check(err)
	n, err := strconv.ParseUint(port, 10, 16)
	m.check(err)
	return xdstest.Listener("ingress", uint32(n), "ingress")
}

// remote describes the arguments of a call of the console.
func remote(objects []*runtime.RemoteObject) (texts []string) {
	for _, o := range objects {
		texts = append(texts, fmt.Sprint(o.Description, " ", o.Value))
	}
	return texts
}
