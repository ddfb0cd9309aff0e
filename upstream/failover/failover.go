// Package failover decides which of several sources writes to the state (design.md section 4,
// protocol.md 7.12). It is a state machine: its inputs are the time and the events of the sources'
// runs; its outputs are the runs to open, to close and to use.
//
// It promises that:
//   - of the sources that answer, the one with the highest priority is used. The previous run is
//     closed only when its successor has answered;
//   - the next source is opened after one failed attempt if a subscribed resource is not cached,
//     otherwise after FailoverAfter. Sources of a higher priority than the active one are retried
//     all the time;
//   - a source that accepts no connection is retried as soon as it accepts one. A source that fails
//     later is retried after a backoff with full jitter. The backoff starts over after a stream that
//     lived for StableAfter; and after a lost connection, up to MaxShort times in a row;
//   - a source that asks for another stream, because it stops or to balance its clients, has not failed: it stays
//     active while the next run is opened, at once, and is lost when that run fails;
//   - a source that loses its connection before it answers is retried within MaxLost: a load balancer may have nothing behind it yet;
//   - while a source that has several addresses does not answer, a second run of it is opened, which goes to another one;
//   - a source that has no room for this client is retried after the time that it names, and the next source is
//     opened at once;
//   - when the active source has been silent for StaleAfter, a second run of it is opened, and the
//     first source that answers takes over, whatever its priority.
//
// It has no clock, no lock and does no I/O. A Machine is not safe for concurrent use.
package failover

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

// StableAfter is how long a stream must have lived for the backoff to start over at its end.
const StableAfter = 10 * time.Second

// MaxShort is how many streams in a row may lose their connection soon after their first response.
// Up to that number the server may have been restarted, and the backoff starts over. More are a
// failure of the server: a load balancer that closes each connection, or a control plane that
// crashes on the requests.
const MaxShort = 30

// MaxLost bounds the pause after an attempt that lost its connection before it was answered.
const MaxLost = 5 * time.Second

// MaxFull bounds the time for which a source that has no room asks its client to stay away. Up to half as much again is
// added at random, so that the clients that were sent away do not come back together.
const MaxFull = 5 * time.Minute

// LackingPoll is how often Config.Lacking is called while a source waits for FailoverAfter.
const LackingPoll = 100 * time.Millisecond

// Timing has the durations of a Machine.
type Timing struct {
	// MinBackoff and MaxBackoff bound the pause before another attempt.
	MinBackoff, MaxBackoff time.Duration
	// FailoverAfter is how long the sources of a higher priority must have failed before the next
	// one is opened while no subscribed resource is missing.
	FailoverAfter time.Duration
	// FirstAnswer is how long a source that was reached may take to answer before that counts as
	// a failed attempt. The attempt continues nevertheless.
	FirstAnswer time.Duration
	// StaleAfter is how long the active source may be silent before a second run of it is opened.
	StaleAfter time.Duration
	// ReconnectSpread spreads the reconnects of many agents when a control plane is back: each
	// waits for a random part of it.
	ReconnectSpread time.Duration
}

// Config configures a Machine. All durations except ReconnectSpread must be positive.
type Config struct {
	// Sources is the number of sources. They are numbered from 0, in order of priority.
	Sources int
	Timing
	// Lacking reports whether any subscribed resource is not cached; Holding whether any resource
	// is cached that a source could confirm.
	Lacking, Holding func() bool
	// LastMessage returns when a source last sent anything; false if it does not record that.
	LastMessage func(source int) (time.Time, bool)
	// Several reports whether a source has another address than that of its newest run; nil for no.
	Several func(source int) bool
	// Random returns a random duration below a positive one.
	Random func(time.Duration) time.Duration
}

// Run identifies one run of a source; 0 is no run.
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
	// Moved: the source asks for another stream, though this one worked. That is not a failure.
	Moved
	// Full: the source has no room for this client.
	Full
	// NotUsed: the source answered while a source of a higher priority was active.
	NotUsed
)

// Op is the kind of an Output. Open, Close and Await are actions that the caller must perform; the
// others are events.
type Op int

const (
	// Open: run the source.
	Open Op = iota
	// Close: end the run, wait until it has ended, and call Ended.
	Close
	// Await: call Reached once the source accepts connections again.
	Await
	// Use: from now on this run writes to the state.
	Use
	// Connected: a source has answered, or has an open stream while nothing is cached that it could
	// confirm. Disconnected: there is no such source any more.
	Connected
	Disconnected
	// AllFailed: every source has failed an attempt, and none is active.
	AllFailed
	// Failure: an attempt failed.
	Failure
	// Silence: an attempt counts as failed because the source is silent. Its run continues.
	Silence
	// Another: a run ended so that another run of the source is opened.
	Another
)

// Output is an action that the caller must perform, or an event.
type Output struct {
	Op     Op
	Source int
	Run    Run
	// Err is the reason of Failure, Silence, Another and Await. Attempts counts the failures in a
	// row up to this one. Answered is set if the failed run had answered. Pause is how long the
	// source waits until its next run.
	Err      error
	Attempts int
	Answered bool
	Pause    time.Duration
	// Reached is when the source of an Await was last reached.
	Reached time.Time
}

// State describes one source.
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
	standby     phase = iota // until the source is needed
	open                     // until its run ends
	pausing                  // until checkAt
	unreachable              // until Reached is called
)

type source struct {
	State
	phase phase
	// first is the run of the current attempt. second is the run that was opened because first was
	// silent for StaleAfter, or does not answer. Both are 0 if there is none.
	first, second Run
	answered      bool      // first has answered
	begun         time.Time // when first was opened
	checkAt       time.Time // of silence, in phase open; the end of the pause, in phase pausing
	secondAfter   time.Time // no second run is opened before
	// failedSince is when the source began to fail, reached when it was last reached.
	failedSince, reached time.Time
	// failures counts the failed attempts in a row, backoff those of them that were reached.
	// short counts the streams in a row that answered and did not live for StableAfter.
	failures, backoff, short int
	lost                     bool // the last attempt failed because of its connection
	full                     bool // the last attempt that ended was Full
}

// Machine is the state of all sources. Create one with New.
type Machine struct {
	cfg     Config
	sources []source
	runs    Run // the newest run
	// active is the source that is used, -1 for none, and current its run. presumed is a run that
	// counts as connected although it has not answered (see unanswered). Both runs are 0 for none.
	active            int
	current, presumed Run
	out               []Output
}

// New returns a machine that has not opened any source yet. The first Tick opens one.
func New(cfg Config, now time.Time) *Machine {
	m := &Machine{cfg: cfg, sources: make([]source, cfg.Sources), active: -1}
	for i := range m.sources {
		m.sources[i].failedSince, m.sources[i].reached = now, now
	}
	return m
}

// State describes a source.
func (m *Machine) State(i int) State { return m.sources[i].State }

// Active returns the source that is used, -1 for none, and whether it is stale.
func (m *Machine) Active() (i int, stale bool) {
	return m.active, m.active >= 0 && m.sources[m.active].Stale
}

// Presumed reports whether a source counts as connected although it has not answered.
func (m *Machine) Presumed() bool { return m.presumed != 0 }

// Outputs returns the outputs since the last call, in order.
func (m *Machine) Outputs() []Output {
	out := m.out
	m.out = nil
	return out
}

func (m *Machine) emit(o Output) { m.out = append(m.out, o) }

// Tick processes the time. It must be called after every other input too. It returns when it must
// be called again; the zero time means after the next input.
func (m *Machine) Tick(now time.Time) (next time.Time) {
	for i := range m.sources {
		s := &m.sources[i]
		if s.phase == pausing && !s.checkAt.After(now) {
			m.retry(now, i)
		}
		at := time.Time{}
		switch s.phase {
		case standby:
			at = m.openIfNeeded(now, i)
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

// openIfNeeded opens a source if none of a higher priority is active, each of those has failed, and
// either something is missing or FailoverAfter has passed. Otherwise it returns when to check again.
func (m *Machine) openIfNeeded(now time.Time, i int) time.Time {
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
	case i == 0 || m.sources[i-1].full || m.cfg.Lacking() || now.Sub(since) >= m.cfg.FailoverAfter:
		m.open(now, i)
		return time.Time{}
	}
	return now.Add(min(LackingPoll, since.Add(m.cfg.FailoverAfter).Sub(now)))
}

// retry opens a source again once it is needed.
func (m *Machine) retry(now time.Time, i int) {
	m.sources[i].phase = standby
	m.openIfNeeded(now, i)
}

func (m *Machine) open(now time.Time, i int) {
	s := &m.sources[i]
	s.phase, s.answered, s.begun, s.secondAfter = open, false, now, time.Time{}
	s.checkAt = now.Add(min(m.cfg.FirstAnswer, m.cfg.StaleAfter))
	s.first = m.run(i)
}

func (m *Machine) run(i int) Run {
	m.runs++
	m.emit(Output{Op: Open, Source: i, Run: m.runs})
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
		m.unanswered(now, i)
		m.tryAnother(now, i)
	case s.second != 0:
		m.silence(i, fmt.Errorf("a second stream, since nothing has come for %s: no answer for %s", m.cfg.StaleAfter, m.cfg.FirstAnswer))
	case !s.secondAfter.After(now):
		s.Stale = m.active == i // any source that answers may take over from it
		s.second = m.run(i)
	}
}

// tryAnother opens a second run of a source that does not answer, if it has another address. One that does not answer either is closed.
func (m *Machine) tryAnother(now time.Time, i int) {
	s := &m.sources[i]
	switch {
	case s.second != 0:
		m.emit(Output{Op: Close, Source: i, Run: s.second})
		s.second, s.secondAfter = 0, now.Add(m.cfg.MaxBackoff)
	case !s.secondAfter.After(now) && m.cfg.Several != nil && m.cfg.Several(i):
		s.second = m.run(i)
	}
}

// silentAt returns when a run will have been silent for FirstAnswer or, after an answer, StaleAfter.
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

// unanswered processes that a source was reached and has been silent for FirstAnswer. If nothing is
// cached that it could confirm, it may have nothing to send, and counts as connected.
func (m *Machine) unanswered(now time.Time, i int) {
	if m.isMoving(i) {
		m.lose(now, i)
	}
	if m.cfg.Holding() {
		m.silence(i, fmt.Errorf("no answer for %s", m.cfg.FirstAnswer))
		return
	}
	m.silence(i, fmt.Errorf("no answer for %s; nothing is cached that it could confirm", m.cfg.FirstAnswer))
	if m.active < 0 && m.presumed == 0 {
		m.presumed = m.sources[i].first
		m.emit(Output{Op: Connected, Source: i})
	}
}

// silence counts a failure of a source whose run continues.
func (m *Machine) silence(i int, err error) {
	m.emit(Output{Op: Silence, Source: i, Err: err, Attempts: m.sources[i].fail(err)})
	m.reportIfAllFailed()
}

// fail counts a failure, and returns the number of failures since the source last answered.
func (s *source) fail(err error) int {
	s.Attempts++
	s.LastError = err
	return s.Attempts
}

func (m *Machine) reportIfAllFailed() {
	if m.active < 0 && !slices.ContainsFunc(m.sources, func(s source) bool { return s.Attempts == 0 }) {
		m.emit(Output{Op: AllFailed})
	}
}

// Answered processes the first answer of a run. If use is set, the run writes to the state from now
// on; the run that wrote before is closed, and must have ended by then. Otherwise the caller must
// end the run, as NotUsed.
func (m *Machine) Answered(now time.Time, i int, r Run) (use bool) {
	s := &m.sources[i]
	if r != s.first && r != s.second || m.active >= 0 && m.active < i && !m.sources[m.active].Stale {
		return false
	}
	previous, before := m.current, m.active
	if r == s.second {
		s.first, s.second = r, s.first
	}
	if s.second != 0 && !s.answered { // the one that does not answer; one that was answered is the previous run
		m.emit(Output{Op: Close, Source: i, Run: s.second})
	}
	s.second = 0
	m.active, m.current, m.presumed, s.answered = i, r, 0, true
	for j := range m.sources {
		if other := &m.sources[j]; other.Active != (j == i) {
			other.Active, other.Since = j == i, now
		}
		m.sources[j].Stale = false
	}
	s.Attempts, s.LastError, s.full = 0, nil, false
	if previous != 0 {
		m.emit(Output{Op: Close, Source: before, Run: previous})
	}
	m.emit(Output{Op: Use, Source: i, Run: r})
	m.emit(Output{Op: Connected, Source: i})
	return true
}

// isMoving reports whether a source is active although it has no run that was answered: it has asked for another one.
func (m *Machine) isMoving(i int) bool { return m.active == i && m.current == 0 }

// lose records that no source is active any more.
func (m *Machine) lose(now time.Time, i int) {
	s := &m.sources[i]
	m.active, m.current = -1, 0
	s.Active, s.Stale, s.Since, s.Attempts = false, false, now, 0 // the loss is not a failed attempt
	m.emit(Output{Op: Disconnected, Source: i})
}

// Ended processes the end of a run. after is when a source that is Full may be tried again; 0 if it does not say so.
func (m *Machine) Ended(now time.Time, i int, r Run, how End, after time.Duration, err error) {
	s := &m.sources[i]
	switch r {
	case s.first:
	case s.second:
		pause, silent := m.cfg.MaxBackoff, m.cfg.StaleAfter
		if !s.answered {
			pause, silent = m.cfg.FirstAnswer, m.cfg.FirstAnswer
		}
		s.second, s.secondAfter, s.checkAt = 0, now.Add(pause), now.Add(pause)
		m.silence(i, fmt.Errorf("a second stream, since nothing has come for %s: %w", silent, err))
		return
	default:
		return // another run of the source has taken over
	}
	answered := s.answered
	if answered && m.active >= 0 && m.active < i {
		how = NotUsed
	}
	if how == Moved && (!answered || now.Sub(s.begun) < StableAfter && s.short >= MaxShort) {
		how = Failed // it would be opened again and again
	}
	m.recordEnd(now, i, r, how, err)
	if answered {
		m.resetBackoff(now, s)
	}
	s.lost, s.full = how == Unreachable || how == Lost || how == Moved, how == Full
	second := s.second
	s.first, s.second = 0, 0
	switch {
	case second == 0:
		m.nextAttempt(now, i, how, answered, after, err)
	case how == NotUsed:
		m.emit(Output{Op: Close, Source: i, Run: second})
		m.retry(now, i)
	default: // the second run is now the first
		s.first, s.answered, s.begun, s.checkAt = second, false, now, now.Add(m.cfg.FirstAnswer)
		if how == Moved {
			m.emit(Output{Op: Another, Source: i, Err: err})
			return
		}
		s.failures++
		m.emit(Output{Op: Failure, Source: i, Err: err, Attempts: s.failures, Answered: answered})
	}
}

func (m *Machine) recordEnd(now time.Time, i int, r Run, how End, err error) {
	s := &m.sources[i]
	switch how {
	case NotUsed:
		s.Attempts, s.LastError = 0, nil // it answered, and waits until it is needed
	case Reopen, Moved: // it did not fail
	default:
		s.fail(err)
	}
	switch {
	case r == m.presumed:
		m.presumed = 0
		m.emit(Output{Op: Disconnected, Source: i})
	case r == m.current && how == Moved:
		m.current = 0 // until the next run has answered or failed
	case r == m.current:
		m.lose(now, i)
	case m.isMoving(i):
		attempts := s.Attempts
		m.lose(now, i)
		s.Attempts = attempts // this attempt has failed
	}
	m.reportIfAllFailed()
}

// resetBackoff updates the backoff after a run that had answered.
func (m *Machine) resetBackoff(now time.Time, s *source) {
	s.failures, s.failedSince = 0, now
	switch {
	case now.Sub(s.begun) >= StableAfter:
		s.backoff, s.short = 0, 0
	case s.lost && s.short < MaxShort:
		s.backoff = 0
	}
	s.short++
}

// nextAttempt decides when a source whose attempt has ended is retried.
func (m *Machine) nextAttempt(now time.Time, i int, how End, answered bool, after time.Duration, err error) {
	s := &m.sources[i]
	switch how {
	case NotUsed:
		m.retry(now, i)
		return
	case Reopen, Moved:
		m.emit(Output{Op: Another, Source: i, Err: err})
		if answered {
			m.open(now, i)
		} else {
			m.retry(now, i)
		}
		return
	}
	s.failures++
	failure := Output{Op: Failure, Source: i, Err: err, Attempts: s.failures, Answered: answered}
	if how == Unreachable {
		s.short, s.phase, failure.Answered = 0, unreachable, false
		m.emit(failure)
		m.emit(Output{Op: Await, Source: i, Err: err, Reached: s.reached})
		return
	}
	s.reached = now
	if s.backoff++; answered && s.backoff > 1 {
		s.fail(err) // its streams keep ending soon after their first response
		m.reportIfAllFailed()
	}
	failure.Pause = m.pause(s.backoff)
	if how == Lost && !answered {
		failure.Pause = min(failure.Pause, m.pauseBelow(MaxLost))
	}
	if how == Full && after > 0 {
		after = min(max(after, m.cfg.MinBackoff), MaxFull)
		failure.Pause = after + m.cfg.Random(after/2+1)
	}
	m.emit(failure)
	s.phase, s.checkAt = pausing, now.Add(failure.Pause)
}

// pause returns a random wait before attempt n+1: full jitter below a bound that doubles from
// MinBackoff to MaxBackoff.
func (m *Machine) pause(n int) time.Duration {
	bound := m.cfg.MinBackoff << min(n-1, 20)
	if bound <= 0 || bound > m.cfg.MaxBackoff {
		bound = m.cfg.MaxBackoff
	}
	return m.pauseBelow(bound)
}

func (m *Machine) pauseBelow(bound time.Duration) time.Duration {
	return m.cfg.Random(max(bound, m.cfg.ReconnectSpread)) + time.Millisecond
}

// Reached processes the result of Await: the source accepts connections again, or its name must be
// looked up again.
func (m *Machine) Reached(now time.Time, i int, accepts bool) {
	if accepts && m.cfg.ReconnectSpread > 0 {
		m.sources[i].phase, m.sources[i].checkAt = pausing, now.Add(m.cfg.Random(m.cfg.ReconnectSpread))
		return
	}
	m.retry(now, i)
}
