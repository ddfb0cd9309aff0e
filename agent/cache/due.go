package cache

import (
	"context"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Run ends leases, TTLs, deferrals and fallbacks when they are due, until ctx ends.
func (c *Cache) Run(ctx context.Context) error {
	wake.Loop(ctx, c.wake, func() time.Time {
		c.mu.Lock()
		now := time.Now()
		next := wake.Earliest(c.expireLeases(now), c.dropExpired(now), c.stable.Tick(now), c.runGuard(now), c.expireFallback(now), c.offerAgain())
		c.mu.Unlock()
		if c.cfg.OnIdle != nil && c.Idle() {
			c.cfg.OnIdle()
		}
		return next
	})
	return nil
}

// expireLeases ends the leases, and the uncertainty about disconnected clients, that are due, and
// returns when the next is; the zero time for none. Without an upstream none ends (I11). Nor does
// one end while removals are held back or something is frozen: an Envoy that restarts needs what the
// resources that are held back refer to.
func (c *Cache) expireLeases(now time.Time) (next time.Time) {
	if c.connected.IsZero() || c.guard.Holding() || c.freezer.Order() != nil {
		return time.Time{}
	}
	next = wake.Earliest(c.state.Union.Expire(now), c.uncertain.Expire(now))
	c.forgetTypes()
	return next
}

// forgetTypes forgets the types that this build does not know, of which nothing is cached and that nobody subscribes to any more:
// clients may name any number of them.
func (c *Cache) forgetTypes() {
	known := xds.Types()
	for url, t := range c.state.Tables() {
		if slices.Contains(known, url) || t.Len() > 0 || c.pending.Of(url).Newest() != nil || c.freezer.Count(url) > 0 || c.uncertain.Count(url) > 0 {
			continue
		}
		if !c.state.Union.Since(url).IsZero() || !c.state.Forget(url) {
			continue
		}
		delete(c.pending, url)
		delete(c.rejectedFrom, url)
		c.state.PersistFact(state.KnownFact, xds.Key{Type: url})
	}
}

// dropExpired removes the resources whose TTL has ended, and returns when the next one ends; the
// zero time for none.
func (c *Cache) dropExpired(now time.Time) (next time.Time) {
	var e *state.Event
	for {
		k, next, ok := c.expiry.Pop(now)
		if !ok {
			c.finish(e)
			return next
		}
		if e == nil {
			e = state.NewEvent()
		}
		c.changer.Expire(e, c.state.Table(k.Type), k.Name)
	}
}

// expireFallback ends the fallback when its time is over, and returns when that will be; the zero
// time for never.
func (c *Cache) expireFallback(now time.Time) (next time.Time) {
	over, next := c.fallback.Due(now)
	if over {
		c.endFallback("--fallback-for is over")
	}
	return next
}

// runGuard does what the guard wants to be done, and returns when more is due; the zero time for never.
func (c *Cache) runGuard(now time.Time) (next time.Time) {
	e := state.NewEvent()
	orders, next := c.guard.Tick(now)
	c.obey(e, orders)
	c.obey(e, c.guard.Undo())
	reported := c.guard.Ticked(now)
	c.finish(e)
	return wake.Earliest(next, reported)
}

// offerAgain offers to clients again what they NACKed, where that is due, and returns when more is; the zero time for never.
func (c *Cache) offerAgain() (next time.Time) {
	e := state.NewEvent()
	next = c.nacks.Tick(e)
	c.finish(e)
	return next
}
