// Package archive keeps the contents that clients had accepted and that something else has replaced
// since, so that it can be shown what a name was at an earlier time, and served again.
//
// It promises that:
//   - At returns what was accepted at a time, or that the name had no accepted content, and says so if
//     that is not known or not kept any more; it never returns another content;
//   - at most MaxVersions contents of a name are kept, and at most the given number of bytes of all
//     names; the oldest are dropped first. Endpoints, which change most, take a quarter of the bytes
//     at most, and never drop another type;
//   - a name that changes all the time does not drop what it was before that: of more than MaxVersions
//     contents, those that lasted for less than Short are dropped before the oldest;
//   - a content that comes several times in the history of a name is in memory once;
//   - where records of a name were lost, because the process was killed, that is a record of its own (Lost).
//
// The present content of a name is not here, but in its history (package history). Contents of
// Secrets are never kept: old private keys do not belong in memory. Nothing in it has a lock: its
// owner serializes all calls.
package archive

import (
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// MaxVersions is how many replaced contents of one name are kept.
const MaxVersions = 10

// DefaultBytes is the default of the bytes that are kept.
const DefaultBytes = 16 << 20

// recordBytes is about what a record costs beside the body: its places in two slices that grow, and the resource with its
// name, versions and type.
const recordBytes = 480

// Lost is the version in a record of what is not known: the process ended before it had written what the name was.
const Lost = "lost"

// Settle is how long after the first accepted content of a type its names are not new: clients
// accept the first configuration in several responses. At takes such a name for one that was there from the
// first on, so that a rollback to that time keeps it.
const Settle = 10 * time.Second

// Short is the time for which a content must have lasted to be kept like any other.
const Short = 10 * time.Second

// Record is what a name was from one time until another.
type Record struct {
	// From is when the content was accepted, or removed; the zero time for since the beginning of the
	// records of its type (Began). Until is when it was replaced.
	From, Until time.Time
	// Version is the hash of the content; "" if the name had no accepted content.
	Version string
	// Resource is the content; nil if the name had none, or if it is not kept: Secrets, and what was
	// dropped.
	Resource *xds.Resource
	// Taken says that Take has returned the record.
	Taken bool
	// onDisk says that the record was taken or restored, so that it must be deleted when it is dropped;
	// changed, that it is to be taken.
	onDisk, changed bool
	// head is the beginning of Version, and bytes the size of Resource: a record that others are compared with is read in
	// one place, while their strings and bodies are scattered.
	head  [8]byte
	bytes int64
}

// Absent reports whether the name had no accepted content.
func (r Record) Absent() bool { return r.Version == "" }

// Archive has the replaced contents of all names. Make one with New.
type Archive struct {
	names map[xds.Key]*name
	// began is since when the contents of a type are recorded, by type URL.
	began map[string]time.Time
	// settles is until when the first contents of a type are accepted.
	settles map[string]time.Time
	pools   [2]pool
	changed func(xds.Key)
}

// name has the records of one name, the oldest first.
type name struct {
	key     xds.Key
	records []Record
	// deleted are the ends of records that were taken and then dropped, since Take.
	deleted []time.Time
}

// pool bounds the bytes of some types.
type pool struct {
	limit, bytes int64
	records      int
	oldest       []place // in the order in which they are dropped; those that were dropped before are skipped
}

// place is where a record is: in a name, by its end.
type place struct {
	name  *name
	until time.Time
}

// New returns an empty archive of at most the given number of bytes; 0 keeps nothing. changed, which may be
// nil, is called with each name of which Take has something to return, and with a type alone if Began has
// changed.
func New(bytes int64, changed func(xds.Key)) *Archive {
	a := &Archive{names: make(map[xds.Key]*name), began: make(map[string]time.Time), settles: make(map[string]time.Time), changed: changed}
	a.pools[0].limit, a.pools[1].limit = bytes-bytes/4, bytes/4
	if a.changed == nil {
		a.changed = func(xds.Key) {}
	}
	return a
}

// Enabled reports whether anything is kept.
func (a *Archive) Enabled() bool { return a.pools[0].limit > 0 }

func (a *Archive) pool(typeURL string) *pool {
	if typeURL == xds.EndpointType {
		return &a.pools[1]
	}
	return &a.pools[0]
}

// Began returns since when the contents of a type are recorded; the zero time for not yet.
func (a *Archive) Began(typeURL string) time.Time { return a.began[typeURL] }

// Begin records that contents of a type have been accepted since a time, if it does not know an
// earlier one. It reports whether it did not.
func (a *Archive) Begin(typeURL string, at time.Time) bool {
	if !a.Enabled() {
		return false
	}
	if began, ok := a.began[typeURL]; ok && !at.Before(began) {
		return false
	}
	a.began[typeURL] = at
	a.changed(xds.Key{Type: typeURL})
	return true
}

// beginLater records that it is not known what was accepted of a type before a time.
func (a *Archive) beginLater(typeURL string, at time.Time) {
	if at.After(a.began[typeURL]) {
		a.began[typeURL] = at
		a.changed(xds.Key{Type: typeURL})
	}
}

// Replaced records that the accepted content of a name was another one until now; nil for none.
func (a *Archive) Replaced(k xds.Key, was *xds.Resource, now time.Time) {
	if !a.Enabled() {
		return
	}
	if _, ok := a.began[k.Type]; !ok {
		a.Begin(k.Type, now)
		a.settles[k.Type] = now.Add(Settle)
	}
	if was == nil && now.Before(a.settles[k.Type]) && len(a.Records(k)) == 0 {
		return
	}
	r := Record{Until: now.UTC().Round(0)} // comparable, as after a restart
	if was != nil {
		r.Version, r.Resource = was.Version, was
	}
	a.add(k, r)
}

// named returns the records of a name, to write to.
func (a *Archive) named(k xds.Key) *name {
	n := a.names[k]
	if n == nil {
		n = &name{key: k}
		a.names[k] = n
	}
	return n
}

// add adds a record.
func (a *Archive) add(k xds.Key, r Record) {
	n := a.named(k)
	if last := len(n.records) - 1; last >= 0 {
		before := n.records[last].Until
		if !r.Until.After(before) {
			r.Until = before.Add(1) // the clock was set back, or is too coarse
		}
		if r.From.IsZero() {
			r.From = before
		}
	}
	if len(n.records) >= MaxVersions {
		a.drop(n, n.leastUseful())
	}
	if k.Type == xds.SecretType {
		r.Resource = nil
	}
	copy(r.head[:], r.Version)
	r.bytes = size(r.Resource)
	p := a.pool(k.Type)
	p.records++
	p.bytes += recordBytes
	if same := n.same(&r); same != nil {
		r.Resource = same
	} else {
		p.bytes += r.bytes
	}
	r.changed = !r.onDisk
	n.records = append(n.records, r)
	p.oldest = append(p.oldest, place{n, r.Until})
	if r.changed {
		a.changed(k)
	}
	for p.bytes > p.limit && len(p.oldest) > 0 {
		a.shrink(p)
	}
	if len(p.oldest) > 64+2*p.records {
		p.oldest = slices.DeleteFunc(p.oldest, func(at place) bool { return at.name.find(at.until) < 0 })
	}
}

// shrink drops the oldest record of a pool. Of the only record of a name first the content is dropped,
// so that it stays known since when the name is what it is.
func (a *Archive) shrink(p *pool) {
	at := p.oldest[0]
	p.oldest = p.oldest[1:]
	n := at.name
	if n.find(at.until) != 0 {
		return
	}
	switch first := &n.records[0]; {
	case len(n.records) > 1:
		a.drop(n, 0)
	case first.Resource != nil:
		p.bytes -= first.bytes
		first.Resource, first.bytes, first.changed = nil, 0, true
		p.oldest = append(p.oldest, at)
		a.changed(n.key)
	default:
		a.drop(n, 0)
		if len(n.deleted) == 0 {
			delete(a.names, n.key)
		}
		a.beginLater(n.key.Type, at.until)
	}
}

// find returns the index of the record that ends at a time; -1 if there is none.
func (n *name) find(until time.Time) int {
	for i := range n.records {
		if n.records[i].Until.Equal(until) {
			return i
		}
	}
	return -1
}

// same returns the content of the version of a record that the name has already; nil for none.
func (n *name) same(as *Record) *xds.Resource {
	for i := range n.records {
		if r := &n.records[i]; r.Resource != nil && r.head == as.head && r.Version == as.Version {
			return r.Resource
		}
	}
	return nil
}

// leastUseful returns the index of the record that is dropped for another one: the one that lasted least, if
// that was less than Short, or the oldest.
func (n *name) leastUseful() int {
	least, at := Short, 0
	for i := range n.records {
		r := &n.records[i]
		if lasted := r.Until.Sub(r.From); lasted < Short && lasted <= least && !r.From.IsZero() {
			least, at = lasted, i
		}
	}
	return at
}

// drop drops the i-th record of a name.
func (a *Archive) drop(n *name, i int) {
	dropped := n.records[i]
	n.records = slices.Delete(n.records, i, i+1)
	p := a.pool(n.key.Type)
	p.records--
	p.bytes -= recordBytes
	if n.same(&dropped) == nil {
		p.bytes -= dropped.bytes
	}
	if dropped.onDisk {
		n.deleted = append(n.deleted, dropped.Until)
		a.changed(n.key)
	}
}

func size(r *xds.Resource) int64 {
	if r == nil {
		return 0
	}
	return int64(len(r.Body.GetValue()))
}

// State says what At knows.
type State int

const (
	// Present: the name was then what it is now, or a content has been accepted since that is still
	// the accepted one.
	Present State = iota
	// Found: the record is what the name was.
	Found
	// Unknown: what the name was is not known, or not kept any more.
	Unknown
)

// At returns what the accepted content of a name was at a time.
func (a *Archive) At(k xds.Key, at time.Time) (Record, State) {
	if began, ok := a.began[k.Type]; !ok || at.Before(began) {
		return Record{}, Unknown
	}
	if n := a.names[k]; n != nil {
		for _, r := range n.records {
			switch {
			case !r.Until.After(at):
			case r.From.After(at), !r.Absent() && r.Resource == nil:
				return r, Unknown
			default:
				return r, Found
			}
		}
	}
	return Record{}, Present
}

// Versions returns what the accepted content of a name was, the oldest first, and is; the last one has no Until. present is the
// accepted content; nil for none.
func (a *Archive) Versions(k xds.Key, present *xds.Resource) []Record {
	records := a.Records(k)
	if len(records) == 0 && present == nil {
		return nil
	}
	out := append(make([]Record, 0, len(records)+1), records...)
	var last Record
	if n := len(records); n > 0 {
		last.From = records[n-1].Until
	}
	if present != nil {
		last.Version, last.Resource = present.Version, present
	}
	return append(out, last)
}

// Records returns the records of a name, the oldest first. The caller must not change them.
func (a *Archive) Records(k xds.Key) []Record {
	if n := a.names[k]; n != nil {
		return n.records
	}
	return nil
}

// Lasting reports whether the newest record of a name is of what lasted for Short or longer, or of the beginning: there are
// few of these, and whoever asks for a former content asks for one of them.
func (a *Archive) Lasting(k xds.Key) bool {
	records := a.Records(k)
	if len(records) == 0 {
		return false
	}
	newest := &records[len(records)-1]
	return newest.From.IsZero() || newest.Until.Sub(newest.From) >= Short
}

// Unwritten reports whether Take has a record of a name to return that is not on disk in any form.
func (a *Archive) Unwritten(k xds.Key) bool {
	return slices.ContainsFunc(a.Records(k), func(r Record) bool { return r.changed && !r.onDisk })
}

// Take returns the records of a name that are new or changed since the last call, and the ends of those
// that it had returned, or that were restored, and that are not there any more.
func (a *Archive) Take(k xds.Key) (changed []Record, deleted []time.Time) {
	n := a.names[k]
	if n == nil {
		return nil, nil
	}
	for i := range n.records {
		if r := &n.records[i]; r.changed {
			changed = append(changed, *r)
			r.Taken, r.onDisk, r.changed = true, true, false
		}
	}
	deleted, n.deleted = n.deleted, nil
	if len(n.records) == 0 {
		delete(a.names, k)
	}
	return changed, deleted
}

// TakeAll returns all records of the types for which of is true, to replace everything that was written before. Take still
// returns afterwards what is new: that everything is replaced may fail.
func (a *Archive) TakeAll(of func(typeURL string) bool) iter.Seq2[xds.Key, []Record] {
	return func(yield func(xds.Key, []Record) bool) {
		for k, n := range a.names {
			if !of(k.Type) {
				continue
			}
			records := slices.Clone(n.records)
			for i := range n.records {
				n.records[i].Taken, n.records[i].onDisk = true, true
			}
			if len(records) > 0 && !yield(k, records) {
				return
			}
		}
	}
}

// Names yields the names that have records, in no order.
func (a *Archive) Names() iter.Seq[xds.Key] {
	return func(yield func(xds.Key) bool) {
		for k, n := range a.names {
			if len(n.records) > 0 && !yield(k) {
				return
			}
		}
	}
}

// Types yields the types whose contents are recorded, and since when.
func (a *Archive) Types() iter.Seq2[string, time.Time] {
	return func(yield func(string, time.Time) bool) {
		for typeURL, at := range a.began {
			if !yield(typeURL, at) {
				return
			}
		}
	}
}

// Bytes returns what the records take in memory, about.
func (a *Archive) Bytes() int64 { return a.pools[0].bytes + a.pools[1].bytes }

// Stored is a record that was on disk. New says that it is not there yet: only Restore's caller knows of it.
type Stored struct {
	xds.Key
	Record
	New bool
}

// Restore restores the records that were on disk. What was recorded since the start is newer, and
// comes after them. Those before the beginning of their type are dropped: an agent without a history has run since.
func (a *Archive) Restore(began map[string]time.Time, stored []Stored) {
	if !a.Enabled() {
		return
	}
	for typeURL, at := range began {
		a.Begin(typeURL, at)
	}
	newer := make([]Stored, 0)
	for k, n := range a.names {
		for _, r := range n.records {
			newer = append(newer, Stored{Key: k, Record: r})
		}
	}
	slices.SortFunc(newer, byTime)
	stored = slices.SortedFunc(slices.Values(stored), byTime)
	clear(a.names)
	for i := range a.pools {
		a.pools[i] = pool{limit: a.pools[i].limit}
	}
	for _, s := range stored {
		if began, ok := a.began[s.Type]; !ok || s.Until.Before(began) {
			a.discard(s)
			continue
		}
		s.Taken, s.onDisk = false, !s.New
		a.add(s.Key, s.Record)
	}
	for _, s := range newer {
		a.add(s.Key, s.Record)
	}
}

// discard deletes a record from the disk.
func (a *Archive) discard(s Stored) {
	n := a.named(s.Key)
	n.deleted = append(n.deleted, s.Until)
	a.changed(s.Key)
}

func byTime(a, b Stored) int { return a.Until.Compare(b.Until) }
