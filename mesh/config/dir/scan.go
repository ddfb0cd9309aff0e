package dir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// observed is a file as a scan found it. data is nil if the content is that which was loaded last.
type observed struct {
	name string // path from the directory, with slashes
	info fs.FileInfo
	hash uint64
	data []byte
	err  error
}

func (o observed) same(other observed) bool {
	return o.name == other.name && o.hash == other.hash && text(o.err) == text(other.err)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// pass is the result of a scan, in order of name.
type pass []observed

func (p pass) same(other pass) bool { return slices.EqualFunc(p, other, observed.same) }

// sameNames reports whether two passes have the same files, whatever is in them.
func (p pass) sameNames(other pass) bool {
	return slices.EqualFunc(p, other, func(a, b observed) bool { return a.name == b.name })
}

const (
	// rereadEvery is after how many scans a file is read anyway, for file systems that do not update
	// the time of a change.
	rereadEvery = 20
	// stableTime exceeds the resolution of any file system's clock: after it, a change gives another
	// time.
	stableTime = 3 * time.Second
	// maxDepth bounds the depth of directories.
	maxDepth = 16
)

// scanner scans a directory tree.
type scanner struct {
	dir     string
	readDir func(path string) ([]os.DirEntry, error)
	// loaded returns the hash of the content of a file that was loaded last.
	loaded func(name string) (hash uint64, ok bool)

	passes int
	// directories are those that the last scan listed.
	directories []string
	// last holds each file as it was read last, without its data.
	last map[string]observed
	// modified is when something was last made, renamed or deleted in one of the directories; the zero time if that is not
	// known.
	modified time.Time

	running userfile.Scan[scanned]
	// listed is called after each scan with directories.
	listed func(directories []string)
}

// scanned is the result of a scan. The error means that the directory could not be read. An error of a file is in its
// entry; that of a subdirectory is in an entry of its own, whose name ends with a slash, and in those of the files that
// were in it.
type scanned struct {
	pass pass
	err  error
}

// isConfig reports whether a file of this name is read.
func isConfig(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// errEmptied is that of a subdirectory that had files and has nothing in it: the place of a volume that is
// not mounted looks like that.
var errEmptied = errors.New("the directory is empty; what was in it stays in use: delete the directory to delete that")

// errCircle is that of a link to a directory that the link is in. Two of them would be 2^maxDepth directories.
var errCircle = errors.New("the link leads to a directory that it is in: it is not read")

// scan scans the tree once, unless the file system does not answer or ctx ends.
func (s *scanner) scan(ctx context.Context) (pass, error) {
	result, err := s.running.Do(ctx, func() scanned {
		p, err := s.read()
		s.listed(s.directories)
		return scanned{p, err}
	})
	if err != nil {
		return nil, err
	}
	return result.pass, result.err
}

func (s *scanner) read() (pass, error) {
	l := lister{root: s.dir, readDir: s.readDir, unreadable: make(map[string]error)}
	if err := l.list("", nil); err != nil {
		return nil, err
	}
	s.passes++
	s.directories = l.directories
	p, last := pass{}, make(map[string]observed, len(l.names))
	add := func(o observed) {
		p = append(p, o)
		o.data = nil
		last[o.name] = o
	}
	for _, name := range l.names {
		if o, there := s.observe(name); there {
			add(o)
		}
	}
	for _, below := range l.empty {
		if len(s.lastBelow(below)) > 0 {
			l.unreadable[below] = errEmptied
		}
	}
	for below, err := range l.unreadable {
		add(observed{name: below, err: err})
		for _, name := range s.lastBelow(below) {
			add(observed{name: name, err: err})
		}
	}
	slices.SortFunc(p, func(a, b observed) int { return strings.Compare(a.name, b.name) })
	s.last, s.modified = last, time.Time{}
	for _, path := range s.directories {
		info, err := os.Stat(path)
		if err != nil {
			s.modified = time.Time{}
			break
		}
		if info.ModTime().After(s.modified) {
			s.modified = info.ModTime()
		}
	}
	return p, nil
}

// age is how long ago, in the last scan, something was made, renamed or deleted in one of the directories; 0 if that is not known.
func (s *scanner) age() time.Duration {
	if s.modified.IsZero() {
		return 0
	}
	return time.Since(s.modified)
}

// root is the directory itself.
const root = ""

// away are directories, with a slash at the end and root for the directory itself, that were away or empty.
type away []string

// with returns the directories of both.
func (a away) with(more away) away {
	for _, directory := range more {
		if !slices.Contains(a, directory) {
			a = append(a, directory)
		}
	}
	return a
}

// has reports whether a file was in one of the directories.
func (a away) has(file string) bool {
	return slices.ContainsFunc(a, func(directory string) bool { return strings.HasPrefix(file, directory) })
}

// emptied returns the subdirectories that have nothing in them any more.
func (p pass) emptied() (directories away) {
	for _, o := range p {
		if o.err == errEmptied && strings.HasSuffix(o.name, "/") {
			directories = append(directories, o.name)
		}
	}
	return directories
}

// lastBelow returns the files of the last scan below a directory, whose name ends with a slash.
func (s *scanner) lastBelow(directory string) (names []string) {
	for name := range s.last {
		if strings.HasPrefix(name, directory) && !strings.HasSuffix(name, "/") {
			names = append(names, name)
		}
	}
	return names
}

// lister lists the configuration files of a tree.
type lister struct {
	root    string
	readDir func(path string) ([]os.DirEntry, error)
	// names are the files; unreadable the subdirectories that could not be read, with a slash at the
	// end.
	names      []string
	unreadable map[string]error
	// directories are the paths of those that were read, and empty the names of those below the root
	// that have nothing in them, with a slash at the end.
	directories, empty []string
}

// list lists the files below a directory, which is in the directories within. Names that begin with a dot
// are left out: Kubernetes keeps the files of a volume in "..2026_…", to which "..data" links, and links
// from their names into "..data", which are followed.
func (l *lister) list(below string, within []fs.FileInfo) error {
	path := filepath.Join(l.root, filepath.FromSlash(below))
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(within, func(above fs.FileInfo) bool { return os.SameFile(above, info) }) {
		return errCircle
	}
	within = append(within, info)
	entries, err := l.readDir(path)
	if err != nil {
		return err
	}
	l.directories = append(l.directories, path)
	if len(entries) == 0 && below != "" {
		l.empty = append(l.empty, below+"/")
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		name := entry.Name()
		if below != "" {
			name = below + "/" + name
		}
		isDir := entry.IsDir()
		if entry.Type()&fs.ModeSymlink != 0 {
			info, err := os.Stat(filepath.Join(l.root, filepath.FromSlash(name)))
			isDir = err == nil && info.IsDir()
		}
		switch {
		case isDir && len(within) <= maxDepth:
			switch err := l.list(name, within); {
			case err == errCircle:
				l.unreadable[name+"/"] = err
			case err != nil && !errors.Is(err, fs.ErrNotExist):
				l.unreadable[name+"/"] = fmt.Errorf("the directory cannot be read: %w", reason(err))
			}
		case !isDir && isConfig(name):
			l.names = append(l.names, name)
		}
	}
	return nil
}

// observe reads a file unless it is unchanged; there is false if it was deleted since it was listed.
func (s *scanner) observe(name string) (o observed, there bool) {
	o.name = name
	file := filepath.Join(s.dir, filepath.FromSlash(name))
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		link, err := os.Lstat(file)
		if err != nil || link.Mode()&fs.ModeSymlink == 0 {
			return o, false
		}
		o.err = errors.New("the link leads to no file")
		return o, true
	}
	if err != nil {
		o.err = reason(err)
		return o, true
	}
	loaded, known := s.loaded(name)
	if last, ok := s.last[name]; ok && known && last.err == nil && last.hash == loaded && s.unchanged(last.info, info) {
		return last, true
	}
	o.info = info
	if o.data, o.err = userfile.Read(file); o.err != nil {
		o.err = reasonOf(file, o.err)
		return o, true
	}
	if o.hash = xxhash.Sum64(o.data); known && o.hash == loaded {
		o.data = nil
	}
	return o, true
}

// unchanged reports whether a file need not be read again: its time is the same and long enough ago.
func (s *scanner) unchanged(previous, current fs.FileInfo) bool {
	return previous != nil && s.passes%rereadEvery != 0 &&
		os.SameFile(previous, current) && previous.Size() == current.Size() && previous.ModTime().Equal(current.ModTime()) &&
		time.Since(current.ModTime()) > stableTime
}

// reasonOf removes the path of a file from an error of userfile, too.
func reasonOf(file string, err error) error {
	if text, ok := strings.CutPrefix(err.Error(), file+": "); ok {
		return errors.New(text)
	}
	return reason(err)
}

// reason removes the path from an error, because the caller adds the file name.
func reason(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}
