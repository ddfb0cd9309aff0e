package downstream

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/holdfast-xds/holdfast/internal/owndir"
)

// MaxSocketPath is the longest path of a Unix socket on Linux, in bytes.
const MaxSocketPath = 107

// DefaultSocketMode lets the owner and the group of a socket connect.
const DefaultSocketMode fs.FileMode = 0o660

// SocketConfig says where clients find the server.
type SocketConfig struct {
	// Path of the Unix socket. Its directory is made, private, if it is missing.
	Path string
	// Mode is DefaultSocketMode where it is 0.
	Mode fs.FileMode
	// Group, a name or a number, owns the socket; "" leaves the process's.
	Group string
	// Passable makes a missing directory so that everybody may pass through it, where the
	// kernel is asked who connects.
	Passable bool
}

// Socket is a listening Unix socket. It can be made anew at its path while it is
// being served. All methods may be called concurrently.
type Socket struct {
	cfg   SocketConfig
	gid   int    // that SocketConfig.Group names, -1 for none
	guard *guard // nil lets in whoever the permissions do

	mu     sync.Mutex
	lis    *net.UnixListener // the newest one
	made   os.FileInfo       // the file of lis
	lock   *os.File          // nil after Release
	closed bool
}

// ErrServed says that another process has the lock of a socket's path.
var ErrServed = errors.New("another holdfast serves this path")

// Listen makes the socket: under a temporary name first, then renamed, so that a
// client never meets one that does not listen, and one left by an agent that died
// is replaced (protocol.md 11.3).
//
// It fails when the path is longer than MaxSocketPath, when another process
// serves it, when something else than a socket is there, and when somebody else than
// root could put another socket in its place (package owndir).
//
// Who may connect is for the permissions of the socket and of its directory alone
// to say; ListenTo looks at each peer too.
func Listen(cfg SocketConfig) (*Socket, error) {
	cfg.Mode = cmp.Or(cfg.Mode, DefaultSocketMode)
	gid, err := cfg.prepare()
	if err != nil {
		return nil, err
	}
	lock, err := lockPath(cfg.Path)
	if err != nil {
		return nil, err
	}
	lis, made, err := listen(cfg, gid)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("socket %s: %w", cfg.Path, err)
	}
	return &Socket{cfg: cfg, gid: gid, lis: lis, made: made, lock: lock}, nil
}

// Check reports what is wrong with a configuration, and does no I/O but to look a group
// up.
func (c SocketConfig) Check() error {
	_, err := c.check()
	return err
}

// check is Check; it returns the number of the group, -1 for none.
func (c SocketConfig) check() (gid int, err error) {
	if c.Path == "" {
		return -1, errors.New("socket: no path")
	}
	if n := len(c.Path); n > MaxSocketPath {
		return -1, fmt.Errorf("socket %s: the path has %d bytes, and a Unix socket's at most %d: choose a shorter one", c.Path, n, MaxSocketPath)
	}
	if gid, err = groupID(c.Group); err != nil {
		return -1, fmt.Errorf("socket %s: %w", c.Path, err)
	}
	return gid, nil
}

// prepare checks the configuration and makes the directory.
func (c SocketConfig) prepare() (gid int, err error) {
	if gid, err = c.check(); err != nil {
		return -1, err
	}
	if err := c.vacant(); err != nil {
		return -1, fmt.Errorf("socket %s: %w", c.Path, err)
	}
	if err := privateDir(c.Path, gid, c.Passable); err != nil {
		return -1, fmt.Errorf("socket %s: %w", c.Path, err)
	}
	return gid, nil
}

// vacant refuses a path at which there is something else than a socket.
func (c SocketConfig) vacant() error {
	if info, err := os.Lstat(c.Path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("there is a %s at this path, not a socket: remove it or choose another path", kind(info))
	}
	return nil
}

// Try does what Listen does while another process serves the path: it makes the socket
// under the temporary name, and removes it again.
func Try(cfg SocketConfig) error {
	cfg.Mode = cmp.Or(cfg.Mode, DefaultSocketMode)
	gid, err := cfg.prepare()
	if err != nil {
		return err
	}
	lis, _, err := listenTemporary(cfg, gid)
	if err != nil {
		return fmt.Errorf("socket %s: %w", cfg.Path, err)
	}
	return errors.Join(lis.Close(), os.Remove(temporaryName(cfg.Path)))
}

// listen makes a listening socket at the path, in place of whatever socket is there.
func listen(cfg SocketConfig, gid int) (*net.UnixListener, os.FileInfo, error) {
	lis, made, err := listenTemporary(cfg, gid)
	if err != nil {
		return nil, nil, err
	}
	tmp := temporaryName(cfg.Path)
	if err := os.Rename(tmp, cfg.Path); err != nil {
		_ = lis.Close()
		_ = os.Remove(tmp)
		return nil, nil, err
	}
	return lis, made, nil
}

// listenTemporary makes a listening socket under the temporary name, with the mode and the
// group that the socket shall have.
func listenTemporary(cfg SocketConfig, gid int) (*net.UnixListener, os.FileInfo, error) {
	if err := cfg.vacant(); err != nil {
		return nil, nil, err
	}
	tmp := temporaryName(cfg.Path)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	lis.SetUnlinkOnClose(false) // it will have another name
	made, err := furnish(tmp, cfg, gid)
	if err != nil {
		_ = lis.Close()
		_ = os.Remove(tmp)
		return nil, nil, err
	}
	return lis, made, nil
}

// furnish gives the file of a socket its group and mode, and describes it.
func furnish(file string, cfg SocketConfig, gid int) (os.FileInfo, error) {
	if gid >= 0 {
		if err := os.Chown(file, -1, gid); err != nil {
			return nil, fmt.Errorf("giving it to group %s: %w", cfg.Group, err)
		}
	}
	if err := os.Chmod(file, cfg.Mode); err != nil {
		return nil, err
	}
	return os.Lstat(file)
}

// Addr returns the path where clients find the socket: the listener itself knows
// only the temporary name.
func (s *Socket) Addr() net.Addr { return &net.UnixAddr{Name: s.cfg.Path, Net: "unix"} }

// Accept returns the next connection whose peer is allowed, and closes those before
// it whose peer is not. Its errors are those of the listener; that the socket was made
// anew is none.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		c, err := s.acceptAny()
		if err != nil {
			return nil, err
		}
		if s.guard == nil || s.guard.admits(c) {
			return c, nil
		}
		_ = c.Close()
	}
}

// acceptAny returns the next connection, whoever its peer is.
func (s *Socket) acceptAny() (*net.UnixConn, error) {
	for {
		lis := s.listener()
		c, err := lis.AcceptUnix()
		if err == nil || s.listener() == lis {
			return c, err
		}
	}
}

func (s *Socket) listener() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lis
}

// Close stops listening and removes the socket, unless another has taken its
// path meanwhile.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	err := s.lis.Close()
	if s.present() == nil {
		_ = os.Remove(s.cfg.Path)
	}
	s.unlock()
	return err
}

// Release lets another process listen at the path from now on. This one goes on
// serving whoever still finds it, until Restore takes the path back or Close ends it.
func (s *Socket) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlock()
}

// unlock gives the lock up. Called under mu.
func (s *Socket) unlock() {
	if s.lock != nil {
		_ = s.lock.Close()
		s.lock = nil
	}
}

// Present returns nil if the path leads to this socket and, unless Release gave it up, this
// process has its lock; and else what is wrong.
func (s *Socket) Present() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil && !locked(s.lock, s.cfg.Path) {
		return fmt.Errorf("socket %s: %s was deleted or replaced", s.cfg.Path, lockName(s.cfg.Path))
	}
	return s.present()
}

func (s *Socket) present() error {
	switch now, err := os.Lstat(s.cfg.Path); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("socket %s: it was deleted", s.cfg.Path)
	case err != nil:
		return fmt.Errorf("socket %s: %w", s.cfg.Path, err)
	case !os.SameFile(now, s.made):
		return fmt.Errorf("socket %s: another file is in its place", s.cfg.Path)
	}
	return nil
}

// Restore sees that this process has the lock of the path, and that the path leads to
// this socket; where it does not, the socket is made anew, under the conditions of
// Listen. Connections that were accepted before stay. The error wraps ErrServed while
// another process has the lock.
func (s *Socket) Restore() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if err := privateDir(s.cfg.Path, s.gid, s.cfg.Passable); err != nil {
		return fmt.Errorf("socket %s: %w", s.cfg.Path, err)
	}
	if !locked(s.lock, s.cfg.Path) {
		s.unlock() // of a lock file that is not there any more
		lock, err := lockPath(s.cfg.Path)
		if err != nil {
			return err
		}
		s.lock = lock
	}
	if s.present() == nil {
		return nil
	}
	lis, made, err := listen(s.cfg, s.gid)
	if err != nil {
		return fmt.Errorf("socket %s: %w", s.cfg.Path, err)
	}
	old := s.lis
	s.lis, s.made = lis, made
	_ = old.Close()
	return nil
}

// temporaryName returns a name in the same directory that belongs to this path alone: the lock of
// the path is what keeps others from it. It is no longer than a socket's path may be.
func temporaryName(path string) string {
	dir, base := filepath.Split(path)
	if name := dir + "." + base + ".new"; len(name) <= MaxSocketPath {
		return name
	}
	sum := sha256.Sum256([]byte(base))
	name := "." + hex.EncodeToString(sum[:])
	return dir + name[:min(len(name), max(len(base), 2))]
}

func lockName(path string) string { return path + ".lock" }

// locked reports whether a lock, which may be nil, is still that of the path.
func locked(lock *os.File, path string) bool {
	if lock == nil {
		return false
	}
	mine, err := lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(lockName(path))
	return err == nil && os.SameFile(mine, there)
}

// lockPath makes sure that one process at a time serves a path. The lock goes
// with the process, however it ends.
func lockPath(path string) (*os.File, error) {
	name := lockName(path)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		_ = f.Close()
		return nil, fmt.Errorf("socket %s: %w (it holds %s): stop it or choose another path", path, ErrServed, name)
	case err != nil:
		_ = f.Close()
		return nil, fmt.Errorf("socket %s: locking %s: %w", path, name, err)
	}
	return f, nil
}

// privateDir makes the directory of a socket if it is missing, and refuses one in
// which anybody else could put another socket in its place. The path is what Envoy's
// bootstrap names, so that no other directory can stand in for it.
func privateDir(path string, gid int, passable bool) error {
	use := owndir.Use{Name: "its directory cannot be used", Group: gid}
	switch {
	case passable:
		use.Mode = 0o711
	case gid >= 0:
		use.Mode = 0o750
	}
	dir, err := owndir.Open(filepath.Dir(path), use)
	if err != nil {
		return err
	}
	return dir.Root.Close()
}

// groupID returns the number of a group, -1 for "".
func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	number := group
	if _, err := strconv.Atoi(group); err != nil {
		g, err := user.LookupGroup(group)
		if err != nil {
			if _, ok := errors.AsType[user.UnknownGroupError](err); ok {
				return -1, fmt.Errorf("--socket-group %q: unknown group", group)
			}
			return -1, fmt.Errorf("--socket-group %q: %q", group, err)
		}
		number = g.Gid
	}
	gid, err := strconv.ParseUint(number, 10, 32)
	if err != nil || gid == math.MaxUint32 || int(gid) < 0 { // the kernel takes the highest for none
		return -1, fmt.Errorf("--socket-group %s: want a name, or a number from 0 to %d", group, uint32(math.MaxUint32-1))
	}
	return int(gid), nil
}

func kind(info os.FileInfo) string {
	switch {
	case info.IsDir():
		return "directory"
	case info.Mode().IsRegular():
		return "file"
	case info.Mode().Type() == fs.ModeSymlink:
		return "symbolic link"
	}
	return "special file"
}
