package cache

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/guard"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Apply applies one update atomically. answer, which may be nil, is called with the clients'
// answer: nil for an ACK, when every watch that the update concerned has processed it, or an error
// for a NACK, with the reason of the first client that sent one. An update that concerns no watch is
// ACKed at once; if a client that comes later NACKs it, answer is called once more, with that NACK. If
// everything of the newest update that clients NACKed is accepted later, answer is called once more, with nil. It
// is called without the cache's lock, by Apply or by a method of a Watch.
//
// The steps of an update, each of which relies on those before:
//
//  1. names that the agent itself makes are taken out of the update (state);
//  2. the update is rejected as a whole if it goes beyond the limits (contents);
//  3. restored resources may be served, because a source has answered the type;
//  4. the resources are put, but for those that the guard holds back (change);
//  5. removals take effect or are deferred, and so are changes that belong to them (guard), and heartbeats renew TTLs;
//  6. errors are recorded, and the knowledge of the wildcard advances;
//  7. the watches that subscribe to what changed are notified, and their answer is awaited
//     (pending).
func (c *Cache) Apply(u xds.Update, answer func(nack error)) {
	c.ApplyTraced(u, answer, nil)
}

// ApplyTraced is Apply, and calls numbered, if it is not nil, with the revision of the update, unless the
// update is rejected as a whole. It is called under the cache's lock, before anybody can see the update, so
// it must be short.
func (c *Cache) ApplyTraced(u xds.Update, answer func(nack error), numbered func(revision uint64)) {
	c.mu.Lock()
	due := c.apply(u, answer, numbered)
	c.mu.Unlock()
	run(due)
}

func (c *Cache) apply(u xds.Update, answer func(nack error), numbered func(revision uint64)) (due []func()) {
	t, e := c.state.Table(u.Type), &c.event
	e.Begin()
	u = c.state.WithoutLocal(t, u)
	if u.Timeout {
		c.noteErrors(e, t, u)
		return c.pending.Of(t.URL).Await(c.revision, answer, nil, nil)
	}
	t.Updated = e.Now
	from := contents.Origin{Source: c.state.Sources.ID(u.Source), KeepUnsubscribed: u.KeepUnsubscribed}
	c.guard.Contact(u.Contact)
	if err := t.Check(u, contents.Limits{Resources: c.cfg.MaxResources, Bytes: c.cfg.MaxBytes}, !c.guard.Active()); err != nil {
		t.Errors.Set("", err)
		c.rejectedFrom[t.URL] = from.Source
		return c.pending.Of(t.URL).Await(c.revision, answer, nil, err)
	}
	t.SetAnswered()
	if c.rejectedFrom[t.URL] == history.Unknown {
		t.Errors.Delete("") // of an earlier answer
	}
	c.serveRestored(t)
	c.revision++
	if numbered != nil {
		numbered(c.revision)
	}
	ch := e.Changes(t)
	nack := c.take(e, t, from, u)
	if reason := c.nacks.Reason(t); reason != "" && nack == nil {
		nack = errors.New(reason)
	}
	c.noteErrors(e, t, u)
	if t.UpdateKnowledge(u, t.Names.Requested(xds.Wildcard)) {
		ch.All = true
		c.state.PersistFact(state.KnownFact, t.Key(""))
	}
	c.nacks.Settle(e)
	var concerned []*Watch
	for changes := range e.All {
		if watches := c.notify(changes); changes == ch {
			concerned = watches
		}
	}
	c.repeated(t, c.stale)
	c.guard.EndIfConfirmed(t.Updated)
	if newest := c.pending.Of(t.URL).Newest(); len(concerned) == 0 && len(newest) > 0 && repeatsPending(t, u) {
		concerned = newest
	}
	if said := answer; answer != nil && !e.Withheld {
		update := t.Updates()
		answer = func(nack error) {
			if nack != nil { // it is told when it is accepted after all
				c.mu.Lock()
				c.nacks.Refused(t.URL, update, said)
				c.mu.Unlock()
			}
			said(nack)
		}
	}
	return c.pending.Of(t.URL).Await(c.revision, answer, concerned, nack)
}

// take takes in what an update says of resources. It returns why it is not accepted; nil if it may be.
func (c *Cache) take(e *state.Event, t *state.Table, from contents.Origin, u xds.Update) (nack error) {
	if t.Len() == 0 {
		t.Grow(len(u.Resources))
		e.Changes(t).Grow(len(u.Resources))
	}
	c.guard.Begin(u)
	t.BeginUpdate()
	c.stale = c.stale[:0]
	for _, r := range u.Resources {
		if c.guard.Refuses(r.Name) {
			t.InUpdate(r.Name)
			continue
		}
		if err := c.changer.Put(e, t, from, c.expiry.Policy(r)); err != nil && nack == nil {
			nack = err
		}
		if r.GoesStale {
			c.stale = append(c.stale, r.Name)
		}
	}
	for _, name := range c.guard.Removals(guard.Removal{Type: t.URL, Names: removals(t, u, from.Source), Put: u.Resources, RequestedAt: u.RequestedAt}) {
		c.changer.Remove(e, t, name, false)
	}
	if u.Complete {
		// From now on a name that is not cached does not exist.
		t.KeepNotFound(t.Names.Requested)
		c.guard.Complete(t.URL, u.Source, e.Now)
	}
	c.obey(e, c.guard.Undo())
	c.guard.Settle(t.URL, u.RequestedAt)
	for _, h := range u.Heartbeats {
		nack = cmp.Or(nack, c.refresh(e, t, from, h))
	}
	if o := c.freezer.Order(); e.Withheld && !o.ACK && nack == nil {
		nack = errors.New(o.Error())
	}
	return nack
}

// removals returns the names that an update removes.
func removals(t *state.Table, u xds.Update, from history.Source) []string {
	if !u.Complete {
		return u.Removed
	}
	names := slices.Clone(u.Removed)
	for name, e := range t.NotInUpdate() {
		if e.IsLocal() {
			continue
		}
		if e.Source() == from {
			e.Confirm() // its source was told that it is cached, and has answered
		}
		names = append(names, name)
	}
	return names
}

// refresh applies a heartbeat. A heartbeat for a content that is not cached does nothing, and the
// error is the source's answer (protocol.md 6.1).
func (c *Cache) refresh(e *state.Event, t *state.Table, from contents.Origin, h xds.Heartbeat) error {
	entry := t.Entry(h.Name)
	switch {
	case entry == nil:
		return fmt.Errorf("%s %q: heartbeat for a resource that is not cached", xds.Short(t.URL), h.Name)
	case entry.Current().UpstreamVersion != h.Version && !(h.AnyVersion && entry.Source() == from.Source):
		return fmt.Errorf("%s %q: heartbeat for version %q, but version %q is cached", xds.Short(t.URL), h.Name, h.Version, entry.Current().UpstreamVersion)
	case c.expiry.Holds(t.URL):
		return nil
	}
	c.changer.Around(e, []xds.Key{t.Key(h.Name)}, func() {
		if change, _ := entry.Put(entry.Current().WithLifetime(h.TTL, h.Deadline), entry.Source()); change == history.LifetimeChanged {
			c.expiry.Track(entry.Current())
			c.freezer.SetLifetime(t.Key(h.Name), entry.Current())
		}
	})
	return nil
}

// noteErrors records the errors of an update.
func (c *Cache) noteErrors(e *state.Event, t *state.Table, u xds.Update) {
	for _, err := range u.Errors {
		cached := t.Entry(err.Name) != nil
		if err.Name != "" && !cached && !t.Names.Requested(err.Name) && !t.Names.Requested(xds.Wildcard) {
			continue // nobody subscribes to it any more
		}
		if errors.Is(err.Err, xds.ErrNotFound) && !cached {
			c.changer.Remove(e, t, err.Name, false) // the same as a removal (protocol.md 3.14)
		}
		if errors.Is(err.Err, xds.ErrNoAnswer) && cached {
			continue // a server need not send what has not changed
		}
		t.Errors.Set(err.Name, err.Err)
	}
}

// Synced records that a source has sent everything of a type's wildcard, or has nothing to send
// because it was not asked for the wildcard. asked is as xds.Update.RequestedAt.
func (c *Cache) Synced(source, typeURL string, asked time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, e := c.state.Table(typeURL), state.NewEvent()
	if c.guard.ConfirmAbsent(t.URL, asked) {
		c.state.Wake()
	}
	c.guard.EndIfConfirmed(e.Now)
	missing := c.guard.Removals(guard.Removal{Type: t.URL, Names: t.RestoredUnconfirmed(), RequestedAt: asked, WithOthers: true})
	c.guard.Tell(t.URL)
	t.ConfirmAll(c.state.Sources.ID(source))
	c.guard.Complete(t.URL, source, e.Now)
	if !t.Synced(t.Names.Requested(xds.Wildcard)) {
		return
	}
	c.state.PersistFact(state.KnownFact, t.Key(""))
	e.Changes(t).All = true
	for _, name := range missing {
		c.changer.Remove(e, t, name, false)
	}
	c.finish(e)
}

// Agreed records that a source has what is cached of a type, with the versions that it issued: it is asked for what is not listed with one.
func (c *Cache) Agreed(source, typeURL string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Existing(typeURL).ConfirmAll(c.state.Sources.ID(source))
}

// SetConnected records whether an upstream answers. While none does, leases do not expire (I11).
func (c *Cache) SetConnected(connected bool) {
	c.mu.Lock()
	switch {
	case !connected:
		c.connected = time.Time{}
	case c.connected.IsZero():
		c.connected = time.Now()
		for w := range c.watches {
			wake.Signal(w.changed) // from now on a view waits only so long for names without an answer
		}
	}
	c.mu.Unlock()
	c.state.Wake()
}

// EndStale serves the watches that were opened while the cache was too old: a source has answered
// since.
func (c *Cache) EndStale() {
	c.mu.Lock()
	defer c.mu.Unlock()
	stale := false
	for w := range c.watches {
		stale = stale || w.tooStale
		w.tooStale = false
	}
	if !stale {
		return
	}
	e := state.NewEvent()
	for _, t := range c.state.Tables() {
		ch := e.Changes(t)
		ch.All = true
		for name, entry := range t.All() {
			ch.Add(name, entry.Current())
		}
		for item := range c.changer.Features.Unlisted(t) {
			ch.Add(item.Current.Name, item.Current)
		}
	}
	c.finish(e)
}

// Publish applies resources of one type that the agent itself makes, each name once, and serves
// them under the names for which Config.Local returns true. answer is as in Apply.
func (c *Cache) Publish(resources []*xds.Resource, answer func(nack error)) {
	if len(resources) == 0 {
		return
	}
	c.mu.Lock()
	t, e := c.state.Table(resources[0].Type), state.NewEvent()
	c.revision++
	t.Updated = e.Now
	var nack error
	for _, r := range resources {
		nack = cmp.Or(nack, c.changer.Put(e, t, contents.Origin{Source: history.Local, KeepUnsubscribed: true}, r))
	}
	c.nacks.Settle(e)
	due := c.pending.Of(t.URL).Await(c.revision, answer, c.notify(e.Changes(t)), nack)
	c.mu.Unlock()
	run(due)
}

// Withdraw drops published resources without a subscription. Clients are not notified: for them the
// resources become unknown, not removed.
func (c *Cache) Withdraw(typeURL string, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t, e := c.state.Table(typeURL), state.NewEvent()
	for _, name := range names {
		if c.state.IsLocal(t.Key(name)) && !t.Names.Has(name) {
			c.changer.Forget(e, t, name, false)
		}
	}
}

// repeatsPending reports whether an update repeats a resource that no client has answered: then it gets the same answer as the newest
// pending update.
func repeatsPending(t *state.Table, u xds.Update) bool {
	return slices.ContainsFunc(u.Resources, func(r *xds.Resource) bool {
		e := t.Entry(r.Name)
		return e != nil && e.Status() == xds.Pending
	})
}
