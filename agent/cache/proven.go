package cache

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// ProvenAfter is how long a client must live with a content that it accepted, or
// with the absence of one, for that to count as proven: what crashes an Envoy
// mostly does so at once.
const ProvenAfter = time.Minute

// former is what proved itself under a name that does not exist any more, until its
// absence has proved itself too.
type former struct {
	res *xds.Resource
	// since is when the name went; trial: its absence is on trial.
	since time.Time
	trial bool
}

// retire keeps what proved itself of a name that goes.
func (t *table) retire(name string, proven *xds.Resource) {
	t.former[name] = former{res: proven, since: time.Now()}
}

// judgeEvery is how long there is between two looks for trials that ended: each is at all
// that is held, which costs less than to remember when each trial ends.
const judgeEvery = time.Second

// try puts what is held under a name, or its absence, on trial from a time on.
func (c *Cache) try(t *table, name string, from time.Time) {
	if e := t.entries[name]; e != nil {
		if e.local() || e.trial || e.good == nil || e.proven != nil && e.proven.Version == e.good.Version {
			return
		}
		e.trial = true
	} else {
		f, ok := t.former[name]
		if !ok || f.trial {
			return
		}
		f.trial = true
		t.former[name] = f
	}
	c.judgeBy(from.Add(ProvenAfter))
}

// judgeBy makes judge look at a time.
func (c *Cache) judgeBy(at time.Time) {
	if c.judgeAt.IsZero() || at.Before(c.judgeAt) {
		c.judgeAt = at
		c.poke()
	}
}

// judge ends the trials whose time has come and returns when it is to look again; the
// zero time for never. Proven is what a client of the type has lived with since. While
// nobody is there to live with it a trial goes on, and the next client that comes makes
// judge look again.
func (c *Cache) judge(now time.Time) (next time.Time) {
	if c.judgeAt.IsZero() || c.judgeAt.After(now) {
		return c.judgeAt
	}
	for _, t := range c.tables {
		opened := c.livesSince(t)
		if opened.IsZero() {
			continue
		}
		proven := func(since time.Time) bool {
			if opened.After(since) {
				since = opened
			}
			at := since.Add(ProvenAfter)
			if at.After(now) {
				next = earliest(next, at)
				return false
			}
			return true
		}
		for name, e := range t.entries {
			if e.trial && proven(c.began.Add(e.acceptedAt)) {
				e.trial, e.proven = false, e.good
				c.log(t, name)
			}
		}
		for name, f := range t.former {
			if f.trial && proven(f.since) {
				delete(t.former, name)
				c.log(t, name)
			}
		}
	}
	if soonest := now.Add(judgeEvery); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	c.judgeAt = next
	return next
}

// livesSince returns when the client came that has lived with a type for longest; the zero
// time for none.
func (c *Cache) livesSince(t *table) (opened time.Time) {
	for w := range c.watches {
		if w.types[t.url] != nil {
			opened = earliest(opened, w.opened)
		}
	}
	return opened
}

// FallBack serves what proved itself instead of what is accepted: new content made
// a client crash again and again. Endpoints are served as they are, because old
// ones lead nowhere. It ends when the upstream changes any of what is suspected,
// which it returns. None says that there is nothing to fall back from, or to: an
// Envoy that lived with nothing yet is better served with what there is.
func (c *Cache) FallBack() (suspected []Fact) {
	c.mu.Lock()
	defer c.mu.Unlock()
	suspects := make(map[key]string)
	proven := make(map[string]bool)
	for _, t := range c.tables {
		if t.url == xds.EndpointType {
			continue
		}
		for name, e := range t.entries {
			if e.local() {
				continue
			}
			proven[t.url] = proven[t.url] || e.proven != nil
			if e.proven == nil || e.proven.Version != e.res.Version {
				suspects[key{t.url, name}] = e.res.Version
			}
		}
		for name := range t.former {
			proven[t.url] = true
			suspects[key{t.url, name}] = ""
		}
	}
	if len(suspects) == 0 || !proven[xds.ClusterType] && !proven[xds.ListenerType] {
		return nil
	}
	c.suspects = suspects
	for k := range suspects {
		suspected = append(suspected, Fact{Type: k.typeURL, Name: k.name})
	}
	c.turn()
	return suspected
}

// FallenBack reports whether what proved itself is served instead of what is
// accepted.
func (c *Cache) FallenBack() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.suspects != nil
}

// cleared takes in that the upstream changed something; if it was suspected, the
// new state gets a chance.
func (c *Cache) cleared(t *table, name string) {
	version, ok := c.suspects[key{t.url, name}]
	if !ok {
		return
	}
	if e := t.entries[name]; e != nil && e.res.Version == version || e == nil && version == "" {
		return // the same again
	}
	c.suspects = nil
	c.turn()
}

// turn makes every watch look at everything.
func (c *Cache) turn() {
	c.revision++
	for _, t := range c.tables {
		ch := newChanges(t)
		ch.all = true
		for name, e := range t.entries {
			ch.add(name, e.res)
		}
		for name := range t.former {
			ch.add(name)
		}
		c.notify(ch)
	}
}

// served returns what of an entry is served, which may be nothing.
func (c *Cache) served(t *table, e *entry) xds.Item {
	switch {
	case e.restored && t.sealed:
		return xds.Item{}
	case c.suspects != nil && t.url != xds.EndpointType && !e.local():
		return xds.Item{Current: e.proven, Good: e.proven, Standing: xds.Accepted}
	}
	return e.item()
}

// formerly returns what is served of a name that does not exist any more.
func (c *Cache) formerly(t *table, name string) xds.Item {
	if c.suspects == nil || t.url == xds.EndpointType {
		return xds.Item{}
	}
	if f, ok := t.former[name]; ok {
		return xds.Item{Current: f.res, Good: f.res, Standing: xds.Accepted}
	}
	return xds.Item{}
}
