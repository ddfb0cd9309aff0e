package cache

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Guard configures how removals are held back.
type Guard = guard.Config

// removeAll removes what an update says to be removed, after what it puts was taken in, or makes it
// wait; held is how many resources there were before.
func (c *Cache) removeAll(t *table, u xds.Update, held int, ch *changes) {
	names := c.removals(t, u)
	if c.guard.Active() {
		replaced := c.replaced(t, names, u.Resources)
		for name := range replaced {
			c.remove(t, name, ch)
			held--
		}
		names = slices.DeleteFunc(names, func(name string) bool { _, gone := replaced[name]; return gone })
		names = c.filterRemovals(t, guard.Removal{Names: names, Held: held, RequestedAt: u.RequestedAt, WithOthers: len(u.Resources) > 0})
	}
	for _, name := range names {
		c.remove(t, name, ch)
	}
	if u.Complete {
		// From now on absence itself says that a name of the wildcard is gone.
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
			e.Confirm() // its source has told all it has
		}
		names = append(names, name)
	}
	return names
}

// replaced returns which of the names that go, or whose removal is held back, have lost their place
// to a resource that was put: a listener whose address another has now, a scope whose key. Beside
// that they cannot stay, since Envoy would refuse it, so that it is no accident that they go.
func (c *Cache) replaced(t *table, removed []string, put []*xds.Resource) map[string]struct{} {
	taken := make(map[string]struct{})
	for _, r := range put {
		for _, place := range xds.ConflictKeys(r) {
			taken[place] = struct{}{}
		}
	}
	if len(taken) == 0 {
		return nil
	}
	replaced := make(map[string]struct{})
	look := func(name string) {
		if r := t.Resource(name); r != nil && slices.ContainsFunc(xds.ConflictKeys(r), func(place string) bool { _, ok := taken[place]; return ok }) {
			replaced[name] = struct{}{}
		}
	}
	for _, name := range removed {
		look(name)
	}
	for name := range c.guard.Names(t.url) {
		look(name)
	}
	return replaced
}

// filterRemovals returns which removals of a type take effect now, and makes the others wait.
func (c *Cache) filterRemovals(t *table, r guard.Removal) (now []string) {
	r.Type, r.Has = t.url, func(name string) bool { return t.Entry(name) != nil }
	now = c.guard.Filter(r)
	if n, worth := c.guard.Reports(t.url); worth && c.cfg.OnHeldBack != nil {
		c.cfg.OnHeldBack(t.url, n, t.Len())
	}
	if len(now) < len(r.Names) {
		c.wakeRun()
	}
	return now
}

// AskAgain returns since when sources are to be asked anew, as if nothing had been asked
// before, what there is: the zero time for no need to. A source that has asked since is
// done. Subscriptions.Changed gets a value when it changes.
func (c *Cache) AskAgain() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.guard.AskAgain()
}

// endAccident ends the time in which removals are held back, if all are confirmed or are there again.
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
			c.updateLRU(t, name, e) // what nobody wants may be evicted again
		}
	}
	c.wakeRun()
	if c.cfg.OnHeldBackEnd != nil {
		c.cfg.OnHeldBackEnd(confirmed)
	}
}

// runGuard removes what has waited for long enough, and what a source that told
// all it has did not confirm for long enough; and it makes the sources be asked again
// for what is held back. It returns when there is more to do; the zero time for never.
func (c *Cache) runGuard(now time.Time) time.Time {
	c.endAccident(now) // a TTL may have ended it, or nobody wants it any more
	ask, due, next := c.guard.Run(now)
	if ask {
		c.union.Wake()
		if c.cfg.OnAskAgain != nil {
			c.cfg.OnAskAgain()
		}
		c.endAccident(now)
	}
	for _, t := range c.tables {
		names := due[t.url]
		switch at := t.pruneAt; {
		case at.IsZero():
		case at.After(now):
			next = earliest(next, at)
		default:
			t.pruneAt = time.Time{}
			names = append(names, c.unconfirmed(t)...)
		}
		c.removeNow(t, names)
	}
	return next
}

// unconfirmed lists what the source that last told all it has did not give, and whose removal does
// not wait.
func (c *Cache) unconfirmed(t *table) (names []string) {
	from := c.sources.id(t.completeFrom)
	for name, e := range t.All() {
		if waits, _ := c.guard.Deferred(t.key(name)); e.Source() != from && !e.KeepUnsubscribed() && !waits {
			names = append(names, name)
		}
	}
	return names
}

// removeNow removes names, beside an update.
func (c *Cache) removeNow(t *table, names []string) {
	if len(names) == 0 {
		return
	}
	ch := newChanges(t)
	for _, name := range names {
		c.remove(t, name, ch)
	}
	c.revision++
	c.notify(ch)
}

// finishRestoreGuard takes in that all that was on disk was read. removed is what was there, and of
// which a source has said before that it does not exist: that is held back like any other removal.
func (c *Cache) finishRestoreGuard(removed map[*table][]string) {
	c.guard.FinishRestore(func(k xds.Key) bool { return c.table(k.Type).Entry(k.Name) != nil })
	for t, names := range removed {
		c.removeNow(t, c.filterRemovals(t, guard.Removal{Names: names, Held: t.Len()}))
	}
	c.endAccident(time.Now())
}

// confirmAll takes in that a source has told all it has of a type. What it issued
// itself and was asked about with its own version, it confirms by saying nothing of
// it; the rest is pruned in time, if at all.
func (c *Cache) confirmAll(t *table, source string) {
	from := c.sources.id(source)
	for _, e := range t.All() {
		if e.Source() == from {
			e.Confirm()
		}
	}
}

// noteComplete notes which source last told all it has of a type.
func (c *Cache) noteComplete(t *table, source string) {
	t.completeFrom = source
	if c.cfg.Guard.PruneAfter > 0 && xds.FullState(t.url) {
		t.pruneAt = time.Now().Add(c.cfg.Guard.PruneAfter)
		c.wakeRun()
	}
}

// EndStale ends that anything is withheld from who came when what is held was too old:
// a source has confirmed it since.
func (c *Cache) EndStale() {
	c.mu.Lock()
	defer c.mu.Unlock()
	withheld := false
	for w := range c.watches {
		withheld = withheld || w.tooStale
		w.tooStale = false
	}
	if withheld {
		c.notifyAll()
	}
}

// notifyAll makes every watch look at everything.
func (c *Cache) notifyAll() {
	c.revision++
	for _, t := range c.tables {
		ch := newChanges(t)
		ch.all = true
		for name, e := range t.All() {
			ch.add(name, e.Current())
		}
		for name := range t.removed {
			ch.add(name)
		}
		c.notify(ch)
	}
}
