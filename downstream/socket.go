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
	"syscall"
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
}

// Socket is a listening Unix socket.
type Socket struct {
	*net.UnixListener
	path  string
	made  os.FileInfo
	lock  *os.File
	gid   int    // that SocketConfig.Group names, -1 for none
	guard *guard // nil lets in whoever the permissions do
}

// Listen makes the socket: under a temporary name first, then renamed, so that a
// client never meets one that does not listen, and one left by an agent that died
// is replaced (protocol.md 11.3).
//
// It fails when the path is longer than MaxSocketPath, when another process
// serves it, when something else than a socket is there, and when everybody may
// write to its directory.
//
// Who may connect is for the permissions of the socket and of its directory alone
// to say; ListenTo looks at each peer too.
func Listen(cfg SocketConfig) (*Socket, error) {
	if cfg.Mode == 0 {
		cfg.Mode = DefaultSocketMode
	}
	if cfg.Path == "" {
		return nil, errors.New("socket: no path")
	}
	if n := len(cfg.Path); n > MaxSocketPath {
		return nil, fmt.Errorf("socket %s: the path has %d bytes, and a Unix socket's at most %d: choose a shorter one", cfg.Path, n, MaxSocketPath)
	}
	gid, err := groupID(cfg.Group)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", cfg.Path, err)
	}
	if err := privateDir(filepath.Dir(cfg.Path), gid); err != nil {
		return nil, fmt.Errorf("socket %s: %w", cfg.Path, err)
	}
	lock, err := lockPath(cfg.Path)
	if err != nil {
		return nil, err
	}
	s, err := listen(cfg, gid)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("socket %s: %w", cfg.Path, err)
	}
	s.lock, s.gid = lock, gid
	return s, nil
}

func listen(cfg SocketConfig, gid int) (*Socket, error) {
	if info, err := os.Lstat(cfg.Path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fmt.Errorf("there is a %s at this path, not a socket: remove it or choose another path", kind(info))
	}
	tmp := temporaryName(cfg.Path)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	lis, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	lis.SetUnlinkOnClose(false) // it will have another name
	fail := func(err error) (*Socket, error) {
		_ = lis.Close()
		_ = os.Remove(tmp)
		return nil, err
	}
	if gid >= 0 {
		if err := os.Chown(tmp, -1, gid); err != nil {
			return fail(fmt.Errorf("giving it to group %s: %w", cfg.Group, err))
		}
	}
	if err := os.Chmod(tmp, cfg.Mode); err != nil {
		return fail(err)
	}
	made, err := os.Lstat(tmp)
	if err != nil {
		return fail(err)
	}
	if err := os.Rename(tmp, cfg.Path); err != nil {
		return fail(err)
	}
	return &Socket{UnixListener: lis, path: cfg.Path, made: made}, nil
}

// Addr returns the path where clients find the socket: the listener itself knows
// only the temporary name.
func (s *Socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Accept returns the next connection whose peer is allowed, and closes those before
// it whose peer is not. Its errors are those of the listener.
func (s *Socket) Accept() (net.Conn, error) {
	for {
		c, err := s.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if s.guard == nil || s.guard.admits(c) {
			return c, nil
		}
		_ = c.Close()
	}
}

// Close stops listening and removes the socket, unless another has taken its
// path meanwhile.
func (s *Socket) Close() error {
	err := s.UnixListener.Close()
	if now, statErr := os.Lstat(s.path); statErr == nil && os.SameFile(now, s.made) {
		_ = os.Remove(s.path)
	}
	_ = s.lock.Close()
	return err
}

// Release gives the path free for another process, which may listen there from now
// on. This one goes on until its socket is replaced.
func (s *Socket) Release() error {
	if err := s.lock.Close(); err != nil {
		return fmt.Errorf("socket %s: %w", s.path, err)
	}
	return nil
}

// Replaced reports whether the path leads to another socket by now.
func (s *Socket) Replaced() bool {
	now, err := os.Lstat(s.path)
	return err == nil && !os.SameFile(now, s.made)
}

// temporaryName returns a name in the same directory that is no longer.
func temporaryName(path string) string {
	dir, base := filepath.Split(path)
	if base[0] == '~' {
		return dir + "_" + base[1:]
	}
	return dir + "~" + base[1:]
}

// lockPath makes sure that one process at a time serves a path. The lock goes
// with the process, however it ends.
func lockPath(path string) (*os.File, error) {
	name := path + ".lock"
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		_ = f.Close()
		return nil, fmt.Errorf("socket %s: another holdfast serves this path (it holds %s): stop it or choose another path", path, name)
	case err != nil:
		_ = f.Close()
		return nil, fmt.Errorf("socket %s: locking %s: %w", path, name, err)
	}
	return f, nil
}

// privateDir makes the directory of a socket if it is missing, and refuses one in
// which anybody could put another socket in its place.
func privateDir(dir string, gid int) error {
	mode := fs.FileMode(0o700)
	if gid >= 0 {
		mode = 0o750
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
		if gid >= 0 {
			if err := os.Chown(dir, -1, gid); err != nil {
				return err
			}
			if err := os.Chmod(dir, mode); err != nil { // whatever the umask
				return err
			}
		}
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("everybody may write to %s and so replace the socket: use a directory of the agent's own, or chmod o-w it", dir)
	}
	return nil
}

// groupID returns the number of a group, -1 for "".
func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if gid, err := strconv.Atoi(group); err == nil && gid >= 0 {
		return gid, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("--socket-group: %w", err)
	}
	return strconv.Atoi(g.Gid)
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
