package cache

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Guard configures which removals are held back.
type Guard = guard.Config

// removeAll applies the removals of an update, after its resources were put. held is the number of
// resources before.
func (c *Cache) removeAll(t *table, u xds.Update, held int, ch *changes) {
	names := c.removals(t, u)
	if c.guard.Active() {
		replaced := c.replaced(t, names, u.Resources)
		for name := range replaced {
			c.remove(t, name, ch)
			held--
		}
		names = without(names, func(name string) bool { _, is := replaced[name]; return is })
		names = c.filterRemovals(t, guard.Removal{Names: names, Held: held, RequestedAt: u.RequestedAt, WithOthers: len(u.Resources) > 0})
	}
	for _, name := range names {
		c.remove(t, name, ch)
	}
	if u.Complete {
		// From now on a name that is not cached does not exist.
		t.KeepNotFound(t.names.Requested)
		c.noteComplete(t, u.Source)
	}
}

// removals returns the names that an update removes.
func (c *Cache) removals(t *table, u xds.Update) []string {
	if !u.Complete {
		return u.Removed
	}
	names := slices.Clone(u.Removed)
	from := c.sources.id(u.Source)
	for name, e := range t.NotInUpdate() {
		if e.IsLocal() {
			continue
		}
		if e.Source() == from {
			e.Confirm() // its source was told that it is cached, and has answered
		}
		names = append(names, name)
	}
	return names
}

// replaced returns which of the removed names, and of those whose removal is held back, conflict
// with a resource that was put: a listener whose address another one has now, a scope whose key.
// Envoy would NACK both together, so the removal cannot wait and is no accident.
func (c *Cache) replaced(t *table, removed []string, put []*xds.Resource) map[string]struct{} {
	taken := make(map[string]struct{})
	for _, r := range put {
		for _, key := range xds.ConflictKeys(r) {
			taken[key] = struct{}{}
		}
	}
	if len(taken) == 0 {
		return nil
	}
	isTaken := func(key string) bool { _, is := taken[key]; return is }
	replaced := make(map[string]struct{})
	for _, name := range slices.AppendSeq(slices.Clone(removed), c.guard.Names(t.URL)) {
		if r := t.Resource(name); r != nil && slices.ContainsFunc(xds.ConflictKeys(r), isTaken) {
			replaced[name] = struct{}{}
		}
	}
	return replaced
}

// filterRemovals returns the removals of a type that take effect now, and defers the others.
func (c *Cache) filterRemovals(t *table, r guard.Removal) (now []string) {
	r.Type, r.Has = t.URL, func(name string) bool { return t.Entry(name) != nil }
	now = c.guard.Filter(r)
	if n, worth := c.guard.Reports(t.URL); worth && c.cfg.OnHeldBack != nil {
		c.cfg.OnHeldBack(t.URL, n, t.Len())
	}
	if len(now) < len(r.Names) {
		c.wakeRun()
	}
	return now
}

// RequestAgain returns the time since which every source must have requested everything once more, on a
// new stream; the zero time if none must. Subscriptions.Changed gets a value when it changes.
func (c *Cache) RequestAgain() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.guard.AskAgain(); at.After(c.requestAgain) {
		return at
	}
	return c.requestAgain
}

// endAccident stops holding removals back if all of them are confirmed or their resources are back.
func (c *Cache) endAccident(now time.Time) {
	confirmed, ended := c.guard.End(now, func(k xds.Key) bool {
		t := c.table(k.Type)
		return t.names.Has(xds.Wildcard) || c.isSubscribed(t, k.Name, t.Resource(k.Name))
	})
	if !ended {
		return
	}
	for _, t := range c.tables {
		for name, e := range t.All() {
			c.updateLRU(t, name, e) // unreferenced resources may be evicted again
		}
	}
	c.wakeRun()
	if c.cfg.OnHeldBackEnd != nil {
		c.cfg.OnHeldBackEnd(confirmed)
	}
}

// runGuard applies the deferred removals that are due, removes what the source that last sent
// everything did not confirm in time, and asks the sources again for what is held back. It returns
// when more is due; the zero time for never.
func (c *Cache) runGuard(now time.Time) time.Time {
	c.endAccident(now) // a TTL or a subscription may have ended
	ask, due, next := c.guard.Run(now)
	if ask {
		c.union.Wake()
		if c.cfg.OnAskAgain != nil {
			c.cfg.OnAskAgain()
		}
		c.endAccident(now)
	}
	for _, t := range c.tables {
		names := due[t.URL]
		switch at := t.pruneAt; {
		case at.IsZero():
		case at.After(now):
			next = wake.Earliest(next, at)
		default:
			t.pruneAt = time.Time{}
			names = append(names, c.unconfirmed(t)...)
		}
		c.removeNow(t, names)
	}
	return next
}

// unconfirmed returns the names that the source which last sent everything did not send, and whose
// removal is not deferred.
func (c *Cache) unconfirmed(t *table) (names []string) {
	from := c.sources.id(t.completeFrom)
	for name, e := range t.All() {
		if deferred, _ := c.guard.Deferred(t.key(name)); e.Source() != from && !e.KeepUnsubscribed && !deferred {
			names = append(names, name)
		}
	}
	return names
}

// removeNow removes names and notifies the watches, beside an update.
func (c *Cache) removeNow(t *table, names []string) {
	changed := make(changesByType)
	for _, name := range names {
		c.remove(t, name, changed.of(t))
	}
	c.notifyAll(changed)
}

// finishRestoreGuard is called after everything on disk was restored. removed has the names that a
// source had removed before: these removals may be held back like any other.
func (c *Cache) finishRestoreGuard(removed map[*table][]string) {
	c.guard.FinishRestore(func(k xds.Key) bool { return c.table(k.Type).Entry(k.Name) != nil })
	for t, names := range removed {
		c.removeNow(t, c.filterRemovals(t, guard.Removal{Names: names, Held: t.Len()}))
	}
	c.endAccident(time.Now())
}

// confirmAll records that a source has sent everything of a type. A Delta source confirms the
// versions that it issued itself by not sending them again. The other resources are removed after
// PruneAfter, if at all.
func (c *Cache) confirmAll(t *table, source string) {
	from := c.sources.id(source)
	for _, e := range t.All() {
		if e.Source() == from {
			e.Confirm()
		}
	}
}

// noteComplete records which source last sent everything of a type.
func (c *Cache) noteComplete(t *table, source string) {
	t.completeFrom = source
	if c.cfg.Guard.PruneAfter > 0 && xds.FullState(t.URL) {
		t.pruneAt = time.Now().Add(c.cfg.Guard.PruneAfter)
		c.wakeRun()
	}
}

// EndStale serves the watches that were opened while the cache was too old: a source has answered
// since.
func (c *Cache) EndStale() {
	c.mu.Lock()
	defer c.mu.Unlock()
	stale := false
	for w := range c.watches {
		stale = stale || w.tooStale
		w.tooStale = false
	}
	if !stale {
		return
	}
	changed := make(changesByType)
	for _, t := range c.tables {
		ch := changed.of(t)
		ch.all = true
		for name, e := range t.All() {
			ch.add(name, e.Current())
		}
		for name := range t.removed {
			ch.add(name)
		}
	}
	c.notifyAll(changed)
}
