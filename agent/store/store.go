// Package store stores the last known good state on disk, in an append-only log with
// generations. FORMAT.md describes every byte.
//
// It promises:
// - when Append has returned nil, its records survive the death of the process; when Sync or Rewrite
// has, everything written before survives the death of the node;
// - every intact record is loaded: damage costs the records that it hits, never causes a panic and
// never yields a resource that was not stored. Loaded.Damaged says that records are missing;
// - no damaged, foreign or newer file is overwritten: it is renamed (set aside);
// - after an error nothing more is written to that file; Rewrite starts a new one, as often as needed;
// - with a key, only groups, types and names are on disk unencrypted, and no content hash is.
//
// It decides only what must not be stored (NotStorable), and holds no resources: the caller has the state in
// memory. It leaves no goroutine running.
//
// All methods may be called concurrently. Open, Append, Rewrite and Close wait for the disk and for one
// another; Sync waits for the disk but lets Append proceed; Status and Grown never wait.
package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Errors of Open, Append, Sync and Rewrite.
var (
	// ErrLocked reports that another process uses the directory.
	ErrLocked = errors.New("another process uses this state directory: give each its own, or end the other")
	// ErrRewrite reports that the log accepts no records, and makes none durable, until Rewrite succeeds.
	ErrRewrite = errors.New("the log takes nothing until it is written anew")
	// ErrUnread reports that Rewrite found a state that was never read: call Open first.
	ErrUnread = errors.New("there is a state that was not read yet")
)

// Config configures a Store.
type Config struct {
	// Dir is created with mode 0700 if it is missing, and must belong to this user or root. If root created
	// it for everybody, its subdirectory Sub is created and used.
	Dir string
	// Identity says whose state it is, in at most 4096 bytes. Another identity's state is set aside.
	Identity string
	// AnyIdentity reads the state whoever it belongs to; it is for Read only.
	AnyIdentity bool
	// Keys have 32 bytes: the first one encrypts, all decrypt; without one the state is in plain text.
	Keys [][]byte
	// FS is the file system, by default that of the operating system; Logger is by default slog.Default().
	FS     FS
	Logger *slog.Logger
}

const (
	dirMode  = 0o700
	fileMode = 0o600

	maxAside  = 3
	writeSize = 256 << 10
	// minGrowth is the least number of appended bytes before a rewrite is due.
	minGrowth = 1 << 20
	// maxBuffer bounds the buffer that is reused for the next batch.
	maxBuffer = 4 << 20
)

// Store is a state directory. Create it with New.
type Store struct {
	cfg Config
	fs  FS
	log *slog.Logger

	// syncing is held during the fsync of Sync, and is locked before mu: the kernel reports lost data to
	// only one fsync, so a concurrent second one must not succeed.
	syncing     sync.Mutex
	dir         string // the opened directory: Config.Dir, or Sub below it
	groupWarned bool   // whether a directory that its group may write to was logged
	readOnly    bool   // for Read

	mu        sync.Mutex // held while waiting for the disk
	lock      Lock       // nil if not held
	file      *logFile   // the generation to append to; nil while there is none
	stateRead bool
	// newest is the highest generation ever seen: no number is used twice.
	newest uint64
	// asideAs says what happens to an older file once a newer generation is durable: it is removed if the
	// value is "", otherwise set aside with that suffix. Other files appeared while the store was open.
	asideAs map[string]string
	// unreadable are the files that the disk could not read completely.
	unreadable map[string]bool
	buf        []byte

	statusMu sync.Mutex
	status   Status
	running  map[*operation]struct{} // those that wait for the disk
}

// logFile is a generation that is appended to.
type logFile struct {
	File
	name     string
	framing  *framing
	size     int64  // the number of bytes written
	sequence uint64 // of the last frame
}

// New returns a store. It does no I/O.
func New(cfg Config) *Store {
	return &Store{
		cfg: cfg, dir: cfg.Dir, fs: cmp.Or[FS](cfg.FS, &osFS{}),
		log:     cmp.Or(cfg.Logger, slog.Default()).With("dir", cfg.Dir),
		asideAs: make(map[string]string), unreadable: make(map[string]bool), running: make(map[*operation]struct{}),
		status: Status{Dir: cfg.Dir, Encrypted: len(cfg.Keys) > 0},
	}
}

// Open takes the lock of the directory, reads the newest generation and prepares to append to it. Damaged
// or foreign files, which are set aside, are not an error, nor is a disk that cannot be written; see
// Loaded.Rewrite. After an error, such as ErrLocked if another process uses the directory, Open may be
// called again. A file that the disk cannot read is an error only once.
func (s *Store) Open() (*Loaded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.begin("opening the state")()
	_ = s.closeLog()
	before := s.Status().Err
	loaded, err := s.openLocked()
	if err != nil {
		err = fmt.Errorf("store: open: %w", err)
		s.reportProblem(err)
		return nil, err
	}
	if s.file != nil && s.Status().Err == before { // each problem has an error of its own
		s.clearProblem()
	}
	return loaded, nil
}

// Append writes one batch, which survives the death of the process, and after the next Sync that of the
// node. A resource that cannot be stored is written as deleted, and counted in Status.Skipped. After an
// error it is unknown what is on disk, and Append fails with ErrRewrite until a Rewrite succeeds.
func (s *Store) Append(batch []Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return fmt.Errorf("store: append to the state in %s: %w", s.cfg.Dir, ErrRewrite)
	}
	if len(batch) == 0 {
		return nil
	}
	defer s.begin("a write")()
	if err := s.checkInPlace(); err != nil {
		return s.abandonLog("append", s.file, err)
	}
	e := &encoder{framing: s.file.framing, buf: s.buf[:0], sequence: s.file.sequence}
	at, err := s.writeRecords(s.file, e, slices.Values(batch), false)
	if s.buf = e.buf; cap(s.buf) > maxBuffer {
		s.buf = nil
	}
	if err != nil {
		_ = s.file.Truncate(s.file.size) // removes a partial frame
		return s.abandonLog("append", s.file, err)
	}
	s.file.size += e.written
	s.file.sequence = e.sequence
	s.updateStatus(func(st *Status) {
		st.Bytes += e.written
		st.Appended += e.written
		st.Committed = at
	})
	return nil
}

// writeRecords writes records and a commit, in pieces, so that a large state is not in memory twice.
func (s *Store) writeRecords(to io.Writer, e *encoder, records iter.Seq[Record], endsSnapshot bool) (at time.Time, err error) {
	for rec := range records {
		if why := e.record(rec); why != "" {
			s.addSkipped(why, 1)
		}
		if len(e.buf) < writeSize {
			continue
		}
		if err := e.flush(to); err != nil {
			return at, err
		}
	}
	at = time.Now()
	e.commit(commit{endsSnapshot: endsSnapshot, at: at})
	return at, e.flush(to)
}

// Sync makes durable what was appended before the call, while Append may proceed. After an error, Append
// and Sync fail with ErrRewrite until a Rewrite succeeds.
func (s *Store) Sync() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	file := s.file
	s.mu.Unlock()
	noLog := fmt.Errorf("store: fsync of the state in %s: %w", s.cfg.Dir, ErrRewrite)
	if file == nil {
		return noLog
	}
	end := s.begin("an fsync")
	err := file.Sync()
	end()
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.file {
	case file:
		return s.abandonLog("fsync", file, err)
	case nil:
		return noLog // an Append failed meanwhile, or the store was closed
	}
	return nil // a newer generation is durable
}

// abandonLog closes the log after an error.
func (s *Store) abandonLog(what string, file *logFile, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		// The file was opened under its temporary name, which its errors contain.
		err = &fs.PathError{Op: at.Op, Path: s.path(file.name), Err: at.Err}
	}
	err = fmt.Errorf("store: %s: %w", what, withHint(err))
	_ = s.closeLog()
	s.reportProblem(err)
	return err
}

// checkInPlace checks that the log and the lock are those of the directory: writes to a removed file are lost.
func (s *Store) checkInPlace() error {
	opened, err := s.file.Stat()
	if err != nil {
		return err
	}
	current, err := s.fs.Lstat(s.file.name)
	switch {
	case err != nil:
		return err
	case !os.SameFile(opened, current), s.lock == nil, !s.lock.Held():
		return fmt.Errorf("%s: the file or the lock beside it was replaced by another", s.path(s.file.name))
	case opened.Size() != s.file.size:
		return fmt.Errorf("%s: another program changed the file: it has %d bytes, and %d were written", s.path(s.file.name), opened.Size(), s.file.size)
	}
	return nil
}

// Close releases the directory; Open acquires it again. It makes nothing durable: Sync does.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.closeLog()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
		s.lock = nil
	}
	err = errors.Join(err, s.fs.Close())
	if err != nil {
		return fmt.Errorf("store: close %s: %w", s.cfg.Dir, err)
	}
	return nil
}

// closeLog stops appending. Data that is not durable may be lost.
func (s *Store) closeLog() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	s.updateStatus(func(st *Status) { st.Durable = false })
	return err
}

func (s *Store) openLocked() (*Loaded, error) {
	if err := s.checkConfig(); err != nil {
		return nil, err
	}
	if err := s.openDirectory(); err != nil {
		return nil, err
	}
	unwritable := s.acquireLock() // without a lock on a read-only disk, to which no other process can write either
	if unwritable != nil && !errors.Is(unwritable, syscall.EROFS) {
		return nil, unwritable
	}
	found, err := s.list()
	if err != nil {
		return nil, err
	}
	if unwritable == nil {
		s.removeAll(found.temporary)
	}
	best, err := s.readNewest(found)
	if err != nil {
		return nil, err
	}
	s.stateRead = true
	s.recordLoaded(best)
	if unwritable != nil {
		s.reportProblem(fmt.Errorf("store: %w", unwritable))
	}
	best.loaded.Rewrite = true
	name := logName(best.loaded.Generation)
	switch {
	case best.loaded.Generation == 0:
	case best.damage != nil:
		s.asideAs[name] = asideCorrupt
		s.reportProblem(fmt.Errorf("store: %s: %w; what can be read is used until a control plane says otherwise", s.path(name), best.damage))
	case unwritable != nil:
	case best.needsRewrite:
		s.log.Info("the stored state is not encrypted with the first key: it is written again", "file", name)
	default:
		if err := s.openForAppend(name, best); err != nil {
			s.reportProblem(fmt.Errorf("store: %w", err))
			break
		}
		best.loaded.Rewrite = false
		s.removeOlder(found, best.loaded.Generation)
	}
	return best.loaded, nil
}

func (s *Store) recordLoaded(im *image) {
	l := im.loaded
	s.updateStatus(func(st *Status) {
		st.Generation, st.Committed = l.Generation, l.Committed
		st.Bytes, st.Appended, st.Torn = im.end, im.end-im.snapshotEnd, im.unfinished()
		if im.damage != nil {
			st.Torn, st.Damage = 0, im.damage
		}
	})
	for why, n := range l.Skipped {
		s.addSkipped(why, n)
	}
	if l.Generation != 0 {
		s.log.Info("the stored state was read", "generation", l.Generation, "resources", len(l.Entries), "committed", l.Committed)
	}
}

// openForAppend opens a generation for appending and truncates the unfinished write at its end.
func (s *Store) openForAppend(name string, im *image) error {
	f, err := s.fs.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return withHint(err)
	}
	if im.unfinished() > 0 {
		err = f.Truncate(im.end)
	}
	// The process that wrote this file may have died before its fsync, or before that of the directory.
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = s.fs.SyncDir()
	}
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("make ready for more: %w", withHint(err))
	}
	s.file = &logFile{File: f, name: name, framing: im.framing, size: im.end, sequence: im.sequence}
	s.updateStatus(func(st *Status) { st.Durable = true })
	return nil
}

func (s *Store) checkConfig() error {
	if len(s.cfg.Identity) > maxIdentity {
		return fmt.Errorf("the identity has %d bytes: at most %d fit", len(s.cfg.Identity), maxIdentity)
	}
	for _, key := range s.cfg.Keys {
		if len(key) != KeySize {
			return fmt.Errorf("the key has %d bytes: want %d", len(key), KeySize)
		}
	}
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// withHint adds to an error of the disk what to do about it, if known.
func withHint(err error) error {
	for errno, what := range map[syscall.Errno]string{
		syscall.ENOSPC: "make room on the disk of the state directory",
		syscall.EDQUOT: "the quota of this user is used up",
		syscall.EROFS:  "the state directory needs a volume that takes writes",
		syscall.EACCES: "the state directory must belong to the user that holdfast runs as",
		syscall.EIO:    "the disk itself fails",
	} {
		if errors.Is(err, errno) {
			return fmt.Errorf("%w (%s)", err, what)
		}
	}
	return err
}

// Status is the state of the store for an operator.
type Status struct {
	Dir       string
	Encrypted bool
	// Durable reports that appended records go to the disk; otherwise only the caller's memory has the state.
	Durable bool
	// Generation is the one on disk, 0 for none; Bytes is its size, Appended the part after its initial state.
	Generation      uint64
	Bytes, Appended int64
	Committed       time.Time
	// Err is the last problem, nil for none; Since is when the current series of problems began.
	Err   error
	Since time.Time
	// Aside lists the files that were set aside, oldest first: .corrupt is damaged, .foreign of another
	// identity, user or program, .future of a later version, .locked encrypted with another key.
	Aside []string
	// Skipped counts the records that could not be stored or, at Open, not be used, by reason.
	Skipped map[string]int
	// Torn is the size of the unfinished last write that Open dropped.
	Torn int64
	// Damage is the problem that Open found. It stays after a Rewrite: records may still be missing.
	Damage error
}

// updateStatus changes what Status and Grown read, under a lock that nobody holds while waiting for the disk.
func (s *Store) updateStatus(change func(*Status)) {
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	change(&s.status)
}

// Status returns the current state.
func (s *Store) Status() Status {
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	out := s.status
	if since, err := s.hanging(time.Now()); err != nil {
		out.Durable, out.Err, out.Since = false, err, since
	}
	out.Aside = slices.Clone(out.Aside)
	out.Skipped = maps.Clone(out.Skipped)
	return out
}

// Grown reports that a Rewrite is due: the appended records exceed twice the initial state, and 1 MiB. So
// rewriting costs at most half a byte for each appended byte if the state keeps its size.
func (s *Store) Grown() bool {
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	snapshotSize := s.status.Bytes - s.status.Appended
	return s.status.Durable && s.status.Appended > 2*snapshotSize+minGrowth
}

// reportProblem records a problem, and logs it if it differs from the last one, because retries
// usually fail in the same way.
func (s *Store) reportProblem(err error) {
	var before Status
	s.updateStatus(func(st *Status) {
		before = *st
		if st.Err == nil {
			st.Since = time.Now()
		}
		st.Err = err
	})
	if before.Err == nil || before.Err.Error() != err.Error() {
		s.log.Warn("a problem with the state on disk", "durable", before.Durable, "err", err)
	}
}

func (s *Store) clearProblem() {
	var before Status
	s.updateStatus(func(st *Status) {
		before = *st
		st.Err, st.Since = nil, time.Time{}
	})
	if before.Err != nil {
		s.log.Info("the state is on disk again", "generation", before.Generation)
	}
}

func (s *Store) addSkipped(why string, n int) {
	s.updateStatus(func(st *Status) {
		if st.Skipped == nil {
			st.Skipped = make(map[string]int)
		}
		if st.Skipped[why] == 0 {
			s.log.Warn("a record is not stored, or not used", "reason", why)
		}
		st.Skipped[why] += n
	})
}
