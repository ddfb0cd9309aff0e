package cache

import (
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Restore takes in what was on disk, before or after a source answered: what is
// known already stays, and what a source said to be gone stays gone. It is not served before Release or the first answer of a
// source to its type, and what it says is wanted is leased until the first client
// comes, as by Prefetch. What has outlived its TTL is dropped, and none lives
// longer than its TTL from now, should the clock have been set back (protocol.md
// 6.2).
func (c *Cache) Restore(saved []Saved, facts map[Fact]string) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for f, value := range facts {
		c.restoreFact(f, value, now)
	}
	c.makeRoom(saved)
	gone := make(map[*table][]string)
	for _, s := range saved {
		if t := c.table(s.Type); c.guard.Active() && t.entries[s.Name] == nil && c.reportedRemoved(t, s.Name) {
			delete(t.notFound, s.Name)
			gone[t] = append(gone[t], s.Name)
		}
	}
	for _, s := range saved {
		c.restore(s, now)
	}
	c.restoredFallback()
	c.restoredAccident(gone)
	// Only now is it known what is wanted.
	for _, t := range c.tables {
		for name, e := range t.entries {
			if e.restored {
				c.file(t, name, e)
			}
		}
		if c.restoredServed {
			c.serveRestored(t)
		}
	}
	c.wakeRun()
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

func (c *Cache) restoreFact(f Fact, value string, now time.Time) {
	if c.journal != nil {
		c.journal.facts[f] = value
	}
	switch f.Kind {
	case FallbackFact, SuspectFact:
		c.restoreSuspect(f, value, now)
		return
	case AccidentFact:
		since, _ := time.Parse(time.RFC3339, value)
		c.guard.RestoreAccident(since, now)
		return
	}
	t := c.table(f.Type)
	switch f.Kind {
	case Wanted:
		// What clients of this kind forget to say is remembered (protocol.md V9).
		t.hadWildcard = t.hadWildcard || f.Name == xds.Wildcard
		if !c.local(f.Type, f.Name) {
			t.names.Prefetch(f.Name)
		}
	case MaybeHeldFact:
		t.maybeHeld[f.Name] = struct{}{}
		if !xds.Info(t.url).OnDemand {
			c.maybeHeld[key{f.Type, f.Name}] = time.Time{}
		}
	case Known:
		t.restoredKnown = !t.answered
	case WithheldFact:
		if t.entries[f.Name] == nil {
			c.guard.Restore(f.Type, f.Name)
		} else {
			c.logFact(WithheldFact, t.url, f.Name) // a source has put it since
		}
	}
}

func (c *Cache) restore(s Saved, now time.Time) {
	t := c.table(s.Type)
	source := c.sources.id(s.Source)
	disk := &onDisk{content: s.Content, source: source, accepted: s.Accepted, stable: s.Stable, restored: true}
	if s.Previous != nil {
		disk.previous = s.Previous.Version
	}
	e := t.entries[s.Name]
	expired := s.Content != nil && !s.Content.Deadline().IsZero() && !s.Content.Deadline().After(now)
	local := c.local(s.Type, s.Name) // by now
	if e != nil || s.Content == nil || expired || local || !c.guard.Active() && c.reportedRemoved(t, s.Name) {
		if c.journal != nil {
			if e != nil {
				e.disk = disk
			} else {
				c.journal.removed[key{s.Type, s.Name}] = disk
			}
			c.log(t, s.Name)
		}
		if e == nil && s.Content == nil && s.Previous != nil && !local {
			c.keepFormer(t, s.Name, s.Previous, now)
		}
		return
	}
	r := c.lifetime(s.Content)
	if !r.Deadline().IsZero() {
		// Without the monotonic clock's reading, which a loaded time has not.
		r = r.WithLifetime(r.TTL(), now.Add(min(r.Deadline().Sub(now), r.TTL())))
	}
	if source == localSource {
		source = nowhere // the agent makes it no more, or local would be true
	}
	stable, previous := s.Stable, s.Previous
	if !xds.Info(t.url).FallBack {
		stable, previous = false, nil
	}
	e = &entry{History: history.Restored(r, source, s.Accepted, stable, previous), restored: true, late: t.answered, disk: disk}
	t.entries[s.Name] = e
	t.indexAliases(nil, r)
	c.resources++
	c.bytes += size(r)
	c.expires(r)
	if !t.answered {
		t.sealed = true
	}
}

// reportedRemoved reports whether a source has said that a name does not exist, before what was on disk
// was read: by its name, or by an answer with everything that there is.
func (c *Cache) reportedRemoved(t *table, name string) bool {
	if _, gone := t.notFound[name]; gone {
		return true
	}
	return t.answered && t.knowledge == xds.Complete && xds.FullState(t.url)
}

// late lists what was restored after a source had begun to answer a wildcard, and which it has
// not spoken of by the time that it has told everything: it was not told that this is held,
// and so does not say that it is gone.
func (c *Cache) late(t *table) (names []string) {
	if !xds.FullState(t.url) {
		return nil
	}
	for name, e := range t.entries {
		if e.late && e.restored {
			names = append(names, name)
		}
	}
	return names
}

// ServeRestored lets what was restored be served: no source answered in time.
func (c *Cache) ServeRestored() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restoredServed = true
	for _, t := range c.tables {
		c.serveRestored(t)
	}
}

// serveRestored lets what was restored of one type be served.
func (c *Cache) serveRestored(t *table) {
	if !t.sealed && !t.restoredKnown {
		return
	}
	t.sealed = false
	ch := newChanges(t)
	for name, e := range t.entries {
		if e.restored {
			ch.add(name, e.Current())
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

// restoreSuspect takes in what was held back when the process ended before this one.
func (c *Cache) restoreSuspect(f Fact, value string, now time.Time) {
	if c.fallback == nil {
		c.fallback = &fallback{since: now, suspects: make(map[key]string)}
	}
	switch f.Kind {
	case SuspectFact:
		version, _ := strings.CutPrefix(value, suspectVersion)
		c.fallback.suspects[key{f.Type, f.Name}] = version
	case FallbackFact:
		since, until, _ := strings.Cut(value, " ")
		c.fallback.since, _ = time.Parse(time.RFC3339, since)
		c.fallback.until, _ = time.Parse(time.RFC3339, until)
	}
}

// restoredFallback forgets the absences of which there is nothing to serve instead. A
// suspect that nobody had accepted is not on disk: it stays one, since the control plane
// is about to send it again. Run ends a fallback whose time is over.
func (c *Cache) restoredFallback() {
	if c.fallback == nil {
		return
	}
	for k, version := range c.fallback.suspects {
		t := c.table(k.typeURL)
		if version != "" || t.entries[k.name] != nil || t.former[k.name].res != nil {
			continue
		}
		delete(c.fallback.suspects, k)
		c.logFact(SuspectFact, k.typeURL, k.name)
	}
	if len(c.fallback.suspects) == 0 {
		c.fallback = nil
		c.logFact(FallbackFact, "", "")
	}
}
