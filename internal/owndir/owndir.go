// Package owndir opens directories that belong to this process alone: those of its
// state, its identities and its sockets.
//
// It promises that nobody but this process's user and root can put something into a
// directory that Open returned, or take something out, and that nobody else could have
// made it. It never changes the mode or the owner of a directory that it did not make.
// Who may replace the directory as a whole is looked at too, up to the root. There are two
// exceptions, both of them for root's directories to which others may write. The root of
// a volume is one, which Kubernetes makes for everybody: who else mounts it is for the
// pod to say. The other is Use.Sub, for those who work with Dir.Root alone: what they do
// stays in the directory that was looked at, also when another takes its path.
//
// It knows owners and modes only, no access control lists. Its functions may be called
// concurrently.
package owndir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Use says what a directory is for.
type Use struct {
	// Name is what messages begin with, such as "state directory".
	Name string
	// Sub is the name of the directory that is made in one which root made for others too,
	// or to which everybody may write; "" refuses such a one. With it, do everything by
	// Dir.Root.
	Sub string
	// GroupWrites takes a directory of this user's to which its group may write: the kubelet
	// lets the group of a pod write to whatever is in a volume.
	GroupWrites bool
	// Mode is that of directories that are made, 0700 where it is 0; Group owns them, -1 for
	// this process's.
	Mode  fs.FileMode
	Group int
	// Existing makes nothing.
	Existing bool
}

// Dir is a directory that belongs to this process alone.
type Dir struct {
	// Path is where it is: the one that was asked for, or Use.Sub in it.
	Path string
	Root *os.Root
	// Mode is its mode, which lets its group write only with Use.GroupWrites.
	Mode fs.FileMode
}

// ErrUnsafe says that others could put something of their own into a directory, or
// another directory in its place.
var ErrUnsafe = errors.New("is not this process's alone")

// unsafe is an ErrUnsafe with the reason and what to do, in one line.
type unsafe string

func (u unsafe) Error() string      { return string(u) }
func (unsafe) Is(target error) bool { return target == ErrUnsafe }

// Open opens a directory, and makes it if it is missing.
func Open(path string, use Use) (*Dir, error) {
	d, err := open(path, use)
	switch {
	case err == nil:
		return d, nil
	case errors.Is(err, ErrUnsafe):
		return nil, fmt.Errorf("%s: %w", use.Name, err) // which names the directory
	}
	return nil, fmt.Errorf("%s %s: %w", use.Name, path, plain(err, path))
}

func open(path string, use Use) (*Dir, error) {
	dir, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	if err == nil && info.IsDir() && use.Sub != "" && forOthers(info) {
		dir = filepath.Join(dir, use.Sub)
		_, err = os.Lstat(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if use.Existing {
			return nil, errors.New("does not exist")
		}
		err = use.make(dir)
	}
	if err != nil {
		return nil, err
	}
	if err := use.checkAbove(dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d := &Dir{Path: dir, Root: root}
	if info, err = root.Stat("."); err == nil {
		d.Mode = info.Mode()
		err = use.check(dir, info)
	}
	if err != nil {
		_ = root.Close()
		return nil, err
	}
	return d, nil
}

// forOthers reports whether a directory was made for others too: everybody may write to
// it, or its group may and it is another user's.
func forOthers(info fs.FileInfo) bool {
	perm := info.Mode().Perm()
	return perm&0o002 != 0 || perm&0o020 != 0 && owner(info) != os.Geteuid()
}

// check refuses a directory to which others may write, or that is somebody else's.
func (use Use) check(dir string, info fs.FileInfo) error {
	if uid := owner(info); !trusted(uid) {
		return unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: name a directory of its own, or a new one, which it makes", dir, uid, os.Geteuid()))
	}
	refused := fs.FileMode(0o022)
	if use.GroupWrites && owner(info) == os.Geteuid() {
		refused = 0o002
	}
	if perm := info.Mode().Perm(); perm&refused != 0 {
		return unsafe(fmt.Sprintf("others may write to %s (mode %04o): name a directory below it, such as %s, which holdfast then makes for itself, or chmod go-w it",
			dir, perm, filepath.Join(dir, "holdfast")))
	}
	return nil
}

// maxLinks bounds the symbolic links of a path, as the kernel does.
const maxLinks = 40

// checkAbove looks at every directory on the way to dir, and refuses one in which others
// could put something else in place of the next step.
func (use Use) checkAbove(dir string) error {
	at, rest := "/", strings.Split(strings.Trim(dir, "/"), "/")
	for links := 0; len(rest) > 0; {
		step := rest[0]
		rest = rest[1:]
		switch step {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, step)
		info, err := os.Lstat(next)
		if err != nil {
			return err
		}
		if err := use.checkStep(at, next, owner(info)); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return fmt.Errorf("%s: too many symbolic links", next)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
	}
	return nil
}

// checkStep refuses a directory in which others could replace the entry next, which
// belongs to the user entry.
func (use Use) checkStep(dir, next string, entry int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	uid, perm := owner(info), info.Mode().Perm()
	if !trusted(uid) {
		return unsafe(fmt.Sprintf("%s belongs to uid %d, who could replace %s: use a directory below one of root's or of uid %d", dir, uid, next, os.Geteuid()))
	}
	switch {
	case perm&0o022 == 0:
		return nil
	case info.Mode()&fs.ModeSticky != 0: // there one may replace what is one's own only
		if !trusted(entry) {
			return unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: name another path", next, entry, os.Geteuid()))
		}
		return nil
	case use.GroupWrites && perm&0o002 == 0 && uid == os.Geteuid():
		return nil
	case use.Sub != "" && trusted(uid) && (uid != os.Geteuid() || uid == 0):
		return nil // what is done stays in the directory that was opened, and another owner's is refused
	case isVolume(dir):
		return nil
	}
	return unsafe(fmt.Sprintf("others may write to %s (mode %04o) and so replace %s: chmod go-w it, or use another directory", dir, perm, next))
}

// make makes a directory and what is missing above it, durably.
func (use Use) make(dir string) error {
	var missing []string // the lowest one first
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			if err := use.checkFor(at, missing); err != nil {
				return err
			}
			break
		}
		missing = append(missing, at)
	}
	for i := len(missing) - 1; i >= 0; i-- {
		if err := use.mkdir(missing[i]); err != nil {
			return err
		}
		// A directory that may not be read cannot be synced either; what is in it then
		// lasts as long as the node does.
		if err := syncDir(filepath.Dir(missing[i])); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// checkFor refuses a directory, to make missing ones in, whose lowest comes first.
func (use Use) checkFor(dir string, missing []string) error {
	if err := use.checkAbove(dir); err != nil || len(missing) == 0 {
		return err
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	return use.checkStep(real, missing[len(missing)-1], os.Geteuid())
}

func (use Use) mkdir(dir string) error {
	mode := use.Mode
	if mode == 0 {
		mode = 0o700
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil // somebody was faster: what it is will be looked at
	} else if err != nil {
		return err
	}
	if use.Group >= 0 {
		if err := os.Lchown(dir, -1, use.Group); err != nil {
			return err
		}
	}
	if mode == 0o700 {
		return nil
	}
	return os.Chmod(dir, mode) // whatever the umask
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// trusted reports whether a user may own what this process relies on: it itself, root,
// and whoever owns the root directory, which is root under the number that it has in this
// user namespace.
func trusted(uid int) bool {
	if uid == os.Geteuid() || uid == 0 {
		return true
	}
	info, err := os.Lstat("/")
	return err == nil && uid == owner(info)
}

// owner returns the user that a file belongs to, -1 where that is not known.
func owner(info fs.FileInfo) int {
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(sys.Uid)
	}
	return -1
}

// plain takes off what an error repeats: the call, and the path if it is this one.
func plain(err error, path string) error {
	at, ok := errors.AsType[*fs.PathError](err)
	if !ok {
		return err
	}
	if at.Path == path {
		return at.Err
	}
	return fmt.Errorf("%s: %w", at.Path, at.Err)
}
