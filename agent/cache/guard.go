package cache

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Guard configures which removals are held back.
type Guard = guard.Config

// removeAll applies the removals of an update, after its resources were put.
func (c *Cache) removeAll(t *table, u xds.Update, ch *changes) {
	for _, name := range c.guarded(guard.Removal{Type: t.URL, Names: c.removals(t, u), Put: u.Resources, RequestedAt: u.RequestedAt}) {
		c.remove(t, name, ch)
	}
	if u.Complete {
		// From now on a name that is not cached does not exist.
		t.KeepNotFound(t.names.Requested)
		c.noteComplete(t, u.Source)
	}
}

// guarded returns the removals that take effect now.
func (c *Cache) guarded(r guard.Removal) []string {
	if len(r.Names) > 0 && c.guard.Active() {
		c.wakeRun() // some may be deferred
	}
	return c.guard.Remove(r)
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

// report reports removals that are held back, if that is worth it.
func (c *Cache) report(t *table) {
	if n, worth := c.guard.Reports(t.URL); worth && c.cfg.OnHeldBack != nil {
		c.cfg.OnHeldBack(t.URL, n, c.guardTable(t.URL).Had(), c.guard.HeldBackSince(t.URL))
	}
}

// guardTable returns what the guard reads of a type.
func (c *Cache) guardTable(typeURL string) guard.Table {
	t := c.existing(typeURL)
	return guard.Table{Type: t.Type, Names: t.names}
}

// ReleaseRemovals makes what is held back take effect: an operator confirms it. It reports whether
// anything was.
func (c *Cache) ReleaseRemovals() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	released := c.guard.Release(now)
	if released {
		c.runGuard(now)
		c.afterAccident()
		c.updateReport(now)
	}
	return released
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
	defer c.updateReport(now)
	confirmed, ended := c.guard.End(now)
	if !ended {
		return
	}
	c.afterAccident()
	if c.cfg.OnHeldBackEnd != nil {
		c.cfg.OnHeldBackEnd(confirmed)
	}
}

// afterAccident lets unreferenced resources be evicted again.
func (c *Cache) afterAccident() {
	if !c.guard.Holding() {
		for _, t := range c.tables {
			for name, e := range t.All() {
				c.updateLRU(t, name, e)
			}
		}
	}
	c.wakeRun()
}

// runGuard applies the deferred removals that are due, removes what the source that last sent
// everything did not confirm in time, and asks the sources again for what is held back. It returns
// when more is due; the zero time for never.
func (c *Cache) runGuard(now time.Time) time.Time {
	c.endAccident(now) // a TTL or a subscription may have ended
	due := c.guard.Run(now)
	if due.AskAgain {
		c.union.Wake()
		if c.cfg.OnAskAgain != nil {
			c.cfg.OnAskAgain()
		}
		c.endAccident(now)
	}
	next := due.Next
	changed := make(changesByType)
	for _, r := range due.Changed {
		t := c.table(r.Type)
		if e := t.Entry(r.Name); e != nil {
			_ = c.put(t, contents.Origin{Source: e.Source(), KeepUnsubscribed: e.KeepUnsubscribed}, r, changed.of(t))
		}
	}
	for _, t := range c.tables {
		names := due.Removed[t.URL]
		switch at := t.pruneAt; {
		case at.IsZero():
		case at.After(now):
			next = wake.Earliest(next, at)
		default:
			t.pruneAt = time.Time{}
			names = append(names, c.unconfirmed(t)...)
		}
		for _, name := range names {
			c.remove(t, name, changed.of(t))
		}
	}
	c.undoChanged(changed.of)
	for _, typeURL := range []string{xds.EndpointType, xds.RouteType} {
		c.report(c.existing(typeURL))
	}
	c.notifyAll(changed)
	return wake.Earliest(next, c.updateReport(now))
}

// unconfirmed returns the names that the source which last sent everything did not send, and whose
// removal is not deferred.
func (c *Cache) unconfirmed(t *table) (names []string) {
	from := c.sources.id(t.completeFrom)
	for name, e := range t.All() {
		if e.Source() != from && !e.KeepUnsubscribed && !c.guard.Withheld(t.key(name)) {
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
		c.removeNow(t, c.guarded(guard.Removal{Type: t.URL, Names: names}))
		c.report(t)
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

// undoChanged puts what was changed shortly before, and belongs to what is held back since.
func (c *Cache) undoChanged(of func(*table) *changes) {
	for _, u := range c.guard.UndoChanged() {
		t := c.table(u.Former.Type)
		e := t.Entry(u.Former.Name)
		if e == nil {
			continue
		}
		_ = c.put(t, contents.Origin{Source: e.Source(), KeepUnsubscribed: e.KeepUnsubscribed}, u.Former, of(t))
		c.guard.Undone(u)
	}
}

// reportEvery is how often the report is made anew while something is held back: each looks at everything.
const reportEvery = time.Second

// AgentReport returns what a control plane that understands it is told, at most reportEvery old.
// Subscriptions.Changed gets a value when it changes.
func (c *Cache) AgentReport() xds.AgentReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reported
}

// updateReport makes the report anew and wakes the sources if it has changed. It returns when it is to be made
// again; the zero time for when something is held back.
func (c *Cache) updateReport(now time.Time) (next time.Time) {
	var report xds.AgentReport
	if c.guard.Holding() {
		if next = c.reportedAt.Add(reportEvery); len(c.reported.HeldBack) > 0 && next.After(now) {
			return next
		}
		report, c.reportedAt, next = c.guard.Report(slices.SortedFunc(maps.Keys(c.tables), xds.CompareTypes)), now, now.Add(reportEvery)
	}
	if report.String() != c.reported.String() {
		c.reported = report
		c.union.Wake()
	}
	return next
}
