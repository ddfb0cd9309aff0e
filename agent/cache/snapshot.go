package cache

import (
	"iter"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Snapshot is the state of the cache between Begin and End.
type Snapshot struct {
	c        *Cache
	tooStale bool   // nothing is served
	w        *Watch // whose view it is
}

// table returns the table that a type is served from.
func (s Snapshot) table(typeURL string) *state.Table {
	if s.tooStale {
		return state.None
	}
	return s.c.state.Existing(typeURL)
}

// Revision counts the changes of the cache.
func (s Snapshot) Revision() uint64 { return s.c.revision }

// Wildcard returns how much is known of the wildcard of a type.
func (s Snapshot) Wildcard(typeURL string) xds.Knowledge { return s.table(typeURL).Knowledge() }

// Lookup returns the resource of a name or an alias.
func (s Snapshot) Lookup(typeURL, name string) xds.Item {
	if s.tooStale {
		return s.lookupLocal(typeURL, name)
	}
	t := s.table(typeURL)
	return s.served(t, name, t.Find(name))
}

// served returns what is served of a name or an alias whose entry is e; nil for none.
func (s Snapshot) served(t *state.Table, name string, e *contents.Entry) xds.Item {
	item, by := s.c.changer.Features.Served(t, name, e)
	if s.c.builds.Any() {
		item = s.c.builds.Item(s.w.subscriptions.Build, e, item, by != nil, s.w.resumes)
	}
	if item.Status == xds.Nacked && item.Current != nil {
		item.Ended = s.c.nacks.Killed(t.Key(item.Current.Name))
	}
	return item
}

// lookupLocal returns a resource that the agent itself makes, which is never too old.
func (s Snapshot) lookupLocal(typeURL, name string) xds.Item {
	if e := s.c.state.Existing(typeURL).Entry(name); e != nil && e.IsLocal() {
		return e.Item()
	}
	return xds.Item{}
}

// All yields all resources of a type, in no order.
func (s Snapshot) All(typeURL string) iter.Seq[xds.Item] {
	return func(yield func(xds.Item) bool) {
		t := s.table(typeURL)
		for name, e := range t.All() {
			if item := s.served(t, name, e); item.Current != nil && !yield(item) {
				return
			}
		}
		for item := range s.c.changer.Features.Unlisted(t) {
			if !yield(item) {
				return
			}
		}
	}
}

// Count returns the maximum number of resources that All yields.
func (s Snapshot) Count(typeURL string) int {
	t := s.table(typeURL)
	return t.Len() + len(s.c.stable.Removed(t.URL)) + s.c.freezer.Count(t.URL)
}

// Collection yields the members of a glob collection, in no order.
func (s Snapshot) Collection(typeURL, glob string) iter.Seq[xds.Item] {
	return func(yield func(xds.Item) bool) {
		t := s.table(typeURL)
		for name, e := range t.Collection(glob) {
			if item := s.served(t, name, e); item.Current != nil && !yield(item) {
				return
			}
		}
		for item := range s.c.changer.Features.Unlisted(t) {
			if xds.CollectionOf(item.Current.Name) == glob && !yield(item) {
				return
			}
		}
	}
}

// MaybeHeld lists the names that a client of this group may hold although it has not ACKed them, in
// alphabetical order.
func (s Snapshot) MaybeHeld(typeURL string) []string {
	if s.tooStale {
		return nil
	}
	return s.c.uncertain.Of(typeURL)
}

// Connected returns since when an upstream answers; the zero time if none does.
func (s Snapshot) Connected() time.Time { return s.c.connected }

// HadTTL reports whether a resource of a type ever had a TTL.
func (s Snapshot) HadTTL(typeURL string) bool { return s.c.expiry.Had(typeURL) }

// Nacks counts the cached contents of a type that clients NACKed alone.
func (s Snapshot) Nacks(typeURL string) uint64 { return s.c.nacks.Count(typeURL) }

// Wildcard returns what is known of the wildcard of a type, and whether a client of this group ever subscribed to it, or is expected to
// (protocol.md V9).
func (c *Cache) Wildcard(typeURL string) (known xds.Knowledge, had bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.state.Existing(typeURL)
	return t.Knowledge(), t.HadWildcard || t.Names.Has(xds.Wildcard)
}
