package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/downstream"
)

// otherEnvoy is the admin of an Envoy that runs elsewhere.
type otherEnvoy struct {
	mu     sync.Mutex
	failed bool
	// starting: its state does not tell whether its health checks fail.
	starting bool
	uptime   time.Duration
	posts    []string
	told     chan struct{} // closed when its health checks fail first; nil for nobody to know
}

func (e *otherEnvoy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Method == http.MethodPost {
		e.posts = append(e.posts, r.URL.Path)
	}
	state := envoy.StateLive
	if e.starting {
		state = "PRE_INITIALIZING"
	} else if e.failed {
		state = envoy.StateDraining
	}
	switch r.URL.Path {
	case "/healthcheck/fail":
		e.failed = true
		if e.told != nil {
			close(e.told)
			e.told = nil
		}
	case "/healthcheck/ok":
		e.failed = false
	case "/ready":
		if state != envoy.StateLive {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, state+"\n")
	case "/server_info":
		_, _ = fmt.Fprintf(w, `{"state": %q, "uptime_current_epoch": "%ds"}`, state, int(e.uptime.Seconds()))
	case "/stats":
		_, _ = io.WriteString(w, "listener.a.downstream_cx_active: 0\n")
	}
}

// beside makes an agent that is not run, with a socket in dir and this Envoy.
func (e *otherEnvoy) beside(t *testing.T, dir string) *Agent {
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	a, err := New(Config{Upstreams: []string{"file:" + dir}, Socket: downstream.SocketConfig{Path: filepath.Join(dir, "xds.sock")}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	a.life.admin = envoy.NewAdmin(strings.TrimPrefix(srv.URL, "http://"))
	return a
}

// What cannot be undone is not done to an Envoy that stays.
func TestAnEnvoyThatStaysIsDrainedByItsHealthChecksAlone(t *testing.T) {
	e := &otherEnvoy{uptime: time.Hour}
	if err := e.beside(t, t.TempDir()).Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"/healthcheck/fail"}; !slices.Equal(e.posts, want) {
		t.Errorf("it was told %v, want %v", e.posts, want)
	}
}

func TestOnlyWhatAnAgentMadeFailIsMadeToPassAgain(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before func(t *testing.T, e *otherEnvoy, dir string)
		passes bool // in the end
	}{
		{"the agent before drained it", func(t *testing.T, e *otherEnvoy, dir string) { _ = e.beside(t, dir).Drain(t.Context()) }, true},
		{"the agent before drained it while it started", func(t *testing.T, e *otherEnvoy, dir string) {
			e.starting = true
			_ = e.beside(t, dir).Drain(t.Context())
		}, true},
		{"an operator did, and no agent", func(_ *testing.T, e *otherEnvoy, _ string) { e.failed = true }, false},
		{"an operator did, and then the agent before", func(t *testing.T, e *otherEnvoy, dir string) {
			e.failed = true
			_ = e.beside(t, dir).Drain(t.Context())
		}, false},
		{"the agent before undid it, and then an operator did", func(t *testing.T, e *otherEnvoy, dir string) {
			a := e.beside(t, dir)
			_ = a.Drain(t.Context())
			if err := a.Undrain(t.Context()); err != nil {
				t.Error(err)
			}
			e.failed = true
		}, false},
		{"Envoy was started since, and an operator did", func(t *testing.T, e *otherEnvoy, dir string) {
			a := e.beside(t, dir)
			_ = a.Drain(t.Context())
			long := time.Now().Add(-time.Minute)
			if err := os.Chtimes(a.drainFile(), long, long); err != nil {
				t.Fatal(err)
			}
			e.uptime = 10 * time.Second
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, dir := &otherEnvoy{uptime: time.Hour}, t.TempDir()
			tc.before(t, e, dir)
			a := e.beside(t, dir)
			undone, err := a.passHealth(t.Context(), nil)
			if err != nil || undone != tc.passes || e.failed == tc.passes {
				t.Errorf("undone %v, %v; its health checks fail: %v", undone, err, e.failed)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func TestADrainIsUndoneOnlyWhereItCanBe(t *testing.T) {
	e := &otherEnvoy{uptime: time.Hour}
	a := e.beside(t, t.TempDir())
	refused := func(want string) {
		t.Helper()
		if err := a.Undrain(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	refused("there is no drain to undo")
	for range 2 { // it can be drained again
		if err := a.Drain(t.Context()); err != nil || !a.draining() || !e.failed {
			t.Fatalf("%v, draining %v, its health checks fail %v", err, a.draining(), e.failed)
		}
		if err := a.Undrain(t.Context()); err != nil || a.draining() || e.failed {
			t.Fatalf("%v, draining %v, its health checks fail %v", err, a.draining(), e.failed)
		}
	}
	_ = a.Drain(t.Context())
	a.life.ending.Store(true)
	refused("shutting down")
	if !a.draining() || !e.failed {
		t.Error("it was undone")
	}
}

// An agent that cannot mark what it has done, or whose mark is gone, undoes it all the same.
func TestADrainIsUndoneWithoutAMark(t *testing.T) {
	for name, between := range map[string]struct{ before, after func(mark string) error }{
		"it cannot be made": {func(mark string) error { return os.Mkdir(mark, 0o700) }, func(string) error { return nil }},
		"it is gone":        {func(string) error { return nil }, os.Remove},
	} {
		t.Run(name, func(t *testing.T) {
			e := &otherEnvoy{uptime: time.Hour}
			a := e.beside(t, t.TempDir())
			if err := between.before(a.drainFile()); err != nil {
				t.Fatal(err)
			}
			if err := a.Drain(t.Context()); err != nil || !e.failed {
				t.Fatalf("%v, its health checks fail %v", err, e.failed)
			}
			if err := between.after(a.drainFile()); err != nil {
				t.Fatal(err)
			}
			if err := a.Undrain(t.Context()); err != nil || e.failed || a.draining() {
				t.Errorf("%v, its health checks fail %v, draining %v", err, e.failed, a.draining())
			}
		})
	}
}

// Who waits for a drain is told that it will not come.
func TestADrainThatIsUndoneSaysSo(t *testing.T) {
	told := make(chan struct{})
	e := &otherEnvoy{uptime: time.Hour, told: told}
	a := e.beside(t, t.TempDir())
	a.cfg.Envoy.Draining = envoy.Draining{Min: time.Hour, Timeout: time.Hour}
	ended := make(chan error, 1)
	go func() { ended <- a.Drain(t.Context()) }()
	<-told
	if err := a.Undrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, envoy.ErrUndone) {
		t.Errorf("the drain ended with %v", err)
	}
	if e.failed || a.draining() {
		t.Errorf("its health checks fail %v, draining %v", e.failed, a.draining())
	}
}
