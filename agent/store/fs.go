package store

import (
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

// FS is what the store asks of the operating system. Errors wrap those of
// package syscall; names are paths below the directory that Directory returned.
type FS interface {
	// Directory opens the state directory, and makes it if it is missing, unless it must
	// exist. It returns where the directory is, and whether its group may write to it.
	Directory(path string, mustExist bool) (dir string, groupWrites bool, err error)
	// Close closes the directory; Directory opens it again.
	Close() error
	// Lstat does not follow symbolic links.
	Lstat(name string) (fs.FileInfo, error)
	// ReadDir returns the names in a directory.
	ReadDir(name string) ([]string, error)
	// OpenFile does not follow a symbolic link in the last element of the name.
	OpenFile(name string, flag int, mode fs.FileMode) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// SyncDir makes what was done to the names in a directory durable.
	SyncDir(name string) error
	// Lock takes the exclusive lock of a file that it creates if it is missing.
	// It does not wait: the error is ErrLocked if another has it.
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
	// Held says whether the file that is locked is still the one of that name.
	Held() bool
}

// Sub is the directory that is made in one which root made for others too.
const Sub = "holdfast"

// osFS is the real one. It works in the directory that it has opened, whatever becomes of
// the path.
type osFS struct {
	mu  sync.Mutex
	own *owndir.Dir // nil before Directory
	at  *os.File    // the same directory, for what owndir.Dir.Root cannot do
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

// in returns the open directory and the name in it.
func (o *osFS) in(name string) (root *os.Root, at *os.File, rel string, err error) {
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

// whole makes an error say the whole path.
func whole(op, name string, err error) error {
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
	root, _, rel, err := o.in(name)
	if err != nil {
		return nil, err
	}
	info, err := root.Lstat(rel)
	return info, whole("lstat", name, err)
}

func (o *osFS) Rename(from, to string) error {
	root, _, rel, err := o.in(from)
	if err != nil {
		return err
	}
	return whole("rename", to, root.Rename(rel, filepath.Base(to)))
}

func (o *osFS) Remove(name string) error {
	root, _, rel, err := o.in(name)
	if err != nil {
		return err
	}
	return whole("remove", name, root.Remove(rel))
}

func (o *osFS) ReadDir(name string) ([]string, error) {
	root, _, rel, err := o.in(name)
	if err != nil {
		return nil, err
	}
	d, err := root.Open(rel)
	if err != nil {
		return nil, whole("open", name, err)
	}
	names, err := d.Readdirnames(-1)
	return names, errors.Join(err, d.Close())
}

func (o *osFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	f, err := o.open(name, flag, mode)
	if err != nil {
		return nil, err // and no typed nil
	}
	return f, nil
}

// open opens a file in the directory. os.Root would follow a symbolic link.
func (o *osFS) open(name string, flag int, mode fs.FileMode) (*os.File, error) {
	_, at, rel, err := o.in(name)
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
	_, at, _, err := o.in(name)
	if err != nil {
		return err
	}
	return whole("fsync", name, at.Sync())
}

func (o *osFS) Lock(name string) (Lock, error) {
	// For reading only: an existing lock file can be locked on a disk that takes
	// no writes.
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

// Held looks at the path, not at the directory that is open: a directory which nobody
// finds any more keeps nobody out.
func (l *fileLock) Held() bool {
	mine, err := l.f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(l.name)
	return err == nil && os.SameFile(mine, there)
}

// Close gives the lock up. The file stays: to remove it would let two processes
// lock two files of one name.
func (l *fileLock) Close() error { return l.f.Close() }

// owner returns the user that a file belongs to.
func owner(info fs.FileInfo) (uid int, ok bool) {
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return -1, false
	}
	return int(sys.Uid), true
}
