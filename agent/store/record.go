package store

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Key identifies a resource of a group of clients. Group is opaque; Type is a type URL.
type Key struct {
	Group, Type, Name string
}

type NoteKey struct {
	Group, Name string
}

// Record is the complete new content of one key: a Set or a Note.
type Record interface {
	// about returns the Key or NoteKey of the record.
	about() any
}

// Set sets the entry of a key. An Entry without Content and without Previous deletes it.
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
	// Content is served after a restart; nil for none. Source is the upstream that assigned its UpstreamVersion.
	Content *xds.Resource
	Source  string
	// Accepted reports that a client ACKed Content; Stable, that one has used it for the stable period, too.
	Accepted, Stable bool
	// Previous is the stable content before Content, or before the deletion; nil for none.
	Previous       *xds.Resource
	PreviousSource string
}

func (e *Entry) empty() bool { return e.Content == nil && e.Previous == nil }

// Loaded is the state that was on disk. It belongs to the caller.
type Loaded struct {
	Generation uint64
	Committed  time.Time
	Entries    map[Key]*Entry
	Notes      map[NoteKey]string
	Skipped    map[string]int
	// Damaged reports that records are missing, which may have replaced or deleted some of Entries.
	Damaged bool
	// Rewrite reports that Append fails until Rewrite was called: there is no state, or it is damaged, on a
	// read-only disk, of an older format, or not encrypted with the first key.
	Rewrite bool
}

func newLoaded(generation uint64, entries int) *Loaded {
	return &Loaded{
		Generation: generation,
		Entries:    make(map[Key]*Entry, entries),
		Notes:      make(map[NoteKey]string),
		Skipped:    make(map[string]int),
	}
}

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
