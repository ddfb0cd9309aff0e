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

// stableAfter is how long a stream must have lived for its end to count as a first failure. A
// control plane that answers and then ends each stream is asked less and less often.
const stableAfter = 10 * time.Second

// maxShort is how many streams in a row may lose their connection soon after they were answered
// before that counts as a failure of the server: a load balancer that closes each connection, or
// a control plane that crashes on the requests. Up to that number the server is asked again at
// once each time, since it may have been restarted.
const maxShort = 30

// Failover runs the first of several sources that answers, in order of priority
// (design.md section 4, protocol.md 7.12).
//
// A source that accepts no connection (it refuses them, or they time out) is tried again every
// half second, so that it is used soon after it is back. One that fails later is tried again
// after a backoff with full jitter. The backoff starts over when a stream has lived for
// stableAfter, or when the previous stream lost its connection, up to maxShort times in a row.
// The next source takes over after one failed attempt if something that is subscribed to is not
// held, else after FailoverAfter. Whichever source is active, the sources before it are still
// tried. The first of them to answer takes over, and only then the run of the previous source is
// ended.
type Failover struct {
	// Sources are in order of priority. Without any source nothing is ever known.
	Sources []Source
	// MinBackoff and MaxBackoff bound the pause before another attempt.
	MinBackoff, MaxBackoff time.Duration
	FailoverAfter          time.Duration
	// FirstAnswer is how long a source that was reached may take to answer before that counts as
	// a failed attempt. The attempt continues nevertheless.
	FirstAnswer time.Duration
	// StaleAfter is how long the active source may be silent before a second stream to it is
	// tried. Whichever answers first, that stream or the next source, takes over.
	StaleAfter time.Duration
	// ReconnectSpread, if it is not 0, spreads the reconnects of many agents over this duration
	// when a control plane is back: each agent waits for a random part of it.
	ReconnectSpread time.Duration
	// Lacking reports whether something is subscribed to that is not held; Holding reports
	// whether anything is held that a source could confirm. If Holding is nil, all sources must
	// answer.
	Lacking, Holding func() bool
	// Connected is called with true when a source answers, and with false when it is lost. If
	// nothing is held, a source with an open stream may have nothing to send, and counts as
	// connected after FirstAnswer without an answer.
	Connected func(bool)
	// Failed, if set, is called when every source has failed an attempt and none answers; more
	// than once if that does not change.
	Failed func()
	// Events, if set, counts events of the sources.
	Events Events
	Log    *slog.Logger

	mu      sync.Mutex
	states  []SourceState
	active  int  // index of the source that answered last; -1 for none
	current *run // of the active source; nil for none
	// presumed is a run with an open stream that counts as connected without an answer, because
	// nothing is held; nil for none.
	presumed *run
	// changed is closed and replaced with every change of states.
	changed chan struct{}
}

// Events counts, by the name of a source, the attempts to run it, how often it answered and so
// became active, and the attempts that failed or got no answer. The methods must not block.
type Events interface {
	Attempted(source string)
	Connected(source string)
	Failed(source string)
}

// tell calls a method of Events, if that is set.
func (f *Failover) tell(event func(Events, string), i int) {
	if f.Events != nil {
		event(f.Events, f.Sources[i].Name())
	}
}

// SourceState describes one source.
type SourceState struct {
	Name string
	// Active is set if the source writes to the state. Open is set if a stream to it is open, on
	// which it may not have answered yet.
	Active, Open bool
	// Stale is set if the source is active and has been silent for StaleAfter.
	Stale bool
	// Since is when Active last changed. Attempts counts the failed attempts since the source
	// last answered.
	Since    time.Time
	Attempts int
	// LastMessage is when the source last sent anything; the zero time for never and for sources
	// that do not record it.
	LastMessage time.Time
	// LastError is why the last attempt ended; nil for none.
	LastError error
}

// errPreferred ends an attempt whose source is not needed, because another one is active.
var errPreferred = errors.New("another upstream was preferred")

// States returns the state of each source, in order of priority.
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

// Contact returns when a source last answered: now, if one is connected and not stale; the zero
// time if none is connected.
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

// Forward opens a stream of another service to the active source or, if there is none, or it
// cannot forward, to the first one in order of priority that can and is reachable. It fails with
// UNAVAILABLE if there is none.
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

// Run writes to the state until ctx ends, and then returns nil after all goroutines that it
// started have ended.
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

// keep attempts one source whenever it is its turn: while no source of higher priority is active.
func (f *Failover) keep(ctx context.Context, i int, state State) {
	failedSince, reached := time.Now(), time.Now()
	again := false // it was the active source and must be run once more at once
	// Failures in a row: of attempts of any kind, and of streams of a server that was reached.
	failures, broken := 0, 0
	connection := false // the last failure was that of the connection
	short := 0          // streams in a row that were answered and soon lost
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
			continue // this is not a failure
		}
		f.tell(Events.Failed, i)
		failures++
		var unreached *unreachable
		var dropped *lost
		connection = errors.As(err, &unreached) || errors.As(err, &dropped)
		if unreached != nil {
			short = 0
			f.logFailure(i, failures, false, err)
			if unreached.again(ctx, reached) && f.ReconnectSpread > 0 {
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

// levelOf returns the log level of the n-th failure in a row. Only the 1st, 2nd, 4th, 8th, and so
// on are warnings, so that an outage of hours does not log a warning every few seconds.
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

// pause returns a random wait before attempt n+1: full jitter below a bound that doubles from
// MinBackoff to MaxBackoff.
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

// lackingPoll is how often a source that waits for FailoverAfter only checks whether something is
// missing by now.
const lackingPoll = 100 * time.Millisecond

// turn waits until source i should be tried: no source of higher priority is active, each of them
// has failed, and either something is missing or FailoverAfter has passed.
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

// announce wakes the goroutines that wait for a change of states; called with mu held.
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
	// answered is set once this run became the active one; guarded by the Failover's mu.
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

// attempt runs source i until it ends or another source takes over. If it is silent for
// StaleAfter, a second run is started beside it, which takes over when it answers.
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
			// It answered while it was being ended.
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

// quiet returns the time at which a run will have been silent for FirstAnswer or, once it has
// answered, for StaleAfter.
func (f *Failover) quiet(i int, r *run, begun time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !r.answered {
		return begun.Add(f.FirstAnswer)
	}
	m, ok := f.Sources[i].(interface{ LastMessage() time.Time })
	if !ok {
		return time.Now().Add(f.StaleAfter) // it does not record messages
	}
	last := m.LastMessage()
	if since := f.states[i].Since; since.After(last) {
		last = since
	}
	return last.Add(f.StaleAfter)
}

func (f *Failover) hasAnswered(r *run) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return r.answered
}

// unanswered handles a source that was reached and has been silent for FirstAnswer. If nothing is
// held, the source may have nothing to send, and counts as connected.
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

// note counts a failure of a source whose run continues, and logs it.
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

// notStale records that the active source has sent something in time.
func (f *Failover) notStale(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active == i && f.states[i].Stale {
		f.states[i].Stale = false
		f.announce()
	}
}

// stale records that the active source has been silent for StaleAfter, so that any source that
// answers may take over from it.
func (f *Failover) stale(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active == i {
		f.states[i].Stale = true
		f.announce()
	}
}

// allFailed reports whether no source answers and each has failed; called with mu held.
func (f *Failover) allFailed() bool {
	return f.active < 0 && !slices.ContainsFunc(f.states, func(s SourceState) bool { return s.Attempts == 0 })
}

// finish handles the end of a source's last run.
func (f *Failover) finish(i int, r *run) (answered bool, err error) {
	err = r.err
	answered = f.hasAnswered(r)
	if answered && f.preferred(i) {
		err = errPreferred
	}
	f.deactivate(i, r, err)
	return answered, err
}

// activate makes source i the active one, and ends the run of the previous one first. It returns
// false if a source of higher priority is active.
func (f *Failover) activate(i int, r *run) bool {
	f.mu.Lock()
	if f.active >= 0 && f.active < i && !f.states[f.active].Stale {
		f.mu.Unlock()
		return false
	}
	previous := f.current
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
	if previous != nil {
		previous.cancel()
		<-previous.ended
	}
	f.Log.Info("upstream answers", "upstream", f.Sources[i].Name())
	if f.Connected != nil {
		f.Connected(true)
	}
	return true
}

// deactivate records the end of an attempt.
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
	wasPresumed := f.presumed == r
	if wasPresumed {
		f.presumed = nil
	}
	lost := f.current == r
	if lost {
		f.active, f.current = -1, nil
		s.Active, s.Since, s.Attempts = false, time.Now(), 0 // the loss is not a failed attempt
	}
	failed := f.allFailed()
	f.announce()
	f.mu.Unlock()
	if (lost || wasPresumed) && f.Connected != nil {
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
