// Package dir keeps a copy of the documents in a directory: those in its files *.yaml, *.yml and
// *.json and in those of its subdirectories, without names that begin with a dot. A file has any
// number of documents of any kinds.
//
// It promises that what is not valid changes nothing (mesh.md M6). A document that is not valid keeps
// its last valid content, over a restart, too, if the source has a state, and harms no other document.
// A file that cannot be read or parsed keeps all of its documents. A document is deleted when it is gone
// from a file that can be parsed, or when its file is gone from a directory that can be read. If the
// directory itself is gone or has no such file, or a subdirectory cannot be read or has nothing in it,
// nothing of it is deleted; and when it is back, what it lacks is deleted when no file has come or gone
// for settleAfter. Of two documents with the same kind, namespace and name, that in the first file by name
// is used. Problems names everything that is wrong with file, line and field.
//
// The source is complete, and HasSynced, when the directory was read once and each document in it is
// valid or has a last valid content; a file with a comment alone says that there are none. While the
// directory is away at a start, that of the state is used after Patience.
//
// The directory is scanned when the system says that something in it changed, and at intervals, and
// its files are hashed, which detects every way of changing a file, including Kubernetes' exchange of
// "..data". A change is loaded when two scans in a row found the same content, so that a file that is
// being written is not loaded half; at once if the system says that nobody writes to the files that
// changed, and no document would be deleted. The package does not write to the directory, and a document
// without a creationTimestamp has the zero time.
//
// A Source is run by one goroutine at a time; its other methods may be called from any.
package dir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/seal"
)

const (
	// interval is how often the directory is scanned if nothing says that it changed. A change is in
	// the copy after at most 1.1 intervals and the time that reading takes.
	interval = time.Second
	// recheck is the pause before the second scan, which must find the same content.
	recheck = interval / 10
	// maxRechecks is how many scans in a row may differ before a file that keeps changing is left as
	// it was loaded last.
	maxRechecks = 20
	// freshFor is how long no file must have come or gone in a directory in which something was made or deleted lately before
	// it is taken for whole at a start without a state: somebody may be copying it file by file.
	freshFor = time.Second
	// settleAfter is how long no file must have come or gone, after the directory was away or empty and at a start with a
	// state, before what it lacks is deleted.
	settleAfter = 10 * time.Second
	// Patience is how long a start waits for the directory before the documents of the state are used.
	Patience = 5 * time.Second
)

// Config configures a Source.
type Config struct {
	// Dir is the directory.
	Dir string
	// State is the file in which the last valid contents are kept over a restart; "" for nowhere. Sealer encrypts the Secrets
	// in it; without a key they are not kept.
	State  string
	Sealer *seal.Sealer
	// StartWithProblemsAfter is how long after the start the source is complete although documents are not valid that have no
	// last valid content: they are left out. 0 means never.
	StartWithProblemsAfter time.Duration
	Log                    *slog.Logger
}

// Source is a copy of the documents in a directory.
type Source struct {
	config.Handlers
	cfg   Config
	log   *slog.Logger
	index config.Index
	state *state // nil for none
	// readDir is os.ReadDir, except in tests.
	readDir func(path string) ([]os.DirEntry, error)
	// watch is the function watch, except in tests.
	watch func(*slog.Logger) *events

	// files are only used by Run.
	files files

	mu       sync.Mutex
	synced   bool
	problems []config.Problem
	dirErr   error
	// waits are the problems of documents that have no valid content, for which a start waits.
	waits []config.Problem
}

var _ config.Cache = (*Source)(nil)

// New returns the copy of a directory, which is empty until Run.
func New(cfg Config) *Source {
	s := &Source{cfg: cfg, log: cfg.Log.With("name", cfg.Dir), files: files{}, readDir: os.ReadDir, watch: watch}
	if cfg.State != "" {
		s.state = newState(cfg.State, cfg.Dir, cmp.Or(cfg.Sealer, seal.New()))
	}
	return s
}

// Get returns a document; nil if there is none.
func (s *Source) Get(key config.Key) *config.Config { return s.index.Get(key) }

// List returns the documents of a kind, of one namespace or, for "", of all, by namespace and name.
func (s *Source) List(kind config.Kind, namespace string) []*config.Config {
	return s.index.List(kind, namespace)
}

// HasSynced reports whether the directory was complete once and the handlers were called for all of its
// documents. A directory that cannot be read, or has no file, does not sync.
func (s *Source) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Waiting returns why the source has not synced; nil if it has.
func (s *Source) Waiting() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.synced:
		return nil
	case s.dirErr != nil:
		return fmt.Errorf("%s: %w", s.cfg.Dir, s.dirErr)
	case len(s.waits) > 0:
		return waiting(s.waits)
	}
	return fmt.Errorf("%s: it has not been read yet, or still changes", s.cfg.Dir)
}

// waiting says for which documents a start waits.
func waiting(waits []config.Problem) error {
	more := ""
	if n := len(waits) - 1; n > 0 {
		more = fmt.Sprintf("; and %d more", n)
	}
	return fmt.Errorf("a document is not valid and has no last valid content: repair it, or give --start-with-problems-after: %s%s", waits[0], more)
}

// Problems returns what is wrong in the directory, by file and line. Files have their paths from the
// directory.
func (s *Source) Problems() []config.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	problems := slices.Clone(s.problems)
	if s.dirErr != nil {
		problems = append(problems, config.Problem{File: s.cfg.Dir, Message: "the directory cannot be read: " + s.dirErr.Error()})
	}
	return problems
}

// Run keeps the copy current until ctx ends, and returns its cause.
func (s *Source) Run(ctx context.Context) error {
	ev := s.watch(s.log)
	defer ev.close()
	r := &run{
		source: s, began: time.Now(),
		scanner: &scanner{dir: s.cfg.Dir, readDir: s.readDir, loaded: func(name string) (uint64, bool) { return s.files.loaded(name) }, listed: ev.of},
	}
	r.recall()
	for {
		pause := r.scan(ctx)
		changed := ev.changed
		if pause <= recheck {
			changed = nil // what changes must be left alone for that long
		}
		if !sleep(ctx, pause, changed) {
			return context.Cause(ctx)
		}
	}
}

// sleep waits for a duration, or until something changed. It returns false if ctx ended.
func sleep(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-changed:
	}
	return true
}

// run is the state of a Run.
type run struct {
	source  *Source
	scanner *scanner
	began   time.Time
	// current is the pass that was loaded last, previous the last one, loaded or not; nil for none.
	current, previous pass
	changing          int
	// renamedAt is when a scan last found other files than the one before, by their names: somebody who copies a directory
	// makes new ones, and somebody who writes the same ones again and again does not.
	renamedAt time.Time
	// away are the directories, with a slash at the end and "" for the root, that were away or empty, from then on until nothing
	// has come or gone for settleAfter; and the root at a start with a state. What they lack meanwhile is kept.
	away away
	// recalled is set if there were documents of a last run.
	recalled bool
}

// recall takes in the state of the last run.
func (r *run) recall() {
	s := r.source
	if s.state == nil {
		return
	}
	kept, err := s.state.load()
	if err != nil {
		s.log.Error("the documents of the last run cannot be read in whole: what can be read of them is used", "file", s.cfg.State, "err", err)
	}
	if len(kept) == 0 {
		return
	}
	s.files, r.recalled, r.away = kept, true, away{root}
	r.scanner.last = make(map[string]observed, len(kept)) // so that a subdirectory is found to be empty
	for name := range kept {
		r.scanner.last[name] = observed{name: name}
	}
}

// scan scans the directory, loads it if it has changed, and returns the pause until the next scan.
func (r *run) scan(ctx context.Context) time.Duration {
	p, err := r.scanner.scan(ctx)
	if ctx.Err() != nil {
		return 0
	}
	if errors.Is(err, userfile.ErrSlow) {
		r.source.directory(err)
		return min(recheck, r.useState())
	}
	if err == nil && len(p) == 0 {
		err = errEmpty
	}
	r.source.directory(err)
	if err != nil {
		if r.previous = nil; r.current != nil {
			r.away = away{root}
		}
		return min(interval, r.useState())
	}
	previous := r.previous
	r.previous = p
	if previous == nil || !p.sameNames(previous) {
		r.renamedAt = time.Now()
	}
	emptied := p.emptied()
	r.away = r.away.with(emptied)
	quiet := time.Since(r.renamedAt)
	settled := len(r.away) > len(emptied) && quiet >= settleAfter
	switch {
	case r.current != nil && p.same(r.current) && !settled:
		r.changing = 0
		return min(interval, r.sync(quiet))
	case previous != nil && p.same(previous) && !r.isBeingWritten(p):
	case r.isWritten(p):
	case r.changing >= maxRechecks && previous != nil:
		p = r.onlyStable(p, previous)
	default:
		r.changing++
		return recheck
	}
	if settled {
		r.away = emptied
	}
	r.changing = 0
	r.current = p
	r.source.load(p, r.away)
	return min(interval, r.sync(quiet))
}

// sync lets the source be complete when it is, and returns when to look again.
func (r *run) sync(quiet time.Duration) time.Duration {
	s := r.source
	if s.HasSynced() {
		return interval
	}
	if wait := freshFor - max(quiet, r.scanner.age()); wait > 0 && !r.recalled {
		return wait
	}
	after := s.cfg.StartWithProblemsAfter
	s.mu.Lock()
	waits := s.waits
	s.mu.Unlock()
	switch left := after - time.Since(r.began); {
	case len(waits) == 0:
	case after > 0 && left <= 0:
		s.log.Error("documents that are not valid are left out, since they were not repaired in time (--start-with-problems-after)", "documents", len(waits), "first", waits[0].String())
	case after > 0:
		return left
	default:
		return interval
	}
	s.complete()
	return interval
}

// complete says that the copy is complete.
func (s *Source) complete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = true
}

// useState uses the documents of the last run as the copy while the directory is away at the start, and returns when to look
// again.
func (r *run) useState() time.Duration {
	s := r.source
	if s.HasSynced() || r.current != nil || len(s.files) == 0 {
		return interval
	}
	if wait := Patience - time.Since(r.began); wait > 0 {
		return wait
	}
	s.publish()
	s.complete()
	s.log.Warn("the directory is away: the documents of the last run are served")
	return interval
}

// isWritten reports whether a pass can be loaded without another look: nobody writes to the files that
// changed, what was read is all of them, and no document would be deleted. Whoever replaces a file in
// steps deletes documents in the first.
func (r *run) isWritten(p pass) bool {
	if r.current == nil {
		return false
	}
	for _, o := range r.changed(p) {
		if o.err != nil || writersOf(r.path(o)) != noWriters {
			return false
		}
		if data, err := userfile.Read(r.path(o)); err != nil || xxhash.Sum64(data) != o.hash {
			return false
		}
	}
	documents, _ := r.source.files.load(p, r.away).documents()
	return !slices.ContainsFunc(r.source.index.All(), func(c *config.Config) bool { return documents[c.Meta.Key] == nil })
}

// isBeingWritten reports that somebody has one of the files open for writing that changed.
func (r *run) isBeingWritten(p pass) bool {
	return slices.ContainsFunc(r.changed(p), func(o observed) bool { return writersOf(r.path(o)) == someWriters })
}

// changed returns the files that are not as they were loaded.
func (r *run) changed(p pass) (changed []observed) {
	for _, o := range p {
		if loaded, ok := r.current.find(o.name); !ok || !loaded.same(o) {
			changed = append(changed, o)
		}
	}
	return changed
}

func (r *run) path(o observed) string {
	return filepath.Join(r.source.cfg.Dir, filepath.FromSlash(o.name))
}

// find returns the file of a name.
func (p pass) find(name string) (observed, bool) {
	i, ok := slices.BinarySearchFunc(p, name, func(o observed, name string) int { return strings.Compare(o.name, name) })
	if !ok {
		return observed{}, false
	}
	return p[i], true
}

// onlyStable returns a pass with the files marked as unreadable that changed since the previous pass, or
// that somebody writes to.
func (r *run) onlyStable(p, previous pass) pass {
	marked := slices.Clone(p)
	for _, o := range r.changed(p) {
		reason := ""
		if writersOf(r.path(o)) == someWriters {
			reason = "somebody has it open for writing"
		}
		if before, ok := previous.find(o.name); !ok || !before.same(o) {
			reason = "it keeps changing while it is read"
		}
		if reason != "" {
			marked[slices.IndexFunc(p, o.same)] = observed{name: o.name, info: o.info, err: errors.New(reason)}
		}
	}
	return marked
}

// errEmpty is that of a directory that has no document: a volume that is not mounted, or a checkout that has not been
// made, looks like that.
var errEmpty = errors.New("it has no file *.yaml, *.yml or *.json, as a volume that is not mounted; to have no documents on purpose, leave a file with a comment alone in it")

// directory records whether the directory can be read.
func (s *Source) directory(err error) {
	err = reason(err)
	s.mu.Lock()
	previous := s.dirErr
	s.dirErr = err
	s.mu.Unlock()
	switch {
	case err != nil && text(previous) != err.Error() && s.HasSynced():
		s.log.Error("directory cannot be read; its documents stay in use", "err", err)
	case err != nil && text(previous) != err.Error():
		s.log.Error("directory cannot be read: nobody is served until it can", "err", err)
	case err == nil && previous != nil:
		s.log.Info("directory can be read again")
	}
}

// load loads the files of a pass. Files that it lacks are kept if they are of directories that were away.
func (s *Source) load(p pass, were away) {
	before := s.files
	s.files = before.load(p, were)
	put, removed, problems := s.publish()
	if s.state != nil {
		if err := s.state.keep(before, s.files); err != nil {
			s.log.Error("the documents cannot be kept for a restart", "file", s.cfg.State, "err", err)
		}
	}
	s.wait(s.files.waits())
	s.log.Info("documents loaded", "put", put, "removed", removed, "problems", problems)
}

// wait takes in for which documents a start waits.
func (s *Source) wait(waits []config.Problem) {
	s.mu.Lock()
	before, synced := s.waits, s.synced
	s.waits = waits
	s.mu.Unlock()
	if len(waits) > 0 && !synced && !slices.Equal(before, waits) {
		s.log.Error("nobody is served", "err", waiting(waits))
	}
}

// publish brings the copy up to date with the files, and calls the handlers for the documents that changed: first for
// those that are new or changed, then for those that are deleted.
func (s *Source) publish() (put, removed, found int) {
	documents, problems := s.files.documents()
	s.record(problems)
	for _, key := range slices.SortedFunc(maps.Keys(documents), config.CompareKeys) {
		c := documents[key]
		if s.index.Get(key) == c {
			continue // of a file that has not changed
		}
		old := s.index.Put(c)
		if old != nil && old.ResourceVersion == c.ResourceVersion {
			continue // only its place may be another
		}
		put++
		s.Call(config.Event{Old: old, New: c})
	}
	for _, c := range s.index.All() {
		if documents[c.Meta.Key] == nil {
			removed++
			s.Call(config.Event{Old: s.index.Remove(c.Meta.Key)})
		}
	}
	return put, removed, len(problems)
}

// record records the problems, and logs those that are new.
func (s *Source) record(problems []config.Problem) {
	s.mu.Lock()
	previous := s.problems
	s.problems = problems
	s.mu.Unlock()
	config.LogProblems(s.log, problems, previous)
}
