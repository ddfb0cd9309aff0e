package file

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"
)

// observed is a file as one pass saw it.
type observed struct {
	name string
	info fs.FileInfo
	hash uint64
	// data is the content, nil where it was parsed already.
	data []byte
	// err says why the file could not be read.
	err error
}

// same reports whether two passes saw the same content.
func (o observed) same(other observed) bool {
	if o.err != nil || other.err != nil {
		return o.err != nil && other.err != nil && o.name == other.name && o.err.Error() == other.err.Error()
	}
	return o.name == other.name && o.hash == other.hash
}

// pass is what a look at the directory found, in order of name; not nil.
type pass []observed

func (p pass) same(other pass) bool {
	if len(p) != len(other) {
		return false
	}
	for i := range p {
		if !p[i].same(other[i]) {
			return false
		}
	}
	return true
}

// scanner looks at a directory, again and again.
type scanner struct {
	dir   string
	limit int64
	// parsed returns the hash of what was parsed of a file last, false for
	// nothing. Content of that hash is not kept.
	parsed func(name string) (hash uint64, ok bool)

	passes int
	// last is what was read of each file last, without its data.
	last map[string]observed
}

const (
	// rereadEvery is after how many passes a file is read although its size and
	// time did not change, for file systems that do not keep their times.
	rereadEvery = 20
	// settledTime is longer than any file system's clock takes to tick: of a
	// file that changed longer ago, a later change shows in its time.
	settledTime = 3 * time.Second
)

// scan looks at the directory once. ignored lists the files that are not read,
// with the reason. The error says that the directory could not be read; what is
// wrong with one file is in its entry.
func (s *scanner) scan() (p pass, ignored map[string]string, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read directory: %w", err)
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
	return p, ignored, nil
}

// observe looks at one file; there is false for what is no configuration.
func (s *scanner) observe(name string, ignored map[string]string) (o observed, there bool) {
	o.name = name
	path := filepath.Join(s.dir, name)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isLink(path):
		return o, false // deleted since the directory was read
	case err != nil:
		o.err = reason(err)
		return o, parserFor(name) != nil
	case info.IsDir():
		return o, false
	case parserFor(name) == nil:
		ignored[name] = "the extension is none that is read"
		return o, false
	case !info.Mode().IsRegular():
		ignored[name] = "no regular file"
		return o, false
	}
	parsed, known := s.parsed(name)
	if last, ok := s.last[name]; ok && known && last.err == nil && last.hash == parsed && s.unchanged(last.info, info) {
		return last, true
	}
	o.data, o.info, o.err = s.read(path)
	if o.err != nil {
		return o, true
	}
	if o.hash = xxhash.Sum64(o.data); known && o.hash == parsed {
		o.data = nil
	}
	return o, true
}

// unchanged reports whether a file need not be read again: it is the same file
// of the same size and time, and that time is long enough ago.
func (s *scanner) unchanged(before, now fs.FileInfo) bool {
	return s.passes%rereadEvery != 0 &&
		os.SameFile(before, now) && before.Size() == now.Size() && before.ModTime().Equal(now.ModTime()) &&
		time.Since(now.ModTime()) > settledTime
}

func (s *scanner) read(path string) ([]byte, fs.FileInfo, error) {
	// A file that became a pipe since it was looked at must not block.
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
		return nil, info, errors.New("no regular file")
	}
	if info.Size() > s.limit {
		return nil, info, s.oversized()
	}
	data, err := io.ReadAll(io.LimitReader(f, s.limit+1))
	if err != nil {
		return nil, info, reason(err)
	}
	if int64(len(data)) > s.limit {
		return nil, info, s.oversized()
	}
	return data, info, nil
}

func (s *scanner) oversized() error {
	return fmt.Errorf("larger than the limit of %d bytes", s.limit)
}

// reason takes the path off an error: the file is named beside it.
func reason(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return fmt.Errorf("%s: %w", at.Op, at.Err)
	}
	return err
}

func isLink(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}
