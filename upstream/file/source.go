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
// stays in use, and its error says where and why. A directory that cannot be read removes nothing, and nothing is
// removed while some file has never had valid content. The source polls the directory and hashes its files, which
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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
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
)

type Source struct {
	dir   string
	limit int64 // maxFileBytes, except in tests
	log   *slog.Logger

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
func New(dir string, log *slog.Logger) *Source {
	s := &Source{dir: dir, limit: maxFileBytes, files: set{}, nacked: make(map[string]error)}
	s.log = log.With("upstream", s.Name())
	return s
}

func (s *Source) Name() string { return "file:" + s.dir }

// Run writes to the state until ctx ends. Before it has called answered it also ends, with an error, if the
// directory or all of its files cannot be read: then another source may be preferred, and the caller tries again.
// Later such a failure is logged and returned by Status, the resources in the state stay, and Run continues to
// scan. Valid contents are remembered from one Run to the next.
func (s *Source) Run(ctx context.Context, state upstream.State, answered func() error) error {
	r := &run{
		source: s, state: state, answered: answered,
		scanner: &scanner{
			dir: s.dir, limit: s.limit,
			parsed: func(name string) (uint64, bool) { return s.files.parsed(name) },
		},
		applied:  make(map[string]map[string]string),
		recalled: make(map[string]bool),
		synced:   make(map[string]bool),
	}
	for {
		wait, err := r.scanOnce()
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
	// applied holds the resources that this run applied: type URL → name → version.
	applied map[string]map[string]string
	// recalled holds the types whose applied includes those of earlier runs, synced those of Synced.
	recalled map[string]bool
	synced   map[string]bool
}

// scanOnce scans the directory, writes changes to the state, and returns the pause until the next scan.
func (r *run) scanOnce() (time.Duration, error) {
	s := r.source
	start := time.Now()
	p, ignored, err := r.scanner.scan()
	s.directory(ignored, err)
	if err != nil {
		r.previous = nil
		if !r.answeredOnce {
			return 0, err
		}
		return interval, nil
	}
	previous := r.previous
	r.previous = p
	switch {
	case r.current != nil && p.same(r.current):
		r.changing = 0
		if r.answeredOnce && r.scannedAt.Before(r.state.RequestAgain()) {
			clear(r.synced) // so that everything is sent once more
			r.scannedAt = start
			r.apply(s.files.resources(), s.files.complete(), start)
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
	r.current, r.scannedAt = p, start
	return interval, r.load(p)
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
func (s *Source) directory(ignored map[string]string, err error) {
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
	case err != nil && text(previous) != err.Error():
		s.log.Error("directory cannot be read; its last content stays in use", "err", err)
	case err == nil && previous != nil:
		s.log.Info("directory can be read again")
	}
}

func (r *run) load(p pass) error {
	s := r.source
	now := time.Now()
	before, after := s.files, s.files.load(p, now)
	s.mu.Lock()
	s.files, s.loaded = after, now
	s.mu.Unlock()
	s.report(before, after)
	resources := after.resources()
	if !r.answeredOnce {
		if errs := after.errors(); len(resources) == 0 && len(errs) > 0 {
			return errors.Join(errs...)
		}
		r.answeredOnce = true
		if err := r.answered(); err != nil {
			return err
		}
	}
	r.apply(resources, after.complete(), now)
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
			s.log.Error("file not loaded; nothing is removed until it is repaired or deleted", "name", name, "err", m.err)
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
		Dir: s.dir, Err: s.dirErr, Loaded: s.loaded,
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
