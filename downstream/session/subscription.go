package session

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/resourceset"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// subscription is the state of one type on one stream. Nonces, names and versions are never mixed
// across types (protocol.md 1.9).
type subscription struct {
	url string
	cfg Config

	// What the client subscribes to.
	names    nameSet
	wildcard bool
	// expected holds names to which the client will subscribe: endpoints of clusters that it was sent.
	expected map[string]struct{}
	// explicit is set once the client sent a name or "*", so that an empty list no longer means
	// everything (protocol.md 2.3).
	explicit      bool
	keepsWildcard bool // the wildcard stays although the client's requests lack it (protocol.md V9)

	// What the client has, by resource name.
	sent        copies
	sentVersion xds.SetVersion
	// lastSet is the complete SotW set that was sent last; nil if the next set must be built from
	// the whole state. nacks is View.Nacks at the time when a set was last built so.
	lastSet []*xds.Resource
	nacks   uint64
	// inherited is set if the client has configuration of an earlier stream. resumed is set like
	// it, and cleared by the first complete response: until then an incomplete SotW response would
	// delete some of that configuration.
	inherited, resumed bool
	// sharedAt is when share last did something.
	sharedAt time.Time
	// resumedAt is when a name was first found missing from the set of a resumed client.
	// completeAt is when the set will count as complete nevertheless; the zero time for never.
	resumedAt, completeAt time.Time
	// version is the version_info of a SotW client's first request: the version of the set that
	// the client has accepted; "" for none, and once a set was sent.
	version string
	claimed []*xds.Resource // for Session.Claims

	// What must be sent to the client.
	mustRespond bool                // a response, also an empty one
	allChanged  bool                // anything may have changed
	changed     map[string]struct{} // names that changed
	mustAnswer  map[string]struct{} // names to be answered even if unchanged
	// unknown holds subscribed names of which nothing is known yet. They are answered when Changed
	// lists them (protocol.md 4.2).
	unknown    map[string]struct{}
	removals   map[string]time.Time // clusters to be removed, and the earliest time
	retryAlone []*xds.Resource      // suspects to be retried alone
	neverAcked map[string]struct{}  // names NACKed before any version was ACKed
	// offers are names of which the client is sent what was accepted, before it is offered again what was NACKed.
	offers     map[string]struct{}
	heartbeats map[string]struct{} // names whose TTL started again
	trial      *trial              // nil if no trial is in progress
	restored   []*xds.Resource     // resources of a failed trial, to be put back
	// surplus holds names beyond the limit that are still to be answered, waiting those that wait
	// for a place. See answerSurplus.
	surplus, waiting map[string]struct{}

	// The responses that the client has not answered, oldest first.
	inFlight  []sentResponse
	sentCount uint64
	// mergeAbove is the number of responses in flight from which makeRoom is called, if it is more
	// than maxInFlight.
	mergeAbove int
	// superseded counts the bytes of superseded resources in responses in flight.
	superseded int
	nonce      string // of the last response
	answered   bool   // the client has answered that response
	// newestACKed is set from the ACK of that response to its late NACK.
	newestACKed bool

	// seen is the revision up to which everything was considered. progress is the revision up to
	// which the client has also answered. reported is the progress that was returned last.
	seen, progress, reported uint64
}

func newSubscription(url string, cfg Config) *subscription {
	return &subscription{
		url:        url,
		cfg:        cfg,
		expected:   make(map[string]struct{}),
		changed:    make(map[string]struct{}),
		mustAnswer: make(map[string]struct{}),
		unknown:    make(map[string]struct{}),
		removals:   make(map[string]time.Time),
		neverAcked: make(map[string]struct{}),
		offers:     make(map[string]struct{}),
		heartbeats: make(map[string]struct{}),
		surplus:    make(map[string]struct{}),
		waiting:    make(map[string]struct{}),
	}
}

// requestDelta applies the subscription of a Delta request, whatever its nonce (protocol.md 3.1). A
// legacy wildcard (protocol.md 2.1) stays when names are added (protocol.md 2.6), until the client
// drops "*" (protocol.md 2.5).
func (sub *subscription) requestDelta(req *Request, first bool, change *xds.SubscriptionChange) {
	if first {
		if len(req.Subscribe) == 0 && len(req.Unsubscribe) == 0 && !req.trimmed && xds.Info(sub.url).LegacyWildcard {
			sub.startWildcard()
		}
		// The versions may be older than a restart of the agent. They are content hashes and so
		// stay meaningful (protocol.md 7.5).
		for name, version := range req.Initial {
			sub.copyOf(name).has = &version
			sub.changed[name] = struct{}{} // it may be removed (protocol.md 3.5)
		}
	}
	for _, name := range req.Subscribe {
		if name == xds.Wildcard {
			sub.startWildcard()
			continue
		}
		if _, listed := req.Initial[name]; listed && first && sub.cfg.Keeps && !xds.Info(sub.url).OnDemand {
			sub.add(name, change) // it is compared, as everything in req.Initial
			continue
		}
		// It is answered even if the client subscribed before and it is unchanged: the client may
		// have dropped it (protocol.md 3.2).
		sub.subscribe(name, change)
	}
	for _, name := range req.Unsubscribe {
		if name == xds.Wildcard {
			sub.stopWildcard()
			continue
		}
		sub.unsubscribe(name, change)
		if sub.wildcard {
			// The wildcard still covers it, and the client dropped it (protocol.md 2.5).
			sub.answerName(name)
		}
	}
}

func (sub *subscription) requestSotW(req *Request, first bool, change *xds.SubscriptionChange) {
	if !first && req.Nonce != "" && req.Nonce != sub.nonce {
		// The client sent this request before it saw our last response. Its answer to that
		// response follows (protocol.md 1.6).
		return
	}
	repeated := !first && req.Nonce != "" && !req.NACK && sub.answered
	if !first && req.Nonce != "" {
		sub.answered = true
	}
	wildcard := sub.wantsWildcard(req, first)
	names := make(map[string]struct{}, len(req.Names))
	for _, name := range req.Names {
		names[name] = struct{}{}
	}
	sub.explicit = sub.explicit || len(names) > 0 || req.trimmed
	delete(names, xds.Wildcard)
	if first {
		sub.resumed = req.Version != ""
		sub.inherited = sub.resumed
		sub.version = req.Version
	}
	for name := range sub.names.all() {
		if _, ok := names[name]; !ok {
			sub.unsubscribe(name, change)
		}
	}
	for name := range names {
		if !sub.subscribes(name) {
			sub.subscribe(name, change)
		}
	}
	if wildcard {
		sub.startWildcard()
	} else if sub.wildcard {
		sub.stopWildcard()
	}
	if first && len(names) > 0 {
		sub.mustRespond = true // protocol.md 1.1
	}
	if repeated && (sub.url == xds.EndpointType || xds.Info(sub.url).Follows) && len(change.Subscribe)+len(change.Unsubscribe) == 0 {
		// A request that repeats an answered nonce is for the endpoints of a cluster that is warming, or for another subscription for
		// a secret or an extension configuration (protocol.md V1, V16, 1.4).
		for name := range sub.names.all() {
			sub.answerName(name)
		}
	}
}

// wantsWildcard reports whether a SotW request subscribes to everything (protocol.md 2.1 to 2.4).
func (sub *subscription) wantsWildcard(req *Request, first bool) bool {
	if slices.Contains(req.Names, xds.Wildcard) { // 2.2
		sub.keepsWildcard = false
		return true
	}
	if len(req.Names) == 0 && !req.trimmed && xds.Info(sub.url).LegacyWildcard && (first || !sub.explicit) {
		return true // 2.1; later requests without names keep it, unless one had names (2.3)
	}
	if sub.keepsWildcard {
		return true
	}
	if sub.url == xds.ClusterType && sub.cfg.KeepWildcard && (len(req.Names) > 0 || req.trimmed) {
		// 2.4: Envoy leaves out the "*" when on-demand names come, and after a reconnect sends
		// only those names.
		legacy := sub.wildcard && !sub.explicit
		remembered := first && sub.cfg.HadWildcard != nil && sub.cfg.HadWildcard(sub.url)
		sub.keepsWildcard = legacy || remembered
		return sub.keepsWildcard
	}
	return false
}

func (sub *subscription) startWildcard() {
	if sub.wildcard {
		return
	}
	sub.wildcard = true
	sub.allChanged = true
	sub.mustRespond = true // also if the set is empty (protocol.md 2.7)
	for name := range sub.expected {
		sub.forget(name) // sent before the client subscribed, so that it may have ignored it
	}
	if sub.cfg.Form == xds.Delta {
		// The client will have the resources of the responses in flight, even if it unsubscribed
		// from them meanwhile.
		for _, f := range sub.inFlight {
			for _, r := range f.resources {
				sub.copyOf(r.Name)
			}
		}
	}
}

// stopWildcard forgets the resources that only the wildcard covered.
func (sub *subscription) stopWildcard() {
	sub.wildcard, sub.keepsWildcard = false, false
	for name, h := range sub.sent.all() {
		if !sub.covers(cmp.Or(h.last, &xds.Resource{Name: name})) {
			sub.forget(name)
		}
	}
	uncovered := func(name string, _ struct{}) bool { return !sub.covers(&xds.Resource{Name: name}) }
	maps.DeleteFunc(sub.changed, uncovered)
	maps.DeleteFunc(sub.mustAnswer, uncovered)
	maps.DeleteFunc(sub.unknown, uncovered)
	maps.DeleteFunc(sub.removals, func(name string, _ time.Time) bool { return uncovered(name, struct{}{}) })
}

// subscribes reports whether the client subscribes to a name by itself.
func (sub *subscription) subscribes(name string) bool {
	return sub.names.has(name)
}

func (sub *subscription) subscribe(name string, change *xds.SubscriptionChange) {
	sub.add(name, change)
	sub.answerName(name)
}

// add adds a name to the subscription.
func (sub *subscription) add(name string, change *xds.SubscriptionChange) {
	if !sub.subscribes(name) {
		sub.names.add(name)
		change.Subscribe = append(change.Subscribe, name)
		delete(sub.expected, name)
	}
	sub.explicit = true
}

// unsubscribe forgets what the client had under a name, so that the resource is sent again if the
// client subscribes again (protocol.md 1.5). Unknown names are ignored (3.3).
func (sub *subscription) unsubscribe(name string, change *xds.SubscriptionChange) {
	if !sub.subscribes(name) {
		return
	}
	sub.names.delete(name)
	delete(sub.mustAnswer, name)
	delete(sub.unknown, name)
	change.Unsubscribe = append(change.Unsubscribe, name)
	if sub.wildcard {
		sub.changed[name] = struct{}{} // the wildcard now decides whether it was removed
		return
	}
	delete(sub.changed, name)
	delete(sub.removals, name)
	if sub.sent.get(name) != nil {
		sub.forget(name)
		return
	}
	// The name is an alias: forget its resource, unless another name covers it.
	for actual, h := range sub.sent.all() {
		if h.last != nil && h.last.Answers(name) && !sub.covers(h.last) {
			sub.forget(actual)
		}
	}
}

// answerName schedules a name to be answered even if it is unchanged.
func (sub *subscription) answerName(name string) {
	delete(sub.unknown, name)
	sub.mustAnswer[name] = struct{}{}
}

// copyOf returns what the client has under a name: any version, if nothing was recorded.
func (sub *subscription) copyOf(name string) *clientCopy {
	h := sub.sent.get(name)
	if h == nil {
		h = &clientCopy{sentBefore: sub.sentCount, rare: noRare}
		sub.sent.add(name, h)
	}
	return h
}

// copyFrom returns what the client has under a name of the response f; nil if the name was
// removed or unsubscribed after f was sent, even if it has been sent again since.
func (sub *subscription) copyFrom(f *sentResponse, name string) *clientCopy {
	if h := sub.sent.get(name); h != nil && h.sentBefore < f.number {
		return h
	}
	return nil
}

// setSent records a resource as sent and reports whether its content is new to the client.
func (sub *subscription) setSent(r *xds.Resource) (h *clientCopy, changed bool) {
	h = sub.copyOf(r.Name)
	if h.last == nil && sub.passesTTL() {
		h.acked = nil // the client's timer is unknown until it ACKs this response
	}
	if h.last != nil {
		sub.sentVersion.Remove(h.last)
		if h.last != h.acked && h.last.Version != r.Version {
			sub.superseded += len(h.last.Body.GetValue())
		}
	}
	sub.sentVersion.Add(r)
	changed = h.version() != r.Version
	h.last, h.has = r, &r.Version
	if sub.passesTTL() {
		h.expireAt(r.Deadline())
	}
	return h, changed
}

// shareInterval is the shortest time between two calls of share that do something, once there is a set: share looks at all
// copies, which would be a tenth of the time of many updates.
const shareInterval = time.Second

// share stores what the client has accepted once for all clients that have the same, unless a response
// is in flight. It returns when it must be called again even if nothing else happens; the zero time for never.
func (sub *subscription) share(now time.Time) (next time.Time) {
	if !sub.sent.shareable(sub.cfg.Sets) {
		return time.Time{}
	}
	if at := sub.sharedAt.Add(shareInterval); sub.sent.common != nil && now.Before(at) {
		return at
	}
	if len(sub.inFlight) > 0 {
		return time.Time{} // it is called when the client answers
	}
	sub.sharedAt = now
	if !sub.sent.share(sub.cfg.Sets, sub.sentCount, resourceset.Key{Type: sub.url, Version: sub.sentVersion}) {
		return time.Time{}
	}
	if sub.lastSet != nil {
		sub.lastSet = sub.sent.common.Resources() // in the order of clientCopy.at
		if len(sub.sent.own) > 0 {
			sub.lastSet = nil
		}
	}
	sub.names.share(sub.sent.common)
	// A map never shrinks.
	for _, names := range []*map[string]struct{}{&sub.expected, &sub.unknown, &sub.neverAcked, &sub.offers, &sub.heartbeats, &sub.waiting} {
		if len(*names) == 0 {
			*names = make(map[string]struct{})
		}
	}
	return time.Time{}
}

func (sub *subscription) forget(name string) {
	h := sub.sent.get(name)
	if h == nil {
		return
	}
	if h.last != nil {
		sub.sentVersion.Remove(h.last)
	}
	sub.lastSet = nil
	sub.sent.delete(name)
}
