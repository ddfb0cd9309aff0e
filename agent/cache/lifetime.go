package cache

import (
	"container/heap"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A TTL is a deadline, fixed when the upstream last sent or refreshed the resource
// (design.md I8). The cache enforces it: what has expired is never read.

// expiry is a deadline that a resource had, as Cache.clock tells it. It holds if the
// resource still has it.
type expiry struct {
	at    time.Duration
	table *table
	name  string
}

// expiries is a heap, the earliest first.
type expiries []expiry

func (x expiries) Len() int           { return len(x) }
func (x expiries) Less(i, j int) bool { return x[i].at < x[j].at }
func (x expiries) Swap(i, j int)      { x[i], x[j] = x[j], x[i] }
func (x *expiries) Push(e any)        { *x = append(*x, e.(expiry)) }
func (x *expiries) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	(*x)[last] = expiry{}
	*x = (*x)[:last]
	return e
}

// expires notes the deadline of a resource that was just taken in or refreshed.
func (c *Cache) expires(r *xds.Resource) {
	if r.Deadline().IsZero() {
		return
	}
	t := c.table(r.Type)
	t.hadTTL = true
	if len(c.expiries) > 64+4*c.resources {
		c.dropStaleExpiries()
	}
	at := r.Deadline().Sub(c.began)
	heap.Push(&c.expiries, expiry{at, t, r.Name})
	if c.expiries[0].at == at {
		c.poke()
	}
}

// dropStaleExpiries takes out what heartbeats have put off since.
func (c *Cache) dropStaleExpiries() {
	kept := c.expiries[:0]
	for _, x := range c.expiries {
		if c.holds(x) {
			kept = append(kept, x)
		}
	}
	c.expiries = kept
	heap.Init(&c.expiries)
}

// holds reports whether a deadline is still that of the resource.
func (c *Cache) holds(x expiry) bool {
	e := x.table.entries[x.name]
	return e != nil && !e.res.Deadline().IsZero() && e.res.Deadline().Sub(c.began) == x.at
}

// lifetime returns a resource with the TTL that its type is held to: under the
// policy "hold" none.
func (c *Cache) lifetime(r *xds.Resource) *xds.Resource {
	if r.TTL() == 0 || !c.cfg.HoldTTL[r.Type] {
		return r
	}
	return r.WithLifetime(0, time.Time{})
}

// sameLifetime returns a content with the TTL of another of the same name: the
// lifetime is the resource's, whichever version of it is served.
func sameLifetime(r, as *xds.Resource) *xds.Resource {
	if r.TTL() == as.TTL() && r.Deadline().Equal(as.Deadline()) {
		return r
	}
	return r.WithLifetime(as.TTL(), as.Deadline())
}

// expire drops what has outlived its deadline and returns when the next one does;
// the zero time for none.
func (c *Cache) expire(now time.Time) (next time.Time) {
	changed := make(map[string]*changes)
	for len(c.expiries) > 0 {
		if at := c.began.Add(c.expiries[0].at); at.After(now) {
			next = at
			break
		}
		x := heap.Pop(&c.expiries).(expiry)
		if !c.holds(x) {
			continue
		}
		t := x.table
		t.expired++
		if !xds.Info(t.url).RemoveExpired {
			c.drop(t, x.name)
			continue
		}
		ch := changed[t.url]
		if ch == nil {
			ch = newChanges(t)
			changed[t.url] = ch
		}
		c.remove(t, x.name, ch)
	}
	if len(changed) > 0 {
		c.revision++
		for _, ch := range changed {
			c.notify(ch)
		}
	}
	return next
}
