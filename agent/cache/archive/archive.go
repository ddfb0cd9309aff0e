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
//   - a content that comes several times in the history of a name is in memory once.
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

// recordBytes is what a record costs beside the body.
const recordBytes = 160

// Settle is how long after the first accepted content of a type its names are not new: clients
// accept the first configuration in several responses.
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
	// Taken says that the record was given to be written (Take), Restored that it was on disk at the start.
	Taken, Restored bool
}

// Absent reports whether the name had no accepted content.
func (r Record) Absent() bool { return r.Version == "" }

// ID identifies a record.
type ID struct {
	xds.Key
	Until time.Time
}

// Archive has the replaced contents of all names. Make one with New.
type Archive struct {
	names map[xds.Key]*name
	// began is since when the contents of a type are recorded, by type URL.
	began map[string]time.Time
	// settles is until when the first contents of a type are accepted.
	settles map[string]time.Time
	pools   [2]pool
	changed Changed
}

// Changed is called with each record that is added, changed or dropped, and with a type alone if Began has
// changed. unwritten says that the record was dropped before it was taken, so that nothing of it is to be
// written.
type Changed func(id ID, unwritten bool)

// name has the records of one name, the oldest first.
type name struct {
	records []Record
}

// pool bounds the bytes of some types.
type pool struct {
	limit, bytes int64
	records      int
	oldest       []ID // in the order in which they are dropped; those that were dropped before are skipped
}

// New returns an empty archive of at most the given number of bytes; 0 keeps nothing. changed may be nil.
func New(bytes int64, changed Changed) *Archive {
	a := &Archive{names: make(map[xds.Key]*name), began: make(map[string]time.Time), settles: make(map[string]time.Time), changed: changed}
	a.pools[0].limit, a.pools[1].limit = bytes-bytes/4, bytes/4
	if a.changed == nil {
		a.changed = func(ID, bool) {}
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
	if began, ok := a.began[typeURL]; ok && !at.Before(began) {
		return false
	}
	a.began[typeURL] = at
	a.changed(ID{Key: xds.Key{Type: typeURL}}, false)
	return true
}

// beginLater records that it is not known what was accepted of a type before a time.
func (a *Archive) beginLater(typeURL string, at time.Time) {
	if at.After(a.began[typeURL]) {
		a.began[typeURL] = at
		a.changed(ID{Key: xds.Key{Type: typeURL}}, false)
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
	if was == nil && now.Before(a.settles[k.Type]) {
		a.beginLater(k.Type, now)
		return
	}
	r := Record{Until: now.UTC().Round(0)} // comparable, as after a restart
	if was != nil {
		r.Version, r.Resource = was.Version, was
	}
	a.add(k, r)
}

// add adds a record.
func (a *Archive) add(k xds.Key, r Record) {
	n := a.names[k]
	if n == nil {
		n = &name{}
		a.names[k] = n
	}
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
		a.drop(k, n, n.leastUseful())
	}
	if k.Type == xds.SecretType {
		r.Resource = nil
	}
	p := a.pool(k.Type)
	p.records++
	p.bytes += recordBytes
	if same := n.same(r.Version); same != nil {
		r.Resource = same
	} else {
		p.bytes += size(r.Resource)
	}
	n.records = append(n.records, r)
	id := ID{k, r.Until}
	p.oldest = append(p.oldest, id)
	if !r.Restored {
		a.changed(id, false)
	}
	for p.bytes > p.limit && len(p.oldest) > 0 {
		a.shrink(p)
	}
	if len(p.oldest) > 64+2*p.records {
		p.oldest = slices.DeleteFunc(p.oldest, func(id ID) bool { _, ok := a.Record(id); return !ok })
	}
}

// shrink drops the oldest record of a pool. Of the only record of a name first the content is dropped,
// so that it stays known since when the name is what it is.
func (a *Archive) shrink(p *pool) {
	id := p.oldest[0]
	p.oldest = p.oldest[1:]
	n := a.names[id.Key]
	if n == nil || len(n.records) == 0 || !n.records[0].Until.Equal(id.Until) {
		return
	}
	switch first := &n.records[0]; {
	case len(n.records) > 1:
		a.drop(id.Key, n, 0)
	case first.Resource != nil:
		p.bytes -= size(first.Resource)
		first.Resource = nil
		p.oldest = append(p.oldest, id)
		a.changed(id, false)
	default:
		a.drop(id.Key, n, 0)
		delete(a.names, id.Key)
		a.beginLater(id.Type, id.Until)
	}
}

// same returns the content of a version that the name has already; nil for none.
func (n *name) same(version string) *xds.Resource {
	for _, r := range n.records {
		if r.Resource != nil && r.Version == version {
			return r.Resource
		}
	}
	return nil
}

// leastUseful returns the index of the record that is dropped for another one: the one that lasted least, if
// that was less than Short, or the oldest.
func (n *name) leastUseful() int {
	least, at := Short, 0
	for i, r := range n.records {
		if lasted := r.Until.Sub(r.From); !r.From.IsZero() && lasted < Short && lasted <= least {
			least, at = lasted, i
		}
	}
	return at
}

// drop drops the i-th record of a name.
func (a *Archive) drop(k xds.Key, n *name, i int) {
	dropped := n.records[i]
	n.records = slices.Delete(n.records, i, i+1)
	p := a.pool(k.Type)
	p.records--
	p.bytes -= recordBytes
	if n.same(dropped.Version) == nil {
		p.bytes -= size(dropped.Resource)
	}
	a.changed(ID{k, dropped.Until}, !dropped.Taken && !dropped.Restored)
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

// Records returns the records of a name, the oldest first. The caller must not change them.
func (a *Archive) Records(k xds.Key) []Record {
	if n := a.names[k]; n != nil {
		return n.records
	}
	return nil
}

// Record returns a record; ok is false if there is none.
func (a *Archive) Record(id ID) (r Record, ok bool) {
	if found := a.record(id); found != nil {
		return *found, true
	}
	return r, false
}

func (a *Archive) record(id ID) *Record {
	n := a.names[id.Key]
	if n == nil {
		return nil
	}
	i := slices.IndexFunc(n.records, func(r Record) bool { return r.Until.Equal(id.Until) })
	if i < 0 {
		return nil
	}
	return &n.records[i]
}

// Take returns a record that is to be written, as it was before, and marks it as taken; ok is false if
// there is none any more.
func (a *Archive) Take(id ID) (r Record, ok bool) {
	found := a.record(id)
	if found == nil {
		return r, false
	}
	r = *found
	found.Taken = true
	return r, true
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

// All yields all records, in no order.
func (a *Archive) All() iter.Seq2[ID, Record] {
	return func(yield func(ID, Record) bool) {
		for k, n := range a.names {
			for _, r := range n.records {
				if !yield(ID{k, r.Until}, r) {
					return
				}
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

// Stored is a record that was on disk.
type Stored struct {
	xds.Key
	Record
}

// Restore restores the records that were on disk. What was recorded since the start is newer, and
// comes after them.
func (a *Archive) Restore(began map[string]time.Time, stored []Stored) {
	if !a.Enabled() {
		return
	}
	for typeURL, at := range began {
		a.Begin(typeURL, at)
	}
	newer := make([]Stored, 0)
	for id, r := range a.All() {
		newer = append(newer, Stored{id.Key, r})
	}
	slices.SortFunc(newer, byTime)
	stored = slices.SortedFunc(slices.Values(stored), byTime)
	clear(a.names)
	for i := range a.pools {
		a.pools[i] = pool{limit: a.pools[i].limit}
	}
	for _, s := range stored {
		s.Restored = true
		a.add(s.Key, s.Record)
	}
	for _, s := range newer {
		a.add(s.Key, s.Record)
	}
}

func byTime(a, b Stored) int { return a.Until.Compare(b.Until) }
