package envoy

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// scripted is Envoy's admin interface, with a scripted number of connections.
type scripted struct {
	mu    sync.Mutex
	asked []string
	left  int // connections
	stats bool
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r.Method+" "+r.URL.Path)
	if r.URL.Path != "/stats" {
		return
	}
	if s.stats {
		// The connections of the admin listener and the counters of workers do not count.
		_, _ = fmt.Fprintf(w, "listener.admin.downstream_cx_active: 1\nlistener.0.0.0.0_80.downstream_cx_active: %d\nlistener.0.0.0.0_80.worker_0.downstream_cx_active: 9\n", s.left)
	}
	s.left = max(0, s.left-1)
}

func drained(t *testing.T, s *scripted, d Draining) (log string) {
	t.Helper()
	srv := httptest.NewServer(s)
	defer srv.Close()
	var b strings.Builder
	Drain(t.Context(), NewAdmin(strings.TrimPrefix(srv.URL, "http://")), d, slog.New(slog.NewTextHandler(&b, nil)))
	return b.String()
}

func TestADrainIsOverWhenNoConnectionIsLeft(t *testing.T) {
	s := &scripted{left: 3, stats: true}
	log := drained(t, s, Draining{Timeout: time.Hour})
	if !strings.Contains(log, "Envoy drain complete") || s.left != 0 {
		t.Errorf("%d left: %s", s.left, log)
	}
	want := []string{"POST /healthcheck/fail", "POST /drain_listeners", "GET /stats", "GET /stats", "GET /stats", "GET /stats"}
	if strings.Join(s.asked, ",") != strings.Join(want, ",") {
		t.Errorf("asked %q", s.asked)
	}
}

func TestADrainIsOverInTimeAnyhow(t *testing.T) {
	s := &scripted{left: 1 << 30, stats: true}
	if log := drained(t, s, Draining{Timeout: time.Millisecond}); !strings.Contains(log, "Envoy drain timed out") || !strings.Contains(log, "connections=") {
		t.Error(log)
	}
}

// Whoever sends requests has not noticed yet.
func TestADrainTakesAtLeastAWhile(t *testing.T) {
	s := &scripted{stats: true}
	if log := drained(t, s, Draining{Min: time.Millisecond, Timeout: time.Hour}); !strings.Contains(log, "Envoy drain complete") {
		t.Error(log)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var b strings.Builder
	Drain(ctx, NewAdmin("unix:/does/not/exist"), Draining{Min: time.Hour}, slog.New(slog.NewTextHandler(&b, nil)))
	if !strings.Contains(b.String(), "Envoy cannot be drained") {
		t.Error(b.String())
	}
}

func TestWithoutStatsADrainIsOverAfterItsLeastTime(t *testing.T) {
	if log := drained(t, &scripted{}, Draining{Timeout: time.Hour}); !strings.Contains(log, "open connections cannot be counted") {
		t.Error(log)
	}
}
