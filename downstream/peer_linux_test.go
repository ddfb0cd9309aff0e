package downstream

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// id has the ids of the process that connects in a test.
type id struct {
	uid, gid uint32
	groups   []uint32
}

// self has the ids of the test process.
func self(t *testing.T) id {
	t.Helper()
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	me := id{uint32(os.Geteuid()), uint32(os.Getegid()), nil}
	for _, g := range groups {
		me.groups = append(me.groups, uint32(g))
	}
	return me
}

// connected connects with other ids and returns the client's end. Only root can change its ids.
func connected(t *testing.T, path string, who id) net.Conn {
	t.Helper()
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		if who.uid != uint32(os.Geteuid()) {
			// The system calls change this thread only, which ends with the goroutine because the
			// goroutine keeps it locked.
			runtime.LockOSThread()
			if err := become(who); err != nil {
				done <- result{nil, err}
				return
			}
		}
		c, err := net.Dial("unix", path)
		done <- result{c, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { _ = r.conn.Close() })
	return r.conn
}

// become changes the ids of this thread. On 386 and arm, these calls would take groups of 16 bits.
func become(who id) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(who.groups)), uintptr(unsafe.Pointer(unsafe.SliceData(who.groups))), 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(who.gid), uintptr(who.gid), uintptr(who.gid)); errno != 0 {
		return os.NewSyscallError("setresgid", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(who.uid), uintptr(who.uid), uintptr(who.uid)); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}

// open returns the path for a socket that every user can reach.
func open(t *testing.T) string {
	t.Helper()
	dir := socketDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "xds.sock")
}

func TestThePeerIsReadAsTheKernelKnowsIt(t *testing.T) {
	many := make([]uint32, 3*usualGroups)
	for i := range many {
		many[i] = somebody + uint32(i)
	}
	people := map[string]id{"the owner": self(t)}
	if os.Geteuid() == 0 { // only root can change its ids
		people["another"] = id{somebody, somebody + 1, []uint32{7, somebody + 2}}
		people["another without groups"] = id{somebody, somebody + 1, nil}
		people["another with many groups"] = id{somebody, somebody + 1, many}
	}
	for name, who := range people {
		t.Run(name, func(t *testing.T) {
			path := open(t)
			socket := listening(t, SocketConfig{Path: path, Mode: 0o666})
			connected(t, path, who)
			c, err := socket.acceptAny()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			p, err := credentialsOf(c)
			if err != nil || p.uid != who.uid || p.gid != who.gid || p.pid != int32(os.Getpid()) {
				t.Errorf("%+v, %v; want %+v, pid %d", p, err, who, os.Getpid())
			}
			raw, err := c.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			for _, room := range []int{0, 1, usualGroups} { // a buffer that is too small is replaced
				_ = raw.Control(func(fd uintptr) {
					groups, err := peerGroups(fd, room)
					if slices.Sort(groups); err != nil || !slices.Equal(groups, sorted(who.groups)) {
						t.Errorf("room for %d: groups %v, %v; want %v", room, groups, err, who.groups)
					}
				})
			}
			if slices.Sort(p.groups); !slices.Equal(p.groups, sorted(who.groups)) {
				t.Errorf("groups %v, want %v", p.groups, who.groups)
			}
		})
	}
}

func sorted(gids []uint32) []uint32 {
	gids = slices.Clone(gids)
	slices.Sort(gids)
	return gids
}

// The process of a client is the same on each of its connections, and no other has ever the same, even with its number.
func TestAProcessIsKnownByItsNumberAndItsStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	var seen []string
	for range 2 {
		client, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := lis.Accept()
		if err != nil {
			t.Fatal(err)
		}
		of, ok := addressOf(c).(processAddr)
		if !ok || of.Network() != "unix" {
			t.Fatalf("the address is %#v", addressOf(c))
		}
		seen = append(seen, of.process)
		_ = client.Close()
		_ = c.Close()
	}
	if pid := strconv.Itoa(os.Getpid()) + " since "; seen[0] != seen[1] || !strings.HasPrefix(seen[0], pid) {
		t.Errorf("the processes are %q", seen)
	}
	one, err := startOf(1)
	own, ownErr := startOf(int32(os.Getpid()))
	if err != nil || ownErr != nil || one >= own {
		t.Errorf("the first process began at %d (%v), this one at %d (%v)", one, err, own, ownErr)
	}
	if _, err := startOf(-1); err == nil {
		t.Error("a process that does not exist has a start")
	}
	tcp, _ := net.Pipe()
	if _, ok := addressOf(tcp).(processAddr); ok {
		t.Error("a client elsewhere has a process")
	}
}

func TestAConnectionThatIsNoSocketHasNoPeer(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if groups, err := peerGroups(f.Fd(), usualGroups); err == nil || len(groups) > 0 {
		t.Errorf("groups %v, %v", groups, err)
	}
}

// If the tests run as root, the rejected client is a real user. Otherwise only the user of the
// tests can connect, and is removed from the allowed users.
func TestUsersAreAllowedAndRejectedOnARealSocket(t *testing.T) {
	me := self(t)
	stranger := id{somebody, somebody, []uint32{somebody + 1}}
	if os.Geteuid() != 0 {
		stranger = me
	}
	for _, tc := range []struct {
		name  string
		peers Peers
		who   id
		off   bool // removes the owner from the allowed users
		want  bool
	}{
		{"the owner", Peers{}, me, false, true},
		{"the owner, others given", Peers{UIDs: []uint32{somebody + 9}, GIDs: []uint32{somebody + 9}}, me, false, true},
		{"another", Peers{}, stranger, true, false},
		{"another, not the one given", Peers{UIDs: []uint32{somebody + 9}, GIDs: []uint32{somebody + 9}}, stranger, true, false},
		{"another, by its user", Peers{UIDs: []uint32{stranger.uid}}, stranger, false, true},
		{"another, by its group", Peers{GIDs: []uint32{stranger.gid}}, stranger, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path, rejected := open(t), &rejectedPeers{}
			tc.peers.Rejected = rejected.count
			socket := listeningTo(t, SocketConfig{Path: path, Mode: 0o666}, tc.peers)
			if tc.off && tc.who.uid == me.uid {
				socket.filter.UIDs = tc.peers.UIDs
			}
			served := make(chan error, 1)
			go func() {
				c, err := socket.Accept()
				if err == nil {
					_, _ = c.Write([]byte("!"))
					_ = c.Close()
				}
				served <- err
			}()
			answer := make([]byte, 2)
			n, _ := connected(t, path, tc.who).Read(answer)
			if (n == 1) != tc.want || (rejected.Load() == 0) != tc.want {
				t.Errorf("got %q, %d counted", answer[:n], rejected.Load())
			}
			_ = socket.Close()
			if err := <-served; (err == nil) != tc.want {
				t.Errorf("Accept returned %v", err)
			}
		})
	}
}

// A peer that has exited before it is checked is still identified.
func TestAPeerThatHasLeftIsStillKnown(t *testing.T) {
	path := open(t)
	socket := listeningTo(t, SocketConfig{Path: path}, Peers{})
	_ = connected(t, path, self(t)).Close()
	c, err := socket.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if p, err := credentialsOf(c.(*net.UnixConn)); err != nil || p.uid != uint32(syscall.Geteuid()) {
		t.Errorf("%+v, %v", p, err)
	}
}
