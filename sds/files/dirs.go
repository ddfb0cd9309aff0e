// Package files reads the files that others write into mounted directories -
// certificates, keys and trust bundles of Kubernetes Secrets and projected
// volumes, of CSI drivers and of cert-manager - and says when they have changed.
// It knows nothing of what is in them.
//
// Dirs.Read promises that nothing outside the allowed directories is read,
// wherever a symbolic link leads and whenever it is exchanged, that it waits for
// no pipe or device, and that it returns no more than MaxFile bytes. It does not
// promise that a file was not written to while it was read.
//
// Poller promises that, of files which rest, the newest contents are told, and
// told once: contents count when two passes in a row found the same, those of all
// files of a unit together. It keeps no contents, only their hash, and files that
// vanish take nothing away. It does not promise that contents belong together:
// who writes a certificate and its key further apart than two passes must expect
// that the consumer sees one without the other.
//
// It looks again and again and does not watch, as inotify is defeated by the ways
// in which such files change. A watch belongs to an inode: kubelet exchanges a
// volume by renaming the link "..data", so that the watched file is not written
// to but deleted, and the watch with it; a CSI driver that mounts anew covers what
// is watched; on FUSE and network file systems what another machine writes raises
// no event; a file mounted by subPath is an inode of its own, apart from the
// directory that its writer changes. And instances of inotify are a resource of
// the node that all containers of a user share (128 by default). A pass costs a
// few system calls for each file.
//
// Dirs may be used by any number of goroutines; a Poller's Run too, each with
// callbacks of its own.
package files

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// ErrOutside says that a path lies, or leads, outside the allowed directories.
var ErrOutside = errors.New("outside the allowed directories")

// Dirs are the directories that files may be read from, with everything below
// them. Such a directory may be a symbolic link itself and need not exist yet;
// holdfast must be able to list it, as well as to enter it. Who may exchange an
// allowed directory itself, from the one above it, decides what is allowed.
type Dirs struct {
	paths []string
	// owned refuses files of other users than this process's and root.
	owned bool

	mu sync.Mutex
	// hung are the reads that were given up and have not ended, by path. No other is begun
	// meanwhile: each holds a thread.
	hung map[string]bool
}

// Owned returns the same directories, from which only files of this process's user and of
// root are read.
func (d *Dirs) Owned() *Dirs { return &Dirs{paths: d.paths, owned: true} }

// NewDirs returns the directories of these paths, which must be absolute and
// clean. Without any, nothing may be read. It does no I/O.
func NewDirs(paths ...string) (*Dirs, error) {
	for _, path := range paths {
		if err := check(path); err != nil {
			return nil, fmt.Errorf("directory %q: %w", path, err)
		}
	}
	return &Dirs{paths: slices.Clone(paths)}, nil
}

// Contains reports, by its name alone, whether a path may be read: it is absolute
// and clean and lies below one of the directories. Where its links lead is known
// only when it is read. It does no I/O.
func (d *Dirs) Contains(path string) bool {
	return check(path) == nil && slices.ContainsFunc(d.paths, func(dir string) bool {
		name, ok := below(dir, path)
		return ok && name != "."
	})
}

// outside is the error of a path that lies in none of the directories.
func (d *Dirs) outside(path string) error {
	allowed := strings.Join(d.paths, ", ")
	if allowed == "" {
		allowed = "there are none"
	}
	return fmt.Errorf("%w (%s): to allow it, add %s to them", ErrOutside, allowed, filepath.Dir(path))
}

// check says what is wrong with a path that a person wrote.
func check(path string) error {
	switch {
	case path == "":
		return errors.New("the path is empty: name it from / on")
	case strings.ContainsRune(path, 0):
		return errors.New("the path contains a NUL byte, which no file's name has")
	case !filepath.IsAbs(path):
		return errors.New("the path is relative: name it from / on")
	case filepath.Clean(path) != path:
		return fmt.Errorf("the path is not in its shortest form: write %q", filepath.Clean(path))
	}
	return nil
}

// below returns the name that a path has in a directory, "." for the directory
// itself. Both are absolute and clean.
func below(dir, path string) (name string, ok bool) {
	name, err := filepath.Rel(dir, path)
	return name, err == nil && filepath.IsLocal(name)
}
