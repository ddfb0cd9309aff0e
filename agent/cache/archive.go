package cache

import (
	"cmp"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// accepted records that the accepted content of a name was one and is another now; nil for none. It does
// nothing while the name is pinned, because clients are not served that.
func (c *Cache) accepted(t *table, name string, was, is *xds.Resource, now time.Time) {
	if c.pins.Of(t.key(name)) != nil {
		return
	}
	c.recordAccepted(t.key(name), was, is, now)
	if is != nil && !sameVersion(was, is) {
		c.observe(t.URL, name, ResourceACKed)
	}
}

func (c *Cache) recordAccepted(k xds.Key, was, is *xds.Resource, now time.Time) {
	if c.archive.Enabled() && !sameVersion(was, is) {
		c.archive.Replaced(k, was, now)
	}
}

// storesHistory reports whether former contents of a type are on disk. Endpoints change so often that
// writing them would cost more than all else.
func storesHistory(typeURL string) bool { return typeURL != xds.EndpointType }

// archiveChanged is called for each name whose records must be written or deleted. What lasted is written with the content
// that has replaced it. What was replaced soon may be written later, and until then the disk says that records are missing.
func (c *Cache) archiveChanged(k xds.Key) {
	j := c.journal
	switch {
	case j == nil, !storesHistory(k.Type):
	case k.Name == "":
		c.persistFact(HistoryFact, k)
	case c.archive.Lasting(k):
		j.lasting[k] = struct{}{}
		delete(j.versions, k)
		if _, ok := j.unrecorded[k]; ok {
			delete(j.unrecorded, k)
			c.persistFact(UnrecordedFact, k)
		}
		wake.Signal(j.changed)
	default:
		if _, ok := j.lasting[k]; ok {
			return
		}
		j.versions[k] = struct{}{}
		if _, ok := j.unrecorded[k]; !ok && c.archive.Unwritten(k) { // not only to be deleted on disk
			j.unrecorded[k] = struct{}{}
			c.persistFact(UnrecordedFact, k)
		}
		wake.Signal(j.changed)
	}
}

// SavedVersion is a former content of a name that should be, or was, on disk.
type SavedVersion struct {
	Type, Name string
	// Taken says that the journal has returned the record before (not that it was restored).
	archive.Record
	// Deleted says that it should not be on disk any more.
	Deleted bool
}

// TakeVersions returns the former contents that changed since the last call, and that Take did not return. No ACK waits for
// them, so that they may be written later than what Take returns: a name that changes often leaves less to write then. When
// they are written, Take returns that none is missing any more.
func (j *Journal) TakeVersions() []SavedVersion {
	j.c.mu.Lock()
	defer j.c.mu.Unlock()
	for k := range j.unrecorded {
		j.c.persistFact(UnrecordedFact, k)
	}
	xds.ResetNames(&j.unrecorded)
	return j.takeVersions(&j.versions)
}

// takeVersions returns the former contents of names, and forgets the names.
func (j *Journal) takeVersions(of *map[xds.Key]struct{}) (out []SavedVersion) {
	for k := range *of {
		records, deleted := j.c.archive.Take(k)
		for _, until := range deleted {
			out = append(out, SavedVersion{Type: k.Type, Name: k.Name, Record: archive.Record{Until: until}, Deleted: true})
		}
		for _, r := range records {
			out = append(out, SavedVersion{Type: k.Type, Name: k.Name, Record: r})
		}
	}
	xds.ResetNames(of)
	return out
}

// takeAllVersions returns all former contents.
func (c *Cache) takeAllVersions() (out []SavedVersion) {
	for k, records := range c.archive.TakeAll(storesHistory) {
		for _, r := range records {
			out = append(out, SavedVersion{Type: k.Type, Name: k.Name, Record: r})
		}
	}
	return out
}

// RestoreVersions restores the former contents that were on disk. It is called once at most, after Restore. asOf is when the disk
// was last written to; the zero time is now. Of a name with an UnrecordedFact it is not known what it was from the last of its
// records until then.
func (c *Cache) RestoreVersions(saved []SavedVersion, asOf time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if asOf.IsZero() {
		asOf = c.began
	}
	stored := make([]archive.Stored, 0, len(saved)+len(c.unrecorded))
	for _, k := range c.unrecorded {
		stored = append(stored, archive.Stored{Key: k, Record: archive.Record{Until: asOf.UTC().Round(0), Version: archive.Lost}, New: true})
	}
	c.unrecorded = nil
	for _, s := range saved {
		stored = append(stored, archive.Stored{Key: xds.Key{Type: s.Type, Name: s.Name}, Record: s.Record})
	}
	c.archive.Restore(nil, stored)
}

// Versions returns what the accepted content of a name was, the oldest first, and is; the last one has
// no Until. began is since when the contents of the type are recorded; the zero time for not at all.
func (c *Cache) Versions(typeURL, name string) (versions []archive.Record, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.versions(xds.Key{Type: typeURL, Name: name}), c.archive.Began(typeURL)
}

func (c *Cache) versions(k xds.Key) []archive.Record {
	records := c.archive.Records(k)
	out := append(make([]archive.Record, 0, len(records)+1), records...)
	var present archive.Record
	if n := len(records); n > 0 {
		present.From = records[n-1].Until
	}
	if h := c.history(c.existing(k.Type), k.Name); h != nil && h.Acked() != nil {
		present.Version, present.Resource = h.Acked().Version, h.Acked()
	}
	if len(out) == 0 && present.Absent() {
		return nil
	}
	return append(out, present)
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
	return c.at(xds.Key{Type: typeURL, Name: name}, at)
}

func (c *Cache) at(k xds.Key, at time.Time) (r *xds.Resource, known bool) {
	switch record, state := c.archive.At(k, at); state {
	case archive.Unknown:
		return nil, false
	case archive.Found:
		return record.Resource, true
	}
	if h := c.history(c.existing(k.Type), k.Name); h != nil {
		return h.Acked(), true
	}
	return nil, true
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
}

// Contents returns the present contents of a name.
func (c *Cache) Contents(typeURL, name string) (out Contents) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.existing(typeURL)
	out.Held, out.Stable = cmp.Or(c.guard.Latest(t.key(name)), t.Resource(name)), t.stable(name)
	if h := c.history(t, name); h != nil {
		out.Accepted = h.Acked()
	}
	item := Snapshot{c: c}.Lookup(typeURL, name)
	switch {
	case item.Current == nil:
	case item.Acked != nil && (item.Status == xds.Nacked || item.Status == xds.Suspect):
		out.Served = item.Acked
	case item.Status != xds.Nacked:
		out.Served = item.Current
	}
	return out
}
