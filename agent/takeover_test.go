package agent

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// What two agents say to each other, from the side of the one that is taken over from.
func TestAnAgentEndsOnlyWhenItsSuccessorHasConfirmed(t *testing.T) {
	for _, tc := range []struct {
		name string
		// says is what the successor does after it was told that all is released.
		says    func(io.WriteCloser)
		hears   string
		confirm bool
	}{
		{"ready", func(w io.WriteCloser) { _, _ = io.WriteString(w, "ready\n") }, "ended\n", true},
		{"nothing, and ends", func(w io.WriteCloser) { _ = w.Close() }, "", false},
		{"half a word, and ends", func(w io.WriteCloser) { _, _ = io.WriteString(w, "rea"); _ = w.Close() }, "", false},
		{"another word", func(w io.WriteCloser) { _, _ = io.WriteString(w, "hello\n") }, "", false},
		{"too much", func(w io.WriteCloser) { _, _ = io.WriteString(w, strings.Repeat("x", 64)) }, "", false},
		{"nothing for too long", func(io.WriteCloser) {}, "withdrawn\n", false},
		{"ready, which it reads late", func(w io.WriteCloser) { // as after a SIGSTOP, when its time is over
			time.Sleep(takenWithin + lastLook/2)
			_, _ = io.WriteString(w, "ready\n")
		}, "ended\n", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				mine, theirs := net.Pipe()
				var heard string
				done := make(chan struct{})
				go func() {
					defer close(done)
					r := bufio.NewReader(theirs)
					if said, err := admin.ReadLine(r); err != nil || said != admin.Released {
						t.Errorf("told %q, %v", said, err)
					}
					tc.says(theirs)
					rest, _ := io.ReadAll(r)
					heard = string(rest)
				}()
				began := time.Now()
				err := confirmed(mine)
				_ = mine.Close()
				<-done
				_ = theirs.Close()
				if (err == nil) != tc.confirm || tc.hears != heard {
					t.Errorf("%v, and the other hears %q", err, heard)
				}
				if took := time.Since(began); took > takenWithin+lastLook {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// fakeOther is an agent that is to be taken over from; each connection is handled once.
func fakeOther(t *testing.T, handle func(net.Conn)) admin.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "admin.sock")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		request := make([]byte, 4096)
		if n, err := conn.Read(request); err != nil || !strings.HasPrefix(string(request[:n]), "POST /takeover ") {
			t.Errorf("asked %q, %v", request[:n], err)
		}
		handle(conn)
	}()
	t.Cleanup(func() { _ = lis.Close(); <-ended })
	return admin.Client{Addr: "unix:" + path}
}

// The successor's side. An agent that ends without a word is not there any more.
func TestASuccessorGoesOnUnlessTheOtherAgentDoes(t *testing.T) {
	const admitted = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: holdfast-takeover\r\n\r\n"
	for _, tc := range []struct {
		name     string
		says     []string // one after each line of the successor
		ask, end error
		text     string
	}{
		{"it ends", []string{admitted + "released\n", "ended\n"}, nil, nil, ""},
		{"it dies", []string{admitted + "released\n", ""}, nil, nil, ""},
		{"it has waited for too long", []string{admitted + "released\n", "withdrawn\n"}, nil, admin.ErrWithdrawn, ""},
		{"it refuses", []string{"HTTP/1.1 409 Conflict\r\nContent-Length: 5\r\n\r\nbusy\n"}, errAny, nil, "busy"},
		{"it is no agent", []string{"SSH-2.0\r\n"}, admin.ErrNoAgent, nil, ""},
		{"it dies before it has released", []string{admitted}, admin.ErrNoAgent, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := fakeOther(t, func(conn net.Conn) {
				_, _ = io.WriteString(conn, tc.says[0])
				if len(tc.says) > 1 {
					if said, err := admin.ReadLine(conn); err != nil || said != admin.Confirmed {
						t.Errorf("told %q, %v", said, err)
					}
					_, _ = io.WriteString(conn, tc.says[1])
				}
			})
			other, err := client.Takeover(t.Context(), slog.New(slog.DiscardHandler))
			switch {
			case tc.ask == errAny:
				if err == nil || !strings.Contains(err.Error(), tc.text) || errors.Is(err, admin.ErrNoAgent) {
					t.Errorf("%v", err)
				}
				return
			case !errors.Is(err, tc.ask):
				t.Fatalf("%v, want %v", err, tc.ask)
			case err != nil:
				return
			}
			if err := other.Confirm(); !errors.Is(err, tc.end) {
				t.Errorf("%v, want %v", err, tc.end)
			}
		})
	}
	if _, err := (admin.Client{Addr: fmt.Sprintf("unix:%s/none.sock", t.TempDir())}).Takeover(t.Context(), slog.New(slog.DiscardHandler)); !errors.Is(err, admin.ErrNoAgent) {
		t.Errorf("without anybody: %v", err)
	}
}

// errAny stands for an error that is none of those which are exported.
var errAny = errors.New("any")

// A successor that cannot start has not touched the state of the agent that serves.
func TestAnAgentThatCannotBindLeavesTheStateAlone(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	log := &recorded{}
	a, err := New(Config{
		Upstreams: []string{"file:" + dir}, Store: store.Config{Dir: state}, REST: "203.0.113.1:1",
		Socket: downstream.SocketConfig{Path: filepath.Join(dir, "xds.sock")}, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "--rest: ") {
		t.Errorf("ended with %v", err)
	}
	if _, err := os.Stat(state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory was made: %v", err)
	}
	if strings.Contains(log.String(), "level=ERROR") {
		t.Errorf("logged:\n%s", log)
	}
}
