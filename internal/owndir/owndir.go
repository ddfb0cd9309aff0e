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
	// or to which everybody may write; "" refuses such a one. It must be this user's, and
	// nobody else's to look into. With it, do everything by Dir.Root.
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
		return use.openSub(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if use.Existing {
			return nil, errMissing
		}
		err = use.make(dir)
	}
	if err != nil {
		return nil, err
	}
	root, err := use.openChecked(dir)
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

var errMissing = errors.New("does not exist")

// openSub opens Use.Sub in a directory that was made for others too.
func (use Use) openSub(dir string) (*Dir, error) {
	real, _, err := use.checkAbove(dir)
	if err != nil {
		return nil, err
	}
	// Whose the entry is will be looked at in the directory that is open.
	if _, err := use.checkStep(real, filepath.Join(real, use.Sub), os.Geteuid()); err != nil {
		return nil, err
	}
	root, err := use.openChecked(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // nothing was written to it
	return use.below(root, dir, use.Sub)
}

// Below opens the directory of that name in d, and makes it if it is missing. It must be
// a directory of this process's user, no link to one, and nobody else's to look into.
func (d *Dir) Below(name string) (*Dir, error) {
	return Use{Group: -1}.below(d.Root, d.Path, name)
}

// below makes and opens a directory in one that is open, whatever becomes of the path of
// that. It follows no link: another user could have made it.
func (use Use) below(root *os.Root, dir, name string) (*Dir, error) {
	path := filepath.Join(dir, name)
	entry, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if use.Existing {
			return nil, errMissing
		}
		if err = use.makeBelow(root, name); err == nil {
			entry, err = root.Lstat(name)
		}
	}
	if err == nil {
		err = use.checkBelow(path, entry)
	}
	if err != nil {
		return nil, err
	}
	opened, err := openEntry(root, path, name, entry)
	if err != nil {
		return nil, err
	}
	info, err := opened.Stat(".")
	if err == nil {
		err = use.checkBelow(path, info)
	}
	if err != nil {
		_ = opened.Close()
		return nil, err
	}
	return &Dir{Path: path, Root: opened, Mode: info.Mode()}, nil
}

func (use Use) makeBelow(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o700); errors.Is(err, fs.ErrExist) {
		return nil // somebody was faster: what it is will be looked at
	} else if err != nil {
		return err
	}
	at, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(at.Sync(), at.Close())
}

// checkBelow refuses what is not a directory of this process's user and nobody else's.
func (use Use) checkBelow(path string, info fs.FileInfo) error {
	refused := fs.FileMode(0o077)
	if use.GroupWrites {
		refused = 0o007
	}
	switch uid, perm := owner(info), info.Mode().Perm(); {
	case !info.IsDir():
		return unsafe(fmt.Sprintf("%s is no directory of holdfast's, but a %s: another user may have made it: remove it, or name another path", path, what(info.Mode())))
	case uid != os.Geteuid():
		return unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: remove it, or name another path", path, uid, os.Geteuid()))
	case perm&refused != 0:
		return unsafe(fmt.Sprintf("others may look into %s (mode %04o): chmod 0700 it, or name another path", path, perm))
	}
	return nil
}

func what(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "symbolic link"
	case mode.IsRegular():
		return "file"
	}
	return "special file"
}

// openChecked opens a directory if checkAbove allows it. From the first directory on in
// which others could exchange an entry, it goes from one to the next without links, so
// that it arrives where checkAbove has looked, or nowhere.
func (use Use) openChecked(dir string) (*os.Root, error) {
	real, loose, err := use.checkAbove(dir)
	if err != nil {
		return nil, err
	}
	if loose == "" {
		return os.OpenRoot(dir)
	}
	root, err := os.OpenRoot(loose)
	if err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(loose, real)
	if err != nil || rel == "." {
		return root, err
	}
	at := loose
	for step := range strings.SplitSeq(rel, "/") {
		at = filepath.Join(at, step)
		var next *os.Root
		entry, err := root.Lstat(step)
		if err == nil && !trusted(owner(entry)) {
			err = unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: name another path", at, owner(entry), os.Geteuid()))
		}
		if err == nil {
			next, err = openEntry(root, at, step, entry)
		}
		_ = root.Close()
		if err != nil {
			return nil, err
		}
		root = next
	}
	return root, nil
}

// openEntry opens the directory that Lstat has found under a name in root, and nothing
// that was put in its place since, nor what a link leads to.
func openEntry(root *os.Root, path, name string, entry fs.FileInfo) (*os.Root, error) {
	if entry.Mode()&fs.ModeSymlink != 0 {
		return nil, linkError(path)
	}
	opened, err := root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	info, err := opened.Stat(".")
	if err == nil && !os.SameFile(entry, info) {
		err = unsafe(fmt.Sprintf("%s was exchanged for something else while it was opened: use a directory to which nobody else may write", path))
	}
	if err != nil {
		_ = opened.Close()
		return nil, err
	}
	return opened, nil
}

func linkError(path string) error {
	return unsafe(fmt.Sprintf("%s is a symbolic link in a directory to which others may write: remove it, or name the directory that it leads to", path))
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
// could put something else in place of the next step. It returns where dir is, without
// links, and the first directory on the way there to which others may write and that is
// allowed for all that; "" for none.
func (use Use) checkAbove(dir string) (real, loose string, _ error) {
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
			return "", "", err
		}
		open, err := use.checkStep(at, next, owner(info))
		if err != nil {
			return "", "", err
		}
		if open && (loose == "" || !below(loose, at)) {
			loose = at
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if open {
			return "", "", linkError(next)
		}
		if links++; links > maxLinks {
			return "", "", fmt.Errorf("%s: too many symbolic links", next)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", "", err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
	}
	return at, loose, nil
}

// below reports whether a directory is another one or lies in it.
func below(above, dir string) bool {
	rel, err := filepath.Rel(above, dir)
	return err == nil && filepath.IsLocal(rel)
}

// checkStep refuses a directory in which others could replace the entry next, which
// belongs to the user entry. It reports whether they could do so for all that, in one
// that is allowed.
func (use Use) checkStep(dir, next string, entry int) (open bool, _ error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return false, err
	}
	uid, perm := owner(info), info.Mode().Perm()
	if !trusted(uid) {
		return false, unsafe(fmt.Sprintf("%s belongs to uid %d, who could replace %s: use a directory below one of root's or of uid %d", dir, uid, next, os.Geteuid()))
	}
	switch {
	case perm&0o022 == 0:
		return false, nil
	case info.Mode()&fs.ModeSticky != 0: // there one may replace what is one's own only
		if !trusted(entry) {
			return false, unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: name another path", next, entry, os.Geteuid()))
		}
		return false, nil
	case use.GroupWrites && perm&0o002 == 0 && uid == os.Geteuid():
		return true, nil
	case use.Sub != "" && (uid != os.Geteuid() || uid == 0):
		return true, nil // openChecked follows no link there, and refuses another owner's
	case isVolume(dir):
		return true, nil
	}
	return false, unsafe(fmt.Sprintf("others may write to %s (mode %04o) and so replace %s: chmod go-w it, or use another directory", dir, perm, next))
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
	real, _, err := use.checkAbove(dir)
	if err != nil || len(missing) == 0 {
		return err
	}
	_, err = use.checkStep(real, missing[len(missing)-1], os.Geteuid())
	return err
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
