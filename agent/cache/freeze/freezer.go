package freeze

import (
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Freezer is the feature that serves what is pinned in the place of what the sources send. Make one with New.
type Freezer struct {
	s        *state.State
	order    *Order               // nil if nothing is frozen
	pins     Pins                 // without a freeze there are none
	unstored map[xds.Key]struct{} // names of Unstored, until the freeze ends
}

// New returns a Freezer with which nothing is frozen.
func New(s *state.State) *Freezer { return &Freezer{s: s} }

// Order returns what is frozen; nil for nothing.
func (f *Freezer) Order() *Order { return f.order }

// Quiet reports whether nothing is frozen.
func (f *Freezer) Quiet() bool { return f.order == nil }

// Begin freezes what an order says, in the place of what was frozen.
func (f *Freezer) Begin(o *Order) {
	f.order, f.unstored = o, nil
	f.s.PersistFact(state.FreezeFact, xds.Key{})
	f.s.Wake()
}

// Unstored says which names had a content that could not be stored, before they are restored. If they are frozen,
// that content is not known any more: they are served as the sources send them, because nothing would be
// worse.
func (f *Freezer) Unstored(names []xds.Key) {
	for _, k := range names {
		if f.unstored == nil {
			f.unstored = make(map[xds.Key]struct{})
		}
		f.unstored[k] = struct{}{}
	}
}

func (f *Freezer) isUnstored(k xds.Key) bool {
	_, is := f.unstored[k]
	return is
}

// Pinned are the names that are pinned, in no order.
func (f *Freezer) Pinned() iter.Seq[xds.Key] {
	return func(yield func(xds.Key) bool) {
		for k := range f.pins.All() {
			if !yield(k) {
				return
			}
		}
	}
}

// Count is the number of names of a type that are pinned.
func (f *Freezer) Count(typeURL string) int { return f.pins.Count(typeURL) }

// End ends the freeze: what the sources have sent last is served.
func (f *Freezer) End() {
	f.order, f.unstored = nil, nil
	f.s.PersistFact(state.FreezeFact, xds.Key{})
	for k, pin := range f.pins.Clear() {
		f.ended(k, pin)
	}
}

// ended is called for a pin that was dropped.
func (f *Freezer) ended(k xds.Key, pin *Pin) {
	if e := f.s.Table(k.Type).Entry(k.Name); e != nil && state.SameVersion(pin.Acked(), e.Current()) {
		e.Ack(e.Current()) // the clients have it
	}
	f.s.PersistFact(state.PinnedFact, k)
	f.s.Persist(k)
}

// Pin serves a content under a name, nil for none, as if clients had accepted it.
func (f *Freezer) Pin(k xds.Key, r *xds.Resource) {
	pin := &Pin{NotFound: r == nil}
	if r != nil {
		pin.History = history.Restored(history.Saved{Content: r, Acked: true})
	}
	f.set(k, pin)
}

func (f *Freezer) set(k xds.Key, pin *Pin) {
	f.pins.Set(k, pin)
	f.s.PersistFact(state.PinnedFact, k)
	f.s.Persist(k)
}

// Before pins what a name is before a source changes it.
func (f *Freezer) Before(x *state.Change) {
	k := x.Key()
	switch {
	case f.order == nil || x.Kind == state.Dropped && !x.Expired || f.s.IsLocal(k):
	case x.Expired: // what is frozen has a TTL, too
		f.Expire(k)
	default:
		x.Withheld = f.pin(x, k)
	}
}

// Expire ends that a name is pinned, because its TTL has ended.
func (f *Freezer) Expire(k xds.Key) {
	if f.pins.Drop(k) != nil {
		f.s.PersistFact(state.PinnedFact, k)
		f.s.Persist(k)
	}
}

// pin pins what a name is, and reports whether the change must not be served.
func (f *Freezer) pin(x *state.Change, k xds.Key) (frozen bool) {
	removed := x.Kind == state.Removed
	switch isFrozen := f.order.Frozen(k); {
	case f.pins.Of(k) != nil:
		if isFrozen || removed {
			return isFrozen
		}
		f.ended(k, f.pins.Drop(k)) // the source has the resource again
		return false
	case x.Entry != nil && !removed && x.Entry.Current().Version == x.Resource.Version:
		return false
	case !isFrozen && (x.Entry == nil || !removed || !x.Table.Names.Has(x.Name)):
		return false
	case x.Entry != nil:
		f.set(k, &Pin{History: x.Entry.Clone()})
		return isFrozen
	case f.isUnstored(k):
		return false
	case x.Table.NotFound(x.Name) || x.Table.Names.Requested(xds.Wildcard) && x.Table.Knowledge() != xds.Unknown:
		f.set(k, &Pin{NotFound: x.Table.NotFound(x.Name)})
		return true
	}
	// Nothing was served under this name before, and a client has just begun to need it.
	return false
}

// After gives what is pinned the lifetime of what the source has sent.
func (f *Freezer) After(x *state.Change) {
	if x.Kind == state.Put && f.pins.Any() {
		f.SetLifetime(x.Key(), x.Entry.Current())
	}
}

// SetLifetime gives what is pinned the lifetime that the source gave the name.
func (f *Freezer) SetLifetime(k xds.Key, r *xds.Resource) {
	pin := f.pins.Of(k)
	if pin == nil || pin.Absent() || pin.Current().TTL() == r.TTL() && pin.Current().Deadline().Equal(r.Deadline()) {
		return
	}
	pin.Put(pin.Current().WithLifetime(r.TTL(), r.Deadline()), pin.Source())
	f.s.Persist(k)
}

// Withholds reports whether a source has sent something else under a name than what is pinned.
func (f *Freezer) Withholds(k xds.Key) bool {
	pin := f.pins.Of(k)
	return pin != nil && f.waits(k, pin)
}

func (f *Freezer) waits(k xds.Key, pin *Pin) bool {
	return !state.SameVersion(f.s.Existing(k.Type).Resource(k.Name), pin.Current())
}

// Waiting is the number of changes that a freeze holds back, by type.
type Waiting map[string]int

// Waiting returns how many changes wait.
func (f *Freezer) Waiting() Waiting {
	waiting := make(Waiting)
	for k, pin := range f.pins.All() {
		if f.waits(k, pin) {
			waiting[k.Type]++
		}
	}
	return waiting
}

// Ack records that a client ACKed a content, and reports whether its name is pinned, so that it is an answer to that.
func (f *Freezer) Ack(t *state.Table, _ *contents.Entry, r *xds.Resource) (taken bool) {
	if f.pins.Count(t.URL) == 0 {
		return false
	}
	pin := f.pins.Of(t.Key(r.Name))
	if pin != nil && !pin.Absent() {
		pin.Ack(r)
	}
	return pin != nil
}

// History returns the history of what is served under a name: the pinned one, or that of the entry;
// nil if there is no content.
func (f *Freezer) History(t *state.Table, name string) *history.History {
	if f.pins.Count(t.URL) > 0 {
		if pin := f.pins.Of(t.Key(name)); pin != nil {
			if pin.Absent() {
				return nil
			}
			return &pin.History
		}
	}
	if e := t.Entry(name); e != nil {
		return &e.History
	}
	return nil
}

// Accepted returns what clients have accepted of what is served under a name; nil for nothing, and for what the agent itself makes. e is
// the entry of the name; nil for none.
func (f *Freezer) Accepted(t *state.Table, name string, e *contents.Entry) *xds.Resource {
	if f.pins.Count(t.URL) > 0 {
		if pin := f.pins.Of(t.Key(name)); pin != nil {
			return pin.Acked()
		}
	}
	if e == nil || e.IsLocal() {
		return nil
	}
	return e.Acked()
}

// AcceptedNow returns what clients have accepted of what is served under a name; nil for nothing.
func (f *Freezer) AcceptedNow(k xds.Key) *xds.Resource {
	if h := f.History(f.s.Existing(k.Type), k.Name); h != nil {
		return h.Acked()
	}
	return nil
}

// Sent returns the content of a name that clients are sent; nil for none.
func (f *Freezer) Sent(t *state.Table, name string) *xds.Resource {
	if h := f.History(t, name); h != nil {
		return h.Sent()
	}
	return nil
}

// Current returns what is pinned under a name; nil for nothing. pinned reports whether the name is pinned.
func (f *Freezer) Current(k xds.Key) (r *xds.Resource, pinned bool) {
	pin := f.pins.Of(k)
	if pin == nil {
		return nil, false
	}
	return pin.Current(), true
}

// Serving reports whether a name of a type is pinned.
func (f *Freezer) Serving(t *state.Table) bool { return f.pins.Count(t.URL) > 0 }

// Serve says that what is pinned under a name or an alias is served.
func (f *Freezer) Serve(t *state.Table, name string, e *contents.Entry) (xds.Item, bool) {
	if e != nil {
		name = e.Current().Name
	}
	pin := f.pins.Of(t.Key(name))
	if pin == nil && e == nil {
		for k, p := range f.pins.All() {
			if k.Type == t.URL && !p.Absent() && slices.Contains(p.Current().Aliases(), name) {
				pin = p
			}
		}
	}
	if pin == nil {
		return xds.Item{}, false
	}
	return pin.Item(), true
}

// Unlisted yields the names of a type that are pinned and have no resource.
func (f *Freezer) Unlisted(t *state.Table) iter.Seq[string] {
	return func(yield func(string) bool) {
		for k := range f.pins.All() {
			if k.Type == t.URL && t.Entry(k.Name) == nil && !yield(k.Name) {
				return
			}
		}
	}
}

// Store says that what is pinned is on disk.
func (f *Freezer) Store(t *state.Table, name string, _ *contents.Entry) (history.Saved, bool) {
	if f.pins.Count(t.URL) == 0 {
		return history.Saved{}, false
	}
	switch pin := f.pins.Of(t.Key(name)); {
	case pin == nil:
		return history.Saved{}, false
	case pin.Absent():
		return history.Saved{}, true
	default:
		return pin.Save(), true
	}
}

// Values of a PinnedFact beside yes.
const (
	pinnedAbsent   = "absent"
	pinnedNotFound = "not found"
)

// Facts yields what is frozen, and what is pinned.
func (f *Freezer) Facts(yield func(state.Fact) bool) {
	if !yield(state.Fact{Kind: state.FreezeFact}) {
		return
	}
	for k := range f.pins.All() {
		if !yield(state.Fact{Kind: state.PinnedFact, Type: k.Type, Name: k.Name}) {
			return
		}
	}
}

// Fact returns the value of a fact; known is false if it is another feature's.
func (f *Freezer) Fact(of state.Fact) (value string, known bool) {
	switch of.Kind {
	case state.FreezeFact:
		return f.order.Format(), true
	case state.PinnedFact:
		switch pin := f.pins.Of(xds.Key{Type: of.Type, Name: of.Name}); {
		case pin == nil:
			return "", true
		case !pin.Absent():
			return state.Yes, true
		case pin.NotFound:
			return pinnedNotFound, true
		}
		return pinnedAbsent, true
	}
	return "", false
}

// RestoreFact restores what was frozen. A PinnedFact needs the resources: it is for Restore.
func (f *Freezer) RestoreFact(of state.Fact, value string, _ time.Time) (known bool) {
	switch of.Kind {
	case state.FreezeFact:
		if f.order == nil {
			f.order = Parse(value)
		}
	case state.PinnedFact:
	default:
		return false
	}
	return true
}

// Stored is a name that was on disk, with its history from there.
type Stored struct {
	xds.Key
	History history.History
}

// Restore restores what was pinned, after the facts and the resources. there has the names that were on disk, stored those of them
// whose content can be served, and pinned the values of the PinnedFacts. It returns the names that it has pinned.
func (f *Freezer) Restore(there map[xds.Key]bool, stored []Stored, pinned map[xds.Key]string) (names []xds.Key) {
	if f.order == nil {
		for k := range pinned {
			f.s.PersistFact(state.PinnedFact, k)
		}
		return nil
	}
	for _, s := range stored {
		if f.pins.Of(s.Key) != nil {
			continue
		}
		t := f.s.Table(s.Type)
		e := t.Entry(s.Name)
		newer := e != nil && !e.Restored() // a source was faster than the disk
		if pinned[s.Key] != "" || f.order.Frozen(s.Key) && (newer || e == nil) && !state.SameVersion(t.Resource(s.Name), s.History.Current()) {
			f.set(s.Key, &Pin{History: s.History})
			names = append(names, s.Key)
		}
	}
	for k, value := range pinned {
		if f.pins.Of(k) == nil && (value == pinnedAbsent || value == pinnedNotFound) {
			f.set(k, &Pin{NotFound: value == pinnedNotFound})
			names = append(names, k)
		}
	}
	for _, t := range f.s.Tables() {
		if !f.order.FrozenType(t.URL) || !t.Names.Requested(xds.Wildcard) {
			continue
		}
		for name, e := range t.All() {
			if k := t.Key(name); !e.Restored() && !there[k] && f.pins.Of(k) == nil && !f.s.IsLocal(k) && !f.isUnstored(k) {
				f.set(k, &Pin{NotFound: true})
				names = append(names, k)
			}
		}
	}
	return names
}
