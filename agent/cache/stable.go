package cache

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// stablePoll is the minimum time between two calls of updateStable that do something.
const stablePoll = time.Second

// beginProbation records that the client ACKed a content. Only a client that was sent a content, or
// says that it has it, can make it stable. The name may have no resource any more: if the resource
// comes back before the client is sent its removal, the client has used it all the time.
func (w *Watch) beginProbation(t *table, r *xds.Resource, now time.Time) {
	wt, e := w.types[t.URL], t.Entry(r.Name)
	if wt == nil || e != nil && e.IsLocal() || !xds.Info(t.URL).FallBack || !wt.covers(r) {
		return
	}
	if e != nil && e.IsStable() {
		wt.probation.Interrupt(r.Name)
	} else if wt.probation.Begin(r, now.Sub(w.c.began)) {
		w.c.updateStableBy(now.Add(probation.StableAfter))
	}
}

// covers reports whether the watch subscribes to a resource.
func (wt *watched) covers(r *xds.Resource) bool {
	has := func(name string) bool {
		_, ok := wt.names[name]
		return ok
	}
	return wt.wildcard || has(r.Name) || slices.ContainsFunc(r.Aliases(), has) || wt.collections > 0 && has(xds.CollectionOf(r.Name))
}

// interruptProbation records that the client does not use the content of a name any more.
func (w *Watch) interruptProbation(t *table, name string) {
	if wt := w.types[t.URL]; wt != nil {
		wt.probation.Interrupt(name)
	}
}

// keepRemoved keeps the stable content of a name that is removed.
func (c *Cache) keepRemoved(t *table, name string, stable *xds.Resource, now time.Time) {
	t.removed[name] = probation.Removal{Resource: stable, At: now}
	c.updateStableBy(now.Add(probation.StableAfter))
}

// takeRemoved returns the stable content of a removed name that is put again; nil for none.
func (c *Cache) takeRemoved(t *table, name string) *xds.Resource {
	if len(t.removed) == 0 || t.Entry(name) != nil {
		return nil
	}
	r := t.removed.Stable(name)
	delete(t.removed, name)
	if !xds.Info(t.URL).FallBack {
		return nil
	}
	return r
}

// updateStableBy makes Run call updateStable at a time.
func (c *Cache) updateStableBy(at time.Time) {
	if c.updateStableAt.IsZero() || at.Before(c.updateStableAt) {
		c.updateStableAt = at
		c.wakeRun()
	}
}

// updateStable makes the contents stable that clients have used for long enough, and returns when
// it must be called again; the zero time for never.
func (c *Cache) updateStable(now time.Time) (next time.Time) {
	if c.updateStableAt.IsZero() || c.updateStableAt.After(now) {
		return c.updateStableAt
	}
	for w := range c.watches {
		for url, wt := range w.types {
			t := c.tables[url]
			oldest, more := wt.probation.Promote(time.Since(c.began)-probation.StableAfter, func(r *xds.Resource) { c.makeStable(t, r) })
			if more {
				next = wake.Earliest(next, c.began.Add(oldest+probation.StableAfter))
			}
		}
	}
	for _, t := range c.tables {
		next = wake.Earliest(next, c.expireRemoved(t, now))
	}
	if soonest := now.Add(stablePoll); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	c.updateStableAt = next
	return next
}

// makeStable makes a content stable if it is still the ACKed one and is not held back.
func (c *Cache) makeStable(t *table, r *xds.Resource) {
	e := t.Entry(r.Name)
	if e != nil && !c.fallback.HoldsBack(t.key(r.Name)) && e.MakeStable(r.Version) {
		c.persist(t, r.Name)
	}
}

// expireRemoved deletes the stable contents of the removed names that a client has done without for
// long enough. Without a client their time does not pass.
func (c *Cache) expireRemoved(t *table, now time.Time) (next time.Time) {
	watched := c.watchedSince(t)
	if len(t.removed) == 0 || watched.IsZero() {
		return time.Time{}
	}
	held := func(name string) bool { return c.fallback.HoldsBack(t.key(name)) }
	return t.removed.Expire(now, watched, held, func(name string) { c.persist(t, name) })
}

// watchedSince returns when the first of the present watches of a type was opened; the zero time
// for none.
func (c *Cache) watchedSince(t *table) (opened time.Time) {
	for w := range c.watches {
		if w.types[t.URL] != nil {
			opened = wake.Earliest(opened, w.opened)
		}
	}
	return opened
}
