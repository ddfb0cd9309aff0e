package store

import (
	"io/fs"
	"syscall"
)

// Read reads a state directory without changing it, also while another process uses the directory.
func Read(cfg Config) (*Loaded, error) {
	base := cfg.FS
	if base == nil {
		base = &osFS{}
	}
	cfg.FS = readOnly{base}
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
