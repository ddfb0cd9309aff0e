// Package failover decides which of several sources writes to the state (design.md section 4,
// protocol.md 7.12). It is a state machine: its inputs are what happens to the runs of the sources,
// and the time; its outputs are the runs to open, to close and to use.
//
// It promises that:
//   - the first source, in order of priority, that answers is used, and the run of the one before
//     it is closed only then;
//   - the next source takes over after one failed attempt if something that is subscribed to is not
//     held, else after FailoverAfter; sources before the one that is used are tried all the same;
//   - a source that accepts no connection is tried again as soon as it does; one that fails later,
//     after a backoff with full jitter. The backoff starts over when a stream has lived for
//     StableAfter, or when the previous one lost its connection, up to MaxShort times in a row;
//   - a source that is used and silent for StaleAfter is not trusted for ever: a second run of it is
//     opened, and whatever source answers takes over.
//
// It reads no clock, opens nothing and has no lock: its owner calls it under one of its own.
package failover

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

// StableAfter is how long a stream must have lived for its end to count as a first failure. A
// control plane that answers and then ends each stream is asked less and less often.
const StableAfter = 10 * time.Second

// MaxShort is how many streams in a row may lose their connection soon after they were answered
// before that counts as a failure of the server: a load balancer that closes each connection, or
// a control plane that crashes on the requests. Up to that number the server is asked again at
// once each time, since it may have been restarted.
const MaxShort = 30

// LackingPoll is how often a source that waits for FailoverAfter checks whether something is
// missing by now.
const LackingPoll = 100 * time.Millisecond

// Config configures a Machine. All durations but ReconnectSpread are positive.
type Config struct {
	// Sources is how many there are; they are numbered from 0, in order of priority.
	Sources int
	// MinBackoff and MaxBackoff bound the pause before another attempt.
	MinBackoff, MaxBackoff, FailoverAfter time.Duration
	// FirstAnswer is how long a source that was reached may take to answer before that counts as
	// a failed attempt. The attempt continues nevertheless.
	FirstAnswer time.Duration
	// StaleAfter is how long the source that is used may be silent before a second run of it is
	// opened.
	StaleAfter time.Duration
	// ReconnectSpread, if it is not 0, spreads the reconnects of many agents over this duration
	// when a control plane is back.
	ReconnectSpread time.Duration
	// Lacking reports whether something is subscribed to that is not held; Holding whether
	// anything is held that a source could confirm.
	Lacking, Holding func() bool
	// LastMessage returns when a source last sent anything; false if it does not record that.
	LastMessage func(source int) (time.Time, bool)
	// Random returns a random duration below a positive one.
	Random func(time.Duration) time.Duration
}

// Run stands for one run of a source; 0 for none.
type Run int

// End is how a run ended.
type End int

const (
	// Failed: the source failed, or the run was closed.
	Failed End = iota
	// Lost: the connection was lost.
	Lost
	// Unreachable: no address of the source accepted a connection.
	Unreachable
	// Reopen: the source needs another stream. That is not a failure.
	Reopen
	// NotUsed: the source answered, and another one was preferred.
	NotUsed
)

// Op is what an Output asks for or tells.
type Op int

const (
	// Open: the source is to be run.
	Open Op = iota
	// Close: the run is to be ended, and Ended to be called.
	Close
	// Await: Reached is to be called once the source accepts connections again.
	Await
	// Use: the run is the one that writes to the state, from now on.
	Use
	// Connected and Disconnected: a source answers or, with nothing to confirm, has a stream
	// open; or none does any more.
	Connected
	Disconnected
	// AllFailed: every source has failed an attempt, and none answers.
	AllFailed
	// Failure: an attempt ended in a failure.
	Failure
	// Silence: a failure of a run that goes on.
	Silence
	// Another: the run ended for the sake of another one.
	Another
)

// Output is one thing that the machine asks for or tells.
type Output struct {
	Op     Op
	Source int
	Run    Run
	// Of Failure, Silence and Another: why, how many failures in a row that makes, whether the
	// run had answered, and after which pause the next one is opened; 0 for at once.
	Err      error
	Attempts int
	Answered bool
	Pause    time.Duration
}

// State is what is known of one source.
type State struct {
	// Active is set if the source writes to the state.
	Active bool
	// Stale is set if the source is active and has been silent for StaleAfter.
	Stale bool
	// Since is when Active last changed. Attempts counts the failed attempts since the source
	// last answered.
	Since    time.Time
	Attempts int
	// LastError is why the last attempt ended; nil for none.
	LastError error
}

// phase is what a source waits for.
type phase int

const (
	turn    phase = iota // until it is needed
	open                 // until its run ends
	pausing              // until a time
	waiting              // for the source to be reachable
)

// source is one source.
type source struct {
	State
	phase phase
	// first is the run that an attempt consists of, second the one beside it; 0 for none.
	first, second Run
	answered      bool // the first run did
	begun         time.Time
	checkAt       time.Time // of phase open: when to look whether the source is silent; of pausing: its end
	retry         time.Time // no second run is opened before
	// failedSince is when the source began to fail, reached when it was last reached.
	failedSince, reached time.Time
	// failures are those in a row: of attempts of any kind; broken those of a server that was
	// reached; short counts streams in a row that were answered and soon lost.
	failures, broken, short int
	connection              bool // the last failure was that of the connection
}

// Machine is the state of all sources. Make one with New.
type Machine struct {
	cfg     Config
	sources []source
	runs    Run // the last one
	// active is the source that is used, current its run; presumed is a run with an open stream
	// that counts as connected without an answer, because nothing is held. -1 and 0 for none.
	active            int
	current, presumed Run
	out               []Output
}

// New returns a machine that has opened nothing yet: Tick does.
func New(cfg Config, now time.Time) *Machine {
	m := &Machine{cfg: cfg, sources: make([]source, cfg.Sources), active: -1}
	for i := range m.sources {
		m.sources[i].failedSince, m.sources[i].reached = now, now
	}
	return m
}

// State returns what is known of a source.
func (m *Machine) State(i int) State { return m.sources[i].State }

// Active returns the source that is used, -1 for none, and whether it is stale. Presumed reports
// whether another one counts as connected though it has not answered.
func (m *Machine) Active() (i int, stale bool) {
	return m.active, m.active >= 0 && m.sources[m.active].Stale
}
func (m *Machine) Presumed() bool { return m.presumed != 0 }

// Outputs returns what came out of the inputs since the last call, in order.
func (m *Machine) Outputs() []Output {
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) put(o Output) { m.out = append(m.out, o) }

// Tick takes in the time, and returns when it is to be called again; the zero time for not before
// another input. After every other input it must be called too.
func (m *Machine) Tick(now time.Time) (next time.Time) {
	for i := range m.sources {
		s := &m.sources[i]
		if s.phase == pausing && !s.checkAt.After(now) {
			m.tryAgain(now, i)
		}
		at := time.Time{}
		switch s.phase {
		case turn:
			at = m.checkTurn(now, i)
		case open:
			m.checkSilence(now, i)
		}
		if s.phase == open || s.phase == pausing {
			at = s.checkAt
		}
		next = wake.Earliest(next, at)
	}
	return next
}

// checkTurn opens a source if it is needed: no source before it is used, each of these has failed,
// and either something is missing or FailoverAfter has passed. Otherwise it returns when that may
// be; the zero time for not before another input.
func (m *Machine) checkTurn(now time.Time, i int) time.Time {
	ready, since := m.active < 0 || m.active >= i || m.sources[m.active].Stale, m.sources[i].failedSince
	for j := range i {
		ready = ready && m.sources[j].Attempts > 0
		if at := m.sources[j].Since; at.After(since) {
			since = at
		}
	}
	switch {
	case i > 0 && !ready:
		return time.Time{}
	case i == 0 || m.cfg.Lacking() || now.Sub(since) >= m.cfg.FailoverAfter:
		m.open(now, i)
		return time.Time{}
	}
	return now.Add(min(LackingPoll, since.Add(m.cfg.FailoverAfter).Sub(now)))
}

// tryAgain begins another attempt of a source, when it is its turn.
func (m *Machine) tryAgain(now time.Time, i int) {
	m.sources[i].phase = turn
	m.checkTurn(now, i)
}

// open begins an attempt.
func (m *Machine) open(now time.Time, i int) {
	s := &m.sources[i]
	s.phase, s.answered, s.begun, s.retry = open, false, now, time.Time{}
	s.checkAt = now.Add(min(m.cfg.FirstAnswer, m.cfg.StaleAfter))
	s.first = m.run(i)
}

// run opens a run.
func (m *Machine) run(i int) Run {
	m.runs++
	m.put(Output{Op: Open, Source: i, Run: m.runs})
	return m.runs
}

// checkSilence acts on a source that has been silent for too long.
func (m *Machine) checkSilence(now time.Time, i int) {
	s := &m.sources[i]
	if s.checkAt.After(now) {
		return
	}
	if next := m.silentAt(now, i); next.After(now) {
		s.Stale, s.checkAt = false, next
		return
	}
	s.checkAt = now.Add(m.cfg.FirstAnswer)
	switch {
	case !s.answered:
		m.unanswered(i)
	case s.second != 0:
		m.silence(i, fmt.Errorf("a second stream, since nothing has come for %s: no answer for %s", m.cfg.StaleAfter, m.cfg.FirstAnswer))
	case !s.retry.After(now):
		s.Stale = m.active == i // any source that answers may take over from it
		s.second = m.run(i)
	}
}

// silentAt returns the time at which a run will have been silent for FirstAnswer or, once it has
// answered, for StaleAfter.
func (m *Machine) silentAt(now time.Time, i int) time.Time {
	s := &m.sources[i]
	if !s.answered {
		return s.begun.Add(m.cfg.FirstAnswer)
	}
	last, ok := m.cfg.LastMessage(i)
	switch {
	case !ok:
		last = now
	case s.Since.After(last):
		last = s.Since
	}
	return last.Add(m.cfg.StaleAfter)
}

// unanswered handles a source that was reached and has been silent for FirstAnswer. If nothing is
// held, the source may have nothing to send, and counts as connected.
func (m *Machine) unanswered(i int) {
	if m.cfg.Holding() {
		m.silence(i, fmt.Errorf("no answer for %s", m.cfg.FirstAnswer))
		return
	}
	presume := m.active < 0 && m.presumed == 0
	if presume {
		m.presumed = m.sources[i].first
	}
	m.silence(i, fmt.Errorf("no answer for %s; nothing is held that it could confirm", m.cfg.FirstAnswer))
	if presume {
		m.put(Output{Op: Connected, Source: i})
	}
}

// silence counts a failure of a source whose run goes on.
func (m *Machine) silence(i int, err error) {
	n := m.fail(i, err)
	m.put(Output{Op: Silence, Source: i, Err: err, Attempts: n})
	m.tellIfAllFailed()
}

// fail counts a failure of a source, and returns how many there have been since it last answered.
func (m *Machine) fail(i int, err error) int {
	s := &m.sources[i]
	s.Attempts++
	s.LastError = err
	return s.Attempts
}

func (m *Machine) tellIfAllFailed() {
	if m.active < 0 && !slices.ContainsFunc(m.sources, func(s source) bool { return s.Attempts == 0 }) {
		m.put(Output{Op: AllFailed})
	}
}

// Answered takes in that a run has answered for the first time. use reports whether it is the one
// that writes from now on; if not, it is to end, as NotUsed. The run that wrote before is closed
// and must have ended before this one writes.
func (m *Machine) Answered(now time.Time, i int, r Run) (use bool) {
	s := &m.sources[i]
	if r != s.first && r != s.second || m.active >= 0 && m.active < i && !m.sources[m.active].Stale {
		return false
	}
	previous, before := m.current, m.active
	if r == s.second {
		s.first, s.second = r, 0
	}
	m.active, m.current, m.presumed, s.answered = i, r, 0, true
	for j := range m.sources {
		if other := &m.sources[j]; other.Active != (j == i) {
			other.Active, other.Since = j == i, now
		}
		m.sources[j].Stale = false
	}
	s.Attempts, s.LastError = 0, nil
	if previous != 0 {
		m.put(Output{Op: Close, Source: before, Run: previous})
	}
	m.put(Output{Op: Use, Source: i, Run: r})
	m.put(Output{Op: Connected, Source: i})
	return true
}

// Ended takes in that a run has ended, how and why.
func (m *Machine) Ended(now time.Time, i int, r Run, how End, err error) {
	s := &m.sources[i]
	switch r {
	case s.first:
	case s.second:
		s.second, s.retry, s.checkAt = 0, now.Add(m.cfg.MaxBackoff), now.Add(m.cfg.MaxBackoff)
		m.silence(i, fmt.Errorf("a second stream, since nothing has come for %s: %w", m.cfg.StaleAfter, err))
		return
	default:
		return // another run of the source has taken over
	}
	answered := s.answered
	if answered && m.active >= 0 && m.active < i {
		how = NotUsed
	}
	m.noteEnd(now, i, r, how, err)
	if answered {
		m.resetBackoff(now, s)
	}
	s.connection = how == Unreachable || how == Lost
	second := s.second
	s.first, s.second = 0, 0
	switch {
	case second == 0:
		m.nextAttempt(now, i, how, answered, err)
	case how == NotUsed:
		m.put(Output{Op: Close, Source: i, Run: second})
		m.tryAgain(now, i)
	default: // the second run is the attempt now
		s.first, s.answered, s.begun, s.checkAt = second, false, now, now.Add(m.cfg.FirstAnswer)
		s.failures++
		m.put(Output{Op: Failure, Source: i, Err: err, Attempts: s.failures, Answered: answered})
	}
}

// noteEnd takes in the end of a run in the state of its source.
func (m *Machine) noteEnd(now time.Time, i int, r Run, how End, err error) {
	s := &m.sources[i]
	switch how {
	case NotUsed:
		s.Attempts, s.LastError = 0, nil // it answered, and waits for its turn
	case Reopen: // it did not fail
	default:
		m.fail(i, err)
	}
	disconnected := m.presumed == r || m.current == r
	if m.presumed == r {
		m.presumed = 0
	}
	if m.current == r {
		m.active, m.current = -1, 0
		s.Active, s.Stale, s.Since, s.Attempts = false, false, now, 0 // the loss is not a failed attempt
	}
	if disconnected {
		m.put(Output{Op: Disconnected, Source: i})
	}
	m.tellIfAllFailed()
}

// resetBackoff takes in the end of a run that had answered.
func (m *Machine) resetBackoff(now time.Time, s *source) {
	s.failures, s.failedSince = 0, now
	switch {
	case now.Sub(s.begun) >= StableAfter:
		s.broken, s.short = 0, 0
	case s.connection && s.short < MaxShort:
		s.broken = 0
	}
	s.short++
}

// nextAttempt decides when a source is tried again whose attempt has ended.
func (m *Machine) nextAttempt(now time.Time, i int, how End, answered bool, err error) {
	s := &m.sources[i]
	switch how {
	case NotUsed:
		m.tryAgain(now, i)
		return
	case Reopen:
		m.put(Output{Op: Another, Source: i, Err: err})
		if answered {
			m.open(now, i)
		} else {
			m.tryAgain(now, i)
		}
		return
	}
	s.failures++
	failure := Output{Op: Failure, Source: i, Err: err, Attempts: s.failures, Answered: answered}
	if how == Unreachable {
		s.short, s.phase, failure.Answered = 0, waiting, false
		m.put(failure)
		m.put(Output{Op: Await, Source: i, Err: err})
		return
	}
	s.reached = now
	if s.broken++; answered && s.broken > 1 {
		m.fail(i, err) // each of its streams ends soon
		m.tellIfAllFailed()
	}
	failure.Pause = m.pause(s.broken)
	m.put(failure)
	s.phase, s.checkAt = pausing, now.Add(failure.Pause)
}

// pause returns a random wait before attempt n+1: full jitter below a bound that doubles from
// MinBackoff to MaxBackoff.
func (m *Machine) pause(n int) time.Duration {
	bound := m.cfg.MinBackoff << min(n-1, 20)
	if bound <= 0 || bound > m.cfg.MaxBackoff {
		bound = m.cfg.MaxBackoff
	}
	return m.cfg.Random(max(bound, m.cfg.ReconnectSpread)) + time.Millisecond
}

// ReachedAt returns when a source was last reached.
func (m *Machine) ReachedAt(i int) time.Time { return m.sources[i].reached }

// Reached takes in that what Await asks for is over: the source accepts connections again or, if
// accepts is false, its name must be looked up again.
func (m *Machine) Reached(now time.Time, i int, accepts bool) {
	if accepts && m.cfg.ReconnectSpread > 0 {
		m.sources[i].phase, m.sources[i].checkAt = pausing, now.Add(m.cfg.Random(m.cfg.ReconnectSpread))
		return
	}
	m.tryAgain(now, i)
}
