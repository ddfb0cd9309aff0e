package guard

import (
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Feature is a Guard that hears of what happens to a cache, and tells what it decides. Make one with NewFeature.
type Feature struct {
	*Guard
	cfg FeatureConfig
	// decision is that on the present answer.
	decision Decision
	complete map[string]complete // by type URL
	// reported is the report of which the sources know, reportedAt when it was made.
	reported   xds.AgentReport
	reportedAt time.Time
}

// complete says which source last sent everything it has of a type, and when the resources are removed that it did not confirm; the
// zero time for never.
type complete struct {
	source  string
	pruneAt time.Time
}

// FeatureConfig configures a Feature. The functions but OnEnd may be nil; all are called under the cache's lock: OnHeldBack with how
// many of how many resources of a type are held back, and since when, OnAskAgain when sources are asked again for
// these, OnHeldBackEnd when none is any more, with how many the sources confirmed, and OnEnd when some are not any more.
type FeatureConfig struct {
	State         *state.State
	OnHeldBack    func(typeURL string, heldBack, had int, since time.Time)
	OnAskAgain    func()
	OnHeldBackEnd func(confirmed int)
	OnEnd         func()
}

// Orders are what a Guard wants to be done: resources to be put in the place of those that are cached, and names to be removed.
type Orders struct {
	Put    []*xds.Resource
	Remove []xds.Key
	undo   []Undo
}

// NewFeature returns a Feature with nothing deferred.
func NewFeature(limits Config, cfg FeatureConfig) *Feature {
	f := &Feature{cfg: cfg, complete: make(map[string]complete)}
	f.Guard = New(limits, cfg.State.Existing, func(k xds.Key) {
		if k == (xds.Key{}) {
			cfg.State.PersistFact(state.AccidentFact, k)
			return
		}
		cfg.State.PersistFact(state.DeferredFact, k)
	})
	return f
}

// Begin decides on an answer, before any of its resources is put.
func (f *Feature) Begin(u xds.Update) {
	f.decision = f.Decide(u)
	if len(f.decision.HeldBack)+len(f.decision.Remember) > 0 {
		f.cfg.State.Wake()
	}
}

// Refuses reports whether a resource of the answer of Begin must not be put.
func (f *Feature) Refuses(name string) bool { return f.decision.HeldBack[name] }

// Before ends that a name is held back: it gets another content, or none.
func (f *Feature) Before(x *state.Change) {
	if !f.Quiet() {
		f.Forget(x.Key())
	}
}

// After remembers a change that may be the first sign of an accident.
func (f *Feature) After(x *state.Change) {
	if x.Kind != state.Put {
		return
	}
	if former := f.decision.Remember[x.Name]; former != nil && former.Type == x.Table.URL {
		f.Applied(former, x.Resource)
	}
}

// Removals returns the removals that take effect now.
func (f *Feature) Removals(r Removal) []string {
	if len(r.Names) > 0 && f.Active() {
		f.cfg.State.Wake() // some may be deferred
	}
	return f.Remove(r)
}

// Undo returns what was changed shortly before, and belongs to what is held back since: what there was must be put again, and the
// orders passed to Done.
func (f *Feature) Undo() (o Orders) {
	f.decision = Decision{} // everything of the answer is put
	for _, u := range f.UndoChanged() {
		if f.cfg.State.Existing(u.Former.Type).Entry(u.Former.Name) != nil {
			o.Put, o.undo = append(o.Put, u.Former), append(o.undo, u)
		}
	}
	return o
}

// Done records that orders were carried out.
func (f *Feature) Done(o Orders) {
	for _, u := range o.undo {
		f.Undone(u)
	}
}

// Settle is called when an answer of a type was applied that was requested at a time.
func (f *Feature) Settle(typeURL string, requestedAt time.Time) {
	f.ConfirmEmptied(typeURL, requestedAt)
	f.Tell(typeURL)
}

// Tell reports what is held back of a type, if that is worth it.
func (f *Feature) Tell(typeURL string) {
	if n, worth := f.Reports(typeURL); worth && f.cfg.OnHeldBack != nil {
		f.cfg.OnHeldBack(typeURL, n, f.Had(typeURL), f.HeldBackSince(typeURL))
	}
}

// Had is the number of resources of a type that are not empty.
func (f *Feature) Had(typeURL string) int { return notEmpty(f.cfg.State.Existing(typeURL)) }

// Complete records that a source has sent everything that it has of a type.
func (f *Feature) Complete(typeURL, source string, now time.Time) {
	c := complete{source: source, pruneAt: f.complete[typeURL].pruneAt}
	if f.Guard.cfg.PruneAfter > 0 && xds.FullState(typeURL) {
		c.pruneAt = now.Add(f.Guard.cfg.PruneAfter)
		f.cfg.State.Wake()
	}
	f.complete[typeURL] = c
}

// unconfirmed returns the names that the source which last sent everything did not send, and whose
// removal is not deferred.
func (f *Feature) unconfirmed(typeURL string) (names []xds.Key) {
	t, from := f.cfg.State.Table(typeURL), f.cfg.State.Sources.ID(f.complete[typeURL].source)
	for name, e := range t.All() {
		if k := t.Key(name); e.Source() != from && !e.KeepUnsubscribed && !f.Withheld(k) {
			names = append(names, k)
		}
	}
	return names
}

// Tick returns what is due: deferred removals, and those of what the source that last sent everything did not confirm in time. It asks
// the sources again for what is held back, if that is due. next is when more is due; the zero time for never.
func (f *Feature) Tick(now time.Time) (o Orders, next time.Time) {
	f.EndIfConfirmed(now) // a TTL or a subscription may have ended
	due := f.Run(now)
	if due.AskAgain {
		f.cfg.State.Union.Wake()
		if f.cfg.OnAskAgain != nil {
			f.cfg.OnAskAgain()
		}
		f.EndIfConfirmed(now)
	}
	next, o.Put = due.Next, due.Changed
	for typeURL, names := range due.Removed {
		for _, name := range names {
			o.Remove = append(o.Remove, xds.Key{Type: typeURL, Name: name})
		}
	}
	for typeURL, c := range f.complete {
		switch at := c.pruneAt; {
		case at.IsZero():
		case at.After(now):
			next = wake.Earliest(next, at)
		default:
			f.complete[typeURL] = complete{source: c.source}
			o.Remove = append(o.Remove, f.unconfirmed(typeURL)...)
		}
	}
	return o, next
}

// Ticked is called when the orders of Tick were carried out. It returns when the report is to be made again; the zero time for never.
func (f *Feature) Ticked(now time.Time) (next time.Time) {
	f.Tell(xds.EndpointType)
	f.Tell(xds.RouteType)
	return f.updateReport(now)
}

// EndIfConfirmed stops holding removals back if all of them are confirmed or their resources are back.
func (f *Feature) EndIfConfirmed(now time.Time) {
	if !f.Holding() && len(f.reported.HeldBack) == 0 {
		return
	}
	defer f.updateReport(now)
	confirmed, ended := f.End(now)
	if !ended {
		return
	}
	f.ended()
	if f.cfg.OnHeldBackEnd != nil {
		f.cfg.OnHeldBackEnd(confirmed)
	}
}

func (f *Feature) ended() {
	f.cfg.OnEnd()
	f.cfg.State.Wake()
}

// Released is called when what Release has let go has taken effect.
func (f *Feature) Released(now time.Time) {
	f.ended()
	f.updateReport(now)
}

// reportEvery is how often the report is made anew while something is held back: each looks at everything.
const reportEvery = time.Second

// Reported returns what a control plane that understands it is told, at most reportEvery old.
func (f *Feature) Reported() xds.AgentReport { return f.reported }

// updateReport makes the report anew and wakes the sources if it has changed. It returns when it is to be made
// again; the zero time for when something is held back.
func (f *Feature) updateReport(now time.Time) (next time.Time) {
	var report xds.AgentReport
	if f.Holding() {
		if next = f.reportedAt.Add(reportEvery); len(f.reported.HeldBack) > 0 && next.After(now) {
			return next
		}
		report, f.reportedAt, next = f.Report(f.cfg.State.Types()), now, now.Add(reportEvery)
	}
	if report.String() != f.reported.String() {
		f.reported = report
		f.cfg.State.Union.Wake()
	}
	return next
}

// Facts yields the removals that are deferred, and since when some are held back.
func (f *Feature) Facts(yield func(state.Fact) bool) {
	if !yield(state.Fact{Kind: state.AccidentFact}) {
		return
	}
	for k := range f.deferred {
		if !yield(state.Fact{Kind: state.DeferredFact, Type: k.Type, Name: k.Name}) {
			return
		}
	}
}

// Fact returns the value of a fact; known is false if it is another feature's.
func (f *Feature) Fact(of state.Fact) (value string, known bool) {
	switch of.Kind {
	case state.AccidentFact:
		since, last := f.Since()
		if last.Equal(since) {
			last = time.Time{}
		}
		return state.FormatTimes(since, last), true
	case state.DeferredFact:
		deferred, _ := f.Deferred(xds.Key{Type: of.Type, Name: of.Name})
		return state.If(deferred), true
	}
	return "", false
}

// RestoreFact restores a removal that the previous agent deferred, or since when it held some back.
func (f *Feature) RestoreFact(of state.Fact, value string, now time.Time) (known bool) {
	switch of.Kind {
	case state.AccidentFact:
		since, last := state.ParseTimes(value)
		if !last.IsZero() {
			since = last
		}
		f.RestoreAccident(since, now)
	case state.DeferredFact:
		if f.cfg.State.Table(of.Type).Entry(of.Name) == nil {
			f.Restore(xds.Key{Type: of.Type, Name: of.Name})
		} else {
			f.cfg.State.PersistFact(of.Kind, xds.Key{Type: of.Type, Name: of.Name}) // a source has put it since
		}
	default:
		return false
	}
	return true
}

// Restored is called after everything on disk was restored.
func (f *Feature) Restored() {
	f.FinishRestore(func(k xds.Key) bool { return f.cfg.State.Table(k.Type).Entry(k.Name) != nil })
}
