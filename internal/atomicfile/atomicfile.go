// Package atomicfile replaces files as a whole.
//
// It promises that a reader never sees half a file, and that a failed write leaves the old file. Write may be called
// concurrently, also for one file.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write writes data to path with exactly the permissions mode, regardless of the umask. A reader sees either the complete
// old file or the complete new one, also after a power failure: the data is written to a temporary file in the same
// directory, synced, and renamed. A directory that is missing is created, for its owner only if the file is. A symbolic link at
// path is replaced, not followed. After an error the old file is unchanged, unless the error names the directory: then the rename may not survive a power failure.
func Write(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	temp, err := create(dir, "."+filepath.Base(path)+".*.tmp", mode)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	for _, step := range []func() error{
		func() error { _, err := temp.Write(data); return err },
		func() error { return temp.Chmod(mode) },
		temp.Sync,
		temp.Close,
		func() error { return os.Rename(temp.Name(), path) },
		func() error { return syncDir(dir) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("write %s: %w", path, errors.Join(err, discard(temp)))
		}
	}
	return nil
}

// create creates a temporary file for a file of a mode.
func create(dir, pattern string, mode os.FileMode) (*os.File, error) {
	temp, err := os.CreateTemp(dir, pattern)
	if !errors.Is(err, fs.ErrNotExist) {
		return temp, err
	}
	of := fs.FileMode(0o755)
	if mode&0o077 == 0 {
		of = 0o700
	}
	if err := os.MkdirAll(dir, of); err != nil {
		return nil, err
	}
	return os.CreateTemp(dir, pattern)
}

// discard removes a temporary file, unless it was renamed.
func discard(temp *os.File) error {
	_ = temp.Close() // it may be closed already
	if err := os.Remove(temp.Name()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
