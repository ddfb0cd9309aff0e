package cache

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Freeze describes what is frozen (package freeze).
type Freeze = freeze.Order

// ErrFrozen is the error of Freeze if something is frozen.
var ErrFrozen = errors.New("it is frozen already")

// Freeze serves what is served now under the frozen names until Unfreeze, whatever the sources send.
// TTLs still end. What the sources remove of other types, and is subscribed to by name, is served on as
// well, because what is frozen may refer to it.
func (c *Cache) Freeze(o Freeze) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen != nil {
		return ErrFrozen
	}
	c.beginFreeze(&o)
	return nil
}

func (c *Cache) beginFreeze(o *freeze.Order) {
	c.frozen, c.unstored = o, nil
	c.persistFact(FreezeFact, xds.Key{})
	c.wakeRun()
}

// Unfreeze ends the freeze, serves what the sources have sent meanwhile, and requests everything from
// them again, so that they get the clients' answers. It reports whether anything was frozen.
func (c *Cache) Unfreeze() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen == nil {
		return false
	}
	c.frozen, c.unstored = nil, nil
	c.persistFact(FreezeFact, xds.Key{})
	changed := make(changesByType)
	for k, pin := range c.pins.Clear() {
		c.endPin(k, pin, changed.of(c.table(k.Type)))
	}
	c.notifyAll(changed)
	for _, t := range c.tables {
		for name, e := range t.All() {
			c.updateLRU(t, name, e)
		}
	}
	c.requestAgain = time.Now()
	c.union.Wake()
	c.wakeRun()
	return true
}

// endPin makes the newest content of a name the one that is served. The pin is dropped already.
func (c *Cache) endPin(k xds.Key, pin *freeze.Pin, ch *changes) {
	t := ch.table
	e := t.Entry(k.Name)
	var acked *xds.Resource
	if e != nil {
		if sameVersion(pin.Acked(), e.Current()) {
			e.Ack(e.Current()) // the clients have it
		}
		acked = e.Acked()
	}
	c.recordAccepted(k, pin.Acked(), acked, time.Now())
	c.observeServed(k, pin.Current(), t.Resource(k.Name))
	ch.add(k.Name, pin.Current(), t.Resource(k.Name))
	c.persistFact(PinnedFact, k)
	c.persist(t, k.Name)
}

// unpin drops the pin of a name, if it has one.
func (c *Cache) unpin(t *table, name string, ch *changes) {
	if pin := c.pins.Drop(t.key(name)); pin != nil {
		c.endPin(t.key(name), pin, ch)
	}
}

// pin pins what a name is before a source changes it to r, nil if it is about to be removed. It
// reports whether the change must not be served.
func (c *Cache) pin(t *table, name string, r *xds.Resource, ch *changes) (frozen bool) {
	k := t.key(name)
	if c.frozen == nil || c.local(k) {
		return false
	}
	e := t.Entry(name)
	switch isFrozen := c.frozen.Frozen(k); {
	case c.pins.Of(k) != nil:
		if isFrozen || r == nil {
			return isFrozen
		}
		c.unpin(t, name, ch) // the source has the resource again
		return false
	case e != nil && r != nil && e.Current().Version == r.Version:
		return false
	case !isFrozen && (e == nil || r != nil || !t.names.Has(name)):
		return false
	case e != nil:
		c.setPin(k, &freeze.Pin{History: e.Clone()})
		return isFrozen
	case c.isUnstored(k):
		return false
	case t.NotFound(name) || t.names.Requested(xds.Wildcard) && t.Knowledge() != xds.Unknown:
		c.setPin(k, &freeze.Pin{NotFound: t.NotFound(name)})
		return true
	}
	// Nothing was served under this name before, and a client has just begun to need it.
	return false
}

func (c *Cache) setPin(k xds.Key, pin *freeze.Pin) {
	c.pins.Set(k, pin)
	c.persistFact(PinnedFact, k)
	c.persist(c.table(k.Type), k.Name)
}

// noteWithheld records that a source changed a frozen name to r.
func (c *Cache) noteWithheld(t *table, r *xds.Resource, ch *changes) {
	pin := c.pins.Of(t.key(r.Name))
	ch.withheld = ch.withheld || c.waits(t.key(r.Name), pin)
	c.setPinLifetime(t, r)
}

// setPinLifetime gives what is pinned the lifetime that the source gave the name.
func (c *Cache) setPinLifetime(t *table, r *xds.Resource) {
	pin := c.pins.Of(t.key(r.Name))
	if pin == nil || pin.Absent() || pin.Current().TTL() == r.TTL() && pin.Current().Deadline().Equal(r.Deadline()) {
		return
	}
	pin.Put(pin.Current().WithLifetime(r.TTL(), r.Deadline()), pin.Source())
	c.persist(t, r.Name)
}

// ackPinned records that the client ACKed a content of a pinned name.
func (w *Watch) ackPinned(t *table, pin *freeze.Pin, r *xds.Resource, ch *changes, now time.Time) {
	if !pin.Absent() {
		before := pin.Acked()
		if pin.Ack(r) {
			ch.add(r.Name, pin.Current())
		}
		w.c.recordAccepted(t.key(r.Name), before, pin.Acked(), now)
	}
	w.c.persist(t, r.Name)
	w.interruptProbation(t, r.Name)
}

// history returns the history of what is served under a name: the pinned one, or that of the entry;
// nil if there is no content.
func (c *Cache) history(t *table, name string) *history.History {
	if pin := c.pins.Of(t.key(name)); pin != nil {
		if pin.Absent() {
			return nil
		}
		return &pin.History
	}
	if e := t.Entry(name); e != nil {
		return &e.History
	}
	return nil
}

// waits reports whether a source has sent something else than what is pinned.
func (c *Cache) waits(k xds.Key, pin *freeze.Pin) bool {
	return !sameVersion(c.existing(k.Type).Resource(k.Name), pin.Current())
}

// Waiting is the number of changes that a freeze holds back, by type.
type Waiting map[string]int

// Frozen returns what is frozen, nil for nothing, and how many changes wait.
func (c *Cache) Frozen() (*Freeze, Waiting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.frozen == nil {
		return nil, nil
	}
	waiting := make(Waiting)
	for k, pin := range c.pins.All() {
		if c.waits(k, pin) {
			waiting[k.Type]++
		}
	}
	o := *c.frozen
	o.Types, o.Names = slices.Clone(o.Types), slices.Clone(o.Names)
	return &o, waiting
}

// pinValue returns the value of the fact that a name is pinned; "" if it is not.
func (c *Cache) pinValue(k xds.Key) string {
	switch pin := c.pins.Of(k); {
	case pin == nil:
		return ""
	case !pin.Absent():
		return yes
	case pin.NotFound:
		return pinnedNotFound
	}
	return pinnedAbsent
}

// Values of a PinnedFact beside yes.
const (
	pinnedAbsent   = "absent"
	pinnedNotFound = "not found"
)

// restorePins restores what was frozen, after the facts and the resources. saved has what was on disk,
// and pinned the pinned names.
func (c *Cache) restorePins(saved []Saved, pinned map[xds.Key]string, now time.Time) {
	if c.frozen == nil {
		for k := range pinned {
			c.persistFact(PinnedFact, k)
		}
		return
	}
	changed := make(changesByType)
	there := make(map[xds.Key]bool, len(saved))
	for _, s := range saved {
		k := xds.Key{Type: s.Type, Name: s.Name}
		there[k] = true
		t := c.table(s.Type)
		e := t.Entry(s.Name)
		newer := e != nil && !e.Restored() // a source was faster than the disk
		if s.Content == nil || expired(s.Content, now) || c.local(k) || c.pins.Of(k) != nil {
			continue
		}
		if pinned[k] != "" || c.frozen.Frozen(k) && (newer || e == nil) && !sameVersion(t.Resource(s.Name), s.Content) {
			pin := &freeze.Pin{History: c.restoredHistory(s, now)}
			c.setPin(k, pin)
			c.trackDeadline(pin.Current())
			changed.of(t).add(s.Name, pin.Current())
		}
	}
	for k, value := range pinned {
		if c.pins.Of(k) == nil && (value == pinnedAbsent || value == pinnedNotFound) {
			c.setPin(k, &freeze.Pin{NotFound: value == pinnedNotFound})
			changed.of(c.table(k.Type)).add(k.Name, c.table(k.Type).Resource(k.Name))
		}
	}
	for _, t := range c.tables {
		if !c.frozen.FrozenType(t.URL) || !t.names.Requested(xds.Wildcard) {
			continue
		}
		for name, e := range t.All() {
			if k := t.key(name); !e.Restored() && !there[k] && c.pins.Of(k) == nil && !c.local(k) && !c.isUnstored(k) {
				c.setPin(k, &freeze.Pin{NotFound: true})
				changed.of(t).add(name, e.Current())
			}
		}
	}
	c.notifyAll(changed)
}

// servedPins yields what is pinned of a type under names without a resource.
func (c *Cache) servedPins(t *table) func(yield func(xds.Item) bool) {
	return func(yield func(xds.Item) bool) {
		if c.pins.Count(t.URL) == 0 {
			return
		}
		for k, pin := range c.pins.All() {
			if k.Type == t.URL && !pin.Absent() && t.Entry(k.Name) == nil && !yield(pin.Item()) {
				return
			}
		}
	}
}

// pinOf returns the pin of a name or an alias; nil for none.
func (c *Cache) pinOf(t *table, name string) *freeze.Pin {
	if c.pins.Count(t.URL) == 0 {
		return nil
	}
	if pin := c.pins.Of(t.key(name)); pin != nil {
		return pin
	}
	for k, pin := range c.pins.All() {
		if k.Type == t.URL && !pin.Absent() && slices.Contains(pin.Current().Aliases(), name) {
			return pin
		}
	}
	return nil
}
