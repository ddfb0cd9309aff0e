package cache

import (
	"iter"
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Op is what a Record does with what is on disk under a name.
type Op uint8

// The operations of Record. They read as agent/store defines them.
const (
	// Put makes Resource what is kept; what was kept before stays beside it if it
	// had proved itself.
	Put Op = iota
	// Accept says that a client accepted what is kept.
	Accept
	// Prove says that what is kept proved itself, and so did the absence of what is
	// not: nothing older is needed.
	Prove
	// Delete drops what is kept; if it had proved itself, it stays as what was.
	Delete
	// Touch updates source, version and lifetime of what is kept.
	Touch
	// Note keeps Fact, or forgets it.
	Note
)

// Record is one change of what should be on disk.
type Record struct {
	Op Op
	// Accepted is that of Put, Is that of Note.
	Accepted, Is bool
	Type, Name   string
	// Resource and Source are those of Put and Touch.
	Resource *xds.Resource
	Source   string
	// Fact is that of Note.
	Fact Fact
}

// FactKind is what a Fact says.
type FactKind string

// The kinds of facts.
const (
	// Wanted: a client subscribes to the name, or did until lately.
	Wanted FactKind = "wanted"
	// Doubtful: a client may hold the name without telling (protocol.md 3.6).
	Doubtful FactKind = "doubtful"
	// Known: something was said of everything of the type, so that what is held of
	// it may be served.
	Known FactKind = "known"
)

// Fact is a small thing to remember beside the resources.
type Fact struct {
	Kind       FactKind
	Type, Name string
}

// Journal says what of the cache should be on disk, as changes since it was last
// asked. A slow disk costs a set of names: what changes twice is told once.
type Journal struct {
	c *Cache
	// changed gets a value whenever Take has something new to say, full when it is
	// more than fullBytes.
	changed, full chan<- struct{}

	// Under c.mu.
	names   map[key]struct{}
	pending int64
	facts   map[Fact]struct{}
	told    map[Fact]struct{} // what is on disk
	gone    map[key]*keeping  // what is on disk of names without an entry
}

// fullBytes is how much may change before it should be written at once.
const fullBytes = 256 << 10

// keeping is what is on disk under one name. There are as many as resources, so that its
// size counts: 32 bytes.
type keeping struct {
	kept             *xds.Resource // nil for none
	previous         string        // version of what proved itself before; "" for none
	source           sourceID
	accepted, proven bool
}

// Journal opens the journal, before anything is applied. There is one at most.
// changed and full, which hold one value each, get one when Take has something to
// say, and when it has much.
func (c *Cache) Journal(changed, full chan<- struct{}) *Journal {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.journal = &Journal{
		c: c, changed: changed, full: full,
		names: make(map[key]struct{}), facts: make(map[Fact]struct{}),
		told: make(map[Fact]struct{}), gone: make(map[key]*keeping),
	}
	return c.journal
}

// log notes that what is held under a name, or its standing, changed.
func (c *Cache) log(t *table, name string) {
	j := c.journal
	if j == nil {
		return
	}
	j.names[key{t.url, name}] = struct{}{}
	signal(j.changed)
	if e := t.entries[name]; e != nil {
		j.pending += size(e.res)
	}
	if j.pending > fullBytes {
		signal(j.full)
	}
}

// logFact notes that a fact may have changed.
func (c *Cache) logFact(kind FactKind, typeURL, name string) {
	if c.journal != nil {
		c.journal.facts[Fact{kind, typeURL, name}] = struct{}{}
		signal(c.journal.changed)
	}
}

// signal puts a value into a channel that holds one; nil for nobody.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Take returns what changed since the last call. The records are to be written
// together and in this order.
func (j *Journal) Take() []Record {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	out := make([]Record, 0, len(j.names)+len(j.facts)) // one for most
	for k := range j.names {
		out = j.resource(k, out)
	}
	xds.ResetNames(&j.names)
	j.pending = 0
	for f := range j.facts {
		_, was := j.told[f]
		if is := j.c.holdsFact(f); is != was {
			out = append(out, Record{Op: Note, Fact: f, Is: is})
			if is {
				j.told[f] = struct{}{}
			} else {
				delete(j.told, f)
			}
		}
	}
	xds.ResetNames(&j.facts)
	return out
}

// All returns everything that should be on disk, for a disk on which there is
// nothing, and counts it as told. What changes while it is written is for Take.
func (j *Journal) All() []Record {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	j.pending = 0
	xds.ResetNames(&j.names)
	xds.ResetNames(&j.facts)
	clear(j.told)
	clear(j.gone)
	size := 0
	for _, t := range j.c.tables {
		size += len(t.entries)
	}
	out := make([]Record, 0, size)
	for _, t := range j.c.tables {
		for name, e := range t.entries {
			e.told = nil
			out = j.resource(key{t.url, name}, out)
		}
		for name := range t.former {
			if t.entries[name] == nil {
				out = j.resource(key{t.url, name}, out)
			}
		}
		for f := range j.c.facts(t) {
			out = append(out, Record{Op: Note, Fact: f, Is: true})
			j.told[f] = struct{}{}
		}
	}
	return out
}

// Saved returns what should be on disk, as Restore takes it.
func (j *Journal) Saved() (saved []Saved, facts []Fact) {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	add := func(t *table, name string) {
		want, previous := t.keep(name)
		if want.kept == nil && previous == nil {
			return
		}
		saved = append(saved, Saved{
			Type: t.url, Name: name, Kept: want.kept, Source: j.c.sources.name(want.source),
			Accepted: want.accepted, Proven: want.proven, Previous: previous,
		})
	}
	for _, t := range j.c.tables {
		for name := range t.entries {
			add(t, name)
		}
		for name := range t.former {
			if t.entries[name] == nil {
				add(t, name)
			}
		}
		facts = slices.AppendSeq(facts, j.c.facts(t))
	}
	return saved, facts
}

// resource appends what brings the disk up to date under one name.
func (j *Journal) resource(k key, out []Record) []Record {
	t := j.c.table(k.typeURL)
	e := t.entries[k.name]
	told := j.gone[k]
	if e != nil && e.told != nil {
		told = e.told
	}
	if told == nil {
		told = &keeping{}
	}
	want, previous := t.keep(k.name)
	p := &plan{key: k, sources: &j.c.sources, told: told, out: out}
	p.bring(want, previous)
	delete(j.gone, k)
	switch {
	case e != nil:
		e.told = told
	case told.kept != nil || told.previous != "":
		j.gone[k] = told
	}
	return p.out
}

// keep returns what of a name should be on disk: what was accepted last, else what
// no client has judged yet, and what proved itself if that is something else. What
// was rejected is never kept (design.md I7).
func (t *table) keep(name string) (want keeping, previous *xds.Resource) {
	e := t.entries[name]
	switch {
	case e == nil:
		return keeping{}, t.former[name].res
	case e.local():
		return keeping{}, nil // what it is made of is kept by whoever made it
	}
	want.source = e.source
	switch {
	case e.good != nil:
		want.kept, want.accepted = e.good, true
		if e.good != e.res {
			want.source = e.goodSource
		}
	case e.standing != xds.Rejected:
		want.kept = e.res
	}
	if e.proven != nil && want.kept != nil && e.proven.Version == want.kept.Version {
		want.proven = true
		return want, nil
	}
	return want, e.proven
}

// plan brings what is on disk under one name to what should be.
type plan struct {
	key     key
	sources *sources
	told    *keeping
	out     []Record
}

func (p *plan) add(op Op) {
	p.out = append(p.out, Record{Op: op, Type: p.key.typeURL, Name: p.key.name})
}

func (p *plan) put(r *xds.Resource, source sourceID, accepted bool) {
	p.out = append(p.out, Record{Op: Put, Type: p.key.typeURL, Name: p.key.name, Resource: r, Source: p.sources.name(source), Accepted: accepted})
	p.retire()
	p.told.kept, p.told.source, p.told.accepted = r, source, accepted
}

// retire is what the log makes of what was kept when something takes its place.
func (p *plan) retire() {
	if p.told.proven {
		p.told.previous = p.told.kept.Version
	}
	p.told.kept, p.told.accepted, p.told.proven = nil, false, false
}

func (p *plan) drop() {
	p.add(Delete)
	p.retire()
}

func (p *plan) prove() {
	p.add(Prove)
	p.told.previous = ""
	p.told.proven = p.told.kept != nil
	p.told.accepted = p.told.proven
}

// bring appends what makes the disk hold what is wanted: in few words where the log's
// own rules lead there, else from nothing.
func (p *plan) bring(want keeping, previous *xds.Resource) {
	if previous != nil {
		want.previous = previous.Version
	}
	begun, before := len(p.out), *p.told
	p.amend(want, previous)
	if p.told.previous == want.previous && p.told.proven == want.proven {
		return
	}
	p.out, *p.told = p.out[:begun], before
	if p.told.kept != nil {
		p.drop()
	}
	p.prove()
	p.amend(want, previous)
}

func (p *plan) amend(want keeping, previous *xds.Resource) {
	told := p.told
	if previous != nil && told.previous != previous.Version && !(told.proven && told.kept.Version == previous.Version) {
		p.put(previous, want.source, true)
		p.prove()
	}
	switch {
	case want.kept == nil:
		if told.kept != nil {
			p.drop()
		}
		if previous == nil && told.previous != "" {
			p.prove()
		}
		return
	case told.kept == nil || told.kept.Version != want.kept.Version || told.accepted && !want.accepted:
		p.put(want.kept, want.source, want.accepted)
	case want.accepted && !told.accepted:
		p.add(Accept)
		told.accepted = true
	}
	if want.proven && !told.proven {
		p.prove()
	}
	if told.source != want.source || told.kept.UpstreamVersion != want.kept.UpstreamVersion || moved(told.kept, want.kept) {
		p.out = append(p.out, Record{Op: Touch, Type: p.key.typeURL, Name: p.key.name, Resource: want.kept, Source: p.sources.name(want.source)})
		told.kept, told.source = want.kept, want.source
	}
}

// moved reports whether a deadline moved by so much that it is worth writing: a
// tenth of the TTL, by which a resource then expires early after a restart.
func moved(told, now *xds.Resource) bool {
	switch {
	case told.TTL() != now.TTL() || told.Deadline().IsZero() != now.Deadline().IsZero():
		return true
	case now.Deadline().IsZero():
		return false
	}
	d := now.Deadline().Sub(told.Deadline())
	return d < 0 || d > now.TTL()/10
}

// facts yields what holds of a type beside its resources.
func (c *Cache) facts(t *table) iter.Seq[Fact] {
	return func(yield func(Fact) bool) {
		for name := range t.refs {
			if !c.local(t.url, name) && !yield(Fact{Wanted, t.url, name}) {
				return
			}
		}
		for k := range c.leases {
			if k.typeURL == t.url && t.refs[k.name] == 0 && !c.local(t.url, k.name) && !yield(Fact{Wanted, t.url, k.name}) {
				return
			}
		}
		for name := range t.doubtful {
			if !yield(Fact{Doubtful, t.url, name}) {
				return
			}
		}
		if c.holdsFact(Fact{Known, t.url, ""}) {
			yield(Fact{Known, t.url, ""})
		}
	}
}

// holdsFact tells whether a fact is one now.
func (c *Cache) holdsFact(f Fact) bool {
	t := c.table(f.Type)
	switch f.Kind {
	case Wanted:
		_, leased := c.leases[key{f.Type, f.Name}]
		return (leased || t.refs[f.Name] > 0) && !c.local(f.Type, f.Name)
	case Doubtful:
		_, ok := t.doubtful[f.Name]
		return ok
	default:
		return t.knowledge != xds.Unknown || t.restoredKnown
	}
}
