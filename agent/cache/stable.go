package cache

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// stablePoll is how long there is at least between two looks at what became stable.
const stablePoll = time.Second

// beginProbation notes that the client ACKed what is held under a name. Only a client
// that was sent a content, or says that it has it, can make it stable.
func (w *Watch) beginProbation(t *table, e *entry) {
	wt := w.types[t.url]
	if wt == nil || e.IsLocal() || !xds.Info(t.url).FallBack || e.Acked() == nil || !wt.covers(e.Acked()) {
		return
	}
	if e.IsStable() {
		wt.probation.Interrupt(e.Acked().Name)
	} else if wt.probation.Begin(e.Acked(), w.c.elapsed()) {
		w.c.updateStableBy(time.Now().Add(probation.StableAfter))
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

// interruptProbation notes that the client does not live any longer with what it has under a name.
func (w *Watch) interruptProbation(t *table, name string) {
	if wt := w.types[t.url]; wt != nil {
		wt.probation.Interrupt(name)
	}
}

// keepRemoved keeps the stable content of a name that goes.
func (c *Cache) keepRemoved(t *table, name string, stable *xds.Resource, now time.Time) {
	t.removed[name] = probation.Removal{Resource: stable, At: now}
	c.updateStableBy(now.Add(probation.StableAfter))
}

// takeRemoved returns the stable content that a name had which is put again; nil for none.
func (c *Cache) takeRemoved(t *table, name string) *xds.Resource {
	if len(t.removed) == 0 || t.Entry(name) != nil {
		return nil
	}
	r := t.removed.Stable(name)
	delete(t.removed, name)
	if !xds.Info(t.url).FallBack {
		return nil
	}
	return r
}

// updateStableBy makes updateStable look at a time.
func (c *Cache) updateStableBy(at time.Time) {
	if c.updateStableAt.IsZero() || at.Before(c.updateStableAt) {
		c.updateStableAt = at
		c.wakeRun()
	}
}

// updateStable makes stable what clients have lived with for long enough, and returns when it
// is to look again; the zero time for never.
func (c *Cache) updateStable(now time.Time) (next time.Time) {
	if c.updateStableAt.IsZero() || c.updateStableAt.After(now) {
		return c.updateStableAt
	}
	for w := range c.watches {
		for url, wt := range w.types {
			t := c.tables[url]
			oldest, more := wt.probation.Promote(c.elapsed()-probation.StableAfter, func(r *xds.Resource) { c.makeStable(t, r) })
			if more {
				next = earliest(next, c.began.Add(oldest+probation.StableAfter))
			}
		}
	}
	for _, t := range c.tables {
		next = earliest(next, c.expireRemoved(t, now))
	}
	if soonest := now.Add(stablePoll); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	c.updateStableAt = next
	return next
}

// makeStable makes a content stable that a client has lived with, if it is still the ACKed
// one and is not held back.
func (c *Cache) makeStable(t *table, r *xds.Resource) {
	e := t.Entry(r.Name)
	if e != nil && !c.fallback.HoldsBack(t.key(r.Name)) && e.MakeStable(r.Version) {
		c.persist(t, r.Name)
	}
}

// expireRemoved forgets the former contents that a client has lived without for long
// enough. While there is no client their time does not run.
func (c *Cache) expireRemoved(t *table, now time.Time) (next time.Time) {
	watched := c.watchedSince(t)
	if len(t.removed) == 0 || watched.IsZero() {
		return time.Time{}
	}
	held := func(name string) bool { return c.fallback.HoldsBack(t.key(name)) }
	return t.removed.Expire(now, watched, held, func(name string) { c.persist(t, name) })
}

// watchedSince returns when the client came that has watched a type for longest; the
// zero time for none.
func (c *Cache) watchedSince(t *table) (opened time.Time) {
	for w := range c.watches {
		if w.types[t.url] != nil {
			opened = earliest(opened, w.opened)
		}
	}
	return opened
}
