package downstream

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// somebody has a uid and a gid with which no test runs.
const somebody = 54321

// rejectedPeers counts rejected connections.
type rejectedPeers struct{ atomic.Int64 }

func (r *rejectedPeers) count() { r.Add(1) }

func TestWhoMayUseTheSocketFollowsFromUserAndGroups(t *testing.T) {
	const own, group, none = 1000, 500, -1
	for _, tc := range []struct {
		name       string
		uids, gids []uint32
		group      int
		who        credentials
		want       bool
	}{
		{"own user, nothing given", nil, nil, none, credentials{uid: own, gid: 7}, true},
		{"another, nothing given", nil, nil, none, credentials{uid: 1001, gid: 7, groups: []uint32{8, 9}}, false},
		{"root is another", nil, nil, none, credentials{uid: 0, gid: 0, groups: []uint32{0}}, false},
		{"the group of the socket is one's own", nil, nil, group, credentials{uid: 1001, gid: group}, true},
		{"the group of the socket is a further one", nil, nil, group, credentials{uid: 1001, gid: 7, groups: []uint32{8, group}}, true},
		{"not in the group of the socket", nil, nil, group, credentials{uid: 1001, gid: 7, groups: []uint32{8}}, false},
		{"own user, not in the group of the socket", nil, nil, group, credentials{uid: own, gid: 7}, true},
		{"the group of the socket is root's", nil, nil, 0, credentials{uid: 1001, gid: 0}, true},
		{"a number of a group is none of a user", nil, nil, group, credentials{uid: group, gid: 7}, false},
		{"an allowed user", []uint32{1001, 1002}, nil, none, credentials{uid: 1002, gid: 7}, true},
		{"no allowed user", []uint32{1001, 1002}, nil, none, credentials{uid: 1003, gid: 1001, groups: []uint32{1002}}, false},
		{"an allowed group is one's own", nil, []uint32{600, 700}, none, credentials{uid: 1001, gid: 700}, true},
		{"an allowed group is a further one", nil, []uint32{600, 700}, none, credentials{uid: 1001, gid: 7, groups: []uint32{700}}, true},
		{"no allowed group", nil, []uint32{600, 700}, none, credentials{uid: 600, gid: 7, groups: []uint32{8}}, false},
		{"own user, others given", []uint32{1001}, []uint32{600}, group, credentials{uid: own, gid: 7}, true},
		{"users given replace the group of the socket", []uint32{1001}, nil, group, credentials{uid: 1002, gid: group}, false},
		{"groups given replace the group of the socket", nil, []uint32{600}, group, credentials{uid: 1002, gid: group}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newPeerFilter(Peers{UIDs: tc.uids, GIDs: tc.gids}, own, tc.group)
			if got := g.allows(tc.who); got != tc.want {
				t.Errorf("%+v: %v, want %v", tc.who, got, tc.want)
			}
		})
	}
}

func TestTheListsOfTheCallerAreNotWrittenTo(t *testing.T) {
	room := make([]uint32, 1, 4)
	newPeerFilter(Peers{UIDs: room}, 1000, -1)
	if got := room[:2][1]; got != 0 {
		t.Errorf("own user %d was put there", got)
	}
}

// as lets the peers of a socket appear to be these, in turn, and then its owner.
func (s *Socket) as(peers ...credentials) {
	identify := s.filter.identify
	s.filter.identify = func(c *net.UnixConn) (credentials, error) {
		if len(peers) == 0 {
			return identify(c)
		}
		next := peers[0]
		peers = peers[1:]
		return next, nil
	}
}

func listeningTo(t *testing.T, cfg SocketConfig, peers Peers) *Socket {
	t.Helper()
	s, err := Listen(cfg, &peers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// exchange connects, sends a request, and returns the answer until the connection ends, or its first
// bytes.
func exchange(t *testing.T, path, question string) string {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = c.Write([]byte(question)) // the connection may be closed already
	answer := make([]byte, 1024)
	n, _ := c.Read(answer)
	return string(answer[:n])
}

// Both kinds of clients come through one listener, which serves the next connection after a
// rejected one.
func TestAnotherUserIsRejectedBeforeItsRequestAndTheNextIsServed(t *testing.T) {
	for _, tc := range []struct{ name, question, answer string }{
		{"gRPC", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "\x00"}, // a frame of SETTINGS
		{"REST", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path, rejected := filepath.Join(socketDir(t), "xds.sock"), &rejectedPeers{}
			socket := listeningTo(t, SocketConfig{Path: path}, Peers{Rejected: rejected.count})
			socket.as(credentials{uid: somebody, gid: somebody}, credentials{uid: somebody, gid: somebody})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- New(Config{}).Serve(ctx, socket) }()
			for range 2 {
				if got := exchange(t, path, tc.question); got != "" {
					t.Errorf("another user got %q", got)
				}
			}
			if n := rejected.Load(); n != 2 {
				t.Errorf("%d were counted", n)
			}
			if got := exchange(t, path, tc.question); !strings.HasPrefix(got, tc.answer) {
				t.Errorf("the owner got %q", got)
			}
			if n := rejected.Load(); n != 2 {
				t.Errorf("%d were counted, the owner too", n)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAClientThatCannotBeIdentifiedIsRejected(t *testing.T) {
	path, rejected, log := filepath.Join(socketDir(t), "xds.sock"), &rejectedPeers{}, &bytes.Buffer{}
	socket := listeningTo(t, SocketConfig{Path: path}, Peers{Rejected: rejected.count, Log: slog.New(slog.NewTextHandler(log, nil))})
	socket.filter.identify = func(*net.UnixConn) (credentials, error) { return credentials{}, errors.New("no such option") }
	ended := make(chan error, 1)
	go func() {
		c, err := socket.Accept()
		if err == nil {
			_ = c.Close()
		}
		ended <- err
	}()
	if got := exchange(t, path, "?"); got != "" {
		t.Errorf("got %q", got)
	}
	_ = socket.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept ended with %v", err)
	}
	if rejected.Load() != 1 || !strings.Contains(log.String(), `level=WARN`) || !strings.Contains(log.String(), `err="no such option"`) {
		t.Errorf("%d were counted, logged:\n%s", rejected.Load(), log)
	}
}

// A rejected Envoy tries again several times a second.
func TestRejectionsAreAllCountedAndSeldomLogged(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rejected, log := &rejectedPeers{}, &bytes.Buffer{}
		g := newPeerFilter(Peers{Rejected: rejected.count, Log: slog.New(slog.NewTextHandler(log, nil))}, 1000, -1)
		g.identify = func(*net.UnixConn) (credentials, error) { return credentials{uid: 101, gid: 102, pid: 103}, nil }
		lines := func() int { return strings.Count(log.String(), "\n") }
		for range 100 {
			if g.admits(nil) {
				t.Fatal("let in")
			}
		}
		if rejected.Load() != 100 || lines() != warnRejectedBurst {
			t.Errorf("%d counted, %d lines", rejected.Load(), lines())
		}
		for _, want := range []string{"level=WARN", "--allow-uid", "--allow-gid", "--socket-group", "uid=101 gid=102 pid=103\n"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("no %s in\n%s", want, log)
			}
		}
		time.Sleep(warnRejectedEvery) // virtual
		g.admits(nil)
		g.admits(nil)
		if lines() != warnRejectedBurst+1 {
			t.Errorf("%d lines after a while", lines())
		}
	})
}

// The agent's other sockets, and those of a control plane, are protected by their permissions only.
func TestASocketWithoutPeersChecksNobody(t *testing.T) {
	path := filepath.Join(socketDir(t), "xds.sock")
	if s := listening(t, SocketConfig{Path: path}); s.filter != nil {
		t.Errorf("guarded: %+v", s.filter)
	}
}

func TestAnInvalidSocketWithPeersIsAnError(t *testing.T) {
	s, err := Listen(SocketConfig{}, &Peers{})
	if s != nil || err == nil || err.Error() != "socket: no path" {
		t.Errorf("%v, %v", s, err)
	}
}
