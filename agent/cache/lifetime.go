package cache

import (
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A TTL is a deadline, fixed when the upstream last sent or refreshed the resource
// (design.md I8). The cache enforces it: an expired resource is never read.

// trackDeadline adds the deadline of a resource that was just put or refreshed.
func (c *Cache) trackDeadline(r *xds.Resource) {
	if r.Deadline().IsZero() {
		return
	}
	c.table(r.Type).hadTTL = true
	if c.deadlines.Add(xds.Key{Type: r.Type, Name: r.Name}, r.Deadline(), c.contents.Resources()) {
		c.wakeRun()
	}
}

// lifetimeChanged handles a new deadline: clients that enforce TTLs must get it.
func (c *Cache) lifetimeChanged(e *entry, ch *changes) {
	c.trackDeadline(e.Current())
	ch.add(e.Current().Name, e.Current())
}

// deadline returns the deadline of a resource; the zero time for none.
func (c *Cache) deadline(k xds.Key) time.Time {
	if r := c.table(k.Type).Resource(k.Name); r != nil {
		return r.Deadline()
	}
	return time.Time{}
}

// applyTTLPolicy returns the resource, without its TTL if the policy of its type is "hold".
func (c *Cache) applyTTLPolicy(r *xds.Resource) *xds.Resource {
	if r.TTL() == 0 || !c.cfg.HoldTTL[r.Type] {
		return r
	}
	return r.WithLifetime(0, time.Time{})
}

// dropExpired removes the resources whose TTL has ended, and returns when the next one ends; the
// zero time for none.
func (c *Cache) dropExpired(now time.Time) (next time.Time) {
	changed := make(changesByType)
	for {
		k, next, ok := c.deadlines.Pop(now)
		if !ok {
			c.notifyAll(changed)
			return next
		}
		t := c.table(k.Type)
		t.expired++
		if xds.Info(t.URL).RemoveExpired {
			c.remove(t, k.Name, changed.of(t))
		} else {
			c.drop(t, k.Name)
		}
	}
}
