// Package guard decides when removals take effect. Removals that look like an accident (a control
// plane that restarted empty, or lost its own source) are held back until a source that is asked
// again confirms them (design.md I10). Endpoints and route configurations that lose everything they
// have, and changes that belong to removals, are treated like them (changed.go).
//
// It promises that:
//   - while removals of listeners or clusters are held back, so is every other removal, and so are
//     the removals of the last Grace before: everything that a held listener or cluster refers to
//     stays;
//   - only an operator confirms them, or the answer to a request that was sent ConfirmAfter after each
//     was held back, to a source with which the agent has been in contact for as long without a
//     break: one that was just born knows nothing yet;
//   - without a configured limit no removal is deferred, except those that the previous agent held
//     back.
//
// A deferred removal either takes effect after Grace or is held back. The rules know names and times;
// what they ask of the cached resources and the subscriptions is in tables.go, which only reads them. The
// owner of a Guard does what it decides. A Guard has no lock; its owner serializes all calls.
package guard

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// minHeld is the number of resources from which on removing a share of them can be too much;
// removing all is always too much (design.md I10).
const minHeld = 4

// Grace is how long the removals of clusters, and of resources that listeners and clusters refer
// to, are deferred: a control plane that removes everything may remove endpoints and routes some
// messages before clusters and listeners.
const Grace = 5 * time.Second

// Defaults of Config, for an agent. A control plane that starts is complete within seconds to half a
// minute, as was measured with istiod; what it still lacks after a minute it does not have.
const (
	DefaultMaxRemovalPercent = 50
	DefaultConfirmAfter      = time.Minute
)

// Config configures a Guard. The zero value holds nothing back.
type Config struct {
	// MaxRemovalPercent is the share of the listeners, or of the clusters, that may go within Grace
	// with nothing in their place, in percent; 0 means no limit.
	MaxRemovalPercent int
	// ConfirmAfter is how long removals are held back before the sources are asked again, on new
	// streams; 0 means DefaultConfirmAfter. Only the answer to that confirms them.
	ConfirmAfter time.Duration
	// HoldEndpoints says that endpoints are held back if those of all clusters are emptied. It has no
	// effect without MaxRemovalPercent.
	HoldEndpoints bool
	// CountNamed says that clients name the listeners and clusters that they need, as gRPC does: they
	// count. Those that an Envoy names it needs on demand: they never do, and are never held back.
	CountNamed bool
	// PruneAfter is how long a resource stays that a source neither confirms nor removes, after the
	// source has sent everything it has; 0 means for ever (protocol.md 7.7). The owner of the Guard
	// removes it.
	PruneAfter time.Duration
}

// Guard defers removals. Make one with New.
type Guard struct {
	cfg    Config
	tables func(typeURL string) *state.Table
	// deferred has the removals that have not taken effect.
	deferred map[xds.Key]deferral
	// changes has the resources that a source has changed in a way that is held back, or may be.
	changes map[xds.Key]*change
	// moves has what came and went within the last Grace, by type.
	moves map[string][]move
	// news has the types of which something is held back since Reports was last called.
	news map[string]bool
	// reported is the number of removals that Reports last returned for a type; reportedAt is when
	// it last returned one.
	reported   map[string]int
	reportedAt time.Time
	accident   *accident // nil while nothing is held back, but for endpoints
	endpoints  *accident // nil while no endpoints are held back because all were emptied
	// refill is the type of which those that were emptied shortly before get back what they had; "" for none.
	refill string
	// contact is since when the source that answered last has been in contact.
	contact time.Time
	// restored is since when the previous agent held removals back; the zero time for not.
	restored time.Time
	changed  func(xds.Key)
}

// deferral is a removal that has not taken effect: it will at a time or, if that is zero, is held back,
// since another.
type deferral struct {
	until, since time.Time
	// cause says that it is held back because all of its type were removed or emptied (changed.go). final says that it
	// was held back, and takes effect then in any case.
	cause, final bool
}

// move is what one answer brought and took of the resources that count.
type move struct {
	at             time.Time
	brought, taken int
}

// accident is a removal of too many resources. It ends when each of those that were removed is back,
// or missing in the answer of a source that was asked again.
type accident struct {
	// asks has how long after a resource was held back sources are asked again: the answer to the last
	// request confirms. asked is when they were asked last; the zero time for never.
	asks  []time.Duration
	asked time.Time
	// confirmed counts the confirmed removals.
	confirmed int
}

// confirmAfter is when a source can be asked for what confirms what was held back since a time; contact
// is since when the agent has been in contact with the source.
func (a *accident) confirmAfter(since, contact time.Time) time.Time {
	return wake.Latest(since, contact).Add(a.asks[len(a.asks)-1])
}

// confirms reports whether an answer confirms what was held back since a time: it was requested at a
// time.
func (a *accident) confirms(since, requestedAt, contact time.Time) bool {
	return a != nil && !requestedAt.Before(a.confirmAfter(since, contact))
}

// New returns a Guard without deferred removals, which reads tables. changed is called when the removal of a resource
// is deferred, is deferred in the other way, or is not deferred any more; and with the zero Key
// when an accident begins or ends, but for one of endpoints.
func New(cfg Config, tables func(typeURL string) *state.Table, changed func(xds.Key)) *Guard {
	cfg.ConfirmAfter = cmp.Or(cfg.ConfirmAfter, DefaultConfirmAfter)
	if cfg.MaxRemovalPercent == 0 {
		cfg.ConfirmAfter = 0 // for removals that the previous agent held back under a limit
	}
	return &Guard{
		cfg: cfg, tables: tables, deferred: make(map[xds.Key]deferral), changes: make(map[xds.Key]*change), moves: make(map[string][]move),
		news: make(map[string]bool), reported: make(map[string]int), changed: changed,
	}
}

// Quiet reports whether nothing is deferred or remembered.
func (g *Guard) Quiet() bool { return len(g.deferred)+len(g.changes) == 0 }

// Active reports whether removals may be deferred.
func (g *Guard) Active() bool { return g.cfg.MaxRemovalPercent > 0 || g.Holding() }

// HoldsRemovals reports whether removals are held back, and not only endpoints.
func (g *Guard) HoldsRemovals() bool { return g.accident != nil }

// Holding reports whether anything is held back.
func (g *Guard) Holding() bool { return g.accident != nil || g.endpoints != nil }

// Since returns since when removals are held back, but for those of endpoints alone, and since when the
// last one is; the zero times if none are.
func (g *Guard) Since() (first, last time.Time) {
	if g.accident == nil {
		return first, last
	}
	for k, d := range g.deferred {
		if d.until.IsZero() && !d.ofEndpoints(k) {
			first, last = wake.Earliest(first, d.since), wake.Latest(last, d.since)
		}
	}
	for k, c := range g.changes {
		if c.heldBack() && !(c.cause && k.Type == xds.EndpointType) {
			first, last = wake.Earliest(first, c.since), wake.Latest(last, c.since)
		}
	}
	return first, last
}

// ofEndpoints reports whether a removal is held back because there are no endpoints any more.
func (d deferral) ofEndpoints(k xds.Key) bool { return d.cause && k.Type == xds.EndpointType }

// HeldBackSince returns since when something of a type is held back; the zero time if nothing is.
func (g *Guard) HeldBackSince(typeURL string) (since time.Time) {
	for k, d := range g.deferred {
		if k.Type == typeURL && d.until.IsZero() {
			since = wake.Earliest(since, d.since)
		}
	}
	for k, c := range g.changes {
		if k.Type == typeURL && c.heldBack() {
			since = wake.Earliest(since, c.since)
		}
	}
	return since
}

// Deferred reports whether the removal of a name is deferred, and whether it is held back, so that
// it does not take effect by itself.
func (g *Guard) Deferred(k xds.Key) (deferred, heldBack bool) {
	d, deferred := g.deferred[k]
	return deferred, deferred && d.until.IsZero()
}

// Withheld reports whether clients have another resource of a name than the source, which removed or
// changed it.
func (g *Guard) Withheld(k xds.Key) bool {
	deferred, _ := g.Deferred(k)
	c := g.changes[k]
	return deferred || c != nil && !c.applied
}

// HoldsBack reports whether what the source did to a resource of a name is held back, so that it does not
// take effect by itself.
func (g *Guard) HoldsBack(k xds.Key) bool {
	_, heldBack := g.Deferred(k)
	c := g.changes[k]
	return heldBack || c != nil && c.heldBack()
}

// Latest returns what the source sends in the place of a content that is held back; nil if nothing is, or if it was removed.
func (g *Guard) Latest(k xds.Key) *xds.Resource {
	if c := g.changes[k]; c != nil && c.heldBack() {
		return c.latest
	}
	return nil
}

// Changes is the number of resources of a type whose change is held back although they were not emptied: they led to
// clusters that are held back.
func (g *Guard) Changes(typeURL string) (n int) {
	for k, c := range g.changes {
		if k.Type == typeURL && c.heldBack() && !xds.Empty(c.latest) {
			n++
		}
	}
	return n
}

// Names yields the names of a type whose removal is deferred, in no order. None may be added
// meanwhile.
func (g *Guard) Names(typeURL string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k := range g.deferred {
			if k.Type == typeURL && !yield(k.Name) {
				return
			}
		}
	}
}

// HeldBack is the number of resources of a type that are held back: their removal, or that they were
// emptied.
func (g *Guard) HeldBack(typeURL string) (n int) {
	for k, d := range g.deferred {
		if k.Type == typeURL && d.until.IsZero() {
			n++
		}
	}
	for k, c := range g.changes {
		if k.Type == typeURL && c.heldBack() && xds.Empty(c.latest) {
			n++
		}
	}
	return n
}

// deferUntil defers a removal until a time or, with the zero time, until the accident ends.
func (g *Guard) deferUntil(k xds.Key, until time.Time) {
	d := deferral{until: until}
	if until.IsZero() {
		d.since = time.Now()
		g.news[k.Type] = true
	}
	g.deferred[k] = d
	g.changed(k)
}

// letGo makes a removal that was held back take effect at a time.
func (g *Guard) letGo(k xds.Key, at time.Time) {
	g.deferred[k] = deferral{until: at, final: true}
	g.changed(k)
}

// Forget records that a name has another content, or no resource any more: its removal is not
// deferred.
func (g *Guard) Forget(k xds.Key) {
	delete(g.changes, k)
	if deferred, _ := g.Deferred(k); deferred {
		delete(g.deferred, k)
		g.changed(k)
	}
}

// brought records how many resources that count an answer has brought which were not there, of a
// type of which everything was known: they may be in the place of others that go.
func (g *Guard) brought(typeURL string, n int) { g.moved(typeURL, move{brought: n}) }

// took records how many resources that count an answer has taken by replacing them in their place: what
// it brought in their place is not in the place of others.
func (g *Guard) took(typeURL string, n int) { g.moved(typeURL, move{taken: n}) }

func (g *Guard) moved(typeURL string, m move) {
	if m != (move{}) && g.cfg.MaxRemovalPercent > 0 {
		m.at = time.Now()
		g.moves[typeURL] = append(g.recent(typeURL), m)
	}
}

// recent returns what moved within the last Grace.
func (g *Guard) recent(typeURL string) []move {
	moves := g.moves[typeURL]
	for len(moves) > 0 && time.Since(moves[0].at) >= Grace {
		moves = moves[1:]
	}
	return moves
}

// removal describes the removals of one type in one answer.
type removal struct {
	typeURL string
	names   []string
	// all is the number of cached resources that could be removed, after those in the answer were put. counting is
	// how many of them count, as counts reports of a name: those that not every sidecar has. has
	// reports whether a name is cached.
	all, counting int
	counts        func(name string) bool
	has           func(name string) bool
	// requestedAt is xds.Update.RequestedAt. withOthers says that the answer had resources, too.
	requestedAt time.Time
	withOthers  bool
}

// filter returns the removals that take effect now, and defers the others.
func (g *Guard) filter(r removal) (now []string) {
	if g.cfg.MaxRemovalPercent == 0 && g.accident == nil {
		return r.names
	}
	guarded := xds.Info(r.typeURL).GuardRemovals
	var undecided []string // not held back so far
	for _, name := range r.names {
		d, deferred := g.deferred[xds.Key{Type: r.typeURL, Name: name}]
		switch {
		case !r.has(name):
			now = append(now, name)
		case !deferred || !d.until.IsZero():
			undecided = append(undecided, name)
		case (guarded || d.cause) && g.accidentOf(r.typeURL).confirms(d.since, r.requestedAt, g.contact):
			g.accidentOf(r.typeURL).confirmed++
			now = append(now, name)
		}
	}
	if len(undecided) == 0 {
		return now
	}
	var few, tooMany bool
	if guarded {
		few, tooMany = g.judge(r, undecided)
	}
	switch {
	case tooMany:
		g.holdBack(r.typeURL, undecided)
	case g.accident != nil:
		g.deferAll(r.typeURL, undecided, time.Time{})
	// A removed listener or scope could conflict with the one that replaces it, which has the same
	// address or key.
	case g.cfg.MaxRemovalPercent == 0, few, r.typeURL == xds.ListenerType, r.typeURL == xds.ScopedRouteType && r.withOthers:
		now = append(now, undecided...)
		if guarded {
			g.tookAll(r, undecided)
		}
	default:
		g.deferAll(r.typeURL, undecided, time.Now().Add(Grace))
	}
	return now
}

// deferAll is deferUntil for several names, except that no removal is deferred for Grace twice.
func (g *Guard) deferAll(typeURL string, names []string, until time.Time) {
	for _, name := range names {
		k := xds.Key{Type: typeURL, Name: name}
		if deferred, _ := g.Deferred(k); !deferred || until.IsZero() {
			g.deferUntil(k, until)
		}
	}
}

// tookAll records removals that take effect at once.
func (g *Guard) tookAll(r removal, names []string) {
	n := 0
	for _, name := range names {
		if r.counts(name) {
			n++
		}
	}
	g.took(r.typeURL, n)
}

// judge reports whether the removals leave too little, together with what went within the last
// Grace and less what came, and whether there were too few for that, but that nothing is left.
func (g *Guard) judge(r removal, names []string) (few, tooMany bool) {
	if g.cfg.MaxRemovalPercent == 0 {
		return false, false
	}
	all, left, loss := r.all, r.counting, 0
	gone := func(name string, heldBack bool) {
		all--
		if r.counts(name) {
			left--
			if !heldBack {
				loss++
			}
		}
	}
	for k, d := range g.deferred {
		if k.Type == r.typeURL {
			gone(k.Name, d.until.IsZero())
		}
	}
	counting := false
	for _, name := range names {
		if waits, _ := g.Deferred(xds.Key{Type: r.typeURL, Name: name}); !waits {
			gone(name, false)
		}
		counting = counting || r.counts(name)
	}
	for _, m := range g.recent(r.typeURL) {
		loss += m.taken - m.brought
	}
	held := left + loss
	few = held < minHeld
	return few, all == 0 || counting && left == 0 || !few && loss*100 > held*g.cfg.MaxRemovalPercent
}

// holdBack begins an accident, or adds removals to the present one, and those of the last Grace.
func (g *Guard) holdBack(typeURL string, names []string) {
	g.report()
	if g.accident == nil {
		g.accident = &accident{asks: []time.Duration{g.cfg.ConfirmAfter}}
	}
	g.deferAll(typeURL, names, time.Time{})
	for k, d := range g.deferred {
		switch {
		case !d.until.IsZero():
			g.deferUntil(k, time.Time{})
		case d.ofEndpoints(k): // it goes with the others
			d.cause = false
			g.deferred[k] = d
		}
	}
	g.changed(xds.Key{})
}

// accidentOf returns the accident that what was emptied, or removed, of a type belongs to; nil for none.
func (g *Guard) accidentOf(typeURL string) *accident {
	if typeURL == xds.EndpointType && g.endpoints != nil {
		return g.endpoints
	}
	return g.accident
}

// report makes what is held back from now on worth a report, if the last one was long ago.
func (g *Guard) report() {
	if time.Since(g.reportedAt) >= g.cfg.ConfirmAfter {
		clear(g.reported)
	}
}

// Reports returns how many removals of a type are held back, and whether that is worth a report: a
// control plane may remove name by name, or everything each second, so of one accident, and of those
// that begin within ConfirmAfter of the last report, the number must have doubled.
func (g *Guard) Reports(typeURL string) (n int, worth bool) {
	if !g.news[typeURL] {
		return 0, false
	}
	delete(g.news, typeURL)
	n = g.HeldBack(typeURL)
	own := xds.Info(typeURL).GuardRemovals
	for k, d := range g.deferred {
		own = own || k.Type == typeURL && d.cause
	}
	for k, c := range g.changes {
		own = own || k.Type == typeURL && c.heldBack() && c.cause
	}
	if !own || n == 0 || n < 2*g.reported[typeURL] {
		return n, false
	}
	g.reported[typeURL], g.reportedAt = n, time.Now()
	return n, true
}

// AskAgain returns the time since which every source must have requested everything once more, on a
// new stream; the zero time if none must.
func (g *Guard) AskAgain() (since time.Time) {
	for _, a := range []*accident{g.accident, g.endpoints} {
		if a != nil {
			since = wake.Latest(since, a.asked)
		}
	}
	return since
}

// Contact records, before an answer is judged, since when its source has been in contact without a break.
func (g *Guard) Contact(since time.Time) { g.contact = since }

// causes yields what is held back for its own sake, and since when: listeners and clusters, and what was
// emptied with all others of its type; either of endpoints or of everything else.
func (g *Guard) causes(endpoints bool) iter.Seq2[xds.Key, time.Time] {
	return func(yield func(xds.Key, time.Time) bool) {
		for k, d := range g.deferred {
			caused := d.cause || xds.Info(k.Type).GuardRemovals
			if caused && d.until.IsZero() && endpoints == d.ofEndpoints(k) && !yield(k, d.since) {
				return
			}
		}
		for k, c := range g.changes {
			if c.cause && c.heldBack() && endpoints == (k.Type == xds.EndpointType) && !yield(k, c.since) {
				return
			}
		}
	}
}

// nextAsk returns when sources must be asked again for an accident; the zero time for not. They are asked
// for each cause at each of the times, but not for one soon after the other.
func (g *Guard) nextAsk(a *accident) (at time.Time) {
	for _, since := range g.causes(a == g.endpoints) {
		for _, after := range a.asks {
			if t := wake.Latest(since, g.contact).Add(after); a.asked.Before(t) {
				at = wake.Earliest(at, t)
			}
		}
	}
	if at.IsZero() || a.asked.IsZero() {
		return at
	}
	return wake.Latest(at, a.asked.Add(a.asks[0]/4))
}

// askedFor reports whether the sources were asked for what confirms a cause.
func (g *Guard) askedFor(a *accident, since time.Time) bool {
	return !a.asked.Before(a.confirmAfter(since, g.contact))
}

// ConfirmedAt returns when sources are, or were, asked for the answer that confirms what is held back of a
// type; the zero time if nothing is.
func (g *Guard) ConfirmedAt(typeURL string) (at time.Time) {
	a := g.accidentOf(typeURL)
	if a == nil {
		return time.Time{}
	}
	for _, since := range g.causes(a == g.endpoints) {
		if !g.askedFor(a, since) {
			at = wake.Earliest(at, a.confirmAfter(since, g.contact))
		}
	}
	if at.IsZero() {
		return a.asked
	}
	return at
}

// Due is what is due at a time.
type Due struct {
	// AskAgain says that the sources must be asked again.
	AskAgain bool
	// Removed has the deferred removals that take effect, by type, Changed the contents that were held
	// back.
	Removed map[string][]string
	Changed []*xds.Resource
	// Next is when more is due; the zero time for never.
	Next time.Time
}

// Run returns what is due.
func (g *Guard) Run(now time.Time) Due { return g.run(now, g.emptying) }

// run is Run; emptying returns how the removals of a type that are due are judged (holdRemoved).
func (g *Guard) run(now time.Time, emptying func(typeURL string) emptying) Due {
	due := Due{Removed: make(map[string][]string)}
	for _, a := range []*accident{g.accident, g.endpoints} {
		if a == nil {
			continue
		}
		at := g.nextAsk(a)
		if !at.IsZero() && !at.After(now) {
			a.asked, due.AskAgain = now, true
			at = g.nextAsk(a)
		}
		due.Next = wake.Earliest(due.Next, at)
	}
	for k, d := range g.deferred {
		switch at := d.until; {
		case at.IsZero():
		case at.After(now):
			due.Next = wake.Earliest(due.Next, at)
		default:
			due.Removed[k.Type] = append(due.Removed[k.Type], k.Name)
		}
	}
	for _, typeURL := range []string{xds.EndpointType, xds.RouteType} {
		isFinal := func(name string) bool { return g.deferred[xds.Key{Type: typeURL, Name: name}].final }
		names := slices.DeleteFunc(slices.Clone(due.Removed[typeURL]), isFinal)
		if len(names) > 0 && g.holdRemoved(names, emptying(typeURL)) {
			due.Removed[typeURL] = slices.DeleteFunc(due.Removed[typeURL], func(name string) bool { return !isFinal(name) })
		}
	}
	g.runChanges(now, &due)
	return due
}

// ConfirmAbsent records that a source has sent everything that it has of a type, and when it was
// asked. This confirms the removals that are held back. A Delta source says so only by sending
// nothing for a while, and may have more to send: the removals take effect after Grace, unless the
// resources are put again. It reports whether it confirmed any.
func (g *Guard) ConfirmAbsent(typeURL string, requestedAt time.Time) (confirmed bool) {
	if !xds.Info(typeURL).GuardRemovals {
		return false
	}
	for k, d := range g.deferred {
		if k.Type == typeURL && d.until.IsZero() && g.accident.confirms(d.since, requestedAt, g.contact) {
			g.accident.confirmed++
			g.letGo(k, time.Now().Add(Grace))
			confirmed = true
		}
	}
	return confirmed
}

// End ends an accident if nothing that began it is held back whose removal a source can still
// confirm: after the sources were asked again, nobody asks them for a name without a subscription.
// The other removals that are held back take effect after Grace, unless the resources are put
// again. It returns how many removals were confirmed.
func (g *Guard) End(now time.Time) (confirmed int, ended bool) { return g.end(now, g.subscribed) }

func (g *Guard) end(now time.Time, subscribed func(xds.Key) bool) (confirmed int, ended bool) {
	if g.endpoints != nil && !g.blocked(g.endpoints, subscribed) {
		confirmed = g.endpoints.confirmed
		ended = confirmed > 0 || g.accident == nil // or they go with what is held back still
		g.endpoints = nil
		for k, d := range g.deferred {
			if d.ofEndpoints(k) {
				g.letGo(k, now.Add(Grace))
			}
		}
		g.release(func(c *change) bool { return c.cause && c.former.Type == xds.EndpointType }, now.Add(Grace))
	}
	if g.accident != nil && !g.blocked(g.accident, subscribed) {
		confirmed, ended = confirmed+g.accident.confirmed, true
		g.endRemovals(now.Add(Grace))
	}
	return confirmed, ended
}

// blocked reports whether a source can still confirm a cause of an accident.
func (g *Guard) blocked(a *accident, subscribed func(xds.Key) bool) bool {
	for k, since := range g.causes(a == g.endpoints) {
		if !g.askedFor(a, since) || subscribed(k) {
			return true
		}
	}
	return false
}

// endRemovals ends the accident: what it held back takes effect at a time.
func (g *Guard) endRemovals(at time.Time) {
	g.accident = nil
	g.changed(xds.Key{})
	for k, d := range g.deferred {
		if d.until.IsZero() && !d.ofEndpoints(k) {
			g.letGo(k, at)
		}
	}
	g.release(func(c *change) bool { return !c.cause || c.former.Type != xds.EndpointType }, at)
}

// Release ends all accidents: what is held back takes effect now, with the next Run. It reports
// whether anything was held back.
func (g *Guard) Release(now time.Time) bool {
	if !g.Holding() {
		return false
	}
	if g.accident != nil {
		g.endRemovals(now)
	}
	g.endpoints = nil
	for k, d := range g.deferred {
		if d.until.IsZero() {
			g.letGo(k, now)
		}
	}
	g.release(func(*change) bool { return true }, now)
	return true
}

// RestoreAccident restores since when the previous agent held the last removal back. A time in the future
// means that the clock was set back.
func (g *Guard) RestoreAccident(since, now time.Time) {
	if since.IsZero() || since.After(now) {
		since = now
	}
	g.restored = since
	if g.accident == nil {
		g.accident = &accident{asks: []time.Duration{g.cfg.ConfirmAfter}}
	}
}

// Restore restores a removal that the previous agent deferred; it is held back.
func (g *Guard) Restore(k xds.Key) { g.deferred[k] = deferral{} }

// FinishRestore is called after everything was restored. It forgets the removals that are held back
// without a resource or without an accident.
func (g *Guard) FinishRestore(has func(xds.Key) bool) {
	for k, d := range g.deferred {
		switch {
		case !d.until.IsZero():
		case g.accident == nil || !has(k):
			g.Forget(k)
		case d.since.IsZero():
			g.deferred[k] = deferral{since: g.restored}
			g.news[k.Type] = true
		}
	}
}
