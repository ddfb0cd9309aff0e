package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// FS is what the store asks of the operating system. Errors wrap those of
// package syscall; names are paths.
type FS interface {
	// MkdirAll makes a directory and what is missing above it.
	MkdirAll(name string, mode fs.FileMode) error
	Chmod(name string, mode fs.FileMode) error
	// Stat follows symbolic links, Lstat does not.
	Stat(name string) (fs.FileInfo, error)
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

// osFS is the real one.
type osFS struct{}

func (osFS) MkdirAll(name string, mode fs.FileMode) error { return os.MkdirAll(name, mode) }
func (osFS) Chmod(name string, mode fs.FileMode) error    { return os.Chmod(name, mode) }
func (osFS) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }
func (osFS) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (osFS) Rename(from, to string) error                 { return os.Rename(from, to) }
func (osFS) Remove(name string) error                     { return os.Remove(name) }

func (osFS) ReadDir(name string) ([]string, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	return names, errors.Join(err, d.Close())
}

func (osFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (osFS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (osFS) Lock(name string) (Lock, error) {
	// For reading only: an existing lock file can be locked on a disk that takes
	// no writes.
	f, err := os.OpenFile(name, os.O_RDONLY|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, fileMode)
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
