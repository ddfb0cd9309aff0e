package cache

import (
	"github.com/holdfast-xds/holdfast/agent/cache/change"
	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// ChangeKind says what happened to a resource.
type ChangeKind = change.Kind

// The kinds of changes (package change).
const (
	ResourceAdded    = change.Added
	ResourceChanged  = change.Changed
	ResourceRemoved  = change.Removed
	ResourceExpired  = change.Expired
	ResourceACKed    = change.ACKed
	ResourceWithheld = change.Withheld
)

// obey does what the guard wants to be done.
func (c *Cache) obey(e *state.Event, o guard.Orders) {
	for _, r := range o.Put {
		t := c.state.Table(r.Type)
		if entry := t.Entry(r.Name); entry != nil {
			_ = c.changer.Put(e, t, contents.Origin{Source: entry.Source(), KeepUnsubscribed: entry.KeepUnsubscribed}, r)
		}
	}
	c.guard.Done(o)
	for _, k := range o.Remove {
		c.changer.Remove(e, c.state.Table(k.Type), k.Name, false)
	}
}

// watched has what has changed of one type since a watch was read.
type watched struct {
	*subscriptions.Subscribed
	dirty map[string]struct{}
	all   bool
	// repeated are the names of what came again, and that a client needs again.
	repeated map[string]struct{}
}

// finish ends an event beside an answer of a source; nil for one that has not happened.
func (c *Cache) finish(e *state.Event) {
	if e == nil {
		return
	}
	c.nacks.Settle(e)
	if e.Any() {
		c.revision++
		c.notifyAll(e)
	}
}

// notifyAll notifies the watches of what an event changes.
func (c *Cache) notifyAll(e *state.Event) {
	for ch := range e.All {
		c.notify(ch)
	}
}

// notify adds the changed names to the watches that subscribe to them, and returns those watches.
func (c *Cache) notify(ch *state.Changes) []*Watch {
	if ch.Len() == 0 && !ch.All {
		return nil
	}
	var concerned []*Watch
	for w := range c.watches {
		wt := w.types[ch.Table.URL]
		if wt == nil {
			continue
		}
		if wt.noteChanged(ch) {
			concerned = append(concerned, w)
		} else if !wt.all {
			continue
		}
		wake.Signal(w.changed)
	}
	return concerned
}

// repeated tells the watches of resources that came again and that clients need again although nothing has changed.
func (c *Cache) repeated(t *state.Table, names []string) {
	if len(names) == 0 {
		return
	}
	for w := range c.watches {
		wt := w.types[t.URL]
		if wt == nil {
			continue
		}
		for _, name := range names {
			if wt.Has(name) || wt.Wildcard() {
				if wt.repeated == nil {
					wt.repeated = make(map[string]struct{})
				}
				wt.repeated[name] = struct{}{}
			}
		}
		if len(wt.repeated) > 0 {
			wake.Signal(w.changed)
		}
	}
}

// endFallback ends the fallback and serves the newest contents of the suspects.
func (c *Cache) endFallback(why string) {
	e := state.NewEvent()
	c.changer.Around(e, c.fallback.Names(), func() { c.fallback.Finish(why) })
	c.finish(e)
	c.state.Wake()
}

// serveRestored serves the restored resources of one type.
func (c *Cache) serveRestored(t *state.Table) {
	shown, knowledge := t.ShowRestored()
	if !shown {
		return
	}
	ch := &state.Changes{Table: t, All: knowledge}
	for name, e := range t.All() {
		if e.Restored() {
			ch.Add(name, e.Current())
		}
	}
	c.revision++
	c.notify(ch)
}

// subscriptionChanged is called when a name becomes subscribed to or is not any more.
func (c *Cache) subscriptionChanged(t *state.Table, name string) {
	c.state.PersistFact(state.SubscribedFact, t.Key(name))
	if c.guard.Holding() {
		c.state.Wake() // the removal of a name without a subscription cannot be confirmed
	}
	switch subscribed := t.Names.Has(name); {
	case subscribed:
	case name == xds.Wildcard:
		t.Errors.DeleteWhere(func(n string) bool { return n != "" && t.Entry(n) == nil && !t.Names.Has(n) })
	case t.Entry(name) == nil && !t.Names.Has(xds.Wildcard):
		t.Errors.Delete(name) // it concerns no client any more
	}
	if name != xds.Wildcard {
		t.ForgetNotFound(name)
	}
	c.unreferenced.Subscribed(t, name)
}

// noteChanged adds the changed names that are subscribed to, and reports whether there are any.
func (wt *watched) noteChanged(ch *state.Changes) bool {
	if wt.Wildcard() {
		wt.all = wt.all || ch.All
		if ch.All && wt.Len() == 0 && !xds.Info(ch.Table.URL).OnDemand {
			return ch.Len() > 0 // the view reads all resources, so it needs no names
		}
		for name := range ch.Each {
			wt.dirty[name] = struct{}{}
		}
		return ch.Len() > 0
	}
	hit := false
	found := func(name, resource string) {
		wt.dirty[name] = struct{}{}
		// A resource that is subscribed to by an alias is cached under its own name.
		wt.dirty[resource] = struct{}{}
		hit = true
	}
	if wt.Len() < ch.Len() {
		for name := range wt.Names() {
			if resource, ok := ch.Lookup(name); ok {
				found(name, resource)
			}
		}
	} else {
		for name, resource := range ch.Each {
			if wt.Has(name) {
				found(name, resource)
			}
		}
	}
	if wt.Collections() {
		for name := range ch.Each {
			if wt.Has(xds.CollectionOf(name)) {
				wt.dirty[name] = struct{}{}
				hit = true
			}
		}
	}
	return hit
}

// run calls the functions that were collected under the lock; it is called without it.
func run(calls []func()) {
	for _, call := range calls {
		call()
	}
}
