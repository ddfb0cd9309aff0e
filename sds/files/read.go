package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// MaxFile is the largest file that is read, in bytes: what the API server of
// Kubernetes accepts for a whole Secret.
const MaxFile = 1 << 20

// attempts is how often a file is looked for before an error counts. Any error
// may come of a link that was exchanged between two steps of one attempt, and
// exchanges are seconds apart at least.
const attempts = 3

// Read returns the content of a file. Its path must be absolute and clean and lie
// below one of the directories, and so must, after every symbolic link was
// followed, the file: else the error is ErrOutside, and nothing was touched if
// the path alone says so. The error of a file that does not exist satisfies
// errors.Is(err, fs.ErrNotExist). More than MaxFile bytes are refused, and so is
// what is no regular file, without being opened.
//
// It gives up after a few seconds what the file system does not answer, such as a dead
// network mount.
func (d *Dirs) Read(path string) ([]byte, error) {
	if err := check(path); err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	if !d.Contains(path) {
		return nil, fmt.Errorf("read %s: %w", path, d.outside(path))
	}
	return d.bounded(path, func() ([]byte, error) { return d.read(path) })
}

// bounded reads a file unless an earlier read of it hangs still.
func (d *Dirs) bounded(path string, read func() ([]byte, error)) ([]byte, error) {
	d.mu.Lock()
	hung := d.hung[path]
	if d.hung == nil {
		d.hung = make(map[string]bool)
	}
	d.mu.Unlock()
	if hung {
		return nil, fmt.Errorf("read %s: an earlier read of it has not ended: is it on a volume that hangs?", path)
	}
	var ended, left bool // under d.mu
	data, err := userfile.Within("read "+path, func() ([]byte, error) {
		data, err := read()
		d.mu.Lock()
		defer d.mu.Unlock()
		if ended = true; left {
			delete(d.hung, path)
		}
		return data, err
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if !ended {
		left, d.hung[path] = true, true
	}
	return data, err
}

func (d *Dirs) read(path string) ([]byte, error) {
	var err error
	for range attempts {
		var data []byte
		if data, err = d.attempt(path); err == nil {
			return data, nil
		}
	}
	err = reason(path, err)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: give uid %d the right to read it and its directories", err, os.Geteuid())
	}
	return nil, fmt.Errorf("read %s: %w", path, err)
}

func (d *Dirs) attempt(path string) ([]byte, error) {
	at, err := d.locate(path)
	if err != nil {
		return nil, err
	}
	f, err := at.open()
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	if d.owned {
		if err := own(f); err != nil {
			return nil, err
		}
	}
	return content(f)
}

// place is where a file really is: a directory that is allowed and its name in
// it, both without symbolic links when they were looked at.
type place struct {
	dir, name string
}

// locate follows the links of a path to a regular file in one of the directories.
func (d *Dirs) locate(path string) (place, error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return place{}, err
	}
	for _, allowed := range d.paths {
		dir, err := filepath.EvalSymlinks(allowed)
		if err != nil {
			continue // what cannot be found contains nothing
		}
		if name, ok := below(dir, target); ok {
			// To open a pipe or a device can be noticed, even without blocking.
			info, err := os.Lstat(target)
			if err != nil {
				return place{}, err
			}
			return place{dir, name}, regular(info)
		}
	}
	if target != path {
		return place{}, fmt.Errorf("its link leads to %s: %w", target, d.outside(target))
	}
	return place{}, d.outside(target)
}

// open opens the file through its directory, which nothing that was exchanged
// since it was located can lead out of. It does not wait for the writer of a pipe.
func (p place) open() (*os.File, error) {
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // nothing was written
	f, err := root.OpenFile(p.name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(p.dir, p.name), Err: at.Err}
	}
	return f, err
}

// content reads an open file, unless it has become another than was located.
func content(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := regular(info); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > MaxFile:
		return nil, fmt.Errorf("it is larger than the limit of %d bytes: is it the right file?", MaxFile)
	}
	return data, nil
}

// own refuses a file of another user, who could have put it there.
func own(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() && sys.Uid != 0 {
		uid := "another user"
		if ok {
			uid = fmt.Sprintf("uid %d", sys.Uid)
		}
		return fmt.Errorf("it belongs to %s, and holdfast runs as uid %d: remove it", uid, os.Geteuid())
	}
	return nil
}

// regular says what something is if it is no regular file.
func regular(info fs.FileInfo) error {
	what := "a special file"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		what = "a directory"
	case mode&fs.ModeSymlink != 0:
		what = "a symbolic link that keeps changing"
	case mode&fs.ModeNamedPipe != 0:
		what = "a named pipe"
	case mode&fs.ModeSocket != 0:
		what = "a socket"
	case mode&fs.ModeDevice != 0:
		what = "a device"
	}
	return fmt.Errorf("it is %s: name a regular file", what)
}

// reason takes the path off an error that names it once more.
func reason(path string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok && at.Path == path {
		return at.Err
	}
	return err
}
