package main

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// endpointNet is the first byte of the addresses of endpoints that change. The others are the number of the
// change that made the endpoint: a proxy sees in the endpoints of a service up to which change it has them.
const endpointNet = 10

// maxChanges is how many changes a log has at most.
const maxChanges = 1 << 20

// changes are the changes of endpoints, by number from 1 on. Proxies of which a change is expected report that
// they have ACKed it. Its methods may be called by several goroutines at once.
type changes struct {
	began time.Time
	// audience is the number of proxies that see a service. It does not change.
	audience []int

	count atomic.Uint32
	// written, waiting and last are of each change: when it was written, in nanoseconds since began, how many proxies
	// have not ACKed it, and when the last one did.
	written, last []atomic.Int64
	waiting       []atomic.Int32
	outstanding   atomic.Int64 // the sum of waiting

	// ids are the changes of each service that proxies are expected to have, in order.
	ids []struct {
		sync.RWMutex
		of []uint32
	}
}

func newChanges(services int) *changes {
	c := &changes{began: time.Now(), audience: make([]int, services), written: make([]atomic.Int64, maxChanges), last: make([]atomic.Int64, maxChanges), waiting: make([]atomic.Int32, maxChanges)}
	c.ids = make([]struct {
		sync.RWMutex
		of []uint32
	}, services)
	return c
}

// add notes a change of a service, just before it is written, and returns its number. Without expected, no
// proxy is waited for.
func (c *changes) add(service int, expected bool) uint32 {
	id := c.count.Add(1)
	if id >= maxChanges {
		panic("too many changes for one run")
	}
	if !expected {
		return id
	}
	audience := c.audience[service]
	c.waiting[id].Store(int32(audience))
	c.outstanding.Add(int64(audience))
	c.written[id].Store(int64(time.Since(c.began)))
	ids := &c.ids[service]
	ids.Lock()
	ids.of = append(ids.of, id)
	ids.Unlock()
	return id
}

// acked notes that a proxy has ACKed the changes of a service after one and up to another, and appends the
// seconds that each took.
func (c *changes) acked(service int, after, upTo uint32, took []float64) []float64 {
	now := int64(time.Since(c.began))
	ids := &c.ids[service]
	ids.RLock()
	from, _ := slices.BinarySearch(ids.of, after+1)
	to, _ := slices.BinarySearch(ids.of, upTo+1)
	span := ids.of[from:to]
	ids.RUnlock()
	for _, id := range span {
		took = append(took, time.Duration(now-c.written[id].Load()).Seconds())
		for {
			last := c.last[id].Load()
			if last >= now || c.last[id].CompareAndSwap(last, now) {
				break
			}
		}
		c.waiting[id].Add(-1)
		c.outstanding.Add(-1)
	}
	return took
}

// toLast returns the seconds that the changes after one took until the last proxy had them.
func (c *changes) toLast(after uint32) (took []float64) {
	for id := after + 1; id <= c.count.Load(); id++ {
		if last := c.last[id].Load(); last > 0 {
			took = append(took, time.Duration(last-c.written[id].Load()).Seconds())
		}
	}
	return took
}

// latest returns the last change of a service that proxies are expected to have; 0 for none.
func (c *changes) latest(service int) uint32 {
	ids := &c.ids[service]
	ids.RLock()
	defer ids.RUnlock()
	if len(ids.of) == 0 {
		return 0
	}
	return ids.of[len(ids.of)-1]
}

// settle forgets which changes proxies are expected to have: those that connect without anything get them with
// their first endpoints.
func (c *changes) settle() {
	for i := range c.ids {
		c.ids[i].Lock()
		c.ids[i].of = nil
		c.ids[i].Unlock()
	}
}
