package store

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Key names what a record is about. Group is opaque: the kind of client. Type is
// a type URL.
type Key struct {
	Group, Type, Name string
}

// NoteKey names a note.
type NoteKey struct {
	Group, Name string
}

// Record is one change of the state: a Put, Accept, Prove, Delete, Touch or Note.
type Record interface {
	record()
}

// Put makes a content the kept one of its type and name. The one that was kept
// before becomes the previous one if it was proven; otherwise it is dropped, and
// an earlier previous one stays.
type Put struct {
	Group    string
	Resource *xds.Resource
	// Source is the upstream that Resource.UpstreamVersion belongs to.
	Source   string
	Accepted bool
}

// Accept says that a client accepted the kept content.
type Accept struct{ Key Key }

// Prove says that the kept content is accepted and proved itself: the previous
// one is dropped. Where nothing is kept, the deletion proved itself.
type Prove struct{ Key Key }

// Delete drops the kept content; if it was proven, it becomes the previous one.
type Delete struct{ Key Key }

// Touch says that the kept content was confirmed by Source, or its TTL
// refreshed. What it gives replaces what was known of the four.
type Touch struct {
	Key             Key
	Source          string
	UpstreamVersion string
	TTL             time.Duration
	Deadline        time.Time
}

// Note is a small fact. The newest value wins, "" deletes it.
type Note struct {
	Key   NoteKey
	Value string
}

func (Put) record()    {}
func (Accept) record() {}
func (Prove) record()  {}
func (Delete) record() {}
func (Touch) record()  {}
func (Note) record()   {}

// Entry is the state of one key. Kept or Previous is nil where there is none,
// never both.
type Entry struct {
	Kept   *xds.Resource
	Source string
	// Proven implies Accepted; both are of Kept.
	Accepted, Proven bool
	// Previous is what was last proven before Kept, or before Kept was deleted.
	Previous       *xds.Resource
	PreviousSource string
}

// Records returns the records that make the entry out of nothing, for Rewrite.
func (e *Entry) Records(key Key) []Record {
	var out []Record
	if e.Previous != nil {
		out = append(out, Put{Group: key.Group, Resource: e.Previous, Source: e.PreviousSource, Accepted: true}, Prove{key})
		if e.Kept == nil {
			return append(out, Delete{key})
		}
	}
	if e.Kept != nil {
		out = append(out, Put{Group: key.Group, Resource: e.Kept, Source: e.Source, Accepted: e.Accepted})
		// To prove the newest content would drop the previous one: an entry has
		// not both.
		if e.Proven {
			out = append(out, Prove{key})
		}
	}
	return out
}

// Loaded is the state that was on disk. It belongs to the caller.
type Loaded struct {
	// Generation is the one that was read, 0 for none.
	Generation uint64
	// Committed is when the newest batch that was read was written; the zero time
	// if none was.
	Committed time.Time
	Entries   map[Key]*Entry
	Notes     map[NoteKey]string
	// Skipped counts the records that could not be used, by the reason.
	Skipped map[string]int
	// Rewrite says that nothing can be appended to what is there: it is nothing,
	// damaged, on a disk that takes no writes, or in plain text although there is
	// a key. Append fails until Rewrite was called.
	Rewrite bool
}

// newLoaded returns the state that is nothing, with room for so many entries.
func newLoaded(generation uint64, entries int) *Loaded {
	return &Loaded{
		Generation: generation,
		Entries:    make(map[Key]*Entry, entries),
		Notes:      make(map[NoteKey]string),
		Skipped:    make(map[string]int),
	}
}

// apply replays one record. A change of what is not there changes nothing.
func (l *Loaded) apply(rec Record) {
	switch rec := rec.(type) {
	case Put:
		key := Key{rec.Group, rec.Resource.Type, rec.Resource.Name}
		e := l.Entries[key]
		if e == nil {
			e = &Entry{}
			l.Entries[key] = e
		}
		e.retire()
		e.Kept, e.Source, e.Accepted = rec.Resource, rec.Source, rec.Accepted
	case Accept:
		if e := l.Entries[rec.Key]; e != nil && e.Kept != nil {
			e.Accepted = true
		}
	case Prove:
		if e := l.Entries[rec.Key]; e != nil {
			e.Previous, e.PreviousSource = nil, ""
			e.Accepted, e.Proven = e.Kept != nil, e.Kept != nil
			l.settle(rec.Key, e)
		}
	case Delete:
		if e := l.Entries[rec.Key]; e != nil {
			e.retire()
			l.settle(rec.Key, e)
		}
	case Touch:
		if e := l.Entries[rec.Key]; e != nil && e.Kept != nil {
			e.Source = rec.Source
			e.Kept = e.Kept.WithLifetime(rec.TTL, rec.Deadline)
			e.Kept.UpstreamVersion = rec.UpstreamVersion
		}
	case Note:
		if rec.Value == "" {
			delete(l.Notes, rec.Key)
		} else {
			l.Notes[rec.Key] = rec.Value
		}
	}
}

// retire takes away what is kept; proven, it becomes the previous content.
func (e *Entry) retire() {
	if e.Proven {
		e.Previous, e.PreviousSource = e.Kept, e.Source
	}
	e.Kept, e.Source, e.Accepted, e.Proven = nil, "", false, false
}

// settle forgets an entry that holds nothing.
func (l *Loaded) settle(key Key, e *Entry) {
	if e.Kept == nil && e.Previous == nil {
		delete(l.Entries, key)
	}
}
