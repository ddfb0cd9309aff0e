package cache

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// TypeStatus is what is known of one type, for people and metrics.
type TypeStatus struct {
	Type      string
	Knowledge xds.Knowledge
	// Resources counts what is held by its standing.
	Resources map[xds.Status]int
	// Wildcard says that everything is wanted; Subscribed and Leased count the
	// names that watches subscribe to and that are kept for closed ones.
	Wildcard           bool
	Subscribed, Leased int
	// Updated is when a source last said anything of the type; the zero time
	// for never.
	Updated time.Time
	// Errors counts names with an error from above.
	Errors int
	// RemovalsHeldBack counts removals that are held back (Guard).
	RemovalsHeldBack int
	// Expired counts resources that outlived their TTL.
	Expired uint64
}

// Status returns what is known of every type that was ever asked for or told of,
// in push order.
func (c *Cache) Status() []TypeStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]TypeStatus, 0, len(c.tables))
	for _, url := range slices.SortedFunc(maps.Keys(c.tables), xds.CompareTypes) {
		t := c.tables[url]
		s := TypeStatus{
			Type:             url,
			Knowledge:        t.Knowledge(),
			Resources:        make(map[xds.Status]int),
			Wildcard:         t.names.Has(xds.Wildcard),
			Updated:          t.updated,
			Expired:          t.expired,
			RemovalsHeldBack: c.guard.HeldBack(url),
		}
		s.Subscribed, s.Leased = t.names.Count()
		for name := range t.errors {
			if c.concerns(t, name) {
				s.Errors++
			}
		}
		for _, e := range t.All() {
			s.Resources[e.Status()]++
		}
		out = append(out, s)
	}
	return out
}

// concerns reports whether an error about a name is one for somebody: it is held, a client
// subscribes to it, or no client is there at all.
func (c *Cache) concerns(t *table, name string) bool {
	return len(c.watches) == 0 || name == "" || t.Entry(name) != nil || t.names.InUse(name) || t.names.InUse(xds.Wildcard)
}

// ResourceStatus is what is held under one name.
type ResourceStatus struct {
	Name string
	// Item is empty for a name of which only an error is known.
	xds.Item
	Source string
	// Reason is what a client said of Current when it refused it; "" otherwise.
	Reason string
	// Err is the last error from above about the name; nil for none.
	Err error
}

// Resources returns everything held of a type, and the names of which only an
// error is known, in order.
func (c *Cache) Resources(typeURL string) []ResourceStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.tables[typeURL]
	if t == nil {
		return nil
	}
	out := make([]ResourceStatus, 0, t.Len())
	for name, e := range t.All() {
		out = append(out, ResourceStatus{Name: name, Item: e.Item(), Source: c.sources.name(e.Source()), Reason: e.Reason(), Err: t.errors[name]})
	}
	for name, err := range t.errors {
		if t.Entry(name) == nil && c.concerns(t, name) {
			out = append(out, ResourceStatus{Name: name, Err: err})
		}
	}
	slices.SortFunc(out, func(a, b ResourceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
