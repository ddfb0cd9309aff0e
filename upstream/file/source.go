// Package file is the file source: an upstream that takes its resources from the
// files of one directory, as they are now and whenever they change.
//
// All files of the directory together are one complete state; there is nothing
// below it, and names that begin with a dot are passed over. A file holds plain
// resources, each with "@type", or DiscoveryResponses: YAML (.yaml, .yml; several
// documents, or a list under "resources"), JSON (.json), protobuf's wire form
// (.pb, .bin, .binpb; a DiscoveryResponse) and its text form (.txtpb, .textproto,
// .pbtext, .pb_text; a DiscoveryResponse or an Any). Only the wire form can carry
// types that are not known to this build, and carries every body byte for byte.
//
// It tells everything it has, whatever is subscribed to.
//
// It promises that a file which cannot be read, or which repeats a resource of
// another file, changes nothing: its last good content stays, and its error says
// where and why. It promises that a directory which cannot be read removes
// nothing, and that nothing is removed while the content of some file is wholly
// unknown. It does not watch but look: a directory is polled and its files
// hashed, which sees every way of changing one, Kubernetes' exchange of "..data"
// included. A change counts when two looks in a row found the same.
//
// A TTL starts whenever its resource is told to the state.
//
// A Source is run by one goroutine at a time; Name and Status may be called from
// any.
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

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// Defaults of Config.
const (
	DefaultInterval     = 500 * time.Millisecond
	DefaultMaxFileBytes = 256 << 20
)

const (
	// settleShare is which share of the interval passes between the two looks
	// that must agree.
	settleShare = 10
	// unsettledLooks is how many looks in a row may disagree before the files
	// that do agree are loaded without the one that keeps changing.
	unsettledLooks = 40
)

// Config says which directory a Source reads, and how.
type Config struct {
	// Dir is the directory.
	Dir string
	// Interval is how often it is looked at; DefaultInterval if 0. A change is
	// served after at most 1.1 intervals and the time that reading takes.
	Interval time.Duration
	// MaxFileBytes is the largest file that is read; DefaultMaxFileBytes if 0.
	MaxFileBytes int64
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Source is a directory of files as an upstream. See the package comment.
type Source struct {
	config Config
	log    *slog.Logger

	// mu guards what Status tells. Only Run writes files, whose content does not
	// change any more once it is here.
	mu    sync.Mutex
	files *set
	// dirErr says why the directory cannot be read, nil if it can.
	dirErr error
	// loaded is when a content was loaded last.
	loaded time.Time
	// ignored holds the names of files that are not read, with the reason.
	ignored map[string]string
	// rejected holds what clients said of the newest content: type URL → error.
	rejected map[string]error
}

var _ upstream.Source = (*Source)(nil)

// New returns the source. It does not look at the directory yet.
func New(config Config) *Source {
	if config.Interval <= 0 {
		config.Interval = DefaultInterval
	}
	if config.MaxFileBytes <= 0 {
		config.MaxFileBytes = DefaultMaxFileBytes
	}
	log := config.Logger
	if log == nil {
		log = slog.Default()
	}
	s := &Source{
		config:   config,
		files:    &set{},
		rejected: make(map[string]error),
	}
	s.log = log.With("upstream", s.Name())
	return s
}

// Name is "file:" and the directory.
func (s *Source) Name() string { return "file:" + s.config.Dir }

// Run writes to the state until ctx ends. Before its first answer it also ends, with an error,
// when the directory cannot be read or none of its files can: another source may
// be preferred then, and the caller tries again. Later on such a failure is
// logged and told by Status, what was fed stays, and Run keeps looking. What was
// good is remembered from one Run to the next.
func (s *Source) Run(ctx context.Context, state upstream.State, answered func() error) error {
	r := &run{
		source: s, state: state, answered: answered,
		scanner: &scanner{
			dir: s.config.Dir, limit: s.config.MaxFileBytes,
			parsed: func(name string) (uint64, bool) { return s.files.parsed(name) },
		},
		applied:  make(map[string]map[string]string),
		recalled: make(map[string]bool),
		synced:   make(map[string]bool),
	}
	for {
		wait, err := r.look()
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

// run is the state of one Run.
type run struct {
	source   *Source
	state    upstream.State
	answered func() error
	scanner  *scanner
	// told says that answered was called.
	told bool
	// current is the pass that was loaded last, previous the one before this.
	current, previous pass
	loadedOnce        bool
	unsettled         int
	// asked is when the look began of which the state was last told.
	asked time.Time
	// applied is what the state has from this run: type URL → name → version.
	applied map[string]map[string]string
	// recalled holds the types whose applied has what earlier runs left.
	recalled map[string]bool
	// synced holds the types that were told to be complete.
	synced map[string]bool
}

// look looks at the directory once and writes what changed to the state. It returns after how
// long to look again.
func (r *run) look() (time.Duration, error) {
	s := r.source
	asked := time.Now()
	p, ignored, err := r.scanner.scan()
	s.directory(ignored, err)
	if err != nil {
		r.previous = nil
		if !r.told {
			return 0, err
		}
		return s.config.Interval, nil
	}
	previous := r.previous
	r.previous = p
	switch {
	case r.loadedOnce && p.same(r.current):
		r.unsettled = 0
		if r.told && r.asked.Before(r.state.AskAgain()) {
			clear(r.synced) // so that everything is told once more
			r.asked = asked
			r.apply(s.files.resources(), s.files.complete(), asked)
		}
		return s.config.Interval, nil
	case previous != nil && p.same(previous):
	case r.unsettled >= unsettledLooks && previous != nil:
		p = p.onlySettled(previous)
	default:
		r.unsettled++
		return s.config.Interval / settleShare, nil
	}
	r.unsettled = 0
	r.current, r.loadedOnce, r.asked = p, true, asked
	return s.config.Interval, r.load(p)
}

// onlySettled marks the files that changed since the former pass as unreadable.
func (p pass) onlySettled(former pass) pass {
	marked := slices.Clone(p)
	for i, o := range marked {
		j, found := slices.BinarySearchFunc(former, o.name, func(f observed, name string) int { return strings.Compare(f.name, name) })
		if !found || !former[j].same(o) {
			marked[i] = observed{name: o.name, info: o.info, err: errors.New("it keeps changing while it is read")}
		}
	}
	return marked
}

// directory notes what a look at the directory found besides its content, and
// logs a change of that.
func (s *Source) directory(ignored map[string]string, err error) {
	s.mu.Lock()
	before, known := s.dirErr, s.ignored
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
	case err != nil && text(before) != err.Error():
		s.log.Error("directory cannot be read; what was loaded from it stays", "err", err)
	case err == nil && before != nil:
		s.log.Info("directory can be read again")
	}
}

// load takes in a pass that is settled and writes what it changed to the state.
func (r *run) load(p pass) error {
	s := r.source
	now := time.Now()
	before, after := s.files, s.files.load(p, now)
	s.mu.Lock()
	s.files, s.loaded = after, now
	s.mu.Unlock()
	s.report(before, after)
	resources := after.resources()
	if !r.told {
		if errs := after.errors(); len(resources) == 0 && len(errs) > 0 {
			return errors.Join(errs...)
		}
		r.told = true
		if err := r.answered(); err != nil {
			return err
		}
	}
	r.apply(resources, after.complete(), now)
	return nil
}

// report logs what became good or bad.
func (s *Source) report(before, after *set) {
	for _, name := range after.names() {
		m, was := after.members[name], ""
		if former := before.members[name]; former != nil {
			was = text(former.err)
		}
		switch {
		case text(m.err) == was:
		case m.err == nil:
			s.log.Info("file is good again", "name", name)
		case m.good == nil:
			s.log.Error("file not loaded; nothing is removed until it is repaired or deleted", "name", name, "err", m.err)
		default:
			s.log.Error("file not loaded; its last good content stays", "name", name, "err", m.err)
		}
	}
}

// apply writes the difference to what the state has, in push order.
func (r *run) apply(resources map[string][]*xds.Resource, complete bool, now time.Time) {
	types := make(map[string]bool)
	for _, typeURL := range xds.Types() {
		types[typeURL] = true
	}
	for typeURL := range resources {
		types[typeURL] = true
	}
	for typeURL := range r.applied {
		types[typeURL] = true
	}
	for _, typeURL := range slices.SortedFunc(maps.Keys(types), xds.CompareTypes) {
		r.applyType(typeURL, resources[typeURL], complete, now)
	}
}

func (r *run) applyType(typeURL string, resources []*xds.Resource, complete bool, now time.Time) {
	name := r.source.Name()
	full := xds.FullState(typeURL) && complete
	held := r.held(typeURL, complete)
	u := xds.Update{Source: name, Type: typeURL, RequestedAt: r.asked, Complete: full, KeepUnsubscribed: true}
	there := make(map[string]string, len(resources))
	changed := full && !r.synced[typeURL]
	removed := 0
	for _, resource := range resources {
		there[resource.Name] = resource.Version
		differs := held[resource.Name] != resource.Version
		changed = changed || differs
		if differs || full {
			u.Resources = append(u.Resources, fresh(resource, now))
		}
	}
	for name := range held {
		switch _, stays := there[name]; {
		case stays:
		case !complete:
			there[name] = held[name]
		default:
			changed = true
			removed++
			if !full { // of a complete state absence says it
				u.Removed = append(u.Removed, name)
			}
		}
	}
	slices.Sort(u.Removed)
	r.applied[typeURL] = there
	if !changed {
		return
	}
	r.source.reject(typeURL, nil)
	r.state.Apply(u, func(err error) { r.source.reject(typeURL, err) })
	if full && !r.synced[typeURL] {
		r.synced[typeURL] = true
		r.state.Synced(name, typeURL, r.asked)
	}
	r.source.log.Info("configuration loaded", "type", xds.Short(typeURL), "put", len(u.Resources), "removed", removed, "complete", full)
}

// held returns what the state has of a type: from this run and, once all content is
// known, from earlier ones, whose resources are this source's own to remove.
func (r *run) held(typeURL string, complete bool) map[string]string {
	held := r.applied[typeURL]
	if !complete || r.recalled[typeURL] {
		return held
	}
	r.recalled[typeURL] = true
	all := make(map[string]string)
	for name, version := range r.state.Held(r.source.Name(), typeURL) {
		if version != "" {
			all[name] = ""
		}
	}
	maps.Copy(all, held)
	return all
}

// fresh starts the TTL of a resource that has one.
func fresh(resource *xds.Resource, now time.Time) *xds.Resource {
	if resource.TTL() == 0 {
		return resource
	}
	return resource.WithLifetime(resource.TTL(), now.Add(resource.TTL()))
}

// reject notes the clients' verdict on the newest content of a type.
func (s *Source) reject(typeURL string, err error) {
	s.mu.Lock()
	before := s.rejected[typeURL]
	s.rejected[typeURL] = err
	if err == nil {
		delete(s.rejected, typeURL)
	}
	s.mu.Unlock()
	if err != nil && text(before) != err.Error() {
		s.log.Warn("clients rejected the configuration", "type", xds.Short(typeURL), "err", err)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
