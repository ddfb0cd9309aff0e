// Package files reads files that other programs write into mounted directories, such as Kubernetes Secrets,
// and reports when they have changed. It does not interpret their content.
//
// Dirs.Read promises that it reads nothing outside the allowed directories, even if symbolic links are
// replaced at the same time, that it does not wait for pipes or devices, and that it returns at most MaxFile
// bytes. It does not promise that the file was not written to during the read.
//
// Poller promises to report each content once, after two consecutive reads of all files of a unit found the
// same. It stores only the hash of the content, and a file that disappears does not withdraw the previous
// content. It does not promise that files belong together: if a program writes a certificate and its key
// further apart than two reads, the consumer sees one without the other.
//
// It reads periodically instead of using inotify, which watches an inode: kubelet replaces a volume by renaming
// the link "..data", which deletes the watched file; a CSI driver that mounts again covers it; on FUSE and
// network file systems a write from another machine raises no event; a file mounted by subPath has an inode of
// its own. And all containers of one user on a node share 128 inotify instances. One read costs a few system
// calls for each file.
//
// All methods may be called concurrently. Each call of Poller.Run has its own callbacks.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// ErrOutside reports that a path is, or leads, outside the allowed directories.
var ErrOutside = errors.New("outside the allowed directories")

// Dirs are the directories, with everything below them, that files may be read from. A directory may be a
// symbolic link and need not exist yet. Whoever can replace it controls what may be read.
type Dirs struct {
	paths []string
	// ownedOnly rejects files of other users than the user of this process and root.
	ownedOnly bool

	mu sync.Mutex
	// hung are the paths of reads that were abandoned and have not ended. They are not read again meanwhile,
	// because each read blocks a thread.
	hung map[string]bool
}

// Owned returns the same directories, restricted to files of the user of this process and of root.
func (d *Dirs) Owned() *Dirs { return &Dirs{paths: d.paths, ownedOnly: true} }

// NewDirs returns the directories with these absolute and clean paths. It does no I/O.
func NewDirs(paths ...string) (*Dirs, error) {
	for _, path := range paths {
		if err := check(path); err != nil {
			return nil, fmt.Errorf("directory %q: %w", path, err)
		}
	}
	return &Dirs{paths: slices.Clone(paths)}, nil
}

// Contains reports whether a file may be read, by its path, which must be absolute and clean, without I/O.
func (d *Dirs) Contains(path string) bool {
	return check(path) == nil && slices.ContainsFunc(d.paths, func(dir string) bool {
		name, ok := below(dir, path)
		return ok && name != "."
	})
}

func (d *Dirs) outside(path string) error {
	allowed := strings.Join(d.paths, ", ")
	if allowed == "" {
		allowed = "there are none"
	}
	return fmt.Errorf("%w (%s): to allow it, add %s to them", ErrOutside, allowed, filepath.Dir(path))
}

func check(path string) error {
	switch {
	case path == "":
		return errors.New("the path is empty: want an absolute path")
	case strings.ContainsRune(path, 0):
		return errors.New("the path contains a NUL byte")
	case !filepath.IsAbs(path):
		return errors.New("the path is relative: want an absolute path")
	case filepath.Clean(path) != path:
		return fmt.Errorf("the path is not in its shortest form: want %q", filepath.Clean(path))
	}
	return nil
}

// below returns the name of a path relative to a directory, "." for the directory itself. Both
// must be absolute and clean.
func below(dir, path string) (name string, ok bool) {
	name, err := filepath.Rel(dir, path)
	return name, err == nil && filepath.IsLocal(name)
}

// MaxFile bounds a file, in bytes: the Kubernetes API server accepts no larger Secret.
const MaxFile = 1 << 20

// attempts is how often a read is tried: its links may be replaced, at most every few seconds.
const attempts = 3

// Read returns the content of a regular file of at most MaxFile bytes. Its path must be absolute, clean and
// below one of the directories, and so must be the file after following all symbolic links; otherwise the error
// is ErrOutside. Only then is it touched. The error for a missing file satisfies errors.Is(err, fs.ErrNotExist).
// Read returns an error after a few seconds if the file system hangs, such as a dead network mount.
func (d *Dirs) Read(path string) ([]byte, error) {
	if err := check(path); err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	if !d.Contains(path) {
		return nil, fmt.Errorf("read %s: %w", path, d.outside(path))
	}
	return d.readUnlessHung(path, func() ([]byte, error) { return d.read(path) })
}

// readUnlessHung reads a file unless an earlier read of it still hangs.
func (d *Dirs) readUnlessHung(path string, read func() ([]byte, error)) ([]byte, error) {
	d.mu.Lock()
	hung := d.hung[path]
	if d.hung == nil {
		d.hung = make(map[string]bool)
	}
	d.mu.Unlock()
	if hung {
		return nil, fmt.Errorf("read %s: an earlier read has not ended: is the volume unreachable?", path)
	}
	var ended, abandoned bool // protected by d.mu
	data, err := userfile.Within("read "+path, func() ([]byte, error) {
		data, err := read()
		d.mu.Lock()
		defer d.mu.Unlock()
		if ended = true; abandoned {
			delete(d.hung, path)
		}
		return data, err
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if !ended {
		abandoned, d.hung[path] = true, true
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
	err = withoutPath(path, err)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: give uid %d the right to read it and its directories", err, os.Geteuid())
	}
	return nil, fmt.Errorf("read %s: %w", path, err)
}

func (d *Dirs) attempt(path string) ([]byte, error) {
	dir, name, err := d.locate(path)
	if err != nil {
		return nil, err
	}
	f, err := openIn(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // the file is only read
	return readAll(f, d.ownedOnly)
}

// locate follows the links of a path to a regular file in one of the directories. It returns the directory
// and the name of the file in it, without symbolic links at this time.
func (d *Dirs) locate(path string) (dir, name string, err error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", "", err
	}
	for _, allowed := range d.paths {
		dir, err := filepath.EvalSymlinks(allowed)
		if err != nil {
			continue // a missing directory contains no file
		}
		if name, ok := below(dir, target); ok {
			// Opening a pipe or a device can have effects even without blocking.
			info, err := os.Lstat(target)
			if err == nil {
				err = checkRegular(info)
			}
			return dir, name, err
		}
	}
	if target != path {
		return "", "", fmt.Errorf("its link leads to %s: %w", target, d.outside(target))
	}
	return "", "", d.outside(target)
}

// openIn opens a file through its directory, so that a link that was replaced meanwhile cannot lead outside.
// It does not wait for the writer of a pipe.
func openIn(dir, name string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // nothing was written
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(dir, name), Err: at.Err}
	}
	return f, err
}

// readAll reads an open file. With ownedOnly it rejects a file of another user, who could have planted it.
func readAll(f *os.File, ownedOnly bool) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if uid := userfile.Owner(info); ownedOnly && uid != os.Geteuid() && uid != 0 {
		return nil, fmt.Errorf("it belongs to uid %d, and holdfast runs as uid %d: remove it", uid, os.Geteuid())
	}
	if err := checkRegular(info); err != nil {
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

// checkRegular returns an error that says what a file is if it is not a regular file.
func checkRegular(info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	what := userfile.FileType(info.Mode())
	if info.Mode()&fs.ModeSymlink != 0 {
		what += " that keeps changing" // its target was followed before
	}
	return fmt.Errorf("it is %s: name a regular file", what)
}

// withoutPath removes the path from an error whose caller adds it.
func withoutPath(path string, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok && at.Path == path {
		return at.Err
	}
	return err
}
