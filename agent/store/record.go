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

// Record says what is to be under one key from now on, whatever was there before.
// It is a Set or a Note. A record needs no other record to be understood.
type Record interface {
	// about returns what the record is about: a Key or a NoteKey.
	about() any
}

// Set says what is to be under a key. An Entry without Content and without
// Previous is a tombstone: nothing is to be there.
type Set struct {
	Key   Key
	Entry Entry
}

// Note is a small fact. The value "" deletes it.
type Note struct {
	Key   NoteKey
	Value string
}

func (s Set) about() any  { return s.Key }
func (n Note) about() any { return n.Key }

// Entry is the state of one key.
type Entry struct {
	// Content is what a restart serves; nil for nothing. Source is the upstream that
	// its UpstreamVersion belongs to.
	Content *xds.Resource
	Source  string
	// Accepted says that a client ACKed Content; Stable, which implies Accepted, that
	// one has lived with it for long enough.
	Accepted, Stable bool
	// Previous is the content that was stable before Content, or before the key was
	// deleted; nil for none.
	Previous       *xds.Resource
	PreviousSource string
}

// empty reports whether the entry holds nothing.
func (e *Entry) empty() bool { return e.Content == nil && e.Previous == nil }

// Loaded is the state that was on disk. It belongs to the caller.
type Loaded struct {
	// Generation is the one that was read, 0 for none.
	Generation uint64
	// Committed is when the newest batch that was read was written; the zero time
	// if that is not known.
	Committed time.Time
	Entries   map[Key]*Entry
	Notes     map[NoteKey]string
	// Skipped counts the records that could not be used, by the reason.
	Skipped map[string]int
	// Damaged says that records are missing in the middle: what was read may have been
	// replaced or deleted by one of them.
	Damaged bool
	// Rewrite says that nothing can be appended to what is there: there is nothing, or
	// it is damaged, on a disk that takes no writes, of an older format, in plain text
	// although there is a key, or encrypted with a key that is not the first. Append
	// fails until Rewrite was called.
	Rewrite bool
}

// newLoaded returns an empty state with room for so many entries.
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
