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

// MaxSocketPath is the maximum length of the path of a Unix socket on Linux, in bytes.
const MaxSocketPath = 107

const DefaultSocketMode fs.FileMode = 0o660

// SocketConfig configures the socket on which clients reach the server.
type SocketConfig struct {
	// Path is the path of the Unix socket. Its directory is created, private, if it is missing.
	Path string
	Mode fs.FileMode // of the socket; 0 means DefaultSocketMode
	// Group, a name or a number, owns the socket; "" leaves the group of the process.
	Group string
	// Passable creates a missing directory so that everybody may traverse it, for sockets whose
	// peers are checked by Listen.
	Passable bool
}

// Socket is a listening Unix socket. It can be created again at its path while it is being
// served. All methods may be called concurrently.
type Socket struct {
	cfg    SocketConfig
	gid    int         // the group of SocketConfig.Group, -1 for none
	filter *peerFilter // nil if only the permissions restrict access

	mu     sync.Mutex
	lis    *net.UnixListener // the newest one
	file   os.FileInfo       // the file of lis
	lock   *os.File          // nil after Detach
	closed bool
}

// ErrServed is returned if another process has the lock of a socket's path.
var ErrServed = errors.New("another holdfast serves this path")

// Listen creates the socket under a temporary name and then renames it, so that a client never
// finds a socket that does not listen, and a socket left by an agent that died is replaced
// (protocol.md 11.3).
//
// It fails if the path is longer than MaxSocketPath, if another process serves it, if something
// other than a socket is there, and if a user other than root could put another socket in its
// place (package owndir).
//
// Connections of others than the peers are closed at once, and what they send is never read. Where
// peers is nil, and on systems other than Linux, where the peers cannot be identified and UIDs or GIDs
// are an error, only the permissions of the socket and of its directory restrict who may connect.
func Listen(cfg SocketConfig, peers *Peers) (*Socket, error) {
	if !peersAreKnown && peers != nil && len(peers.UIDs)+len(peers.GIDs) > 0 {
		return nil, errors.New("socket: --allow-uid, --allow-gid and --admin-readers need Linux: elsewhere the permissions of the socket decide")
	}
	s, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if peersAreKnown && peers != nil {
		s.filter = newPeerFilter(*peers, uint32(os.Geteuid()), s.gid)
	}
	if s.lock, err = lockPath(cfg.Path); err != nil {
		return nil, err
	}
	if err := s.listen(); err != nil {
		s.unlock()
		return nil, err
	}
	return s, nil
}

// Unserved returns what Listen would return if another process serves the path, or the directory cannot be used, and leaves
// no socket. It creates the directory.
func Unserved(cfg SocketConfig) error {
	s, err := prepare(cfg)
	if err != nil {
		return err
	}
	defer s.unlock()
	s.lock, err = lockPath(cfg.Path)
	return err
}

// Check returns an error if the configuration is invalid, and the number of the group, -1 for none. Its
// only I/O is to look up the group.
func (c SocketConfig) Check() (gid int, err error) {
	if c.Path == "" {
		return -1, errors.New("socket: no path")
	}
	if c.Path[0] == '@' {
		return -1, fmt.Errorf("socket %s: an abstract socket has no permissions, and anybody could take its name: give a path", c.Path)
	}
	if n := len(c.Path); n > MaxSocketPath {
		return -1, fmt.Errorf("socket %s: the path has %d bytes, and a Unix socket's at most %d: choose a shorter one", c.Path, n, MaxSocketPath)
	}
	if gid, err = groupID(c.Group); err != nil {
		return -1, fmt.Errorf("socket %s: %w", c.Path, err)
	}
	return gid, nil
}

// prepare checks the configuration and creates the directory. The Socket does not listen yet.
func prepare(cfg SocketConfig) (*Socket, error) {
	gid, err := cfg.Check()
	if err != nil {
		return nil, err
	}
	cfg.Mode = cmp.Or(cfg.Mode, DefaultSocketMode)
	if err := cfg.vacant(); err != nil {
		return nil, err
	}
	s := &Socket{cfg: cfg, gid: gid}
	return s, s.privateDir()
}

// vacant returns an error if there is something other than a socket at the path.
func (c SocketConfig) vacant() error {
	if info, err := os.Lstat(c.Path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket %s: there is a %s at this path, not a socket: remove it or choose another path", c.Path, kind(info))
	}
	return nil
}

// Try tests whether Listen would succeed, even while another process serves the path: it creates
// the socket under the temporary name, and removes it again.
func Try(cfg SocketConfig) error {
	s, err := prepare(cfg)
	if err != nil {
		return err
	}
	lis, _, err := s.listenTemporary()
	if err != nil {
		return fmt.Errorf("socket %s: %w", cfg.Path, err)
	}
	return errors.Join(lis.Close(), os.Remove(temporaryName(cfg.Path)))
}

// listen creates a listening socket at the path and replaces any socket there. Called with mu held, or
// before the Socket is used.
func (s *Socket) listen() error {
	if err := s.cfg.vacant(); err != nil {
		return err
	}
	lis, made, err := s.listenTemporary()
	if err == nil {
		tmp := temporaryName(s.cfg.Path)
		if err = os.Rename(tmp, s.cfg.Path); err != nil {
			_ = lis.Close()
			_ = os.Remove(tmp)
		}
	}
	if err != nil {
		return fmt.Errorf("socket %s: %w", s.cfg.Path, err)
	}
	s.lis, s.file = lis, made
	return nil
}

// listenTemporary creates a listening socket under the temporary name, with the mode and the
// group that the socket will have.
func (s *Socket) listenTemporary() (*net.UnixListener, os.FileInfo, error) {
	tmp := temporaryName(s.cfg.Path)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	lis.SetUnlinkOnClose(false) // it will be renamed
	made, err := s.setAccess(tmp)
	if err != nil {
		_ = lis.Close()
		_ = os.Remove(tmp)
	}
	return lis, made, err
}

func (s *Socket) setAccess(file string) (os.FileInfo, error) {
	if s.gid >= 0 {
		if err := os.Chown(file, -1, s.gid); err != nil {
			return nil, fmt.Errorf("giving it to group %s: %w", s.cfg.Group, err)
		}
	}
	if err := os.Chmod(file, s.cfg.Mode); err != nil {
		return nil, err
	}
	return os.Lstat(file)
}

// Addr returns the path of the socket: the listener itself knows only the temporary name.
func (s *Socket) Addr() net.Addr { return &net.UnixAddr{Name: s.cfg.Path, Net: "unix"} }

// Accept returns the next connection whose peer is allowed. It closes connections whose peer is
// not. Its errors are those of the listener, except that it continues with the new listener when
// the socket was created again.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		c, err := s.acceptAny()
		if err != nil {
			return nil, err
		}
		if s.filter == nil || s.filter.admits(c) {
			return c, nil
		}
		_ = c.Close()
	}
}

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

// Close stops listening and removes the socket, unless another one was created at its path
// meanwhile.
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

// Detach gives up the lock, so that another process can listen at the path. This process
// continues to serve clients that still find its socket, until Restore takes the path back or
// Close ends it.
func (s *Socket) Detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlock()
}

// unlock gives up the lock. Called with mu held.
func (s *Socket) unlock() {
	if s.lock != nil {
		_ = s.lock.Close()
		s.lock = nil
	}
}

// Present returns nil if the path leads to this socket and, unless Detach gave it up, this
// process has its lock; otherwise an error that describes the problem.
func (s *Socket) Present() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil && !locked(s.lock, s.cfg.Path) {
		return fmt.Errorf("socket %s: %s was deleted or replaced", s.cfg.Path, lockName(s.cfg.Path))
	}
	return s.present()
}

func (s *Socket) present() error {
	switch info, err := os.Lstat(s.cfg.Path); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("socket %s: it was deleted", s.cfg.Path)
	case err != nil:
		return fmt.Errorf("socket %s: %w", s.cfg.Path, err)
	case !os.SameFile(info, s.file):
		return fmt.Errorf("socket %s: another file is in its place", s.cfg.Path)
	}
	return nil
}

// Restore makes sure that this process has the lock of the path and that the path leads to this
// socket. If it does not, the socket is created again, under the conditions of Listen.
// Connections that were accepted before stay open. The error wraps ErrServed while another
// process has the lock.
func (s *Socket) Restore() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if err := s.privateDir(); err != nil {
		return err
	}
	if !locked(s.lock, s.cfg.Path) {
		s.unlock() // the lock file was deleted or replaced
		lock, err := lockPath(s.cfg.Path)
		if err != nil {
			return err
		}
		s.lock = lock
	}
	if s.present() == nil {
		return nil
	}
	old := s.lis
	if err := s.listen(); err != nil {
		return err
	}
	_ = old.Close()
	return nil
}

// temporaryName returns a name in the same directory that is used for this path only; the lock of
// the path keeps other processes from using it. It is no longer than MaxSocketPath.
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

// locked reports whether lock, which may be nil, is still the lock of the path.
func locked(lock *os.File, path string) bool {
	if lock == nil {
		return false
	}
	lockInfo, err := lock.Stat()
	if err != nil {
		return false
	}
	pathInfo, err := os.Lstat(lockName(path))
	return err == nil && os.SameFile(lockInfo, pathInfo)
}

// lockPath makes sure that only one process at a time serves a path. The kernel releases the lock
// when the process ends in any way.
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

// privateDir creates the directory of a socket if it is missing. It returns an error if another
// user could put another socket in the directory. Envoy's bootstrap names the path, so that no
// other directory can be used instead.
func (s *Socket) privateDir() error {
	use := owndir.Use{Name: "its directory cannot be used", Group: s.gid}
	switch {
	case s.cfg.Passable:
		use.Mode = 0o711
	case s.gid >= 0:
		use.Mode = 0o750
	}
	dir, err := owndir.Open(filepath.Dir(s.cfg.Path), use)
	if err != nil {
		return fmt.Errorf("socket %s: %w", s.cfg.Path, err)
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
	if err != nil || gid == math.MaxUint32 || int(gid) < 0 { // MaxUint32 means none
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
