package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-xds/holdfast/internal/owndir"
)

// FS is the part of the operating system that the store uses. Errors wrap those of package
// syscall and contain the complete path; names are those of entries of the directory that Directory opened.
type FS interface {
	// Directory opens the state directory, and creates it if it is missing unless it must exist.
	Directory(path string, mustExist bool) (dir string, groupWrites bool, err error)
	// Close closes the directory; Directory opens it again.
	Close() error
	ReadDir() ([]fs.DirEntry, error)
	SyncDir() error
	// Lstat does not follow symbolic links, nor does OpenFile.
	Lstat(name string) (fs.FileInfo, error)
	OpenFile(name string, flag int, mode fs.FileMode) (File, error)
	Rename(from, to string) error
	Remove(name string) error
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

// Lock is a lock that is held until it is closed or its process ends. Its file stays: if it were removed, two
// processes could lock two files of the same name.
type Lock interface {
	io.Closer
	// Held reports whether the locked file is still the one with its name.
	Held() bool
}

// Sub is the name of the subdirectory that is used if root created the directory for everybody.
const Sub = "holdfast"

// osFS works in the opened directory of the operating system, even if the path is renamed or replaced.
type osFS struct{ dir *owndir.Dir } // nil before Directory

func (o *osFS) Directory(path string, mustExist bool) (string, bool, error) {
	dir, err := owndir.Open(path, owndir.Use{Name: "state directory", Sub: Sub, GroupWrites: true, Group: -1, Existing: mustExist})
	if err != nil {
		return "", false, err
	}
	_ = o.Close()
	o.dir = dir
	return dir.Path, dir.Mode.Perm()&0o020 != 0, nil
}

func (o *osFS) Close() error {
	if o.dir == nil {
		return nil
	}
	err := o.dir.Root.Close()
	o.dir = nil
	return err
}

// withPath replaces the path in an error by the complete one.
func (o *osFS) withPath(op, name string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	} else if at, ok := errors.AsType[*os.LinkError](err); ok {
		err = at.Err
	}
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: filepath.Join(o.dir.Path, name), Err: err}
}

func (o *osFS) Lstat(name string) (fs.FileInfo, error) {
	info, err := o.dir.Root.Lstat(name)
	return info, o.withPath("lstat", name, err)
}

func (o *osFS) Rename(from, to string) error {
	return o.withPath("rename", to, o.dir.Root.Rename(from, to))
}

func (o *osFS) Remove(name string) error { return o.withPath("remove", name, o.dir.Root.Remove(name)) }

func (o *osFS) ReadDir() ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(o.dir.Root.FS(), ".")
	return entries, o.withPath("open", ".", err)
}

func (o *osFS) SyncDir() error { return o.withPath("fsync", ".", owndir.SyncDir(o.dir.Root, ".")) }

func (o *osFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	f, err := o.open(name, flag, mode)
	if err != nil {
		return nil, err // not f, which would be a non-nil interface
	}
	return f, nil
}

// open opens a file in the directory. os.Root would follow a symbolic link.
func (o *osFS) open(name string, flag int, mode fs.FileMode) (*os.File, error) {
	at, err := o.dir.Root.Open(".")
	if err != nil {
		return nil, o.withPath("open", name, err)
	}
	defer at.Close() //nolint:errcheck // nothing was written to it
	for {
		fd, err := unix.Openat(int(at.Fd()), name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, uint32(mode.Perm()))
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return nil, o.withPath("open", name, err)
		default:
			return os.NewFile(uintptr(fd), filepath.Join(o.dir.Path, name)), nil
		}
	}
}

func (o *osFS) Lock(name string) (Lock, error) {
	// It is opened for reading, because an existing lock file can be locked on a read-only disk.
	f, err := o.open(name, os.O_RDONLY|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	l := &fileLock{f}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = ErrLocked
	case err != nil:
		err = o.withPath("lock", name, err)
	case !l.Held():
		err = fmt.Errorf("lock %s: the file was replaced meanwhile", f.Name())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return l, nil
}

type fileLock struct{ *os.File }

// Held checks the path instead of the opened directory, because processes find the lock by its path.
func (l *fileLock) Held() bool {
	locked, err := l.Stat()
	if err != nil {
		return false
	}
	current, err := os.Lstat(l.Name())
	return err == nil && os.SameFile(locked, current)
}

// Read reads a state directory without changing it, also while another process uses the directory.
func Read(cfg Config) (*Loaded, error) {
	s := New(cfg)
	s.readOnly = true
	loaded, err := s.Open()
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return loaded, s.Close()
}
