package bootstrap

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write writes data to path with exactly the permissions mode, regardless of the umask. A reader sees either the complete
// old file or the complete new one, also after a power failure: the data is written to a temporary file in the same
// directory, synced, and renamed. The directory must exist. A symbolic link at path is replaced, not followed. After an
// error the old file is unchanged, unless the error names the directory: then the rename may not survive a power failure.
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

// discard removes the temporary file of a failed write. It ignores a file that is already closed or renamed.
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
