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
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
