package admin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever may read may neither end nor change anything.
func TestOnlyTheOwnerMayDoMoreThanRead(t *testing.T) {
	done := 0
	s := server(t, Config{
		State: &agent{}, Quit: func() { done++ },
		Actions:  map[string]func(context.Context) error{"drain": func(context.Context) error { done++; return nil }},
		Takeover: func(func() (net.Conn, error)) error { done++; return nil },
	})
	for _, tc := range []struct {
		method, path string
		owner, other int
	}{
		{"GET", "/status.json", 200, 200},
		{"HEAD", "/status.json", 200, 200},
		{"GET", "/dump", 200, 200},
		{"GET", "/metrics", 200, 200},
		{"POST", "/quit", 200, 403},
		{"POST", "/drain", 200, 403},
		{"POST", "/takeover", 426, 403},
		{"POST", "/nothing", 404, 403},
		{"DELETE", "/dump", 405, 403},
	} {
		before := done
		if got := askAs(s.full(true), false, tc.method, tc.path); got.Code != tc.other || done != before {
			t.Errorf("another: %s %s: %d, want %d; %d were done", tc.method, tc.path, got.Code, tc.other, done-before)
		}
		if got := askAs(s.full(true), true, tc.method, tc.path); got.Code != tc.owner {
			t.Errorf("the owner: %s %s: %d, want %d", tc.method, tc.path, got.Code, tc.owner)
		}
	}
	// Who is not known may only read as well.
	w := httptest.NewRecorder()
	s.full(true).ServeHTTP(w, httptest.NewRequest("POST", "/quit", nil))
	if w.Code != http.StatusForbidden {
		t.Errorf("nobody in particular: %d", w.Code)
	}
}

// The socket says who connects: here it is the one who runs the tests.
func TestTheOwnUserMayDoEverythingOnARealSocket(t *testing.T) {
	asked := make(chan struct{}, 1)
	path := filepath.Join(t.TempDir(), "admin.sock")
	_, stop := running(t, Config{State: &agent{}, Addr: "unix:" + path, Quit: func() { asked <- struct{}{} }}, 1)
	if err := (Client{Addr: "unix:" + path}).Do(t.Context(), "quit"); err != nil {
		t.Error(err)
	}
	<-asked
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Without readers nobody else gets as far as the socket; with them the kernel says who
// connects, and the file lets all pass.
func TestTheAdminSocketIsOpenToReadersOnly(t *testing.T) {
	for _, tc := range []struct {
		name    string
		readers []uint32
		socket  os.FileMode
		dir     os.FileMode
	}{
		{"nobody else", nil, 0o600, 0o700},
		{"readers", []uint32{1234}, 0o666, 0o711},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "made", "admin.sock")
			_, stop := running(t, Config{State: &agent{}, Addr: "unix:" + path, ReaderUIDs: tc.readers}, 1)
			for name, want := range map[string]os.FileMode{path: tc.socket, filepath.Dir(path): tc.dir} {
				if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
					t.Errorf("%s: %v, %v; want %v", name, info, err, want)
				}
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestATakeoverIsRefusedWithTheReasonBeforeItIsAdmitted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	_, stop := running(t, Config{State: &agent{}, Addr: "unix:" + path, Takeover: func(func() (net.Conn, error)) error {
		return errors.New("takeover: this agent runs Envoy as its child")
	}}, 1)
	_, err := Client{Addr: "unix:" + path}.Takeover(t.Context(), slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "409 Conflict: takeover: this agent runs Envoy as its child") || errors.Is(err, ErrNoAgent) {
		t.Errorf("%v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// The whole conversation, over a real socket.
func TestATakeoverIsConfirmedOverItsConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	said := make(chan string, 1)
	_, stop := running(t, Config{State: &agent{}, Addr: "unix:" + path, Takeover: func(admit func() (net.Conn, error)) error {
		conn, err := admit()
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write([]byte(Released + "\n"))
		line, _ := ReadLine(conn)
		said <- line
		_, err = conn.Write([]byte(Ended + "\n"))
		return err
	}}, 1)
	other, err := Client{Addr: "unix:" + path}.Takeover(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Confirm(); err != nil {
		t.Error(err)
	}
	if line := <-said; line != Confirmed {
		t.Errorf("said %q", line)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
