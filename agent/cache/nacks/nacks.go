// Package nacks keeps what clients NACKed of the contents of a cache, and decides when it is offered to them again: a NACK says what one
// process could not do at one moment (design.md I7).
//
// It promises that:
//   - what was NACKed is offered again at once when something that it refers to, or that has its address, was accepted, changed or
//     removed by a client since, when a new process comes, and when an operator says so;
//   - it is offered again under a growing pause when clients have ACKed something of another type since, or a source repeats it: not
//     every reason can be known. Only a cause starts the pause anew, and the same cause ever more seldom;
//   - what a client did not outlive is offered to no new process without another cause, but once a day;
//   - one name of a type is offered at a time, and none that is not to be served;
//   - a content that was NACKed together with others is offered again when one of these turns out to be the cause, is replaced or is
//     removed: in state of the world a complete set cannot be sent without it.
//
// A name that nobody NACKed costs nothing. Nothing in it has a lock: its owner serializes all calls.
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

// What was NACKed is offered again without a cause after MinPause, and twice as long after each further NACK, but at most MaxPause.
const (
	MinPause = time.Second
	MaxPause = time.Hour
)

// What a client did not outlive, if it went within killedWithin of the offer, is offered again to no new process, but for a cause, or after
// killedPause.
const (
	killedWithin = time.Minute
	killedPause  = 24 * time.Hour
)

// offerTimeout is how long a client that is offered a name again delays others of the type: it may withhold its answer while a cluster
// warms (protocol.md V2), or have gone.
const offerTimeout = 20 * time.Second

// Nacks is the feature. Make one with New.
type Nacks struct {
	s *state.State
	// history returns the history of what is served under a name; nil for none.
	history func(t *state.Table, name string) *history.History
	// references returns what a resource refers to; nil for nothing.
	references func(*xds.Resource) []xds.Key
	// serves reports whether the newest content of a name may be served now.
	serves  func(xds.Key) bool
	counts  map[string]uint64   // of cached contents that were NACKed alone, by type URL
	retry   map[string]struct{} // the types whose suspects are offered again
	records map[xds.Key]*record
	// former has the records of other contents that sources sent under a name before, at most maxFormer.
	former map[xds.Key][]*record
	// offered is what is offered now, by type URL.
	offered map[string]xds.Key
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

// record is what is known of a content that was NACKed alone.
type record struct {
	version string
	at      time.Time // when it was last NACKed
	// offers counts how often it was offered again. pause is how long it is not without a cause. offeredAt is since when it is; the zero
	// time for not.
	offers    int
	pause     time.Duration
	offeredAt time.Time
	// judges are the clients that have not answered to the offer. refused is the last reason of those that have NACKed it; "" for none.
	judges  map[*subscriptions.Client]struct{}
	refused string
	// killed says that a client that was sent the last offer went without an answer: it may have ended because of it.
	killed bool
	// due is when it is offered again; the zero time for not.
	due time.Time
	// refers has what it refers to, and conflicts the addresses and keys that no other resource of its type may have.
	refers    map[xds.Key]struct{}
	conflicts []string
	// causes counts how often each name was a cause.
	causes map[xds.Key]int
}

// maxCauses bounds the causes of one record that are counted, and maxFormer the contents of a name whose records are kept.
const (
	maxCauses = 64
	maxFormer = 8
)

// New returns a Nacks of nothing. history returns the history of what is served under a name; nil for none. references, which may be
// nil, returns what a resource refers to, and serves reports whether the newest content of a name may be served.
func New(s *state.State, history func(t *state.Table, name string) *history.History, references func(*xds.Resource) []xds.Key, serves func(xds.Key) bool) *Nacks {
	return &Nacks{
		s: s, history: history, references: references, serves: serves,
		counts: make(map[string]uint64), retry: make(map[string]struct{}), records: make(map[xds.Key]*record), former: make(map[xds.Key][]*record), offered: make(map[string]xds.Key),
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
	if len(n.records)+len(n.former) == 0 {
		return
	}
	switch k := x.Key(); {
	case x.Kind != state.Put:
		n.forget(k)
	case x.Done.Change == history.ContentChanged:
		n.changed(k, x.Entry)
	case x.Done.Change == history.Unchanged:
		n.repeated(k)
	}
}

// changed is called when a source has sent another content of a name, which may have been NACKed before.
func (n *Nacks) changed(k xds.Key, e *contents.Entry) {
	former := n.former[k]
	if r := n.records[k]; r != nil {
		n.end(k)
		if former = append(former, r); len(former) > maxFormer {
			former = former[1:]
		}
		n.former[k] = former
	}
	if !e.Rejected() {
		return
	}
	i := slices.IndexFunc(former, func(r *record) bool { return r.version == e.Current().Version })
	if i < 0 {
		n.records[k] = n.record(e.Current(), time.Now())
	} else {
		n.records[k] = former[i]
		n.former[k] = slices.Delete(former, i, i+1)
	}
	n.reason(n.records[k])
}

// Repeated is called for each content that a source repeats.
func (n *Nacks) Repeated(t *state.Table, e *contents.Entry) {
	if len(n.records) > 0 && e.Rejected() {
		n.repeated(t.Key(e.Current().Name))
	}
}

// repeated makes a name due, under its pause, because a source repeats it.
func (n *Nacks) repeated(k xds.Key) {
	if r := n.records[k]; r != nil {
		n.reason(r)
	}
}

// reason makes a name due under its pause, if it is not already.
func (n *Nacks) reason(r *record) {
	if r.due.IsZero() && r.offeredAt.IsZero() {
		r.due = r.at.Add(r.pause)
		n.s.Wake()
	}
}

// cause makes a name due because of another: at once, and the more seldom the more often that is so.
func (n *Nacks) cause(r *record, of xds.Key, now time.Time) {
	if r.causes == nil || len(r.causes) == maxCauses {
		r.causes = make(map[xds.Key]int)
	}
	due := now
	if times := r.causes[of]; times > 0 {
		due = wake.Latest(now, r.at.Add(min(MinPause<<min(times-1, 12), MaxPause)))
	}
	r.causes[of]++
	r.pause, r.killed = MinPause, false
	if r.due.IsZero() || due.Before(r.due) {
		r.due = due
	}
	n.s.Wake()
}

// forget forgets a name: it is accepted, or is not there any more.
func (n *Nacks) forget(k xds.Key) {
	n.end(k)
	delete(n.former, k)
}

// end ends the record of a name.
func (n *Nacks) end(k xds.Key) {
	if r := n.records[k]; r != nil {
		r.due, r.offeredAt = time.Time{}, time.Time{}
	}
	delete(n.records, k)
	if n.offered[k.Type] == k {
		delete(n.offered, k.Type)
		n.s.Wake()
	}
}

// Accepted is called when a client has ACKed contents of a type that it did not have before, and removals: each name of changed has
// another accepted content than before, or was removed.
func (n *Nacks) Accepted(t *state.Table, changed []Accepted, now time.Time) {
	if len(n.records) == 0 {
		return
	}
	for k, r := range n.records {
		for _, c := range changed {
			of := t.Key(c.Name)
			if of == k {
				continue
			}
			if r.killed && c.Known {
				continue // a new process has what the one had that ended
			}
			if r.refersTo(of) && t.URL != xds.EndpointType || k.Type == t.URL && len(r.conflicts) > 0 && c.frees(r.conflicts) {
				n.cause(r, of, now)
			}
		}
		if k.Type != t.URL && t.URL != xds.EndpointType && len(changed) > 0 {
			n.reason(r)
		}
	}
}

// Started is called when a new process has ACKed contents of a type: it is another judge. What was NACKed of this type, or of one of which
// clients have accepted nothing, is offered to it, once: judged has what was, and what it has NACKed itself. The more often new processes come
// the more seldom, as with every cause.
func (n *Nacks) Started(t *state.Table, judged map[xds.Key]struct{}, now time.Time) {
	for k, r := range n.records {
		if _, was := judged[k]; was || r.killed {
			continue
		}
		if k.Type == t.URL || !anyAccepted(n.s.Table(k.Type)) {
			judged[k] = struct{}{}
			n.cause(r, xds.Key{}, now)
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

// refersTo reports whether a content refers to a name, or to all of its type.
func (r *record) refersTo(k xds.Key) bool {
	_, name := r.refers[k]
	_, all := r.refers[xds.Key{Type: k.Type}]
	return name || all
}

// Accepted is a name whose accepted content has changed.
type Accepted struct {
	Name string
	// Before is what clients had accepted before; nil for nothing, and for what is not known any more.
	Before *xds.Resource
	// Removed says that they ACKed its removal, Known that another client has accepted the same content before.
	Removed, Known bool
}

// frees reports whether one of these addresses or keys may be free now.
func (a Accepted) frees(conflicts []string) bool {
	if a.Before == nil {
		return a.Removed
	}
	return slices.ContainsFunc(xds.ConflictKeys(a.Before), func(key string) bool { return slices.Contains(conflicts, key) })
}

// Watching reports whether anything was NACKed, so that Accepted has something to do.
func (n *Nacks) Watching() bool { return len(n.records) > 0 }

// Acked is called when a client has ACKed a content of a name.
func (n *Nacks) Acked(k xds.Key, e *contents.Entry) {
	r := n.records[k]
	if e == nil || r == nil || e.Rejected() {
		return
	}
	if !r.offeredAt.IsZero() && n.refused[k.Type].answer != nil { // otherwise another client takes what one has NACKed
		n.late[k.Type] = struct{}{}
	}
	n.forget(k)
}

// Refused records that the source of an update of a type, with its number (contents.Type.Updates), was told that clients NACKed it.
func (n *Nacks) Refused(typeURL string, update uint32, answer func(nack error)) {
	if n.s.Existing(typeURL).Updates() == update {
		n.refused[typeURL] = refusal{update, answer}
	}
}

// Late returns the answers to the updates that were NACKed, and of which everything is accepted since. It is called after Acked.
func (n *Nacks) Late() (due []func()) {
	for typeURL := range n.late {
		delete(n.late, typeURL)
		t, refused := n.s.Existing(typeURL), n.refused[typeURL]
		bad := false
		for e := range t.InLastUpdate() {
			if bad = e.Rejected() || e.NackedOrSuspect(); bad {
				break
			}
		}
		if bad && t.Updates() == refused.update {
			continue
		}
		delete(n.refused, typeURL)
		if t.Updates() == refused.update {
			due = append(due, func() { refused.answer(nil) })
		}
	}
	return due
}

// Suspect records that a client NACKed a content together with others. One that was NACKed alone before, and is offered again, is NACKed
// by that: a client that has just come gets it in one response with others.
func (n *Nacks) Suspect(client *subscriptions.Client, t *state.Table, content *xds.Resource, reason string, now time.Time) {
	h, k, e := n.history(t, content.Name), t.Key(content.Name), t.Entry(content.Name)
	if r := n.records[k]; r.isOffered(h, e, content) {
		r.refused = reason
		n.answered(client, k, r, now)
	} else if h != nil {
		h.Suspect(content.Version)
	}
}

// isOffered reports whether a content, whose history is h and which is of the entry e, is offered again. The record may be nil.
func (r *record) isOffered(h *history.History, e *contents.Entry, content *xds.Resource) bool {
	return r != nil && r.version == content.Version && !r.offeredAt.IsZero() && e != nil && &e.History == h
}

// Nack records that a client NACKed the only new resource of a response. apart says that it was found to be the one to blame among others, or
// was sent apart from them: since then these may have been accepted. It reports whether the content was offered again, so that the NACK says
// nothing of an update.
func (n *Nacks) Nack(client *subscriptions.Client, t *state.Table, content *xds.Resource, reason string, apart bool, now time.Time) (offered bool) {
	h, k, e := n.history(t, content.Name), t.Key(content.Name), t.Entry(content.Name)
	r := n.records[k]
	switch {
	case h == nil:
	case r.isOffered(h, e, content):
		r.refused = reason
		n.answered(client, k, r, now)
		return true
	case !h.Nack(content.Version, reason):
	default:
		n.nacked(t, content.Name)
		if (r == nil || r.version != content.Version) && e != nil && &e.History == h { // otherwise it is served in place of the newest one, which is not offered
			r = n.record(content, now)
			n.records[k] = r
			if apart {
				n.reason(r)
			}
		}
	}
	return false
}

// nacked is called when the newest content of a name has become NACKed.
func (n *Nacks) nacked(t *state.Table, name string) {
	n.counts[t.URL]++
	n.s.Persist(t.Key(name))
	n.retry[t.URL] = struct{}{}
}

// answered records that a client has NACKed an offer, or has gone. Only when all have it has failed: what one process cannot do another
// may.
func (n *Nacks) answered(client *subscriptions.Client, k xds.Key, r *record, now time.Time) {
	if delete(r.judges, client); len(r.judges) > 0 {
		return
	}
	if e := n.s.Table(k.Type).Entry(k.Name); e != nil {
		r.refused = cmp.Or(r.refused, e.Reason()) // all have gone
	}
	n.failed(k, r, now)
}

// record returns the record of a content that is NACKed for the first time.
func (n *Nacks) record(content *xds.Resource, now time.Time) *record {
	r := &record{version: content.Version, at: now, pause: MinPause, refers: make(map[xds.Key]struct{}), conflicts: xds.ConflictKeys(content)}
	if n.references != nil {
		for _, of := range n.references(content) {
			r.refers[of] = struct{}{}
		}
	}
	return r
}

// failed records that an offer has failed.
func (n *Nacks) failed(k xds.Key, r *record, now time.Time) {
	t := n.s.Table(k.Type)
	if e := t.Entry(k.Name); e != nil && e.Nack(r.version, r.refused) {
		n.nacked(t, k.Name)
	}
	r.at, r.offeredAt, r.refused, r.pause = now, time.Time{}, "", min(2*r.pause, MaxPause)
	if r.killed {
		r.pause = killedPause
	}
	if n.offered[k.Type] == k {
		delete(n.offered, k.Type)
		n.s.Wake()
	}
}

// Closed is called when a client has disconnected. What it was offered and has not answered counts as NACKed, with the reason of before:
// it may have ended because of it.
func (n *Nacks) Closed(client *subscriptions.Client, unanswered map[string][]string) {
	now := time.Now()
	for k, r := range n.records {
		if _, judges := r.judges[client]; !judges || r.offeredAt.IsZero() {
			continue
		}
		r.killed = r.killed || slices.Contains(unanswered[k.Type], k.Name) && now.Sub(r.offeredAt) < killedWithin
		n.answered(client, k, r, now)
	}
}

// Returned is called when a client comes that has something from an earlier stream: a process that went without an answer has not ended.
func (n *Nacks) Returned(now time.Time) {
	for _, r := range n.records {
		if r.killed && now.Sub(r.at) < killedWithin {
			r.killed, r.pause = false, 2*MinPause
		}
	}
}

// Settle is called when an event is over. It offers the suspects of a full-state type to clients once more, because one of the
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

// Tick offers again what is due, and returns when more is; the zero time for never.
func (n *Nacks) Tick(e *state.Event) (next time.Time) {
	if len(n.records) == 0 {
		return time.Time{}
	}
	now := e.Now
	for typeURL, k := range n.offered {
		r := n.records[k]
		if until := r.offeredAt.Add(offerTimeout); until.After(now) {
			next = wake.Earliest(next, until)
			continue
		}
		if delete(n.offered, typeURL); r.refused != "" {
			n.failed(k, r, now)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(n.records), state.CompareKeys) {
		r := n.records[k]
		switch _, busy := n.offered[k.Type]; {
		case r.due.IsZero() || busy:
		case r.due.After(now):
			next = wake.Earliest(next, r.due)
		case n.serves(k) && n.offer(e, k, r):
			n.offered[k.Type] = k
			next = wake.Earliest(next, now.Add(offerTimeout))
		}
	}
	return next
}

// offer offers a name again, if a client is there.
func (n *Nacks) offer(e *state.Event, k xds.Key, r *record) bool {
	t := n.s.Table(k.Type)
	entry := t.Entry(k.Name)
	if entry == nil || !n.s.Union.AnyOpen() || !n.s.IsUsed(t, k.Name, entry.Current()) || !entry.Offer() {
		return false
	}
	r.due, r.offeredAt, r.refused, r.killed = time.Time{}, e.Now, "", false
	r.judges = make(map[*subscriptions.Client]struct{})
	for client := range n.s.Union.OpenClients() {
		if subscribed := client.Of(k.Type); subscribed != nil && subscribed.Covers(entry.Current()) {
			r.judges[client] = struct{}{}
		}
	}
	r.offers++
	e.Changes(t).Add(k.Name, entry.Current())
	return true
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
			r.due, r.pause, r.killed, r.causes = now, MinPause, false, nil
			n.s.Wake()
		}
	}
	slices.SortFunc(names, state.CompareKeys)
	return names
}

// Rejected are the names of a type whose newest content is NACKed, or is offered again, in no order.
func (n *Nacks) Rejected(typeURL string) (names []string) {
	for k := range n.records {
		if k.Type == typeURL {
			names = append(names, k.Name)
		}
	}
	return names
}

// Tries is how a name that was NACKed is offered again.
type Tries struct {
	// Offers counts how often it was. Last is when it was last NACKed.
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
	return Tries{Offers: r.offers, Last: r.at, Since: r.offeredAt, Next: r.due, After: r.at.Add(r.pause)}, true
}

// Count counts the cached contents of a type that clients NACKed alone.
func (n *Nacks) Count(typeURL string) uint64 { return n.counts[typeURL] }
