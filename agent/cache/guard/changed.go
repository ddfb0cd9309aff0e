package guard

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// minEmptied is of how many services (xds.Services) all resources of a type must have been emptied for
// that to be too much: one service with two subsets has three clusters.
const minEmptied = 3

// endpointsAsked is when sources are asked again after the endpoints of all clusters were emptied. It
// is earlier than for removals, because an address may belong to somebody else meanwhile.
var endpointsAsked = []time.Duration{5 * time.Second, 25 * time.Second}

// change is a content that a source has changed, and that is held back, or may be.
type change struct {
	// former is what there was before, latest what the source sends.
	former, latest *xds.Resource
	// applied says that latest is in effect. former is then kept until a time, because the change may
	// be the first sign of an accident.
	applied bool
	// until is when latest takes effect or, if it has, when former is forgotten; the zero time for
	// one that is held back.
	until time.Time
	// since is when it was held back; the zero time for one that is not.
	since time.Time
	// cause says that it is held back because all of its type were emptied; otherwise because it
	// belongs to a listener or cluster that is held back.
	cause bool
}

// emptied reports whether a change takes everything that a resource had.
func emptied(former, latest *xds.Resource) bool { return xds.Empty(latest) && !xds.Empty(former) }

func (c *change) heldBack() bool { return !c.applied && c.until.IsZero() }

// remembered reports whether the former content may be needed.
func (c *change) remembered() bool { return c.applied && c.until.After(time.Now()) }

// changed describes the resources of one type in one answer that have another content than what is
// cached.
type changed struct {
	typeURL   string
	resources []*xds.Resource
	// former returns the cached content of a name.
	former func(name string) *xds.Resource
	// belongs reports whether a change belongs to what is held back.
	belongs func(former, latest *xds.Resource) bool
	// left reports whether there is a resource of the type that is not empty, for whose name gone
	// returns false.
	left func(gone func(name string) bool) bool
	// requestedAt is xds.Update.RequestedAt.
	requestedAt time.Time
}

// Decision is what becomes of changed resources.
type Decision struct {
	// HeldBack has the names of those that do not take effect now.
	HeldBack map[string]bool
	// Remember has what others had before: it is passed to Applied when these have taken effect.
	Remember map[string]*xds.Resource
}

// Undo is a former content that takes effect again in the place of the latest.
type Undo struct {
	Former, Latest *xds.Resource
	cause          bool
}

// filterChanged decides what becomes of changed resources.
func (g *Guard) filterChanged(in changed) Decision {
	d := Decision{HeldBack: make(map[string]bool), Remember: make(map[string]*xds.Resource)}
	key := func(r *xds.Resource) xds.Key { return xds.Key{Type: in.typeURL, Name: r.Name} }
	a := g.accidentOf(in.typeURL)
	var undecided []*xds.Resource
	gone := make(map[string]*xds.Resource) // what those had that are emptied now
	for _, r := range in.resources {
		switch known := g.changes[key(r)]; {
		case known == nil || known.applied:
			undecided = append(undecided, r)
			if former := in.former(r.Name); emptied(former, r) {
				gone[r.Name] = former
			}
		case known.cause && !xds.Empty(r): // it is back
		case known.cause && a.confirms(known.since, in.requestedAt, g.contact):
			a.confirmed++
		case known.cause || in.belongs(known.former, r):
			known.latest, d.HeldBack[r.Name] = r, true
		}
	}
	all := len(gone) > 0 && enough(g.together(in.typeURL, gone, in.former, in.left))
	if all {
		g.holdEmptied(in.typeURL)
	}
	for _, r := range undecided {
		former := in.former(r.Name)
		caused := all && gone[r.Name] != nil
		if caused || g.accident != nil && in.belongs(former, r) {
			d.HeldBack[r.Name] = true
			g.Undone(Undo{former, r, caused})
			continue
		}
		if earlier := g.changes[key(r)]; earlier != nil && earlier.remembered() {
			former = earlier.former
		}
		d.Remember[r.Name] = former
	}
	return d
}

// emptying describes all resources of a type, endpoints or route configurations, of which some are removed.
type emptying struct {
	typeURL string
	// former and left are as in changed. needed reports whether a listener or cluster gets a resource by its name.
	former func(name string) *xds.Resource
	left   func(gone func(name string) bool) bool
	needed func(name string) bool
}

// holdRemoved holds the removals of these names back, which were deferred for Grace, and reports whether it does: if with them
// everything of the type is gone that had something and is needed still. Some control planes remove endpoints in Delta where others
// empty them. By then what a rename brings in their place is there, or the clusters have gone.
func (g *Guard) holdRemoved(names []string, in emptying) bool {
	had := func(name string) bool {
		former := in.former(name)
		return former != nil && !xds.Empty(former)
	}
	if g.accident != nil || !slices.ContainsFunc(names, had) {
		return false
	}
	gone := g.together(in.typeURL, nil, in.former, in.left) // the names are deferred, so they are in it
	maps.DeleteFunc(gone, func(name string, _ *xds.Resource) bool { return !in.needed(name) })
	if !enough(gone) {
		return false
	}
	g.holdEmptied(in.typeURL)
	return true
}

// together returns what all resources of a type had that were emptied or removed within Grace, with these, if nothing is left;
// otherwise nil. former and left are as in changed.
func (g *Guard) together(typeURL string, now map[string]*xds.Resource, former func(string) *xds.Resource, left func(func(string) bool) bool) map[string]*xds.Resource {
	if g.cfg.MaxRemovalPercent == 0 || typeURL == xds.EndpointType && !g.cfg.HoldEndpoints {
		return nil
	}
	gone := make(map[string]*xds.Resource)
	maps.Copy(gone, now)
	for k, c := range g.changes {
		if k.Type == typeURL && gone[k.Name] == nil && (!c.applied || c.remembered()) && emptied(c.former, c.latest) {
			gone[k.Name] = c.former
		}
	}
	for name := range g.Names(typeURL) {
		if had := former(name); gone[name] == nil && had != nil && !xds.Empty(had) {
			gone[name] = had
		}
	}
	if left(func(name string) bool { return gone[name] != nil }) {
		return nil
	}
	return gone
}

// enough reports whether that is too much to lose at once.
func enough(gone map[string]*xds.Resource) bool {
	return len(gone) >= minEmptied && xds.Services(slices.Collect(maps.Values(gone))) >= minEmptied
}

// holdEmptied begins an accident in which all resources of a type were emptied or removed, or adds to the present one. Removals of
// the type that wait are held back.
func (g *Guard) holdEmptied(typeURL string) {
	switch {
	case typeURL != xds.EndpointType:
		g.holdBack(typeURL, nil)
	case g.endpoints == nil:
		g.report()
		g.endpoints = &accident{asks: endpointsAsked}
	}
	g.refill = typeURL
	for k, d := range g.deferred {
		if k.Type != typeURL || d.cause || d.final {
			continue
		}
		if !d.until.IsZero() {
			g.deferUntil(k, time.Time{})
		}
		d = g.deferred[k]
		d.cause = true
		g.deferred[k] = d
	}
}

// Applied records that a changed resource has taken effect, in the place of the former content.
func (g *Guard) Applied(former, latest *xds.Resource) {
	if g.cfg.MaxRemovalPercent > 0 {
		g.changes[xds.Key{Type: latest.Type, Name: latest.Name}] = &change{former: former, latest: latest, applied: true, until: time.Now().Add(Grace)}
	}
}

// UndoChanged is called after each answer. It returns the changes of the last Grace that belong to what is held back now: what
// there was before must be put, and each passed to Undone then.
func (g *Guard) UndoChanged() (undo []Undo) { return g.undoChanged(g.belongs()) }

func (g *Guard) undoChanged(belongs func(former, latest *xds.Resource) bool) (undo []Undo) {
	if typeURL := g.refill; typeURL != "" {
		g.refill = ""
		undo = g.undo(func(former, latest *xds.Resource) bool { return latest.Type == typeURL && emptied(former, latest) }, true)
	}
	if g.accident == nil || len(g.changes) == 0 {
		return undo
	}
	for _, c := range g.changes {
		if c.heldBack() && c.cause && c.former.Type == xds.EndpointType && belongs(c.former, c.latest) {
			c.cause = false // it goes with its cluster
		}
	}
	return append(undo, g.undo(func(former, latest *xds.Resource) bool {
		return belongs(former, latest) && !slices.ContainsFunc(undo, func(u Undo) bool { return u.Latest == latest })
	}, false)...)
}

func (g *Guard) undo(which func(former, latest *xds.Resource) bool, cause bool) (undo []Undo) {
	for _, c := range g.changes {
		if c.remembered() && which(c.former, c.latest) {
			undo = append(undo, Undo{c.former, c.latest, cause})
		}
	}
	slices.SortFunc(undo, func(a, b Undo) int {
		return cmp.Or(xds.CompareTypes(a.Latest.Type, b.Latest.Type), cmp.Compare(a.Latest.Name, b.Latest.Name))
	})
	return undo
}

// Undone records that a former content is in effect, again or still, and that the latest is held back.
func (g *Guard) Undone(u Undo) {
	g.news[u.Latest.Type] = true
	g.changes[xds.Key{Type: u.Latest.Type, Name: u.Latest.Name}] = &change{former: u.Former, latest: u.Latest, since: time.Now(), cause: u.cause}
}

// ConfirmEmptied is called after each answer of a type. If it is the answer that confirms, what is
// still held back because all of the type were emptied, which the answer did not have, takes effect
// after Grace, unless it is put again.
func (g *Guard) ConfirmEmptied(typeURL string, requestedAt time.Time) {
	a := g.accidentOf(typeURL)
	if a == nil {
		return
	}
	for k, d := range g.deferred {
		if k.Type == typeURL && d.cause && d.until.IsZero() && a.confirms(d.since, requestedAt, g.contact) {
			a.confirmed++
			g.letGo(k, time.Now().Add(Grace))
		}
	}
	for k, c := range g.changes {
		if k.Type == typeURL && c.cause && c.heldBack() && a.confirms(c.since, requestedAt, g.contact) {
			a.confirmed++
			c.until = time.Now().Add(Grace)
		}
	}
}

// release ends that changes for which of returns true are held back: they take effect at a time.
func (g *Guard) release(of func(*change) bool, at time.Time) {
	for _, c := range g.changes {
		if c.heldBack() && of(c) {
			c.until = at
		}
	}
}

// runChanges adds the changes that are due.
func (g *Guard) runChanges(now time.Time, due *Due) {
	for k, c := range g.changes {
		switch {
		case c.until.IsZero():
		case c.until.After(now):
			due.Next = wake.Earliest(due.Next, c.until)
		case c.applied:
			delete(g.changes, k)
		default:
			due.Changed = append(due.Changed, c.latest)
		}
	}
}
