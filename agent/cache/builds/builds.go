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

// What a client did not outlive, if it went within killedWithin of being offered it, is offered to its build again after killedFor.
const (
	killedWithin = time.Minute
	killedFor    = 24 * time.Hour
)

// maxBuild bounds the length of a build in bytes: strangers choose it.
const maxBuild = 128

// Builds is the feature. Make one with New.
type Builds struct {
	s *state.State
	// newest is the build of the client that came last, former the one before; "" for none.
	newest, former string
	records        map[xds.Key]*record
}

// record is what a build accepted of a name whose accepted content is another one.
type record struct {
	build    string
	accepted *xds.Resource
	// status is the answer of clients of the build to the newest content, if others accepted that; it is never ACKed.
	status xds.Status
	// killed is the version that a client of the build did not outlive, at a time; "" for none.
	killed   string
	killedAt time.Time
	process  string // of that client
	// offered has, by client, since when it is offered the newest content.
	offered map[*subscriptions.Client]time.Time
}

// New returns a Builds without a build.
func New(s *state.State) *Builds { return &Builds{s: s, records: make(map[xds.Key]*record)} }

// has reports whether contents of a type belong to builds.
func has(typeURL string) bool {
	return typeURL != xds.EndpointType && typeURL != xds.SecretType && !xds.Info(typeURL).OnDemand
}

// Came is called when a client of a build has come; "" for one that is not known. The build before the last two is forgotten.
func (b *Builds) Came(build string) {
	if build == "" || build == b.newest || len(build) > maxBuild {
		return
	}
	b.newest, b.former = build, b.newest
	for k, r := range b.records {
		if r.build != b.newest && r.build != b.former {
			b.forget(k)
		}
	}
	b.s.PersistFact(state.BuildsFact, xds.Key{})
}

// Watching reports whether there were two builds, so that Acked has something to do.
func (b *Builds) Watching() bool { return b.former != "" }

// other returns the other build than one of the last two; "" if there is none.
func (b *Builds) other(build string) string {
	switch build {
	case b.newest:
		return b.former
	case b.former:
		return b.newest
	}
	return ""
}

// Acked is called when a client has ACKed a content of a name: was is what clients had accepted last, nil for nothing, and is what they have
// now. rejected says that clients had NACKed it before.
func (b *Builds) Acked(client *subscriptions.Client, k xds.Key, content, was, is *xds.Resource, rejected bool, now time.Time) {
	other := b.other(client.Build)
	if other == "" || !has(k.Type) {
		return
	}
	r := b.records[k]
	newest := state.SameVersion(content, is)
	switch {
	case r != nil && r.build == client.Build && !newest:
		if r.offered == nil {
			r.offered = make(map[*subscriptions.Client]time.Time)
		}
		r.offered[client] = now // it is offered the newest next
		if !state.SameVersion(r.accepted, content) {
			r.accepted = content
			b.persist(k)
		}
	case r != nil && r.build == client.Build, r != nil && state.SameVersion(r.accepted, is):
		b.forget(k)
		if was != nil && !state.SameVersion(was, is) {
			b.set(k, other, was, rejected)
		}
	case r == nil && newest && was != nil && !state.SameVersion(was, is):
		b.set(k, other, was, rejected)
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
		if _, was := judged[k]; was || k.Type != t.URL || r.build != client.Build || r.status == xds.Pending {
			continue
		}
		judged[k] = struct{}{}
		r.status = xds.Pending
		e.Changes(t).Add(k.Name, t.Resource(k.Name))
	}
}

// set records what a build accepted last.
func (b *Builds) set(k xds.Key, build string, accepted *xds.Resource, rejected bool) {
	r := &record{build: build, accepted: accepted}
	if rejected {
		r.status = xds.Nacked
	}
	b.records[k] = r
	b.persist(k)
}

func (b *Builds) forget(k xds.Key) {
	delete(b.records, k)
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
			b.set(k, b.other(r.build), was, x.Entry.Reason() != "")
			r = b.records[k]
		}
		if now := x.Entry.Current(); r.accepted.TTL() != now.TTL() || !r.accepted.Deadline().Equal(now.Deadline()) {
			r.accepted = r.accepted.WithLifetime(now.TTL(), now.Deadline())
		}
	}
}

// Quiet reports whether a content that is repeated changes nothing.
func (b *Builds) Quiet() bool { return len(b.records) == 0 }

// Item returns what a client of a build is served of a name, whose entry is e and of which others are served item. replaced says that this
// is served in place of the newest content, so that nothing is tried, and resumes that the client has something already: it is sent the newest
// content as any other, because it is not known what it has, and keeps that if it NACKs it.
func (b *Builds) Item(build string, e *contents.Entry, item xds.Item, replaced, resumes bool) xds.Item {
	if len(b.records) == 0 || build == "" || e == nil || item.Current == nil {
		return item
	}
	r := b.records[xds.Key{Type: item.Current.Type, Name: item.Current.Name}]
	if r == nil || r.build != build || r.accepted.Version == item.Current.Version {
		return item
	}
	item.Acked = r.accepted
	switch {
	case item.Status != xds.Acked: // no build is known to take it
	case replaced, r.killed == item.Current.Version && time.Since(r.killedAt) < killedFor:
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
		if delete(r.offered, client); !offered || now.Sub(at) > killedWithin || !slices.Contains(unanswered[k.Type], k.Name) {
			continue
		}
		if e := b.s.Existing(k.Type).Entry(k.Name); e != nil {
			r.killed, r.killedAt, r.process = e.Current().Version, now, client.Process
			b.s.PersistFact(state.EndedFact, k)
		}
	}
}

// Returned is called when a client comes that has something from an earlier stream: a process that went without an answer has not ended.
func (b *Builds) Returned(client *subscriptions.Client, now time.Time) {
	for k, r := range b.records {
		if r.killed != "" && client.MayBe(r.process) && now.Sub(r.killedAt) < killedWithin {
			r.killed = ""
			b.s.PersistFact(state.EndedFact, k)
		}
	}
}

// Again forgets, of each name for which of returns true, what a client did not outlive: an operator says so. dryRun only tells them.
func (b *Builds) Again(of func(xds.Key) bool, dryRun bool) (names []xds.Key) {
	for k, r := range b.records {
		if r.killed == "" || !of(k) {
			continue
		}
		names = append(names, k)
		if !dryRun {
			r.killed = ""
			b.s.PersistFact(state.EndedFact, k)
		}
	}
	return names
}

// Accepted returns what a build accepted of a name whose accepted content is another one; "" and nil for none.
func (b *Builds) Accepted(k xds.Key) (build string, accepted *xds.Resource) {
	if r := b.records[k]; r != nil {
		return r.build, r.accepted
	}
	return "", nil
}

// Differs reports whether the build of a client accepted another content of a name than others.
func (b *Builds) Differs(client *subscriptions.Client, k xds.Key) bool {
	r := b.records[k]
	return r != nil && r.build == client.Build
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
	if build != b.newest && build != b.former || b.s.Existing(k.Type).Entry(k.Name) == nil {
		b.persist(k) // it is forgotten
		return
	}
	r := b.records[k]
	if r == nil {
		r = &record{}
		b.records[k] = r
	}
	r.build, r.accepted = build, accepted
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
	Version string    `json:"version"`
	At      time.Time `json:"at"`
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
		if b.newest == "" {
			return "", true
		}
		return marshal([]string{b.newest, b.former}), true
	case state.EndedFact:
		if r := b.records[xds.Key{Type: f.Type, Name: f.Name}]; r != nil && r.killed != "" {
			return marshal(ended{r.killed, r.killedAt.UTC().Round(0)}), true
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
func (b *Builds) RestoreFact(f state.Fact, value string, _ time.Time) (known bool) {
	switch f.Kind {
	case state.BuildsFact:
		var list []string
		if json.Unmarshal([]byte(value), &list) == nil && len(list) == 2 && b.newest == "" {
			b.newest, b.former = list[0], list[1]
		}
	case state.EndedFact:
		var of ended
		if k := (xds.Key{Type: f.Type, Name: f.Name}); json.Unmarshal([]byte(value), &of) == nil {
			b.records[k] = &record{killed: of.Version, killedAt: of.At}
		}
	default:
		return false
	}
	return true
}
