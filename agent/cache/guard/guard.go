// Package guard decides when removals take effect. Removals that look like an accident (a control
// plane that restarted empty, or lost its own source) are held back until a source that is asked
// again confirms them (design.md I10).
//
// It promises that:
//   - while removals of listeners or clusters are held back, so is every other removal, and so are
//     the removals of the last Grace before: everything that a held listener or cluster refers to
//     stays;
//   - only the answer to a request that was sent ConfirmAfter later confirms them, never the
//     passing of time;
//   - without a configured limit no removal is deferred, except those that the previous agent held
//     back.
//
// A deferred removal either takes effect after Grace or is held back. The package knows names and
// times, but neither the cached resources nor the subscriptions: its owner says those. A Guard has
// no lock; its owner serializes all calls.
package guard

import (
	"cmp"
	"iter"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// minHeld is the number of resources from which on removing a share of them can be too much;
// removing all is always too much (design.md I10).
const minHeld = 10

// Grace is how long the removals of clusters, and of resources that listeners and clusters refer
// to, are deferred: a control plane that removes everything may remove endpoints and routes some
// messages before clusters and listeners.
const Grace = 5 * time.Second

// DefaultConfirmAfter is when sources are asked again for what they removed.
const DefaultConfirmAfter = 5 * time.Minute

// Config configures a Guard. The zero value holds nothing back.
type Config struct {
	// MaxRemovalPercent is the share of the listeners, or of the clusters, that one answer may
	// remove, in percent; 0 means no limit.
	MaxRemovalPercent int
	// ConfirmAfter is how long removals are held back before the sources are asked again, on new
	// streams; 0 means DefaultConfirmAfter. Only the answer to that confirms them.
	ConfirmAfter time.Duration
	// PruneAfter is how long a resource stays that a source neither confirms nor removes, after the
	// source has sent everything it has; 0 means for ever (protocol.md 7.7). The owner of the Guard
	// removes it.
	PruneAfter time.Duration
}

// Guard defers removals. Make one with New.
type Guard struct {
	cfg Config
	// deferred has the removals that have not taken effect, and when they will; the zero time for
	// those that are held back.
	deferred map[xds.Key]time.Time
	// reported is the number of removals that Reports last returned for a type.
	reported map[string]int
	accident *accident // nil while nothing is held back
	changed  func(xds.Key)
}

// accident is a removal of too many resources. It ends when each of the listeners and clusters that
// were removed is back, or missing in the answer of a source that was asked again.
type accident struct {
	since time.Time
	// askAgain: ConfirmAfter has passed.
	askAgain bool
	// confirmed counts the confirmed removals of listeners and clusters.
	confirmed int
}

// New returns a Guard without deferred removals. changed is called when the removal of a resource
// is deferred, is deferred in the other way, or is not deferred any more; and with the zero Key
// when an accident begins or ends.
func New(cfg Config, changed func(xds.Key)) *Guard {
	cfg.ConfirmAfter = cmp.Or(cfg.ConfirmAfter, DefaultConfirmAfter)
	if cfg.MaxRemovalPercent == 0 {
		cfg.ConfirmAfter = 0 // for removals that the previous agent held back under a limit
	}
	return &Guard{cfg: cfg, deferred: make(map[xds.Key]time.Time), reported: make(map[string]int), changed: changed}
}

// Active reports whether removals may be deferred.
func (g *Guard) Active() bool { return g.cfg.MaxRemovalPercent > 0 || g.accident != nil }

// Since returns since when removals are held back; the zero time if none are.
func (g *Guard) Since() time.Time {
	if g.accident == nil {
		return time.Time{}
	}
	return g.accident.since
}

// Deferred reports whether the removal of a name is deferred, and whether it is held back, so that
// it does not take effect by itself.
func (g *Guard) Deferred(k xds.Key) (deferred, heldBack bool) {
	until, deferred := g.deferred[k]
	return deferred, deferred && until.IsZero()
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

// HeldBack is the number of removals of a type that are held back.
func (g *Guard) HeldBack(typeURL string) (n int) {
	for k, until := range g.deferred {
		if k.Type == typeURL && until.IsZero() {
			n++
		}
	}
	return n
}

// deferUntil defers a removal until a time or, with the zero time, until the accident ends.
func (g *Guard) deferUntil(k xds.Key, until time.Time) {
	g.deferred[k] = until
	g.changed(k)
}

// Forget records that a name has a resource again, or none any more: its removal is not deferred.
func (g *Guard) Forget(k xds.Key) {
	if deferred, _ := g.Deferred(k); deferred {
		delete(g.deferred, k)
		g.changed(k)
	}
}

// Removal describes the removals of one type in one answer.
type Removal struct {
	Type  string
	Names []string
	// Held is the number of cached resources before; Has reports whether a name is cached.
	Held int
	Has  func(name string) bool
	// RequestedAt is as in xds.Update. WithOthers says that the answer had resources, too.
	RequestedAt time.Time
	WithOthers  bool
}

// Filter returns the removals that take effect now, and defers the others.
func (g *Guard) Filter(r Removal) (now []string) {
	if !g.Active() {
		return r.Names
	}
	guarded := xds.Info(r.Type).GuardRemovals
	confirms := guarded && g.confirms(r.RequestedAt)
	var undecided []string // not held back so far
	for _, name := range r.Names {
		_, heldBack := g.Deferred(xds.Key{Type: r.Type, Name: name})
		switch {
		case !r.Has(name):
			now = append(now, name)
		case !heldBack:
			undecided = append(undecided, name)
		case confirms:
			g.accident.confirmed++
			now = append(now, name)
		}
	}
	switch {
	case len(undecided) == 0:
	case guarded && g.looksLikeAccident(r, undecided):
		g.holdBack(r.Type, undecided, confirms)
	case g.accident != nil && !confirms:
		g.deferAll(r.Type, undecided, time.Time{})
	// A removed listener or scope could conflict with the one that replaces it, which has the same
	// address or key.
	case g.cfg.MaxRemovalPercent == 0, r.Type == xds.ListenerType, r.Type == xds.ScopedRouteType && r.WithOthers:
		now = append(now, undecided...)
	default:
		g.deferAll(r.Type, undecided, time.Now().Add(Grace))
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

// looksLikeAccident reports whether the removals are too many, together with those that are
// deferred for Grace.
func (g *Guard) looksLikeAccident(r Removal, names []string) bool {
	if g.cfg.MaxRemovalPercent == 0 {
		return false
	}
	held, going := r.Held, 0
	for k, until := range g.deferred {
		switch {
		case k.Type != r.Type:
		case until.IsZero():
			held-- // held back already
		default:
			going++
		}
	}
	for _, name := range names {
		if waits, _ := g.Deferred(xds.Key{Type: r.Type, Name: name}); !waits {
			going++
		}
	}
	return held >= minHeld && going*100 > held*g.cfg.MaxRemovalPercent || going == held
}

// holdBack begins an accident, or adds removals to the present one. again says that they came in
// the answer that confirmed others, so that ConfirmAfter starts again.
func (g *Guard) holdBack(typeURL string, names []string, again bool) {
	if g.accident == nil || again {
		g.accident = &accident{since: time.Now()}
		g.changed(xds.Key{})
		clear(g.reported)
	}
	g.deferAll(typeURL, names, time.Time{})
	for k, until := range g.deferred { // those of the last Grace
		if !until.IsZero() {
			g.deferUntil(k, time.Time{})
		}
	}
}

// Reports returns how many removals of a type are held back, and whether that is worth a report: a
// control plane may remove name by name, so the number must have doubled since the last report.
func (g *Guard) Reports(typeURL string) (n int, worth bool) {
	n = g.HeldBack(typeURL)
	if !xds.Info(typeURL).GuardRemovals || n == 0 || n < 2*g.reported[typeURL] {
		return n, false
	}
	g.reported[typeURL] = n
	return n, true
}

// confirms reports whether the answer to a request that was sent at a time confirms removals.
func (g *Guard) confirms(at time.Time) bool {
	return g.accident != nil && !at.Before(g.accident.since.Add(g.cfg.ConfirmAfter))
}

// AskAgain returns the time since which every source must have requested everything once more, on a
// new stream; the zero time if none must.
func (g *Guard) AskAgain() time.Time {
	if g.accident == nil || !g.accident.askAgain {
		return time.Time{}
	}
	return g.accident.since.Add(g.cfg.ConfirmAfter)
}

// Run returns what is due: askAgain, once for each accident, when the sources must be asked again;
// the deferred removals that take effect, by type; and next, when more is due, the zero time for
// never.
func (g *Guard) Run(now time.Time) (askAgain bool, due map[string][]string, next time.Time) {
	if a := g.accident; a != nil && !a.askAgain {
		if at := a.since.Add(g.cfg.ConfirmAfter); at.After(now) {
			next = at
		} else {
			a.askAgain, askAgain = true, true
		}
	}
	due = make(map[string][]string)
	for k, at := range g.deferred {
		switch {
		case at.IsZero():
		case at.After(now):
			next = wake.Earliest(next, at)
		default:
			due[k.Type] = append(due[k.Type], k.Name)
		}
	}
	return askAgain, due, next
}

// ConfirmAbsent records that a source has sent everything that it has of a type, and when it was
// asked. This confirms the removals that are held back. A Delta source says so only by sending
// nothing for a while, and may have more to send: the removals take effect after Grace, unless the
// resources are put again. It reports whether it confirmed any.
func (g *Guard) ConfirmAbsent(typeURL string, requestedAt time.Time) (confirmed bool) {
	if !xds.Info(typeURL).GuardRemovals || !g.confirms(requestedAt) {
		return false
	}
	for k, until := range g.deferred {
		if k.Type == typeURL && until.IsZero() {
			g.accident.confirmed++
			g.deferUntil(k, time.Now().Add(Grace))
			confirmed = true
		}
	}
	return confirmed
}

// End ends the accident if no listener or cluster is held back whose removal a source can still
// confirm: after the sources were asked again, nobody asks them for a name without a subscription.
// The other removals that are held back take effect after Grace, unless the resources are put
// again. It returns how many removals were confirmed.
func (g *Guard) End(now time.Time, subscribed func(xds.Key) bool) (confirmed int, ended bool) {
	if g.accident == nil {
		return 0, false
	}
	for k, until := range g.deferred {
		if xds.Info(k.Type).GuardRemovals && until.IsZero() && (!g.accident.askAgain || subscribed(k)) {
			return 0, false
		}
	}
	confirmed = g.accident.confirmed
	g.accident = nil
	g.changed(xds.Key{})
	clear(g.reported)
	for k, until := range g.deferred {
		if until.IsZero() {
			g.deferUntil(k, now.Add(Grace))
		}
	}
	return confirmed, true
}

// RestoreAccident restores since when the previous agent held removals back. A time in the future
// means that the clock was set back.
func (g *Guard) RestoreAccident(since, now time.Time) {
	if since.IsZero() || since.After(now) {
		since = now
	}
	if g.accident == nil || since.Before(g.accident.since) {
		g.accident = &accident{since: since}
	}
}

// Restore restores a removal that the previous agent deferred; it is held back.
func (g *Guard) Restore(k xds.Key) { g.deferred[k] = time.Time{} }

// FinishRestore is called after everything was restored. It forgets the removals that are held back
// without a resource or without an accident.
func (g *Guard) FinishRestore(has func(xds.Key) bool) {
	for k, until := range g.deferred {
		if until.IsZero() && (g.accident == nil || !has(k)) {
			g.Forget(k)
		}
	}
}
