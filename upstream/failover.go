package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Defaults of Failover.
const (
	DefaultMinBackoff    = 250 * time.Millisecond
	DefaultMaxBackoff    = 30 * time.Second
	DefaultFailoverAfter = 5 * time.Second
	DefaultFirstAnswer   = 15 * time.Second
	DefaultStaleAfter    = 30 * time.Minute
)

// stableAfter is how long a stream must have lived for its end to be the first failure
// again: a control plane that answers and ends each stream is asked less and less often.
const stableAfter = 10 * time.Second

// maxShort is how many streams in a row may be lost with their connection, soon after they were
// answered, before that counts as the server's doing: a load balancer that closes each
// connection, or a control plane that crashes at what it is asked. One that is restarted again
// and again is asked at once each time.
const maxShort = 30

// Failover runs the first of several sources that answers, in order of priority
// (design.md section 4, protocol.md 7.12).
//
// A source that nobody serves (connections are refused, or time out) is tried again each half
// second, so that it is found soon after it is back. One that fails later is tried again after a
// backoff with full jitter, which begins anew when a stream has lived for a while, or when it was
// the connection that failed before it, unless that goes on. The next one takes over after one failed attempt if something
// that is subscribed to is not held, else after FailoverAfter. Whatever runs, the
// sources before it are tried on; the first to answer takes over, and only then
// the one that ran is ended.
type Failover struct {
	// Sources is in order of priority; without any nothing is ever known.
	Sources []Source
	// MinBackoff and MaxBackoff bound the pause before a further attempt.
	MinBackoff, MaxBackoff time.Duration
	FailoverAfter          time.Duration
	// FirstAnswer is how long a source that was reached may take to say anything
	// before that counts as a failed attempt; it is waited for all the same.
	FirstAnswer time.Duration
	// StaleAfter is how long the active source may say nothing before a second
	// stream to it is tried; what answers first, that or the next source, takes
	// over.
	StaleAfter time.Duration
	// ReconnectSpread, if it is not 0, is over how long the reconnects of many agents are spread
	// when a control plane is back: each waits for a time that is drawn from it.
	ReconnectSpread time.Duration
	// Lacking reports whether something is subscribed to that is not held, Holding whether
	// anything is held that a source could confirm. Without Holding all sources must answer.
	Lacking, Holding func() bool
	// Connected is told whether a source answers; or has a stream open and says nothing, where
	// nothing is held, so that there may be nothing to say.
	Connected func(bool)
	// Failed, if set, is told when every source has failed an attempt and none
	// answers; more than once if that stays so.
	Failed func()
	// Events, if set, counts what becomes of the sources.
	Events Events
	Log    *slog.Logger

	mu      sync.Mutex
	states  []SourceState
	active  int  // index of the source that answered last; -1 for none
	current *run // of the active source; nil for none
	// presumed is a run whose stream is open, without an answer, while nothing is held; nil
	// for none.
	presumed *run
	// changed is closed and made anew with every change of states.
	changed chan struct{}
}

// Events counts, by the name of a source, attempts at it, how often it answered and so came into
// use, and attempts that failed or had no answer. The methods must not block.
type Events interface {
	Attempted(source string)
	Connected(source string)
	Failed(source string)
}

// tell tells Events, if it is set.
func (f *Failover) tell(event func(Events, string), i int) {
	if f.Events != nil {
		event(f.Events, f.Sources[i].Name())
	}
}

// SourceState is what is known of one source.
type SourceState struct {
	Name string
	// Active says that the state is fed from it, Open that a stream to it is
	// open, on which it may not have answered yet.
	Active, Open bool
	// Stale says that it is active and has said nothing for too long.
	Stale bool
	// Since is when Active last changed; Attempts counts those since it last
	// answered.
	Since    time.Time
	Attempts int
	// LastMessage is when the source last said anything; the zero time for never
	// and for sources that do not tell.
	LastMessage time.Time
	// LastError says why the last attempt ended; nil for none.
	LastError error
}

// errPreferred ends an attempt whose answer nobody needs.
var errPreferred = errors.New("another upstream was preferred")

// States returns what is known of each source, in order of priority.
func (f *Failover) States() []SourceState {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.states == nil {
		f.init()
	}
	states := slices.Clone(f.states)
	for i, s := range f.Sources {
		states[i].Open = states[i].Active
		if o, ok := s.(interface{ Open() bool }); ok {
			states[i].Open = o.Open()
		}
		if m, ok := s.(interface{ LastMessage() time.Time }); ok {
			states[i].LastMessage = m.LastMessage()
		}
	}
	return states
}

// Contact returns when a source last answered: now, if one does and is not stale; the zero
// time if none does.
func (f *Failover) Contact() time.Time {
	f.mu.Lock()
	active, stale := -1, false
	if f.states != nil && f.active >= 0 {
		active, stale = f.active, f.states[f.active].Stale
	}
	presumed := f.presumed != nil
	f.mu.Unlock()
	switch {
	case active < 0 && !presumed:
		return time.Time{}
	case stale:
		if m, ok := f.Sources[active].(interface{ LastMessage() time.Time }); ok {
			return m.LastMessage()
		}
	}
	return time.Now()
}

// Forward opens a stream of another service to the source that answers or, if there is none, or
// it is no server, to the first in order of priority that is one and can be reached. It fails
// with UNAVAILABLE when there is none.
func (f *Failover) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	f.mu.Lock()
	active := -1
	if f.states != nil {
		active = f.active
	}
	f.mu.Unlock()
	sources := f.Sources
	if active > 0 {
		sources = slices.Concat(sources[active:active+1], sources[:active], sources[active+1:])
	}
	failed := status.Errorf(codes.Unavailable, "no upstream for %s", method)
	for _, s := range sources {
		to, ok := s.(interface {
			Forward(context.Context, string) (grpc.ClientStream, error)
		})
		if !ok || ctx.Err() != nil {
			continue
		}
		stream, err := to.Forward(ctx, method)
		if err == nil {
			return stream, nil
		}
		failed = err
	}
	return nil, failed
}

func (f *Failover) init() {
	f.active = -1
	f.changed = make(chan struct{})
	f.states = make([]SourceState, len(f.Sources))
	for i, s := range f.Sources {
		f.states[i] = SourceState{Name: s.Name()}
	}
	if f.MinBackoff == 0 {
		f.MinBackoff = DefaultMinBackoff
	}
	if f.MaxBackoff == 0 {
		f.MaxBackoff = DefaultMaxBackoff
	}
	if f.FailoverAfter == 0 {
		f.FailoverAfter = DefaultFailoverAfter
	}
	if f.FirstAnswer == 0 {
		f.FirstAnswer = DefaultFirstAnswer
	}
	if f.StaleAfter == 0 {
		f.StaleAfter = DefaultStaleAfter
	}
	if f.Log == nil {
		f.Log = slog.New(slog.DiscardHandler)
	}
}

// Run writes to the state until ctx ends; it returns nil then. All goroutines that it started
// have ended.
func (f *Failover) Run(ctx context.Context, state State) error {
	f.mu.Lock()
	if f.states == nil {
		f.init()
	}
	f.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range f.Sources {
		wg.Go(func() { f.keep(ctx, i, state) })
	}
	<-ctx.Done()
	return nil
}

// keep attempts one source whenever its turn has come: as long as no source of
// higher priority answers.
func (f *Failover) keep(ctx context.Context, i int, state State) {
	failedSince, reached := time.Now(), time.Now()
	again := false // it was the active one, and is to be run once more at once
	// Failures in a row: of attempts of any kind, and of streams of a server that was reached.
	failures, broken := 0, 0
	connection := false // it was the connection that failed last
	short := 0          // streams in a row that answered and were lost soon after
	for ctx.Err() == nil {
		if i > 0 && !again && !f.turn(ctx, i, failedSince) {
			return
		}
		begun := time.Now()
		answered, err := f.attempt(ctx, i, state)
		if ctx.Err() != nil {
			return
		}
		if answered {
			failures, failedSince = 0, time.Now()
			switch {
			case time.Since(begun) >= stableAfter:
				broken, short = 0, 0
			case connection && short < maxShort:
				broken = 0
			}
			short++
		}
		connection = false
		again = answered && errors.Is(err, errReopen)
		if errors.Is(err, errPreferred) {
			continue // wait for the turn
		}
		if errors.Is(err, errReopen) {
			f.Log.Info("opening another stream", "upstream", f.Sources[i].Name(), "reason", err)
			continue // it is no failure
		}
		f.tell(Events.Failed, i)
		failures++
		var away *unreachable
		var gone *lost
		connection = errors.As(err, &away) || errors.As(err, &gone)
		if away != nil {
			short = 0
			f.logFailure(i, failures, false, err)
			if away.again(ctx, reached) && f.ReconnectSpread > 0 {
				sleep(ctx, rand.N(f.ReconnectSpread))
			}
			continue
		}
		reached = time.Now()
		if broken++; answered && broken > 1 {
			f.count(i, err) // each of its streams ends soon
		}
		pause := f.pause(broken)
		f.logFailure(i, failures, answered, err, "retry_in", pause)
		if !sleep(ctx, pause) {
			return
		}
	}
}

// levelOf returns the level of the n-th failure in a row. Only the 1st, 2nd, 4th, 8th, and so on
// are warnings: an outage of hours is no news each few seconds.
func levelOf(n int) slog.Level {
	if n&(n-1) != 0 {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// logFailure logs the end of an attempt.
func (f *Failover) logFailure(i, failures int, answered bool, err error, more ...any) {
	f.Log.Log(context.Background(), levelOf(failures), "upstream attempt ended",
		append([]any{"upstream", f.Sources[i].Name(), "answered", answered, "attempts", failures, "err", err}, more...)...)
}

// pause draws the wait before attempt n+1: full jitter below a bound that doubles
// from MinBackoff to MaxBackoff.
func (f *Failover) pause(n int) time.Duration {
	bound := f.MinBackoff << min(n-1, 20)
	if bound <= 0 || bound > f.MaxBackoff {
		bound = f.MaxBackoff
	}
	return rand.N(max(bound, f.ReconnectSpread)) + time.Millisecond
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// lackingPoll is how often a source whose turn it is but for FailoverAfter asks
// whether something is missing by now.
const lackingPoll = 100 * time.Millisecond

// turn waits until source i should be tried: none of higher priority is active,
// each has failed, and either something is missing or it has been long enough.
func (f *Failover) turn(ctx context.Context, i int, since time.Time) bool {
	for {
		f.mu.Lock()
		ready := f.active < 0 || f.active >= i || f.states[f.active].Stale
		for _, s := range f.states[:i] {
			ready = ready && s.Attempts > 0
			if s.Since.After(since) {
				since = s.Since
			}
		}
		changed := f.changed
		f.mu.Unlock()
		var poll <-chan time.Time
		if ready {
			if f.lacking() || time.Since(since) >= f.FailoverAfter {
				return true
			}
			poll = time.After(lackingPoll)
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		case <-poll:
		}
	}
}

// announce wakes who waits for a change of states; called under mu.
func (f *Failover) announce() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *Failover) lacking() bool { return f.Lacking != nil && f.Lacking() }

// run is one run of a source.
type run struct {
	cancel context.CancelFunc
	ended  chan struct{} // closed when Run has returned; err is set then
	err    error
	// answered says that it became the active one; under mu of the Failover.
	answered bool
}

// start runs source i. It becomes the active one with its first answer.
func (f *Failover) start(ctx context.Context, i int, state State) *run {
	ctx, cancel := context.WithCancel(ctx)
	r := &run{cancel: cancel, ended: make(chan struct{})}
	f.tell(Events.Attempted, i)
	go func() {
		defer close(r.ended)
		defer cancel()
		r.err = f.Sources[i].Run(ctx, state, func() error {
			if !f.activate(i, r) {
				return errPreferred
			}
			return nil
		})
		if r.err == nil {
			r.err = fmt.Errorf("upstream %s ended", f.Sources[i].Name())
		}
	}()
	return r
}

// attempt runs source i until it ends or another takes over. If it says nothing for
// StaleAfter, it is run a second time beside, and that takes over when it answers.
func (f *Failover) attempt(ctx context.Context, i int, state State) (answered bool, err error) {
	first := f.start(ctx, i, state)
	var second *run
	begun, retry := time.Now(), time.Time{}
	timer := time.NewTimer(min(f.FirstAnswer, f.StaleAfter))
	defer timer.Stop()
	for {
		var secondEnded chan struct{}
		if second != nil {
			secondEnded = second.ended
		}
		select {
		case <-first.ended:
			if second == nil {
				return f.finish(i, first)
			}
			if f.hasAnswered(second) {
				first, second = second, nil
				continue
			}
			second.cancel()
			<-second.ended
			if !f.hasAnswered(second) {
				return f.finish(i, first)
			}
			// It answered while it was ended.
			first, second = second, nil
		case <-secondEnded:
			f.note(i, fmt.Errorf("a second stream, since nothing has come for %s: %w", f.StaleAfter, second.err))
			second, retry = nil, time.Now().Add(f.MaxBackoff)
			timer.Reset(f.MaxBackoff)
		case now := <-timer.C:
			switch next := f.quiet(i, first, begun); {
			case next.After(now):
				f.notStale(i)
				timer.Reset(next.Sub(now))
			case !f.hasAnswered(first):
				f.unanswered(i, first)
				timer.Reset(f.FirstAnswer)
			case second != nil:
				f.note(i, fmt.Errorf("a second stream, since nothing has come for %s: no answer for %s", f.StaleAfter, f.FirstAnswer))
				timer.Reset(f.FirstAnswer)
			case !retry.After(now):
				f.stale(i)
				second = f.start(ctx, i, state)
				timer.Reset(f.FirstAnswer)
			default:
				timer.Reset(f.FirstAnswer)
			}
		}
	}
}

// quiet returns when a run will have been quiet for so long that something is to be
// done about it.
func (f *Failover) quiet(i int, r *run, begun time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !r.answered {
		return begun.Add(f.FirstAnswer)
	}
	m, ok := f.Sources[i].(interface{ LastMessage() time.Time })
	if !ok {
		return time.Now().Add(f.StaleAfter) // it does not tell
	}
	heard := m.LastMessage()
	if since := f.states[i].Since; since.After(heard) {
		heard = since
	}
	return heard.Add(f.StaleAfter)
}

func (f *Failover) hasAnswered(r *run) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return r.answered
}

// unanswered takes in that a source which was reached has said nothing for FirstAnswer. While
// nothing is held it may be right to.
func (f *Failover) unanswered(i int, r *run) {
	if f.Holding == nil || f.Holding() {
		f.note(i, fmt.Errorf("no answer for %s", f.FirstAnswer))
		return
	}
	f.mu.Lock()
	presume := f.active < 0 && f.presumed == nil
	if presume {
		f.presumed = r
	}
	f.mu.Unlock()
	f.note(i, fmt.Errorf("no answer for %s; nothing is held that it could confirm", f.FirstAnswer))
	if presume && f.Connected != nil {
		f.Connected(true)
	}
}

// note counts a failure of a source that goes on, and logs it.
func (f *Failover) note(i int, err error) {
	f.tell(Events.Failed, i)
	n := f.count(i, err)
	f.Log.Log(context.Background(), levelOf(n), "upstream does not answer", "upstream", f.Sources[i].Name(), "attempts", n, "err", err)
}

// count counts a failure of a source, and returns how many there have been since it last
// answered.
func (f *Failover) count(i int, err error) int {
	f.mu.Lock()
	f.states[i].Attempts++
	f.states[i].LastError = err
	n := f.states[i].Attempts
	failed := f.allFailed()
	f.announce()
	f.mu.Unlock()
	if failed && f.Failed != nil {
		f.Failed()
	}
	return n
}

// notStale takes in that the active source has been heard in time.
func (f *Failover) notStale(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active == i && f.states[i].Stale {
		f.states[i].Stale = false
		f.announce()
	}
}

// stale takes in that the active source has been quiet for StaleAfter: whichever
// answers may take over from it.
func (f *Failover) stale(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active == i {
		f.states[i].Stale = true
		f.announce()
	}
}

// allFailed reports whether no source answers and each has failed; called under mu.
func (f *Failover) allFailed() bool {
	return f.active < 0 && !slices.ContainsFunc(f.states, func(s SourceState) bool { return s.Attempts == 0 })
}

// finish notes the end of a source's last run.
func (f *Failover) finish(i int, r *run) (answered bool, err error) {
	err = r.err
	answered = f.hasAnswered(r)
	if answered && f.preferred(i) {
		err = errPreferred
	}
	f.deactivate(i, r, err)
	return answered, err
}

// activate makes source i the active one, after the one that was has ended. It
// reports false when one of higher priority is active.
func (f *Failover) activate(i int, r *run) bool {
	f.mu.Lock()
	if f.active >= 0 && f.active < i && !f.states[f.active].Stale {
		f.mu.Unlock()
		return false
	}
	before := f.current
	f.active, f.current, f.presumed, r.answered = i, r, nil, true
	now := time.Now()
	for j := range f.states {
		if s := &f.states[j]; s.Active != (j == i) {
			s.Active, s.Since = j == i, now
		}
		f.states[j].Stale = false
	}
	f.states[i].Attempts, f.states[i].LastError = 0, nil
	f.tell(Events.Connected, i)
	f.announce()
	f.mu.Unlock()
	if before != nil {
		before.cancel()
		<-before.ended
	}
	f.Log.Info("upstream answers", "upstream", f.Sources[i].Name())
	if f.Connected != nil {
		f.Connected(true)
	}
	return true
}

// deactivate notes the end of an attempt.
func (f *Failover) deactivate(i int, r *run, err error) {
	f.mu.Lock()
	s := &f.states[i]
	switch {
	case errors.Is(err, errPreferred):
		s.Attempts, s.LastError = 0, nil // it answered, and waits for its turn
	case errors.Is(err, errReopen): // it did not fail
	default:
		s.Attempts++
		s.LastError = err
	}
	gone := f.presumed == r
	if gone {
		f.presumed = nil
	}
	lost := f.current == r
	if lost {
		f.active, f.current = -1, nil
		s.Active, s.Since, s.Attempts = false, time.Now(), 0 // the loss is no failed attempt
	}
	failed := f.allFailed()
	f.announce()
	f.mu.Unlock()
	if (lost || gone) && f.Connected != nil {
		f.Connected(false)
	}
	if failed && f.Failed != nil {
		f.Failed()
	}
}

// preferred reports whether a source of higher priority than i is active.
func (f *Failover) preferred(i int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active >= 0 && f.active < i
}
