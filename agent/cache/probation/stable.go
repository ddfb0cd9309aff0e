package probation

import (
	"iter"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// pollEvery is the minimum time between two calls of Tick that do something.
const pollEvery = time.Second

// Stable is the feature that knows which contents are stable: it has the queues of the clients, and the stable contents of what was
// removed. Make one with New.
type Stable struct {
	s     *state.State
	began time.Time
	// suspected reports whether a name is held back after crashes.
	suspected func(xds.Key) bool
	// keepEndpoints says that endpoints that are removed are kept, too: a fallback may serve their cluster again.
	keepEndpoints bool
	queues        map[*subscriptions.Subscribed]*Queue
	removed       map[string]Removed // by type URL
	// at is when a content may become stable next; the zero time for never.
	at time.Time
}

// New returns a Stable without contents. keepEndpoints says that endpoints are kept, too, although they are never stable; suspected
// reports whether a name is held back after crashes: it does not become stable, nor does its absence.
func New(s *state.State, keepEndpoints bool, suspected func(xds.Key) bool) *Stable {
	return &Stable{
		s: s, began: time.Now(), suspected: suspected, keepEndpoints: keepEndpoints,
		queues: make(map[*subscriptions.Subscribed]*Queue), removed: make(map[string]Removed),
	}
}

// Begin records that a client, with these subscriptions, ACKed a content, or has it. The name may have no resource any more, and then
// e is nil: if the resource comes back before the client is sent its removal, the client has used it all the time.
func (p *Stable) Begin(client *subscriptions.Subscribed, t *state.Table, e *contents.Entry, r *xds.Resource, now time.Time) {
	if client == nil || e != nil && e.IsLocal() || !xds.Info(t.URL).FallBack || !client.Covers(r) {
		return
	}
	if e != nil && e.IsStable() {
		p.Interrupt(client, r.Name)
		return
	}
	q := p.queues[client]
	if q == nil {
		q = &Queue{}
		p.queues[client] = q
	}
	if q.Begin(r, now.Sub(p.began)) {
		p.by(now.Add(StableAfter))
	}
}

// Interrupt records that a client does not use the content of a name any more.
func (p *Stable) Interrupt(client *subscriptions.Subscribed, name string) {
	if q := p.queues[client]; q != nil {
		q.Interrupt(name)
	}
}

// Subscribed records that the subscriptions of a client to a type have changed: first says that they are the first to it, fewer that
// it does not use what it has unsubscribed from.
func (p *Stable) Subscribed(client *subscriptions.Client, typeURL string, first, fewer bool) {
	if first {
		p.by(client.Opened.Add(StableAfter)) // the time of what was removed passes from now on
	}
	subscribed := client.Of(typeURL)
	if q := p.queues[subscribed]; q != nil && fewer {
		q.InterruptWhere(func(r *xds.Resource) bool { return !subscribed.Covers(r) })
	}
}

// Closed forgets a client that has disconnected.
func (p *Stable) Closed(client *subscriptions.Client, _ map[string][]string) {
	for _, subscribed := range client.Types() {
		delete(p.queues, subscribed)
	}
}

// Using yields the contents that a client ACKed and that were not stable then; some it does not have any more.
func (p *Stable) Using(client *subscriptions.Subscribed) iter.Seq[*xds.Resource] {
	if q := p.queues[client]; q != nil {
		return q.All()
	}
	return func(func(*xds.Resource) bool) {}
}

// Before keeps the stable content of a name that is removed, and gives it back to one that is put again.
func (p *Stable) Before(x *state.Change) {
	switch e := x.Entry; {
	case x.Kind == state.Put && e == nil:
		x.Stable = p.take(x.Table, x.Name)
	case x.Kind != state.Removed || e == nil:
	case e.Stable() != nil:
		p.keep(x.Table, x.Name, e.Stable(), x.Event.Now)
	case x.Table.URL == xds.EndpointType && p.keepEndpoints && e.Acked() != nil:
		p.keep(x.Table, x.Name, e.Acked(), x.Event.Now)
	}
}

// keep keeps the stable content of a name that is removed.
func (p *Stable) keep(t *state.Table, name string, stable *xds.Resource, now time.Time) {
	removed := p.removed[t.URL]
	if removed == nil {
		removed = make(Removed)
		p.removed[t.URL] = removed
	}
	removed[name] = Removal{Resource: stable, At: now}
	p.by(now.Add(StableAfter))
}

// take returns the stable content of a removed name that is put again; nil for none.
func (p *Stable) take(t *state.Table, name string) *xds.Resource {
	if len(p.removed) == 0 {
		return nil
	}
	removed := p.removed[t.URL]
	r := removed.Stable(name)
	delete(removed, name)
	if !xds.Info(t.URL).FallBack {
		return nil
	}
	return r
}

// Restore keeps the stable content of a name that was removed before the agent started.
func (p *Stable) Restore(t *state.Table, name string, stable *xds.Resource, now time.Time) {
	p.keep(t, name, stable, now)
}

// Removed has the stable contents of a type that were removed, by name. The caller must not change the map.
func (p *Stable) Removed(typeURL string) Removed { return p.removed[typeURL] }

// Content returns the stable content of a name, which may have been removed; nil for none.
func (p *Stable) Content(t *state.Table, name string) *xds.Resource {
	if e := t.Entry(name); e != nil {
		return e.Stable()
	}
	return p.removed[t.URL].Stable(name)
}

// IsStable reports whether a content is the stable one of a name that has a resource.
func (p *Stable) IsStable(t *state.Table, r *xds.Resource) bool {
	e := t.Entry(r.Name)
	return e != nil && e.Stable() != nil && e.Stable().Version == r.Version
}

// Store says what is on disk of a removed name: its stable content.
func (p *Stable) Store(t *state.Table, name string, e *contents.Entry) (history.Saved, bool) {
	if e != nil {
		return history.Saved{}, false
	}
	r := p.removed[t.URL].Stable(name)
	return history.Saved{Previous: r}, r != nil
}

// Unlisted yields the names of a type that have no resource, and of which something is served or stored.
func (p *Stable) Unlisted(t *state.Table) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range p.removed[t.URL] {
			if t.Entry(name) == nil && !yield(name) {
				return
			}
		}
	}
}

// by makes Tick do something at a time.
func (p *Stable) by(at time.Time) {
	if p.at.IsZero() || at.Before(p.at) {
		p.at = at
		p.s.Wake()
	}
}

// Tick makes the contents stable that clients have used for long enough, and returns when
// it must be called again; the zero time for never.
func (p *Stable) Tick(now time.Time) (next time.Time) {
	if p.at.IsZero() || p.at.After(now) {
		return p.at
	}
	for _, q := range p.queues {
		oldest, more := q.Promote(now.Sub(p.began)-StableAfter, func(r *xds.Resource) { p.promote(p.s.Table(r.Type), r) })
		if more {
			next = wake.Earliest(next, p.began.Add(oldest+StableAfter))
		}
	}
	for url, removed := range p.removed {
		next = wake.Earliest(next, p.expire(p.s.Table(url), removed, now))
		if len(removed) == 0 {
			delete(p.removed, url)
		}
	}
	if soonest := now.Add(pollEvery); !next.IsZero() && next.Before(soonest) {
		next = soonest
	}
	p.at = next
	return next
}

// promote makes a content stable if it is still the ACKed one and is not held back.
func (p *Stable) promote(t *state.Table, r *xds.Resource) {
	e := t.Entry(r.Name)
	if e != nil && !p.suspected(t.Key(r.Name)) && e.MakeStable(r.Version) {
		p.s.Persist(t.Key(r.Name))
	}
}

// expire deletes the stable contents of the removed names that a client has done without for
// long enough. Without a client their time does not pass.
func (p *Stable) expire(t *state.Table, removed Removed, now time.Time) (next time.Time) {
	watched := p.s.Union.Since(t.URL)
	if len(removed) == 0 || watched.IsZero() {
		return time.Time{}
	}
	held := func(name string) bool { return p.suspected(t.Key(name)) }
	return removed.Expire(now, watched, held, func(name string) { p.s.Persist(t.Key(name)) })
}
