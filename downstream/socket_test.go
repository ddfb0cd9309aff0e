package downstream

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// socketDir returns a private directory with a short path.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func listening(t *testing.T, cfg SocketConfig) *Socket {
	t.Helper()
	s, err := Listen(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// die ends a socket as the kernel does when an agent is killed: the file stays, and nobody listens.
func (s *Socket) die(t *testing.T) {
	t.Helper()
	if err := s.lis.Close(); err != nil {
		t.Fatal(err)
	}
	s.Detach()
}

// answers reports whether a process listens at a path.
func answers(path string) error {
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	return err
}

func rejects(t *testing.T, cfg SocketConfig, want string) {
	t.Helper()
	s, err := Listen(cfg, nil)
	switch {
	case err == nil:
		_ = s.Close()
		t.Errorf("%s: accepted; want an error with %q", cfg.Path, want)
	case !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "socket"):
		t.Errorf("error %q, want one with %q", err, want)
	}
}

func TestASocketAnswersUntilItIsClosed(t *testing.T) {
	path := filepath.Join(socketDir(t), "xds.sock")
	s := listening(t, SocketConfig{Path: path})
	if err := answers(path); err != nil || s.Addr().String() != path {
		t.Errorf("%v; its address is %s", err, s.Addr())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v, want nothing at the path", err)
	}
	again := listening(t, SocketConfig{Path: path})
	if err := answers(path); err != nil {
		t.Error(err)
	}
	_ = again.Close()
}

// protocol.md 11.3: Envoy may connect at any moment, and must always find a socket.
func TestThePathIsNeverMissingWhileAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(socketDir(t), "xds.sock")
	listening(t, SocketConfig{Path: path}).die(t)
	stop, looked := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			if _, err := os.Lstat(path); err != nil {
				looked <- err
				return
			}
			select {
			case <-stop:
				looked <- nil
				return
			default:
			}
		}
	}()
	for range 500 {
		listening(t, SocketConfig{Path: path}).die(t)
	}
	close(stop)
	if err := <-looked; err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 2 { // the socket and its lock
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestAStaleSocketAndItsTemporaryAreReplaced(t *testing.T) {
	path := filepath.Join(socketDir(t), "xds.sock")
	for range 2 {
		// One agent died after the rename of its socket, another before.
		listening(t, SocketConfig{Path: path}).die(t)
		listening(t, SocketConfig{Path: temporaryName(path)}).die(t)
	}
	if err := answers(path); err == nil {
		t.Fatal("the stale socket answers")
	}
	listening(t, SocketConfig{Path: path})
	if err := answers(path); err != nil {
		t.Error(err)
	}
}

// Two agents that start together, each with its own socket in one directory, must not take the
// socket of the other for a stale one.
func TestTwoSocketsInOneDirectoryHaveTheirOwnTemporaryNames(t *testing.T) {
	long := "/" + strings.Repeat("d", MaxSocketPath-len("/xds-1.sock")-1) + "/"
	for _, dir := range []string{"/run/holdfast/", long} {
		of := make(map[string]string)
		for _, base := range []string{"xds.sock", "ads.sock", "~ds.sock", "_ds.sock", ".xds.sock", "xds-1.sock", "xds-2.sock", "x"} {
			tmp := temporaryName(dir + base)
			if other, taken := of[tmp]; taken || tmp == dir+base {
				t.Errorf("%s%s and %s: both %s", dir, base, other, tmp)
			}
			of[tmp] = base
			if filepath.Dir(tmp) != filepath.Clean(dir) || len(tmp) > MaxSocketPath {
				t.Errorf("%s%s: %s, of %d bytes", dir, base, tmp, len(tmp))
			}
		}
	}
}

func TestASecondAgentOnThePathIsRejected(t *testing.T) {
	path := filepath.Join(socketDir(t), "xds.sock")
	first := listening(t, SocketConfig{Path: path})
	rejects(t, SocketConfig{Path: path}, fmt.Sprintf("socket %s: another holdfast serves this path (it holds %s.lock): stop it or choose another path", path, path))
	if err := answers(path); err != nil {
		t.Errorf("the first one: %v", err)
	}
	_ = first.Close()
	listening(t, SocketConfig{Path: path})
}

func TestASocketHasItsModeAndGroup(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077)) // like the agent
	gid := os.Getgid()
	if os.Geteuid() == 0 {
		gid = 1 // only root may give the socket to a group that it is not in
	}
	groups := map[string]int{"": os.Getgid(), strconv.Itoa(gid): gid}
	if g, err := user.LookupGroupId(strconv.Itoa(gid)); err == nil {
		groups[g.Name] = gid
	}
	for group, wantGroup := range groups {
		for mode, wantMode := range map[fs.FileMode]fs.FileMode{0: 0o660, 0o600: 0o600, 0o666: 0o666} {
			path := filepath.Join(socketDir(t), "made", "xds.sock")
			listening(t, SocketConfig{Path: path, Mode: mode, Group: group})
			info, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode(); got.Type() != fs.ModeSocket || got.Perm() != wantMode {
				t.Errorf("mode %04o: %s", mode, got)
			}
			if got := int(info.Sys().(*syscall.Stat_t).Gid); got != wantGroup {
				t.Errorf("group %q: %d, want %d", group, got, wantGroup)
			}
			// The group may traverse the directory, and nobody else.
			dir, err := os.Stat(filepath.Dir(path))
			if err != nil {
				t.Fatal(err)
			}
			wantDir := fs.FileMode(0o700)
			if group != "" {
				wantDir = 0o750
			}
			if got := dir.Mode().Perm(); got != wantDir || int(dir.Sys().(*syscall.Stat_t).Gid) != wantGroup {
				t.Errorf("group %q: directory %s of %d", group, got, dir.Sys().(*syscall.Stat_t).Gid)
			}
		}
	}
	rejects(t, SocketConfig{Path: filepath.Join(socketDir(t), "xds.sock"), Group: "no such\ngroup"}, `--socket-group "no such\ngroup": unknown group`)
}

// MaxSocketPath is the kernel's limit, less the NUL.
func TestAPathOf107BytesWorksAnd108AreRejected(t *testing.T) {
	dir := socketDir(t)
	of := func(n int) string { return filepath.Join(dir, strings.Repeat("x", n-len(dir)-1)) }
	listening(t, SocketConfig{Path: of(107)})
	if err := answers(of(107)); err != nil {
		t.Error(err)
	}
	rejects(t, SocketConfig{Path: of(108)}, "the path has 108 bytes, and a Unix socket's at most 107: choose a shorter one")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestAnyNameIsASocketsName(t *testing.T) {
	for _, name := range []string{"x", "~", "~x", ".", "~~", "x.lock"} {
		path := filepath.Join(socketDir(t), name)
		if name == "." {
			rejects(t, SocketConfig{Path: path}, "there is a directory at this path")
			continue
		}
		listening(t, SocketConfig{Path: path})
		if err := answers(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	rejects(t, SocketConfig{}, "socket: no path")
	rejects(t, SocketConfig{Path: "@name"}, "socket @name: an abstract socket has no permissions")
}

func TestAFileThatIsNoSocketIsNotReplaced(t *testing.T) {
	dir := socketDir(t)
	for name, make := range map[string]func(string) error{
		"file":          func(p string) error { return os.WriteFile(p, []byte("mine"), 0o600) },
		"directory":     func(p string) error { return os.Mkdir(p, 0o700) },
		"symbolic link": func(p string) error { return os.Symlink(filepath.Join(dir, "file"), p) },
		"special file":  func(p string) error { return syscall.Mkfifo(p, 0o600) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		rejects(t, SocketConfig{Path: path}, "there is a "+name+" at this path, not a socket: remove it or choose another path")
	}
	if b, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(b) != "mine" {
		t.Errorf("the file has %q, %v", b, err)
	}
	rejects(t, SocketConfig{Path: filepath.Join(dir, "file", "xds.sock")}, "file")
}

// A process that could put its own socket in place of the agent's would control Envoy (the tests of
// package owndir have every case).
func TestADirectoryThatOthersMayWriteToIsRejected(t *testing.T) {
	dir := filepath.Join(socketDir(t), "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "xds.sock")
	for mode, want := range map[fs.FileMode]bool{
		0o777: false, 0o777 | fs.ModeSticky: false, 0o775: false, 0o755: true, 0o700: true,
	} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if !want {
			rejects(t, SocketConfig{Path: path}, "others may write to "+dir)
			continue
		}
		s, err := Listen(SocketConfig{Path: path}, nil)
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		_ = s.Close()
	}
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, somebody, somebody)); err != nil {
			t.Fatal(err)
		}
		rejects(t, SocketConfig{Path: path}, fmt.Sprintf("%s belongs to uid %d", dir, somebody))
	}
}

// A gid has 32 bits; the lower 32 bits of a larger number would be another group.
func TestAGroupIsANumberOf32Bits(t *testing.T) {
	for group, want := range map[string]int{"": -1, "0": 0, "1234": 1234, "2147483647": 2147483647} {
		if gid, err := groupID(group); err != nil || gid != want {
			t.Errorf("%q: %d, %v", group, gid, err)
		}
	}
	for _, group := range []string{"4294967295", "4294968530", "99999999999", "-1"} {
		if _, err := groupID(group); err == nil || !strings.Contains(err.Error(), "--socket-group "+group+": want a name, or a number from 0 to 4294967294") {
			t.Errorf("%q: %v", group, err)
		}
	}
}

func TestCloseLeavesTheSocketOfAnother(t *testing.T) {
	dir := socketDir(t)
	path := filepath.Join(dir, "xds.sock")
	mine := listening(t, SocketConfig{Path: path})
	listening(t, SocketConfig{Path: filepath.Join(dir, "other.sock")})
	if err := os.Rename(filepath.Join(dir, "other.sock"), path); err != nil {
		t.Fatal(err)
	}
	if err := mine.Close(); err != nil {
		t.Error(err)
	}
	if err := answers(path); err != nil {
		t.Errorf("the other's socket: %v", err)
	}
}

// Accepted connections stay open, and Accept continues with the new listener.
func TestADeletedSocketIsCreatedAgainWhileItIsServed(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"deleted":                os.Remove,
		"deleted with the lock":  func(path string) error { return errors.Join(os.Remove(path), os.Remove(path+".lock")) },
		"replaced by a socket":   func(path string) error { return replacedBySocket(path) },
		"its lock deleted":       func(path string) error { return os.Remove(path + ".lock") },
		"deleted with directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(socketDir(t), "made", "xds.sock")
			s := listening(t, SocketConfig{Path: path})
			accepted := make(chan net.Conn, 3)
			ended := make(chan error, 1)
			go func() {
				for {
					c, err := s.Accept()
					if err != nil {
						ended <- err
						return
					}
					accepted <- c
				}
			}()
			before, err := net.Dial("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			first := <-accepted
			if err := s.Present(); err != nil {
				t.Fatal(err)
			}
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			if err := s.Present(); err == nil || !strings.HasPrefix(err.Error(), "socket "+path+": ") {
				t.Errorf("%v", err)
			}
			if err := s.Restore(); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Present(), answers(path)); err != nil {
				t.Error(err)
			}
			rejects(t, SocketConfig{Path: path}, ErrServed.Error())
			if _, err := first.Write([]byte("!")); err != nil {
				t.Error(err)
			}
			if n, err := before.Read(make([]byte, 1)); n != 1 {
				t.Errorf("the connection from before: %v", err)
			}
			_ = s.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept ended with %v", err)
			}
			if err := s.Restore(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a closed socket: %v", err)
			}
			close(accepted)
			for c := range accepted {
				_ = c.Close()
			}
			_, _ = first.Close(), before.Close()
		})
	}
}

// replacedBySocket replaces the file at a path by the socket of another process.
func replacedBySocket(path string) error {
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + "x", Net: "unix"})
	if err != nil {
		return err
	}
	lis.SetUnlinkOnClose(false)
	return errors.Join(os.Rename(path+"x", path), lis.Close())
}

// A successor that exits before it has taken over leaves a stale socket.
func TestADetachedPathIsRestoredWhenTheOtherAgentHasExited(t *testing.T) {
	path := filepath.Join(socketDir(t), "xds.sock")
	mine := listening(t, SocketConfig{Path: path})
	mine.Detach()
	other := listening(t, SocketConfig{Path: path})
	if err := mine.Restore(); !errors.Is(err, ErrServed) {
		t.Errorf("while the other has it: %v", err)
	}
	if err := mine.Present(); err == nil {
		t.Error("the other's socket is taken for one's own")
	}
	other.die(t)
	if err := mine.Restore(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(mine.Present(), answers(path)); err != nil {
		t.Error(err)
	}
}
