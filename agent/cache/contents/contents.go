// Package contents is what is held, and how much is known of what is not.
//
// It promises that:
//   - what is unknown is distinguishable from what does not exist (design.md I1), and that
//     something does not exist is known from a source's word or from its complete answer only (I2);
//   - an alias and a glob collection lead to what is held now;
//   - the number and the size of what is held are known at any time.
//
// It does not know who wants a resource, nor what of an entry is served. Nothing in it has a lock:
// its owner calls it under one of its own.
package contents

import (
	"fmt"
	"iter"
	"maps"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxNotFound bounds the names of one type that are remembered as not existing, should
// what was found under aliases come and go without end.
const maxNotFound = 100_000

// Contents are the resources of all types. Make it with New.
type Contents struct {
	resources int
	bytes     int64
}

// New returns empty contents.
func New() *Contents { return &Contents{} }

// Resources counts what is held; Bytes is the sum of its bodies.
func (c *Contents) Resources() int { return c.resources }
func (c *Contents) Bytes() int64   { return c.bytes }

// Type is what is held of one type. Make one with Contents.Type.
type Type struct {
	contents *Contents
	url      string
	entries  map[string]*Entry
	aliases  map[string]string // alias to resource name
	// collections are the names held of each glob collection.
	collections map[string]map[string]struct{}
	notFound    map[string]struct{} // names that a source said do not exist
	knowledge   xds.Knowledge
	// answered says that a source has said something of the type; until then, restored contents
	// are hidden (hidden), and so is that something was known of the wildcard (restoredKnown).
	answered, hidden, restoredKnown bool
	// updates counts the updates that were taken in, for Entry.update.
	updates uint32
}

// Entry is what is held under one name. There are as many as resources, so that its size counts:
// 64 bytes.
type Entry struct {
	history.History
	// OnDisk and Follows belong to the journal and to the subscriptions of the owner, and are here
	// since maps of their own would take more memory. OnDisk is what is on disk, nil for nothing;
	// Follows the cluster because of which the endpoints that it names are wanted, nil for none.
	OnDisk      *OnDisk
	EndpointsOf *xds.Resource

	keepUnsubscribed              bool // see xds.Update
	restored, restoredAfterAnswer bool
	update                        uint32
}

// OnDisk is what is on disk under one name. There are as many as resources, so that its size
// counts: 32 bytes.
type OnDisk struct {
	Content          *xds.Resource // nil for none
	Previous         string        // the version of the stable content if it is another; "" for none
	Source           history.Source
	Accepted, Stable bool
	Restored         bool // it was there when the agent started
}

// Origin is where a resource comes from.
type Origin struct {
	Source           history.Source
	KeepUnsubscribed bool // see xds.Update
}

// Type returns a type of which nothing is held or known.
func (c *Contents) Type(url string) *Type {
	return &Type{
		contents: c, url: url, entries: make(map[string]*Entry), aliases: make(map[string]string),
		collections: make(map[string]map[string]struct{}), notFound: make(map[string]struct{}),
	}
}

// KeepUnsubscribed reports whether the resource is kept though nobody subscribes to it.
func (e *Entry) KeepUnsubscribed() bool { return e.keepUnsubscribed }

// Restored reports whether the resource was on disk, and no source has spoken of it since; Late
// whether in addition a source had begun to answer the type when it was read from disk.
func (e *Entry) Restored() bool            { return e.restored }
func (e *Entry) RestoredAfterAnswer() bool { return e.restoredAfterAnswer && e.restored }

// Confirm takes in that the source of a resource has said that it still exists.
func (e *Entry) Confirm() { e.restored = false }

// Len counts what is held of the type.
func (t *Type) Len() int { return len(t.entries) }

// Grow makes a type of which nothing is held as large as it will be.
func (t *Type) Grow(n int) {
	if len(t.entries) == 0 {
		t.entries = make(map[string]*Entry, n)
	}
}

// Entry returns what is held under a name; nil for nothing.
func (t *Type) Entry(name string) *Entry { return t.entries[name] }

// EntryOf is Entry with a name that need not be copied.
func (t *Type) EntryOf(name []byte) *Entry { return t.entries[string(name)] }

// Find returns what is held under a name or an alias; nil for nothing.
func (t *Type) Find(name string) *Entry {
	if e := t.entries[name]; e != nil {
		return e
	}
	return t.entries[t.aliases[name]]
}

// Resource returns the newest content of a name; nil for none.
func (t *Type) Resource(name string) *xds.Resource {
	if e := t.entries[name]; e != nil {
		return e.Current()
	}
	return nil
}

// All yields all that is held, by name, in no order.
func (t *Type) All() iter.Seq2[string, *Entry] { return maps.All(t.entries) }

// Collection yields what is held of a glob collection, by name, in no order.
func (t *Type) Collection(glob string) iter.Seq2[string, *Entry] {
	return func(yield func(string, *Entry) bool) {
		for name := range t.collections[glob] {
			if !yield(name, t.entries[name]) {
				return
			}
		}
	}
}

// Canonical returns the name of the resource that has an alias; any other name as it is.
func (t *Type) Canonical(name string) string {
	if actual, ok := t.aliases[name]; ok {
		return actual
	}
	return name
}

// IsKnown reports whether a name, or an alias, is known to exist or not to exist; of a glob
// collection, whether anything is held.
func (t *Type) IsKnown(name string) bool {
	return t.Find(name) != nil || len(t.collections[name]) > 0 || t.NotFound(name)
}

// NotFound reports whether a source said that a name does not exist.
func (t *Type) NotFound(name string) bool {
	_, ok := t.notFound[name]
	return ok
}

// SetNotFound takes in that a name does not exist.
func (t *Type) SetNotFound(name string) {
	if len(t.notFound) == maxNotFound {
		clear(t.notFound)
	}
	t.notFound[name] = struct{}{}
}

// ForgetNotFound forgets that a name does not exist, or all that a glob collection names.
func (t *Type) ForgetNotFound(name string) {
	delete(t.notFound, name)
	if xds.IsCollection(name) {
		t.KeepNotFound(func(of string) bool { return xds.CollectionOf(of) != name })
	}
}

// KeepNotFound forgets which names do not exist, but for those for which keep is true.
func (t *Type) KeepNotFound(keep func(name string) bool) {
	maps.DeleteFunc(t.notFound, func(name string, _ struct{}) bool { return !keep(name) })
}

// PutResult is what Type.PutResult did.
type PutResult struct {
	*Entry
	// Old is the content that was the newest before; nil for none. WasRestored and WasBlamed are
	// as Restored and Blamed were.
	Old                             *xds.Resource
	WasRestored, WasNackedOrSuspect bool
	Change                          history.Change
	// DiskDiffers says that it differs in anything that is kept on disk.
	DiskDiffers bool
}

// BeginUpdate takes in that the resources that are put from now on are those of one more update.
func (t *Type) BeginUpdate() { t.updates++ }

// NotInUpdate yields what the last update did not have, by name, in no order.
func (t *Type) NotInUpdate() iter.Seq2[string, *Entry] {
	return func(yield func(string, *Entry) bool) {
		for name, e := range t.entries {
			if e.update != t.updates && !yield(name, e) {
				return
			}
		}
	}
}

// Put takes in a resource. stable is the stable content that its name had before it was removed;
// nil for none, and not used where something is held.
func (t *Type) Put(r *xds.Resource, from Origin, stable *xds.Resource) PutResult {
	e := t.entries[r.Name]
	if e != nil && e.Current() == r && e.Source() == from.Source && e.keepUnsubscribed == from.KeepUnsubscribed {
		e.restored, e.update = false, t.updates
		return PutResult{Entry: e, Old: r, WasNackedOrSuspect: e.NackedOrSuspect()}
	}
	delete(t.notFound, r.Name)
	if e == nil {
		e = &Entry{}
		t.entries[r.Name] = e
		t.contents.resources++
		e.SetStable(stable)
	} else {
		t.contents.bytes -= size(e.Current())
	}
	t.contents.bytes += size(r)
	p := PutResult{Entry: e, Old: e.Current(), WasRestored: e.restored, WasNackedOrSuspect: e.NackedOrSuspect()}
	e.keepUnsubscribed, e.restored, e.update = from.KeepUnsubscribed, false, t.updates
	if p.Change, p.DiskDiffers = e.Put(r, from.Source); p.Change == history.ContentChanged {
		t.unindex(p.Old)
		t.index(r)
	}
	return p
}

// Restore takes in what was on disk under a name of which nothing is held. It is hidden until a
// source answers the type, or ShowRestored.
func (t *Type) Restore(h history.History, disk *OnDisk) *Entry {
	e := &Entry{History: h, OnDisk: disk, restored: true, restoredAfterAnswer: t.answered}
	r := e.Current()
	t.entries[r.Name] = e
	t.index(r)
	t.contents.resources++
	t.contents.bytes += size(r)
	t.hidden = t.hidden || !t.answered
	return e
}

// Drop forgets what is held under a name, and returns it; nil for nothing.
func (t *Type) Drop(name string) *Entry {
	e := t.entries[name]
	if e == nil {
		return nil
	}
	t.unindex(e.Current())
	t.contents.resources--
	t.contents.bytes -= size(e.Current())
	delete(t.entries, name)
	return e
}

func (t *Type) unindex(r *xds.Resource) {
	if r == nil {
		return
	}
	for _, a := range r.Aliases() {
		if t.aliases[a] == r.Name {
			delete(t.aliases, a)
		}
	}
	if glob := xds.CollectionOf(r.Name); glob != "" {
		delete(t.collections[glob], r.Name)
		if len(t.collections[glob]) == 0 {
			delete(t.collections, glob)
		}
	}
}

func (t *Type) index(r *xds.Resource) {
	for _, a := range r.Aliases() {
		t.aliases[a] = r.Name
	}
	if glob := xds.CollectionOf(r.Name); glob != "" {
		if t.collections[glob] == nil {
			t.collections[glob] = make(map[string]struct{})
		}
		t.collections[glob][r.Name] = struct{}{}
		delete(t.notFound, glob)
	}
}

// Limits bound what is held of all types together.
type Limits struct {
	Resources int
	Bytes     int64 // the sum of the bodies
}

// Check returns an error if an update goes beyond the limits, which are those of flags. removes says
// whether what the update removes leaves at once. An update fits that makes what is held no more,
// where that is beyond the limits already: it was restored, or a limit was lowered.
func (t *Type) Check(u xds.Update, limits Limits, removes bool) error {
	resources, bytes := t.contents.resources+len(u.Resources), t.contents.bytes
	for _, r := range u.Resources {
		bytes += size(r)
	}
	if resources <= limits.Resources && bytes <= limits.Bytes {
		return nil // though some of them replace others
	}
	leaves := func(e *Entry) {
		if e != nil {
			resources--
			bytes -= size(e.Current())
		}
	}
	if u.Complete && removes {
		for _, e := range t.entries {
			leaves(e)
		}
	} else {
		for _, r := range u.Resources {
			leaves(t.entries[r.Name])
		}
		for _, name := range u.Removed {
			if removes {
				leaves(t.entries[name])
			}
		}
	}
	switch {
	case resources <= t.contents.resources && bytes <= t.contents.bytes:
		return nil
	case resources > limits.Resources:
		return fmt.Errorf("refused: it would make %d resources, and at most %d are held (--max-resources)", resources, limits.Resources)
	case bytes > limits.Bytes:
		return fmt.Errorf("refused: it would make %d bytes of resources, and at most %d are held (--max-resource-bytes)", bytes, limits.Bytes)
	}
	return nil
}

// size returns what a resource counts against Limits.Bytes.
func size(r *xds.Resource) int64 { return int64(len(r.Body.GetValue())) }
