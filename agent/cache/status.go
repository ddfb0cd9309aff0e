package cache

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// TypeStatus is the status of one type, for people and metrics.
type TypeStatus struct {
	Type      string
	Knowledge xds.Knowledge
	// Resources counts the cached resources by status.
	Resources map[xds.Status]int
	// Wildcard says that the wildcard is subscribed to or leased. Subscribed and Leased count the
	// names.
	Wildcard           bool
	Subscribed, Leased int
	// Updated is when a source last answered a request for the type; the zero time for never.
	Updated time.Time
	// Errors counts the names with an error of a source; ErrorsSince is since when there are some.
	Errors      int
	ErrorsSince time.Time
	// RemovalsHeldBack counts the removals that are held back (Guard), and what was emptied and is, since
	// HeldBackSince. At HeldBackUntil the sources are asked for what confirms them.
	RemovalsHeldBack             int
	HeldBackSince, HeldBackUntil time.Time
	// ChangesHeldBack counts the other changes that are held back with them.
	ChangesHeldBack int
	// Had is, while some are held back, how many resources clients have that are not empty.
	Had int
	// Expired counts the resources whose TTL ended.
	Expired uint64
}

// Bytes returns the size of the bodies that are cached, in their newest versions.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.contents.Bytes
}

// Status returns the status of each type that was ever subscribed to or updated, in push order.
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
			ChangesHeldBack:  c.guard.Changes(url),
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
		if s.Errors > 0 {
			s.ErrorsSince = t.errorsSince
		}
		if s.RemovalsHeldBack > 0 {
			s.HeldBackSince, s.HeldBackUntil = c.guard.HeldBackSince(url), c.guard.ConfirmedAt(url)
			s.Had = c.guardTable(url).Had()
		}
		out = append(out, s)
	}
	return out
}

// concerns reports whether an error about a name concerns a client: the resource is cached, a
// client subscribes to it, or no client is connected.
func (c *Cache) concerns(t *table, name string) bool {
	return len(c.watches) == 0 || name == "" || t.Entry(name) != nil || t.names.InUse(name) || t.names.InUse(xds.Wildcard)
}

// isUsed reports whether a client subscribes to a resource, or no client is connected.
func (c *Cache) isUsed(t *table, name string, r *xds.Resource) bool {
	used := t.names.InUse
	if len(c.watches) == 0 || used(xds.Wildcard) || used(name) {
		return true
	}
	glob := xds.CollectionOf(name)
	return glob != "" && used(glob) || r != nil && slices.ContainsFunc(r.Aliases(), used)
}

// ResourceStatus is the status of one name.
type ResourceStatus struct {
	Name string
	// Item is what the sources sent. It is empty if only an error is known of the name, or if they
	// removed the name and that is frozen.
	xds.Item
	Source string
	// Reason is why clients NACKed Current; "" if they did not.
	Reason string
	// Err is the last error of a source about the name; nil for none.
	Err error
	// Changed is when a source last changed the content; the zero time if none has since the start.
	Changed time.Time
	// Restored says that it is from disk and that no source has confirmed it since, and
	// RemovalHeldBack that a source removed or emptied it and the guard holds that back. ChangeHeldBack says that the guard
	// holds another change of it back.
	Restored, RemovalHeldBack, ChangeHeldBack bool
	// Going says that a source removed it, which takes effect in a moment (guard.Grace).
	Going bool
	// Unused says that no client subscribes to it, although there are clients: it is kept for those to come.
	Unused bool
	// Frozen says that because of a freeze Served is served, nil for nothing, and not Item; FellBack, that
	// it is so because Envoy crashed with Item.
	Frozen, FellBack bool
	Served           *xds.Resource
}

// Resources returns the status of all resources of a type, and of the names of which only an error
// is known, in alphabetical order.
func (c *Cache) Resources(typeURL string) []ResourceStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.existing(typeURL)
	out := make([]ResourceStatus, 0, t.Len())
	for name, e := range t.All() {
		latest := c.guard.Latest(t.key(name))
		changed := latest != nil && !xds.Empty(latest)
		deferred, heldBack := c.guard.Deferred(t.key(name))
		s := ResourceStatus{
			Going: deferred && !heldBack,
			Name:  name, Item: e.Item(), Source: c.sources.name(e.Source()), Reason: e.Reason(), Err: t.errors[name],
			Changed: e.Changed(), Restored: e.Restored(), RemovalHeldBack: c.guard.HoldsBack(t.key(name)) && !changed, ChangeHeldBack: changed, Unused: !c.isUsed(t, name, e.Current()),
		}
		if c.fallback.Active() && c.fallback.HoldsBack(t.key(name)) && !t.Hidden(e) {
			s.FellBack, s.Served = true, e.Stable()
		} else if pin := c.pins.Of(t.key(name)); pin != nil && !t.Hidden(e) && !sameVersion(pin.Sent(), e.Current()) {
			s.Frozen, s.Served = true, pin.Sent()
		}
		out = append(out, s)
	}
	fellBack := make(map[string]bool)
	if c.fallback.Active() {
		for name := range t.removed {
			if stable := t.removed.Stable(name); t.Entry(name) == nil && stable != nil && c.fallback.HoldsBack(t.key(name)) {
				fellBack[name] = true
				out = append(out, ResourceStatus{Name: name, Err: t.errors[name], FellBack: true, Served: stable})
			}
		}
	}
	for item := range c.servedPins(t) {
		if fellBack[item.Current.Name] {
			continue
		}
		pin := c.pins.Of(t.key(item.Current.Name))
		out = append(out, ResourceStatus{
			Name: item.Current.Name, Source: c.sources.name(pin.Source()), Reason: pin.Reason(), Err: t.errors[item.Current.Name],
			Frozen: true, Served: pin.Sent(),
		})
	}
	for name, err := range t.errors {
		if t.Entry(name) == nil && !fellBack[name] && c.concerns(t, name) && (c.pins.Of(t.key(name)) == nil || c.pins.Of(t.key(name)).Absent()) {
			out = append(out, ResourceStatus{Name: name, Err: err})
		}
	}
	slices.SortFunc(out, func(a, b ResourceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
