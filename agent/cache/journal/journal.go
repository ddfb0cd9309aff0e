// Package journal tells what of a cache should be on disk, as changes since it was last asked.
//
// It promises that a slow disk costs a set of names: what changes twice is written once; and that an answer to a source that waits for
// the disk is given when what clients ACKed is there, or cannot be written.
//
// It knows the contents and, from the features, what else is stored. Its exported methods but those of state.Disk take the lock of the
// cache; those are called with it held, as are the methods of Journal that say so.
package journal

import (
	"iter"
	"maps"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/builds"
	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Saved is what should be, or was, on disk for one name; nothing if it has neither Content nor
// Previous.
type Saved struct {
	Type, Name string
	// Build, if it is not "", says that this build of the clients' program accepted Content last, and others another one.
	Build string
	// Content is the ACKed content or, if there is none, the newest that is not NACKed; nil for
	// none. Source is the upstream that issued its version.
	Content *xds.Resource
	Source  string
	// Stable implies Accepted.
	Accepted, Stable bool
	// Previous is the stable content, if Content is another; nil for none.
	Previous *xds.Resource
	// ContentKnown and PreviousKnown say, in what Take returns, that the journal has returned that
	// content for this name before.
	ContentKnown, PreviousKnown bool
}

func (s Saved) empty() bool { return s.Content == nil && s.Previous == nil }

// Batch is what should be on disk from now on. Names and facts that it does not list stay as they
// are.
type Batch struct {
	Resources []Saved
	// Facts has values; "" means that the fact must be deleted.
	Facts map[state.Fact]string
	// Versions are former contents: all, or in what Take returns those that lasted.
	Versions []archive.SavedVersion
}

// Empty reports whether there is nothing to write.
func (b Batch) Empty() bool { return len(b.Resources)+len(b.Facts)+len(b.Versions) == 0 }

// Storer is a feature that stores something else of a name than its history.
type Storer interface {
	// Store returns what is stored of a name; stores is false if the feature has nothing to say. e is nil for a name without an entry.
	Store(t *state.Table, name string, e *contents.Entry) (saved history.Saved, stores bool)
	// Unlisted yields the names of a type without an entry, of which something may be stored.
	Unlisted(t *state.Table) iter.Seq[string]
}

// Facts is a feature with facts.
type Facts interface {
	// Facts yields the facts that may hold.
	Facts(yield func(state.Fact) bool)
	// Fact returns the value of a fact, "" if it does not hold; known is false if it is another feature's.
	Fact(state.Fact) (value string, known bool)
	// RestoreFact restores a fact, and reports whether it is the feature's.
	RestoreFact(f state.Fact, value string, now time.Time) (known bool)
}

// Contents are what of a cache is stored: what the features say, the first of which has precedence, and the histories.
type Contents struct {
	State   *state.State
	Archive *archive.Feature
	Builds  *builds.Builds
	Storers []Storer
	Facts   []Facts
}

// Journal returns what should be on disk. One goroutine at a time calls Take or
// All, writes what it returned, and calls Done. Make one with New.
type Journal struct {
	mu sync.Locker
	of Contents
	// changed gets a value whenever Take has something to return.
	changed chan<- struct{}

	// Under mu.
	names   map[xds.Key]struct{}         // names whose resource may differ from the disk
	dirty   map[state.Fact]struct{}      // facts that may differ from the disk
	facts   map[state.Fact]string        // the facts on disk
	removed map[xds.Key]*contents.OnDisk // what the disk has of names without an entry
	// byBuild has the names of which what a build accepted may differ from the disk, buildsOnDisk the builds and versions there.
	byBuild      map[xds.Key]struct{}
	buildsOnDisk map[xds.Key]ofBuild
	// versions has the names whose former contents may differ from the disk, and lasting those of which that is to be
	// changed with the next Take. unrecorded has those of versions of which a record is not on disk yet.
	versions, lasting, unrecorded map[xds.Key]struct{}
	// all is what All returned while it is being written; nil otherwise.
	all *rewriting
	// An upstream ACK waits here until the contents that clients ACKed are on disk: waiting has those
	// whose contents Take has not returned yet, writing the others.
	waiting, writing []func()
	busy             bool // what Take or All returned is being written
	broken           bool // the disk cannot be written, so no ACK waits for it
}

// rewriting is what the disk has when everything that All returned is written.
type rewriting struct {
	entries []rewritten
	removed map[xds.Key]*contents.OnDisk
	facts   map[state.Fact]string
	// These are those of the Journal when All was called.
	names, byBuild                map[xds.Key]struct{}
	buildsOnDisk                  map[xds.Key]ofBuild
	dirty                         map[state.Fact]struct{}
	versions, lasting, unrecorded map[xds.Key]struct{}
}

// ofBuild is a content that a build accepted.
type ofBuild struct{ build, version string }

type rewritten struct {
	entry *contents.Entry
	disk  *contents.OnDisk
}

// New returns a journal of a cache of which nothing is on disk. mu is the lock of the cache. changed, which
// holds one value, gets one when Take has something to return. durable says whether the disk can be
// written: while it cannot, no ACK waits for it.
func New(mu sync.Locker, of Contents, changed chan<- struct{}, durable bool) *Journal {
	return &Journal{
		mu: mu, of: of, changed: changed, broken: !durable,
		names: make(map[xds.Key]struct{}), dirty: make(map[state.Fact]struct{}),
		facts: make(map[state.Fact]string), removed: make(map[xds.Key]*contents.OnDisk),
		byBuild: make(map[xds.Key]struct{}), buildsOnDisk: make(map[xds.Key]ofBuild),
		versions: make(map[xds.Key]struct{}), lasting: make(map[xds.Key]struct{}), unrecorded: make(map[xds.Key]struct{}),
	}
}

// Resource records that the resource of a name, or its status, may differ from the disk.
func (j *Journal) Resource(k xds.Key) {
	j.names[k] = struct{}{}
	wake.Signal(j.changed)
}

// Fact records that a fact may differ from the disk.
func (j *Journal) Fact(f state.Fact) {
	j.dirty[f] = struct{}{}
	wake.Signal(j.changed)
}

// Build records that what a build accepted of a name may differ from the disk.
func (j *Journal) Build(k xds.Key) {
	j.byBuild[k] = struct{}{}
	wake.Signal(j.changed)
}

// RestoredBuild records what was on disk of a build. It is called with the lock held. The journal may be nil.
func (j *Journal) RestoredBuild(s Saved) {
	if j != nil && s.Content != nil {
		j.buildsOnDisk[xds.Key{Type: s.Type, Name: s.Name}] = ofBuild{s.Build, s.Content.Version}
	}
}

// After records what the disk has of a name that has no entry any more. It is called with the lock held.
func (j *Journal) After(x *state.Change) {
	if x.Kind != state.Put && x.Entry.OnDisk != nil {
		j.removed[x.Key()] = x.Entry.OnDisk
	}
}

// Restored records what was on disk of a name without an entry, and RestoredFact that of a fact. They are called with the lock held. The
// journal may be nil.
func (j *Journal) Restored(k xds.Key, disk *contents.OnDisk) {
	if j != nil {
		j.removed[k] = disk
	}
}
func (j *Journal) RestoredFact(f state.Fact, value string) {
	if j != nil {
		j.facts[f] = value
	}
}

// Archived is called, with the lock held, for each name whose records must be written or deleted; the journal may be nil. What lasted is written with the content
// that has replaced it. What was replaced soon may be written later, and until then the disk says that records are missing.
func (j *Journal) Archived(k xds.Key) {
	if j == nil {
		return
	}
	switch archived := j.of.Archive; {
	case !archive.IsStored(k.Type):
	case k.Name == "":
		j.Fact(state.Fact{Kind: state.HistoryFact, Type: k.Type})
	case archived.Lasting(k):
		j.lasting[k] = struct{}{}
		delete(j.versions, k)
		if _, ok := j.unrecorded[k]; ok {
			delete(j.unrecorded, k)
			j.Fact(state.Fact{Kind: state.UnrecordedFact, Type: k.Type, Name: k.Name})
		}
		wake.Signal(j.changed)
	default:
		if _, ok := j.lasting[k]; ok {
			return
		}
		j.versions[k] = struct{}{}
		if _, ok := j.unrecorded[k]; !ok && archived.Unwritten(k) { // not only to be deleted on disk
			j.unrecorded[k] = struct{}{}
			j.Fact(state.Fact{Kind: state.UnrecordedFact, Type: k.Type, Name: k.Name})
		}
		wake.Signal(j.changed)
	}
}

// maxWaiting bounds the ACKs that wait for the disk. If there are more, the upstream has sent the
// oldest after its timeout anyway.
const maxWaiting = 1 << 16

// AfterWrite returns the given upstream ACKs if they are due now. Otherwise they are called when
// the contents that clients ACKed are on disk, or cannot be written. It is called with the lock held. The journal may be nil: all are
// due then.
func (j *Journal) AfterWrite(acks []func()) []func() {
	if j == nil || len(acks) == 0 {
		return acks
	}
	unwritten := len(j.names)+len(j.dirty)+len(j.byBuild) > 0 // former contents need not be written before an ACK
	switch {
	case j.broken, !unwritten && !j.busy, len(j.waiting)+len(j.writing) > maxWaiting:
		return acks
	case unwritten:
		j.waiting = append(j.waiting, acks...)
	default:
		j.writing = append(j.writing, acks...)
	}
	return nil
}

// Take returns what changed since the last call, without former contents that did not last (TakeVersions). The caller must
// call Done when it is written, or cannot be.
func (j *Journal) Take() Batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.begin()
	b := Batch{Resources: make([]Saved, 0, len(j.names)), Facts: make(map[state.Fact]string, len(j.dirty))}
	for k := range j.names {
		if s, differs := j.resource(k); differs {
			b.Resources = append(b.Resources, s)
		}
	}
	xds.ResetNames(&j.names)
	for k := range j.byBuild {
		b.Resources = append(b.Resources, j.takeBuild(k)...)
	}
	xds.ResetNames(&j.byBuild)
	for f := range j.dirty {
		value := j.fact(f)
		if value == j.facts[f] {
			continue
		}
		b.Facts[f] = value
		if value == "" {
			delete(j.facts, f)
		} else {
			j.facts[f] = value
		}
	}
	xds.ResetNames(&j.dirty)
	b.Versions = j.takeVersions(&j.lasting)
	return b
}

// takeBuild returns what should be on disk of what a build accepted of a name, where that differs.
func (j *Journal) takeBuild(k xds.Key) (out []Saved) {
	was, is := j.buildsOnDisk[k], ofBuild{}
	build, accepted := j.of.Builds.Accepted(k)
	if accepted != nil {
		is = ofBuild{build, accepted.Version}
	}
	if is == was {
		return nil
	}
	if was.build != "" && was.build != is.build {
		out = append(out, Saved{Type: k.Type, Name: k.Name, Build: was.build})
		delete(j.buildsOnDisk, k)
	}
	if accepted != nil {
		out = append(out, Saved{Type: k.Type, Name: k.Name, Build: build, Content: accepted, Accepted: true})
		j.buildsOnDisk[k] = is
	}
	return out
}

func (j *Journal) begin() {
	j.busy = true
	j.writing = append(j.writing, j.waiting...)
	j.waiting = nil
}

// TakeVersions returns the former contents that changed since the last call, and that Take did not return. No ACK waits for
// them, so that they may be written later than what Take returns: a name that changes often leaves less to write then. When
// they are written, Take returns that none is missing any more.
func (j *Journal) TakeVersions() []archive.SavedVersion {
	j.mu.Lock()
	defer j.mu.Unlock()
	for k := range j.unrecorded {
		j.Fact(state.Fact{Kind: state.UnrecordedFact, Type: k.Type, Name: k.Name})
	}
	xds.ResetNames(&j.unrecorded)
	return j.takeVersions(&j.versions)
}

// takeVersions returns the former contents of names, and forgets the names.
func (j *Journal) takeVersions(of *map[xds.Key]struct{}) (out []archive.SavedVersion) {
	for k := range *of {
		records, deleted := j.of.Archive.Take(k)
		for _, until := range deleted {
			out = append(out, archive.SavedVersion{Type: k.Type, Name: k.Name, Record: archive.Record{Until: until}, Deleted: true})
		}
		for _, r := range records {
			out = append(out, archive.SavedVersion{Type: k.Type, Name: k.Name, Record: r})
		}
	}
	xds.ResetNames(of)
	return out
}

// takeAllVersions returns all former contents.
func (j *Journal) takeAllVersions() (out []archive.SavedVersion) {
	for k, records := range j.of.Archive.TakeAll(archive.IsStored) {
		for _, r := range records {
			out = append(out, archive.SavedVersion{Type: k.Type, Name: k.Name, Record: r})
		}
	}
	return out
}

// All returns everything that should be on disk, to replace what is there. The caller must call
// Done when it is written, or cannot be.
func (j *Journal) All() Batch {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.begin()
	size := 0
	for _, t := range j.of.State.Tables() {
		size += t.Len()
	}
	all := &rewriting{
		entries: make([]rewritten, 0, size), removed: make(map[xds.Key]*contents.OnDisk), facts: j.allFacts(),
		names: j.names, byBuild: j.byBuild, buildsOnDisk: make(map[xds.Key]ofBuild), dirty: j.dirty, versions: j.versions, lasting: j.lasting, unrecorded: j.unrecorded,
	}
	j.names, j.byBuild, j.dirty, j.all = make(map[xds.Key]struct{}), make(map[xds.Key]struct{}), make(map[state.Fact]struct{}), all
	j.versions, j.lasting, j.unrecorded = make(map[xds.Key]struct{}), make(map[xds.Key]struct{}), make(map[xds.Key]struct{})
	b := Batch{Resources: make([]Saved, 0, size), Facts: all.facts, Versions: j.takeAllVersions()}
	for t, name := range j.of.names {
		s, want := j.of.saved(t, name)
		if s.empty() {
			continue
		}
		b.Resources = append(b.Resources, s)
		if e := t.Entry(name); e != nil {
			all.entries = append(all.entries, rewritten{e, want})
		} else {
			all.removed[t.Key(name)] = want
		}
	}
	for _, s := range j.of.savedBuilds() {
		b.Resources = append(b.Resources, s)
		all.buildsOnDisk[xds.Key{Type: s.Type, Name: s.Name}] = ofBuild{s.Build, s.Content.Version}
	}
	return b
}

// Done records whether what Take or All returned is on disk, and calls the ACKs that wait for it.
// After an error everything must be written again, with All; until that has succeeded no ACK waits.
func (j *Journal) Done(err error) {
	j.mu.Lock()
	acks := j.writing
	j.writing, j.busy, j.broken = nil, false, err != nil
	if j.broken {
		acks = append(acks, j.waiting...)
		j.waiting = nil
	}
	if j.all != nil {
		j.finishRewrite(err == nil)
	}
	j.mu.Unlock()
	for _, ack := range acks {
		ack()
	}
}

// finishRewrite makes what All returned the state of the disk, if it was written.
func (j *Journal) finishRewrite(written bool) {
	all := j.all
	j.all = nil
	if !written {
		maps.Copy(j.names, all.names)
		maps.Copy(j.byBuild, all.byBuild)
		maps.Copy(j.dirty, all.dirty)
		maps.Copy(j.versions, all.versions)
		maps.Copy(j.lasting, all.lasting)
		maps.Copy(j.unrecorded, all.unrecorded)
		return
	}
	for _, pending := range []map[xds.Key]struct{}{all.versions, all.lasting} {
		for k := range pending {
			_, again := j.versions[k]
			if _, lasting := j.lasting[k]; !again && !lasting {
				j.of.Archive.Take(k) // it is written
			}
		}
	}
	j.facts, j.removed, j.buildsOnDisk = all.facts, all.removed, all.buildsOnDisk
	for _, t := range j.of.State.Tables() {
		for _, e := range t.All() {
			e.OnDisk = nil
		}
	}
	for _, r := range all.entries {
		res := r.entry.Current()
		if t := j.of.State.Existing(res.Type); t.Entry(res.Name) != r.entry {
			j.removed[xds.Key{Type: res.Type, Name: res.Name}] = r.disk // it was removed meanwhile
			continue
		}
		r.entry.OnDisk = r.disk
	}
}

// Saved returns what should be on disk.
func (j *Journal) Saved() (saved []Saved, facts map[state.Fact]string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.of.Saved(), j.allFacts()
}

// SavedVersions returns the former contents that should be on disk.
func (j *Journal) SavedVersions() []archive.SavedVersion {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.takeAllVersions()
}

// resource returns what should be on disk for one name, and whether that differs from what is
// there. It assumes that the caller writes it.
func (j *Journal) resource(k xds.Key) (s Saved, differs bool) {
	t := j.of.State.Table(k.Type)
	e := t.Entry(k.Name)
	disk := j.removed[k]
	delete(j.removed, k)
	if e != nil && e.OnDisk != nil {
		disk = e.OnDisk
	}
	s, want := j.of.saved(t, k.Name)
	if disk == nil {
		differs = !s.empty()
	} else {
		differs = differ(want, disk)
	}
	if !differs {
		want = disk
	}
	switch {
	case e != nil:
		e.OnDisk = want
	case want != nil && (want.Previous != nil || want.Content != nil):
		j.removed[k] = want
	}
	s.ContentKnown, s.PreviousKnown = wasReturned(disk, s.Content), wasReturned(disk, s.Previous)
	return s, differs
}

// wasReturned reports whether the journal has returned a content before; both may be nil.
func wasReturned(disk *contents.OnDisk, r *xds.Resource) bool {
	return r != nil && disk != nil && !disk.Restored && (state.SameVersion(disk.Content, r) || state.SameVersion(disk.Previous, r))
}

// differ reports whether the disk should have something else than it has.
func differ(want, there *contents.OnDisk) bool {
	if !state.SameVersion(want.Previous, there.Previous) || !state.SameVersion(want.Content, there.Content) {
		return true
	}
	return want.Content != nil && (want.Acked != there.Acked || want.Stable != there.Stable || want.Source != there.Source ||
		want.Content.UpstreamVersion != there.Content.UpstreamVersion || deadlineMoved(there.Content, want.Content))
}

// deadlineMoved reports whether a deadline moved by so much that it must be written: by a tenth of
// the TTL, by which the resource would expire early after a restart.
func deadlineMoved(there, now *xds.Resource) bool {
	switch {
	case there.TTL() != now.TTL() || there.Deadline().IsZero() != now.Deadline().IsZero():
		return true
	case now.Deadline().IsZero():
		return false
	}
	d := now.Deadline().Sub(there.Deadline())
	return d < 0 || d > now.TTL()/10
}

// fact returns the present value of a fact; "" if it does not hold.
func (j *Journal) fact(f state.Fact) string {
	if f.Kind == state.UnrecordedFact {
		_, holds := j.unrecorded[xds.Key{Type: f.Type, Name: f.Name}]
		return state.If(holds)
	}
	return j.of.fact(f)
}

// allFacts returns the facts that hold, with their values. None is unrecorded then, because all versions are written, too.
func (j *Journal) allFacts() map[state.Fact]string { return j.of.AllFacts() }
