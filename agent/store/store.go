// Package store keeps the last known good on disk: an append-only log in
// generations, of which FORMAT.md gives every byte.
//
// It promises:
//   - when Append returned nil, what it was given survives the death of the process;
//     when Sync or Rewrite did, what was written before survives that of the node;
//   - every record that can still be read is loaded, whatever became of the bytes
//     around it: damage costs the records that it hits, never a panic and never a
//     resource that was not stored. Loaded.Damaged says that some are missing;
//   - no damaged, foreign or newer file is overwritten: it is set aside under
//     another name;
//   - after an error nothing more is written to that file; Rewrite begins a new one and
//     may be tried as often as one likes, so that the state comes back to disk when
//     the disk does;
//   - with a key, no content is on disk unencrypted, nor a hash of it. Groups, types
//     and names are: they say where a record belongs.
//
// It does not know what is worth storing: the caller has the state in memory, and
// decides (Storable says what must not be stored). It keeps no state of resources,
// and no goroutine: those of Open have ended when it returns.
//
// All methods may be called concurrently. Open, Append, Rewrite and Close wait for
// the disk, one at a time; Sync waits for it beside them; Status and Grown never do.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Errors of Open, Append, Sync and Rewrite.
var (
	// ErrLocked says that another process uses the directory.
	ErrLocked = errors.New("another process uses this state directory: give each its own, or end the other")
	// ErrRewrite says that the log takes no more records, and makes none durable, until
	// Rewrite succeeded.
	ErrRewrite = errors.New("the log takes nothing until it is written anew")
	// ErrUnread says that Rewrite found a state that was never read: Open first.
	ErrUnread = errors.New("there is a state that was not read yet")
)

// Config configures a Store.
type Config struct {
	// Dir is the state directory. It is made if it is missing, with mode 0700, and must
	// belong to this user or root. In one that root made for others too, the directory
	// Sub is made and used.
	Dir string
	// Identity says whose state it is, in at most 4096 bytes. Another's is set
	// aside, not read.
	Identity string
	// Keys encrypt what is written, 32 bytes each: the first one writes, all of them
	// read. None is plain text. See LoadKey.
	Keys [][]byte
	// FS is the file system; nil is the real one.
	FS FS
	// Logger gets changes of state; nil is slog.Default().
	Logger *slog.Logger
}

const (
	dirMode  = 0o700
	fileMode = 0o600

	// maxAside bounds the files that are kept though they are not used.
	maxAside = 3
	// chunk is how much is written at once.
	chunk = 256 << 10
	// slack is what may be appended before a small generation is due.
	slack = 1 << 20
	// maxBuffer bounds the buffer that is kept between two batches.
	maxBuffer = 4 << 20
)

// Store is a state directory. Make one with New.
type Store struct {
	cfg Config
	fs  FS
	log *slog.Logger

	// syncing is held during an fsync of Sync, and taken before mu: the kernel reports that
	// data was lost to one fsync only, and a second one beside it must not succeed.
	syncing sync.Mutex
	dir     string // where Config.Dir was opened: there, or in Sub below it
	warned  bool   // of a directory that its group may write to

	mu   sync.Mutex // held while waiting for the disk
	lock Lock       // nil when not held
	file *logFile   // the generation that is appended to; nil while there is none
	// read says that the directory holds nothing that was not read.
	read bool
	// newest is the highest generation that was ever seen: none is used twice.
	newest uint64
	// fate is what becomes of a file when a newer generation is durable: removed
	// if it is "", otherwise set aside as that. A file that is not in it came
	// while the store was open.
	fate map[string]string
	// unreadable are the files of which the disk could not give all bytes.
	unreadable map[string]bool
	buf        []byte

	view view
}

// logFile is a generation that is appended to.
type logFile struct {
	File
	name string
	form *form
	// size is what was written, base what of it the generation began with.
	size, base int64
	sequence   uint64 // of the last frame
}

// New returns a store. It does no I/O.
func New(cfg Config) *Store {
	s := &Store{cfg: cfg, fs: cfg.FS, log: cfg.Logger, fate: make(map[string]string), unreadable: make(map[string]bool)}
	if s.fs == nil {
		s.fs = &osFS{}
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.log = s.log.With("dir", cfg.Dir)
	s.dir = cfg.Dir
	s.view.status = Status{Dir: cfg.Dir, Encrypted: len(cfg.Keys) > 0}
	return s
}

// Open takes the directory's lock, reads the newest generation and makes ready to
// append to it. What is damaged or not for this store is no error: it is set
// aside, and what could be read is given. A disk that can be read but not written
// is none either; see Loaded.Rewrite.
//
// After an error it may be tried again. The error wraps ErrLocked if another
// process has the directory. A read that fails is an error once: the next Open
// uses what can be read.
func (s *Store) Open() (*Loaded, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.dropFile()
	before := s.problems()
	loaded, err := s.open()
	if err != nil {
		err = fmt.Errorf("store: open: %w", err)
		s.failed(err)
		return nil, err
	}
	if s.file != nil && s.problems() == before {
		s.well()
	}
	return loaded, nil
}

// Append writes one batch: when it returns nil the batch survives the death of the
// process, and after the next Sync that of the node. A resource that cannot be stored is
// written as deleted, and counted in Status.Skipped.
//
// After an error it is not known which records of the batch are on disk, and Append fails
// with ErrRewrite until a Rewrite succeeded.
func (s *Store) Append(batch []Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return fmt.Errorf("store: append to the state in %s: %w", s.cfg.Dir, ErrRewrite)
	}
	if len(batch) == 0 {
		return nil
	}
	if err := s.inPlace(); err != nil {
		return s.stop("append", s.file, err)
	}
	e := &encoder{form: s.file.form, buf: s.buf[:0], sequence: s.file.sequence}
	now := time.Now()
	err := s.writeBatch(e, batch, now)
	if s.buf = e.buf; cap(s.buf) > maxBuffer {
		s.buf = nil
	}
	if err != nil {
		_ = s.file.Truncate(s.file.size) // a part of a frame would be there for nothing
		return s.stop("append", s.file, err)
	}
	s.file.size += e.written
	s.file.sequence = e.sequence
	s.appended(e.written, now)
	return nil
}

// writeBatch writes a batch in pieces, so that a large one is not in memory twice.
func (s *Store) writeBatch(e *encoder, batch []Record, now time.Time) error {
	for _, rec := range batch {
		s.skipped(e.record(rec))
		if len(e.buf) < chunk {
			continue
		}
		if err := e.flush(s.file); err != nil {
			return err
		}
	}
	e.commit(commit{at: now})
	return e.flush(s.file)
}

// Sync makes durable what was appended before it was called. It keeps nobody from
// appending. After an error it is not known what of that would survive the death of the
// node, and Append and Sync fail with ErrRewrite until a Rewrite succeeded.
func (s *Store) Sync() error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.mu.Lock()
	file := s.file
	s.mu.Unlock()
	if file == nil {
		return s.unsynced()
	}
	err := file.Sync()
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.file {
	case file:
		return s.stop("fsync", file, err)
	case nil:
		return s.unsynced() // an Append failed meanwhile, or the store was closed
	}
	return nil // a newer generation is durable
}

// unsynced is the error of Sync while there is no log to make durable.
func (s *Store) unsynced() error {
	return fmt.Errorf("store: fsync of the state in %s: %w", s.cfg.Dir, ErrRewrite)
}

// stop gives the log up after an error.
func (s *Store) stop(what string, file *logFile, err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		// The file was opened under the temporary name, by which its errors call it.
		err = &fs.PathError{Op: at.Op, Path: s.path(file.name), Err: at.Err}
	}
	err = fmt.Errorf("store: %s: %w", what, hint(err))
	_ = s.dropFile()
	s.failed(err)
	return err
}

// inPlace sees that the log and the lock are still those of the directory: what
// is written to a file that somebody removed is gone.
func (s *Store) inPlace() error {
	mine, err := s.file.Stat()
	if err != nil {
		return err
	}
	there, err := s.fs.Lstat(s.path(s.file.name))
	switch {
	case err != nil:
		return err
	case !os.SameFile(mine, there), s.lock == nil, !s.lock.Held():
		return fmt.Errorf("%s: the file or the lock beside it was replaced by another", s.path(s.file.name))
	}
	return nil
}

// Rewrite writes a complete new generation from the records of state, which make
// the whole state out of nothing, and makes the older ones disappear. It begins
// with the directory, so that it repairs whatever went wrong before.
//
// If it fails, the generation before is still there, and Append goes on with it if
// it could before and the new file was not in its place yet. It fails with
// ErrUnread if Open never succeeded and there is something to read. state is
// called at most once, and must not call the store; records of the same key should
// be neighbours.
func (s *Store) Rewrite(state iter.Seq[Record]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.rewrite(state); err != nil {
		err = fmt.Errorf("store: rewrite: %w", err)
		s.failed(err)
		return err
	}
	return nil
}

// Close ends the use of the directory; Open begins it again. It makes nothing durable:
// Sync does.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.dropFile()
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

// dropFile stops appending. What was not durable is lost.
func (s *Store) dropFile() error {
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	s.broken()
	return err
}

// open is Open, under mu.
func (s *Store) open() (*Loaded, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := s.directory(); err != nil {
		return nil, err
	}
	var readOnly error
	if err := s.acquire(); errors.Is(err, syscall.EROFS) {
		readOnly = err // nobody else writes here either
	} else if err != nil {
		return nil, err
	}
	found, err := s.list()
	if err != nil {
		return nil, err
	}
	if readOnly == nil {
		s.removeAll(found.temporary)
	}
	best, err := s.readNewest(found)
	if err != nil {
		return nil, err
	}
	s.read = true
	s.loaded(best)
	if readOnly != nil {
		s.failed(fmt.Errorf("store: %w", readOnly))
	}
	if best == nil {
		nothing := newLoaded(0, 0)
		nothing.Rewrite = true
		return nothing, nil
	}
	name := logName(best.loaded.Generation)
	best.loaded.Rewrite = true
	switch {
	case best.damage != nil:
		s.fate[name] = asideCorrupt
		s.failed(fmt.Errorf("store: %s: %w; what can be read is used until a control plane says otherwise", s.path(name), best.damage))
	case readOnly != nil:
	case best.obsolete:
		s.log.Info("the stored state is of an older format, or not encrypted with the first key: it is written again", "file", name)
	default:
		if err := s.resume(name, best); err != nil {
			s.failed(fmt.Errorf("store: %w", err))
			break
		}
		best.loaded.Rewrite = false
		s.sweep(found, best.loaded.Generation)
	}
	return best.loaded, nil
}

// resume opens a generation for more, without the torn end of it.
func (s *Store) resume(name string, im *image) error {
	f, err := s.fs.OpenFile(s.path(name), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return hint(err)
	}
	if im.torn() > 0 {
		err = f.Truncate(im.end)
	}
	// What was read may have been written by a process that died before its fsync,
	// and renamed by one that died before that of the directory.
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = s.fs.SyncDir(s.dir)
	}
	if err != nil {
		_ = f.Close()
		return fmt.Errorf("make ready for more: %w", hint(err))
	}
	s.file = &logFile{File: f, name: name, form: im.form, size: im.end, base: im.base, sequence: im.sequence}
	s.appending()
	return nil
}

// check refuses a configuration that cannot work.
func (s *Store) check() error {
	switch {
	case len(s.cfg.Identity) > maxIdentity:
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

// hint adds what to do about an error of the disk, where that is known.
func hint(err error) error {
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
