package cache

import (
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
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
	c.growTables(saved)
	gone := make(map[*table][]string)
	for _, s := range saved {
		if t := c.table(s.Type); c.guard.Active() && t.Entry(s.Name) == nil && t.WasRemoved(s.Name) {
			t.ForgetNotFound(s.Name)
			gone[t] = append(gone[t], s.Name)
		}
	}
	for _, s := range saved {
		c.restoreResource(s, now)
	}
	// A suspect that nobody had accepted is not on disk: it stays one, since the control plane
	// is about to send it again.
	c.fallback.FinishRestore(func(k xds.Key) bool {
		t := c.table(k.Type)
		return t.Entry(k.Name) != nil || t.removed.Stable(k.Name) != nil
	})
	c.finishRestoreGuard(gone)
	// Only now is it known what is wanted.
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

// growTables makes the tables as large as they will be.
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
	c.journal.restoreFact(f, value)
	t, k := c.table(f.Type), xds.Key{Type: f.Type, Name: f.Name}
	switch f.Kind {
	case SuspectFact:
		version, _ := strings.CutPrefix(value, suspectVersion)
		c.fallback.Restore(k, version)
	case FallbackFact:
		since, until := parseTimes(value)
		c.fallback.RestoreTimes(since, until)
	case AccidentFact:
		since, _ := parseTimes(value)
		c.guard.RestoreAccident(since, now)
	case SubscribedFact:
		// What clients of this kind forget to say is remembered (protocol.md V9).
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
	source := c.sources.id(s.Source)
	disk := &contents.OnDisk{Content: s.Content, Source: source, Accepted: s.Accepted, Stable: s.Stable, Restored: true}
	if s.Previous != nil {
		disk.Previous = s.Previous.Version
	}
	e := t.Entry(s.Name)
	expired := s.Content != nil && !s.Content.Deadline().IsZero() && !s.Content.Deadline().After(now)
	local := c.local(t.key(s.Name)) // by now
	if e != nil || s.Content == nil || expired || local || !c.guard.Active() && t.WasRemoved(s.Name) {
		c.journal.restored(t.key(s.Name), e, disk)
		c.persist(t, s.Name)
		if e == nil && s.Content == nil && s.Previous != nil && !local {
			c.keepRemoved(t, s.Name, s.Previous, now)
		}
		return
	}
	r := c.applyTTLPolicy(s.Content)
	if !r.Deadline().IsZero() {
		// Without the monotonic clock's reading, which a loaded time has not.
		r = r.WithLifetime(r.TTL(), now.Add(min(r.Deadline().Sub(now), r.TTL())))
	}
	if source == history.Local {
		source = history.Unknown // the agent makes it no more, or local would be true
	}
	stable, previous := s.Stable, s.Previous
	if !xds.Info(t.url).FallBack {
		stable, previous = false, nil
	}
	t.Restore(history.Restored(r, source, s.Accepted, stable, previous), disk)
	c.trackDeadline(r)
}

// restoredUnconfirmed lists what was restored after a source had begun to answer a wildcard, and which it has
// not spoken of by the time that it has told everything: it was not told that this is held,
// and so does not say that it is gone.
func (c *Cache) restoredUnconfirmed(t *table) (names []string) {
	if !xds.FullState(t.url) {
		return nil
	}
	for name, e := range t.All() {
		if e.RestoredAfterAnswer() {
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
	shown, knowledge := t.ShowRestored()
	if !shown {
		return
	}
	ch := newChanges(t)
	ch.all = knowledge
	for name, e := range t.All() {
		if e.Restored() {
			ch.add(name, e.Current())
		}
	}
	c.revision++
	c.notify(ch)
}

// Restored counts what was restored and that no source has spoken of since.
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
