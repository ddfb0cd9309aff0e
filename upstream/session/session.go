// Package session implements the client side of one ADS stream as a pure state machine. Its
// inputs are responses, changes of the subscription, the ACKs and NACKs of the clients, and the
// time. Its outputs are updates of the state and requests. It has no goroutine, no clock, no lock
// and does no I/O. A Session is not safe for concurrent use.
//
// SotW and Delta are two wire forms of the same machine, which differ in how they express a
// subscription and the absence of a resource.
package session

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// DefaultAckTimeout is the default of Config.AckTimeout: how long a response waits for the clients' ACK or NACK before it is
	// ACKed: Envoy withholds its own ACK while a cluster warms (design.md I6, protocol.md V2).
	DefaultAckTimeout = time.Second
	// QuietTime is how long a Delta server must send nothing after a response for a wildcard to
	// count as complete (design.md section 3, protocol.md 7.7).
	QuietTime = 500 * time.Millisecond
	// maxQuietTime is after how long a wildcard counts as complete even if the server never
	// stopped sending, because something changes all the time.
	maxQuietTime = 2 * time.Second
	// AnswerTimeout is how long a server has to answer for a name before the name counts as not
	// existing (gRFC A57, protocol.md 5.3).
	AnswerTimeout = 15 * time.Second
	// maxSilence is how long a SotW server may be silent on a new stream whose requests all had a
	// version, before another stream is opened with a request that has none.
	maxSilence = 5 * time.Second
)

// A control plane that answers a NACK with the NACKed content again gets its next NACK after a
// growing pause, not in a loop (design.md I6).
const (
	minNackPause = time.Second
	maxNackPause = 30 * time.Second
)

// A server that goes back from a NACKed version to the version before sends nothing, because the
// client has ACKed that version. So NACKed resources are requested again, after a growing pause.
const (
	minRecheckPause = 5 * time.Second
	maxRecheckPause = 10 * time.Minute
)

// maxReasonBytes bounds the reason of a NACK, which travels in one message and in logs.
const maxReasonBytes = 4 << 10

const maxTimedOut = 64 // nonces in subscription.timedOut

// UnknownVersion is sent as the version of a cached resource that this server did not issue. The
// server then sends the resource again, or reports it removed (design.md I2). In SotW it is sent to a
// server whose own version is the empty one.
const UnknownVersion = "holdfast:not-from-this-server"

// Config configures a Session; zero values take the defaults.
type Config struct {
	Form       xds.Form
	AckTimeout time.Duration
	// Check, if set, returns why a well-formed resource cannot be used; nil if it can. Such a resource is
	// treated like a malformed one: its response is NACKed with the reason, and the cached version stays
	// in use. An unchanged resource need not be checked again.
	Check func(*xds.Resource) error
	// NotBefore holds, by type, the time before which the type is not requested; nil for none.
	NotBefore map[string]time.Time
	// Versions holds, by type, the version_info of the last SotW response of this server that was
	// ACKed. The session keeps it up to date for the next stream.
	Versions map[string]Version
	// Cached returns the names of the cached resources of a type that are still subscribed, each
	// with the version that this server issued for it; "" if it issued none.
	Cached func(typeURL string) map[string]string
	// Nacked returns the names of the cached resources of a type that this server sent and clients
	// NACKed; if it is nil, NACKed resources are not requested again. Rechecks counts, by type,
	// how often they were. The session keeps it up to date for the next stream.
	Nacked   func(typeURL string) []string
	Rechecks map[string]int
	// Optional returns names that a SotW request may leave out: gone, and leased if the server is silent; nil for none.
	Optional func(typeURL string) (gone, leased []string)
	// ReportLate delays the first report of the workload's health until the server has answered anything, so that a server
	// that ends the stream because of it can be told from one that rejects the client.
	ReportLate bool
}

// Version is the version_info of a response. Names are those of the request that the response
// answered; the version is valid for no other request. Contains has the names of the resources in
// the response, if the type is a full-state type.
type Version struct {
	Info     string
	Names    []string
	Contains xds.NameSet
}

// Session is the state machine of one stream.
type Session struct {
	cfg     Config
	types   map[string]*subscription
	ordered []*subscription // by xds.CompareTypes
	begun   []*subscription // in the order of their first requests

	// answered is set once the server has answered anything. mustAnswer is set once a request was
	// sent that every server answers, whatever versions this side has. If neither is set,
	// repeatAt is when another stream is opened; the zero time for never.
	answered, mustAnswer bool
	repeatAt             time.Time
	requestAgain         bool // see RequestAgain
	reports              reports
}

// subscription is the state of one type on the stream.
type subscription struct {
	url string
	// The subscription, and what the server was sent of it.
	names      map[string]struct{}
	wildcard   bool
	started    bool      // the first request was sent
	begunAt    time.Time // when it was sent
	answerable bool      // SotW: a server answers the first request, if that has no version
	explicit   bool      // the server was sent names, or "*"
	// sentWildcard is set if the server was sent a subscription to everything.
	// keepsLegacyWildcard is set while the legacy wildcard of SotW cannot be dropped, because a
	// request without names would subscribe to it again.
	sentWildcard, keepsLegacyWildcard bool
	add                               map[string]struct{} // Delta: not sent yet
	drop                              map[string]struct{}
	listed                            map[string]string // Delta: what the first request listed, while names of it are not sent yet
	renamed                           bool              // SotW: the names changed since they were sent
	needsNewStream                    bool              // see Reopen
	// left has the names that the last SotW request left out. silentAt is when the server counts as silent about it; the zero time for never.
	// picky says that it was: requests leave out what is leased.
	left     map[string]struct{}
	silentAt time.Time
	picky    bool
	// agreesAt is when the server counts as having the versions that the first request listed, if it has answered anything; the zero time
	// for never.
	agreesAt time.Time
	// awaited holds the requested names that the server has not answered yet, with the timeout of
	// each.
	awaited map[string]time.Time

	// What the server sent.
	nonce string
	// lateNames holds, for full-state types in SotW, the names that were added to the request of
	// the type later, and that no response has contained yet.
	lateNames map[string]lateName
	invalid   map[string]struct{} // names whose last content was invalid, or was reported as an error
	// completeAt is when a Delta wildcard counts as complete. Each response delays it, but never
	// beyond completeBy.
	completeAt, completeBy time.Time

	// read caches the resources of the last SotW response.
	read     readings
	answered bool // the server has sent a response

	// Responses that were not ACKed or NACKed yet, oldest first.
	answers []*answer
	nacks   int // in a row
	// recheckAt is when NACKed resources are requested again; the zero time for never.
	recheckAt time.Time
	// timedOut holds the nonces of responses that were ACKed because of the timeout, and acked is the
	// nonce of the last one that was ACKed because no client objected. Clients may still NACK them.
	timedOut map[string]struct{}
	acked    string
	// rejected is the last answer that was a NACK of clients, once it was sent; nil for none.
	rejected *answer
}

// lateName is a name that was added to the request of its type later. A response without it may have
// been made before the server read the new request.
type lateName struct {
	// until is when the server should have answered. missed is set once a complete response came
	// without the name.
	until  time.Time
	missed bool
}

// answer is the ACK or NACK that a response will get.
type answer struct {
	nonce, version string
	contains       xds.NameSet // see Version
	known          bool        // the clients have answered, or the response is malformed
	nack           string      // the reason; "" for an ACK
	byClients      bool        // the clients NACKed it
	again          bool        // the response was ACKed before
	// at is when the answer is sent at the latest or, once it is known, at the earliest.
	at time.Time
}

// Request is a DiscoveryRequest or a DeltaDiscoveryRequest without its Node, which belongs to the
// stream.
type Request struct {
	Type  string
	Nonce string
	NACK  string // the reason of a NACK, why the workload is unhealthy (xds.HealthType), or a report (xds.AgentReportType); "" for none

	// SotW.
	Version string
	Names   []string

	// Delta.
	Subscribe, Unsubscribe []string
	Initial                map[string]string
}

// New returns the state machine of a stream that was just opened.
func New(cfg Config) *Session {
	if cfg.Form == 0 {
		panic("session: Config.Form is not set")
	}
	cfg.AckTimeout = cmp.Or(cfg.AckTimeout, DefaultAckTimeout)
	if cfg.Versions == nil {
		cfg.Versions = make(map[string]Version)
	}
	if cfg.Nacked == nil {
		cfg.Nacked = func(string) []string { return nil }
	}
	if cfg.Rechecks == nil {
		cfg.Rechecks = make(map[string]int)
	}
	if cfg.Cached == nil {
		cfg.Cached = func(string) map[string]string { return nil }
	}
	return &Session{cfg: cfg, types: make(map[string]*subscription)}
}

// Subscribe changes the subscription of a type.
func (s *Session) Subscribe(typeURL string, wildcard bool, add, drop []string) {
	sub := s.types[typeURL]
	if sub == nil {
		sub = &subscription{
			url:       typeURL,
			names:     make(map[string]struct{}),
			add:       make(map[string]struct{}),
			drop:      make(map[string]struct{}),
			awaited:   make(map[string]time.Time),
			lateNames: make(map[string]lateName),
			invalid:   make(map[string]struct{}),
			timedOut:  make(map[string]struct{}),
		}
		s.types[typeURL] = sub
		s.ordered = append(s.ordered, sub)
		slices.SortFunc(s.ordered, func(a, b *subscription) int { return xds.CompareTypes(a.url, b.url) })
	}
	for _, name := range add {
		if _, ok := sub.names[name]; !ok {
			sub.names[name] = struct{}{}
			sub.recordChange(name, true)
		}
	}
	for _, name := range drop {
		if _, ok := sub.names[name]; ok {
			delete(sub.names, name)
			delete(sub.invalid, name)
			sub.answeredName(name)
			sub.recordChange(name, false)
		}
	}
	if wildcard == sub.wildcard {
		return
	}
	sub.wildcard = wildcard
	switch {
	case s.cfg.Form == xds.SotW && sub.sentWildcard && !sub.explicit && !wildcard:
		sub.keepsLegacyWildcard = true
	case sub.keepsLegacyWildcard:
		// Resources that came while nobody subscribed to them may have left the cache.
		sub.keepsLegacyWildcard, sub.needsNewStream = false, true
	default:
		sub.recordChange(xds.Wildcard, wildcard)
	}
}

// Forget drops the version_info of a type before its first request, because the cache may have
// lost resources since. A server that does not answer a request with a current version would not
// send them.
func (s *Session) Forget(typeURL string) {
	if s.cfg.Versions[typeURL].Info != "" { // the empty one is not sent: see noVersion
		delete(s.cfg.Versions, typeURL)
	}
}

// Reopen reports whether the stream should be ended and another one opened, whose first request
// of each type has the whole subscription and, in Delta, the versions of the cached resources. The
// causes are:
//
//   - A wildcard was added after the first request of its type. Responses that the server sent
//     before it read the request cannot be distinguished from its answer, and the answer would
//     not report resources that were removed while the wildcard was not subscribed.
//   - In SotW, a cached resource was requested late, and the server seems not to have it. A
//     cached resource is removed only by a response that cannot be older than the request
//     (design.md I2).
//   - Clients NACKed a resource, and the server may have gone back to the version before.
//   - A SotW server that was sent only current versions has answered nothing.
//   - RequestAgain was called.
func (s *Session) Reopen() bool {
	return s.requestAgain || slices.ContainsFunc(s.ordered, func(sub *subscription) bool {
		return sub.needsNewStream || sub.wildcard && sub.started && !sub.sentWildcard
	})
}

// RequestAgain makes Reopen return true, so that the server confirms removals, which it does not
// repeat on the same stream (protocol.md 3.5). Config.Cached returns no version for the resources
// that the server removed: it must send each of them, or report it removed.
func (s *Session) RequestAgain() { s.requestAgain = true }

// recordChange records a change of the subscription for the next request. Before the first request
// nothing is recorded, since that one contains the whole subscription.
func (sub *subscription) recordChange(name string, added bool) {
	if !sub.started {
		return
	}
	sub.renamed = true
	to, from := sub.add, sub.drop
	if !added {
		to, from = from, to
	}
	if _, ok := from[name]; !ok {
		to[name] = struct{}{}
	}
	delete(from, name)
}

// Answer processes the clients' ACK or NACK of the response with a nonce; err is nil for an ACK. After a NACK an ACK may follow: clients
// that were offered it again have accepted it.
// late reports a NACK after the response was ACKed, because of the timeout or because no client was
// there: only in Delta it can still be sent.
func (s *Session) Answer(typeURL, nonce string, err error, now time.Time) (late bool) {
	sub := s.types[typeURL]
	if sub == nil {
		return false
	}
	at := slices.IndexFunc(sub.answers, func(a *answer) bool { return a.nonce == nonce && !a.known })
	if at >= 0 {
		a := sub.answers[at]
		a.known, a.at = true, now
		if err != nil {
			a.byClients = true
			sub.nack(a, err.Error(), now)
			s.recheckLater(sub, now)
		} else {
			sub.acked = nonce
		}
		return false
	}
	if err == nil {
		sub.accept(nonce, now)
		return false
	}
	_, late = sub.timedOut[nonce]
	delete(sub.timedOut, nonce)
	if nonce == sub.acked && nonce == sub.nonce {
		late, sub.acked = true, ""
	}
	if !late {
		return false
	}
	s.recheckLater(sub, now)
	if s.cfg.Form == xds.Delta {
		a := &answer{nonce: nonce, byClients: true, again: true}
		sub.nack(a, err.Error(), now)
		sub.answers = append(sub.answers, a)
	}
	return true
}

// accept makes the answer to a response an ACK that clients NACKed before. If the server has sent another response since, the answer to
// that one says what there is to say.
func (sub *subscription) accept(nonce string, now time.Time) {
	delete(sub.timedOut, nonce)
	i := slices.IndexFunc(sub.answers, func(a *answer) bool { return a.nonce == nonce && a.byClients })
	switch {
	case i >= 0 && sub.answers[i].again:
		sub.answers = slices.Delete(sub.answers, i, i+1)
	case i >= 0:
		a := sub.answers[i]
		a.nack, a.byClients, a.at = "", false, now
	case sub.rejected != nil && sub.rejected.nonce == nonce && sub.nonce == nonce:
		sub.answers = append(sub.answers, &answer{nonce: nonce, version: sub.rejected.version, contains: sub.rejected.contains, known: true, at: now})
		sub.rejected = nil
	}
}

// nack makes an answer a NACK. The second NACK in a row and later ones are delayed.
func (sub *subscription) nack(a *answer, reason string, now time.Time) {
	a.known, a.nack, a.at = true, reason, now
	if len(a.nack) > maxReasonBytes {
		a.nack = strings.ToValidUTF8(a.nack[:maxReasonBytes], "") + "…"
	}
	if sub.nacks > 0 {
		a.at = now.Add(min(minNackPause<<min(sub.nacks-1, 5), maxNackPause))
	}
	sub.nacks++
}

// recheckLater schedules another request for NACKed resources, after a pause.
func (s *Session) recheckLater(sub *subscription, now time.Time) {
	if sub.recheckAt.IsZero() {
		sub.recheckAt = now.Add(min(minRecheckPause<<min(s.cfg.Rechecks[sub.url], 10), maxRecheckPause))
	}
}

// recheck requests NACKed resources again, if there are any and their time has come. In Delta it
// returns a request that unsubscribes from the names; the next request subscribes to them again.
// That is impossible in SotW, and if a wildcard covers the names. Then a new stream is needed,
// whose first request has no version.
func (s *Session) recheck(sub *subscription, now time.Time) (req *Request, next time.Time) {
	if sub.recheckAt.IsZero() || sub.recheckAt.After(now) {
		return nil, sub.recheckAt
	}
	sub.recheckAt = time.Time{}
	names := s.cfg.Nacked(sub.url)
	if len(names) == 0 {
		delete(s.cfg.Rechecks, sub.url)
		return nil, time.Time{}
	}
	s.cfg.Rechecks[sub.url]++
	s.recheckLater(sub, now)
	byName := s.cfg.Form == xds.Delta && !sub.sentWildcard
	for _, name := range names {
		_, subscribed := sub.names[name]
		byName = byName && subscribed
	}
	if !byName {
		s.Forget(sub.url)
		sub.needsNewStream = true
		return nil, now
	}
	for _, name := range names {
		sub.add[name] = struct{}{}
	}
	slices.Sort(names)
	return &Request{Unsubscribe: names}, time.Time{}
}

// Completed returns the types whose wildcard has become complete, each once, and when Completed
// must be called again; the zero time for never.
func (s *Session) Completed(now time.Time) (types []string, next time.Time) {
	for _, sub := range s.ordered {
		if sub.completeAt.IsZero() {
			continue
		}
		if sub.completeAt.After(now) {
			next = wake.Earliest(next, sub.completeAt)
			continue
		}
		sub.completeAt, sub.completeBy = time.Time{}, time.Time{}
		if sub.wildcard && sub.sentWildcard && len(sub.invalid) == 0 {
			types = append(types, sub.url)
		}
	}
	return types, next
}

// Agreed returns the types of which the server has what the first request listed with its version, each once, and when Agreed must be called
// again; the zero time for never. A server need not answer what it has nothing new of (protocol.md 3.2, 7.10), so that its silence says it
// once it has answered something else.
func (s *Session) Agreed(now time.Time) (types []string, next time.Time) {
	if !s.answered {
		return nil, time.Time{}
	}
	for _, sub := range s.begun {
		switch {
		case sub.agreesAt.IsZero():
		case s.cfg.Form == xds.SotW && sub.answered:
			sub.agreesAt = time.Time{} // the response has it all
		case sub.agreesAt.After(now):
			next = wake.Earliest(next, sub.agreesAt)
		default:
			sub.agreesAt = time.Time{}
			types = append(types, sub.url)
		}
	}
	return types, next
}

// Overdue returns the requested names that the server did not answer in time, each once, in one
// update for each type, and when Overdue must be called again; the zero time for never.
func (s *Session) Overdue(now time.Time) (updates []xds.Update, next time.Time) {
	for _, sub := range s.ordered {
		u := xds.Update{Type: sub.url}
		isCached := s.cached(sub)
		for name, at := range sub.awaited {
			if at.After(now) {
				next = wake.Earliest(next, at)
				continue
			}
			delete(sub.awaited, name)
			if !sub.lateNames[name].missed {
				u.Errors = append(u.Errors, xds.ResourceError{Name: name, Err: xds.ErrNoAnswer})
			} else if sub.isMissing(name, isCached) {
				u.Removed = append(u.Removed, name)
			}
		}
		if len(u.Errors)+len(u.Removed) > 0 {
			u.Timeout = len(u.Removed) == 0
			slices.Sort(u.Removed)
			slices.SortFunc(u.Errors, func(a, b xds.ResourceError) int { return strings.Compare(a.Name, b.Name) })
			updates = append(updates, u)
		}
	}
	return updates, next
}

// awaitNames starts to wait for the answer to each name of a request that is not cached: a server may
// be silent about those that are.
func (s *Session) awaitNames(sub *subscription, names []string, cached map[string]string, now time.Time) {
	for _, name := range names {
		_, isCached := cached[name]
		_, isAwaited := sub.awaited[name]
		if _, subscribed := sub.names[name]; subscribed && !isCached && !isAwaited {
			sub.awaited[name] = now.Add(AnswerTimeout)
		}
	}
}

// isMissing reports whether a name does not exist that was requested late, was missing from a
// response, and whose timeout has passed. If the name is cached, only a new stream can tell.
func (sub *subscription) isMissing(name string, isCached func(string) bool) bool {
	if isCached(name) {
		sub.needsNewStream = true
		return false
	}
	sub.answeredName(name)
	return true
}

// cached returns a function that reports whether a name is cached. It calls Config.Cached only once.
func (s *Session) cached(sub *subscription) func(name string) bool {
	var names map[string]string
	listed := false
	return func(name string) bool {
		if !listed {
			names, listed = s.cfg.Cached(sub.url), true
		}
		_, ok := names[name]
		return ok
	}
}

// answeredBy ends the wait for a resource, by its name, an alias or a collection.
func (sub *subscription) answeredBy(r *xds.Resource) {
	sub.answeredName(r.Name)
	for _, alias := range r.Aliases() {
		sub.answeredName(alias)
	}
	sub.answeredName(xds.CollectionOf(r.Name))
}

// answeredName ends the wait for a name; none has the name "".
func (sub *subscription) answeredName(name string) {
	delete(sub.awaited, name)
	delete(sub.lateNames, name)
}

// Next returns the next request to send to the server. If there is none, it returns nil and when
// Next must be called again even if nothing else happens; the zero time for never.
func (s *Session) Next(now time.Time) (*Request, time.Time) {
	report, next := s.nextReport(now)
	if report != nil {
		return report, time.Time{}
	}
	for _, sub := range s.ordered {
		build := s.nextSotW
		if s.cfg.Form == xds.Delta {
			build = s.nextDelta
		}
		req, at := build(sub, now)
		if req != nil {
			req.Type = sub.url
			return req, time.Time{}
		}
		next = wake.Earliest(next, at)
	}
	return nil, wake.Earliest(next, s.repeatUnanswered(now))
}

// repeatUnanswered makes Reopen return true if a SotW server has answered nothing. Some servers do
// not answer a request with a current version (protocol.md 7.10), and such a server cannot be
// distinguished from one that hangs. On the next stream one type is requested without a version,
// which every server answers (protocol.md 1.1).
func (s *Session) repeatUnanswered(now time.Time) (next time.Time) {
	if s.answered || s.mustAnswer || s.repeatAt.IsZero() {
		return time.Time{}
	}
	if s.repeatAt.After(now) {
		return s.repeatAt
	}
	s.repeatAt = time.Time{}
	if i := slices.IndexFunc(s.begun, func(sub *subscription) bool { return sub.answerable }); i >= 0 {
		s.Forget(s.begun[i].url)
		s.begun[i].needsNewStream = true
		return now
	}
	return time.Time{}
}

// NotModified records that the server answered without a response, because the version in the
// request is current.
func (s *Session) NotModified() { s.answered = true }

// begin records the first request of a type. If the type must not be requested yet, it returns false
// and until when; the zero time until the subscription changes.
func (s *Session) begin(sub *subscription, now time.Time) (bool, time.Time) {
	if !sub.wildcard && len(sub.names) == 0 {
		return false, time.Time{} // in SotW it would request everything (protocol.md 7.9)
	}
	if at := s.cfg.NotBefore[sub.url]; at.After(now) {
		return false, at
	}
	sub.started, sub.begunAt, sub.sentWildcard = true, now, sub.wildcard
	s.begun = append(s.begun, sub)
	if s.cfg.Rechecks[sub.url] > 0 {
		s.recheckLater(sub, now)
	}
	return true, time.Time{}
}

// Unanswered returns the types that were first requested at or after since and have had no
// response, the last one first; and whether any type has had a response.
func (s *Session) Unanswered(since time.Time) (types []string, others bool) {
	for _, sub := range slices.Backward(s.begun) {
		if sub.answered {
			others = true
		} else if !sub.begunAt.Before(since) {
			types = append(types, sub.url)
		}
	}
	return types, others
}

// Subscribed returns the subscribed names of a type, sorted, without a wildcard.
func (s *Session) Subscribed(typeURL string) []string {
	if sub := s.types[typeURL]; sub != nil {
		return slices.Sorted(maps.Keys(sub.names))
	}
	return nil
}

// dueAnswer removes and returns the first answer that must be sent now; if there is none, it returns
// when the next one must be sent.
func (sub *subscription) dueAnswer(now time.Time) (a *answer, next time.Time) {
	for i, a := range sub.answers {
		if a.at.After(now) {
			next = wake.Earliest(next, a.at)
			continue
		}
		sub.answers = slices.Delete(sub.answers, i, i+1)
		sub.recordSent(a)
		return a, time.Time{}
	}
	return nil, next
}

// recordSent records that an answer is sent, perhaps before the clients have answered.
func (sub *subscription) recordSent(a *answer) {
	if !a.known {
		if len(sub.timedOut) >= maxTimedOut {
			clear(sub.timedOut)
		}
		sub.timedOut[a.nonce] = struct{}{}
	}
	if a.nack == "" {
		sub.nacks = 0
	}
	if sub.rejected = nil; a.byClients {
		sub.rejected = a
	}
}

func (s *Session) nextDelta(sub *subscription, now time.Time) (*Request, time.Time) {
	if !sub.started {
		if begun, until := s.begin(sub, now); !begun {
			return nil, until
		}
		req := &Request{Subscribe: sub.requestNames(), Initial: s.cfg.Cached(sub.url)}
		forced := s.mustAnswer
		for name, version := range req.Initial {
			if version == "" {
				req.Initial[name], forced = UnknownVersion, true
			} else {
				sub.agreesAt = now.Add(AnswerTimeout)
			}
		}
		if len(req.Initial) > 0 && !forced {
			// A server that has the same versions might never answer, and could not be distinguished
			// from one that hangs (protocol.md 3.2, 7.10).
			req.Initial[slices.Min(slices.Collect(maps.Keys(req.Initial)))] = UnknownVersion
		}
		s.mustAnswer = s.mustAnswer || len(req.Initial) > 0
		sub.split(req)
		s.awaitNames(sub, req.Subscribe, req.Initial, now)
		return req, time.Time{}
	}
	if len(sub.add)+len(sub.drop) > 0 {
		sub.sendWildcard()
		req := &Request{Subscribe: slices.Sorted(maps.Keys(sub.add)), Unsubscribe: slices.Sorted(maps.Keys(sub.drop))}
		clear(sub.add)
		clear(sub.drop)
		sub.split(req)
		s.awaitNames(sub, req.Subscribe, sub.listed, now)
		if len(sub.add) == 0 {
			sub.listed = nil
		}
		return req, time.Time{}
	}
	a, next := sub.dueAnswer(now)
	if a == nil {
		req, at := s.recheck(sub, now)
		return req, wake.Earliest(next, at)
	}
	return &Request{Nonce: a.nonce, NACK: a.nack}, time.Time{}
}

// maxRequest bounds the bytes of names and versions in one Delta request, so that with the Node it is below 1 MiB: servers take 4 MiB by
// default (gRPC), and proxies between may take less.
const maxRequest = 7 << 17

// split leaves names for the next request that do not fit into this one, and versions that do not fit: what they are of is sent again. A
// wildcard's versions are all in the first request, because a server reports the removal of what is listed only (xDS specification, "Client
// initialization" of the incremental protocol).
func (sub *subscription) split(req *Request) {
	size := 0
	for name, version := range req.Initial {
		size += len(name) + len(version) + entrySize
	}
	for _, names := range [][]string{req.Subscribe, req.Unsubscribe} {
		for _, name := range names {
			size += len(name) + nameSize
		}
	}
	if size <= maxRequest {
		return
	}
	size = 0
	for _, name := range slices.Sorted(maps.Keys(req.Initial)) {
		if more := len(name) + len(req.Initial[name]) + entrySize; !sub.subscribes(name) || size+more <= maxRequest*3/4 {
			size += more
		} else {
			delete(req.Initial, name)
		}
	}
	later := func(names []string) (fit, rest []string) {
		for i, name := range names {
			if size += len(name) + nameSize; size > maxRequest && i > 0 {
				return names[:i], names[i:]
			}
		}
		return names, nil
	}
	var rest []string
	req.Subscribe, rest = later(req.Subscribe)
	for _, name := range rest {
		sub.add[name] = struct{}{}
	}
	req.Unsubscribe, rest = later(req.Unsubscribe)
	for _, name := range rest {
		sub.drop[name] = struct{}{}
	}
	if len(req.Initial) > 0 && len(sub.add) > 0 {
		sub.listed = req.Initial
	}
}

// The bytes of a name in a list, and of an entry of a map, beside its texts (protocol buffers).
const (
	nameSize  = 4
	entrySize = 12
)

// nextSotW returns the next SotW request of a type, which always contains all names.
func (s *Session) nextSotW(sub *subscription, now time.Time) (*Request, time.Time) {
	req := &Request{Version: s.cfg.Versions[sub.url].Info, Nonce: sub.nonce}
	if !sub.started {
		if begun, until := s.begin(sub, now); !begun {
			return nil, until
		}
		req.Names = s.leaveOut(sub, sub.requestNames())
		cached := s.cfg.Cached(sub.url)
		current := s.cfg.Versions[sub.url].isCurrent(sub, req.Names, cached)
		if current {
			sub.agreesAt = now.Add(AnswerTimeout)
		} else {
			req.Version = s.noVersion(sub.url)
		}
		if sub.answerable = allCached(req.Names, cached); !current && sub.answerable {
			s.mustAnswer = true
		} else if s.repeatAt.IsZero() {
			s.repeatAt = now.Add(maxSilence)
		}
		s.awaitNames(sub, req.Names, cached, now)
		sub.awaitWord(now)
		return req, time.Time{}
	}
	silence := s.lookAtLeft(sub, now)
	a, next := sub.dueAnswer(now)
	next = wake.Earliest(next, silence)
	if a == nil && sub.renamed && len(sub.answers) > 0 {
		// A request with other names carries the newest nonce, and so answers that response: with
		// an ACK, or with the NACK that is being delayed, since only error_detail tells them
		// apart (design.md I6, protocol.md 1.3).
		a = sub.answers[len(sub.answers)-1]
		sub.answers = nil
		sub.recordSent(a)
	}
	if a == nil && !sub.renamed {
		req, at := s.recheck(sub, now)
		return req, wake.Earliest(next, at)
	}
	s.awaitNames(sub, slices.Collect(maps.Keys(sub.add)), nil, now)
	if xds.FullState(sub.url) {
		for name := range sub.add {
			sub.lateNames[name] = lateName{until: now.Add(AnswerTimeout)}
		}
	}
	sub.sendWildcard()
	sub.renamed = false
	if a != nil {
		req.Nonce, req.NACK = a.nonce, a.nack
		if a.nack == "" {
			req.Version = a.version
		}
	}
	req.Names = s.leaveOut(sub, sub.requestNames())
	sub.awaitWord(now)
	if a != nil && a.nack == "" {
		s.cfg.Versions[sub.url] = Version{a.version, req.Names, a.contains}
	}
	return req, time.Time{}
}

// silentAfter is how long a server in state of the world has to answer a request with new names before it is asked without what is leased:
// java-control-plane answers only when it knows every name.
const silentAfter = 500 * time.Millisecond

// leaveOut leaves the names out of those of a SotW request that need not be asked for, unless that are all.
func (s *Session) leaveOut(sub *subscription, names []string) []string {
	sub.left = nil
	if s.cfg.Optional == nil || xds.FullState(sub.url) || len(names) == 0 {
		return names
	}
	out, leased := s.cfg.Optional(sub.url)
	if sub.picky {
		out = append(out, leased...)
	}
	if len(out) == 0 {
		return names
	}
	optional, left := make(map[string]struct{}, len(out)), make(map[string]struct{})
	for _, name := range out {
		optional[name] = struct{}{}
	}
	var needed []string
	for _, name := range names {
		if _, is := optional[name]; is {
			left[name] = struct{}{}
		} else {
			needed = append(needed, name)
		}
	}
	if len(needed) == 0 || len(left) == 0 {
		return names // none would be a subscription to everything (protocol.md 7.9)
	}
	for name := range left {
		sub.answeredName(name)
	}
	sub.left = left
	return needed
}

// awaitWord begins to wait for a word about the names of a request.
func (sub *subscription) awaitWord(now time.Time) {
	if sub.silentAt = (time.Time{}); len(sub.awaited) > 0 && !sub.picky {
		sub.silentAt = now.Add(silentAfter)
	}
}

// lookAtLeft makes another request due if a name that the last one left out is needed now, or if the server is silent about names that can
// be left out. It returns when the server counts as silent; the zero time for never.
func (s *Session) lookAtLeft(sub *subscription, now time.Time) (next time.Time) {
	if len(sub.left) > 0 {
		gone, leased := s.cfg.Optional(sub.url)
		for name := range sub.left {
			if sub.subscribes(name) && !slices.Contains(gone, name) && !slices.Contains(leased, name) {
				sub.renamed = true
				sub.add[name] = struct{}{} // it is waited for
			}
		}
	}
	switch {
	case sub.silentAt.IsZero() || s.cfg.Optional == nil:
	case sub.silentAt.After(now):
		return sub.silentAt
	default:
		sub.silentAt = time.Time{}
		if _, leased := s.cfg.Optional(sub.url); slices.ContainsFunc(leased, sub.subscribes) {
			sub.picky, sub.renamed = true, true
		}
	}
	return time.Time{}
}

func (sub *subscription) subscribes(name string) bool {
	_, is := sub.names[name]
	return is
}

// noVersion returns the version_info of a request that the server must answer. That is none, unless the version of the
// server is the empty one: go-control-plane does not answer a request with a current version, and a snapshot without a
// type has that one.
func (s *Session) noVersion(typeURL string) string {
	if v, acked := s.cfg.Versions[typeURL]; acked && v.Info == "" {
		return UnknownVersion
	}
	return ""
}

// allCached reports whether every requested name is cached.
func allCached(names []string, cached map[string]string) bool {
	for _, name := range names {
		if _, ok := cached[name]; !ok && name != xds.Wildcard {
			return false
		}
	}
	return true
}

// isCurrent reports whether a request for names may carry the version, given that some servers do
// not answer a request with a current version. The version must be valid for exactly these names,
// no cached resource may have been added or removed by another source since, and every requested
// name must be cached, since the server would not repeat that a name does not exist.
func (v Version) isCurrent(sub *subscription, names []string, cached map[string]string) bool {
	if v.Info == "" || len(cached) == 0 || !slices.Equal(v.Names, names) || !allCached(names, cached) {
		return false
	}
	if xds.FullState(sub.url) && v.Contains != xds.NamesOf(maps.Keys(cached)) {
		return false
	}
	for _, version := range cached {
		if version == "" {
			return false
		}
	}
	return true
}

// sendWildcard records whether the request that is being built includes the wildcard.
func (sub *subscription) sendWildcard() {
	if sub.keepsLegacyWildcard && len(sub.names) == 0 {
		return // a request without names still includes it
	}
	sub.sentWildcard, sub.keepsLegacyWildcard = sub.wildcard, false
}

// requestNames returns the names of a request for the whole subscription. A wildcard alone is
// expressed by no names, if the type has a legacy wildcard and no name was ever sent
// (protocol.md 2.1, 2.3).
func (sub *subscription) requestNames() []string {
	names := slices.Sorted(maps.Keys(sub.names))
	if sub.wildcard && (len(names) > 0 || sub.explicit || !xds.Info(sub.url).LegacyWildcard) {
		names = slices.Insert(names, 0, xds.Wildcard)
	}
	sub.explicit = sub.explicit || len(names) > 0
	clear(sub.add)
	clear(sub.drop)
	return names
}
