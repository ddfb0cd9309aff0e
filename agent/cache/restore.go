package cache

import (
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Restore restores what was on disk, before or after the first answer of a source: what the sources
// have said so far takes precedence. A restored resource is not served before ServeRestored or the
// first answer of a source for its type. Restored subscriptions are leased until the first client
// connects, as by Prefetch. Resources whose TTL has ended are dropped, and none lives longer than
// its TTL from now, in case the clock was set back (protocol.md 6.2).
func (c *Cache) Restore(saved []Saved, facts map[Fact]string) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	pinned := make(map[xds.Key]string)
	hadStable := make(map[xds.Key]bool) // suspects in whose place a stable content was served
	for f, value := range facts {
		switch k := (xds.Key{Type: f.Type, Name: f.Name}); f.Kind {
		case PinnedFact:
			pinned[k] = value
		case SuspectFact:
			hadStable[k] = strings.HasSuffix(value, suspectStable)
		}
		c.restoreFact(f, value, now)
	}
	c.growTables(saved)
	removed := make(map[*table][]string) // a source has said that they do not exist
	for _, s := range saved {
		if t := c.table(s.Type); c.guard.Active() && t.Entry(s.Name) == nil && t.WasRemoved(s.Name) {
			t.ForgetNotFound(s.Name)
			removed[t] = append(removed[t], s.Name)
		}
	}
	for _, s := range saved {
		c.restoreResource(s, now)
	}
	c.restorePins(saved, pinned, now)
	// A suspect that no client had ACKed is not on disk. It stays a suspect, because the control
	// plane is about to send it again. But nothing is better than a suspect only if there was nothing
	// before: a stable content with a secret may not have been stored.
	c.fallback.FinishRestore(func(k xds.Key, version string) bool {
		t := c.table(k.Type)
		if version == "" {
			return t.Entry(k.Name) != nil || t.removed.Stable(k.Name) != nil
		}
		return !hadStable[k] || t.stable(k.Name) != nil
	})
	c.finishRestoreGuard(removed)
	// Only now all subscriptions are known.
	for _, t := range c.tables {
		for name, e := range t.All() {
			if e.Restored() {
				c.updateLRU(t, name, e)
			}
		}
		if c.restoredServed {
			c.serveRestored(t)
		}
	}
	c.wakeRun()
}

// RestoreUnstored says, before Restore, which names had a content that could not be stored. If they are frozen,
// that content is not known any more: they are served as the sources send them, because nothing would be
// worse.
func (c *Cache) RestoreUnstored(names []xds.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range names {
		if c.unstored == nil {
			c.unstored = make(map[xds.Key]struct{})
		}
		c.unstored[k] = struct{}{}
	}
}

func (c *Cache) isUnstored(k xds.Key) bool {
	_, is := c.unstored[k]
	return is
}

// growTables allocates room for the restored resources.
func (c *Cache) growTables(saved []Saved) {
	sizes := make(map[string]int)
	for _, s := range saved {
		sizes[s.Type]++
	}
	for typeURL, n := range sizes {
		c.table(typeURL).Grow(n)
	}
}

func (c *Cache) restoreFact(f Fact, value string, now time.Time) {
	if c.journal != nil {
		c.journal.facts[f] = value
	}
	switch f.Kind { // of no type
	case FallbackFact:
		since, until := parseTimes(value)
		c.fallback.RestoreTimes(since, until)
		return
	case AccidentFact:
		since, last := parseTimes(value)
		if !last.IsZero() {
			since = last
		}
		c.guard.RestoreAccident(since, now)
		return
	case FreezeFact:
		if c.frozen == nil {
			c.frozen = freeze.Parse(value)
		}
		return
	case HistoryFact:
		if at, err := time.Parse(time.RFC3339Nano, value); err == nil && !c.archive.Begin(f.Type, at) {
			c.persistFact(HistoryFact, xds.Key{Type: f.Type}) // without a history, what is on disk ends here
		}
		return
	case UnrecordedFact:
		k := xds.Key{Type: f.Type, Name: f.Name}
		c.unrecorded = append(c.unrecorded, k)
		c.persistFact(UnrecordedFact, k)
		return
	case PinnedFact:
		return // restorePins needs the resources
	}
	t, k := c.table(f.Type), xds.Key{Type: f.Type, Name: f.Name}
	switch f.Kind {
	case SuspectFact:
		version, _ := strings.CutPrefix(strings.TrimSuffix(value, suspectStable), suspectVersion)
		c.fallback.Restore(k, version)
	case SubscribedFact:
		// A reconnecting client may not say that it subscribes to the wildcard (protocol.md V9).
		t.hadWildcard = t.hadWildcard || f.Name == xds.Wildcard
		if !c.local(k) {
			t.names.Prefetch(f.Name)
		}
	case MaybeHeldFact:
		if xds.Info(f.Type).OnDemand {
			c.uncertain.Add(k)
		} else {
			c.uncertain.Restore(k)
		}
	case KnownFact:
		t.RestoreKnown()
	case DeferredFact:
		if t.Entry(f.Name) == nil {
			c.guard.Restore(k)
		} else {
			c.persistFact(DeferredFact, k) // a source has put it since
		}
	}
}

func (c *Cache) restoreResource(s Saved, now time.Time) {
	t := c.table(s.Type)
	disk := &onDisk{Saved: c.asHistory(s), Restored: true}
	e := t.Entry(s.Name)
	local := c.local(t.key(s.Name)) // it may not have been when it was written
	if e != nil || s.Content == nil || expired(s.Content, now) || local || !c.guard.Active() && t.WasRemoved(s.Name) {
		if e != nil {
			e.OnDisk = disk
		} else if c.journal != nil {
			c.journal.removed[t.key(s.Name)] = disk
		}
		c.persist(t, s.Name)
		if e == nil && s.Content == nil && s.Previous != nil && !local {
			c.keepRemoved(t, s.Name, s.Previous, now)
		}
		return
	}
	h := c.restoredHistory(s, now)
	t.Restore(h, disk)
	c.trackDeadline(h.Current())
}

// expired reports whether the TTL of a content has ended.
func expired(r *xds.Resource, now time.Time) bool {
	return !r.Deadline().IsZero() && !r.Deadline().After(now)
}

// asHistory returns what was on disk in the form of the histories.
func (c *Cache) asHistory(s Saved) history.Saved {
	return history.Saved{Content: s.Content, Previous: s.Previous, Source: c.sources.id(s.Source), Acked: s.Accepted, Stable: s.Stable}
}

// restoredHistory returns the history of a content that was on disk.
func (c *Cache) restoredHistory(s Saved, now time.Time) history.History {
	h := c.asHistory(s)
	r := c.applyTTLPolicy(s.Content)
	if !r.Deadline().IsZero() {
		// A time from disk has no monotonic clock reading: now has one.
		r = r.WithLifetime(r.TTL(), now.Add(min(r.Deadline().Sub(now), r.TTL())))
	}
	h.Content = r
	if h.Source == history.Local {
		h.Source = history.Unknown // the agent does not make it any more
	}
	if !xds.Info(s.Type).FallBack {
		h.Stable, h.Previous = false, nil
	}
	return history.Restored(h)
}

// restoredUnconfirmed returns the full-state resources that were restored after a source had begun
// to answer, and that the source has not sent by the time it has sent everything. The source was
// not told that they are cached, so it does not say that they are removed.
func (c *Cache) restoredUnconfirmed(t *table) (names []string) {
	if !xds.FullState(t.URL) {
		return nil
	}
	for name, e := range t.All() {
		if e.RestoredAfterAnswer() {
			names = append(names, name)
		}
	}
	return names
}

// ServeRestored serves the restored resources of all types: no source answered in time.
func (c *Cache) ServeRestored() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restoredServed = true
	for _, t := range c.tables {
		c.serveRestored(t)
	}
}

// serveRestored serves the restored resources of one type.
func (c *Cache) serveRestored(t *table) {
	shown, knowledge := t.ShowRestored()
	if !shown {
		return
	}
	ch := &changes{table: t}
	ch.all = knowledge
	for name, e := range t.All() {
		if e.Restored() {
			ch.add(name, e.Current())
		}
	}
	c.revision++
	c.notify(ch)
}

// Restored counts the restored resources that no source has confirmed.
func (c *Cache) Restored() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tables {
		for _, e := range t.All() {
			if e.Restored() {
				n++
			}
		}
	}
	return n
}
