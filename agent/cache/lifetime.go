package cache

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A TTL is a deadline, fixed when the upstream last sent or refreshed the resource
// (design.md I8). The cache enforces it: what has expired is never read.

// trackDeadline notes the deadline of a resource that was just taken in or refreshed.
func (c *Cache) trackDeadline(r *xds.Resource) {
	if r.Deadline().IsZero() {
		return
	}
	c.table(r.Type).hadTTL = true
	if c.deadlines.Add(xds.Key{Type: r.Type, Name: r.Name}, r.Deadline(), c.contents.Resources()) {
		c.wakeRun()
	}
}

// lifetimeChanged follows another lifetime of what is held: clients that enforce it must hear of it.
func (c *Cache) lifetimeChanged(e *entry, ch *changes) {
	c.trackDeadline(e.Current())
	ch.add(e.Current().Name, e.Current())
}

// deadline returns that of a resource; the zero time for none.
func (c *Cache) deadline(k xds.Key) time.Time {
	if r := c.table(k.Type).Resource(k.Name); r != nil {
		return r.Deadline()
	}
	return time.Time{}
}

// applyTTLPolicy returns a resource with the TTL that its type is held to: under the
// policy "hold" none.
func (c *Cache) applyTTLPolicy(r *xds.Resource) *xds.Resource {
	if r.TTL() == 0 || !c.cfg.HoldTTL[r.Type] {
		return r
	}
	return r.WithLifetime(0, time.Time{})
}

// dropExpired drops what has outlived its deadline and returns when the next one does;
// the zero time for none.
func (c *Cache) dropExpired(now time.Time) (next time.Time) {
	changed := make(map[string]*changes)
	for {
		k, at, ok := c.deadlines.Pop(now)
		if !ok {
			next = at
			break
		}
		t := c.table(k.Type)
		t.expired++
		if !xds.Info(t.url).RemoveExpired {
			c.drop(t, k.Name)
			continue
		}
		ch := changed[t.url]
		if ch == nil {
			ch = newChanges(t)
			changed[t.url] = ch
		}
		c.remove(t, k.Name, ch)
	}
	if len(changed) > 0 {
		c.revision++
		for _, ch := range changed {
			c.notify(ch)
		}
	}
	return next
}
