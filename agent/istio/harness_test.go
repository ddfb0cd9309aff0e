package istio

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// environ is an environment.
type environ map[string]string

func (e environ) get(name string) string { return e[name] }

// rig is a Server behind an HTTP server.
type rig struct {
	*testing.T
	url string

	mu      sync.Mutex
	results map[string]int // of parts, by "part result"
}

// parts returns Parts without an Envoy that count into the rig.
func (r *rig) parts() Parts {
	return Parts{
		Envoy: func(context.Context, string) (*http.Response, error) { return nil, errors.New("there is no Envoy") },
		Own:   prometheus.NewRegistry(),
		Scraped: func(part, result string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.results[part+" "+result]++
		},
		Quit: func() {}, Drain: func() error { return nil }, Log: slog.New(slog.DiscardHandler),
	}
}

// start serves what an environment says; change may be nil.
func start(t *testing.T, env environ, change func(*Parts)) *rig {
	t.Helper()
	r := &rig{T: t, results: make(map[string]int)}
	cfg, err := FromEnv(env.get, 15020)
	if err != nil {
		t.Fatal(err)
	}
	parts := r.parts()
	if change != nil {
		change(&parts)
	}
	mux := http.NewServeMux()
	New(*cfg, parts).Register(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// get requests a path with headers, in pairs, and returns the answer and its body.
func (r *rig) get(path string, headers ...string) (*http.Response, string) {
	r.Helper()
	return r.do(http.MethodGet, path, headers...)
}

func (r *rig) do(method, path string, headers ...string) (*http.Response, string) {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), method, r.url+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if req.Header.Set(headers[i], headers[i+1]); headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
	resp, err := client.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return resp, string(body)
}

// portOf returns the port of a listener.
func portOf(addr net.Addr) string { return strconv.Itoa(addr.(*net.TCPAddr).Port) }

// application is an application with an HTTP handler, on a port of 127.0.0.1.
func application(t *testing.T, handler http.HandlerFunc) (port string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return portOf(server.Listener.Addr())
}
