package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Names in the state directory.
const (
	lockName     = "lock"
	logPrefix    = "state-"
	logSuffix    = ".log"
	temporaryEnd = ".tmp"

	// maxGeneration is never reached by counting.
	maxGeneration = 1 << 62
)

// What a file is set aside as.
const (
	asideCorrupt = ".corrupt" // damaged
	asideForeign = ".foreign" // another's: identity, owner, program
	asideFuture  = ".future"  // of a later version
	asideLocked  = ".locked"  // encrypted with another key
)

func logName(generation uint64) string {
	return logPrefix + strconv.FormatUint(generation, 10) + logSuffix
}

func temporaryName(generation uint64) string { return logName(generation) + temporaryEnd }

// inventory is what there is in the directory.
type inventory struct {
	generations []uint64 // newest first
	temporary   []string
	aside       []string // oldest first
}

// list reads the directory. Names that are not the store's are none of its
// business.
func (s *Store) list() (inventory, error) {
	var found inventory
	names, err := s.fs.ReadDir(s.dir)
	if err != nil {
		return found, fmt.Errorf("list the state directory: %w", hint(err))
	}
	for _, name := range names {
		generation, end, ok := cutLogName(name)
		if !ok {
			continue
		}
		s.newest = max(s.newest, generation)
		switch {
		case end == "":
			found.generations = append(found.generations, generation)
		case end == temporaryEnd:
			found.temporary = append(found.temporary, name)
		default:
			found.aside = append(found.aside, name)
		}
	}
	slices.Sort(found.generations)
	slices.Reverse(found.generations)
	slices.SortFunc(found.aside, compareAge)
	s.keep(found.aside)
	return found, nil
}

// cutLogName splits a name such as state-7.log.corrupt.
func cutLogName(name string) (generation uint64, end string, ok bool) {
	rest, ok := strings.CutPrefix(name, logPrefix)
	if !ok {
		return 0, "", false
	}
	digits, end, ok := strings.Cut(rest, logSuffix)
	if !ok {
		return 0, "", false
	}
	generation, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || generation-1 >= maxGeneration || !strings.HasPrefix(name, logName(generation)) {
		return 0, "", false
	}
	for _, known := range [...]string{"", temporaryEnd, asideCorrupt, asideForeign, asideFuture, asideLocked} {
		if end == known {
			return generation, end, true
		}
	}
	return 0, "", false
}

func compareAge(a, b string) int {
	ga, _, _ := cutLogName(a)
	gb, _, _ := cutLogName(b)
	switch {
	case ga < gb:
		return -1
	case ga > gb:
		return 1
	}
	return strings.Compare(a, b)
}

// directory opens the directory, which it makes if it is missing, and sees that it is
// ours alone.
func (s *Store) directory() error {
	dir, groupWrites, err := s.fs.Directory(s.cfg.Dir, false)
	if err != nil {
		return hint(err)
	}
	s.dir = dir
	if groupWrites && !s.warned {
		s.warned = true
		s.log.Warn("the group of the state directory may write to it, and so delete what is stored: chmod go-w it", "path", dir)
	}
	return nil
}

// acquire takes the lock, unless it is held. A lock on a file that is not there
// any more keeps nobody out.
func (s *Store) acquire() error {
	if s.lock != nil && s.lock.Held() {
		return nil
	}
	if s.lock != nil {
		_ = s.lock.Close()
		s.lock = nil
	}
	lock, err := s.fs.Lock(s.path(lockName))
	if err != nil {
		return fmt.Errorf("lock %s: %w", s.path(lockName), hint(err))
	}
	s.lock = lock
	return nil
}

// readNewest reads the newest generation that is whole or, if there is none, the
// newest of which anything can be read; nil if there is none. What cannot be read
// is set aside.
func (s *Store) readNewest(found inventory) (*image, error) {
	clear(s.fate)
	for _, generation := range found.generations {
		s.fate[logName(generation)] = ""
	}
	var best *image
	for _, generation := range found.generations {
		name := logName(generation)
		im, err := s.readFile(name, generation)
		switch {
		case err != nil:
			var useless *uselessError
			if !errors.As(err, &useless) {
				return nil, err
			}
			s.refuse(name, useless.as, useless.err)
		case im.complete:
			if best != nil {
				s.refuse(logName(best.loaded.Generation), asideCorrupt, best.damage)
			}
			return im, nil
		case best == nil && im.frames > 0:
			best = im
		default:
			s.refuse(name, asideCorrupt, im.damage)
		}
	}
	return best, nil
}

// uselessError says that a file has nothing for us, and what it is set aside as.
type uselessError struct {
	as  string
	err error
}

func (e *uselessError) Error() string { return e.err.Error() }
func (e *uselessError) Unwrap() error { return e.err }

// readFile reads one generation. An error that is not a uselessError says nothing
// about the file.
func (s *Store) readFile(name string, generation uint64) (*image, error) {
	path := s.path(name)
	info, err := s.fs.Lstat(path)
	if err != nil {
		return nil, hint(err)
	}
	if uid, ok := owner(info); !info.Mode().IsRegular() || !ok || uid != os.Geteuid() {
		return nil, &uselessError{asideForeign, fmt.Errorf("it is %s of uid %d: want a regular file of uid %d", describe(info), uid, os.Geteuid())}
	}
	f, err := s.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, hint(err)
	}
	defer f.Close() //nolint:errcheck // only read
	if info, err = f.Stat(); err != nil {
		return nil, hint(err)
	}
	from := &watchedReader{from: f}
	im, err := load(from, info.Size(), generation, openWith{s.cfg.Identity, s.cfg.Keys})
	if from.err != nil && !s.unreadable[name] {
		// The disk may come to itself: the next Open makes do with what it gives.
		s.unreadable[name] = true
		return nil, hint(from.err)
	}
	switch {
	case errors.Is(err, errFuture):
		err = &uselessError{asideFuture, err}
	case errors.Is(err, errIdentity), errors.Is(err, errMagic):
		err = &uselessError{asideForeign, err}
	case errors.Is(err, errKey):
		err = &uselessError{asideLocked, err}
	case err != nil:
		err = &uselessError{asideCorrupt, err}
	}
	return im, err
}

// watchedReader remembers an error of the disk.
type watchedReader struct {
	from io.ReaderAt
	err  error
}

func (w *watchedReader) ReadAt(b []byte, offset int64) (int, error) {
	n, err := w.from.ReadAt(b, offset)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

func describe(info fs.FileInfo) string {
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return "a file"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode.IsDir():
		return "a directory"
	default:
		return "a special file"
	}
}

// refuse sets a file aside from which nothing is used.
func (s *Store) refuse(name, end string, why error) {
	s.failed(fmt.Errorf("store: %s is not used: %w", s.path(name), why))
	if end == asideCorrupt {
		s.damaged(fmt.Errorf("%s: %w", name, why))
	}
	s.fate[name] = end // for what cannot be renamed now
	s.aside(name, end)
}

// aside renames a file that is not used, and forgets the oldest of those that were
// renamed before. A file that cannot be renamed stays: no generation is written
// over another.
func (s *Store) aside(name, end string) {
	to := name + end
	if _, err := s.fs.Lstat(s.path(name)); errors.Is(err, fs.ErrNotExist) {
		return // it was done before
	}
	if _, err := s.fs.Lstat(s.path(to)); !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("a file of the state directory cannot be set aside: the other name is taken", "file", name, "to", to)
		return
	}
	if err := s.fs.Rename(s.path(name), s.path(to)); err != nil {
		s.log.Warn("a file of the state directory cannot be set aside", "file", name, "to", to, "err", err)
		return
	}
	s.log.Info("a file of the state directory is kept under another name", "file", to)
	kept := append(s.setAside(), to)
	slices.SortFunc(kept, compareAge)
	if over := len(kept) - maxAside; over > 0 {
		s.removeAll(kept[:over])
		kept = kept[over:]
	}
	s.keep(kept)
}

// sweep removes the older generations when a newer one is durable, and sets aside
// what is not known to be in it.
func (s *Store) sweep(found inventory, durable uint64) {
	for _, generation := range found.generations {
		if generation >= durable {
			continue
		}
		name := logName(generation)
		end, known := s.fate[name]
		switch {
		case !known:
			s.aside(name, asideForeign)
		case end != "":
			s.aside(name, end)
		default:
			s.removeAll([]string{name})
		}
	}
}

// removeAll removes files that are not needed. One that stays costs room only.
func (s *Store) removeAll(names []string) {
	for _, name := range names {
		if err := s.fs.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.failed(fmt.Errorf("store: remove: %w", hint(err)))
		}
	}
}
