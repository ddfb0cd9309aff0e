package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

type observed struct {
	name string
	info fs.FileInfo
	hash uint64
	data []byte
	err  error
}

func (o observed) same(other observed) bool {
	return o.name == other.name && o.hash == other.hash && text(o.err) == text(other.err)
}

// pass is the result of one scan of the directory, in order of name; not nil.
type pass []observed

func (p pass) same(other pass) bool { return slices.EqualFunc(p, other, observed.same) }

// sameNames reports whether two passes have the same files, whatever is in them.
func (p pass) sameNames(other pass) bool {
	return slices.EqualFunc(p, other, func(a, b observed) bool { return a.name == b.name })
}

type scanner struct {
	dir     string
	limit   int64
	readDir func(string) ([]os.DirEntry, error) // os.ReadDir, except in tests
	// parsed returns the hash of the content of a file that was parsed last; such content is not kept.
	parsed func(name string) (hash uint64, ok bool)

	passes int
	// last holds each file as it was read last, without its data.
	last map[string]observed
	// modified is when something was made, renamed or deleted in the directory; the zero time if that is not known.
	modified time.Time

	running userfile.Scan[scanned]
}

// scanned is the result of a scan. ignored has the reasons why files are not read. The error means that the
// directory could not be read; an error of one file is in its entry.
type scanned struct {
	pass    pass
	ignored map[string]string
	err     error
}

const (
	// rereadEvery is after how many passes a file is read anyway, for file systems that do not update the time.
	rereadEvery = 20
	// stableTime exceeds the resolution of any file system's clock: after it, a change gives another time.
	stableTime = 3 * time.Second
)

// scan scans the directory once, unless the file system does not answer or ctx ends.
func (s *scanner) scan(ctx context.Context) scanned {
	result, err := s.running.Do(ctx, func() scanned {
		p, ignored, err := s.read()
		return scanned{p, ignored, err}
	})
	if err != nil {
		return scanned{err: err}
	}
	return result
}

func (s *scanner) read() (p pass, ignored map[string]string, err error) {
	entries, err := s.readDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read directory: %w", err)
	}
	s.modified = time.Time{}
	if info, err := os.Stat(s.dir); err == nil {
		s.modified = info.ModTime()
	}
	s.passes++
	p, ignored = pass{}, make(map[string]string)
	last := make(map[string]observed, len(entries))
	for _, e := range entries {
		// Kubernetes keeps the files of a volume in "..data" and "..2026_…".
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		o, there := s.observe(e.Name(), ignored)
		if !there {
			continue
		}
		p = append(p, o)
		o.data = nil
		last[o.name] = o
	}
	s.last = last
	if len(p) == 0 {
		return nil, ignored, errNoFile
	}
	return p, ignored, nil
}

// errNoFile is that of a directory without a file of resources.
var errNoFile = errors.New("it has no file of resources, as a volume that is not mounted; to have none on purpose, leave a file with \"resources: []\" in it")

// age is how long ago something was made, renamed or deleted in the directory; 0 if that is not known.
func (s *scanner) age() time.Duration {
	if s.modified.IsZero() {
		return 0
	}
	return time.Since(s.modified)
}

// observe examines one file; isConfig is false if it is not a configuration file.
func (s *scanner) observe(name string, ignored map[string]string) (o observed, isConfig bool) {
	o.name = name
	path := filepath.Join(s.dir, name)
	info, err := os.Stat(path)
	_, isConfig = parserFor(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isLink(path):
		return o, false // deleted since the directory was read
	case err != nil:
		o.err = reason(err)
		return o, isConfig
	case info.IsDir():
		return o, false
	case !isConfig:
		ignored[name] = "files with this extension are not read"
		return o, false
	case !info.Mode().IsRegular():
		ignored[name] = "not a regular file"
		return o, false
	}
	parsed, known := s.parsed(name)
	if last, ok := s.last[name]; ok && known && last.err == nil && last.hash == parsed && s.unchanged(last.info, info) {
		return last, true
	}
	o.data, o.info, o.err = s.readFile(path)
	if o.err != nil {
		return o, true
	}
	if o.hash = xxhash.Sum64(o.data); known && o.hash == parsed {
		o.data = nil
	}
	return o, true
}

// unchanged reports whether a file need not be read again: its time is the same and long enough ago.
func (s *scanner) unchanged(previous, current fs.FileInfo) bool {
	return s.passes%rereadEvery != 0 &&
		os.SameFile(previous, current) && previous.Size() == current.Size() && previous.ModTime().Equal(current.ModTime()) &&
		time.Since(current.ModTime()) > stableTime
}

func (s *scanner) readFile(path string) ([]byte, fs.FileInfo, error) {
	// If the file became a pipe since it was examined, the open must not block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, reason(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, reason(err)
	}
	if !info.Mode().IsRegular() {
		return nil, info, errors.New("not a regular file")
	}
	var data []byte
	if info.Size() <= s.limit {
		if data, err = io.ReadAll(io.LimitReader(f, s.limit+1)); err != nil {
			return nil, info, reason(err)
		}
	}
	if max(info.Size(), int64(len(data))) > s.limit {
		return nil, info, fmt.Errorf("larger than the limit of %d bytes", s.limit)
	}
	return data, info, nil
}

// reason removes the path from an error, because the caller adds the file name.
func reason(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", at.Op, at.Err)
	}
	return err
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}
