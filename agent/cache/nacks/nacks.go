// Package nacks keeps what clients NACKed of the contents of a cache, and decides when it is offered to them again: a NACK says what one
// process could not do at one moment (design.md I7).
//
// It promises that:
//   - what was NACKed is offered again at once when something that it refers to, or that has its address, was accepted, changed or
//     removed by a client since, when a new process comes, and when an operator says so;
//   - it is offered again under a growing pause when clients have ACKed something of another type since, or a source repeats it: not
//     every reason can be known. Only a cause starts the pause anew, and the same cause ever more seldom;
//   - what a client did not outlive is offered to no new process of its build without another cause, but once a day;
//   - one name of a type is offered at a time, and none that is not to be served. Those that were NACKed together are offered together,
//     because in state of the world a complete set cannot be sent without one of them;
//   - what one client accepted and another NACKed is offered again to those that NACKed it, as long as they are there;
//   - what was NACKed alone outlives the agent: a content is not new because the agent is.
//
// A name that nobody NACKed costs nothing. Nothing in it has a lock: its owner serializes all calls.
package nacks

import (
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// What was NACKed is offered again without a cause after MinPause, and twice as long after each further NACK, but at most MaxPause.
const (
	MinPause = time.Second
	MaxPause = time.Hour
)

// Config is what a Nacks asks others.
type Config struct {
	// History returns the history of what is served under a name; nil for none.
	History func(t *state.Table, name string) *history.History
	// References, which may be nil, returns what a resource refers to.
	References func(*xds.Resource) []xds.Key
	// Serves reports whether the newest content of a name may be served now.
	Serves func(xds.Key) bool
}

// Nacks is the feature. Make one with New.
type Nacks struct {
	s       *state.State
	cfg     Config
	counts  map[string]uint64   // of cached contents that were NACKed alone, by type URL
	retry   map[string]struct{} // the types whose suspects are offered again
	records map[xds.Key]*record
	// former has the records of other contents that sources sent under a name before, at most maxFormer.
	former map[xds.Key][]*record
	// offered is what is offered now, by type URL.
	offered map[string][]xds.Key
	// refused has the newest update of each type, by type URL, if its source was told that clients NACKed it. late has the types of which
	// something was accepted since.
	refused map[string]refusal
	late    map[string]struct{}
}

// refusal is an update that was NACKed: its number, and how its source is told that it is accepted after all.
type refusal struct {
	update uint32
	answer func(nack error)
}

// New returns a Nacks of nothing.
func New(s *state.State, cfg Config) *Nacks {
	return &Nacks{
		s: s, cfg: cfg,
		counts: make(map[string]uint64), retry: make(map[string]struct{}), records: make(map[xds.Key]*record), former: make(map[xds.Key][]*record), offered: make(map[string][]xds.Key),
		refused: make(map[string]refusal), late: make(map[string]struct{}),
	}
}

// After is called for each name that has changed: another content was not NACKed.
func (n *Nacks) After(x *state.Change) {
	was := x.Done.Change == history.ContentChanged && x.Done.WasNackedOrSuspect
	if x.Kind == state.Removed {
		was = x.Entry.NackedOrSuspect()
	}
	if was {
		n.retry[x.Table.URL] = struct{}{}
	}
	if len(n.records)+len(n.former) == 0 && !x.Entry.Rejected() {
		return
	}
	switch k := x.Key(); {
	case x.Kind != state.Put:
		n.forget(k)
	case x.Done.Change == history.ContentChanged:
		n.changed(x.Table, k, x.Entry)
	case x.Done.Change == history.Unchanged:
		n.repeated(k)
	}
}

// changed is called when a source has sent another content of a name, which may have been NACKed before.
func (n *Nacks) changed(t *state.Table, k xds.Key, e *contents.Entry) {
	if r := n.records[k]; r != nil {
		n.end(k)
		if !r.together && !r.accepted {
			n.keep(k, r)
			n.persist(k)
		}
	}
	r := n.take(k, e.Current().Version)
	if r != nil && !e.Rejected() && e.Nack(r.version, r.reason) { // it was NACKed before the agent was started
		n.nacked(t, k.Name)
	}
	if !e.Rejected() {
		return
	}
	if r == nil {
		r = newRecord(e.Current(), e.Reason(), time.Now())
	}
	n.look(r, e.Current())
	n.records[k] = r
	n.persist(k)
	n.reason(r)
}

// Repeated is called for each content that a source repeats.
func (n *Nacks) Repeated(t *state.Table, e *contents.Entry) {
	if len(n.records) > 0 {
		n.repeated(t.Key(e.Current().Name))
	}
}

// repeated makes a name due, under its pause, because a source repeats it.
func (n *Nacks) repeated(k xds.Key) {
	if r := n.records[k]; r != nil {
		n.reason(r)
	}
}

// all yields the records of all contents, also of those that are not the newest.
func (n *Nacks) all(yield func(xds.Key, *record) bool) {
	for k, r := range n.records {
		if !yield(k, r) {
			return
		}
	}
	for k, list := range n.former {
		for _, r := range list {
			if !yield(k, r) {
				return
			}
		}
	}
}

// forget forgets a name that is not there any more.
func (n *Nacks) forget(k xds.Key) {
	n.end(k)
	if _, ok := n.former[k]; ok {
		delete(n.former, k)
		n.persist(k)
	}
}

// end ends the record of a name's newest content.
func (n *Nacks) end(k xds.Key) {
	r := n.records[k]
	if r == nil {
		return
	}
	r.due, r.offeredAt, r.judges = time.Time{}, time.Time{}, nil
	delete(n.records, k)
	n.persist(k)
	n.over(k)
}

// Accepted is a name whose accepted content has changed.
type Accepted struct {
	Name string
	// Before is what clients had accepted before; nil for nothing, and for what is not known any more.
	Before *xds.Resource
	// Removed says that they ACKed its removal, Known that another client has accepted the same content before.
	Removed, Known bool
}

// Accepted is called when a client has ACKed contents of a type that it did not have before, and removals: each name of changed has
// another accepted content than before, or was removed.
func (n *Nacks) Accepted(t *state.Table, changed []Accepted, now time.Time) {
	if len(n.records) == 0 || len(changed) == 0 {
		return
	}
	all, unknown := causes{t: t}, causes{t: t}
	for _, c := range changed {
		if all.add(c); !c.Known {
			unknown.add(c)
		}
	}
	for k, r := range n.records {
		of := &all
		if r.killed.Any() {
			of = &unknown // a new process has what the one had that ended
		}
		for cause := range of.of(k, r) {
			n.cause(k, r, cause, now)
		}
		if k.Type != t.URL && t.URL != xds.EndpointType {
			n.reason(r)
		}
	}
}

// Came is called when a new process, whose stream was opened at a time, has answered: one that went before does not come back.
func (n *Nacks) Came(opened time.Time) {
	for k, r := range n.all {
		if r.killed.Came(opened) {
			n.persist(k)
		}
	}
}

// Started is called when a new process of a build, "" if it is not known, has ACKed contents of a type: it is another judge. What was NACKed
// of this type, or of one of which clients have accepted nothing, is offered to it, once: judged has what was, and what it has NACKed
// itself.
func (n *Nacks) Started(t *state.Table, judged map[xds.Key]struct{}, build string, now time.Time) {
	for k, r := range n.records {
		if _, was := judged[k]; was || r.accepted || r.killed.Of(build) {
			continue
		}
		if k.Type == t.URL || !anyAccepted(n.s.Table(k.Type)) {
			judged[k] = struct{}{}
			r.due, r.pause, r.killed = now, MinPause, state.Killed{}
			n.persist(k)
			n.s.Wake()
		}
	}
}

// anyAccepted reports whether clients have accepted a content of a type: a new one is sent that first.
func anyAccepted(t *state.Table) bool {
	for _, e := range t.All() {
		if e.Acked() != nil {
			return true
		}
	}
	return false
}

// Any reports whether anything is known that was NACKed.
func (n *Nacks) Any() bool { return len(n.records)+len(n.former) > 0 }

// Watching reports whether anything was NACKed, so that Accepted has something to do.
func (n *Nacks) Watching() bool { return len(n.records) > 0 }

// Acked is called when a client has ACKed a content of a name.
func (n *Nacks) Acked(client *subscriptions.Client, k xds.Key, e *contents.Entry) {
	r := n.records[k]
	if e == nil || r == nil || e.Status() != xds.Acked {
		return
	}
	if (!r.offeredAt.IsZero() || r.together) && n.refused[k.Type].answer != nil { // otherwise another client takes what one has NACKed
		n.late[k.Type] = struct{}{}
	}
	delete(r.judges, client)
	if delete(r.refusers, client); len(r.refusers) == 0 {
		n.end(k)
		e.EndOffer()
		return
	}
	r.accepted, r.together = true, false
	n.persist(k)
	if !r.offeredAt.IsZero() && len(r.judges) == 0 {
		n.failed(k, r, time.Now())
	}
}

// Refused records that the source of an update of a type, with its number (contents.Type.Updates), was told that clients NACKed it.
func (n *Nacks) Refused(typeURL string, update uint32, answer func(nack error)) {
	if n.s.Existing(typeURL).Updates() == update {
		n.refused[typeURL] = refusal{update, answer}
	}
}

// Late returns how the source of the newest update of a type is told that it is accepted after all; nil if it is not yet, or was never NACKed.
// It is called after Acked.
func (n *Nacks) Late(t *state.Table) (due []func()) {
	if _, late := n.late[t.URL]; !late {
		return nil
	}
	refused := n.refused[t.URL]
	if t.Updates() == refused.update {
		for e := range t.InLastUpdate() {
			switch name := e.Current().Name; {
			case e.Rejected() || e.NackedOrSuspect() || n.records[t.Key(name)] != nil:
				delete(n.late, t.URL)
				return nil
			case e.Status() == xds.Pending && n.s.Union.AnyOpen() && n.s.IsUsed(t, name, e.Current()):
				return nil
			}
		}
		due = append(due, func() { refused.answer(nil) })
	}
	delete(n.late, t.URL)
	delete(n.refused, t.URL)
	return due
}

// Suspects records that a client NACKed contents together. One that was NACKed before, and is offered again, is NACKed
// by that: a client that has just come gets it in one response with others.
func (n *Nacks) Suspects(client *subscriptions.Client, t *state.Table, of []*xds.Resource, reason string, now time.Time) {
	for _, content := range of {
		h, k, e := n.cfg.History(t, content.Name), t.Key(content.Name), t.Entry(content.Name)
		r := n.records[k]
		switch {
		case h == nil:
		case r.isOffered(h, e, content):
			r.refusers[client] = struct{}{}
			r.refused = reason
			n.answered(client, k, r, now)
		case h.Status() == xds.Acked && h.Current().Version == content.Version && e != nil && &e.History == h:
			r = n.refusal(client, k, content, reason, true, now)
			if r.together = true; len(of) <= maxLooked {
				n.look(r, content)
			}
		case !h.Suspect(content.Version) || e == nil || &e.History != h:
		case r == nil || r.version != content.Version:
			r = newRecord(content, reason, now)
			r.together = true
			r.refusers[client] = struct{}{}
			n.records[k] = r
			if len(of) <= maxLooked {
				n.look(r, content)
			}
		default: // it was retried with another
			r.refusers[client] = struct{}{}
			r.reason, r.at, r.pause = reason, now, min(2*r.pause, MaxPause)
		}
	}
}

// Nack records that a client NACKed the only new resource of a response. apart says that it was found to be the one to blame among others, or
// was sent apart from them: since then these may have been accepted. It reports whether the content was offered again, so that the NACK says
// nothing of an update.
func (n *Nacks) Nack(client *subscriptions.Client, t *state.Table, content *xds.Resource, reason string, apart bool, now time.Time) (offered bool) {
	h, k, e := n.cfg.History(t, content.Name), t.Key(content.Name), t.Entry(content.Name)
	if h == nil {
		return false
	}
	r := n.records[k]
	newest := e != nil && &e.History == h // otherwise it is served in place of the newest one, which is not offered
	if r.isOffered(h, e, content) {
		r.refusers[client] = struct{}{}
		r.refused, r.together = reason, false
		n.answered(client, k, r, now)
		return true
	}
	was := h.Status()
	switch nacked := h.Nack(content.Version, reason); {
	case nacked:
		if was != xds.Nacked { // otherwise it says nothing new of those that were NACKed with it
			n.nacked(t, content.Name)
		}
		if newest {
			n.look(n.refusal(client, k, content, reason, false, now), content)
		}
	case newest && h.Status() == xds.Acked && h.Current().Version == content.Version:
		n.look(n.refusal(client, k, content, reason, true, now), content)
	}
	if r := n.records[k]; apart && newest && r != nil && r.version == content.Version {
		n.reason(r)
	}
	return false
}

// refusal records that a client NACKed the newest content of a name; accepted says that another client accepted it.
func (n *Nacks) refusal(client *subscriptions.Client, k xds.Key, content *xds.Resource, reason string, accepted bool, now time.Time) *record {
	r := n.records[k]
	if r == nil || r.version != content.Version {
		r = newRecord(content, reason, now)
		n.records[k] = r
	}
	r.refusers[client] = struct{}{}
	r.reason, r.together, r.accepted = reason, false, accepted
	n.persist(k)
	return r
}

// nacked is called when the newest content of a name has become NACKed.
func (n *Nacks) nacked(t *state.Table, name string) {
	n.counts[t.URL]++
	n.s.Persist(t.Key(name))
	n.retry[t.URL] = struct{}{}
}

// Settle is called when an event is over. It sends the suspects of a full-state type to clients once more, because one of the
// resources that were NACKed together turned out to be the cause, was replaced or was removed. In
// SotW a complete set cannot be sent without a suspect; without a retry the suspect would stay one
// for ever, and new clients would get its former content.
func (n *Nacks) Settle(e *state.Event) {
	for typeURL := range n.retry {
		delete(n.retry, typeURL)
		if !xds.FullState(typeURL) {
			continue
		}
		t := n.s.Table(typeURL)
		for name, entry := range t.All() {
			if entry.Retry() {
				e.Changes(t).Add(name, entry.Current())
			}
		}
	}
}

// Again makes names due at once: an operator says so. Of each for which of returns true it does, and starts its pause anew; dryRun
// only tells them. It returns them in push order.
func (n *Nacks) Again(of func(xds.Key) bool, dryRun bool, now time.Time) (names []xds.Key) {
	for k, r := range n.records {
		if !of(k) {
			continue
		}
		names = append(names, k)
		if !dryRun {
			r.due, r.pause, r.killed, r.causes = now, MinPause, state.Killed{}, nil
			n.persist(k)
			n.s.Wake()
		}
	}
	slices.SortFunc(names, state.CompareKeys)
	return names
}

// Rejected are the names of a type whose newest content was NACKed alone and accepted by nobody, also if it is offered again, in no order.
func (n *Nacks) Rejected(typeURL string) (names []string) {
	for k, r := range n.records {
		if k.Type == typeURL && !r.together && !r.accepted {
			names = append(names, k.Name)
		}
	}
	return names
}

// Tries is how a name that was NACKed is offered again.
type Tries struct {
	// Reason is why it was NACKed. Together says that it was with others; Accepted, that another client has accepted it.
	Reason             string
	Together, Accepted bool
	// Killed says that a client that was sent it ended before it answered.
	Killed bool
	// Offers counts how often it was offered again. Last is when it was last NACKed.
	Offers int
	Last   time.Time
	// Since is since when it is offered now; the zero time if it is not. Next is when it is offered next, if nothing else happens; the
	// zero time for not before there is a reason. After is before when it is not without a cause.
	Since, Next, After time.Time
}

// Tries returns how a name is offered again; ok is false if it is not NACKed.
func (n *Nacks) Tries(k xds.Key) (tries Tries, ok bool) {
	r := n.records[k]
	if r == nil {
		return tries, false
	}
	return Tries{
		Reason: r.reason, Together: r.together, Accepted: r.accepted, Killed: r.killed.Any(),
		Offers: r.offers, Last: r.at, Since: r.offeredAt, Next: r.due, After: r.at.Add(r.pause),
	}, true
}

// Reason returns why clients NACKed one of the suspects that the last update of a type repeated; "" for none: its source is told.
func (n *Nacks) Reason(t *state.Table) string {
	for k, r := range n.records {
		if e := t.Entry(k.Name); k.Type == t.URL && r.together && e != nil && e.Status() == xds.Suspect && t.IsInLastUpdate(e) {
			return r.reason
		}
	}
	return ""
}

// Killed reports whether a client ended while the newest content of a name was tried.
func (n *Nacks) Killed(k xds.Key) bool {
	r := n.records[k]
	return r != nil && r.killed.Any()
}

// Count counts the cached contents of a type that clients NACKed alone.
func (n *Nacks) Count(typeURL string) uint64 { return n.counts[typeURL] }
