// Package guard decides when removals take effect: those that look like an accident (a control
// plane that restarted with nothing, or lost sight of its source) are held back until a source that
// is asked again confirms them (design.md I10).
//
// It promises that:
//   - while removals of listeners or clusters are held back, so is every other removal, and what was
//     removed up to Grace before is held back with them: all that they refer to stays;
//   - only an answer to what was asked after Config.ConfirmAfter confirms them, never the time by
//     itself;
//   - without a limit nothing waits, but for what an agent before held back.
//
// It knows names and times, and neither what is held nor who subscribes: its owner says that. A Guard
// has no lock; its owner calls it under one of its own.
package guard

import (
	"iter"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// minHeld is how many resources must be held for a share of them to be too much to remove at
// once; to remove all is too much of any number (design.md I10).
const minHeld = 10

// Grace is how long, under a guard, the removal waits of what listeners and clusters refer to, and of
// clusters themselves: a control plane that removes everything may say it of endpoints and routes
// some messages before it says it of clusters and listeners.
const Grace = 5 * time.Second

// DefaultConfirmAfter is when sources are asked again for what they removed.
const DefaultConfirmAfter = 5 * time.Minute

// Config configures a Guard. The zero value holds nothing back.
type Config struct {
	// MaxRemovalPercent is the share of the listeners, or of the clusters, that one
	// answer may remove, in percent; 0 for no limit.
	MaxRemovalPercent int
	// ConfirmAfter is how long removals are held back before the sources are asked again,
	// on new streams; 0 for DefaultConfirmAfter. Only an answer to that confirms them.
	ConfirmAfter time.Duration
	// PruneAfter is how long what a source neither confirms nor removes is kept
	// after it told all it has; 0 for ever (protocol.md 7.7). The owner of a Guard prunes.
	PruneAfter time.Duration
}

// Guard holds removals back. Make one with New.
type Guard struct {
	cfg Config
	// deferred are the removals that have not taken effect, and when they will; the zero time while
	// they are held back.
	deferred map[xds.Key]time.Time
	// reported is how many removals of a type Reports last returned.
	reported map[string]int
	accident *accident // nil while nothing is held back
	changed  func(xds.Key)
}

// accident is a removal of too much. It ends when each of the listeners and clusters that were
// removed is there again, or is lacking in an answer of a source that was asked again.
type accident struct {
	since time.Time
	// askAgain: the time has passed, and the sources are to be asked again.
	askAgain bool
	// confirmed counts the removals of listeners and clusters that were confirmed.
	confirmed int
}

// New returns a Guard that holds nothing back. noted is called when the removal of a resource
// begins to wait, or does so in another way, or no longer; and with the zero Key when an accident
// begins or ends.
func New(cfg Config, noted func(xds.Key)) *Guard {
	if cfg.ConfirmAfter == 0 {
		cfg.ConfirmAfter = DefaultConfirmAfter
	}
	if cfg.MaxRemovalPercent == 0 {
		cfg.ConfirmAfter = 0 // held back by an agent before, which had a guard
	}
	return &Guard{cfg: cfg, deferred: make(map[xds.Key]time.Time), reported: make(map[string]int), changed: noted}
}

// Active reports whether removals may have to wait.
func (g *Guard) Active() bool { return g.cfg.MaxRemovalPercent > 0 || g.accident != nil }

// Since returns since when removals are held back; the zero time if none is.
func (g *Guard) Since() time.Time {
	if g.accident == nil {
		return time.Time{}
	}
	return g.accident.since
}

// Deferred reports whether a removal waits, and heldBack whether it is held back: it does not take
// effect by itself.
func (g *Guard) Deferred(k xds.Key) (waits, heldBack bool) {
	until, waits := g.deferred[k]
	return waits, waits && until.IsZero()
}

// Names yields the names of a type whose removal waits, in no order. None may be withheld meanwhile.
func (g *Guard) Names(typeURL string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k := range g.deferred {
			if k.Type == typeURL && !yield(k.Name) {
				return
			}
		}
	}
}

// HeldBack counts the removals of a type that are held back.
func (g *Guard) HeldBack(typeURL string) (n int) {
	for k, until := range g.deferred {
		if k.Type == typeURL && until.IsZero() {
			n++
		}
	}
	return n
}

// deferUntil makes a removal wait: until a time or, with the zero time, as long as there is an
// accident.
func (g *Guard) deferUntil(k xds.Key, until time.Time) {
	g.deferred[k] = until
	g.changed(k)
}

// Forget takes in that a name is held again, or is not held any more: its removal does not wait.
func (g *Guard) Forget(k xds.Key) {
	if _, waits := g.deferred[k]; waits {
		delete(g.deferred, k)
		g.changed(k)
	}
}

// Removal are the names of one type that a source says to be removed.
type Removal struct {
	Type  string
	Names []string
	// Held is how many resources of the type were held before; Has reports whether a name is held.
	Held int
	Has  func(name string) bool
	// RequestedAt is as in xds.Update. WithOthers says that the answer had other resources.
	RequestedAt time.Time
	WithOthers  bool
}

// Filter returns the removals that take effect now, and makes the others wait.
func (g *Guard) Filter(r Removal) (now []string) {
	if !g.Active() {
		return r.Names
	}
	guarded := xds.Info(r.Type).GuardRemovals
	confirms := guarded && g.confirms(r.RequestedAt)
	var waiting []string
	for _, name := range r.Names {
		waits, heldBack := g.Deferred(xds.Key{Type: r.Type, Name: name})
		switch {
		case !r.Has(name):
			now = append(now, name)
		case !waits || !heldBack:
			waiting = append(waiting, name)
		case confirms:
			g.accident.confirmed++
			now = append(now, name)
		}
	}
	switch {
	case len(waiting) == 0:
	case guarded && g.looksLikeAccident(r, waiting):
		g.holdBack(r.Type, waiting, confirms)
	case g.accident != nil && !confirms:
		for _, name := range waiting {
			g.deferUntil(xds.Key{Type: r.Type, Name: name}, time.Time{})
		}
	case g.needsNoGrace(r):
		now = append(now, waiting...)
	default:
		until := time.Now().Add(Grace)
		for _, name := range waiting {
			if waits, _ := g.Deferred(xds.Key{Type: r.Type, Name: name}); !waits {
				g.deferUntil(xds.Key{Type: r.Type, Name: name}, until)
			}
		}
	}
	return now
}

// needsNoGrace reports whether removals that nothing speaks against do not wait for Grace. A listener or
// scope that waited could collide with the one that replaces it: it has the same address, or key.
func (g *Guard) needsNoGrace(r Removal) bool {
	return g.cfg.MaxRemovalPercent == 0 || r.Type == xds.ListenerType || r.Type == xds.ScopedRouteType && r.WithOthers
}

// looksLikeAccident reports whether so many would go that it looks like an accident, together with those that
// go within Grace.
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

// holdBack begins an accident, or adds to the one that there is. again: these were removed in the
// answer that confirmed others, so that their time begins now.
func (g *Guard) holdBack(typeURL string, names []string, again bool) {
	if g.accident == nil || again {
		g.accident = &accident{since: time.Now()}
		g.changed(xds.Key{})
		clear(g.reported)
	}
	for _, name := range names {
		g.deferUntil(xds.Key{Type: typeURL, Name: name}, time.Time{})
	}
	for k, until := range g.deferred { // what came shortly before
		if !until.IsZero() {
			g.deferUntil(k, time.Time{})
		}
	}
}

// Reports returns how many removals of a type are held back, if that is worth a report: it has at
// least doubled, since a control plane may remove name by name.
func (g *Guard) Reports(typeURL string) (n int, worth bool) {
	n = g.HeldBack(typeURL)
	if !xds.Info(typeURL).GuardRemovals || n == 0 || n < 2*g.reported[typeURL] {
		return n, false
	}
	g.reported[typeURL] = n
	return n, true
}

// confirms reports whether something was requested so late that its answer confirms removals.
func (g *Guard) confirms(at time.Time) bool {
	return g.accident != nil && !at.Before(g.accident.since.Add(g.cfg.ConfirmAfter))
}

// AskAgain returns since when sources are to be asked anew; the zero time for no need to.
func (g *Guard) AskAgain() time.Time {
	if g.accident == nil || !g.accident.askAgain {
		return time.Time{}
	}
	return g.accident.since.Add(g.cfg.ConfirmAfter)
}

// Run returns what the time brings: ask, once for each accident, that the sources are to be asked
// again; the removals that take effect, by type; and when there is more, the zero time for never.
func (g *Guard) Run(now time.Time) (ask bool, due map[string][]string, next time.Time) {
	soonest := func(at time.Time) {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if a := g.accident; a != nil && !a.askAgain {
		if at := a.since.Add(g.cfg.ConfirmAfter); at.After(now) {
			soonest(at)
		} else {
			a.askAgain, ask = true, true
		}
	}
	due = make(map[string][]string)
	for k, at := range g.deferred {
		switch {
		case at.IsZero():
		case at.After(now):
			soonest(at)
		default:
			due[k.Type] = append(due[k.Type], k.Name)
		}
	}
	return ask, due, next
}

// ConfirmAbsent takes in that a source has told all it has of a type, and when it was asked: what it
// did not put is confirmed. A Delta source says so by being quiet only, and may have more to tell: the
// removals wait for Grace, in which they may be put again. It reports whether it confirmed any.
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

// End ends an accident if no listener or cluster is held back any more of which a source is to say
// whether it stands: once the sources are asked again, none is asked for a name that is not wanted.
// What else was removed meanwhile has Grace to be put again. It returns how many removals were
// confirmed.
func (g *Guard) End(now time.Time, wanted func(xds.Key) bool) (confirmed int, ended bool) {
	if g.accident == nil {
		return 0, false
	}
	for k, until := range g.deferred {
		if xds.Info(k.Type).GuardRemovals && until.IsZero() && (!g.accident.askAgain || wanted(k)) {
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

// RestoreAccident takes in since when removals were held back when the process ended before this
// one: their time goes on. A time that is still to come is that of a clock that was set back.
func (g *Guard) RestoreAccident(since, now time.Time) {
	if since.IsZero() || since.After(now) {
		since = now
	}
	if g.accident == nil || since.Before(g.accident.since) {
		g.accident = &accident{since: since}
	}
}

// Restore takes in a removal that was held back then.
func (g *Guard) Restore(k xds.Key) { g.deferred[k] = time.Time{} }

// FinishRestore forgets the removals that were held back and have nothing to hold, or no accident to
// belong to, after all was taken in.
func (g *Guard) FinishRestore(has func(xds.Key) bool) {
	for k, until := range g.deferred {
		if until.IsZero() && (g.accident == nil || !has(k)) {
			g.Forget(k)
		}
	}
}
