package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Defaults of Config.
const (
	// DefaultAckTimeout is how long a response waits for the clients' ACK or NACK before it is
	// ACKed: Envoy withholds its own ACK while a cluster warms (design.md I6, protocol.md V2).
	DefaultAckTimeout = time.Second
	// DefaultQuietTime is how long a Delta server must send nothing after a response for a
	// wildcard to count as complete (design.md section 3, protocol.md 7.7).
	DefaultQuietTime = 500 * time.Millisecond
	// maxQuietTime is after how long a wildcard counts as complete even if the server never
	// stopped sending, because something changes all the time.
	maxQuietTime = 2 * time.Second
	// DefaultAnswerTimeout is how long a server has to answer for a name before the name counts
	// as not existing (gRFC A57, protocol.md 5.3).
	DefaultAnswerTimeout = 15 * time.Second
	// DefaultSilence is how long a SotW server may be silent on a new stream whose requests named
	// the version of everything, before it is asked on another stream without a version.
	DefaultSilence = 5 * time.Second
)

// A control plane that answers a NACK with the NACKed content again gets its next NACK after a
// growing pause, not in a loop (design.md I6).
const (
	minNackPause = time.Second
	maxNackPause = 30 * time.Second
)

// A server that goes back to the version that was ACKed before sends nothing to a client that
// NACKed the version in between. So the server is asked again for resources that are held and
// NACKed, after a growing pause.
const (
	minRecheckPause = 5 * time.Second
	maxRecheckPause = 10 * time.Minute
)

// maxReasonBytes bounds the reason of a NACK, because an error_detail travels in one message and
// in logs.
const maxReasonBytes = 4 << 10

// Unissued is a version that tells a server that it did not issue the resource that is held. The
// server then sends the resource again, or reports it removed (design.md I2).
const Unissued = "holdfast:not-from-this-server"

// Config configures a Session; zero values take the defaults.
type Config struct {
	Form          xds.Form
	AckTimeout    time.Duration
	QuietTime     time.Duration
	AnswerTimeout time.Duration
	Silence       time.Duration
	// NotBefore holds, by type, the time before which the server is not asked for the type; nil
	// for none.
	NotBefore map[string]time.Time
	// Versions holds, by type, the version_info of the last SotW response of this server that was
	// ACKed. The session keeps it up to date, so that the next stream can start with it.
	Versions map[string]Version
	// Held returns the held and still subscribed resources of a type, with the version that this
	// server issued, "" if it issued none.
	Held func(typeURL string) map[string]string
	// Nacked returns the names of held resources that this server sent and clients NACKed; nil
	// for a session that never asks again. Rechecks counts, by type, how often the server was
	// asked again for such names. The session keeps Rechecks up to date, so that the next stream
	// continues with it.
	Nacked   func(typeURL string) []string
	Rechecks map[string]int
}

// Version is a version_info with what it is valid for: Names are those of the request that it
// answered, and it is valid for no other request. Holds are, for a full-state type, the names of
// the resources that it came with.
type Version struct {
	Info  string
	Names []string
	Holds xds.NameSet
}

// Session is the state machine of one stream.
type Session struct {
	cfg     Config
	types   map[string]*subscription
	ordered []*subscription // by xds.CompareTypes
	begun   []*subscription // in the order in which the server was first asked

	// answered is set once the server has answered anything. must is set once the server was
	// asked for something that it must answer, whatever it believes this side to hold. repeatAt
	// is when the server is asked again, on another stream, if neither is set; the zero time for
	// never.
	answered, must bool
	repeatAt       time.Time
	// again is set if the server must be asked for everything on another stream.
	again bool
}

// subscription is the state of one type on the stream.
type subscription struct {
	url string
	// What is subscribed, and what of that the server was sent.
	names    map[string]struct{}
	wildcard bool
	started  bool
	begunAt  time.Time // of the first request
	certain  bool      // SotW: the server must answer the first request if it has no version
	explicit bool      // the server was sent names, or "*"
	// sentWildcard is set if the server was sent a subscription to everything.
	// keepsLegacyWildcard is set while the legacy wildcard of SotW cannot be dropped, because a
	// request without names would subscribe to it again.
	sentWildcard, keepsLegacyWildcard bool
	add                               map[string]struct{} // Delta: not sent yet
	drop                              map[string]struct{}
	renamed                           bool // SotW: the names changed since they were sent
	// needsNewStream is set if only a new stream can show what became of a resource; see Reopen.
	needsNewStream bool
	// awaited holds the names that the server was asked for and has not answered yet, with the
	// timeout of each.
	awaited map[string]time.Time

	// What the server sent.
	nonce string
	// lateNames holds, for full-state types in SotW, the names that were requested after the first
	// request of the type and that no response has contained yet.
	lateNames map[string]lateName
	broken    map[string]struct{} // names that came malformed and not yet well-formed
	// Delta wildcard: complete when completeAt passes, which is never later than completeBy.
	completeAt, completeBy time.Time

	// read caches the resources of the last SotW response.
	read     readings
	answered bool // there was a response

	// Responses that were not ACKed or NACKed yet, oldest first.
	answers []*answer
	nacks   int // in a row
	// recheckAt is when the server is asked again for NACKed resources; the zero time for never.
	recheckAt time.Time
	// timedOut holds the nonces of responses that were ACKed because of the timeout. In Delta, a
	// NACK that comes later is still sent.
	timedOut map[string]struct{}
}

// lateName is a name that was requested after the first request of its type. A response that it is
// missing from may have been made before the server saw the name.
type lateName struct {
	// until is when the server should have answered. missed is set once a complete response came
	// without the name.
	until  time.Time
	missed bool
}

// answer is the ACK or NACK that a response will get.
type answer struct {
	nonce, version string
	holds          xds.NameSet // see Version
	known          bool
	nack           string // the reason; "" for an ACK
	// at is when the answer is sent at the latest or, once it is known, at the earliest.
	at time.Time
}

// Request is a DiscoveryRequest or a DeltaDiscoveryRequest without its Node, which belongs to the
// stream.
type Request struct {
	Type  string
	Nonce string
	NACK  string // the reason of a NACK; "" for none

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
	if cfg.AckTimeout == 0 {
		cfg.AckTimeout = DefaultAckTimeout
	}
	if cfg.QuietTime == 0 {
		cfg.QuietTime = DefaultQuietTime
	}
	if cfg.AnswerTimeout == 0 {
		cfg.AnswerTimeout = DefaultAnswerTimeout
	}
	if cfg.Silence == 0 {
		cfg.Silence = DefaultSilence
	}
	if cfg.Versions == nil {
		cfg.Versions = make(map[string]Version)
	}
	if cfg.Nacked == nil {
		cfg.Nacked = func(string) []string { return nil }
	}
	if cfg.Rechecks == nil {
		cfg.Rechecks = make(map[string]int)
	}
	if cfg.Held == nil {
		cfg.Held = func(string) map[string]string { return nil }
	}
	return &Session{cfg: cfg, types: make(map[string]*subscription)}
}

// Subscribe changes the subscription of a type: whether it includes the wildcard, the names that
// are added to it, and the names that are dropped from it.
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
			broken:    make(map[string]struct{}),
			timedOut:  make(map[string]struct{}),
		}
		s.types[typeURL] = sub
		at, _ := slices.BinarySearchFunc(s.ordered, typeURL, func(o *subscription, url string) int {
			return xds.CompareTypes(o.url, url)
		})
		s.ordered = slices.Insert(s.ordered, at, sub)
	}
	for _, name := range add {
		if _, ok := sub.names[name]; !ok {
			sub.names[name] = struct{}{}
			sub.noteChange(name, true)
		}
	}
	for _, name := range drop {
		if _, ok := sub.names[name]; ok {
			delete(sub.names, name)
			delete(sub.broken, name)
			delete(sub.awaited, name)
			delete(sub.lateNames, name)
			sub.noteChange(name, false)
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
		// Resources that came while nobody subscribed to them need not be held any more.
		sub.keepsLegacyWildcard, sub.needsNewStream = false, true
	default:
		sub.noteChange(xds.Wildcard, wildcard)
	}
}

// Forget drops the version_info of a type before its first request, because changes of the held
// resources were not tracked without a gap. A server that does not answer a request with a
// current version would hide such changes.
func (s *Session) Forget(typeURL string) { delete(s.cfg.Versions, typeURL) }

// Reopen reports whether the stream should be ended and another one opened, whose first request
// of each type tells the server the whole subscription and, in Delta, the held resources. The
// causes are:
//
//   - A wildcard was added after the first request of its type. Responses that the server sent
//     before it read the request cannot be distinguished from its answer, and the answer would
//     not report resources that were removed while the wildcard was not subscribed.
//   - In SotW, the server was asked late for a resource that is held, and seems not to have it.
//     A held resource is removed only by an answer that cannot be older than the request
//     (design.md I2).
//   - Clients NACKed a held resource, and the server may have gone back to the version before.
//   - A SotW server that was sent only current versions has answered nothing.
//   - AskAgain was called.
func (s *Session) Reopen() bool {
	return s.again || slices.ContainsFunc(s.ordered, func(sub *subscription) bool {
		return sub.needsNewStream || sub.wildcard && sub.started && !sub.sentWildcard
	})
}

// AskAgain makes Reopen return true: the server must be asked once more for resources that it
// removed, since it does not repeat a removal on the same stream (protocol.md 3.5). Config.Held
// returns no version for them, so that the next stream does not claim to hold what the server
// sent.
func (s *Session) AskAgain() { s.again = true }

// noteChange records a change that the server must be told. Before the first request nothing is
// recorded, since that request contains the whole subscription.
func (sub *subscription) noteChange(name string, added bool) {
	if !sub.started {
		return
	}
	sub.renamed = true
	to, from := sub.add, sub.drop
	if !added {
		to, from = from, to
	}
	if _, ok := from[name]; ok {
		delete(from, name)
		return
	}
	to[name] = struct{}{}
}

// Answer processes the clients' ACK or NACK of the response with a nonce; err is nil for an ACK.
// It reports whether the answer comes after the response was ACKed because of the timeout, so
// that a NACK can be sent to the server only in Delta.
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
			sub.nack(a, err.Error(), now)
			s.recheckLater(sub, now)
		}
		return false
	}
	if _, ok := sub.timedOut[nonce]; !ok || err == nil {
		delete(sub.timedOut, nonce)
		return false
	}
	delete(sub.timedOut, nonce)
	s.recheckLater(sub, now)
	if s.cfg.Form == xds.Delta {
		a := &answer{nonce: nonce, known: true, at: now}
		sub.nack(a, err.Error(), now)
		sub.answers = append(sub.answers, a)
	}
	return true
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

// recheck asks the server again for held resources that clients NACKed, if there are any and
// their time has come. In Delta it returns a request that unsubscribes from the names, after
// which they are subscribed to again. That is impossible if a wildcard covers the names, and in
// SotW; then it requests a new stream that names no ACKed version.
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
		if sub.wildcard && sub.sentWildcard && len(sub.broken) == 0 {
			types = append(types, sub.url)
		}
	}
	return types, next
}

// Overdue returns, for each type that has any, the names that the server was asked for and did
// not answer in time, each once, and when Overdue must be called again; the zero time for never.
func (s *Session) Overdue(now time.Time) (updates []*xds.Update, next time.Time) {
	for _, sub := range s.ordered {
		var u *xds.Update
		holds := s.holder(sub)
		for name, at := range sub.awaited {
			if at.After(now) {
				next = wake.Earliest(next, at)
				continue
			}
			delete(sub.awaited, name)
			if u == nil {
				u = &xds.Update{Type: sub.url}
			}
			if !sub.lateNames[name].missed {
				u.Errors = append(u.Errors, xds.ResourceError{Name: name, Err: xds.ErrNoAnswer})
			} else if sub.lost(name, holds) {
				u.Removed = append(u.Removed, name)
			}
		}
		if u == nil {
			continue
		}
		u.Timeout = len(u.Removed) == 0
		slices.Sort(u.Removed)
		if len(u.Errors)+len(u.Removed) > 0 {
			slices.SortFunc(u.Errors, func(a, b xds.ResourceError) int { return strings.Compare(a.Name, b.Name) })
			updates = append(updates, u)
		}
	}
	return updates, next
}

// ask starts to wait for the answer to each name of a request that is not held. A server may be
// silent about held resources on a new stream, but must answer names that are new to it.
func (s *Session) ask(sub *subscription, names []string, held map[string]string, now time.Time) {
	for _, name := range names {
		_, isHeld := held[name]
		_, isAwaited := sub.awaited[name]
		if _, subscribed := sub.names[name]; subscribed && !isHeld && !isAwaited {
			sub.awaited[name] = now.Add(s.cfg.AnswerTimeout)
		}
	}
}

// lost handles a name that was requested late, was missing from a response, and whose timeout has
// passed. It reports whether the name counts as not existing. If the name is held, only a new
// stream can tell.
func (sub *subscription) lost(name string, holds func(string) bool) bool {
	if holds(name) {
		sub.needsNewStream = true
		return false
	}
	delete(sub.lateNames, name)
	delete(sub.awaited, name)
	return true
}

// holder returns a function that reports whether a name is held. It calls Config.Held once, at
// its first call, because there may be as many names to look up as are held.
func (s *Session) holder(sub *subscription) func(name string) bool {
	var held map[string]string
	listed := false
	return func(name string) bool {
		if !listed {
			held, listed = s.cfg.Held(sub.url), true
		}
		_, ok := held[name]
		return ok
	}
}

// resolvedBy ends the wait for a resource, by its name, by an alias or as a member of a
// collection.
func (sub *subscription) resolvedBy(r *xds.Resource) {
	if len(sub.awaited)+len(sub.lateNames) == 0 {
		return
	}
	sub.resolved(r.Name)
	for _, alias := range r.Aliases() {
		sub.resolved(alias)
	}
	if glob := xds.CollectionOf(r.Name); glob != "" {
		sub.resolved(glob)
	}
}

// resolved ends the wait for a name.
func (sub *subscription) resolved(name string) {
	delete(sub.awaited, name)
	delete(sub.lateNames, name)
}

// Next returns the next request to send to the server, or nil, and then when Next must be called
// again even if nothing else happens; the zero time for never.
func (s *Session) Next(now time.Time) (*Request, time.Time) {
	var next time.Time
	for _, sub := range s.ordered {
		var req *Request
		var at time.Time
		if s.cfg.Form == xds.Delta {
			req, at = s.nextDelta(sub, now)
		} else {
			req, at = s.nextSotW(sub, now)
		}
		if req != nil {
			req.Type = sub.url
			return req, time.Time{}
		}
		next = wake.Earliest(next, at)
	}
	return nil, wake.Earliest(next, s.repeatUnanswered(now))
}

// repeatUnanswered requests another stream for a SotW server that has answered nothing. Some
// servers do not answer a request with a current version (protocol.md 7.10), and such a server
// cannot be distinguished from one that hangs. On the new stream one type is requested without a
// version, which the server must answer (protocol.md 1.1).
func (s *Session) repeatUnanswered(now time.Time) (next time.Time) {
	if s.answered || s.must || s.repeatAt.IsZero() {
		return time.Time{}
	}
	if s.repeatAt.After(now) {
		return s.repeatAt
	}
	s.repeatAt = time.Time{}
	for _, sub := range s.begun {
		if sub.certain {
			s.Forget(sub.url)
			sub.needsNewStream = true
			return now
		}
	}
	return time.Time{}
}

// NotModified records that the server answered without a response, because the version in the
// request is current.
func (s *Session) NotModified() { s.answered = true }

// begin records the first request of a type. It returns false if the server must not be asked
// yet, and then until when.
func (s *Session) begin(sub *subscription, now time.Time) (bool, time.Time) {
	if !sub.wildcard && len(sub.names) == 0 {
		return false, time.Time{} // in SotW that would ask for everything (protocol.md 7.9)
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

// Unanswered returns the types that the server was first asked for at or after since and has not
// answered, the last one first; and whether it has answered any other type.
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

// demand makes a first Delta request one that the server must answer: it replaces the version of
// one held resource by Unissued. A server that agrees with everything that is held may be silent
// for ever, and could not be distinguished from one that hangs (protocol.md 3.2, 7.10).
func (s *Session) demand(held map[string]string) {
	if s.must || len(held) == 0 {
		return
	}
	s.must = true
	first := ""
	for name, version := range held {
		if version == Unissued {
			return
		}
		if first == "" || name < first {
			first = name
		}
	}
	held[first] = Unissued
}

// due removes and returns the first answer that must be sent now; if there is none, it returns
// when the next one must be sent.
func (sub *subscription) due(now time.Time) (a *answer, next time.Time) {
	for i, a := range sub.answers {
		if a.at.After(now) {
			next = wake.Earliest(next, a.at)
			continue
		}
		sub.answers = slices.Delete(sub.answers, i, i+1)
		if !a.known {
			sub.timeOut(a)
		}
		if a.nack == "" {
			sub.nacks = 0
		}
		return a, time.Time{}
	}
	return nil, next
}

// timeOut remembers a response that is ACKed before the clients have answered it.
func (sub *subscription) timeOut(a *answer) {
	if len(sub.timedOut) >= 64 {
		clear(sub.timedOut)
	}
	sub.timedOut[a.nonce] = struct{}{}
}

// nextDelta returns the next Delta request of a type.
func (s *Session) nextDelta(sub *subscription, now time.Time) (*Request, time.Time) {
	if !sub.started {
		if begun, until := s.begin(sub, now); !begun {
			return nil, until
		}
		req := &Request{Subscribe: sub.requestNames(), Initial: s.cfg.Held(sub.url)}
		for name, version := range req.Initial {
			if version == "" {
				req.Initial[name] = Unissued
			}
		}
		s.demand(req.Initial)
		s.ask(sub, req.Subscribe, req.Initial, now)
		return req, time.Time{}
	}
	if len(sub.add)+len(sub.drop) > 0 {
		sub.sendWildcard()
		req := &Request{Subscribe: sorted(sub.add), Unsubscribe: sorted(sub.drop)}
		s.ask(sub, req.Subscribe, nil, now)
		clear(sub.add)
		clear(sub.drop)
		return req, time.Time{}
	}
	a, next := sub.due(now)
	if a == nil {
		req, at := s.recheck(sub, now)
		return req, wake.Earliest(next, at)
	}
	return &Request{Nonce: a.nonce, NACK: a.nack}, time.Time{}
}

// nextSotW returns the next SotW request of a type, which always contains all names.
func (s *Session) nextSotW(sub *subscription, now time.Time) (*Request, time.Time) {
	req := &Request{Version: s.cfg.Versions[sub.url].Info, Nonce: sub.nonce}
	if !sub.started {
		if begun, until := s.begin(sub, now); !begun {
			return nil, until
		}
		req.Names = sub.requestNames()
		held := s.cfg.Held(sub.url)
		if !s.cfg.Versions[sub.url].standsFor(sub, req.Names, held) {
			req.Version = ""
		}
		if sub.certain = allHeld(req.Names, held); req.Version == "" && sub.certain {
			s.must = true
		} else if s.repeatAt.IsZero() {
			s.repeatAt = now.Add(s.cfg.Silence)
		}
		s.ask(sub, req.Names, held, now)
		return req, time.Time{}
	}
	a, next := sub.due(now)
	if a == nil && sub.renamed && len(sub.answers) > 0 {
		// A request with other names carries the newest nonce, and so answers that response: with
		// an ACK, or with the NACK that is being delayed, since only error_detail tells them
		// apart (design.md I6, protocol.md 1.3).
		a = sub.answers[len(sub.answers)-1]
		sub.answers = nil
		if !a.known {
			sub.timeOut(a)
		}
		if a.nack == "" {
			sub.nacks = 0
		}
	}
	if a == nil && !sub.renamed {
		req, at := s.recheck(sub, now)
		return req, wake.Earliest(next, at)
	}
	if len(sub.add) > 0 {
		s.ask(sub, sorted(sub.add), nil, now)
		for name := range sub.add {
			if xds.FullState(sub.url) {
				sub.lateNames[name] = lateName{until: now.Add(s.cfg.AnswerTimeout)}
			}
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
	req.Names = sub.requestNames()
	if a != nil && a.nack == "" {
		s.cfg.Versions[sub.url] = Version{a.version, req.Names, a.holds}
	}
	return req, time.Time{}
}

// allHeld reports whether a server must answer a SotW request without a version. It may be silent
// about a name that it does not have, so all names must be held.
func allHeld(names []string, held map[string]string) bool {
	for _, name := range names {
		if _, ok := held[name]; !ok && name != xds.Wildcard {
			return false
		}
	}
	return true
}

// standsFor reports whether a request for names may carry the version, given that some servers do
// not answer a request with a current version. The version must be valid for exactly these names,
// no held resource may have been added or removed by another source since, and every requested
// name must be held, since the server would not repeat that a name does not exist.
func (v Version) standsFor(sub *subscription, names []string, held map[string]string) bool {
	if v.Info == "" || len(held) == 0 || !slices.Equal(v.Names, names) {
		return false
	}
	if xds.FullState(sub.url) && v.Holds != xds.NamesOf(maps.Keys(held)) {
		return false
	}
	for _, name := range names {
		if _, ok := held[name]; !ok && name != xds.Wildcard {
			return false
		}
	}
	for _, version := range held {
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

func sorted(set map[string]struct{}) []string {
	if len(set) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(set))
}

// errUnsolicited is returned for a response of a type that was not asked for. The response is not
// applied, and there is no subscription on which it could be NACKed.
var errUnsolicited = errors.New("response of a type that was not asked for")

func unsolicited(typeURL string) error {
	return fmt.Errorf("%w: %q", errUnsolicited, typeURL)
}
