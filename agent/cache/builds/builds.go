// Package builds keeps which content of a name each of the last two builds of the clients' program accepted last, where they differ: what
// one build takes another may not be able to read (design.md I7).
//
// It promises that:
//   - a client of a build that accepted another content last than the one that any client accepted last is sent that first, and is then
//     offered the newest, unless its build NACKed it: then only a new process is, once;
//   - what a client of a build did not outlive is not sent to another of that build, until the content changes, a day has passed, or an
//     operator says so;
//   - a name of which both builds accepted the same costs nothing.
//
// Endpoints and secrets belong to no build: what any accepted is what all get. Nothing in it has a lock: its owner serializes all calls.
package builds

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxBuild bounds the length of a build in bytes: strangers choose it.
const maxBuild = 128

// Builds is the feature. Make one with New.
type Builds struct {
	s *state.State
	// slots are the last two builds, "" for none; newest is that of the client that came last.
	slots   [2]string
	newest  int
	records map[xds.Key]*record
	counts  map[string]int // of records, by build
}

// record is what a build accepted of a name whose accepted content is another one.
type record struct {
	build    string
	accepted *xds.Resource
	// status is the answer of clients of the build to the newest content, if others accepted that; it is never ACKed.
	status xds.Status
	// killed says that a client of the build did not outlive a version, deadly.
	killed state.Killed
	deadly string
	// offered has, by client, since when it is offered the newest content.
	offered map[*subscriptions.Client]time.Time
}

// New returns a Builds without a build.
func New(s *state.State) *Builds {
	return &Builds{s: s, records: make(map[xds.Key]*record), counts: make(map[string]int)}
}

// isBuilds reports whether contents of a type belong to builds.
func isBuilds(typeURL string) bool {
	return typeURL != xds.EndpointType && typeURL != xds.SecretType && !xds.Info(typeURL).OnDemand
}

// Came is called when a client of a build has come; "" for one that is not known. The build before the last two is forgotten.
func (b *Builds) Came(build string) {
	if build == "" || build == b.slots[b.newest] || len(build) > maxBuild {
		return
	}
	b.newest = 1 - b.newest
	forgotten := b.slots[b.newest]
	if forgotten == build {
		return // two builds at once
	}
	b.slots[b.newest] = build
	if forgotten != "" {
		b.drop(forgotten)
	}
	b.s.PersistFact(state.BuildsFact, xds.Key{})
}

// drop forgets a build, whose slot is the newest one now.
func (b *Builds) drop(build string) {
	for k, r := range b.records {
		if r.build == build {
			b.forget(k)
		}
	}
	for _, t := range b.s.Tables() {
		for _, e := range t.All() {
			e.ForgetBuild(b.only(b.newest))
		}
	}
}

// only returns the set of one build.
func (b *Builds) only(slot int) history.Builds { return 1 << slot }

// slotOf returns which of the last two builds one is.
func (b *Builds) slotOf(build string) (slot int, known bool) {
	slot = slices.Index(b.slots[:], build)
	return slot, build != "" && slot >= 0
}

// Watching reports whether there were two builds.
func (b *Builds) Watching() bool { return b.slots[1-b.newest] != "" }

// Ack is a client's ACK of a content of a name, whose entry is Entry; nil for none.
type Ack struct {
	Client  *subscriptions.Client
	Key     xds.Key
	Entry   *contents.Entry
	Content *xds.Resource
	// Was is what clients had accepted last, nil for nothing, and By the builds that accepted it. Is is what they have now.
	Was, Is *xds.Resource
	By      history.Builds
	// Refused says that a client had NACKed the newest content.
	Refused bool
}

// Acked is called when a client has ACKed a content.
func (b *Builds) Acked(a Ack, now time.Time) {
	slot, known := b.slotOf(a.Client.Build)
	if !known || a.Entry == nil || !isBuilds(a.Key.Type) {
		return
	}
	if state.SameVersion(a.Entry.Acked(), a.Content) {
		a.Entry.AckedBy(b.only(slot))
	}
	if !b.Watching() {
		return
	}
	r := b.records[a.Key]
	newest := state.SameVersion(a.Content, a.Is)
	switch {
	case r != nil && r.build == a.Client.Build && !newest:
		if r.offered == nil {
			r.offered = make(map[*subscriptions.Client]time.Time)
		}
		r.offered[a.Client] = now // it is offered the newest next
		if !state.SameVersion(r.accepted, a.Content) {
			r.accepted = a.Content
			b.persist(a.Key)
		}
		return
	case r != nil && (r.build == a.Client.Build || state.SameVersion(r.accepted, a.Is)):
		b.forget(a.Key)
	case r != nil || !newest:
		return
	}
	if other := 1 - slot; a.Was != nil && a.By&b.only(other) != 0 && !state.SameVersion(a.Was, a.Is) {
		b.keep(a.Key, b.slots[other], a.Was, a.Refused)
	}
}

// Own reports whether a client has ACKed what its build accepted of a name, whose entry is e and of which there is a newer content: that is no
// news for others.
func (b *Builds) Own(client *subscriptions.Client, e *contents.Entry, content *xds.Resource) bool {
	if len(b.records) == 0 || e == nil || e.Current().Version == content.Version {
		return false
	}
	r := b.records[xds.Key{Type: content.Type, Name: content.Name}]
	return r != nil && r.build == client.Build && state.SameVersion(r.accepted, content)
}

// Nacked is called when a client has NACKed a content of a name, whose entry is e: alone, or together with others.
func (b *Builds) Nacked(client *subscriptions.Client, k xds.Key, e *contents.Entry, content *xds.Resource, together bool) {
	r := b.records[k]
	if r == nil || r.build != client.Build || e == nil || e.Current().Version != content.Version || r.accepted.Version == content.Version {
		return
	}
	if r.status = xds.Nacked; together {
		r.status = xds.Suspect
	}
}

// Started is called when a new process has ACKed contents of a type: what others of its build NACKed is offered to it, once. judged has what
// was, and what it has NACKed itself.
func (b *Builds) Started(client *subscriptions.Client, t *state.Table, judged map[xds.Key]struct{}, e *state.Event) {
	for k, r := range b.records {
		if r.killed.Came(client.Opened) {
			b.s.PersistFact(state.EndedFact, k)
		}
		if _, was := judged[k]; was || k.Type != t.URL || r.build != client.Build || r.status == xds.Pending {
			continue
		}
		judged[k] = struct{}{}
		r.status = xds.Pending
		e.Changes(t).Add(k.Name, t.Resource(k.Name))
	}
}

// keep records what a build accepted last.
func (b *Builds) keep(k xds.Key, build string, accepted *xds.Resource, rejected bool) {
	r := &record{build: build, accepted: accepted}
	if rejected {
		r.status = xds.Nacked
	}
	b.put(k, r)
	b.persist(k)
}

func (b *Builds) put(k xds.Key, r *record) {
	if was := b.records[k]; was != nil {
		b.counts[was.build]--
	}
	b.records[k] = r
	b.counts[r.build]++
}

func (b *Builds) forget(k xds.Key) {
	if r := b.records[k]; r != nil {
		b.counts[r.build]--
		delete(b.records, k)
	}
	b.persist(k)
}

// After forgets a name that is not there any more, and gives what was accepted the lifetime of the newest content (design.md I8).
func (b *Builds) After(x *state.Change) {
	if len(b.records) == 0 {
		return
	}
	k := x.Key()
	r := b.records[k]
	switch {
	case r == nil:
	case x.Kind != state.Put:
		b.forget(k)
	default:
		if x.Done.Change == history.ContentChanged {
			r.status = xds.Pending
		}
		if was := x.Done.OldAcked; was != nil && state.SameVersion(r.accepted, x.Entry.Acked()) && !state.SameVersion(was, r.accepted) {
			// A source sends a stable content again, which counts as accepted: the other build accepted what was before.
			if slot, known := b.slotOf(r.build); known {
				b.keep(k, b.slots[1-slot], was, x.Entry.Reason() != "")
				r = b.records[k]
			}
		}
		if now := x.Entry.Current(); r.accepted.TTL() != now.TTL() || !r.accepted.Deadline().Equal(now.Deadline()) {
			r.accepted = r.accepted.WithLifetime(now.TTL(), now.Deadline())
		}
	}
}

// Any reports whether the builds accepted different contents of any name.
func (b *Builds) Any() bool { return len(b.records) > 0 }

// Item returns what a client of a build is served of a name, whose entry is e and of which others are served item. replaced says that this
// is served in place of the newest content, so that nothing is tried, and resumes that the client has something already: it is sent the newest
// content as any other, because it is not known what it has, and keeps that if it NACKs it.
func (b *Builds) Item(build string, e *contents.Entry, item xds.Item, replaced, resumes bool) xds.Item {
	if build == "" || b.counts[build] == 0 || e == nil || item.Current == nil { // as for most clients: they are of the build that came last
		return item
	}
	r := b.records[xds.Key{Type: item.Current.Type, Name: item.Current.Name}]
	if r == nil || r.build != build || r.accepted.Version == item.Current.Version {
		return item
	}
	item.Acked = r.accepted
	switch {
	case item.Status != xds.Acked: // no build is known to take it
	case replaced, r.deadly == item.Current.Version && r.killed.Lasts(time.Now()):
		item.Status, item.Offer = xds.Nacked, 0
		return item
	case item.Offer > 0:
		item.Status = xds.Pending
	default:
		item.Status = r.status
	}
	if item.Status == xds.Pending && (!resumes || item.Offer > 0) {
		item.Offer = e.Offers() + 1 // also when it is offered to all
	}
	return item
}

// Closed is called when a client has disconnected: what it was offered and has not answered it may not have outlived.
func (b *Builds) Closed(client *subscriptions.Client, unanswered map[string][]string) {
	now := time.Now()
	for k, r := range b.records {
		at, offered := r.offered[client]
		if delete(r.offered, client); !offered || !slices.Contains(unanswered[k.Type], k.Name) {
			continue
		}
		if e, killed := b.s.Existing(k.Type).Entry(k.Name), state.KilledBy(at, client, now); e != nil && killed.Any() {
			r.killed, r.deadly = killed, e.Current().Version
			b.s.PersistFact(state.EndedFact, k)
		}
	}
}

// Returned is called when a client comes that has something from an earlier stream: a process that went without an answer has not ended.
func (b *Builds) Returned(client *subscriptions.Client) {
	for k, r := range b.records {
		if r.killed.Returned(client) {
			b.s.PersistFact(state.EndedFact, k)
		}
	}
}

// Again forgets, of each name for which of returns true, what a client did not outlive: an operator says so. dryRun only tells them.
func (b *Builds) Again(of func(xds.Key) bool, dryRun bool) (names []xds.Key) {
	for k, r := range b.records {
		if !r.killed.Any() || !of(k) {
			continue
		}
		names = append(names, k)
		if !dryRun {
			r.killed = state.Killed{}
			b.s.PersistFact(state.EndedFact, k)
		}
	}
	return names
}

// Ended reports whether a client of a build that accepted another content did not outlive the newest one.
func (b *Builds) Ended(k xds.Key, version string) bool {
	r := b.records[k]
	return r != nil && r.killed.Any() && r.deadly == version
}

// Accepted returns what a build accepted of a name whose accepted content is another one; "" and nil for none.
func (b *Builds) Accepted(k xds.Key) (build string, accepted *xds.Resource) {
	if r := b.records[k]; r != nil {
		return r.build, r.accepted
	}
	return "", nil
}

// Names yields the names of which the builds accepted different contents.
func (b *Builds) Names(yield func(xds.Key) bool) {
	for k := range b.records {
		if !yield(k) {
			return
		}
	}
}

// persist records that what is on disk of a name may differ.
func (b *Builds) persist(k xds.Key) {
	b.s.PersistBuild(k)
	b.s.PersistFact(state.EndedFact, k)
}

// Restore restores what a build accepted of a name, after the facts and the resources.
func (b *Builds) Restore(k xds.Key, build string, accepted *xds.Resource) {
	if _, known := b.slotOf(build); !known || b.s.Existing(k.Type).Entry(k.Name) == nil {
		b.persist(k) // it is forgotten
		return
	}
	r := &record{}
	if ended := b.records[k]; ended != nil {
		*r = *ended
	}
	r.build, r.accepted = build, accepted
	b.put(k, r)
}

// Restored is called after everything was restored.
func (b *Builds) Restored() {
	for k, r := range b.records {
		if r.accepted == nil {
			b.forget(k) // it was not stored
		}
	}
}

// ended is the value of an EndedFact, as JSON.
type ended struct {
	Version string `json:"version"`
	state.Killed
}

// Facts yields the builds, and the names of which a client did not outlive something.
func (b *Builds) Facts(yield func(state.Fact) bool) {
	if !yield(state.Fact{Kind: state.BuildsFact}) {
		return
	}
	for k := range b.records {
		if !yield(state.Fact{Kind: state.EndedFact, Type: k.Type, Name: k.Name}) {
			return
		}
	}
}

// Fact returns the value of a fact; known is false if it is another feature's.
func (b *Builds) Fact(f state.Fact) (value string, known bool) {
	switch f.Kind {
	case state.BuildsFact:
		if b.slots[b.newest] == "" {
			return "", true
		}
		return marshal([]string{b.slots[b.newest], b.slots[1-b.newest]}), true
	case state.EndedFact:
		if r := b.records[xds.Key{Type: f.Type, Name: f.Name}]; r != nil && r.killed.Any() {
			return marshal(ended{r.deadly, r.killed.Stored()}), true
		}
		return "", true
	}
	return "", false
}

func marshal(v any) string {
	text, err := json.Marshal(v)
	if err != nil { // texts and times
		panic(err)
	}
	return string(text)
}

// RestoreFact restores the builds, or what a client did not outlive.
func (b *Builds) RestoreFact(f state.Fact, value string, now time.Time) (known bool) {
	switch f.Kind {
	case state.BuildsFact:
		var list []string
		if json.Unmarshal([]byte(value), &list) == nil && len(list) == 2 && b.slots == [2]string{} {
			b.slots, b.newest = [2]string{list[0], list[1]}, 0
		}
	case state.EndedFact:
		var of ended
		if k := (xds.Key{Type: f.Type, Name: f.Name}); json.Unmarshal([]byte(value), &of) == nil {
			b.put(k, &record{killed: of.Restored(now), deadly: of.Version})
		}
	default:
		return false
	}
	return true
}
