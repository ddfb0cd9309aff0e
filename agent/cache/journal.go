package cache

import (
	"maps"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Saved is what should be, or was, on disk for one name; nothing if it has neither Content nor
// Previous.
type Saved struct {
	Type, Name string
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

// FactKind is the kind of a Fact.
type FactKind string

// The kinds of facts.
const (
	// SubscribedFact: a client subscribes to the name, or the name is leased.
	SubscribedFact FactKind = "wanted"
	// MaybeHeldFact: a client may hold the name although it has not ACKed it (protocol.md 3.6).
	MaybeHeldFact FactKind = "doubtful"
	// KnownFact: the wildcard of the type is not unknown, so that its resources may be served.
	KnownFact FactKind = "known"
	// SuspectFact: the version in the value, or the absence of the name, is held back after
	// crashes. FallbackFact: since when and until when there is a fallback.
	SuspectFact  FactKind = "suspect"
	FallbackFact FactKind = "fallback"
	// DeferredFact: the removal of the name is deferred by the guard. AccidentFact: since when
	// removals are held back.
	DeferredFact FactKind = "withheld"
	AccidentFact FactKind = "accident"
	// FreezeFact: what is frozen. PinnedFact: the content on disk of the name, or its absence, is served
	// instead of what the sources sent.
	FreezeFact FactKind = "freeze"
	PinnedFact FactKind = "pinned"
	// HistoryFact: since when the former contents of the type are kept. UnrecordedFact: former contents of the name may be
	// missing on disk.
	HistoryFact    FactKind = "history"
	UnrecordedFact FactKind = "unrecorded"
)

// yes is the value of a fact that has no other. suspectVersion precedes the version of a suspect,
// which is empty for an absence; suspectStable follows it if a stable content is served in its place.
const (
	yes            = "yes"
	suspectVersion = "version="
	suspectStable  = " stable"
)

// Fact is something to remember beside the resources. It has a value.
type Fact struct {
	Kind       FactKind
	Type, Name string
}

// Batch is what should be on disk from now on. Names and facts that it does not list stay as they
// are.
type Batch struct {
	Resources []Saved
	// Facts has values; "" means that the fact must be deleted.
	Facts map[Fact]string
	// Versions are former contents: all, or in what Take returns those that lasted.
	Versions []SavedVersion
}

// Empty reports whether there is nothing to write.
func (b Batch) Empty() bool { return len(b.Resources)+len(b.Facts)+len(b.Versions) == 0 }

// Journal returns what of the cache should be on disk, as changes since the last call. A slow disk
// costs a set of names: what changes twice is written once. One goroutine at a time calls Take or
// All, writes what it returned, and calls Done.
type Journal struct {
	c *Cache
	// changed gets a value whenever Take has something to return.
	changed chan<- struct{}

	// Under c.mu.
	names   map[xds.Key]struct{} // names whose resource may differ from the disk
	dirty   map[Fact]struct{}    // facts that may differ from the disk
	facts   map[Fact]string      // the facts on disk
	removed map[xds.Key]*onDisk  // what the disk has of names without an entry
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
	removed map[xds.Key]*onDisk
	facts   map[Fact]string
	// These are those of the Journal when All was called.
	names                         map[xds.Key]struct{}
	dirty                         map[Fact]struct{}
	versions, lasting, unrecorded map[xds.Key]struct{}
}

type rewritten struct {
	entry *entry
	disk  *onDisk
}

type onDisk = contents.OnDisk

// Journal opens the journal; it is called once at most, before the first update. changed, which
// holds one value, gets one when Take has something to return. durable says whether the disk can be
// written: while it cannot, no ACK waits for it.
func (c *Cache) Journal(changed chan<- struct{}, durable bool) *Journal {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.journal = &Journal{
		c: c, changed: changed, broken: !durable,
		names: make(map[xds.Key]struct{}), dirty: make(map[Fact]struct{}),
		facts: make(map[Fact]string), removed: make(map[xds.Key]*onDisk),
		versions: make(map[xds.Key]struct{}), lasting: make(map[xds.Key]struct{}), unrecorded: make(map[xds.Key]struct{}),
	}
	return c.journal
}

// persist records that the resource of a name, or its status, may differ from the disk.
func (c *Cache) persist(t *table, name string) {
	if c.journal != nil {
		c.journal.names[t.key(name)] = struct{}{}
		wake.Signal(c.journal.changed)
	}
}

// persistFact records that a fact may differ from the disk.
func (c *Cache) persistFact(kind FactKind, k xds.Key) {
	if c.journal != nil {
		c.journal.dirty[Fact{kind, k.Type, k.Name}] = struct{}{}
		wake.Signal(c.journal.changed)
	}
}

// persistFactOr records that a fact of a name may differ from the disk, or for the zero Key the
// fact whole.
func (c *Cache) persistFactOr(kind, whole FactKind, k xds.Key) {
	if k == (xds.Key{}) {
		kind = whole
	}
	c.persistFact(kind, k)
}

// maxWaiting bounds the ACKs that wait for the disk. If there are more, the upstream has sent the
// oldest after its timeout anyway.
const maxWaiting = 1 << 16

// afterWrite returns the given upstream ACKs if they are due now. Otherwise they are called when
// the contents that clients ACKed are on disk, or cannot be written.
func (c *Cache) afterWrite(acks []func()) []func() {
	j := c.journal
	if j == nil || len(acks) == 0 {
		return acks
	}
	unwritten := len(j.names)+len(j.dirty) > 0 // former contents need not be written before an ACK
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
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.begin()
	b := Batch{Resources: make([]Saved, 0, len(j.names)), Facts: make(map[Fact]string, len(j.dirty))}
	for k := range j.names {
		if s, differs := j.resource(k); differs {
			b.Resources = append(b.Resources, s)
		}
	}
	xds.ResetNames(&j.names)
	for f := range j.dirty {
		value := j.c.fact(f)
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

func (j *Journal) begin() {
	j.busy = true
	j.writing = append(j.writing, j.waiting...)
	j.waiting = nil
}

// All returns everything that should be on disk, to replace what is there. The caller must call
// Done when it is written, or cannot be.
func (j *Journal) All() Batch {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.begin()
	size := 0
	for _, t := range j.c.tables {
		size += t.Len()
	}
	all := &rewriting{
		entries: make([]rewritten, 0, size), removed: make(map[xds.Key]*onDisk), facts: j.c.allFacts(),
		names: j.names, dirty: j.dirty, versions: j.versions, lasting: j.lasting, unrecorded: j.unrecorded,
	}
	j.names, j.dirty, j.all = make(map[xds.Key]struct{}), make(map[Fact]struct{}), all
	j.versions, j.lasting, j.unrecorded = make(map[xds.Key]struct{}), make(map[xds.Key]struct{}), make(map[xds.Key]struct{})
	b := Batch{Resources: make([]Saved, 0, size), Facts: all.facts, Versions: j.c.takeAllVersions()}
	for t, name := range j.c.names {
		s, want := j.c.saved(t, name)
		if s.empty() {
			continue
		}
		b.Resources = append(b.Resources, s)
		if e := t.Entry(name); e != nil {
			all.entries = append(all.entries, rewritten{e, want})
		} else {
			all.removed[t.key(name)] = want
		}
	}
	return b
}

// Done records whether what Take or All returned is on disk, and calls the ACKs that wait for it.
// After an error everything must be written again, with All; until that has succeeded no ACK waits.
func (j *Journal) Done(err error) {
	j.c.mu.Lock()
	acks := j.writing
	j.writing, j.busy, j.broken = nil, false, err != nil
	if j.broken {
		acks = append(acks, j.waiting...)
		j.waiting = nil
	}
	if j.all != nil {
		j.finishRewrite(err == nil)
	}
	j.c.mu.Unlock()
	run(acks)
}

// finishRewrite makes what All returned the state of the disk, if it was written.
func (j *Journal) finishRewrite(written bool) {
	all := j.all
	j.all = nil
	if !written {
		maps.Copy(j.names, all.names)
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
				j.c.archive.Take(k) // it is written
			}
		}
	}
	j.facts, j.removed = all.facts, all.removed
	for _, t := range j.c.tables {
		for _, e := range t.All() {
			e.OnDisk = nil
		}
	}
	for _, r := range all.entries {
		res := r.entry.Current()
		if t := j.c.tables[res.Type]; t.Entry(res.Name) != r.entry {
			j.removed[t.key(res.Name)] = r.disk // it was removed meanwhile
			continue
		}
		r.entry.OnDisk = r.disk
	}
}

// Saved returns what should be on disk, in the form of Restore's arguments.
func (j *Journal) Saved() (saved []Saved, facts map[Fact]string) { return j.c.Saved() }

// SavedVersions returns the former contents that should be on disk, in the form of RestoreVersions'
// argument.
func (j *Journal) SavedVersions() []SavedVersion {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	return j.c.takeAllVersions()
}

// names yields the names that may have something to save.
func (c *Cache) names(yield func(t *table, name string) bool) {
	for _, t := range c.tables {
		for name := range t.All() {
			if !yield(t, name) {
				return
			}
		}
		for name := range t.removed {
			if t.Entry(name) == nil && c.pins.Of(t.key(name)) == nil && !yield(t, name) {
				return
			}
		}
	}
	for k := range c.pins.All() {
		if t := c.tables[k.Type]; t.Entry(k.Name) == nil && !yield(t, k.Name) {
			return
		}
	}
}

// saved returns what should be on disk for a name, in both forms.
func (c *Cache) saved(t *table, name string) (Saved, *onDisk) {
	want := &onDisk{}
	pin := c.pins.Of(t.key(name))
	switch e := t.Entry(name); {
	case pin != nil && pin.Absent():
	case pin != nil:
		want.Saved = pin.Save()
	case e == nil:
		want.Previous = t.removed.Stable(name)
	case !e.IsLocal(): // the maker of a local resource stores what it needs
		want.Saved = e.Save()
	}
	return Saved{
		Type: t.URL, Name: name, Content: want.Content, Source: c.sources.name(want.Source),
		Accepted: want.Acked, Stable: want.Stable, Previous: want.Previous,
	}, want
}

// resource returns what should be on disk for one name, and whether that differs from what is
// there. It assumes that the caller writes it.
func (j *Journal) resource(k xds.Key) (s Saved, differs bool) {
	t := j.c.table(k.Type)
	e := t.Entry(k.Name)
	disk := j.removed[k]
	delete(j.removed, k)
	if e != nil && e.OnDisk != nil {
		disk = e.OnDisk
	}
	s, want := j.c.saved(t, k.Name)
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
func wasReturned(disk *onDisk, r *xds.Resource) bool {
	return r != nil && disk != nil && !disk.Restored && (sameVersion(disk.Content, r) || sameVersion(disk.Previous, r))
}

// sameVersion reports whether two contents, which may be nil, are the same.
func sameVersion(a, b *xds.Resource) bool {
	return a == b || a != nil && b != nil && a.Version == b.Version
}

// differ reports whether the disk should have something else than it has.
func differ(want, there *onDisk) bool {
	if !sameVersion(want.Previous, there.Previous) || !sameVersion(want.Content, there.Content) {
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

// allFacts returns the facts that hold, with their values.
func (c *Cache) allFacts() map[Fact]string {
	facts := make(map[Fact]string)
	add := func(kind FactKind, typeURL, name string) {
		f := Fact{kind, typeURL, name}
		if value := c.fact(f); value != "" {
			facts[f] = value
		}
	}
	for t, name := range c.subscribed {
		add(SubscribedFact, t.URL, name)
	}
	for url := range c.tables {
		for _, name := range c.uncertain.Of(url) {
			add(MaybeHeldFact, url, name)
		}
		for name := range c.guard.Names(url) {
			add(DeferredFact, url, name)
		}
		add(KnownFact, url, "")
	}
	for url := range c.archive.Types() {
		add(HistoryFact, url, "")
	}
	for k := range c.pins.All() {
		add(PinnedFact, k.Type, k.Name)
	}
	add(FreezeFact, "", "")
	add(AccidentFact, "", "")
	add(FallbackFact, "", "")
	for k := range c.fallback.Suspects() {
		add(SuspectFact, k.Type, k.Name)
	}
	return facts
}

// fact returns the present value of a fact; "" if it does not hold.
func (c *Cache) fact(f Fact) string {
	t, k := c.existing(f.Type), xds.Key{Type: f.Type, Name: f.Name}
	holds := false
	switch f.Kind {
	case FallbackFact:
		return formatTimes(c.fallback.Times())
	case SuspectFact:
		if version, ok := c.fallback.Suspects()[k]; ok {
			if t.stable(k.Name) != nil {
				return suspectVersion + version + suspectStable
			}
			return suspectVersion + version
		}
	case AccidentFact:
		since, last := c.guard.Since()
		if last.Equal(since) {
			last = time.Time{}
		}
		return formatTimes(since, last)
	case FreezeFact:
		return c.frozen.Format()
	case PinnedFact:
		return c.pinValue(k)
	case HistoryFact:
		if at := c.archive.Began(f.Type); !at.IsZero() && storesHistory(f.Type) {
			return at.UTC().Format(time.RFC3339Nano)
		}
	case UnrecordedFact:
		if c.journal != nil {
			_, holds = c.journal.unrecorded[k]
		}
	case DeferredFact:
		holds, _ = c.guard.Deferred(k)
	case MaybeHeldFact:
		holds = c.uncertain.Has(k)
	case SubscribedFact:
		holds = t.names.SubscribedOrLeased(f.Name) && !c.local(k)
	case KnownFact:
		holds = t.KnownOrRestored()
	}
	if holds {
		return yes
	}
	return ""
}

// formatTimes returns one or two times as the value of a fact; "" if the first one is zero.
// parseTimes is its inverse.
func formatTimes(from, until time.Time) string {
	switch {
	case from.IsZero():
		return ""
	case until.IsZero():
		return from.UTC().Format(time.RFC3339)
	}
	return from.UTC().Format(time.RFC3339) + " " + until.UTC().Format(time.RFC3339)
}

func parseTimes(value string) (from, until time.Time) {
	first, second, _ := strings.Cut(value, " ")
	from, _ = time.Parse(time.RFC3339, first)
	until, _ = time.Parse(time.RFC3339, second)
	return from, until
}
