// Package contents holds the cached resources by type and name, and how much is known of the names
// that have no resource.
//
// It promises that:
//   - an unknown name is distinguishable from one that does not exist (design.md I1); a name does
//     not exist only if a source said so, or sent a complete set without it (I2);
//   - a name, an alias and a glob collection lead to the resources that are cached now;
//   - the number of resources and the sum of their sizes are always up to date.
//
// It does not know who subscribes to a resource, nor which content of an entry is served. Nothing in
// it has a lock: its owner serializes all calls.
package contents

import (
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxNotFound bounds the names of one type that are remembered as not found, in case a control plane
// adds and removes aliases without end.
const maxNotFound = 100_000

// Contents counts the resources of all types, and sums up the sizes of their bodies.
type Contents struct {
	Resources int
	Bytes     int64
}

// Type holds the resources of one type. Make one with Contents.Type.
type Type struct {
	URL      string
	contents *Contents
	entries  map[string]*Entry
	aliases  map[string]string // alias to resource name
	// collections has the names of the cached members of each glob collection.
	collections map[string]map[string]struct{}
	notFound    map[string]struct{} // names that do not exist, as a source said
	knowledge   xds.Knowledge
	// answered: a source has answered a request for the type. Until then the entries that were
	// restored from disk are not served (hidden), and restoredKnown says that the wildcard was not
	// unknown.
	answered, hidden, restoredKnown bool
	// updates counts the updates so far, for Entry.update.
	updates uint32
}

// Entry is the resource of one name. There is one for each resource, so its size matters: 64 bytes.
type Entry struct {
	history.History
	// OnDisk and EndpointsOf belong to the owner's journal and subscriptions. They are fields here
	// because maps of their own would take more memory. OnDisk is what the disk has of the name,
	// nil for nothing. EndpointsOf is the cluster for which its endpoints are subscribed to, nil
	// for none.
	OnDisk      *OnDisk
	EndpointsOf *xds.Resource

	KeepUnsubscribed              bool // see xds.Update; only Put sets it
	restored, restoredAfterAnswer bool
	update                        uint32 // the value of Type.updates when it was last put
	changed                       uint32 // when a source last changed the content, in Unix seconds; 0 for not since the start
}

// OnDisk is what the disk has of one name. There is one for each resource, so its size matters: 32
// bytes.
type OnDisk struct {
	history.Saved
	Restored bool // it was on disk when the agent started
}

// Origin is where a resource comes from.
type Origin struct {
	Source           history.Source
	KeepUnsubscribed bool // see xds.Update
}

// Type returns an empty type, whose wildcard is unknown.
func (c *Contents) Type(url string) *Type {
	return &Type{
		URL: url, contents: c, entries: make(map[string]*Entry), aliases: make(map[string]string),
		collections: make(map[string]map[string]struct{}), notFound: make(map[string]struct{}),
	}
}

// Changed returns when a source last changed the content, to the second; the zero time if none has since the start.
func (e *Entry) Changed() time.Time {
	if e.changed == 0 {
		return time.Time{}
	}
	return time.Unix(int64(e.changed), 0)
}

// Restored reports whether the resource was restored from disk and no source has confirmed it since.
// RestoredAfterAnswer reports whether, in addition, a source had answered a request for the type
// before it was restored.
func (e *Entry) Restored() bool            { return e.restored }
func (e *Entry) RestoredAfterAnswer() bool { return e.restoredAfterAnswer && e.restored }

// Repeats reports whether a content is the newest one, so that putting it changes nothing that clients can see.
func (e *Entry) Repeats(r *xds.Resource) bool {
	now := e.Current()
	return !e.restored && now.Version == r.Version && now.Extra == nil && r.Extra == nil
}

// Confirm records that the source of the resource has said that it still exists.
func (e *Entry) Confirm() { e.restored = false }

// ConfirmAll confirms all resources of a source, which has said that it has sent everything.
func (t *Type) ConfirmAll(source history.Source) {
	for _, e := range t.entries {
		if e.Source() == source {
			e.Confirm()
		}
	}
}

// Len is the number of resources of the type.
func (t *Type) Len() int { return len(t.entries) }

// Grow allocates room for n resources if the type has none.
func (t *Type) Grow(n int) {
	if len(t.entries) == 0 {
		t.entries = make(map[string]*Entry, n)
	}
}

// Entry returns the entry of a name; nil for none.
func (t *Type) Entry(name string) *Entry { return t.entries[name] }

// EntryOf is Entry for a name in a buffer, which it does not copy.
func (t *Type) EntryOf(name []byte) *Entry { return t.entries[string(name)] }

// Find returns the entry of a name or an alias; nil for none.
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

// All yields all entries by name, in no order.
func (t *Type) All() iter.Seq2[string, *Entry] { return maps.All(t.entries) }

// Collection yields the members of a glob collection by name, in no order.
func (t *Type) Collection(glob string) iter.Seq2[string, *Entry] {
	return func(yield func(string, *Entry) bool) {
		for name := range t.collections[glob] {
			if !yield(name, t.entries[name]) {
				return
			}
		}
	}
}

// Canonical returns the name of the resource that has an alias; it returns any other name as it is.
func (t *Type) Canonical(name string) string {
	if actual, ok := t.aliases[name]; ok {
		return actual
	}
	return name
}

// IsKnown reports whether a name or an alias is known to exist or not to exist; for a glob
// collection, whether it has a member or does not exist.
func (t *Type) IsKnown(name string) bool {
	return t.Find(name) != nil || len(t.collections[name]) > 0 || t.NotFound(name)
}

// NotFound reports whether a source has said that a name does not exist.
func (t *Type) NotFound(name string) bool {
	_, ok := t.notFound[name]
	return ok
}

// SetNotFound records that a name does not exist.
func (t *Type) SetNotFound(name string) {
	if len(t.notFound) == maxNotFound {
		clear(t.notFound)
	}
	t.notFound[name] = struct{}{}
}

// ForgetNotFound forgets that a name does not exist, and for a glob collection that its members do
// not.
func (t *Type) ForgetNotFound(name string) {
	delete(t.notFound, name)
	if xds.IsCollection(name) {
		t.KeepNotFound(func(of string) bool { return xds.CollectionOf(of) != name })
	}
}

// KeepNotFound forgets which names do not exist, except those for which keep returns true.
func (t *Type) KeepNotFound(keep func(name string) bool) {
	maps.DeleteFunc(t.notFound, func(name string, _ struct{}) bool { return !keep(name) })
}

// PutResult describes what Put has changed.
type PutResult struct {
	*Entry
	// Old is the former newest content, nil for none. WasRestored and WasNackedOrSuspect are what
	// Restored and NackedOrSuspect returned before.
	Old                             *xds.Resource
	OldAcked                        *xds.Resource // the former ACKed content, nil for none
	WasRestored, WasNackedOrSuspect bool
	Change                          history.Change
	// DiskDiffers says that something changed that is kept on disk.
	DiskDiffers bool
}

// BeginUpdate begins an update: the resources that are put from now on belong to it.
func (t *Type) BeginUpdate() { t.updates++ }

// Updates counts the updates so far.
func (t *Type) Updates() uint32 { return t.updates }

// InLastUpdate yields the entries that the last update put, in no order.
func (t *Type) InLastUpdate() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, e := range t.entries {
			if e.update == t.updates && !yield(e) {
				return
			}
		}
	}
}

// IsInLastUpdate reports whether the last update put an entry.
func (t *Type) IsInLastUpdate(e *Entry) bool { return e.update == t.updates }

// InUpdate records that the present update has a resource that is not put.
func (t *Type) InUpdate(name string) {
	if e := t.entries[name]; e != nil {
		e.update = t.updates
	}
}

// NotInUpdate yields the entries that the last update did not put, by name, in no order.
func (t *Type) NotInUpdate() iter.Seq2[string, *Entry] {
	return func(yield func(string, *Entry) bool) {
		for name, e := range t.entries {
			if e.update != t.updates && !yield(name, e) {
				return
			}
		}
	}
}

// Put stores a resource. stable is the stable content that the name had before it was removed, nil
// for none; it is used only if the name has no entry.
func (t *Type) Put(r *xds.Resource, from Origin, stable *xds.Resource) PutResult {
	return t.PutInto(t.entries[r.Name], r, from, stable)
}

// PutInto is Put for a name whose entry is known; nil for none.
func (t *Type) PutInto(e *Entry, r *xds.Resource, from Origin, stable *xds.Resource) PutResult {
	if e != nil && e.Current() == r && e.Source() == from.Source && e.KeepUnsubscribed == from.KeepUnsubscribed {
		e.restored, e.update = false, t.updates
		return PutResult{Entry: e, Old: r, WasNackedOrSuspect: e.NackedOrSuspect()}
	}
	delete(t.notFound, r.Name)
	if e == nil {
		e = &Entry{}
		t.entries[r.Name] = e
		t.contents.Resources++
		e.SetStable(stable)
	} else {
		t.contents.Bytes -= size(e.Current())
	}
	t.contents.Bytes += size(r)
	p := PutResult{Entry: e, Old: e.Current(), OldAcked: e.Acked(), WasRestored: e.restored, WasNackedOrSuspect: e.NackedOrSuspect()}
	e.KeepUnsubscribed, e.restored, e.update = from.KeepUnsubscribed, false, t.updates
	if p.Change, p.DiskDiffers = e.Put(r, from.Source); p.Change == history.ContentChanged {
		e.changed = uint32(time.Now().Unix())
		t.unindex(p.Old)
		t.index(r)
	}
	return p
}

// Restore stores the history of a name that was on disk; the name must have no entry. If no source
// has answered a request for the type, the entry is hidden until ShowRestored.
func (t *Type) Restore(h history.History, disk *OnDisk) *Entry {
	e := &Entry{History: h, OnDisk: disk, restored: true, restoredAfterAnswer: t.answered}
	r := e.Current()
	t.entries[r.Name] = e
	t.index(r)
	t.contents.Resources++
	t.contents.Bytes += size(r)
	t.hidden = t.hidden || !t.answered
	return e
}

// Drop deletes the entry of a name and returns it; nil for none.
func (t *Type) Drop(name string) *Entry {
	e := t.entries[name]
	if e == nil {
		return nil
	}
	t.unindex(e.Current())
	t.contents.Resources--
	t.contents.Bytes -= size(e.Current())
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

// Limits bound the resources of all types together.
type Limits struct {
	Resources int
	Bytes     int64 // the sum of the sizes of the bodies
}

// Check returns an error if the cache would exceed its limits after an update; the error names the
// flags. removes says whether the removals of the update take effect at once. If the cache exceeds
// its limits already (the excess was restored, or a limit was lowered), an update passes that does
// not make it larger.
func (t *Type) Check(u xds.Update, limits Limits, removes bool) error {
	resources, bytes := t.contents.Resources+len(u.Resources), t.contents.Bytes
	for _, r := range u.Resources {
		bytes += size(r)
	}
	if resources <= limits.Resources && bytes <= limits.Bytes {
		return nil // even if no resource of the update replaces another
	}
	subtract := func(e *Entry) {
		if e != nil {
			resources--
			bytes -= size(e.Current())
		}
	}
	if u.Complete && removes {
		for _, e := range t.entries {
			subtract(e)
		}
	} else {
		for _, r := range u.Resources {
			subtract(t.entries[r.Name])
		}
		for _, name := range u.Removed {
			if removes {
				subtract(t.entries[name])
			}
		}
	}
	switch {
	case resources <= t.contents.Resources && bytes <= t.contents.Bytes:
		return nil
	case resources > limits.Resources:
		return fmt.Errorf("rejected: %d resources exceed --max-resources %d", resources, limits.Resources)
	case bytes > limits.Bytes:
		return fmt.Errorf("rejected: %d bytes of resources exceed --max-resource-bytes %d", bytes, limits.Bytes)
	}
	return nil
}

// size returns what a resource counts against Limits.Bytes.
func size(r *xds.Resource) int64 { return int64(len(r.Body.GetValue())) }

// Knowledge returns how much is known of the wildcard of the type.
func (t *Type) Knowledge() xds.Knowledge { return t.knowledge }

// SetAnswered records that a source has answered a request for the type.
func (t *Type) SetAnswered() { t.answered = true }

// UpdateKnowledge advances the knowledge by an update, and reports whether it changed. subscribed
// says whether sources are subscribed to the wildcard. The resources of a Delta response may be
// served from the first response on; that the set is complete is known only later, from Synced.
func (t *Type) UpdateKnowledge(u xds.Update, subscribed bool) (changed bool) {
	was := t.knowledge
	switch {
	case u.Complete && was != xds.Complete && !u.KeepUnsubscribed && !subscribed:
		t.knowledge = xds.Partial // resources without a subscription are evicted sooner or later
	case u.Complete:
		t.knowledge = xds.Complete
	case was == xds.Unknown && (u.KeepUnsubscribed || u.Wildcard && subscribed):
		t.knowledge = xds.Partial
	}
	return t.knowledge != was
}

// Synced records that a source has sent everything that it has of the type, and reports whether the
// knowledge has become complete. An open stream without a response makes nothing known (design.md
// I2).
func (t *Type) Synced(subscribed bool) (changed bool) {
	if t.knowledge == xds.Complete || t.knowledge == xds.Unknown && !(t.answered && subscribed) {
		return false
	}
	t.knowledge = xds.Complete
	return true
}

// SetIncomplete records that resources may exist that are not cached: a resource without a
// subscription was evicted, or no source is subscribed to the wildcard any more. The knowledge stays
// complete if every cached resource comes from a source that reports all resources anyway.
func (t *Type) SetIncomplete() {
	if t.knowledge == xds.Complete && !t.allKeptUnsubscribed() {
		t.knowledge = xds.Partial
	}
}

// allKeptUnsubscribed reports whether sources sent resources of the type, and all of them are kept
// without a subscription.
func (t *Type) allKeptUnsubscribed() bool {
	fromSource := false
	for _, e := range t.entries {
		if !e.KeepUnsubscribed {
			return false
		}
		fromSource = fromSource || !e.IsLocal()
	}
	return fromSource
}

// RestoreKnown records that the wildcard was not unknown when the previous agent stopped.
func (t *Type) RestoreKnown() { t.restoredKnown = !t.answered }

// KnownOrRestored reports whether the wildcard is not unknown, or was not unknown when the previous
// agent stopped.
func (t *Type) KnownOrRestored() bool { return t.knowledge != xds.Unknown || t.restoredKnown }

// Hidden reports whether an entry must not be served yet, because it was restored from disk.
func (t *Type) Hidden(e *Entry) bool { return t.hidden && e.restored }

// ShowRestored stops hiding what was restored from disk. shown reports whether anything was hidden,
// knowledge whether the wildcard has become partial by it.
func (t *Type) ShowRestored() (shown, knowledge bool) {
	shown = t.hidden || t.restoredKnown
	if knowledge = t.restoredKnown && t.knowledge == xds.Unknown; knowledge {
		t.knowledge = xds.Partial
	}
	t.hidden, t.restoredKnown = false, false
	return shown, knowledge
}

// WasRemoved reports whether a source has said, before the disk was read, that a name does not
// exist: with the name, or with a complete set that lacks it.
func (t *Type) WasRemoved(name string) bool {
	return t.NotFound(name) || t.answered && t.knowledge == xds.Complete && xds.FullState(t.URL)
}

// RestoredUnconfirmed returns the full-state resources that were restored after a source had begun
// to answer, and that the source has not sent by the time it has sent everything. The source was
// not told that they are cached, so it does not say that they are removed.
func (t *Type) RestoredUnconfirmed() (names []string) {
	if !xds.FullState(t.URL) {
		return nil
	}
	for name, e := range t.entries {
		if e.RestoredAfterAnswer() {
			names = append(names, name)
		}
	}
	return names
}
