package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write puts data at path with exactly the permissions mode, whatever the umask. A reader sees the old file or the new
// one, whole, and after a power failure too: the data is written to a temporary file in the same directory, flushed, and
// renamed. The directory must exist. A symbolic link at path is replaced, not followed. On an error the old file is
// untouched, unless the error names the directory: then only the rename may not survive a power failure.
func Write(path string, data []byte, mode os.FileMode) error {
	if err := write(path, data, mode); err != nil {
		return fmt.Errorf("bootstrap: write %s: %w", path, err)
	}
	return nil
}

func write(path string, data []byte, mode os.FileMode) (err error) {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, discard(temp))
		}
	}()
	if _, err := temp.Write(data); err != nil {
		return err
	}
	if err := temp.Chmod(mode); err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// discard removes what a failed write left; that it is closed or renamed away already is no error.
func discard(temp *os.File) error {
	if err := temp.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	if err := os.Remove(temp.Name()); err != nil && !errors.Is(err, os.ErrNotExist) {
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
