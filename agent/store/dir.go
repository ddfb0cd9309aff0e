package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

const (
	lockName     = "lock"
	logPrefix    = "state-"
	logSuffix    = ".log"
	temporaryEnd = ".tmp"

	// maxGeneration bounds the numbers of generations; counting never reaches it.
	maxGeneration = 1 << 62
)

const (
	asideCorrupt = ".corrupt" // damaged
	asideForeign = ".foreign" // of another identity, owner or program
	asideFuture  = ".future"  // of a later version
	asideLocked  = ".locked"  // encrypted with another key
)

func logName(generation uint64) string {
	return logPrefix + strconv.FormatUint(generation, 10) + logSuffix
}

func temporaryName(generation uint64) string { return logName(generation) + temporaryEnd }

// inventory lists the files of the directory.
type inventory struct {
	generations []uint64 // newest first
	temporary   []string
	aside       []string // oldest first
}

func (s *Store) list() (inventory, error) {
	var found inventory
	entries, err := s.fs.ReadDir()
	if err != nil {
		return found, fmt.Errorf("list the state directory: %w", withHint(err))
	}
	for _, entry := range entries {
		name := entry.Name()
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
	slices.SortFunc(found.generations, func(a, b uint64) int { return cmp.Compare(b, a) })
	slices.SortFunc(found.aside, compareAge)
	s.updateStatus(func(st *Status) { st.Aside = found.aside })
	return found, nil
}

// cutLogName splits a name such as state-7.log.corrupt.
func cutLogName(name string) (generation uint64, end string, ok bool) {
	digits, end, _ := strings.Cut(strings.TrimPrefix(name, logPrefix), logSuffix)
	generation, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || generation-1 >= maxGeneration || !strings.HasPrefix(name, logName(generation)) {
		return 0, "", false
	}
	known := slices.Contains([]string{"", temporaryEnd, asideCorrupt, asideForeign, asideFuture, asideLocked}, end)
	return generation, end, known
}

func compareAge(a, b string) int {
	ga, _, _ := cutLogName(a)
	gb, _, _ := cutLogName(b)
	return cmp.Or(cmp.Compare(ga, gb), strings.Compare(a, b))
}

// openDirectory opens or creates the directory, and checks that other users cannot write to it.
func (s *Store) openDirectory() error {
	dir, groupWrites, err := s.fs.Directory(s.cfg.Dir, s.readOnly)
	if err != nil {
		return withHint(err)
	}
	s.dir = dir
	if groupWrites && !s.groupWarned {
		s.groupWarned = true
		s.log.Warn("the group of the state directory may write to it, and so delete what is stored: chmod go-w it", "path", dir)
	}
	return nil
}

// acquireLock takes the lock unless it is held. A lock on a file that was removed is useless.
func (s *Store) acquireLock() error {
	if s.readOnly {
		return syscall.EROFS
	}
	if s.lock != nil && s.lock.Held() {
		return nil
	}
	if s.lock != nil {
		_ = s.lock.Close()
		s.lock = nil
	}
	lock, err := s.fs.Lock(lockName)
	if err != nil {
		return fmt.Errorf("lock %s: %w", s.path(lockName), withHint(err))
	}
	s.lock = lock
	return nil
}

// readNewest reads the newest intact generation or, if there is none, the newest one with any readable
// frame; an image without a generation if there is none. It sets aside the files that it cannot use.
func (s *Store) readNewest(found inventory) (*image, error) {
	clear(s.asideAs)
	for _, generation := range found.generations {
		s.asideAs[logName(generation)] = ""
	}
	best := &image{loaded: newLoaded(0, 0)}
	for _, generation := range found.generations {
		name := logName(generation)
		im, aside, err := s.readFile(name, generation)
		switch {
		case aside != "":
			s.reject(name, aside, err)
		case err != nil:
			return nil, err
		case im.snapshotComplete:
			if best.loaded.Generation != 0 {
				s.reject(logName(best.loaded.Generation), asideCorrupt, best.damage)
			}
			return im, nil
		case best.loaded.Generation == 0 && im.frames > 0:
			best = im
		default:
			s.reject(name, asideCorrupt, im.damage)
		}
	}
	return best, nil
}

// readFile reads one generation. If its content cannot be used, aside is the suffix to set the
// file aside with, and err says why; other errors are not about the content.
func (s *Store) readFile(name string, generation uint64) (im *image, aside string, err error) {
	info, err := s.fs.Lstat(name)
	if err != nil {
		return nil, "", withHint(err)
	}
	if uid := userfile.Owner(info); !info.Mode().IsRegular() || uid != os.Geteuid() {
		return nil, asideForeign, fmt.Errorf("it is %s of uid %d: want a regular file of uid %d", userfile.FileType(info.Mode()), uid, os.Geteuid())
	}
	f, err := s.fs.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, "", withHint(err)
	}
	defer f.Close() //nolint:errcheck // the file is only read
	if info, err = f.Stat(); err != nil {
		return nil, "", withHint(err)
	}
	from := &errorRecorder{ReaderAt: f}
	im, err = load(from, info.Size(), generation, s.cfg)
	switch {
	case from.err != nil && !s.unreadable[name]:
		// The disk may recover. If not, the next Open uses what can be read.
		s.unreadable[name] = true
		return nil, "", withHint(from.err)
	case err == nil:
	case errors.Is(err, errFuture):
		aside = asideFuture
	case errors.Is(err, errIdentity), errors.Is(err, errMagic):
		aside = asideForeign
	case errors.Is(err, errKey):
		aside = asideLocked
	default:
		aside = asideCorrupt
	}
	return im, aside, err
}

type errorRecorder struct {
	io.ReaderAt
	err error
}

func (w *errorRecorder) ReadAt(b []byte, offset int64) (int, error) {
	n, err := w.ReaderAt.ReadAt(b, offset)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

func (s *Store) reject(name, end string, why error) {
	s.reportProblem(fmt.Errorf("store: %s is not used: %w", s.path(name), why))
	if end == asideCorrupt {
		s.updateStatus(func(st *Status) { st.Damage = fmt.Errorf("%s: %w", name, why) })
	}
	s.asideAs[name] = end // if it cannot be renamed now
	if !s.readOnly {
		s.setAside(name, end)
	}
}

// setAside renames a file, and removes the oldest of those that were renamed before. A file that cannot be
// renamed stays: no generation overwrites another.
func (s *Store) setAside(name, end string) {
	to := name + end
	if _, err := s.fs.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return // it was renamed before
	}
	if _, err := s.fs.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("a file of the state directory cannot be set aside: the other name is taken", "file", name, "to", to)
		return
	}
	if err := s.fs.Rename(name, to); err != nil {
		s.log.Warn("a file of the state directory cannot be set aside", "file", name, "to", to, "err", err)
		return
	}
	s.log.Info("a file of the state directory is kept under another name", "file", to)
	files := append(s.Status().Aside, to)
	slices.SortFunc(files, compareAge)
	if over := len(files) - maxAside; over > 0 {
		s.removeAll(files[:over])
		files = files[over:]
	}
	s.updateStatus(func(st *Status) { st.Aside = files })
}

// removeOlder removes the generations before a durable one, or sets them aside.
func (s *Store) removeOlder(found inventory, durable uint64) {
	for _, generation := range found.generations {
		if generation >= durable {
			continue
		}
		name := logName(generation)
		end, known := s.asideAs[name]
		switch {
		case !known:
			s.setAside(name, asideForeign)
		case end != "":
			s.setAside(name, end)
		default:
			s.removeAll([]string{name})
		}
	}
}

// removeAll removes files that are not needed. A file that cannot be removed only costs space.
func (s *Store) removeAll(names []string) {
	for _, name := range names {
		if err := s.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.reportProblem(fmt.Errorf("store: remove: %w", withHint(err)))
		}
	}
}
