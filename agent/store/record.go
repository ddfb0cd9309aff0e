package store

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Key identifies a resource of a group of clients. Group is opaque; Type is a type URL.
type Key struct {
	Group, Type, Name string
}

// NoteKey identifies a note.
type NoteKey struct {
	Group, Name string
}

// Record is the complete new content of one key: a Set or a Note. A record does not depend on
// earlier records.
type Record interface {
	// about returns the Key or NoteKey of the record.
	about() any
}

// Set sets the entry of a key. An Entry without Content and without Previous is a tombstone: it
// deletes the entry.
type Set struct {
	Key   Key
	Entry Entry
}

// Note sets a small fact. The value "" deletes it.
type Note struct {
	Key   NoteKey
	Value string
}

func (s Set) about() any  { return s.Key }
func (n Note) about() any { return n.Key }

// Entry is the state of one key.
type Entry struct {
	// Content is the resource that is served after a restart; nil for none. Source is the
	// upstream that assigned its UpstreamVersion.
	Content *xds.Resource
	Source  string
	// Accepted reports that a client ACKed Content; Stable, which implies Accepted, that a
	// client has used it for the stable period.
	Accepted, Stable bool
	// Previous is the stable content before Content, or before the deletion; nil for none.
	Previous       *xds.Resource
	PreviousSource string
}

// empty reports whether the entry has no content.
func (e *Entry) empty() bool { return e.Content == nil && e.Previous == nil }

// Loaded is the state that was on disk. It belongs to the caller.
type Loaded struct {
	// Generation is the generation that was read, 0 for none.
	Generation uint64
	// Committed is when the newest batch was written; the zero time if unknown.
	Committed time.Time
	Entries   map[Key]*Entry
	Notes     map[NoteKey]string
	// Skipped counts the records that could not be used, by reason.
	Skipped map[string]int
	// Damaged reports that records in the middle of the file are missing: one of them may have
	// replaced or deleted an entry that is still in Entries.
	Damaged bool
	// Rewrite reports that Append fails until Rewrite was called. There is no state, or it is
	// damaged, on a read-only disk, of an older format, in plain text although there is a key,
	// or encrypted with a key that is not the first.
	Rewrite bool
}

// newLoaded returns an empty state with capacity for a number of entries.
func newLoaded(generation uint64, entries int) *Loaded {
	return &Loaded{
		Generation: generation,
		Entries:    make(map[Key]*Entry, entries),
		Notes:      make(map[NoteKey]string),
		Skipped:    make(map[string]int),
	}
}

// apply replays one record.
func (l *Loaded) apply(rec Record) {
	switch rec := rec.(type) {
	case Set:
		if rec.Entry.empty() {
			delete(l.Entries, rec.Key)
		} else {
			l.Entries[rec.Key] = &rec.Entry
		}
	case Note:
		if rec.Value == "" {
			delete(l.Notes, rec.Key)
		} else {
			l.Notes[rec.Key] = rec.Value
		}
	}
}
