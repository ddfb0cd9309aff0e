package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-xds/holdfast/internal/owndir"
)

// FS is the part of the operating system that the store uses. Errors wrap those of package
// syscall; names are paths below the directory that Directory returned.
type FS interface {
	// Directory opens the state directory, and creates it if it is missing unless it must exist.
	Directory(path string, mustExist bool) (dir string, groupWrites bool, err error)
	// Close closes the directory; Directory opens it again.
	Close() error
	// Lstat does not follow symbolic links.
	Lstat(name string) (fs.FileInfo, error)
	ReadDir(name string) ([]string, error)
	// OpenFile does not follow a symbolic link in the last element of the name.
	OpenFile(name string, flag int, mode fs.FileMode) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(name string) error
	// Lock takes the exclusive lock of a file, which it creates if it is missing, or returns ErrLocked at once.
	Lock(name string) (Lock, error)
}

// File is an open file of an FS. Write appends.
type File interface {
	io.ReaderAt
	io.Writer
	io.Closer
	Sync() error
	Truncate(size int64) error
	Stat() (fs.FileInfo, error)
}

// Lock is a lock that is held until it is closed or its process ends.
type Lock interface {
	io.Closer
	// Held reports whether the locked file is still the one with its name.
	Held() bool
}

// Sub is the name of the subdirectory that is used if root created the directory for everybody.
const Sub = "holdfast"

// osFS works in the opened directory of the operating system, even if the path is renamed or replaced.
type osFS struct {
	mu  sync.Mutex
	own *owndir.Dir // nil before Directory
	at  *os.File    // the same directory, for operations that owndir.Dir.Root lacks
}

func (o *osFS) Directory(path string, mustExist bool) (string, bool, error) {
	own, err := owndir.Open(path, owndir.Use{Name: "state directory", Sub: Sub, GroupWrites: true, Group: -1, Existing: mustExist})
	if err != nil {
		return "", false, err
	}
	at, err := own.Root.Open(".")
	if err != nil {
		_ = own.Root.Close()
		return "", false, err
	}
	_ = o.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.own, o.at = own, at
	return own.Path, own.Mode.Perm()&0o020 != 0, nil
}

func (o *osFS) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.own == nil {
		return nil
	}
	err := errors.Join(o.at.Close(), o.own.Root.Close())
	o.own, o.at = nil, nil
	return err
}

// resolve returns the opened directory and the name relative to it.
func (o *osFS) resolve(name string) (root *os.Root, at *os.File, rel string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.own == nil {
		return nil, nil, "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrClosed}
	}
	if name == o.own.Path {
		return o.own.Root, o.at, ".", nil
	}
	rel, ok := strings.CutPrefix(name, strings.TrimSuffix(o.own.Path, "/")+"/")
	if !ok {
		return nil, nil, "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	return o.own.Root, o.at, rel, nil
}

// withPath replaces the path in an error by the complete one.
func withPath(op, name string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	} else if at, ok := errors.AsType[*os.LinkError](err); ok {
		err = at.Err
	}
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (o *osFS) Lstat(name string) (fs.FileInfo, error) {
	root, _, rel, err := o.resolve(name)
	if err != nil {
		return nil, err
	}
	info, err := root.Lstat(rel)
	return info, withPath("lstat", name, err)
}

func (o *osFS) Rename(from, to string) error {
	root, _, rel, err := o.resolve(from)
	if err != nil {
		return err
	}
	return withPath("rename", to, root.Rename(rel, filepath.Base(to)))
}

func (o *osFS) Remove(name string) error {
	root, _, rel, err := o.resolve(name)
	if err != nil {
		return err
	}
	return withPath("remove", name, root.Remove(rel))
}

func (o *osFS) ReadDir(name string) ([]string, error) {
	root, _, rel, err := o.resolve(name)
	if err != nil {
		return nil, err
	}
	d, err := root.Open(rel)
	if err != nil {
		return nil, withPath("open", name, err)
	}
	names, err := d.Readdirnames(-1)
	return names, errors.Join(err, d.Close())
}

func (o *osFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	f, err := o.open(name, flag, mode)
	if err != nil {
		return nil, err // not f, which would be a non-nil interface
	}
	return f, nil
}

// open opens a file in the directory. os.Root would follow a symbolic link.
func (o *osFS) open(name string, flag int, mode fs.FileMode) (*os.File, error) {
	_, at, rel, err := o.resolve(name)
	if err != nil {
		return nil, err
	}
	for {
		fd, err := unix.Openat(int(at.Fd()), rel, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, uint32(mode.Perm()))
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		default:
			return os.NewFile(uintptr(fd), name), nil
		}
	}
}

func (o *osFS) SyncDir(name string) error {
	_, at, _, err := o.resolve(name)
	if err != nil {
		return err
	}
	return withPath("fsync", name, at.Sync())
}

func (o *osFS) Lock(name string) (Lock, error) {
	// It is opened for reading, because an existing lock file can be locked on a read-only disk.
	f, err := o.open(name, os.O_RDONLY|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	l := &fileLock{f: f, name: name}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = ErrLocked
	case err != nil:
		err = &fs.PathError{Op: "lock", Path: name, Err: err}
	case !l.Held():
		err = fmt.Errorf("lock %s: the file was replaced meanwhile", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

type fileLock struct {
	f    *os.File
	name string
}

// Held checks the path instead of the opened directory, because processes find the lock by its path.
func (l *fileLock) Held() bool {
	locked, err := l.f.Stat()
	if err != nil {
		return false
	}
	current, err := os.Lstat(l.name)
	return err == nil && os.SameFile(locked, current)
}

// Close releases the lock. If it removed the file, two processes could lock two files of the same name.
func (l *fileLock) Close() error { return l.f.Close() }

// Read reads a state directory without changing it, also while another process uses the directory.
func Read(cfg Config) (*Loaded, error) {
	cfg.FS = readOnly{cmp.Or[FS](cfg.FS, &osFS{})}
	s := New(cfg)
	loaded, err := s.Open()
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return loaded, s.Close()
}

// readOnly is a file system that rejects writes.
type readOnly struct{ FS }

func (r readOnly) Directory(path string, _ bool) (string, bool, error) {
	dir, groupWrites, err := r.FS.Directory(path, true)
	return dir, groupWrites, err
}

func (r readOnly) Rename(from, _ string) error {
	return &fs.PathError{Op: "rename", Path: from, Err: syscall.EROFS}
}

func (r readOnly) Remove(name string) error {
	return &fs.PathError{Op: "remove", Path: name, Err: syscall.EROFS}
}

func (r readOnly) Lock(name string) (Lock, error) {
	return nil, &fs.PathError{Op: "lock", Path: name, Err: syscall.EROFS}
}
