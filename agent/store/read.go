package store

import (
	"io/fs"
	"syscall"
)

// Read reads a state directory and changes nothing there, also while another process
// uses it: what that one has committed so far is read.
func Read(cfg Config) (*Loaded, error) {
	under := cfg.FS
	if under == nil {
		under = &osFS{}
	}
	cfg.FS = readOnly{under}
	s := New(cfg)
	loaded, err := s.Open()
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return loaded, s.Close()
}

// readOnly is a file system that takes no writes.
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
