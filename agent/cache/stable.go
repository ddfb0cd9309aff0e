package cache

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// StableAfter is how long a client must live with a content that it accepted, or with
// the absence of one, for that to count as stable: what crashes an Envoy mostly does so
// at once.
const StableAfter = time.Minute

// stablePoll is how long there is at least between two looks at what became stable.
const stablePoll = time.Second

// former is the stable content of a name that does not exist any more, until its
// absence is stable too.
type former struct {
	res *xds.Resource
	// since is when the name went.
	since time.Time
}

// probation is a content that a client accepted and has not lived with for long enough.
type probation struct {
	res *xds.Resource
	at  time.Duration // when it was accepted, as Cache.clock tells it
}

// onProbation notes that the client accepted what is held under a name. Only a client
// that was sent a content, or says that it has it, can make it stable.
func (w *Watch) onProbation(t *table, e *entry) {
	wt := w.types[t.url]
	if wt == nil || e.local() || !xds.Info(t.url).FallBack || e.Acked() == nil || !wt.covers(e.Acked()) {
		return
	}
	if e.IsStable() {
		delete(wt.since, e.Acked().Name)
		return
	}
	if last, ok := wt.since[e.Acked().Name]; ok && last.res.Version == e.Acked().Version {
		return // it has had it since then
	}
	if wt.since == nil {
		wt.since = make(map[string]probation)
	}
	p := probation{e.Acked(), w.c.clock()}
	wt.since[e.Acked().Name] = p
	wt.probation = append(wt.probation, p)
	if len(wt.probation) == 1 {
		w.c.updateStableBy(time.Now().Add(StableAfter))
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

// ends takes a probation off the list, and reports whether the client had nothing else
// under the name meanwhile.
func (wt *watched) ends(p probation) bool {
	if wt.since[p.res.Name] != p {
		return false
	}
	delete(wt.since, p.res.Name)
	return true
}

// interrupt notes that the client does not live any longer with what it has under a name.
// Should it come back, its minute begins again.
func (w *Watch) interrupt(t *table, name string) {
	if wt := w.types[t.url]; wt != nil {
		delete(wt.since, name)
	}
}

// keepFormer keeps the stable content of a name that goes.
func (c *Cache) keepFormer(t *table, name string, stable *xds.Resource, now time.Time) {
	t.former[name] = former{res: stable, since: now}
	c.updateStableBy(now.Add(StableAfter))
}

// updateStableBy makes judge look at a time.
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
	long := c.clock() - StableAfter
	for w := range c.watches {
		for url, wt := range w.types {
			passed := 0
			for passed < len(wt.probation) && wt.probation[passed].at <= long {
				if p := wt.probation[passed]; wt.ends(p) {
					c.makeStable(c.tables[url], p.res)
				}
				passed++
			}
			if wt.probation = wt.probation[passed:]; len(wt.probation) == 0 {
				wt.probation, wt.since = nil, nil
				continue
			}
			next = earliest(next, c.began.Add(wt.probation[0].at+StableAfter))
		}
	}
	for _, t := range c.tables {
		next = earliest(next, c.forgetFormer(t, now))
	}
	if soonest := now.Add(stablePoll); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	c.updateStableAt = next
	return next
}

// makeStable makes a content stable that a client has lived with, if it is still the accepted
// one and is not held back.
func (c *Cache) makeStable(t *table, r *xds.Resource) {
	e := t.entries[r.Name]
	if e != nil && !c.holdsBack(t, r.Name) && e.MakeStable(r.Version) {
		c.log(t, r.Name)
	}
}

// forgetFormer forgets the former contents that a client has lived without for long
// enough. While there is no client their time does not run.
func (c *Cache) forgetFormer(t *table, now time.Time) (next time.Time) {
	if len(t.former) == 0 {
		return time.Time{}
	}
	opened := c.watchedSince(t)
	if opened.IsZero() {
		return time.Time{}
	}
	for name, f := range t.former {
		if c.holdsBack(t, name) {
			continue
		}
		since := f.since
		if opened.After(since) {
			since = opened
		}
		if at := since.Add(StableAfter); at.After(now) {
			next = earliest(next, at)
			continue
		}
		delete(t.former, name)
		c.log(t, name)
	}
	return next
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
