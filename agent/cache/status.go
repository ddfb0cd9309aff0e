package cache

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/nacks"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
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
	return c.state.Contents.Bytes
}

// Status returns the status of each type that was ever subscribed to or updated, in push order.
func (c *Cache) Status() []TypeStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]TypeStatus, 0, len(c.state.Tables()))
	for _, url := range slices.SortedFunc(maps.Keys(c.state.Tables()), xds.CompareTypes) {
		t := c.state.Table(url)
		s := TypeStatus{
			Type:             url,
			Knowledge:        t.Knowledge(),
			Resources:        make(map[xds.Status]int),
			Wildcard:         t.Names.Has(xds.Wildcard),
			Updated:          t.Updated,
			Expired:          c.expiry.Expired(url),
			RemovalsHeldBack: c.guard.HeldBack(url),
			ChangesHeldBack:  c.guard.Changes(url),
		}
		s.Subscribed, s.Leased = t.Names.Count()
		for name := range t.Errors.All() {
			if c.state.Concerns(t, name) {
				s.Errors++
			}
		}
		for _, e := range t.All() {
			s.Resources[e.Status()]++
		}
		if s.Errors > 0 {
			s.ErrorsSince = t.Errors.Since()
		}
		if s.RemovalsHeldBack > 0 {
			s.HeldBackSince, s.HeldBackUntil = c.guard.HeldBackSince(url), c.guard.ConfirmedAt(url)
			s.Had = c.guard.Had(url)
		}
		out = append(out, s)
	}
	return out
}

// ResourceStatus is the status of one name.
type ResourceStatus struct {
	Name string
	// Item is what the sources sent. It is empty if only an error is known of the name, or if they
	// removed the name and that is frozen.
	xds.Item
	Source string
	// Reason is why clients NACKed Current; "" if they did not. Tries is how it is offered to them again; nil if they did not.
	Reason string
	Tries  *nacks.Tries
	// Build accepted another content last, BuildVersion, than other builds of the clients' program; "" for none.
	Build, BuildVersion string
	// BuildEnded says that a client of it ended while it was offered the newest content.
	BuildEnded bool
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
	t := c.state.Existing(typeURL)
	out := make([]ResourceStatus, 0, t.Len())
	for name, e := range t.All() {
		latest := c.guard.Latest(t.Key(name))
		changed := latest != nil && !xds.Empty(latest)
		deferred, heldBack := c.guard.Deferred(t.Key(name))
		s := ResourceStatus{
			Going: deferred && !heldBack,
			Name:  name, Item: e.Item(), Source: c.state.Sources.Name(e.Source()), Reason: e.Reason(), Err: t.Errors.Of(name),
			Changed: e.Changed(), Restored: e.Restored(), RemovalHeldBack: c.guard.HoldsBack(t.Key(name)) && !changed, ChangeHeldBack: changed, Unused: !c.state.IsUsed(t, name, e.Current()),
		}
		if tries, ok := c.nacks.Tries(t.Key(name)); ok {
			s.Tries, s.Reason = &tries, cmp.Or(s.Reason, tries.Reason)
		}
		if build, accepted := c.builds.Accepted(t.Key(name)); accepted != nil {
			s.Build, s.BuildVersion, s.BuildEnded = build, accepted.Version, c.builds.Ended(t.Key(name), e.Current().Version)
		}
		switch item, by := c.changer.Features.Served(t, name, e); by {
		case c.fallback:
			s.FellBack, s.Served = true, item.Current
		case c.freezer:
			if sent := item.Sent(); !state.SameVersion(sent, e.Current()) {
				s.Frozen, s.Served = true, sent
			}
		}
		out = append(out, s)
	}
	listed := make(map[string]bool)
	for item, by := range c.changer.Features.Unlisted(t) {
		name := item.Current.Name
		listed[name] = true
		s := ResourceStatus{Name: name, Err: t.Errors.Of(name), FellBack: by == c.fallback, Frozen: by == c.freezer, Served: item.Sent()}
		if s.Frozen {
			pin := c.freezer.History(t, name)
			s.Source, s.Reason = c.state.Sources.Name(pin.Source()), pin.Reason()
		}
		out = append(out, s)
	}
	for name, err := range t.Errors.All() {
		if t.Entry(name) == nil && !listed[name] && c.state.Concerns(t, name) {
			out = append(out, ResourceStatus{Name: name, Err: err})
		}
	}
	slices.SortFunc(out, func(a, b ResourceStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Versions returns what the accepted content of a name was, the oldest first, and is; the last one has
// no Until. began is since when the contents of the type are recorded; the zero time for not at all.
func (c *Cache) Versions(typeURL, name string) (versions []archive.Record, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.archive.Versions(xds.Key{Type: typeURL, Name: name}, c.freezer.AcceptedNow(xds.Key{Type: typeURL, Name: name})), c.archive.Began(typeURL)
}

// Changed returns the names whose accepted content changed at or after a time; the zero time for all
// that are recorded.
func (c *Cache) Changed(since time.Time) (names []xds.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.archive.Names() {
		if records := c.archive.Records(k); !records[len(records)-1].Until.Before(since) {
			names = append(names, k)
		}
	}
	return names
}

// At returns what the accepted content of a name was at a time; nil for none. known is false if that is
// not known, or not kept.
func (c *Cache) At(typeURL, name string, at time.Time) (r *xds.Resource, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch record, found := c.archive.At(xds.Key{Type: typeURL, Name: name}, at); found {
	case archive.Unknown:
		return nil, false
	case archive.Found:
		return record.Resource, true
	}
	return c.freezer.AcceptedNow(xds.Key{Type: typeURL, Name: name}), true
}

// HistoryBytes returns what the former contents take in memory, about.
func (c *Cache) HistoryBytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.archive.Bytes()
}

// Contents are the present contents of a name; nil for none.
type Contents struct {
	// Served is what clients are sent, and Held what the sources sent last.
	Served, Held, Accepted, Stable *xds.Resource
	// Tries is how the newest content of a source is offered again to clients, which NACKed it; nil if they did not.
	Tries *nacks.Tries
}

// Contents returns the present contents of a name.
func (c *Cache) Contents(typeURL, name string) (out Contents) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.state.Existing(typeURL)
	out.Held, out.Stable = cmp.Or(c.guard.Latest(t.Key(name)), t.Resource(name)), c.stable.Content(t, name)
	out.Accepted = c.freezer.AcceptedNow(xds.Key{Type: typeURL, Name: name})
	item, _ := c.changer.Features.Served(t, name, t.Find(name))
	out.Served = item.Sent()
	if tries, ok := c.nacks.Tries(t.Key(name)); ok {
		out.Tries = &tries
	}
	return out
}
