package istio

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"istio.io/istio/pilot/pkg/config/kube/crd"
	pilotxds "istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config"
)

// between is an address that leads to one control plane after the other: the connections to the former one end.
type between struct {
	lis net.Listener

	mu    sync.Mutex
	to    string
	conns map[net.Conn]bool
}

func newBetween(t *testing.T, to string) *between {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	b := &between{lis: lis, to: to, conns: make(map[net.Conn]bool)}
	t.Cleanup(func() {
		_ = lis.Close()
		b.leadTo("")
	})
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			go b.serve(conn)
		}
	}()
	return b
}

func (b *between) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	b.mu.Lock()
	to := b.to
	b.conns[conn] = true
	b.mu.Unlock()
	other, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = other.Close() }()
	go func() {
		_, _ = io.Copy(other, conn)
		_ = other.Close()
	}()
	_, _ = io.Copy(conn, other)
}

func (b *between) leadTo(to string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.to = to
	for conn := range b.conns {
		_ = conn.Close()
	}
	clear(b.conns)
}

// serviceAt is a service with an endpoint.
func serviceAt(i, port int, endpoint string) string {
	host, target, _ := net.SplitHostPort(endpoint)
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%d, namespace: shop}
spec:
  hosts: [s%d.internal]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints: [{address: %s, ports: {http: %s}}]
---
`, i, i, port, host, target)
}

// fill writes a file until its disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	check(t, err)
	defer func() { _ = f.Close() }()
	for size := 64 << 10; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// design.md I10: an istiod that knows nothing yet, or half, answers with what every sidecar has and no service, and that endpoints are empty
// which it does not know: no request fails, while Envoy runs and when it restarts, whatever happens to the agent meanwhile.
func TestAnIstiodThatKnowsNothingYetFailsNoRequest(t *testing.T) {
	for _, sharing := range []bool{false, true} {
		t.Run(fmt.Sprintf("sharing a port %v", sharing), func(t *testing.T) { istiodForgets(t, sharing) })
	}
}

// istiodForgets plays it with services that have a port, and so a listener and a route configuration, for each or for all.
func istiodForgets(t *testing.T, sharing bool) {
	var documents string
	var ports []int
	for i := range 5 {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		check(t, err)
		app := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, "s%d", i) })}
		go func() { _ = app.Serve(lis) }()
		t.Cleanup(func() { _ = app.Close() })
		if sharing && i > 0 {
			ports = append(ports, ports[0])
		} else {
			ports = append(ports, freePort(t))
		}
		documents += serviceAt(i, ports[i], lis.Addr().String())
	}
	istiod := func(documents string) string {
		var parsed []config.Config
		if documents != "" {
			var err error
			parsed, _, err = crd.ParseInputs(documents)
			check(t, err)
		}
		for i := range parsed {
			parsed[i].Domain = "cluster.local"
		}
		return pilotxds.NewFakeDiscoveryServer(t, pilotxds.FakeOptions{
			Configs: parsed, ListenerBuilder: func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		}).Listener.Addr().String()
	}
	whole, two := istiod(documents), strings.Join(strings.SplitAfter(documents, "---\n")[:2], "")
	knows := map[string]string{"nothing": istiod(""), "half": istiod(two)}
	events := []string{"nothing happens", "a restart", "a takeover", "a full disk"}
	// Half of all combinations, such that each three of the values are together in one.
	for row := range 2 * 2 * len(events) {
		nothing, sotw, which := row&1, row>>1&1, row>>2
		parity := nothing + sotw + which + which>>1
		if sharing {
			parity++
		}
		if parity%2 != 0 || testing.Short() && (sharing == (nothing == 1) || which>>1 != sotw) {
			continue
		}
		name, form, event := []string{"half", "nothing"}[nothing], []string{"delta", "sotw"}[sotw], events[which]
		less := knows[name]
		t.Run(name+", "+form+", "+event, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "holdfast-") // for a Unix socket
			check(t, err)
			path := func(name string) string { return filepath.Join(dir, name) }
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(tail(path("agent.log"), 60))
				}
				_ = os.RemoveAll(dir)
			})
			plane := newBetween(t, whole)
			node := []string{"--node-id", nodeID, "--node-cluster", "web", "--node-metadata", "NAMESPACE=shop", "--node-metadata", "INTERCEPTION_MODE=NONE", "--node-metadata", "INSTANCE_IPS=127.0.0.1"}
			check(t, os.Mkdir(path("disk"), 0o700))
			command := append([]string{agentBinary, "run", "--upstream", plane.lis.Addr().String(), "--upstream-plaintext", "--state-dir", path("disk/state"),
				"--upstream-protocol", form, "--socket", path("xds.sock"), "--admin", "unix:" + path("admin.sock"), "--health", "", "--log-level", "debug"}, node...)
			if event == "a full disk" {
				command = append([]string{"unshare", "--mount", "sh", "-c", `mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"`, path("disk")}, command...)
			}
			agent := start(t, "holdfast", path("agent.log"), command...)
			happens := func() {
				switch event {
				case "a restart":
					_ = agent.cmd.Process.Kill()
					<-agent.exited
					agent = start(t, "holdfast", path("agent.log"), command...)
				case "a takeover":
					before := agent
					agent = start(t, "holdfast", path("agent.log"), append(command, "--takeover")...)
					<-before.exited
				case "a full disk":
					fill(t, fmt.Sprintf("/proc/%d/root%s", agent.cmd.Process.Pid, path("disk/filler")))
				}
			}
			n := 0
			runEnvoy := func() *process {
				n++
				admin := "127.0.0.1:" + strconv.Itoa(freePort(t))
				file := path(fmt.Sprintf("bootstrap-%d.json", n))
				out, err := exec.Command(agentBinary, append([]string{"bootstrap", "--out", file, "--socket", path("xds.sock"), "--xds-protocol", form, "--envoy-admin", admin}, node...)...).CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				return start(t, "Envoy", path("envoy.log"), envoyBinary, "-c", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
			}
			get := func(i int) error {
				req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", ports[i]), nil)
				check(t, err)
				req.Host = fmt.Sprintf("s%d.internal:%d", i, ports[i])
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					return err
				}
				defer func() { _ = resp.Body.Close() }()
				if body := readAll(resp.Body); resp.StatusCode != http.StatusOK || body != fmt.Sprintf("s%d", i) {
					return fmt.Errorf("s%d answers %d %q", i, resp.StatusCode, body)
				}
				return nil
			}
			serves := func(e *process) {
				t.Helper()
				for i := range ports {
					e.wait(t, func() error { return get(i) })
				}
			}
			e := runEnvoy()
			serves(e)
			began := time.Now()
			plane.leadTo(less)
			happened := false
			for time.Since(began) < 4*time.Second || !happened {
				if time.Since(began) > 2*time.Second && !happened {
					happens()
					happened = true
				}
				for i := range ports {
					if err := get(i); err != nil {
						t.Fatalf("after %s: %v", time.Since(began), err)
					}
				}
			}
			out, _ := exec.Command(agentBinary, "status", "--admin", "unix:"+path("admin.sock")).CombinedOutput()
			if !strings.Contains(string(out), "which looks like an accident") {
				t.Errorf("the status does not say what happened:\n%s", out)
			}
			e.stop()
			e = runEnvoy()
			serves(e)
			began = time.Now()
			plane.leadTo(whole)
			for time.Since(began) < 3*time.Second {
				for i := range ports {
					if err := get(i); err != nil {
						t.Fatalf("when it is back, after %s: %v", time.Since(began), err)
					}
				}
			}
		})
	}
}
