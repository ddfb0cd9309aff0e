package store

import (
	"io/fs"
	"path/filepath"
	"sync"
)

// faultFS is the real file system until it is told to fail.
type faultFS struct {
	osFS
	mu sync.Mutex
	// From the nth call of op on ("" is any), calls fail with err: that one, or if
	// lasting all.
	op      string
	nth     int
	err     error
	lasting bool
	seen    int
	fired   bool
	trace   []string
	locks   []Lock
}

func (f *faultFS) call(op, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trace = append(f.trace, op+" "+filepath.Base(name))
	if f.err == nil || f.op != "" && f.op != op {
		return nil
	}
	f.seen++
	if f.seen == f.nth || f.lasting && f.seen > f.nth {
		f.fired = true
		return &fs.PathError{Op: op, Path: name, Err: f.err}
	}
	return nil
}

// heal ends the fault.
func (f *faultFS) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = nil
}

func (f *faultFS) Directory(path string, mustExist bool) (string, bool, error) {
	if err := f.call("directory", path); err != nil {
		return "", false, err
	}
	return f.osFS.Directory(path, mustExist)
}

func (f *faultFS) Lstat(name string) (fs.FileInfo, error) {
	if err := f.call("lstat", name); err != nil {
		return nil, err
	}
	return f.osFS.Lstat(name)
}

func (f *faultFS) ReadDir() ([]fs.DirEntry, error) {
	if err := f.call("readdir", f.dir.Path); err != nil {
		return nil, err
	}
	return f.osFS.ReadDir()
}

func (f *faultFS) Rename(from, to string) error {
	if err := f.call("rename", to); err != nil {
		return err
	}
	return f.osFS.Rename(from, to)
}

func (f *faultFS) Remove(name string) error {
	if err := f.call("remove", name); err != nil {
		return err
	}
	return f.osFS.Remove(name)
}

func (f *faultFS) SyncDir() error {
	if err := f.call("syncdir", f.dir.Path); err != nil {
		return err
	}
	return nil // the disk is not synced
}

func (f *faultFS) Lock(name string) (Lock, error) {
	if err := f.call("lock", name); err != nil {
		return nil, err
	}
	l, err := f.osFS.Lock(name)
	if err == nil {
		f.locks = append(f.locks, l)
	}
	return l, err
}

func (f *faultFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	if err := f.call("open", name); err != nil {
		return nil, err
	}
	file, err := f.osFS.OpenFile(name, flag, mode)
	if err != nil {
		return nil, err
	}
	return &faultFile{File: file, fs: f, name: name}, nil
}

type faultFile struct {
	File
	fs   *faultFS
	name string
}

// Write writes half of the data before it fails, as a full disk does.
func (f *faultFile) Write(b []byte) (int, error) {
	if err := f.fs.call("write", f.name); err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, err
	}
	return f.File.Write(b)
}

func (f *faultFile) ReadAt(b []byte, at int64) (int, error) {
	if err := f.fs.call("read", f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(b, at)
}

func (f *faultFile) Sync() error {
	if err := f.fs.call("fsync", f.name); err != nil {
		return err
	}
	return nil
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.fs.call("truncate", f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Stat() (fs.FileInfo, error) {
	if err := f.fs.call("fstat", f.name); err != nil {
		return nil, err
	}
	return f.File.Stat()
}
