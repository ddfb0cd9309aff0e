package session

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// subscription is one type on one stream: what the client wants, what it has,
// and what it is owed. Nonces, names and versions are never mixed across types
// (protocol.md 1.9).
type subscription struct {
	url string
	cfg Config

	// What the client wants.
	names    map[string]struct{}
	wildcard bool
	// expected are names that the client is about to ask for: the endpoints of
	// clusters that it was sent.
	expected map[string]struct{}
	// explicit: a name or "*" was seen, so an empty list no longer means
	// everything (protocol.md 2.3).
	explicit bool
	// kept: the wildcard is held on the client's behalf (protocol.md V9).
	keepsWildcard bool

	// What the client has, by resource name.
	sent   map[string]*holding
	served xds.SetVersion
	// whole is the complete set that was sent last, in SotW, nil if the next is to be made
	// anew; rejections is View.Rejections of that time.
	whole []*xds.Resource
	nacks uint64
	// resumed: the client came with configuration of an earlier stream, so a
	// SotW response that is not complete would delete some of it.
	resumed bool
	// resumedAt is when it was first looked at whether the set of a client that came so is
	// complete, completeAt when it will count as that; the zero time for never.
	resumedAt, completeAt time.Time
	// inherited: it came with configuration, whatever was sent since.
	inherited bool
	// version is the version_info of a SotW client's first request: the set that it
	// has accepted; "" for none, and when that set was found.
	version string
	// claimed are contents that the client says it has, and has so accepted.
	claimed []*xds.Resource

	// What the client is owed.
	answerDue bool                // a response, also an empty one
	lookAtAll bool                // anything may have changed
	dirty     map[string]struct{} // names that changed
	due       map[string]struct{} // names to be answered also when unchanged
	// unanswered are due names of which nothing is known: a debt that is paid
	// when Changed names them (protocol.md 4.2).
	unanswered map[string]struct{}
	leaving    map[string]time.Time // clusters to be removed, and not before when
	alone      []*xds.Resource      // suspects to be sent once more, alone
	bare       map[string]struct{}  // names of which it refused the first that it was sent
	beats      map[string]struct{}  // names whose TTL started again
	trial      *trial               // nil for none
	pardoned   []*xds.Resource      // those of a trial that failed, to be put back
	// surplus are names beyond the limit that are to be looked at; waiting are those that wait
	// for a place. See refuseSurplus.
	surplus, waiting map[string]struct{}

	// What the client was sent and has not answered, oldest first.
	inFlight  []sentResponse
	sentCount uint64
	// crowded is how many flights there may be before some are put together or forgotten.
	crowded int
	// superseded are the bytes of contents in flights that something newer was sent of.
	superseded int
	// nonce is that of the last response, answered whether the client has
	// answered it.
	nonce    string
	answered bool

	// seen is the revision up to which everything was looked at, progress that
	// up to which it is also answered, reported the last progress told.
	seen, progress, reported uint64
}

// holding is what a client has under one name. There are as many as resources, for each
// client, so that its size counts: 48 bytes.
type holding struct {
	// has is the version of what the client is believed to have: sent last, or
	// claimed in initial_resource_versions; nil when it may have anything.
	has *string
	// since is how many responses were sent before: what the client says of those is
	// of something that it had to drop in between.
	since uint64
	// last was sent last on this stream, acked was ACKed last; nil for none.
	last, acked *xds.Resource
	// rare is nil for most.
	rare *rare
	// at is the place in subscription.whole.
	at int32
}

// rare is what there is to say of few holdings.
type rare struct {
	// refused are the versions that the client refused, at most maxRefused.
	refused []string
	// expires is when the client drops it by itself, as it was told last; the
	// zero time for never.
	expires time.Time
	// unjudged was sent after acked and superseded before it was answered, or refused
	// together with others: the client may have it (protocol.md 1.8, V6).
	unjudged *xds.Resource
}

// version returns that of what the client is believed to have; "" when it may have
// anything.
func (h *holding) version() string {
	if h.has == nil {
		return ""
	}
	return *h.has
}

// odd returns what is rare about a holding, to be changed.
func (h *holding) odd() *rare {
	if h.rare == nil {
		h.rare = &rare{}
	}
	return h.rare
}

// expires returns when the client drops it by itself; the zero time for never.
func (h *holding) expires() time.Time {
	if h.rare == nil {
		return time.Time{}
	}
	return h.rare.expires
}

func (h *holding) expireAt(at time.Time) {
	if !h.expires().Equal(at) {
		h.odd().expires = at
	}
}

// unacked returns what the client may have beside what it ACKed; nil for none.
func (h *holding) unacked() *xds.Resource {
	if h.rare == nil {
		return nil
	}
	return h.rare.unjudged
}

// disputed reports whether the client refused a version.
func (h *holding) disputed() bool { return h.rare != nil && len(h.rare.refused) > 0 }

// maxNacked bounds the versions under one name of which it is remembered that the
// client refused them: more than there can be to choose from at any time.
const maxNacked = 8

// hasNacked tells whether the client refused a version.
func (h *holding) hasNacked(version string) bool {
	return h != nil && h.rare != nil && slices.Contains(h.rare.refused, version)
}

// nack remembers a refusal.
func (h *holding) nack(version string) {
	if h.hasNacked(version) {
		return
	}
	odd := h.odd()
	if len(odd.refused) == maxNacked {
		odd.refused = odd.refused[1:]
	}
	odd.refused = append(odd.refused, version)
}

// pardon forgets a refusal.
func (h *holding) pardon(version string) {
	if h.hasNacked(version) {
		h.rare.refused = slices.DeleteFunc(h.rare.refused, func(v string) bool { return v == version })
	}
}

// ack remembers an ACK: it is known again what the client has.
func (h *holding) ack(r *xds.Resource) {
	h.acked = r
	if h.rare == nil {
		return
	}
	h.rare.unjudged = nil
	h.rare.refused = slices.DeleteFunc(h.rare.refused, func(version string) bool { return version == r.Version })
	if len(h.rare.refused) == 0 && h.rare.expires.IsZero() {
		h.rare = nil
	}
}

// hasAcked reports whether the client ACKed a version last.
func (h *holding) hasAcked(version string) bool {
	return h != nil && h.acked != nil && h.acked.Version == version
}

func newSubscription(url string, cfg Config) *subscription {
	return &subscription{
		url:        url,
		cfg:        cfg,
		names:      make(map[string]struct{}),
		expected:   make(map[string]struct{}),
		sent:       make(map[string]*holding),
		dirty:      make(map[string]struct{}),
		due:        make(map[string]struct{}),
		unanswered: make(map[string]struct{}),
		leaving:    make(map[string]time.Time),
		bare:       make(map[string]struct{}),
		beats:      make(map[string]struct{}),
	}
}

// requestDelta applies the subscription of a Delta request, whatever its nonce
// (protocol.md 3.1).
func (sub *subscription) requestDelta(req *Request, first bool) *xds.SubscriptionChange {
	in := &xds.SubscriptionChange{Type: sub.url}
	was := sub.wildcard
	if first {
		if len(req.Subscribe) == 0 && len(req.Unsubscribe) == 0 && !req.trimmed && xds.Info(sub.url).LegacyWildcard {
			sub.startWildcard()
		}
		// The versions may come from before a restart; they are content hashes
		// and so stay meaningful (protocol.md 7.5).
		for name, version := range req.Initial {
			sub.hold(name).has = &version
			sub.dirty[name] = struct{}{} // it may be gone (protocol.md 3.5)
		}
	}
	for _, name := range req.Subscribe {
		if name == xds.Wildcard {
			sub.startWildcard()
			continue
		}
		// Answered even if subscribed before and unchanged: the client may have
		// forgotten it (protocol.md 3.2).
		sub.subscribe(name, in)
	}
	for _, name := range req.Unsubscribe {
		if name == xds.Wildcard {
			sub.stopWildcard()
			continue
		}
		sub.unsubscribe(name, in)
		if sub.wildcard {
			// It is still covered, and the client dropped it (protocol.md 2.5).
			sub.answerName(name)
		}
	}
	in.Wildcard = sub.wildcard
	return changedInterest(in, was)
}

// requestSotW applies the subscription of a SotW request.
func (sub *subscription) requestSotW(req *Request, first bool) *xds.SubscriptionChange {
	if !first && req.Nonce != "" && req.Nonce != sub.nonce {
		// Sent before the client saw our last response; the right one follows
		// (protocol.md 1.6).
		return nil
	}
	again := !first && req.Nonce != "" && !req.NACK && sub.answered
	if !first && req.Nonce != "" {
		sub.answered = true
	}
	in := &xds.SubscriptionChange{Type: sub.url}
	was := sub.wildcard
	wildcard := sub.wantsWildcard(req, first)
	names := make(map[string]struct{}, len(req.Names))
	for _, name := range req.Names {
		if name == xds.Wildcard {
			sub.explicit = true
			continue
		}
		names[name] = struct{}{}
	}
	sub.explicit = sub.explicit || len(names) > 0 || req.trimmed
	if first {
		sub.resumed = req.Version != ""
		sub.inherited = sub.resumed
		sub.version = req.Version
	}
	for name := range sub.names {
		if _, ok := names[name]; !ok {
			sub.unsubscribe(name, in)
		}
	}
	for name := range names {
		if _, ok := sub.names[name]; !ok {
			sub.subscribe(name, in)
		}
	}
	switch {
	case wildcard && !sub.wildcard:
		sub.startWildcard()
	case !wildcard && sub.wildcard:
		sub.stopWildcard()
	}
	if first && len(names) > 0 {
		sub.answerDue = true // protocol.md 1.1
	}
	if again && sub.url == xds.EndpointType && len(in.Subscribe)+len(in.Unsubscribe) == 0 {
		// An EDS request that repeats an answered nonce asks for the endpoints
		// of a cluster that is warming (protocol.md V1, 1.4).
		for name := range sub.names {
			sub.answerName(name)
		}
	}
	in.Wildcard = sub.wildcard
	return changedInterest(in, was)
}

// wantsWildcard tells whether a SotW request asks for everything (protocol.md
// section 2).
func (sub *subscription) wantsWildcard(req *Request, first bool) bool {
	for _, name := range req.Names {
		if name == xds.Wildcard {
			sub.keepsWildcard = false
			return true
		}
	}
	if len(req.Names) == 0 && !req.trimmed && xds.Info(sub.url).LegacyWildcard && (first || !sub.explicit) {
		return true // 2.1; later requests of the kind keep it
	}
	if sub.keepsWildcard {
		return true
	}
	if sub.url == xds.ClusterType && sub.cfg.KeepWildcard && (len(req.Names) > 0 || req.trimmed) {
		// 2.4: Envoy leaves out the "*" when on-demand names come, and after a
		// reconnect names them alone.
		legacy := sub.wildcard && !sub.explicit
		remembered := first && sub.cfg.HadWildcard != nil && sub.cfg.HadWildcard(sub.url)
		sub.keepsWildcard = legacy || remembered
		return sub.keepsWildcard
	}
	return false
}

// changedInterest returns nil for an Interest that changes nothing.
func changedInterest(in *xds.SubscriptionChange, was bool) *xds.SubscriptionChange {
	if in.Wildcard == was && len(in.Subscribe) == 0 && len(in.Unsubscribe) == 0 {
		return nil
	}
	return in
}

func (sub *subscription) startWildcard() {
	if !sub.wildcard {
		sub.wildcard = true
		sub.lookAtAll = true
		sub.answerDue = true // also when the set is empty (protocol.md 2.7)
		for name := range sub.expected {
			sub.forget(name) // sent before the client asked, and so perhaps ignored
		}
		// What is under way to the client it will have, though it was forgotten.
		for _, f := range sub.inFlight {
			for _, r := range f.resources {
				if sub.sent[r.Name] == nil && sub.cfg.Form == xds.Delta {
					sub.hold(r.Name)
				}
			}
		}
	}
}

// stopWildcard forgets what only the wildcard covered.
func (sub *subscription) stopWildcard() {
	sub.wildcard, sub.keepsWildcard = false, false
	for name, h := range sub.sent {
		r := h.last
		if r == nil {
			r = &xds.Resource{Name: name}
		}
		if !sub.covers(r) {
			sub.forget(name)
		}
	}
	uncovered := func(name string, _ struct{}) bool { return !sub.covers(&xds.Resource{Name: name}) }
	maps.DeleteFunc(sub.dirty, uncovered)
	maps.DeleteFunc(sub.due, uncovered)
	maps.DeleteFunc(sub.unanswered, uncovered)
	maps.DeleteFunc(sub.leaving, func(name string, _ time.Time) bool { return uncovered(name, struct{}{}) })
}

func (sub *subscription) subscribe(name string, in *xds.SubscriptionChange) {
	if _, ok := sub.names[name]; !ok {
		sub.names[name] = struct{}{}
		in.Subscribe = append(in.Subscribe, name)
		delete(sub.expected, name)
	}
	sub.explicit = true
	sub.answerName(name)
}

// unsubscribe forgets what the client had, so that a name which comes back is
// sent again (protocol.md 1.5). Unknown names are ignored (3.3).
func (sub *subscription) unsubscribe(name string, in *xds.SubscriptionChange) {
	if _, ok := sub.names[name]; !ok {
		return
	}
	delete(sub.names, name)
	delete(sub.due, name)
	delete(sub.unanswered, name)
	in.Unsubscribe = append(in.Unsubscribe, name)
	if sub.wildcard {
		sub.dirty[name] = struct{}{} // whether it is gone is now for the wildcard to say
		return
	}
	delete(sub.dirty, name)
	delete(sub.leaving, name)
	if sub.sent[name] != nil {
		sub.forget(name)
		return
	}
	// An alias: what was found under it goes, unless another name covers it.
	for actual, h := range sub.sent {
		if h.last != nil && h.last.Answers(name) && !sub.covers(h.last) {
			sub.forget(actual)
		}
	}
}

// answerName makes a name due: it is answered even if it is unchanged.
func (sub *subscription) answerName(name string) {
	delete(sub.unanswered, name)
	sub.due[name] = struct{}{}
}

// hold returns what the client has under a name; of what was not known to be there
// it may be anything.
func (sub *subscription) hold(name string) *holding {
	h := sub.sent[name]
	if h == nil {
		h = &holding{since: sub.sentCount}
		sub.sent[name] = h
	}
	return h
}

// heldFrom returns what the client has under a name of which a response spoke; nil
// if that was removed or unsubscribed since, though it may be there again.
func (sub *subscription) heldFrom(f *sentResponse, name string) *holding {
	if h := sub.sent[name]; h != nil && h.since < f.number {
		return h
	}
	return nil
}

// setSent records a resource as sent and reports whether its content differs
// from what the client had.
func (sub *subscription) setSent(r *xds.Resource) (h *holding, changed bool) {
	h = sub.hold(r.Name)
	if h.last == nil && sub.passesTTL() {
		h.acked = nil // its timer is not known before it ACKs this one
	}
	if h.last != nil {
		sub.served.Remove(h.last)
		if h.last != h.acked && h.last.Version != r.Version {
			sub.superseded += len(h.last.Body.GetValue())
		}
	}
	sub.served.Add(r)
	changed = h.version() != r.Version
	h.last, h.has = r, &r.Version
	if sub.passesTTL() {
		h.expireAt(r.Deadline())
	}
	return h, changed
}

// forget drops what the client had under a name.
func (sub *subscription) forget(name string) {
	h := sub.sent[name]
	if h == nil {
		return
	}
	if h.last != nil {
		sub.served.Remove(h.last)
	}
	sub.whole = nil
	delete(sub.sent, name)
}

// looked records that nothing is owed of what the state held at a revision.
func (sub *subscription) looked(revision uint64) {
	if sub.lookAtAll || sub.answerDue || len(sub.dirty) > 0 {
		return // held back until more is known
	}
	sub.seen = revision
	if len(sub.inFlight) == 0 {
		sub.progress = max(sub.progress, sub.seen)
	}
}
