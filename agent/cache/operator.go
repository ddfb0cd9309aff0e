package cache

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/rollback"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Guard configures which removals are held back.
type Guard = guard.Config

// Freeze describes what is frozen (package freeze), Waiting how many changes wait, by type.
type (
	Freeze  = freeze.Order
	Waiting = freeze.Waiting
)

// Rollback says what to serve again (package rollback).
type (
	Rollback       = rollback.Rollback
	RolledBack     = rollback.RolledBack
	Change         = rollback.Change
	MissingContent = rollback.MissingContent
)

// ErrFrozen is the error of Freeze if something is frozen, and ErrMissing that of RollBack if something is missing.
var (
	ErrFrozen  = errors.New("it is frozen already")
	ErrMissing = rollback.ErrMissing
)

// Freeze serves what is served now under the frozen names until Unfreeze, whatever the sources send.
// TTLs still end. What the sources remove of other types, and is subscribed to by name, is served on as
// well, because what is frozen may refer to it.
func (c *Cache) Freeze(o Freeze) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freezer.Order() != nil {
		return ErrFrozen
	}
	c.freezer.Begin(&o)
	c.state.Union.Wake() // sources are told
	return nil
}

// Unfreeze ends the freeze, serves what the sources have sent meanwhile, and requests everything from
// them again, so that they get the clients' answers. It reports whether anything was frozen.
func (c *Cache) Unfreeze() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freezer.Order() == nil {
		return false
	}
	e := state.NewEvent()
	c.changer.Around(e, slices.Collect(c.freezer.Pinned()), c.freezer.End)
	c.finish(e)
	c.unreferenced.UpdateAll(false)
	c.requestAgain = e.Now
	c.state.Union.Wake()
	c.state.Wake()
	return true
}

// Frozen returns what is frozen, nil for nothing, and how many changes wait.
func (c *Cache) Frozen() (*Freeze, Waiting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freezer.Order() == nil {
		return nil, nil
	}
	o := *c.freezer.Order()
	o.Types, o.Names = slices.Clone(o.Types), slices.Clone(o.Names)
	return &o, c.freezer.Waiting()
}

// RollBack serves what clients had accepted at a time, and freezes it. What is frozen already stays
// frozen, but the reason is the new one. If something is missing and Partial is not set, it changes nothing
// and returns ErrMissing.
func (c *Cache) RollBack(in Rollback) (RolledBack, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := state.NewEvent()
	pins, out := rollback.Planner{State: c.state, Freezer: c.freezer, Archive: c.archive.Archive}.Plan(in, e.Now)
	switch {
	case len(out.Missing) > 0 && !in.Partial:
		return out, ErrMissing
	case in.DryRun:
		return out, nil
	}
	o := in.Freeze
	o.RolledBack = true
	if was := c.freezer.Order(); was != nil {
		o = was.With(o)
	}
	c.freezer.Begin(&o)
	c.changer.Around(e, slices.Collect(maps.Keys(pins)), func() {
		for k, r := range pins {
			c.freezer.Pin(k, r)
			if r != nil {
				c.expiry.Track(r)
			}
		}
	})
	c.finish(e)
	c.requestAgain = e.Now // the sources are told that what they sent is not served
	c.state.Union.Wake()
	return out, nil
}

// Crashed records that an Envoy that was started at a time has crashed. That Envoy counts as having
// had what the clients had that disconnected since. After the third crash within ten minutes, what
// all three had and what is not stable is held back for Config.FallbackFor, and returned. It
// returns none if nothing is held back: the crashed Envoys had nothing in common, or there is
// nothing stable to serve in its place.
func (c *Cache) Crashed(started time.Time) []xds.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	suspects := c.fallback.Suspected(started)
	if len(suspects) == 0 {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(suspects), state.CompareKeys)
	e := state.NewEvent()
	c.changer.Around(e, names, func() { c.fallback.Begin(suspects) })
	c.finish(e)
	c.state.Wake()
	return names
}

// Fallback describes a fallback after crashes of Envoy.
type Fallback struct {
	Since, Until time.Time
	// Suspects are in push order.
	Suspects []xds.Key
}

// Fallback returns the present fallback; nil for none.
func (c *Cache) Fallback() *Fallback {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fallback.Active() {
		return nil
	}
	since, until := c.fallback.Times()
	return &Fallback{since, until, c.fallback.Names()}
}

// Resume ends the fallback, and reports whether there was one.
func (c *Cache) Resume() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.fallback.Active() {
		return false
	}
	c.endFallback("holdfast resume")
	return true
}

// ReleaseRemovals makes what is held back take effect: an operator confirms it. It reports whether
// anything was.
func (c *Cache) ReleaseRemovals() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	released := c.guard.Release(now)
	if released {
		c.runGuard(now)
		c.guard.Released(now)
	}
	return released
}

// OfferAgain offers to clients again what they NACKed, at once: an operator says so. of reports of a name whether it is meant; dryRun
// changes nothing. It returns the names that are meant, in push order.
func (c *Cache) OfferAgain(of func(xds.Key) bool, dryRun bool) []xds.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := state.NewEvent()
	names := c.nacks.Again(of, dryRun, e.Now)
	for _, k := range c.builds.Again(of, dryRun) {
		t := c.state.Table(k.Type)
		if names = append(names, k); !dryRun {
			e.Changes(t).Add(k.Name, t.Resource(k.Name))
		}
	}
	c.finish(e)
	slices.SortFunc(names, state.CompareKeys)
	return slices.Compact(names)
}
