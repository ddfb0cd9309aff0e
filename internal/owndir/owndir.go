// Package owndir opens directories that belong to this process alone, for its state, identities and sockets.
//
// It promises that only this process's user and root can add or remove files in a directory that Open returned,
// and that nobody else could have created it. It never changes the mode or the owner of a directory that it did
// not create. It also checks, up to the root, who could replace the directory as a whole, with two exceptions for
// directories of root to which others may write. One is the root of a volume, which Kubernetes creates for
// everybody: the pod decides who else mounts it. The other one is Use.Sub, for callers that only work with
// Dir.Root: their operations stay in the checked directory even if another one takes its path.
//
// It only checks owners and modes, not access control lists. Its functions may be called concurrently.
package owndir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

type Use struct {
	// Name is the beginning of messages, such as "state directory".
	Name string
	// Sub is the subdirectory that is created and used if root created the directory for everybody, or if
	// everybody may write to it; "" rejects such a directory. It must belong to this user and be private. If
	// Sub is set, all operations must use Dir.Root.
	Sub string
	// GroupWrites accepts a directory of this user to which its group may write: kubelet lets the group of a pod
	// write to everything in a volume.
	GroupWrites bool
	// Mode and Group are those of new directories; 0 selects 0700, and -1 the group of this process.
	Mode     fs.FileMode
	Group    int
	Existing bool
}

// Dir is a directory that belongs to this process alone.
type Dir struct {
	// Path is the requested path, or that of Use.Sub in it.
	Path string
	Root *os.Root
	// Mode is the mode of the directory; its group may write only with Use.GroupWrites.
	Mode fs.FileMode
}

// ErrUnsafe reports that other users could write to a directory, or replace it.
var ErrUnsafe = errors.New("is not this process's alone")

// unsafe is an ErrUnsafe with the reason and the remedy, in one line.
type unsafe string

func (u unsafe) Error() string      { return string(u) }
func (unsafe) Is(target error) bool { return target == ErrUnsafe }

func Open(path string, use Use) (*Dir, error) {
	d, err := open(path, use)
	switch {
	case err == nil:
		return d, nil
	case errors.Is(err, ErrUnsafe):
		return nil, fmt.Errorf("%s: %w", use.Name, err) // err names the directory
	}
	return nil, fmt.Errorf("%s %s: %w", use.Name, path, withoutPath(err, path))
}

func open(path string, use Use) (*Dir, error) {
	dir, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(dir)
	if err == nil && info.IsDir() && use.Sub != "" && isShared(info) {
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

func (use Use) openSub(dir string) (*Dir, error) {
	real, _, err := use.checkAbove(dir)
	if err != nil {
		return nil, err
	}
	// The owner of the entry is checked later, in the opened directory.
	if _, err := use.checkStep(real, filepath.Join(real, use.Sub), os.Geteuid()); err != nil {
		return nil, err
	}
	root, err := use.openChecked(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // nothing was written to it
	return use.openBelow(root, dir, use.Sub)
}

// Below opens or creates a subdirectory of d, a private directory of this process's user, and not a link.
func (d *Dir) Below(name string) (*Dir, error) {
	return Use{Group: -1}.openBelow(d.Root, d.Path, name)
}

// openBelow opens or creates a subdirectory of an open directory, even if the path of that has changed. It
// follows no link, because another user could have created it.
func (use Use) openBelow(root *os.Root, dir, name string) (*Dir, error) {
	path := filepath.Join(dir, name)
	entry, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if use.Existing {
			return nil, errMissing
		}
		if err = use.mkdirBelow(root, name); err == nil {
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

func (use Use) mkdirBelow(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o700); errors.Is(err, fs.ErrExist) {
		return nil // another process was faster: the caller checks the entry
	} else if err != nil {
		return err
	}
	return SyncDir(root, ".")
}

// SyncDir makes changes of the names in a directory durable.
func SyncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (use Use) checkBelow(path string, info fs.FileInfo) error {
	forbidden := fs.FileMode(0o077)
	if use.GroupWrites {
		forbidden = 0o007
	}
	switch uid, perm := userfile.Owner(info), info.Mode().Perm(); {
	case !info.IsDir():
		return unsafe(fmt.Sprintf("%s is no directory of holdfast's, but %s: another user may have made it: remove it, or name another path", path, userfile.FileType(info.Mode())))
	case uid != os.Geteuid():
		return unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: remove it, or name another path", path, uid, os.Geteuid()))
	case perm&forbidden != 0:
		return unsafe(fmt.Sprintf("others may look into %s (mode %04o): chmod 0700 it, or name another path", path, perm))
	}
	return nil
}

// openChecked opens a directory if checkAbove allows it. From the first directory in which other users could
// replace an entry, it opens one directory after the other without following links, so that it reaches exactly
// the directories that checkAbove has checked, or fails.
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
		if err == nil && !trusted(userfile.Owner(entry)) {
			err = unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: name another path", at, userfile.Owner(entry), os.Geteuid()))
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

// openEntry opens the directory entry of root. It fails if the entry was replaced since Lstat, or is a link.
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

// isShared reports whether everybody may write to a directory, or another user's group.
func isShared(info fs.FileInfo) bool {
	perm := info.Mode().Perm()
	return perm&0o002 != 0 || perm&0o020 != 0 && userfile.Owner(info) != os.Geteuid()
}

// check returns an error for a directory of another user, or to which others may write.
func (use Use) check(dir string, info fs.FileInfo) error {
	if uid := userfile.Owner(info); !trusted(uid) {
		return unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: name a directory of its own, or a new one, which it makes", dir, uid, os.Geteuid()))
	}
	forbidden := fs.FileMode(0o022)
	if use.GroupWrites && userfile.Owner(info) == os.Geteuid() {
		forbidden = 0o002
	}
	if perm := info.Mode().Perm(); perm&forbidden != 0 {
		return unsafe(fmt.Sprintf("others may write to %s (mode %04o): name a directory below it, such as %s, which holdfast then makes for itself, or chmod go-w it",
			dir, perm, filepath.Join(dir, "holdfast")))
	}
	return nil
}

// maxLinks bounds the symbolic links of a path, as in the kernel.
const maxLinks = 40

// checkAbove checks every directory on the path to dir, and returns an error if other users could replace the
// next directory of the path. It returns the path of dir without links, and the first directory to which others
// may write although it is accepted; "" for none.
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
		open, err := use.checkStep(at, next, userfile.Owner(info))
		if err != nil {
			return "", "", err
		}
		if open && (loose == "" || !isWithin(loose, at)) {
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

func isWithin(above, dir string) bool {
	rel, err := filepath.Rel(above, dir)
	return err == nil && filepath.IsLocal(rel)
}

// checkStep returns an error for a directory in which others could replace the entry next, which belongs to the
// user entry. open reports that they could do so in a directory that is accepted nevertheless.
func (use Use) checkStep(dir, next string, entry int) (open bool, _ error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return false, err
	}
	uid, perm := userfile.Owner(info), info.Mode().Perm()
	if !trusted(uid) {
		return false, unsafe(fmt.Sprintf("%s belongs to uid %d, who could replace %s: use a directory below one of root's or of uid %d", dir, uid, next, os.Geteuid()))
	}
	switch {
	case perm&0o022 == 0:
		return false, nil
	case info.Mode()&fs.ModeSticky != 0: // users can only replace their own entries
		if !trusted(entry) {
			return false, unsafe(fmt.Sprintf("%s belongs to uid %d, and holdfast runs as uid %d: name another path", next, entry, os.Geteuid()))
		}
		return false, nil
	case use.GroupWrites && perm&0o002 == 0 && uid == os.Geteuid():
		return true, nil
	case use.Sub != "" && (uid != os.Geteuid() || uid == 0):
		return true, nil // openChecked follows no link there, and checks the owner
	case isVolume(dir):
		return true, nil
	}
	return false, unsafe(fmt.Sprintf("others may write to %s (mode %04o) and so replace %s: chmod go-w it, or use another directory", dir, perm, next))
}

// make creates a directory and its missing parents, durably.
func (use Use) make(dir string) error {
	var missing []string // deepest first
	at := dir
	for ; at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, at)
	}
	real, _, err := use.checkAbove(at)
	if err == nil && len(missing) > 0 {
		_, err = use.checkStep(real, missing[len(missing)-1], os.Geteuid())
	}
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(missing) {
		if err := use.mkdir(dir); err != nil {
			return err
		}
		// A directory that cannot be read cannot be synced; its entries may not survive a crash of the node.
		if err := syncDir(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

func (use Use) mkdir(dir string) error {
	if err := os.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		return nil // another process was faster: the caller checks the entry
	} else if err != nil {
		return err
	}
	if use.Group >= 0 {
		if err := os.Lchown(dir, -1, use.Group); err != nil {
			return err
		}
	}
	if use.Mode == 0 {
		return nil
	}
	return os.Chmod(dir, use.Mode) // Mkdir applies the umask
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// trusted reports whether this process may rely on files of a user: itself, root, and the owner of the root
// directory, which is root as seen from this user namespace.
func trusted(uid int) bool {
	if uid == os.Geteuid() || uid == 0 {
		return true
	}
	info, err := os.Lstat("/")
	return err == nil && uid == userfile.Owner(info)
}

// withoutPath removes the operation from an error, and the path if the caller adds it.
func withoutPath(err error, path string) error {
	at, ok := errors.AsType[*fs.PathError](err)
	if !ok {
		return err
	}
	if at.Path == path {
		return at.Err
	}
	return fmt.Errorf("%s: %w", at.Path, at.Err)
}
