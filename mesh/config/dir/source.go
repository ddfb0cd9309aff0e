// Package dir keeps a copy of the documents in a directory: those in its files *.yaml, *.yml and
// *.json and in those of its subdirectories, without names that begin with a dot. A file has any
// number of documents of any kinds.
//
// It promises that what is not valid changes nothing (mesh.md M6). A document that is not valid keeps
// its last valid content, and harms no other document. A file that cannot be read or parsed keeps all
// of its documents. A document is deleted when it is gone from a file that can be parsed, or when its
// file is gone from a directory that can be read; if the directory itself is gone, or a subdirectory
// cannot be read or has nothing in it, nothing of it is deleted.
// Of two documents with the same kind, namespace and name, that in the first file by name is used.
// Problems names everything that is wrong with file, line and field.
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
	"context"
	"errors"
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
)

// Source is a copy of the documents in a directory.
type Source struct {
	config.Handlers
	dir   string
	log   *slog.Logger
	index config.Index
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
}

var _ config.Cache = (*Source)(nil)

// New returns the copy of a directory, which is empty until Run.
func New(path string, log *slog.Logger) *Source {
	return &Source{dir: path, log: log.With("name", path), files: files{}, readDir: os.ReadDir, watch: watch}
}

// Get returns a document; nil if there is none.
func (s *Source) Get(key config.Key) *config.Config { return s.index.Get(key) }

// List returns the documents of a kind, of one namespace or, for "", of all, by namespace and name.
func (s *Source) List(kind config.Kind, namespace string) []*config.Config {
	return s.index.List(kind, namespace)
}

// HasSynced reports whether the directory was read once and the handlers were called for all of its
// documents. A directory that cannot be read does not sync.
func (s *Source) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Problems returns what is wrong in the directory, by file and line. Files have their paths from the
// directory.
func (s *Source) Problems() []config.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	problems := slices.Clone(s.problems)
	if s.dirErr != nil {
		problems = append(problems, config.Problem{File: s.dir, Message: "the directory cannot be read: " + s.dirErr.Error()})
	}
	return problems
}

// Run keeps the copy current until ctx ends, and returns its cause.
func (s *Source) Run(ctx context.Context) error {
	r := &run{source: s, scanner: &scanner{dir: s.dir, readDir: s.readDir, loaded: func(name string) (uint64, bool) { return s.files.loaded(name) }}}
	ev := s.watch(s.log)
	defer ev.close()
	for {
		pause := r.scan()
		ev.of(r.scanner.directories)
		changed := ev.changed
		if pause == recheck {
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
	// current is the pass that was loaded last, previous the last one, loaded or not; nil for none.
	current, previous pass
	changing          int
}

// scan scans the directory, loads it if it has changed, and returns the pause until the next scan.
func (r *run) scan() time.Duration {
	p, err := r.scanner.scan()
	if err == nil && len(p) == 0 && len(r.current) > 0 {
		err = errEmpty
	}
	r.source.directory(err)
	if err != nil {
		r.previous = nil
		return interval
	}
	previous := r.previous
	r.previous = p
	switch {
	case r.current != nil && p.same(r.current):
		r.changing = 0
		return interval
	case previous != nil && p.same(previous) && !r.isBeingWritten(p):
	case r.isWritten(p):
	case r.changing >= maxRechecks && previous != nil:
		p = r.onlyStable(p, previous)
	default:
		r.changing++
		return recheck
	}
	r.changing = 0
	r.current = p
	r.source.load(p)
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
	documents, _ := r.source.files.load(p).documents()
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
	return filepath.Join(r.source.dir, filepath.FromSlash(o.name))
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

// errEmpty is that of a directory that had files and has none: a volume that is not mounted, or a checkout
// that has not been made, looks like that.
var errEmpty = errors.New("it has no file *.yaml, *.yml or *.json any more; to delete all documents, leave one with a comment")

// directory records whether the directory can be read.
func (s *Source) directory(err error) {
	err = reason(err)
	s.mu.Lock()
	previous := s.dirErr
	s.dirErr = err
	s.mu.Unlock()
	switch {
	case err != nil && text(previous) != err.Error():
		s.log.Error("directory cannot be read; its documents stay in use", "err", err)
	case err == nil && previous != nil:
		s.log.Info("directory can be read again")
	}
}

// load loads the files of a pass, and calls the handlers for the documents that changed: first for
// those that are new or changed, then for those that are deleted.
func (s *Source) load(p pass) {
	s.files = s.files.load(p)
	documents, problems := s.files.documents()
	s.record(problems)
	put, removed := 0, 0
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
	s.mu.Lock()
	s.synced = true
	s.mu.Unlock()
	s.log.Info("documents loaded", "put", put, "removed", removed, "problems", len(problems))
}

// record records the problems, and logs those that are new.
func (s *Source) record(problems []config.Problem) {
	s.mu.Lock()
	previous := s.problems
	s.problems = problems
	s.mu.Unlock()
	config.LogProblems(s.log, problems, previous)
}
