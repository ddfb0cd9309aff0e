package session

import (
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// DefaultRemovalDelay is how long after everything else the removal of a cluster
// is sent (design.md I4); maxRemovalDelay how long at most while something that the client
// has leads to it: a control plane may take its time to send the route that leaves it.
const (
	DefaultRemovalDelay = time.Second
	maxRemovalDelay     = 10 * time.Second
)

// DefaultWarmingHold is how long listeners and routes are held back at most for what
// they need: the endpoints of a cluster that was just sent, and clusters that nobody
// knows yet. A route that leads to a cluster which Envoy is still warming, or does not
// have, fails requests.
const DefaultWarmingHold = 500 * time.Millisecond

// DefaultMissingAfter is how long after an upstream was asked for a name the complete set of a
// client that may hold it waits for the answer (protocol.md 5.3: gRPC gives up after 15 s).
const DefaultMissingAfter = 10 * time.Second

// maxInFlight bounds the responses of one type whose answer is remembered. A
// client that answers none of so many is owed no verdict for the oldest.
const maxInFlight = 128

// View is the state that a stream serves, as it is at one moment: all reads
// during one call of Next see the same revision.
type View interface {
	// Revision counts the updates that the state has taken in.
	Revision() uint64
	// Wildcard says how much is known of everything of a type.
	Wildcard(typeURL string) xds.Knowledge
	// Lookup returns what is held under a name or an alias.
	Lookup(typeURL, name string) xds.Item
	// All yields everything held of a type, Count is how much that is at most.
	All(typeURL string) iter.Seq[xds.Item]
	Count(typeURL string) int
	// Collection yields everything held of a glob collection (protocol.md 8.7).
	Collection(typeURL, glob string) iter.Seq[xds.Item]
	// MaybeHeld lists names that a client of this kind may hold without telling:
	// what was in a response that it NACKed or never answered (protocol.md 3.6).
	MaybeHeld(typeURL string) []string
	// Connected returns since when an upstream answers; the zero time if none does.
	Connected() time.Time
	// HadTTL reports whether any resource of a type ever had a TTL, of which a
	// client's timer may still run.
	HadTTL(typeURL string) bool
	// Nacks counts the contents of a type that a client refused alone: others are
	// given something else then, though nothing changed.
	Nacks(typeURL string) uint64
}

// Config configures a Session. The zero value serves SotW.
type Config struct {
	Form xds.Form
	// NoncePrefix makes the nonces differ from those of every other stream.
	NoncePrefix string
	// RemovalDelay is DefaultRemovalDelay where it is 0.
	RemovalDelay time.Duration
	// WarmingHold is DefaultWarmingHold where it is 0.
	WarmingHold time.Duration
	// KeepWildcard says that the client is an Envoy, whose SotW requests for
	// clusters lose their wildcard when on-demand names come (protocol.md V9,
	// 2.4): HadWildcard then reports whether its kind had one before.
	KeepWildcard bool
	HadWildcard  func(typeURL string) bool
	// TTL says that the client enforces the TTL of resources: an Envoy, which
	// does not say so, and clients that do (protocol.md 6.8).
	TTL bool
	// Secrets finds what must not be told on of what a client says of a response. Several
	// machines may share one; nil for one of its own.
	Secrets *redact.Finder
}

// Session is the machine of one stream.
type Session struct {
	cfg     Config
	types   map[string]*subscription
	ordered []*subscription // by xds.CompareTypes
	nonces  uint64
	now     time.Time
	hold    hold
	// subscriptionChanges are changes of the subscription that the machine made itself.
	subscriptionChanges []xds.SubscriptionChange
	// clustersMoved: the client was sent clusters, or gave some up or refused them,
	// since it was last counted whose endpoints it is about to ask for.
	clustersMoved bool
	// needed are the clusters that needs found; nil where it has to look again.
	needed map[string]struct{}
}

// New returns the machine of a stream on which nothing was said yet.
func New(cfg Config) *Session {
	if cfg.Form == 0 {
		panic("session: Config.Form is not set")
	}
	if cfg.RemovalDelay == 0 {
		cfg.RemovalDelay = DefaultRemovalDelay
	}
	if cfg.WarmingHold == 0 {
		cfg.WarmingHold = DefaultWarmingHold
	}
	if cfg.Secrets == nil {
		cfg.Secrets = &redact.Finder{}
	}
	return &Session{cfg: cfg, types: make(map[string]*subscription)}
}

// Request is a DiscoveryRequest or a DeltaDiscoveryRequest.
type Request struct {
	Type  string
	Nonce string
	// Error is the client's reason for a NACK, as it said it; "" for none. It may have
	// secrets in it, and is for the machine only.
	Error string
	// NACK says that the request carries an error_detail: the only sign of one
	// (protocol.md 1.3).
	NACK bool

	// Version and Names are SotW's version_info and resource_names.
	Version string
	Names   []string

	// Subscribe, Unsubscribe and Initial are Delta's.
	Subscribe, Unsubscribe []string
	Initial                map[string]string

	// surplus are names that Limit took out, but for the empty one; trimmed says that it took out any.
	surplus []string
	trimmed bool
}

// Response is a DiscoveryResponse or a DeltaDiscoveryResponse.
type Response struct {
	Type  string
	Nonce string
	// Version is SotW's version_info, Delta's system_version_info.
	Version   string
	Resources []*xds.Resource
	// Removed is Delta's removed_resources.
	Removed []string
	// Heartbeats lists resources of which only the TTL starts again; there is
	// nothing else in the response then.
	Heartbeats []*xds.Resource
	// At is when the response was made, if it says how long resources live; the
	// zero time if it does not.
	At time.Time
	// whole says that Resources is a complete set that can be amended by what changes;
	// amended that it was made so, and that only news were not sent before.
	whole, amended bool
	changed        []*xds.Resource
	dropped        []string // from the amended set
}

// Effect is what a request says beyond asking for a response.
type Effect struct {
	// Subscription is nil where the subscription is as it was.
	Subscription *xds.SubscriptionChange
	// Answer is nil where the request answers no response.
	Answer *Answer
	// Culprit is a further verdict, to be taken in after Verdict: what an ACK says of a response
	// that was NACKed before. nil for most.
	Culprit *Answer
}

// Answer is what a client made of a response.
type Answer struct {
	Type string
	// Revision is that of the state from which the response was built: the
	// client has seen every update up to it. 0 for a response that was a probe
	// of one suspect and so says nothing of later updates.
	Revision uint64
	// NACK says that the response was refused, for the reason Error: what the client said,
	// bounded and without the secrets of what it was sent.
	NACK  bool
	Error string
	// Acked lists contents that the client has not ACKed before; Suspects
	// and Rejected those of a NACKed response (design.md I7).
	Acked, Suspects []*xds.Resource
	Nacked          *xds.Resource
	// Removed lists names whose removal was ACKed.
	Removed []string
}

// Progress says that the client has answered, or was not concerned by, every
// update of a type up to a revision.
type Progress struct {
	Type     string
	Revision uint64
}

// Request takes in a message of the client.
func (s *Session) Request(req *Request) Effect {
	if req.Type == "" {
		// Envoy answers so a response of a type that it never asked for; the
		// stream must survive it (protocol.md 1.12).
		return Effect{}
	}
	sub, known := s.types[req.Type]
	if !known {
		sub = newSubscription(req.Type, s.cfg)
		s.types[req.Type] = sub
		at, _ := slices.BinarySearchFunc(s.ordered, req.Type, func(o *subscription, url string) int {
			return xds.CompareTypes(o.url, url)
		})
		s.ordered = slices.Insert(s.ordered, at, sub)
	}
	s.clustersMoved = s.clustersMoved || req.Type == xds.ClusterType
	s.led(req.Type)
	var eff Effect
	eff.Answer, eff.Culprit = sub.answer(req)
	if s.cfg.Form == xds.Delta {
		eff.Subscription = sub.requestDelta(req, !known)
	} else {
		eff.Subscription = sub.requestSotW(req, !known)
	}
	if req.trimmed {
		sub.addSurplus(req.surplus)
	}
	return eff
}

// Changed takes in that something under these names changed. all says that
// anything of the type may have: what is known of its wildcard did. What is held need
// not be named then.
func (s *Session) Changed(typeURL string, names []string, all bool) {
	sub := s.types[typeURL]
	if sub == nil {
		return
	}
	sub.retrySurplus()
	if all {
		sub.lookAtAll = true
		for n := range sub.unanswered {
			sub.due[n] = struct{}{}
		}
		clear(sub.unanswered)
	}
	for _, n := range names {
		s.hold.changed(resource{typeURL, n})
		s.move(sub, n)
		if _, ok := sub.unanswered[n]; ok {
			delete(sub.unanswered, n)
			sub.due[n] = struct{}{}
		}
		sub.dirty[n] = struct{}{}
	}
}

// Next returns the next response that the client is owed, or nil, and then the
// time at which Next must be called again though nothing came in; the zero time
// for none. Types go in push order, and the removal of clusters after everything
// else (design.md I4).
func (s *Session) Next(v View, now time.Time) (*Response, time.Time) {
	s.now = now
	for _, sub := range s.ordered {
		sub.putBack(v)
	}
	if s.clustersMoved {
		s.clustersMoved = false
		s.giveUpEndpoints()
	}
	s.arrived(v)
	var hold time.Time
	looked := false
	for _, sub := range s.ordered {
		if xds.Info(sub.url).LeadsToClusters {
			if !looked {
				hold, looked = s.holding(v), true
			}
			if !hold.IsZero() {
				continue
			}
		}
		if resp := s.build(sub, v); resp != nil {
			return resp, time.Time{}
		}
	}
	wake := s.wake()
	clusters := s.types[xds.ClusterType]
	if !hold.IsZero() || clusters == nil || len(clusters.leaving) == 0 {
		return nil, earlier(hold, wake)
	}
	resp, removal := s.removeClusters(clusters, v)
	return resp, earlier(removal, wake)
}

// wake returns when a set is complete that waits for the answer to a name; the zero time if
// none does.
func (s *Session) wake() (at time.Time) {
	for _, sub := range s.ordered {
		at = earlier(at, sub.completeAt)
	}
	return at
}

// earlier returns the earlier of two times; a zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// SubscriptionChanges returns what the machine subscribes to on the client's behalf since
// the last call: the endpoints of clusters that were sent, for which the client
// is about to ask. The caller subscribes, and then calls Next again.
func (s *Session) SubscriptionChanges() []xds.SubscriptionChange {
	out := s.subscriptionChanges
	s.subscriptionChanges = nil
	for _, in := range out {
		for _, name := range in.Subscribe {
			s.types[in.Type].answerName(name) // it may have come before the subscription
		}
	}
	return out
}

// Claims returns what clients say that they have, as the ACKs that it stands for: what
// is held under a name of initial_resource_versions with the version given there, and
// everything in the set that a first version_info names. It is to be called after Next.
func (s *Session) Claims() []Answer {
	var out []Answer
	for _, sub := range s.ordered {
		if len(sub.claimed) > 0 {
			out = append(out, Answer{Type: sub.url, Acked: sub.claimed})
			sub.claimed = nil
		}
	}
	return out
}

// build returns the response that is due for one type now, or nil.
func (s *Session) build(sub *subscription, v View) *Response {
	if resp := s.refuseSurplus(sub, v); resp != nil {
		return resp
	}
	sub.offer(v)
	if sub.lookAtAll || sub.answerDue || len(sub.dirty) > 0 || len(sub.due) > 0 {
		var resp *Response
		switch {
		case s.cfg.Form == xds.Delta:
			resp = s.buildDelta(sub, v)
		case xds.FullState(sub.url):
			resp = s.buildFullState(sub, v)
		default:
			resp = s.buildNamed(sub, v)
		}
		if resp != nil {
			return s.commit(sub, resp, v.Revision())
		}
	}
	if resp := s.probe(sub, v); resp != nil {
		return resp
	}
	if resp := s.buildHeartbeats(sub, v); resp != nil {
		return resp
	}
	sub.looked(v.Revision())
	return nil
}

// address gives a response its type, nonce and version, which is that of what was sent before.
func (s *Session) address(sub *subscription, resp *Response) {
	s.nonces++
	resp.Type = sub.url
	resp.Nonce = s.cfg.NoncePrefix + strconv.FormatUint(s.nonces, 10)
	resp.Version = sub.served.String()
}

// commit records a response as sent.
func (s *Session) commit(sub *subscription, resp *Response, revision uint64) *Response {
	s.address(sub, resp)
	if !resp.amended {
		resp.changed = resp.Resources
	}
	if len(sub.sent) == 0 {
		sub.sent = make(map[string]*holding, len(resp.changed))
	}
	for i, r := range resp.changed {
		h, changed := sub.setSent(r)
		if changed && r.EDSName != "" {
			s.resendEndpoints(r.EDSName)
		}
		if resp.whole && !resp.amended {
			h.at = int32(i)
		}
	}
	for _, name := range resp.Removed {
		sub.forget(name)
	}
	sub.whole = nil
	if resp.whole {
		sub.whole = resp.Resources
	}
	s.clustersMoved = s.clustersMoved || sub.url == xds.ClusterType
	s.led(sub.url)
	resp.Version = sub.served.String()
	if sub.version != "" && resp.Version == sub.version && xds.FullState(sub.url) {
		// Of other types the version is that of the last response that the client ACKed,
		// and it may have NACKed one before, of which the version counts a part.
		sub.claimAll()
	}
	if sub.passesTTL() {
		resp.At = s.now
	}
	sub.track(sentResponse{nonce: resp.Nonce, revision: revision, resources: resp.changed, amends: resp.amended, dropped: resp.dropped, removed: resp.Removed, beats: resp.Heartbeats})
	return resp
}

// resendEndpoints makes the endpoints of a cluster that is sent new or changed due
// again: Envoy warms it until an EDS message comes, even an identical one, and in
// Delta does not ask for it (protocol.md V1, 4.1, 4.2). Endpoints that the client
// has not asked for yet are subscribed to on its behalf: it will when it has the
// cluster. On a stream that never asked for EDS there is nothing to owe.
func (s *Session) resendEndpoints(name string) {
	eds := s.types[xds.EndpointType]
	if eds == nil {
		return
	}
	if _, ok := eds.names[name]; !ok && !eds.wildcard {
		if _, ok := eds.expected[name]; !ok {
			eds.expected[name] = struct{}{}
			s.subscriptionChanges = append(s.subscriptionChanges, xds.SubscriptionChange{Type: eds.url, Wildcard: eds.wildcard, Subscribe: []string{name}})
		}
	}
	eds.answerName(name)
	s.hold.await(resource{eds.url, name}, s.now, s.cfg.WarmingHold)
}

// giveUpEndpoints ends the subscription to endpoints that the client never asked for
// and no longer will: none of the clusters that it has names them any more.
func (s *Session) giveUpEndpoints() {
	eds, clusters := s.types[xds.EndpointType], s.types[xds.ClusterType]
	if eds == nil || clusters == nil || len(eds.expected) == 0 {
		return
	}
	named := make(map[string]struct{})
	for _, h := range clusters.sent {
		if h.last != nil {
			named[h.last.EDSName] = struct{}{}
		}
	}
	var drop []string
	for service := range eds.expected {
		if _, ok := named[service]; ok {
			continue
		}
		drop = append(drop, service)
		delete(eds.expected, service)
		if !eds.wildcard {
			delete(eds.due, service)
			delete(eds.unanswered, service)
			eds.forget(service)
		}
	}
	if len(drop) > 0 {
		s.subscriptionChanges = append(s.subscriptionChanges, xds.SubscriptionChange{Type: eds.url, Wildcard: eds.wildcard, Unsubscribe: drop})
	}
}

// removeClusters sends the removals that have waited long enough. Their delay
// begins when everything else was sent: control planes send the routes that
// leave a cluster later than its removal (design.md I4, protocol.md 4.7).
func (s *Session) removeClusters(sub *subscription, v View) (*Response, time.Time) {
	var wake time.Time
	var gone []string
	latest := s.now.Add(s.cfg.RemovalDelay - maxRemovalDelay)
	for name, at := range sub.leaving {
		if at.IsZero() {
			at = s.now.Add(s.cfg.RemovalDelay)
			sub.leaving[name] = at
		}
		switch {
		case at.After(s.now):
			wake = earlier(wake, at)
		case at.After(latest) && s.needs(name):
			wake = earlier(wake, s.now.Add(s.cfg.RemovalDelay))
		default:
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return nil, wake
	}
	if s.cfg.Form == xds.SotW && !s.complete(sub, v) {
		// The set without them would be one of what is not known (design.md I1). What
		// makes it known calls Changed, so there is no time to wake at.
		return nil, time.Time{}
	}
	for _, name := range gone {
		delete(sub.leaving, name)
	}
	if len(sub.leaving) == 0 {
		s.needed = nil
	}
	if s.cfg.Form == xds.Delta {
		slices.Sort(gone)
		return s.commit(sub, &Response{Removed: gone}, 0), time.Time{}
	}
	for _, name := range gone {
		sub.forget(name)
	}
	set := s.fullSet(sub, v)
	sub.drop(set)
	return s.commit(sub, set.response(), 0), time.Time{}
}

// needs reports whether something leads to a cluster which the client was sent.
func (s *Session) needs(cluster string) bool {
	if s.needed == nil {
		s.needed = make(map[string]struct{})
		for _, sub := range s.ordered {
			if !xds.Info(sub.url).LeadsToClusters {
				continue
			}
			for _, h := range sub.sent {
				if h.last != nil {
					xds.LeadsToClusters(h.last, func(cluster string) { s.needed[cluster] = struct{}{} })
				}
			}
		}
	}
	_, ok := s.needed[cluster]
	return ok
}

// led forgets what needs found: the client says or is sent something of a type.
func (s *Session) led(typeURL string) {
	if xds.Info(typeURL).LeadsToClusters {
		s.needed = nil
	}
}

// Idle reports whether Next would return no response of the state as it was when Next
// last looked at it: a request that was but an answer leaves it so.
func (s *Session) Idle() bool {
	for _, sub := range s.ordered {
		if sub.lookAtAll || sub.answerDue || len(sub.dirty)+len(sub.due)+len(sub.alone)+len(sub.beats)+len(sub.bare)+len(sub.surplus) > 0 {
			return false
		}
	}
	eds := s.types[xds.EndpointType]
	return !s.clustersMoved || eds == nil || len(eds.expected) == 0
}

// Progress returns, for each type, up to which revision the client has answered
// every update, where that advanced since the last call.
func (s *Session) Progress() []Progress {
	var out []Progress
	for _, sub := range s.ordered {
		if sub.progress > sub.reported {
			sub.reported = sub.progress
			out = append(out, Progress{Type: sub.url, Revision: sub.progress})
		}
	}
	return out
}

// Unanswered returns, by type, the names in responses that the client has not
// answered: after the stream ended it may hold them or not (protocol.md 3.6).
func (s *Session) Unanswered() map[string][]string {
	out := make(map[string][]string)
	for _, sub := range s.ordered {
		names := make(map[string]struct{})
		for _, f := range sub.inFlight {
			for _, r := range f.resources {
				if h := sub.sent[r.Name]; h == nil || h.acked == nil || h.acked.Version != r.Version {
					names[r.Name] = struct{}{}
				}
			}
			for _, name := range f.removed {
				names[name] = struct{}{}
			}
		}
		for n := range names {
			out[sub.url] = append(out[sub.url], n)
		}
		slices.Sort(out[sub.url])
	}
	return out
}

// New reports whether a type was not asked for before.
func (s *Session) New(typeURL string) bool { return s.types[typeURL] == nil }

// Subscriptions returns the types that the client asked for, in push order, and
// the number of names that it subscribes to, counting a wildcard as one.
func (s *Session) Subscriptions() (types []string, names int) {
	for _, sub := range s.ordered {
		types = append(types, sub.url)
		names += len(sub.names)
		if sub.wildcard {
			names++
		}
	}
	return types, names
}
