package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
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
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// A real Envoy exposes its readiness and its stats, and nothing else, on each family and with each form of admin address.
func TestEndpointsShowOnePathEach(t *testing.T) {
	for _, tc := range []struct {
		name   string
		family Family
		admin  func(dir string) string
		hosts  []string // where it answers
		others []string // where it does not
	}{
		{"IPv4, admin on a Unix socket", V4, func(dir string) string { return "unix:" + filepath.Join(dir, "admin.sock") }, []string{"127.0.0.1"}, []string{"::1"}},
		{"IPv6, admin on ::1", V6, func(string) string { return "[::1]:" + freePort(t) }, []string{"::1"}, []string{"127.0.0.1"}},
		{"both, admin on 127.0.0.1", Dual, func(string) string { return "127.0.0.1:" + freePort(t) }, []string{"127.0.0.1", "::1"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if listener, err := net.Listen("tcp", "[::1]:0"); err == nil {
				_ = listener.Close()
			} else if tc.family != V4 {
				t.Skipf("this machine has no IPv6: %v", err)
			}
			dir, err := os.MkdirTemp("", "holdfast") // short, for the socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			ready, stats := freePort(t), freePort(t)
			cfg := gateway(t)
			cfg.Admin, cfg.Family = tc.admin(dir), tc.family
			cfg.Endpoints = Endpoints{Ready: ":" + ready, Stats: ":" + stats}
			// Without config sources, Envoy needs no agent to be ready. The endpoints must also work at the connection limit.
			b, err := Apply(mustBuild(t, cfg), overlay(MergePatch, "dynamic_resources: null\nlayered_runtime: null"))
			if err != nil {
				t.Fatal(err)
			}
			log := runEnvoy(t, filepath.Join(dir, "envoy.yaml"), mustEncode(t, b, YAML))
			for _, host := range tc.hosts {
				url := func(port, path string) string { return "http://" + net.JoinHostPort(host, port) + path }
				await(t, url(ready, ReadyPath))
				for _, ask := range []struct {
					method, port, path string
					status             int
					body               string
				}{
					{"GET", ready, ReadyPath, 200, "LIVE\n"},
					{"HEAD", ready, ReadyPath, 200, ""},
					{"GET", ready, ReadyPath + "?x=/quitquitquit", 200, "LIVE\n"},
					{"POST", ready, ReadyPath, 404, ""},
					{"GET", ready, "/ready", 404, ""},
					{"GET", ready, ReadyPath + "/", 404, ""},
					{"GET", ready, "/" + ReadyPath, 404, ""},
					{"GET", ready, ReadyPath + "/../../server_info", 404, ""},
					{"GET", ready, "/healthz%2Fready", 404, ""},
					{"GET", ready, "/", 404, ""},
					{"POST", ready, "/quitquitquit", 404, ""},
					{"GET", ready, StatsPath, 404, ""},
					{"GET", stats, StatsPath + "?usedonly", 200, "# TYPE envoy_server_live gauge\nenvoy_server_live{pod=\"web-0\"} 1\n"},
					{"POST", stats, StatsPath, 404, ""},
					{"GET", stats, "/stats", 404, ""},
					{"GET", stats, "/config_dump", 404, ""},
					{"GET", stats, ReadyPath, 404, ""},
				} {
					status, body, err := do(t.Context(), ask.method, url(ask.port, ask.path))
					if err != nil || status != ask.status || !strings.Contains(body, ask.body) || ask.status == 404 && body != "" {
						t.Errorf("%s %s: %d %.300q, %v, want %d %q", ask.method, url(ask.port, ask.path), status, body, err, ask.status, ask.body)
					}
				}
			}
			for _, host := range tc.others {
				if status, _, err := do(t.Context(), "GET", "http://"+net.JoinHostPort(host, ready)+ReadyPath); err == nil {
					t.Errorf("%s answers %d", host, status)
				}
			}
			_, inForm, _ := strings.Cut(log(), "\n{") // lines from before Envoy has read the bootstrap have the default format
			for line := range strings.Lines("{" + inForm) {
				var entry struct{ Time, Level, Msg string }
				if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time == "" || entry.Level == "" {
					t.Errorf("a line of the log is no JSON: %v %s", err, line)
				}
			}
		})
	}
}

// freePort is free on all addresses.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// runEnvoy runs an Envoy until the test ends. It returns what it has logged.
func runEnvoy(t *testing.T, path string, text []byte) (log func() string) {
	t.Helper()
	if err := atomicfile.Write(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out := &buffer{}
	cmd := exec.CommandContext(t.Context(), envoytest.Binary(t), "-c", path, "--disable-hot-restart", "--concurrency", "1")
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Log(out.String())
		}
	})
	return out.String
}

// buffer may be read and written concurrently.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func await(t *testing.T, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	retry := time.NewTicker(20 * time.Millisecond) // a foreign process: there is nothing to wait on but its socket
	defer retry.Stop()
	for {
		status, _, err := do(ctx, "GET", url)
		if err == nil && status == http.StatusOK {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %d, %v", url, status, err)
		case <-retry.C:
		}
	}
}

func do(ctx context.Context, method, url string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	all, err := io.ReadAll(response.Body)
	if err != nil {
		err = fmt.Errorf("%s %s: %w", method, url, err)
	}
	return response.StatusCode, string(all), err
}

// app is a listener that answers everything with 200.
const app = `
static_resources:
  listeners:
  - name: app
    address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: app
          route_config: {virtual_hosts: [{name: a, domains: ["*"], routes: [{match: {prefix: /}, direct_response: {status: 200}}]}]}
          http_filters: [{name: r, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]
`

func TestAnEnvoyThatTakesNoMoreStillAnswersItsProbe(t *testing.T) {
	for _, tc := range []struct {
		name     string
		overload Overload
		full     func(t *testing.T, addr string) error // nil once Envoy accepts no more
	}{
		{"a heap of 1 MB", Overload{MaxHeap: 1 << 20}, func(t *testing.T, addr string) error {
			if status, _, err := do(t.Context(), "GET", "http://"+addr+"/"); err != nil || status != http.StatusServiceUnavailable {
				return fmt.Errorf("it answers %d, %w", status, err)
			}
			return nil
		}},
		{"two connections", Overload{MaxConnections: 2}, func(t *testing.T, addr string) error {
			for n := range 3 {
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					return err
				}
				t.Cleanup(func() { _ = conn.Close() })
				if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
					return err
				}
				answer, _ := io.ReadAll(io.LimitReader(conn, 8)) // an error is that of a closed connection
				if got := string(answer) == "HTTP/1.1"; got != (n < 2) {
					return fmt.Errorf("connection %d: %q", n+1, answer)
				}
			}
			return nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr, ready := "127.0.0.1:"+freePort(t), "127.0.0.1:"+freePort(t)
			cfg := minimal()
			cfg.Admin, cfg.Overload, cfg.Endpoints.Ready = "127.0.0.1:"+freePort(t), tc.overload, ready
			b, err := Apply(mustBuild(t, cfg), overlay(MergePatch, "dynamic_resources: null"), overlay(Merge, fmt.Sprintf(app, strings.TrimPrefix(addr, "127.0.0.1:"))))
			if err != nil {
				t.Fatal(err)
			}
			runEnvoy(t, filepath.Join(t.TempDir(), "envoy.yaml"), mustEncode(t, b, YAML))
			await(t, "http://"+ready+ReadyPath)
			deadline := time.Now().Add(20 * time.Second) // Envoy checks its usage four times a second
			for err := tc.full(t, addr); err != nil; err = tc.full(t, addr) {
				if tc.overload.MaxConnections > 0 || time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
			if status, body, err := do(t.Context(), "GET", "http://"+ready+ReadyPath); err != nil || status != 200 {
				t.Errorf("the probe: %d %q %v", status, body, err)
			}
		})
	}
}
