package state

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Event is one thing that happens to a cache: an answer of a source or of a client, an operator's word, or a time. What it changes of
// what is served is told to the clients when it is over. The zero value is an event without a time.
type Event struct {
	Now time.Time
	// Withheld says that a change of the event is not served, because something is frozen.
	Withheld bool
	// first are the changes of the first type, which is mostly the only one; more has those of the others, by type URL.
	first Changes
	more  map[string]*Changes
	// change is the present one.
	change Change
}

// NewEvent returns an event of now.
func NewEvent() *Event { return &Event{Now: time.Now()} }

// maxKept is the number of names for which an event that is used again keeps room.
const maxKept = 1024

// Begin makes an event that is over another one, of now.
func (e *Event) Begin() {
	names := e.first.names[:0]
	if cap(names) > maxKept {
		names = nil
	}
	*e = Event{Now: time.Now(), first: Changes{names: names}}
}

// Changes returns what the event changes of a type.
func (e *Event) Changes(t *Table) *Changes {
	if e.first.Table == nil {
		e.first.Table = t
	}
	if e.first.Table == t {
		return &e.first
	}
	ch := e.more[t.URL]
	if ch == nil {
		if e.more == nil {
			e.more = make(map[string]*Changes)
		}
		ch = &Changes{Table: t}
		e.more[t.URL] = ch
	}
	return ch
}

// All yields the changes of all types, that of the first first.
func (e *Event) All(yield func(*Changes) bool) {
	if e.first.Table == nil || !yield(&e.first) {
		return
	}
	for _, ch := range e.more {
		if !yield(ch) {
			return
		}
	}
}

// Any reports whether the event changes something.
func (e *Event) Any() bool { return e.first.Table != nil }

// Change returns the description of a change, which is valid until that of the next one.
func (e *Event) Change(t *Table, name string, kind Kind, entry *contents.Entry) *Change {
	e.change = Change{Event: e, Table: t, Name: name, Kind: kind, Entry: entry}
	return &e.change
}

// Kind is what a Change is.
type Kind uint8

const (
	// Put: a source, or the agent itself, sent the resource.
	Put Kind = iota
	// Removed: a source said that the resource does not exist, or its TTL has ended.
	Removed
	// Dropped: the resource is not known from now on. No client is told.
	Dropped
	// Acked: a client ACKed a content. Features hear of it otherwise.
	Acked
)

// Change is what an event does to one name. Features hear of it before and after: Before, the contents are what they were.
type Change struct {
	Event *Event
	Table *Table
	Name  string
	Kind  Kind
	// Expired says that the TTL has ended.
	Expired bool
	// Resource is what is put.
	Resource *xds.Resource
	// Entry is the entry: before the change, nil for none, what it was; after it, what it is or was.
	Entry *contents.Entry
	// Stable is the stable content that a name had before it was removed; a feature sets it before the name is put.
	Stable *xds.Resource
	// Done is what putting has changed, after the change.
	Done contents.PutResult
	// Withheld says that a feature, which sets it before, serves what there was in the place of the change.
	Withheld bool
}

// Key returns the key of the name.
func (x *Change) Key() xds.Key { return x.Table.Key(x.Name) }

// Changes has the names of one type that an event changed.
type Changes struct {
	Table *Table
	// All: the knowledge of the wildcard changed.
	All bool
	// names has the names of the changed resources, possibly several times; aliases has their
	// aliases, with the resource's name, nil for none.
	names   []string
	aliases map[string]string
	// index is made by the first lookup.
	index map[string]string
}

// Grow makes room for n names.
func (ch *Changes) Grow(n int) { ch.names = slices.Grow(ch.names, n) }

// Len is the number of names, of which some may be the same.
func (ch *Changes) Len() int { return len(ch.names) }

// Add adds a name, and the aliases of the resource in the given versions, which may be nil.
func (ch *Changes) Add(name string, versions ...*xds.Resource) {
	ch.names = append(ch.names, name)
	for _, r := range versions {
		if r == nil {
			continue
		}
		for _, a := range r.Aliases() {
			if ch.aliases == nil {
				ch.aliases = make(map[string]string)
			}
			ch.aliases[a] = name
		}
	}
}

// Each yields the changed names and aliases, with the resource's name.
func (ch *Changes) Each(yield func(name, resource string) bool) {
	for _, name := range ch.names {
		if !yield(name, name) {
			return
		}
	}
	for alias, name := range ch.aliases {
		if !yield(alias, name) {
			return
		}
	}
}

// Lookup returns the resource's name of a changed name or alias. Nothing may be added afterwards.
func (ch *Changes) Lookup(name string) (resource string, ok bool) {
	if ch.index == nil {
		ch.index = make(map[string]string, len(ch.names)+len(ch.aliases))
		for name, resource := range ch.Each {
			ch.index[name] = resource
		}
	}
	resource, ok = ch.index[name]
	return resource, ok
}
