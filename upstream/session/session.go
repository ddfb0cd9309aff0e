package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Defaults of Config.
const (
	// DefaultAckTimeout is how long an ACK waits for the clients' verdict:
	// Envoy withholds its own while a cluster warms (design.md I6, protocol.md V2).
	DefaultAckTimeout = time.Second
	// DefaultQuietTime is how long a Delta wildcard must be quiet after a response
	// to count as complete (design.md section 3, protocol.md 7.7).
	DefaultQuietTime = 500 * time.Millisecond
	// maxQuietTime is after how long it counts as complete though it was never quiet: where
	// something changes all the time.
	maxQuietTime = 2 * time.Second
	// DefaultAnswerTimeout is how long a server has for a name that it was asked
	// for, before that counts as not existing (gRFC A57, protocol.md 5.3).
	DefaultAnswerTimeout = 15 * time.Second
	// DefaultSilence is how long a SotW server may say nothing on a new stream that has
	// told it the versions of everything, before it is asked on another without one.
	DefaultSilence = 5 * time.Second
)

// A control plane that answers a NACK with what was refused is answered after a
// growing pause, not in a loop (design.md I6).
const (
	minNackPause = time.Second
	maxNackPause = 30 * time.Second
)

// A server that goes back to what was ACKed before says nothing of that to a client that
// refused what came in between. So it is asked again for what is held and refused, after a
// pause that grows.
const (
	minRecheckPause = 5 * time.Second
	maxRecheckPause = 10 * time.Minute
)

// maxReasonBytes bounds the reason of a NACK that this side makes up: an
// error_detail travels in one message and in logs.
const maxReasonBytes = 4 << 10

// Unissued is the version that tells a server that it did not give what is held:
// it then sends the resource again, or reports it removed (design.md I2).
const Unissued = "holdfast:not-from-this-server"

// Config configures a Session; zero values take the defaults.
type Config struct {
	Form          xds.Form
	AckTimeout    time.Duration
	QuietTime     time.Duration
	AnswerTimeout time.Duration
	Silence       time.Duration
	// NotBefore are times before which the server is not asked for a type, by type; nil for
	// none.
	NotBefore map[string]time.Time
	// Versions holds, by type, what this server's SotW responses last had as
	// version_info when they were ACKed. The session keeps it up to date, so that
	// the next stream can start with it.
	Versions map[string]Version
	// Held returns what is held and still subscribed of a type, with the version
	// that this server issued, "" for none.
	Held func(typeURL string) map[string]string
	// Nacked returns the names of what this server gave, and is held, and clients refused;
	// nil for a session that never asks again. Rechecks counts, by type, how often the
	// server was asked again for such names. The session keeps it up to date, so that the
	// next stream goes on with it.
	Nacked   func(typeURL string) []string
	Rechecks map[string]int
}

// Version is a version_info, and what it stands for: the names of the request that
// it answered, for others it says nothing; and, of a full-state type, the names of
// the resources that it came with.
type Version struct {
	Info  string
	Names []string
	Holds xds.NameSet
}

// Session is the machine of one stream.
type Session struct {
	cfg     Config
	types   map[string]*subscription
	ordered []*subscription // by xds.CompareTypes
	begun   []*subscription // in the order in which the server was first asked

	// answered says that the server has said something; must that it was asked for something
	// that it must answer, whatever it believes this side to hold; and silentAt is when it is
	// asked in another way if neither holds, the zero time for never.
	answered, must bool
	repeatAt       time.Time
	// again: the server is to be asked for everything on another stream.
	again bool
}

// subscription is one type on the stream.
type subscription struct {
	url string
	// What is wanted, and what the server was told of it.
	names    map[string]struct{}
	wildcard bool
	started  bool
	begunAt  time.Time // of the first request
	certain  bool      // SotW: the server must answer it, if it says no version
	explicit bool      // the server was told names, or "*"
	// toldAll: the server was told that everything is wanted. kept: SotW's legacy
	// wildcard, which cannot be given up, since to name nothing is to say it again.
	sentWildcard, keepsLegacyWildcard bool
	add                               map[string]struct{} // Delta: not told yet
	drop                              map[string]struct{}
	renamed                           bool // SotW: the names changed since they were told
	// unsure: only a new stream can tell what became of something; see Reopen.
	needsNewStream bool
	// awaited are names that the server was told and has said nothing of, with the
	// time until which it should.
	awaited map[string]time.Time

	// What the server said.
	nonce  string
	late   map[string]late     // SotW, full-state: names that were told later than first, and were in no response
	broken map[string]struct{} // names that came malformed and not yet well
	// Delta wildcard: complete when settleAt passes, which is settleBy at the latest.
	completeAt, completeBy time.Time

	// read is what the last response was read as: SotW.
	read     readings
	answered bool // there has been one

	// Responses without an answer, oldest first.
	answers []*answer
	nacks   int // in a row
	// recheckAt is when the server is asked again for what was refused; the zero time for
	// never.
	recheckAt time.Time
	// answered maps nonces that were ACKed for lack of time to nothing; a NACK
	// that comes late is told in Delta.
	timedOut map[string]struct{}
}

// late is a name that the server was told later than in the first request of its
// type: a response that it is missing from may have been made before that.
type late struct {
	// until is when the server should have answered; missed: a complete response
	// came without it.
	until  time.Time
	missed bool
}

// answer is what a response will get.
type answer struct {
	nonce, version string
	holds          xds.NameSet // see Version
	known          bool
	nack           string // the reason; "" for an ACK
	// at is when the answer is due at the latest or, once it is known, at the
	// earliest.
	at time.Time
}

// Request is a DiscoveryRequest or a DeltaDiscoveryRequest without its Node,
// which belongs to the stream.
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

// New returns the machine of a stream that was just opened.
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

// Subscribe takes in a change of interest: whether everything of a type is wanted,
// and the names that are wanted now and were not, and the opposite.
func (s *Session) Subscribe(typeURL string, wildcard bool, add, drop []string) {
	sub := s.types[typeURL]
	if sub == nil {
		sub = &subscription{
			url:      typeURL,
			names:    make(map[string]struct{}),
			add:      make(map[string]struct{}),
			drop:     make(map[string]struct{}),
			awaited:  make(map[string]time.Time),
			late:     make(map[string]late),
			broken:   make(map[string]struct{}),
			timedOut: make(map[string]struct{}),
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
			delete(sub.late, name)
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
		// What came while nobody wanted it need not be held any more.
		sub.keepsLegacyWildcard, sub.needsNewStream = false, true
	default:
		sub.noteChange(xds.Wildcard, wildcard)
	}
}

// Forget drops the version_info of a type, before its first request: what it stood
// for was not followed all the time since. A server that skips what is current would
// leave that unknown.
func (s *Session) Forget(typeURL string) { delete(s.cfg.Versions, typeURL) }

// Reopen reports whether the stream should be ended and another opened, whose first
// request of each type tells the server all that is wanted, and in Delta what is
// held. There are several causes. A wildcard is wanted of which this stream was told
// later than first: its answer could not be told from those that were under way, and
// would not speak of what went while it was not wanted. Or the server was asked
// late, in SotW, for something that is held, and seems not to have it: what is held
// goes by an answer only that cannot be older than the request (design.md I2). Or clients
// refuse what is held, and the server may have gone back to what it sent before. Or a SotW
// server that was told only what is current has said nothing. Or AskAgain was called.
func (s *Session) Reopen() bool {
	return s.again || slices.ContainsFunc(s.ordered, func(sub *subscription) bool {
		return sub.needsNewStream || sub.wildcard && sub.started && !sub.sentWildcard
	})
}

// AskAgain makes Reopen hold: what the server has removed is to be asked for once more, of
// which it says nothing on a stream on which it has said that (protocol.md 3.5). Config.Held
// gives no version of it, so that the next stream does not say that it is held as it is.
func (s *Session) AskAgain() { s.again = true }

// noteChange notes what the server must be told; before the first request that is
// everything.
func (sub *subscription) noteChange(name string, wanted bool) {
	if !sub.started {
		return
	}
	sub.renamed = true
	to, from := sub.add, sub.drop
	if !wanted {
		to, from = from, to
	}
	if _, ok := from[name]; ok {
		delete(from, name)
		return
	}
	to[name] = struct{}{}
}

// Answer takes in what the clients made of the response with a nonce: nil for
// an ACK. It reports whether that comes after the response was ACKed for lack of
// time, so that it can be told to the server only in Delta.
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

// nack makes an answer a NACK. The second in a row and later ones wait.
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

// recheckLater makes the server be asked again for what is refused, after a pause.
func (s *Session) recheckLater(sub *subscription, now time.Time) {
	if sub.recheckAt.IsZero() {
		sub.recheckAt = now.Add(min(minRecheckPause<<min(s.cfg.Rechecks[sub.url], 10), maxRecheckPause))
	}
}

// recheck asks the server again for what is held and refused, if there still is anything
// and its time has come: in Delta by a request that gives the names up, after which they
// are subscribed to again; where that does not work, because a wildcard covers them or
// SotW knows no such request, by a new stream that says nothing of an accepted version.
func (s *Session) recheck(sub *subscription, now time.Time) (req *Request, wake time.Time) {
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
		_, wanted := sub.names[name]
		byName = byName && wanted
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

// Completed returns the types whose wildcard the server has told completely, each
// once, and when Settled should be asked again; the zero time for never.
func (s *Session) Completed(now time.Time) (types []string, wake time.Time) {
	for _, sub := range s.ordered {
		if sub.completeAt.IsZero() {
			continue
		}
		if sub.completeAt.After(now) {
			wake = earlier(wake, sub.completeAt)
			continue
		}
		sub.completeAt, sub.completeBy = time.Time{}, time.Time{}
		if sub.wildcard && sub.sentWildcard && len(sub.broken) == 0 {
			types = append(types, sub.url)
		}
	}
	return types, wake
}

// Overdue returns, for each type that has any, the names that the server was asked
// for and has not spoken of in time, each once, and when Overdue should be asked
// again; the zero time for never.
func (s *Session) Overdue(now time.Time) (updates []*xds.Update, wake time.Time) {
	for _, sub := range s.ordered {
		var u *xds.Update
		holds := s.holder(sub)
		for name, at := range sub.awaited {
			if at.After(now) {
				wake = earlier(wake, at)
				continue
			}
			delete(sub.awaited, name)
			if u == nil {
				u = &xds.Update{Type: sub.url}
			}
			if !sub.late[name].missed {
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
	return updates, wake
}

// ask begins to wait for what a request asks for. Of what is held a server may say
// nothing on a new stream; names that are new to it it must answer.
func (s *Session) ask(sub *subscription, names []string, held map[string]string, now time.Time) {
	for _, name := range names {
		_, has := held[name]
		_, waits := sub.awaited[name]
		if _, wanted := sub.names[name]; wanted && !has && !waits {
			sub.awaited[name] = now.Add(s.cfg.AnswerTimeout)
		}
	}
}

// lost takes in that a name which was told late was missing from a response, and the
// server has had its time. It reports whether the name counts as not existing; of
// what is held a new stream must tell.
func (sub *subscription) lost(name string, holds func(string) bool) bool {
	if holds(name) {
		sub.needsNewStream = true
		return false
	}
	delete(sub.late, name)
	delete(sub.awaited, name)
	return true
}

// holder returns a function that reports whether a name is held. What is held is listed at its
// first call, and once only: there may be as many names to look up.
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

// resolvedBy ends the wait for a resource, by its name, by an alias or as a member
// of a collection.
func (sub *subscription) resolvedBy(r *xds.Resource) {
	if len(sub.awaited)+len(sub.late) == 0 {
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
	delete(sub.late, name)
}

// Next returns the next request that the server is owed, or nil, and then when
// Next must be called again though nothing came in; the zero time for never.
func (s *Session) Next(now time.Time) (*Request, time.Time) {
	var wake time.Time
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
		wake = earlier(wake, at)
	}
	return nil, earlier(wake, s.repeatUnanswered(now))
}

// repeatUnanswered makes a SotW server be asked again, on another stream, that has said nothing: some
// servers do not answer a request with a version that is current (protocol.md 7.10), which
// cannot be told from one that hangs. One type is asked for without a version there, which
// must be answered (protocol.md 1.1).
func (s *Session) repeatUnanswered(now time.Time) (wake time.Time) {
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

// NotModified takes in that the server has answered without a response: what it was told is
// current.
func (s *Session) NotModified() { s.answered = true }

// begin notes that a type is asked for the first time. It returns false while the server
// must not be asked, and then until when.
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

// Unanswered returns the types that the server was first asked for since a time and has not
// answered, the last one first; and whether it has answered any other.
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

// Subscribed returns the names of a type that are wanted, sorted, without a wildcard.
func (s *Session) Subscribed(typeURL string) []string {
	if sub := s.types[typeURL]; sub != nil {
		return slices.Sorted(maps.Keys(sub.names))
	}
	return nil
}

// demand makes a first Delta request one that the server must answer: of one resource that
// is held it is told a version that it did not issue. A server that agrees with everything
// else may be silent for ever, which could not be told from one that hangs (protocol.md
// 3.2, 7.10).
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

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// due takes the answer out that is due first, or returns when one will be.
func (sub *subscription) due(now time.Time) (a *answer, wake time.Time) {
	for i, a := range sub.answers {
		if a.at.After(now) {
			wake = earlier(wake, a.at)
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
	return nil, wake
}

// timeOut remembers a response that is ACKed before its verdict is known.
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
	a, wake := sub.due(now)
	if a == nil {
		req, at := s.recheck(sub, now)
		return req, earlier(wake, at)
	}
	return &Request{Nonce: a.nonce, NACK: a.nack}, time.Time{}
}

// nextSotW returns the next SotW request of a type. Each one names everything.
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
	a, wake := sub.due(now)
	if a == nil && sub.renamed && len(sub.answers) > 0 {
		// The request for other names carries the newest nonce, and so is its
		// answer: the ACK, or the NACK that waits for its time, since only
		// error_detail tells them apart (design.md I6, protocol.md 1.3).
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
		return req, earlier(wake, at)
	}
	if len(sub.add) > 0 {
		s.ask(sub, sorted(sub.add), nil, now)
		for name := range sub.add {
			if xds.FullState(sub.url) {
				sub.late[name] = late{until: now.Add(s.cfg.AnswerTimeout)}
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

// allHeld reports whether a server must answer a SotW request without a version: of a name that
// it does not have it may be silent.
func allHeld(names []string, held map[string]string) bool {
	for _, name := range names {
		if _, ok := held[name]; !ok && name != xds.Wildcard {
			return false
		}
	}
	return true
}

// standsFor reports whether a server that skips what is current may be told a
// version with a request for names: it must stand for just these, nothing that is
// held may have come or gone by another source since, and everything that is asked
// for must be held, since of what does not exist it would not say that again.
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

// sendWildcard notes whether the server is told now that everything is wanted.
func (sub *subscription) sendWildcard() {
	if sub.keepsLegacyWildcard && len(sub.names) == 0 {
		return // it cannot be told otherwise
	}
	sub.sentWildcard, sub.keepsLegacyWildcard = sub.wildcard, false
}

// requestNames returns the names of a request that asks for all that is wanted. A
// wildcard by itself is said by naming nothing, where the type has that and
// nothing was ever named (protocol.md 2.1, 2.3).
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

// Unsolicited says that a server sent a type that was not asked for. It is not
// applied, and has no subscription to NACK it on.
var errUnsolicited = errors.New("response of a type that was not asked for")

func unsolicited(typeURL string) error {
	return fmt.Errorf("%w: %q", errUnsolicited, typeURL)
}
