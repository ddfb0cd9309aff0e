// Package change does what happens to one name of a cache, and finds out what that changes for clients.
//
// Each change is done in one way: the contents take it in, each feature hears of it before and after, in the order of one list, and
// what is served and accepted of the name is compared with what was before. The difference goes to the changes of the event, the
// archive, the journal and whoever observes. A feature never calls another one, and none computes for itself what its decision changes.
//
// Nothing in it has a lock: its owner serializes all calls, and tells the watches when an event is over.
package change

import (
	"errors"
	"slices"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/uncertain"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxRemovedVirtualHosts bounds the removed virtual hosts whose removal later clients are sent.
const maxRemovedVirtualHosts = 16

// Kind says what happened to a resource, for whoever observes.
type Kind string

// The kinds of changes.
const (
	Added   Kind = "added"
	Changed Kind = "changed"
	Removed Kind = "removed"
	Expired Kind = "expired"
	// ACKed: a client accepted a content that none had accepted before.
	ACKed Kind = "acked"
	// Withheld: a source added, changed or removed it, which is not served because it is frozen.
	Withheld Kind = "withheld"
)

// Changer does changes.
type Changer struct {
	State    *state.State
	Features Features
	// Freezer says what clients have accepted of what is served, Archive keeps what they had accepted, and Uncertain what they may
	// hold although it was removed.
	Freezer   *freeze.Freezer
	Archive   *archive.Feature
	Uncertain *uncertain.Names
	// OnContent, if set, is called for each new content from a source, and OnChange for what happens to a resource.
	OnContent func(*xds.Resource)
	OnChange  func(typeURL, name string, what Kind)
}

// sight is what clients have of a name.
type sight struct {
	item     xds.Item
	accepted *xds.Resource // nil for none, and for what the agent itself makes
}

// look returns what clients have of a name now.
func (c *Changer) look(t *state.Table, name string, e *contents.Entry) (s sight) {
	s.item, _ = c.Features.Served(t, name, e)
	s.accepted = c.Freezer.Accepted(t, name, e)
	return s
}

// differs reports whether clients get something else than they had.
func (s sight) differs(was sight) bool {
	a, b := was.item.Current, s.item.Current
	switch {
	case was.item.NotFound != s.item.NotFound || (a == nil) != (b == nil):
		return true
	case a == b && was.item.Status == s.item.Status && was.item.Acked == s.item.Acked || a == nil:
		return false
	case a.Version != b.Version || a.TTL() != b.TTL() || !a.Deadline().Equal(b.Deadline()):
		return true
	case was.item.Status.NackedOrSuspect() && !s.item.Status.NackedOrSuspect():
		return true // what others NACKed may be sent again
	}
	return !state.SameVersion(was.item.Sent(), s.item.Sent())
}

// tell tells who listens what has become of a name: the watches of the event, the archive and, unless that is told otherwise, whoever
// observes. entry is that of the name now; nil for none. x is the change that did it; nil for none.
func (c *Changer) tell(e *state.Event, t *state.Table, name string, entry *contents.Entry, was sight, x *state.Change) {
	is := c.look(t, name, entry)
	if x != nil && x.Withheld && c.Freezer.Withholds(t.Key(name)) {
		e.Withheld = true
	}
	if is.differs(was) {
		e.Changes(t).Add(name, was.item.Current, is.item.Current)
	}
	if accepted := !state.SameVersion(was.accepted, is.accepted); accepted {
		c.Archive.Accepted(t.Key(name), was.accepted, is.accepted, e.Now)
		if x != nil && is.accepted != nil {
			c.observe(t, name, ACKed)
		}
	}
	switch a, b := was.item.Current, is.item.Current; {
	case x != nil && x.Expired:
	case x != nil && (x.Kind == state.Removed || x.Withheld && x.Done.Change == history.ContentChanged) && c.Freezer.Withholds(t.Key(name)):
		c.observe(t, name, Withheld)
	case state.SameVersion(a, b):
	case a == nil:
		c.observe(t, name, Added)
	case b == nil:
		c.observe(t, name, Removed)
	default:
		c.observe(t, name, Changed)
	}
}

// observe reports what happened to a resource.
func (c *Changer) observe(t *state.Table, name string, what Kind) {
	if c.OnChange != nil {
		c.OnChange(t.URL, name, what)
	}
}

// Around does something that may change what is served of names, and tells who listens.
func (c *Changer) Around(e *state.Event, names []xds.Key, do func()) {
	was := make([]sight, len(names))
	for i, k := range names {
		t := c.State.Table(k.Type)
		was[i] = c.look(t, k.Name, t.Entry(k.Name))
	}
	do()
	for i, k := range names {
		t := c.State.Table(k.Type)
		c.tell(e, t, k.Name, t.Entry(k.Name), was[i], nil)
		c.State.Persist(k)
	}
}

// isQuiet reports whether no feature has anything to say of a content that is repeated.
func (c *Changer) isQuiet() bool {
	for _, f := range c.Features.quiet {
		if !f.Quiet() {
			return false
		}
	}
	return true
}

// Put stores one resource. It returns why clients NACKed this content before; nil if they did not.
func (c *Changer) Put(e *state.Event, t *state.Table, from contents.Origin, r *xds.Resource) (nack error) {
	t.Errors.Delete(r.Name)
	entry := t.Entry(r.Name)
	if entry != nil && entry.Repeats(r) && c.isQuiet() {
		c.repeat(t, entry, from, r)
	} else {
		entry = c.put(e, t, entry, from, r)
	}
	if entry.Rejected() {
		return errors.New(entry.Reason())
	}
	return nil
}

// repeat stores the content that an entry has already, as most of a response in state of the world is.
func (c *Changer) repeat(t *state.Table, entry *contents.Entry, from contents.Origin, r *xds.Resource) {
	if p := t.PutInto(entry, r, from, nil); p.DiskDiffers {
		c.State.Persist(t.Key(r.Name))
	}
	for _, f := range c.Features.repeated {
		f.Repeated(t, entry)
	}
}

// put stores a content as the one of a name whose entry was another; nil for none. It returns the entry.
func (c *Changer) put(e *state.Event, t *state.Table, entry *contents.Entry, from contents.Origin, r *xds.Resource) *contents.Entry {
	was := c.look(t, r.Name, entry)
	x := e.Change(t, r.Name, state.Put, entry)
	x.Resource = r
	for _, f := range c.Features.before {
		f.Before(x)
	}
	x.Done = t.PutInto(entry, r, from, x.Stable)
	x.Entry = x.Done.Entry
	for _, f := range c.Features.after {
		f.After(x)
	}
	if c.OnContent != nil && from.Source != history.Local && (x.Done.Change == history.ContentChanged || x.Done.WasRestored) {
		c.OnContent(r)
	}
	if x.Done.DiskDiffers {
		c.State.Persist(t.Key(r.Name))
	}
	c.tell(e, t, r.Name, x.Entry, was, x)
	return x.Entry
}

// Remove deletes the resource of a name because a source removed it. That the name does not exist
// is remembered while it is subscribed to or a client may hold it. expired says that its TTL has ended.
func (c *Changer) Remove(e *state.Event, t *state.Table, name string, expired bool) {
	entry := t.Entry(name)
	was := c.look(t, name, entry)
	var content *xds.Resource
	var x *state.Change
	if entry != nil {
		content = entry.Current()
		x = c.drop(e, t, name, state.Removed, expired || state.Expired(content, e.Now))
	} else if expired {
		c.Freezer.Expire(t.Key(name))
	}
	if xds.Info(t.URL).OnDemand && c.Uncertain.Count(t.URL) < maxRemovedVirtualHosts {
		c.Uncertain.Add(t.Key(name)) // later clients wait for its removal, too (protocol.md V11)
	}
	if t.Names.Covers(name, content) || t.Names.Requested(name) || t.Knowledge() != xds.Complete && t.Names.Requested(xds.Wildcard) {
		t.SetNotFound(name)
	}
	c.tell(e, t, name, nil, was, x)
}

// Expire removes a resource whose TTL has ended. Clients are told of some types only; of the others nothing is known then.
func (c *Changer) Expire(e *state.Event, t *state.Table, name string) {
	c.observe(t, name, Expired)
	_, pinned := c.Freezer.Current(t.Key(name))
	switch entry := t.Entry(name); {
	case xds.Info(t.URL).RemoveExpired:
		c.Remove(e, t, name, true)
	case !pinned:
		c.Forget(e, t, name, true)
	case entry == nil:
		c.Around(e, []xds.Key{t.Key(name)}, func() { c.Freezer.Expire(t.Key(name)) })
	default:
		was := c.look(t, name, entry)
		c.tell(e, t, name, nil, was, c.drop(e, t, name, state.Dropped, true))
	}
}

// Forget drops an entry of which nothing is known from now on, without a word to the clients.
func (c *Changer) Forget(e *state.Event, t *state.Table, name string, expired bool) {
	if entry := t.Entry(name); entry != nil {
		accepted := c.Freezer.Accepted(t, name, entry)
		c.drop(e, t, name, state.Dropped, expired)
		c.Archive.Accepted(t.Key(name), accepted, c.Freezer.Accepted(t, name, nil), e.Now)
	}
}

// drop deletes an entry.
func (c *Changer) drop(e *state.Event, t *state.Table, name string, kind state.Kind, expired bool) *state.Change {
	x := e.Change(t, name, kind, t.Entry(name))
	x.Expired = expired
	for _, f := range c.Features.before {
		f.Before(x)
	}
	t.Drop(name)
	t.Errors.Delete(name)
	for _, f := range c.Features.after {
		f.After(x)
	}
	c.State.Persist(x.Key())
	return x
}

// Ack records that a client ACKed a content, and reports whether the client uses the content that clients ACKed last. entry is nil for a
// name without an entry: the content may come back.
func (c *Changer) Ack(e *state.Event, t *state.Table, entry *contents.Entry, r *xds.Resource) (uses bool) {
	was := c.look(t, r.Name, entry)
	x := e.Change(t, r.Name, state.Acked, entry)
	switch taken := slices.ContainsFunc(c.Features.ackers, func(f acker) bool { return f.Ack(t, entry, r) }); {
	case taken:
		x = nil // what clients are served is another content than that of the source
	case entry == nil:
		return true
	default:
		entry.Ack(r)
		uses = entry.Acked().Version == r.Version
	}
	c.tell(e, t, r.Name, entry, was, x)
	c.State.Persist(t.Key(r.Name))
	return uses
}
