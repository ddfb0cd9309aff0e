package cache

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Saved is what was on disk under one name. Kept or Previous is nil where there
// was none.
type Saved struct {
	Type, Name       string
	Kept             *xds.Resource
	Source           string
	Accepted, Proven bool
	Previous         *xds.Resource
}

// Restore takes in what was on disk, before or after a source answered: what is
// known already stays. It is not served before Release or the first answer of a
// source to its type, and what it says is wanted is leased until the first client
// comes, as by Prefetch. What has outlived its TTL is dropped, and none lives
// longer than its TTL from now, should the clock have been set back (protocol.md
// 6.2).
func (c *Cache) Restore(saved []Saved, facts []Fact) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range facts {
		c.restoreFact(f)
	}
	c.makeRoom(saved)
	for _, s := range saved {
		c.restore(s, now)
	}
	// Only now is it known what is wanted.
	for _, t := range c.tables {
		for name, e := range t.entries {
			if e.restored {
				c.file(t, name, e)
			}
		}
		if c.released {
			c.release1(t)
		}
	}
	c.poke()
}

// makeRoom makes the tables as large as they will be.
func (c *Cache) makeRoom(saved []Saved) {
	sizes := make(map[string]int)
	for _, s := range saved {
		sizes[s.Type]++
	}
	for typeURL, n := range sizes {
		c.table(typeURL).grow(n)
	}
}

func (c *Cache) restoreFact(f Fact) {
	t := c.table(f.Type)
	switch f.Kind {
	case Wanted:
		// What clients of this kind forget to say is remembered (protocol.md V9).
		t.hadWildcard = t.hadWildcard || f.Name == xds.Wildcard
		if !c.wants(t, f.Name) && !c.local(f.Type, f.Name) {
			c.leases[key{f.Type, f.Name}] = time.Time{}
			c.wantChanged(t, f.Name)
		}
	case Doubtful:
		t.doubtful[f.Name] = struct{}{}
		if t.url != xds.VirtualHostType {
			c.doubts[key{f.Type, f.Name}] = time.Time{}
		}
	case Known:
		t.restoredKnown = true
	}
	if c.journal != nil {
		c.journal.told[f] = struct{}{}
	}
}

func (c *Cache) restore(s Saved, now time.Time) {
	t := c.table(s.Type)
	source := c.sources.id(s.Source)
	told := &keeping{kept: s.Kept, source: source, accepted: s.Accepted, proven: s.Proven}
	if s.Previous != nil {
		told.previous = s.Previous.Version
	}
	e := t.entries[s.Name]
	expired := s.Kept != nil && !s.Kept.Deadline().IsZero() && !s.Kept.Deadline().After(now)
	local := c.local(s.Type, s.Name) // by now
	if e != nil || s.Kept == nil || expired || local {
		if c.journal != nil {
			if e != nil {
				e.told = told
			} else {
				c.journal.gone[key{s.Type, s.Name}] = told
			}
			c.log(t, s.Name)
		}
		if e == nil && s.Kept == nil && s.Previous != nil && !local {
			t.retire(s.Name, s.Previous)
			c.try(t, s.Name, now)
		}
		return
	}
	r := c.lifetime(s.Kept)
	if !r.Deadline().IsZero() {
		// Without the monotonic clock's reading, which a loaded time has not.
		r = r.WithLifetime(r.TTL(), now.Add(min(r.Deadline().Sub(now), r.TTL())))
	}
	if source == localSource {
		source = nowhere // the agent makes it no more, or local would be true
	}
	e = &entry{res: r, source: source, restored: true, told: told}
	if s.Accepted {
		e.good, e.goodSource, e.standing = r, e.source, xds.Accepted
	}
	switch {
	case s.Proven:
		e.proven = r
	case s.Previous != nil:
		e.proven = s.Previous
	}
	t.entries[s.Name], t.mark = e, nil
	t.indexAliases(nil, r)
	c.resources++
	c.bytes += size(r)
	c.expires(r)
	if !t.answered {
		t.sealed = true
	}
}

// Release lets what was restored be served: no source answered in time.
func (c *Cache) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = true
	for _, t := range c.tables {
		c.release1(t)
	}
}

// release1 lets what was restored of one type be served.
func (c *Cache) release1(t *table) {
	if !t.sealed && !t.restoredKnown {
		return
	}
	t.sealed = false
	ch := newChanges(t)
	for name, e := range t.entries {
		if e.restored {
			ch.add(name, e.res)
		}
	}
	if t.restoredKnown && t.knowledge == xds.Unknown {
		t.knowledge = xds.Partial
		ch.all = true
	}
	t.restoredKnown = false
	c.revision++
	c.notify(ch)
}

// Restored counts what was restored and that no source has spoken of since.
func (c *Cache) Restored() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tables {
		for _, e := range t.entries {
			if e.restored {
				n++
			}
		}
	}
	return n
}
