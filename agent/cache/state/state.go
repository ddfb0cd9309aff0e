// Package state is what the features of a cache share: the contents and the subscriptions of each type, the names of the sources, and
// the events of which the features hear.
//
// A feature (guard, freeze, fallback, ...) is one object in a package of its own. It reads the State, hears what happens to each name
// before and after it does, and says what is served, stored and due. It never calls a watch or the journal: what it wants to be
// written it names to the State. Nothing in the package has a lock; the cache serializes all calls.
package state

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// State is the contents and the subscriptions of all types. Make one with New.
type State struct {
	Contents contents.Contents
	Union    *subscriptions.Union
	Sources  *Sources
	// Wake makes the cache look at what is due again: an earlier time may have been added.
	Wake func()

	local  func(typeURL, name string) bool // nil for none
	disk   Disk                            // nil for none
	tables map[string]*Table
}

// Disk hears of what may differ from what is on disk.
type Disk interface {
	// Resource: the stored content of a name, or its status.
	Resource(xds.Key)
	// Fact: the value of a fact.
	Fact(Fact)
	// Build: what a build of the clients' program accepted of a name.
	Build(xds.Key)
}

// Table has everything of one type that features share.
type Table struct {
	*contents.Type
	Names *subscriptions.Names // the names that are subscribed to
	// HadWildcard: a client of the group once subscribed to the wildcard.
	HadWildcard bool
	// Updated is when a source last answered; the zero time for never.
	Updated time.Time
	// Errors are the last errors of the sources, by name.
	Errors Errors
}

// None stands for the table of a type that was never subscribed to or updated. Nothing writes to it.
var None = &Table{Type: &contents.Type{}, Names: &subscriptions.Names{}}

// New returns an empty State. local, which may be nil, reports whether the agent itself makes a resource.
func New(union *subscriptions.Union, local func(typeURL, name string) bool, wake func()) *State {
	return &State{Union: union, Sources: newSources(), Wake: wake, local: local, tables: make(map[string]*Table)}
}

// SetDisk sets who hears of what is to be written.
func (s *State) SetDisk(d Disk) { s.disk = d }

// Persist records that the stored content of a name, or its status, may differ from the disk.
func (s *State) Persist(k xds.Key) {
	if s.disk != nil {
		s.disk.Resource(k)
	}
}

// PersistFact records that a fact may differ from the disk.
func (s *State) PersistFact(kind FactKind, k xds.Key) {
	if s.disk != nil {
		s.disk.Fact(Fact{kind, k.Type, k.Name})
	}
}

// PersistBuild records that what a build of the clients' program accepted of a name may differ from the disk.
func (s *State) PersistBuild(k xds.Key) {
	if s.disk != nil {
		s.disk.Build(k)
	}
}

// IsLocal reports whether the agent itself makes a resource. No source is asked for such a resource
// or can change it. It is not written to disk, and it is always served: it is never hidden, held
// back or replaced by an earlier content.
func (s *State) IsLocal(k xds.Key) bool { return s.local != nil && s.local(k.Type, k.Name) }

// Table returns the table of a type, and makes it if there is none.
func (s *State) Table(typeURL string) *Table {
	t := s.tables[typeURL]
	if t == nil {
		t = &Table{Type: s.Contents.Type(typeURL), Names: s.Union.Of(typeURL)}
		s.tables[typeURL] = t
	}
	return t
}

// Existing returns the table of a type to read from. Unlike Table, it makes none.
func (s *State) Existing(typeURL string) *Table {
	if t := s.tables[typeURL]; t != nil {
		return t
	}
	return None
}

// Tables are the tables of the types that were ever subscribed to or updated, by type URL. The caller must not change the map.
func (s *State) Tables() map[string]*Table { return s.tables }

// Types are the types of Tables in push order.
func (s *State) Types() []string { return slices.SortedFunc(maps.Keys(s.tables), xds.CompareTypes) }

// Forget forgets the table of a type, unless something of it is subscribed to, and reports whether it did.
func (s *State) Forget(typeURL string) bool {
	if !s.Union.Forget(typeURL) {
		return false
	}
	delete(s.tables, typeURL)
	return true
}

// Subscribed yields the names that clients subscribe to and those that are leased.
func (s *State) Subscribed(yield func(t *Table, name string) bool) {
	for _, t := range s.tables {
		for _, names := range []iter.Seq[string]{t.Names.Clients(), t.Names.Leases()} {
			for name := range names {
				if !yield(t, name) {
					return
				}
			}
		}
	}
}

// Key returns the key of a name of the type.
func (t *Table) Key(name string) xds.Key { return xds.Key{Type: t.URL, Name: name} }

// IsMissing reports whether nothing is known of a name that a source is asked for.
func (s *State) IsMissing(t *Table, name string) bool {
	switch {
	case s.IsLocal(t.Key(name)):
		return false
	case name == xds.Wildcard:
		return !t.KnownOrRestored()
	}
	return !t.IsKnown(name)
}

// IsUsed reports whether a client subscribes to a resource, or there is no client. r is the resource; nil for none.
func (s *State) IsUsed(t *Table, name string, r *xds.Resource) bool {
	used := t.Names.InUse
	if !s.Union.AnyOpen() || used(xds.Wildcard) || used(name) {
		return true
	}
	glob := xds.CollectionOf(name)
	return glob != "" && used(glob) || r != nil && slices.ContainsFunc(r.Aliases(), used)
}

// Concerns reports whether an error about a name concerns a client: the resource is cached, a
// client subscribes to it, or there is no client.
func (s *State) Concerns(t *Table, name string) bool {
	return !s.Union.AnyOpen() || name == "" || t.Entry(name) != nil || t.Names.InUse(name) || t.Names.InUse(xds.Wildcard)
}

// IsReferenced reports whether an entry is subscribed to, or comes from a source that reports resources without a subscription.
func (t *Table) IsReferenced(e *contents.Entry) bool {
	return e.KeepUnsubscribed || t.Names.Has(xds.Wildcard) || t.Names.Covers(e.Current().Name, e.Current())
}

// ForgetNotFound forgets that a name, or the members of a glob collection, do not exist, if no
// source is asked for them any more and none would report that they exist again.
func (t *Table) ForgetNotFound(name string) {
	if !t.Names.Requested(name) {
		t.Type.ForgetNotFound(name)
	}
}

// SameVersion reports whether two contents, which may be nil, are the same.
func SameVersion(a, b *xds.Resource) bool {
	return a == b || a != nil && b != nil && a.Version == b.Version
}

// Expired reports whether the TTL of a content has ended.
func Expired(r *xds.Resource, now time.Time) bool {
	return !r.Deadline().IsZero() && !r.Deadline().After(now)
}

// CompareKeys orders names in push order.
func CompareKeys(a, b xds.Key) int {
	return cmp.Or(xds.CompareTypes(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
}
