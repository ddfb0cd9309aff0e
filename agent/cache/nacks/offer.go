package nacks

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// offerTimeout is how long a client that is offered a name again delays others of the type: it may withhold its answer while a cluster
// warms (protocol.md V2), or have gone.
const offerTimeout = 20 * time.Second

// Tick offers again what is due, and returns when more is; the zero time for never.
func (n *Nacks) Tick(e *state.Event) (next time.Time) {
	if len(n.records) == 0 {
		return time.Time{}
	}
	now := e.Now
	for typeURL, names := range n.offered {
		if until := n.records[names[0]].offeredAt.Add(offerTimeout); until.After(now) {
			next = wake.Earliest(next, until)
			continue
		}
		delete(n.offered, typeURL)
		for _, k := range names {
			if r := n.records[k]; r.refused != "" {
				n.failed(k, r, now)
			}
		}
	}
	var due []xds.Key
	for k, r := range n.records {
		switch _, busy := n.offered[k.Type]; {
		case r.due.IsZero() || busy:
		case r.due.After(now):
			next = wake.Earliest(next, r.due)
		default:
			due = append(due, k)
		}
	}
	slices.SortFunc(due, state.CompareKeys)
	for _, k := range due {
		if _, busy := n.offered[k.Type]; busy {
			continue
		}
		if n.offer(e, k); len(n.offered[k.Type]) > 0 {
			next = wake.Earliest(next, now.Add(offerTimeout))
		}
	}
	return next
}

// offer offers a name again, and with it the other suspects of its type if it is one.
func (n *Nacks) offer(e *state.Event, k xds.Key) {
	if !n.offerOne(e, k) || !n.records[k].together {
		return
	}
	for _, other := range slices.SortedFunc(maps.Keys(n.records), state.CompareKeys) {
		if r := n.records[other]; other.Type == k.Type && other != k && r.together && r.offeredAt.IsZero() {
			n.offerOne(e, other)
		}
	}
}

// offerOne offers a name again, if a client is there that may take it.
func (n *Nacks) offerOne(e *state.Event, k xds.Key) bool {
	t, r := n.s.Table(k.Type), n.records[k]
	entry := t.Entry(k.Name)
	if !n.cfg.Serves(k) || entry == nil || !n.s.Union.AnyOpen() || !n.s.IsUsed(t, k.Name, entry.Current()) {
		return false
	}
	entry.Offer()
	r.due, r.offeredAt, r.refused, r.killed = time.Time{}, e.Now, "", state.Killed{}
	r.judges = make(map[*subscriptions.Client]struct{})
	for client := range n.s.Union.OpenClients() {
		if _, refused := r.refusers[client]; r.accepted && !refused {
			continue
		}
		if subscribed := client.Of(k.Type); subscribed != nil && subscribed.Covers(entry.Current()) {
			r.judges[client] = struct{}{}
		}
	}
	r.offers++
	n.offered[k.Type] = append(n.offered[k.Type], k)
	e.Changes(t).Add(k.Name, entry.Current())
	return true
}

// over ends the delay of others of the type by the offer of a name.
func (n *Nacks) over(k xds.Key) {
	names := n.offered[k.Type]
	i := slices.Index(names, k)
	if i < 0 {
		return
	}
	if names = slices.Delete(names, i, i+1); len(names) == 0 {
		delete(n.offered, k.Type)
	} else {
		n.offered[k.Type] = names
	}
	n.s.Wake()
}

// isOffered reports whether a content, whose history is h and which is of the entry e, is offered again. The record may be nil.
func (r *record) isOffered(h *history.History, e *contents.Entry, content *xds.Resource) bool {
	return r != nil && r.version == content.Version && !r.offeredAt.IsZero() && e != nil && &e.History == h
}

// answered records that a client has NACKed an offer, or has gone. Only when all have it has failed: what one process cannot do another
// may.
func (n *Nacks) answered(client *subscriptions.Client, k xds.Key, r *record, now time.Time) {
	if delete(r.judges, client); len(r.judges) == 0 {
		n.failed(k, r, now)
	}
}

// failed records that an offer has failed.
func (n *Nacks) failed(k xds.Key, r *record, now time.Time) {
	t := n.s.Table(k.Type)
	r.reason = cmp.Or(r.refused, r.reason) // all may have gone
	r.at, r.offeredAt, r.refused, r.pause = now, time.Time{}, "", min(2*r.pause, MaxPause)
	if r.killed.Any() {
		r.pause, r.together = state.KilledFor, false // without a word no other is known to have been accepted
	}
	switch e := t.Entry(k.Name); {
	case e == nil:
	case r.accepted:
		e.EndOffer()
	case r.together:
		e.Suspect(r.version)
	case e.Nack(r.version, r.reason):
		n.nacked(t, k.Name)
	}
	n.persist(k)
	n.over(k)
}

// Closed is called when a client has disconnected. What it was offered and has not answered counts as NACKed, with the reason of before:
// it may have ended because of it.
func (n *Nacks) Closed(client *subscriptions.Client, unanswered map[string][]string) {
	for _, list := range n.former {
		for _, r := range list {
			delete(r.refusers, client)
		}
	}
	now := time.Now()
	for k, r := range n.records {
		delete(r.refusers, client)
		if _, judges := r.judges[client]; judges && !r.offeredAt.IsZero() {
			if killed := state.KilledBy(r.offeredAt, client, now); killed.Any() && slices.Contains(unanswered[k.Type], k.Name) {
				r.killed = killed
			}
			n.answered(client, k, r, now)
		}
		if r.accepted && len(r.refusers) == 0 {
			n.end(k) // the next process is sent it
		}
	}
}

// Returned is called when a client comes that has something from an earlier stream: a process that went without an answer has not ended.
func (n *Nacks) Returned(client *subscriptions.Client) {
	for k, r := range n.all {
		if r.killed.Returned(client) {
			r.pause = 2 * MinPause
			n.persist(k)
		}
	}
}

// causes are the names of a type whose accepted content has changed, and the addresses and keys that may be free because of that.
type causes struct {
	t     *state.Table
	names map[xds.Key]struct{}
	// before has what each had; removed those that had something that is not known any more.
	before, removed []Accepted
	// freed has, once it is needed, who had an address or key.
	freed map[string][]xds.Key
}

func (c *causes) add(a Accepted) {
	if c.names == nil {
		c.names = make(map[xds.Key]struct{})
	}
	c.names[c.t.Key(a.Name)] = struct{}{}
	switch {
	case a.Before != nil:
		c.before = append(c.before, a)
	case a.Removed:
		c.removed = append(c.removed, a)
	}
}

// of returns what is a cause to offer a name again.
func (c *causes) of(k xds.Key, r *record) map[xds.Key]struct{} {
	out := make(map[xds.Key]struct{})
	if c.t.URL != xds.EndpointType {
		if _, all := r.refers[xds.Key{Type: c.t.URL}]; all {
			maps.Copy(out, c.names)
		}
		for of := range r.refers {
			if _, changed := c.names[of]; changed {
				out[of] = struct{}{}
			}
		}
	}
	if k.Type == c.t.URL && len(r.conflicts) > 0 {
		c.find()
		for _, key := range r.conflicts {
			for _, of := range c.freed[key] {
				out[of] = struct{}{}
			}
		}
		for _, a := range c.removed {
			out[c.t.Key(a.Name)] = struct{}{}
		}
	}
	delete(out, k)
	return out
}

// find finds who had which address or key.
func (c *causes) find() {
	if c.freed != nil {
		return
	}
	c.freed = make(map[string][]xds.Key)
	for _, a := range c.before {
		for _, key := range xds.ConflictKeys(a.Before) {
			c.freed[key] = append(c.freed[key], c.t.Key(a.Name))
		}
	}
}
