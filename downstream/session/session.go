// Package session implements the server side of one xDS stream as a pure state machine. Its
// inputs are the client's requests, changes of the state, and the time. Its outputs are
// responses, changes of the subscription, and the client's ACKs and NACKs. It has no goroutine,
// no clock, no lock and does no I/O. A Session is not safe for concurrent use.
//
// A Session remembers what it must send to its client as sets of names, never as a queue of
// messages. Next builds a response from the state as it is when Next is called, so that a slow
// client skips intermediate versions and gets the newest one (design.md section 1).
//
// SotW and Delta are two wire forms of the same machine. They differ in which part of the
// subscription a response covers, in how a removal is expressed, and in how a request names its
// subscription.
package session

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/resourceset"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// removalDelay is how long after everything else the removal of a cluster is sent
// (design.md I4). maxRemovalDelay is how long the removal is delayed at most while something that
// the client has leads to the cluster, since a control plane may send the route that no longer
// leads to it later.
const (
	removalDelay    = time.Second
	maxRemovalDelay = 10 * time.Second
)

// warmingDelay is how long listeners and routes are delayed at most for the resources that
// they need: the endpoints of a cluster that was just sent, and clusters that are unknown. A
// route that leads to a cluster which Envoy is still warming, or does not have, fails requests.
const warmingDelay = 500 * time.Millisecond

// DefaultMissingAfter is how long an upstream may take to answer for a name, before a complete set
// without the name is sent to a client that may have it (protocol.md 5.3: gRPC's timeout is 15 s).
const DefaultMissingAfter = 10 * time.Second

// maxInFlight bounds the responses in flight of one type. The ACK or NACK of an older one is lost.
const maxInFlight = 128

// View is the state that a stream serves at one moment: all reads during one call of Next see the
// same revision.
type View interface {
	// Revision counts the updates that were applied to the state.
	Revision() uint64
	// Wildcard returns how much is known of the set of all resources of a type.
	Wildcard(typeURL string) xds.Knowledge
	// Lookup returns the item that is cached under a name or an alias.
	Lookup(typeURL, name string) xds.Item
	// All yields every cached item of a type. Count is an upper bound of how many there are.
	All(typeURL string) iter.Seq[xds.Item]
	Count(typeURL string) int
	// Collection yields every cached item of a glob collection (protocol.md 8.7).
	Collection(typeURL, glob string) iter.Seq[xds.Item]
	// MaybeHeld lists names that a client of this state may have although its first request does
	// not list them: those in a response that it NACKed or never answered (protocol.md 3.6).
	MaybeHeld(typeURL string) []string
	// Connected returns since when an upstream answers; the zero time if none does.
	Connected() time.Time
	// HadTTL reports whether any resource of a type ever had a TTL, so that a timer of a client
	// may still run.
	HadTTL(typeURL string) bool
	// Nacks counts the resources of a type that clients NACKed, without suspects. Each of them
	// may change the version that other clients are sent, though no update was applied.
	Nacks(typeURL string) uint64
}

// Config configures a Session. Form must be set; other zero values take the defaults.
type Config struct {
	Form xds.Form
	// NoncePrefix makes the nonces differ from those of every other stream.
	NoncePrefix string
	// KeepWildcard is set if the client is an Envoy, whose SotW requests for clusters lose their
	// wildcard when on-demand names come (protocol.md V9, 2.4). HadWildcard then reports whether
	// any client of the same state had the wildcard before.
	KeepWildcard bool
	HadWildcard  func(typeURL string) bool
	// NamesOnly, if set, reports that the client asks for a type by name only: "*" and a collection are then names that a
	// stranger has sent, such as the server name of a TLS handshake, and no resource has them.
	NamesOnly func(typeURL string) bool
	// TTL is set if the client enforces the TTL of resources (protocol.md 6.8).
	TTL bool
	// Keeps is set if the client keeps what it has by name, and sends it to clients of its own itself, as a holdfast agent
	// does: what its first Delta request lists with the current version is not sent again. An Envoy that was warming a
	// cluster when its last stream ended waits for the endpoints, whatever it lists (protocol.md V3).
	Keeps bool
	// References, if set, returns what a resource refers to by subscriptions of their own: what the client has of that is sent again after
	// the resource has changed (follow.go).
	References func(*xds.Resource) []xds.Key
	// Secrets finds the secrets to be removed from the reasons of NACKs. Several Sessions may
	// share one; nil creates one for this Session.
	Secrets *redact.Finder
	// Sets keeps what clients have accepted. Several Sessions may share one, so that what they have in
	// common is in memory once; nil creates one for this Session.
	Sets *resourceset.Pool
}

// Session is the state machine of one stream.
type Session struct {
	cfg     Config
	types   map[string]*subscription
	ordered []*subscription // by xds.CompareTypes
	nonces  uint64
	now     time.Time
	delay   delay
	// subscriptionChanges are the changes that SubscriptionChanges will return.
	subscriptionChanges []xds.SubscriptionChange
	// clustersChanged is set if the client was sent clusters, or unsubscribed from or NACKed some,
	// since unsubscribeEndpoints last ran.
	clustersChanged bool
	// routesSent are the route configurations that were sent since virtual hosts were last built.
	routesSent map[string]struct{}
	needed     map[string]struct{} // caches the clusters that something leads to, for needs; nil for none
}

// New returns the state machine of a stream that has had no request yet.
func New(cfg Config) *Session {
	if cfg.Form == 0 {
		panic("session: Config.Form is not set")
	}
	cfg.Secrets = cmp.Or(cfg.Secrets, &redact.Finder{})
	if cfg.Sets == nil {
		cfg.Sets = resourceset.NewPool(resourceset.DefaultMin)
	}
	empty := func() map[xds.Key]struct{} { return make(map[xds.Key]struct{}) }
	return &Session{
		cfg: cfg, types: make(map[string]*subscription),
		delay: delay{awaited: empty(), timedOut: empty(), rerouted: empty()}, routesSent: make(map[string]struct{}),
	}
}

// Request is a DiscoveryRequest or a DeltaDiscoveryRequest.
type Request struct {
	Type  string
	Nonce string
	// Error is the client's reason for a NACK in its own words; "" for none. It may contain
	// secrets and must not leave the Session.
	Error string
	// NACK is set if the request carries an error_detail, which is the only sign of a NACK
	// (protocol.md 1.3).
	NACK bool

	// SotW.
	Version string
	Names   []string

	// Delta.
	Subscribe, Unsubscribe []string
	Initial                map[string]string // initial_resource_versions

	// Unreadable are names that are not UTF-8, and are not among the others: no resource can have them, and no answer can
	// name them.
	Unreadable []string

	surplus []string // the names that Limit removed, except the empty name
	trimmed bool     // Limit removed some
}

// Response is a DiscoveryResponse or a DeltaDiscoveryResponse.
type Response struct {
	Type  string
	Nonce string
	// Revision is that of the state from which the response was built; 0 for probes and heartbeats,
	// which are about no update.
	Revision uint64
	// Version is SotW's version_info, Delta's system_version_info.
	Version   string
	Resources []*xds.Resource
	Removed   []string // Delta
	// Heartbeats lists resources of which only the TTL starts again. A response with heartbeats
	// contains nothing else.
	Heartbeats []*xds.Resource
	// At is when the response was built, if it passes on TTLs; otherwise the zero time.
	At time.Time
	// complete is set if Resources is a complete set that later changes can amend. amended is set if
	// it was built by amending the previous one: with the resources in changed, without the names
	// in dropped.
	complete, amended bool
	changed           []*xds.Resource
	dropped           []string
	// accepted is what the client had accepted before it was sent this, according to its first version_info.
	accepted []*xds.Resource
}

// Effect is the effect of a request on the state.
type Effect struct {
	// Subscription is the change of the subscription; nil if there is none.
	Subscription *xds.SubscriptionChange
	// Answer is the ACK or NACK; nil if the request answers no response in flight. Culprit is a
	// second answer, to be processed after it: an ACK may show which resource of an earlier NACKed
	// response is to blame. It is nil for most requests.
	Answer, Culprit *Answer
}

// Answer is a client's ACK or NACK of a response.
type Answer struct {
	Type string
	// Nonce is that of the response; "" if the answer is none to a response of this stream.
	Nonce string
	// Revision is the revision of the state from which the response was built: the client has
	// seen every update up to it. It is 0 for a probe, from which that does not follow.
	Revision uint64
	// Error is the reason of a NACK, bounded in length and with the secrets of what the client was
	// sent removed.
	NACK  bool
	Error string
	// Acked lists resources that the client had not ACKed before. Suspects and Nacked are those
	// of a NACKed response (design.md I7).
	Acked, Suspects []*xds.Resource
	Nacked          *xds.Resource
	Removed         []string // names whose removal the client ACKed
}

// Progress reports that the client has answered, or was not concerned by, every update of a type
// up to a revision.
type Progress struct {
	Type     string
	Revision uint64
}

// Request processes a request of the client.
func (s *Session) Request(req *Request) Effect {
	if req.Type == "" {
		// Envoy sends an empty type URL when it answers a response of a type that it never
		// requested. The stream must survive that (protocol.md 1.12).
		return Effect{}
	}
	sub, known := s.types[req.Type]
	if !known {
		sub = newSubscription(req.Type, s.cfg)
		s.types[req.Type] = sub
		s.ordered = append(s.ordered, sub)
		slices.SortFunc(s.ordered, func(a, b *subscription) int { return xds.CompareTypes(a.url, b.url) })
	}
	s.clustersChanged = s.clustersChanged || req.Type == xds.ClusterType
	s.forgetNeeded(req.Type)
	var eff Effect
	eff.Answer, eff.Culprit = sub.answer(req)
	change, hadWildcard := &xds.SubscriptionChange{Type: sub.url}, sub.wildcard
	if s.cfg.Form == xds.Delta {
		sub.requestDelta(req, !known, change)
	} else {
		sub.requestSotW(req, !known, change)
	}
	change.Wildcard, change.Holds = sub.wildcard, !known && (req.Version != "" || len(req.Initial) > 0)
	if change.Wildcard != hadWildcard || len(change.Subscribe)+len(change.Unsubscribe) > 0 {
		eff.Subscription = change
	}
	for _, name := range req.surplus {
		sub.surplus[name] = struct{}{}
	}
	sub.share(s.now)
	return eff
}

// Changed records that the resources with these names changed in the state. all is set if any
// resource of the type may have changed, because the Knowledge of its wildcard changed; then the
// names of cached resources need not be listed.
func (s *Session) Changed(typeURL string, names []string, all bool) {
	sub := s.types[typeURL]
	if sub == nil {
		return
	}
	maps.Copy(sub.surplus, sub.waiting) // another attempt for the names that wait for a place
	clear(sub.waiting)
	if all {
		sub.allChanged = true
		maps.Copy(sub.mustAnswer, sub.unknown)
		clear(sub.unknown)
	}
	leads := xds.Info(typeURL).LeadsToClusters
	for _, n := range names {
		key := xds.Key{Type: typeURL, Name: n}
		delete(s.delay.timedOut, key)
		if leads && sub.sent.get(n) != nil {
			s.delay.rerouted[key] = struct{}{}
		}
		if _, ok := sub.unknown[n]; ok {
			sub.answerName(n)
		}
		sub.changed[n] = struct{}{}
	}
}

// Repeated records that resources came again although nothing has changed, and that the client needs again what it was sent of them.
func (s *Session) Repeated(typeURL string, names []string) {
	if sub := s.types[typeURL]; sub != nil {
		for _, name := range names {
			sub.resend(name)
		}
	}
}

// Next returns the next response to send to the client. If there is none it returns nil, and when it
// must be called again even if nothing else happens; the zero time for never. Types are sent in push
// order, and the removal of clusters after everything else (design.md I4).
func (s *Session) Next(v View, now time.Time) (*Response, time.Time) {
	s.now = now
	for _, sub := range s.ordered {
		sub.putBack(v)
	}
	s.unsubscribeEndpoints()
	s.arrived(v)
	var delayed time.Time
	known := false
	for _, sub := range s.ordered {
		if xds.Info(sub.url).LeadsToClusters {
			if !known {
				delayed, known = s.delayedUntil(v), true
			}
			if !delayed.IsZero() {
				continue
			}
		}
		if resp := s.build(sub, v); resp != nil {
			return resp, time.Time{}
		}
	}
	next := delayed
	for _, sub := range s.ordered {
		next = wake.Earliest(next, sub.share(now), sub.completeAt)
	}
	clusters := s.types[xds.ClusterType]
	if !delayed.IsZero() || clusters == nil || len(clusters.removals) == 0 {
		return nil, next
	}
	resp, removal := s.removeClusters(clusters, v)
	if resp != nil {
		return resp, time.Time{}
	}
	return nil, wake.Earliest(next, removal)
}

// SubscriptionChanges returns the changes that the Session made to the subscription on the
// client's behalf since the last call. They concern the endpoints of clusters that were sent, to
// which the client is about to subscribe. The caller passes them on, and then calls Next again.
func (s *Session) SubscriptionChanges() []xds.SubscriptionChange {
	out := s.subscriptionChanges
	s.subscriptionChanges = nil
	for _, change := range out {
		for _, name := range change.Subscribe {
			s.types[change.Type].answerName(name) // it may have come before the subscription
		}
	}
	return out
}

// Claims returns, as ACKs, the resources that the client had at the beginning of the stream: those
// whose version equals that in initial_resource_versions, and everything in the set that the first
// version_info names. It must be called after Next.
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

func (s *Session) build(sub *subscription, v View) *Response {
	if resp := s.answerSurplus(sub, v); resp != nil {
		return resp
	}
	if sub.url == xds.VirtualHostType {
		s.resendVirtualHosts(sub, v)
	}
	sub.replaceNeverAcked(v)
	if sub.allChanged || sub.mustRespond || len(sub.changed) > 0 || len(sub.mustAnswer) > 0 {
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
	if !sub.allChanged && !sub.mustRespond && len(sub.changed) == 0 { // else more must be known first
		sub.seen = v.Revision()
		if len(sub.inFlight) == 0 {
			sub.progress = max(sub.progress, sub.seen)
		}
	}
	return nil
}

func (s *Session) address(sub *subscription, resp *Response) {
	s.nonces++
	resp.Type = sub.url
	resp.Nonce = s.cfg.NoncePrefix + strconv.FormatUint(s.nonces, 10)
}

func (s *Session) commit(sub *subscription, resp *Response, revision uint64) *Response {
	s.address(sub, resp)
	resp.Revision = revision
	if !resp.amended {
		resp.changed = resp.Resources
	}
	sub.sent.grow(len(resp.changed))
	parent := xds.Info(sub.url).Parent
	var parents []*xds.Resource
	for i, r := range resp.changed {
		h, changed := sub.setSent(r)
		if changed && parent {
			parents = append(parents, r)
		}
		if changed && r.EDSName != "" {
			s.resendEndpoints(r.EDSName)
		}
		if changed && r.Type == xds.RouteType {
			s.routesSent[r.Name] = struct{}{}
		}
		if resp.complete && !resp.amended {
			h.at = int32(i)
		}
	}
	s.follow(parents)
	for _, name := range resp.Removed {
		sub.forget(name)
	}
	sub.lastSet = nil
	if resp.complete {
		sub.lastSet = resp.Resources
	}
	s.clustersChanged = s.clustersChanged || sub.url == xds.ClusterType
	s.forgetNeeded(sub.url)
	resp.Version = sub.sentVersion.String()
	if xds.FullState(sub.url) {
		// The version_info of other types is that of the last response that the client ACKed. It
		// also covers resources of earlier responses, which the client may have NACKed.
		sub.claimAll(resp.accepted)
		sub.version = ""
	}
	if sub.passesTTL() {
		resp.At = s.now
	}
	sub.track(sentResponse{nonce: resp.Nonce, at: s.now, revision: revision, resources: resp.changed, amends: resp.amended, dropped: resp.dropped, removed: resp.Removed, heartbeats: resp.Heartbeats})
	return resp
}

// resendEndpoints schedules the endpoints of a cluster that is sent new or changed to be sent
// again: Envoy warms the cluster until an EDS message comes, even an identical one, and in Delta
// does not request it (protocol.md V1, 4.1, 4.2). If the client has not subscribed to the endpoints
// yet, they are subscribed on its behalf, because the client will subscribe when it has the cluster.
// On a stream without any request for EDS nothing is scheduled.
func (s *Session) resendEndpoints(name string) {
	eds := s.types[xds.EndpointType]
	if eds == nil {
		return
	}
	if !eds.wildcard && !eds.subscribes(name) {
		if _, ok := eds.expected[name]; !ok {
			eds.expected[name] = struct{}{}
			s.subscriptionChanges = append(s.subscriptionChanges, xds.SubscriptionChange{Type: eds.url, Wildcard: eds.wildcard, Subscribe: []string{name}})
		}
	}
	eds.answerName(name)
	s.delay.await(xds.Key{Type: eds.url, Name: name}, s.now)
}

// resendVirtualHosts schedules the virtual hosts of the route configurations that were sent, even if they
// are unchanged. Envoy takes in those of a wildcard that belong to a route configuration that it has,
// and drops all others without a word; for a further route configuration it sends no request
// (protocol.md 8.3).
func (s *Session) resendVirtualHosts(sub *subscription, v View) {
	if len(s.routesSent) == 0 || !sub.wildcard {
		return
	}
	for item := range v.All(sub.url) {
		if item.Current == nil {
			continue
		}
		if _, sent := s.routesSent[xds.RoutesOf(item.Current.Name)]; sent {
			sub.answerName(item.Current.Name)
		}
	}
	clear(s.routesSent)
}

// hasRoutesOf reports whether the client has the route configuration of a virtual host that is covered
// by the wildcard alone. One that it does not have yet is sent after its routes.
func (s *Session) hasRoutesOf(sub *subscription, name string) bool {
	if sub.url != xds.VirtualHostType || sub.subscribes(name) {
		return true
	}
	routes, of := s.types[xds.RouteType], xds.RoutesOf(name)
	return routes == nil || of == "" || routes.sent.get(of) != nil
}

// unsubscribeEndpoints ends the subscriptions that resendEndpoints made and the client did not, once
// none of the client's clusters names these endpoints any more.
func (s *Session) unsubscribeEndpoints() {
	eds, clusters := s.types[xds.EndpointType], s.types[xds.ClusterType]
	changed := s.clustersChanged
	s.clustersChanged = false
	if !changed || eds == nil || clusters == nil || len(eds.expected) == 0 {
		return
	}
	var unclear []string
	for service := range eds.expected {
		// Nearly always a cluster and its endpoints have one name: then the other clusters need no look.
		if h := clusters.sent.get(service); h == nil || h.last == nil || h.last.EDSName != service {
			unclear = append(unclear, service)
		}
	}
	if len(unclear) == 0 {
		return
	}
	named := make(map[string]struct{})
	for _, h := range clusters.sent.all() {
		if h.last != nil {
			named[h.last.EDSName] = struct{}{}
		}
	}
	var drop []string
	for _, service := range unclear {
		if _, ok := named[service]; ok {
			continue
		}
		drop = append(drop, service)
		delete(eds.expected, service)
		if !eds.wildcard {
			delete(eds.mustAnswer, service)
			delete(eds.unknown, service)
			eds.forget(service)
		}
	}
	if len(drop) > 0 {
		s.subscriptionChanges = append(s.subscriptionChanges, xds.SubscriptionChange{Type: eds.url, Wildcard: eds.wildcard, Unsubscribe: drop})
	}
}

// removeClusters sends the removals of clusters whose delay has passed. The delay begins when
// everything else was sent, because control planes send the routes that no longer lead to a
// cluster later than its removal (design.md I4, protocol.md 4.7).
func (s *Session) removeClusters(sub *subscription, v View) (*Response, time.Time) {
	var next time.Time
	var removed []string
	latest := s.now.Add(removalDelay - maxRemovalDelay)
	for name, at := range sub.removals {
		if at.IsZero() {
			at = s.now.Add(removalDelay)
			sub.removals[name] = at
		}
		switch {
		case at.After(s.now):
			next = wake.Earliest(next, at)
		case at.After(latest) && s.needs(name):
			next = wake.Earliest(next, s.now.Add(removalDelay))
		default:
			removed = append(removed, name)
		}
	}
	if len(removed) == 0 {
		return nil, next
	}
	if s.cfg.Form == xds.SotW && !s.complete(sub, v) {
		// A set without them would be taken for complete while the state is not known
		// (design.md I1). Changed is called once it is known, so that no time is returned.
		return nil, time.Time{}
	}
	for _, name := range removed {
		delete(sub.removals, name)
		if s.cfg.Form == xds.SotW {
			sub.forget(name)
		}
	}
	if len(sub.removals) == 0 {
		s.needed = nil
	}
	if s.cfg.Form == xds.Delta {
		slices.Sort(removed)
		return s.commit(sub, &Response{Removed: removed}, 0), time.Time{}
	}
	return s.commit(sub, s.fullSet(sub, v).response(sub), 0), time.Time{}
}

// needs reports whether a resource that the client was sent leads to the cluster.
func (s *Session) needs(cluster string) bool {
	if s.needed == nil {
		s.needed = make(map[string]struct{})
		for _, sub := range s.ordered {
			if !xds.Info(sub.url).LeadsToClusters {
				continue
			}
			for _, h := range sub.sent.all() {
				if h.last != nil {
					xds.LeadsToClusters(h.last, func(cluster string) { s.needed[cluster] = struct{}{} })
				}
			}
		}
	}
	_, ok := s.needed[cluster]
	return ok
}

// forgetNeeded clears the cache of needs after a request or response of a type.
func (s *Session) forgetNeeded(typeURL string) {
	if xds.Info(typeURL).LeadsToClusters {
		s.needed = nil
	}
}

// Idle reports whether Next would return no response for the state that Next last saw.
func (s *Session) Idle() bool {
	for _, sub := range s.ordered {
		if sub.allChanged || sub.mustRespond || len(sub.changed)+len(sub.mustAnswer)+len(sub.retryAlone)+len(sub.heartbeats)+len(sub.neverAcked)+len(sub.surplus) > 0 {
			return false
		}
	}
	eds := s.types[xds.EndpointType]
	return !s.clustersChanged || eds == nil || len(eds.expected) == 0
}

// Progress returns the progress of each type, if it advanced since the last call.
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

// Unanswered returns, by type, the names in responses in flight. After the stream ended the
// client may have them or not (protocol.md 3.6).
func (s *Session) Unanswered() map[string][]string {
	out := make(map[string][]string)
	for _, sub := range s.ordered {
		names := make(map[string]struct{})
		for _, f := range sub.inFlight {
			for _, r := range f.resources {
				if !sub.sent.get(r.Name).hasAcked(r.Version) {
					names[r.Name] = struct{}{}
				}
			}
			for _, name := range f.removed {
				names[name] = struct{}{}
			}
		}
		if len(names) > 0 {
			out[sub.url] = slices.Sorted(maps.Keys(names))
		}
	}
	return out
}

// WaitingSince returns, by type, since when a response is in flight.
func (s *Session) WaitingSince() map[string]time.Time {
	out := make(map[string]time.Time)
	for _, sub := range s.ordered {
		if len(sub.inFlight) > 0 {
			out[sub.url] = sub.inFlight[0].at
		}
	}
	return out
}

// Subscribes reports whether the client subscribes to a name, itself or with a wildcard.
func (s *Session) Subscribes(typeURL, name string) bool {
	for _, sub := range s.ordered {
		if sub.url == typeURL {
			return sub.wildcard || sub.subscribes(name)
		}
	}
	return false
}

// Subscriptions returns the types of the client's requests, in push order, and the number of names
// that it subscribes to; a wildcard counts as one.
func (s *Session) Subscriptions() (types []string, names int) {
	for _, sub := range s.ordered {
		types = append(types, sub.url)
		names += sub.names.len()
		if sub.wildcard {
			names++
		}
	}
	return types, names
}

// FromSotW converts a SotW request. The Node is left out: it belongs to the stream.
func FromSotW(req *discoveryv3.DiscoveryRequest) *Request {
	return &Request{
		Type:    req.GetTypeUrl(),
		Nonce:   req.GetResponseNonce(),
		NACK:    req.GetErrorDetail() != nil,
		Error:   req.GetErrorDetail().GetMessage(),
		Version: req.GetVersionInfo(),
		Names:   xds.CanonicalNames(req.GetResourceNames()),
	}
}

// FromDelta converts a Delta request.
func FromDelta(req *discoveryv3.DeltaDiscoveryRequest) *Request {
	return &Request{
		Type:        req.GetTypeUrl(),
		Nonce:       req.GetResponseNonce(),
		NACK:        req.GetErrorDetail() != nil,
		Error:       req.GetErrorDetail().GetMessage(),
		Subscribe:   xds.CanonicalNames(req.GetResourceNamesSubscribe()),
		Unsubscribe: xds.CanonicalNames(req.GetResourceNamesUnsubscribe()),
		Initial:     req.GetInitialResourceVersions(),
	}
}

// SotW returns the response in SotW form. The bodies are shared, not copied, and no TTL is passed
// on, because its expiry crashes Envoy 1.40 (protocol.md V4, 6.4).
func (r *Response) SotW(from *corev3.ControlPlane) (*discoveryv3.DiscoveryResponse, error) {
	out := &discoveryv3.DiscoveryResponse{
		VersionInfo:  r.Version,
		TypeUrl:      r.Type,
		Nonce:        r.Nonce,
		ControlPlane: from,
		Resources:    make([]*anypb.Any, 0, len(r.Resources)),
	}
	for _, res := range r.Resources {
		body, err := res.Any()
		if err != nil {
			return nil, err
		}
		out.Resources = append(out.Resources, body)
	}
	return out, nil
}

// DeltaRest returns the response in Delta form, without its resources.
func (r *Response) DeltaRest(from *corev3.ControlPlane) *discoveryv3.DeltaDiscoveryResponse {
	return &discoveryv3.DeltaDiscoveryResponse{
		SystemVersionInfo: r.Version,
		TypeUrl:           r.Type,
		Nonce:             r.Nonce,
		ControlPlane:      from,
		RemovedResources:  r.Removed,
	}
}

// Size returns how many resources the response has in Delta form.
func (r *Response) Size() int { return len(r.Resources) + len(r.Heartbeats) }

// DeltaResource writes the i-th resource of the Delta form into w. The body is shared, not copied.
func (r *Response) DeltaResource(i int, w *discoveryv3.Resource) {
	if i < len(r.Resources) {
		res := r.Resources[i]
		res.Wrap(w, r.remaining(res))
		return
	}
	res := r.Heartbeats[i-len(r.Resources)]
	heartbeat := xds.Resource{Name: res.Name, Version: res.Version}
	heartbeat.Wrap(w, r.remaining(res))
}

// remaining returns the TTL of a resource when the response was built; 0 if none is passed on.
func (r *Response) remaining(res *xds.Resource) time.Duration {
	if r.At.IsZero() || res.Deadline().IsZero() {
		return 0
	}
	return max(res.Deadline().Sub(r.At), time.Millisecond)
}
