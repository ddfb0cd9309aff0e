package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Write writes data to path with exactly the permissions mode, regardless of the umask. A reader sees either the complete
// old file or the complete new one, also after a power failure: the data is written to a temporary file in the same
// directory, synced, and renamed. The directory must exist. A symbolic link at path is replaced, not followed. After an
// error the old file is unchanged, unless the error names the directory: then the rename may not survive a power failure.
func Write(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return fmt.Errorf("bootstrap: write %s: %w", path, err)
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
			return fmt.Errorf("bootstrap: write %s: %w", path, errors.Join(err, discard(temp)))
		}
	}
	return nil
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

// Condition is a prerequisite for writing a bootstrap.
type Condition struct {
	// Name is the configured name of the condition.
	Name string
	// Missing returns nil once the condition holds, and otherwise the reason. It must return soon.
	Missing func(context.Context) error
}

// waitInterval is how often conditions are checked.
const waitInterval = 100 * time.Millisecond

// Wait returns once all conditions hold at the same time. It calls report, unless nil, once for each condition that does
// not hold, with the reason, and once with nil when it then holds. If ctx ends first, the error contains the reasons of all
// missing conditions.
func Wait(ctx context.Context, conditions []Condition, report func(name string, missing error)) error {
	retry := time.NewTicker(waitInterval)
	defer retry.Stop()
	waited := make(map[string]bool)
	for {
		var missing []error
		for _, c := range conditions {
			err := c.Missing(ctx)
			if err != nil {
				missing = append(missing, fmt.Errorf("%s: %w", c.Name, err))
			}
			if report != nil && (err != nil) != waited[c.Name] {
				if _, reported := waited[c.Name]; !reported || err == nil {
					report(c.Name, err)
				}
				waited[c.Name] = err != nil
			}
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(missing...)
		case <-retry.C:
		}
	}
}

// FileThere is the condition that a file of any type is at path; with content, that it is a regular file and not empty.
func FileThere(name, path string, content bool) Condition {
	return Condition{name, func(context.Context) error {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s does not exist", path)
		case err != nil:
			return err
		case !content:
			return nil
		case !info.Mode().IsRegular():
			return fmt.Errorf("%s is not a regular file", path)
		case info.Size() == 0:
			return fmt.Errorf("%s is empty", path)
		}
		file, err := os.Open(path) // checks the permission to read
		if err != nil {
			return err
		}
		return file.Close()
	}}
}

// SocketThere is the condition that a server accepts connections on the Unix socket at path.
func SocketThere(name, path string) Condition {
	return Condition{name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		return conn.Close()
	}}
}
