// Package file is an upstream that takes its resources from the files of one directory.
//
// All files of the directory together are one complete state, without subdirectories and names that begin with a
// dot. A file contains plain resources, each with "@type", or DiscoveryResponses: YAML (.yaml, .yml; several
// documents, or a list under "resources"), JSON (.json), protobuf's wire form (.pb, .bin, .binpb; a
// DiscoveryResponse) and its text form (.txtpb, .textproto, .pbtext, .pb_text; a DiscoveryResponse or an Any).
// Only the wire form can contain types that are not known to this build, and it keeps every body byte for byte.
//
// The source sends everything it has, whether or not it is subscribed to. A TTL starts with each sending.
//
// A file that cannot be read, or that repeats a resource of another file, changes nothing: its last valid content
// stays in use, and its error says where and why. The source answers when each file is valid or has a last valid
// content; later, nothing is removed while some file has never had valid content. A directory that cannot be read,
// or has no file, answers nobody and removes nothing, since a volume that is not mounted looks like that: a file with
// "resources: []" says that there are none. When it is back, what it lacks is removed when no file came or went for
// settleAfter, and so is, in a directory that is being filled at the start, what earlier runs had. The source polls the directory and hashes its files, which
// detects every way of changing a file, including Kubernetes' exchange of "..data". A change is loaded when two
// scans in a row found the same content.
//
// A Source is run by one goroutine at a time; Name and Status may be called from any.
package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

const (
	// interval is how often the directory is scanned. A change is served after at most 1.1 intervals and the time
	// that reading takes.
	interval = 500 * time.Millisecond
	// recheckShare divides the interval into the pause before the second scan, which must agree.
	recheckShare = 10
	// maxRechecks is how many scans in a row may differ before a file that keeps changing is left out.
	maxRechecks = 40
	// maxFileBytes is the maximum size of a file.
	maxFileBytes = 256 << 20
	// freshFor is how long no file must have come or gone in a directory in which something was made or deleted lately
	// before it is taken for whole at the start: somebody may be copying it file by file.
	freshFor = time.Second
	// settleAfter is how long no file must have come or gone before what the directory lacks is removed, after it was away
	// or empty, and at the start if it is filled at that time.
	settleAfter = 10 * time.Second
)

// Config configures a Source.
type Config struct {
	Dir string
	// StartWithProblemsAfter is how long after the start the source answers although some files were never valid: they
	// are left out. 0 means never.
	StartWithProblemsAfter time.Duration
	Log                    *slog.Logger
}

type Source struct {
	cfg   Config
	limit int64 // maxFileBytes, except in tests
	// readDir is os.ReadDir, except in tests.
	readDir func(string) ([]os.DirEntry, error)
	log     *slog.Logger
	began   time.Time // when Run was first called; its own

	// mu guards the fields that Status reads. Only Run writes files, and a set that is stored never changes.
	mu     sync.Mutex
	files  set
	dirErr error
	loaded time.Time
	// ignored holds the names of files that are not read, with the reason.
	ignored map[string]string
	// nacked holds the clients' NACKs of the newest content: type URL → error.
	nacked map[string]error
}

var _ upstream.Source = (*Source)(nil)

// New returns the source of a directory.
func New(cfg Config) *Source {
	s := &Source{cfg: cfg, limit: maxFileBytes, readDir: os.ReadDir, files: set{}, nacked: make(map[string]error)}
	s.log = cfg.Log.With("upstream", s.Name())
	return s
}

func (s *Source) Name() string { return "file:" + s.cfg.Dir }

// scanner returns a scanner of the directory; parsed is that of scanner.
func (s *Source) scanner(parsed func(name string) (uint64, bool)) *scanner {
	return &scanner{dir: s.cfg.Dir, limit: s.limit, readDir: s.readDir, parsed: parsed}
}

// parsed is that of a set. A scan that hangs may call it at any time.
func (s *Source) parsed(name string) (hash uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files.parsed(name)
}

// TakeLocks takes and releases the lock, for a watchdog.
func (s *Source) TakeLocks() { watchdog.Lock(&s.mu) }

// Run writes to the state until ctx ends. Before it has called answered it also ends, with an error (upstream.NotReady),
// if the directory cannot be read or a file is not valid: then another source may be preferred, and the caller tries again.
// Later such a failure is logged and returned by Status, the resources in the state stay, and Run continues to
// scan. Valid contents are remembered from one Run to the next.
func (s *Source) Run(ctx context.Context, state upstream.State, answered func() error) error {
	r := &run{
		source: s, state: state, answered: answered,
		scanner:  s.scanner(s.parsed),
		applied:  make(map[string]map[string]string),
		recalled: make(map[string]bool),
		synced:   make(map[string]bool),
	}
	if s.began.IsZero() {
		s.began = time.Now()
	}
	for {
		wait, err := r.scanOnce(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
		if !wake.Sleep(ctx, wait) {
			return context.Cause(ctx)
		}
	}
}

type run struct {
	source       *Source
	state        upstream.State
	answered     func() error
	scanner      *scanner
	answeredOnce bool
	// current is the pass that was loaded last, previous the last pass, loaded or not.
	current, previous pass
	changing          int
	// scannedAt is the start of the last scan whose result was sent to the state.
	scannedAt time.Time
	// renamedAt is when a scan last found other files than the one before, by their names: somebody who copies a
	// directory makes new ones, and somebody who writes the same ones again and again does not.
	renamedAt time.Time
	// settling is set until no file has come or gone for settleAfter: what the directory lacks is kept.
	settling bool
	// applied holds the resources that this run applied: type URL → name → version.
	applied map[string]map[string]string
	// recalled holds the types whose applied includes those of earlier runs, synced those of Synced.
	recalled map[string]bool
	synced   map[string]bool
}

// scanOnce scans the directory, writes changes to the state, and returns the pause until the next scan.
func (r *run) scanOnce(ctx context.Context) (time.Duration, error) {
	s := r.source
	start := time.Now()
	result := r.scanner.scan(ctx)
	p, err := result.pass, result.err
	s.directory(result.ignored, err, r.answeredOnce)
	if errors.Is(err, userfile.ErrSlow) {
		return 0, nil
	}
	if err != nil {
		r.previous = nil
		if !r.answeredOnce {
			return 0, r.notReady(nil, err)
		}
		r.settling = true
		return interval, nil
	}
	previous := r.previous
	r.previous = p
	if previous == nil || !p.sameNames(previous) {
		r.renamedAt = start
	}
	quiet := start.Sub(r.renamedAt)
	if quiet >= settleAfter && r.settling {
		r.settling, r.current = false, nil // what was kept is removed
	}
	switch {
	case r.current != nil && p.same(r.current):
		r.changing = 0
		if r.answeredOnce && r.scannedAt.Before(r.state.RequestAgain()) {
			clear(r.synced) // so that everything is sent once more
			r.scannedAt = start
			r.apply(s.files.resources(), s.files.complete() && !r.settling, start)
		}
		return interval, nil
	case previous != nil && p.same(previous):
	case r.changing >= maxRechecks && previous != nil:
		p = p.onlyStable(previous)
	default:
		r.changing++
		return interval / recheckShare, nil
	}
	r.changing = 0
	if !r.answeredOnce {
		if wait := freshFor - max(quiet, r.scanner.age()); wait > 0 {
			return min(wait, interval), nil
		}
		r.settling = r.scanner.age() < settleAfter && r.isHeld()
	}
	r.current, r.scannedAt = p, start
	return interval, r.load(p)
}

// isHeld reports whether the state has resources of an earlier run.
func (r *run) isHeld() bool {
	return slices.ContainsFunc(xds.Types(), func(typeURL string) bool {
		for _, version := range r.state.Cached(r.source.Name(), typeURL) {
			if version != "" {
				return true
			}
		}
		return false
	})
}

// notReady returns why nothing is answered yet, after a pass, nil for a directory that cannot be read.
func (r *run) notReady(p pass, why error) error {
	scan := r.source.scanner(func(string) (uint64, bool) { return 0, false })
	return upstream.NotReady(why, func(ctx context.Context) {
		for wake.Sleep(ctx, interval) {
			switch next := scan.scan(ctx); {
			case p == nil && text(next.err) != why.Error(), p != nil && (next.err != nil || !next.pass.same(p)), p != nil && r.source.late():
				return
			}
		}
	})
}

// late reports whether the start waits no longer for files that are not valid.
func (s *Source) late() bool {
	after := s.cfg.StartWithProblemsAfter
	return after > 0 && time.Since(s.began) >= after
}

// onlyStable returns the pass with the files that changed since the previous pass marked as unreadable.
func (p pass) onlyStable(previous pass) pass {
	marked := slices.Clone(p)
	for i, o := range marked {
		j, found := slices.BinarySearchFunc(previous, o.name, func(f observed, name string) int { return strings.Compare(f.name, name) })
		if !found || !previous[j].same(o) {
			marked[i] = observed{name: o.name, info: o.info, err: errors.New("it keeps changing while it is read")}
		}
	}
	return marked
}

// directory records the ignored files and the error of a scan, and logs changes of them.
func (s *Source) directory(ignored map[string]string, err error, answered bool) {
	s.mu.Lock()
	previous, known := s.dirErr, s.ignored
	s.dirErr = err
	if err == nil {
		s.ignored = ignored
	}
	s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(ignored)) {
		if _, ok := known[name]; !ok {
			s.log.Warn("file ignored", "name", name, "err", ignored[name])
		}
	}
	switch {
	case err != nil && text(previous) != err.Error() && answered:
		s.log.Error("directory cannot be read; its last content stays in use", "err", err)
	case err != nil && text(previous) != err.Error():
		s.log.Error("directory cannot be read: nothing is served from it until it can", "err", err)
	case err == nil && previous != nil:
		s.log.Info("directory can be read again")
	}
}

func (r *run) load(p pass) error {
	s := r.source
	now := time.Now()
	before, after := s.files, s.files.load(p, now, r.settling)
	s.mu.Lock()
	s.files, s.loaded = after, now
	s.mu.Unlock()
	s.report(before, after)
	resources := after.resources()
	if !r.answeredOnce {
		if errs := after.neverValid(); len(errs) > 0 {
			if !s.late() {
				return r.notReady(p, errors.Join(errs...))
			}
			s.log.Error("files that were never valid are left out, since they were not repaired in time (--start-with-problems-after)", "files", len(errs))
		}
		r.answeredOnce = true
		if err := r.answered(); err != nil {
			return err
		}
	}
	r.apply(resources, after.complete() && !r.settling, now)
	return nil
}

func (s *Source) report(before, after set) {
	for _, name := range after.names() {
		m, was := after[name], ""
		if previous := before[name]; previous != nil {
			was = text(previous.err)
		}
		switch {
		case text(m.err) == was:
		case m.err == nil:
			s.log.Info("file is valid again", "name", name)
		case m.served == nil:
			s.log.Error("file not loaded; at the start nothing is served, and later nothing is removed, until it is repaired or deleted", "name", name, "err", m.err)
		default:
			s.log.Error("file not loaded; its last valid content stays in use", "name", name, "err", m.err)
		}
	}
}

// apply writes the changes to the state, in push order.
func (r *run) apply(resources map[string][]*xds.Resource, complete bool, now time.Time) {
	types := slices.Concat(xds.Types(), slices.Collect(maps.Keys(resources)), slices.Collect(maps.Keys(r.applied)))
	slices.SortFunc(types, xds.CompareTypes)
	for _, typeURL := range slices.Compact(types) {
		r.applyType(typeURL, resources[typeURL], complete, now)
	}
}

func (r *run) applyType(typeURL string, resources []*xds.Resource, complete bool, now time.Time) {
	name := r.source.Name()
	full := xds.FullState(typeURL) && complete
	cached := r.cached(typeURL, complete)
	update := xds.Update{Source: name, Type: typeURL, RequestedAt: r.scannedAt, Complete: full, KeepUnsubscribed: true}
	versions := make(map[string]string, len(resources))
	changed := full && !r.synced[typeURL]
	removed := 0
	for _, resource := range resources {
		versions[resource.Name] = resource.Version
		differs := cached[resource.Name] != resource.Version
		changed = changed || differs
		if differs || full {
			update.Resources = append(update.Resources, fresh(resource, now))
		}
	}
	for name := range cached {
		switch _, stays := versions[name]; {
		case stays:
		case !complete:
			versions[name] = cached[name]
		default:
			changed = true
			removed++
			if !full { // a complete update removes it by leaving it out
				update.Removed = append(update.Removed, name)
			}
		}
	}
	slices.Sort(update.Removed)
	r.applied[typeURL] = versions
	if !changed {
		return
	}
	r.source.answer(typeURL, nil)
	r.state.Apply(update, func(err error) { r.source.answer(typeURL, err) })
	if full && !r.synced[typeURL] {
		r.synced[typeURL] = true
		r.state.Synced(name, typeURL, r.scannedAt)
	}
	r.source.log.Info("configuration loaded", "type", xds.Short(typeURL), "put", len(update.Resources), "removed", removed, "complete", full)
}

// cached returns the resources of a type that the state has from this run and, once all contents are known, from
// earlier runs, since this source may remove those too.
func (r *run) cached(typeURL string, complete bool) map[string]string {
	applied := r.applied[typeURL]
	if !complete || r.recalled[typeURL] {
		return applied
	}
	r.recalled[typeURL] = true
	all := make(map[string]string)
	for name, version := range r.state.Cached(r.source.Name(), typeURL) {
		if version != "" {
			all[name] = ""
		}
	}
	maps.Copy(all, applied)
	return all
}

func fresh(resource *xds.Resource, now time.Time) *xds.Resource {
	if resource.TTL() == 0 {
		return resource
	}
	return resource.WithLifetime(resource.TTL(), now.Add(resource.TTL()))
}

// answer records the clients' ACK or NACK of the newest content of a type.
func (s *Source) answer(typeURL string, err error) {
	s.mu.Lock()
	previous := s.nacked[typeURL]
	s.nacked[typeURL] = err
	if err == nil {
		delete(s.nacked, typeURL)
	}
	s.mu.Unlock()
	if err != nil && text(previous) != err.Error() {
		s.log.Warn("clients NACKed the configuration", "type", xds.Short(typeURL), "err", err)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

type Status struct {
	// Err is why the directory cannot be read; nil if it can.
	Dir    string
	Err    error
	Loaded time.Time
	// Complete is set if each file has valid content, so that resources in none of the files are removed.
	Complete bool
	// Files lists the files in order of name, including ignored ones.
	Files []FileStatus
	// Rejected holds the clients' NACKs of the newest content of each type, by type URL.
	Rejected map[string]error
}

type FileStatus struct {
	Name string
	// Size is in bytes, as last read; 0 for a file that could not be read.
	Size int64
	// Resources counts the resources of the file that are served.
	Resources int
	// Err is a *ParseError that says why the current content is not served. If Resources is not 0, the last valid
	// content is.
	Err error
	// Ignored is why the file is not read at all; "" if it is.
	Ignored string
}

func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := Status{
		Dir: s.cfg.Dir, Err: s.dirErr, Loaded: s.loaded,
		Complete: !s.loaded.IsZero() && s.files.complete(),
		Rejected: maps.Clone(s.nacked),
	}
	for _, name := range s.files.names() {
		m := s.files[name]
		f := FileStatus{Name: name, Err: m.err}
		if m.seen.info != nil {
			f.Size = m.seen.info.Size()
		}
		if m.served != nil {
			f.Resources = len(m.served.entries)
		}
		status.Files = append(status.Files, f)
	}
	for name, why := range s.ignored {
		status.Files = append(status.Files, FileStatus{Name: name, Ignored: why})
	}
	slices.SortFunc(status.Files, func(a, b FileStatus) int { return strings.Compare(a.Name, b.Name) })
	return status
}
