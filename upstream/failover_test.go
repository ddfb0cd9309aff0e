package upstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/reconnect"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream/failover"
)

var errDown = errors.New("connection refused")

// scripted is a source that behaves as its mode says.
type scripted struct {
	name string

	mu       sync.Mutex
	mode     mode
	starts   []time.Time
	running  int
	answered int // how often it answered and was used
	unneeded int // how often it answered and was not needed
	end      context.CancelCauseFunc
	// away is the error of mode down; nil for errDown.
	away *unreachable
	// slow is how long a run takes to end.
	slow time.Duration
	last time.Time
}

// mode is what a source does when it is run.
type mode int

const (
	down   mode = iota // fails at once
	up                 // answers at once, then writes to the state
	silent             // opens a stream and sends nothing
)

func (s *scripted) Name() string { return s.name }

func (s *scripted) Run(ctx context.Context, target State, answered func() error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.starts = append(s.starts, time.Now())
	s.end = cancel
	s.running++
	now, slow, away := s.mode, s.slow, s.away
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	switch now {
	case down:
		if away != nil {
			return away
		}
		return errDown
	case up:
		if err := answered(); err != nil {
			s.mu.Lock()
			s.unneeded++
			s.mu.Unlock()
			return err
		}
		s.mu.Lock()
		s.answered++
		s.last = time.Now()
		s.mu.Unlock()
		target.Apply(xds.Update{Source: s.name}, nil)
	}
	<-ctx.Done()
	time.Sleep(slow)
	return context.Cause(ctx)
}

func (s *scripted) Open() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running > 0
}

func (s *scripted) LastMessage() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// set changes the mode of the next run, and ends the current run.
func (s *scripted) set(m mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
	if s.running > 0 {
		s.end(errDown)
	}
}

// ends ends the current run.
func (s *scripted) ends(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(err)
}

// then changes the mode of the next run without ending the current run.
func (s *scripted) then(m mode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
}

// count returns the number of current runs.
func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// attempts returns when the source was run.
func (s *scripted) attempts() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.starts)
}

// trial is a Failover over scripted sources a, b, …, in a synctest bubble.
type trial struct {
	*testing.T
	failover *Failover
	sources  []*scripted
	state    *state
	begun    time.Time

	mu        sync.Mutex
	missing   bool   // a subscribed resource is not cached
	connected []bool // the arguments of the calls of Connected
	cancel    context.CancelFunc
	ended     chan error
}

// among runs a test with one source for each mode.
func among(t *testing.T, test func(*trial), modes ...mode) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &trial{T: t, state: &state{}}
		r.failover = &Failover{
			Timing: failover.Timing{StaleAfter: 1000 * time.Hour},
			Lacking: func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return r.missing
			},
			Connected: func(is bool) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.connected = append(r.connected, is)
			},
		}
		for i, m := range modes {
			s := &scripted{name: string(rune('a' + i)), mode: m}
			r.sources = append(r.sources, s)
			r.failover.Sources = append(r.failover.Sources, s)
		}
		test(r)
		if r.cancel != nil {
			r.stop()
		}
	})
}

// run starts the Failover.
func (r *trial) run() {
	ctx, cancel := context.WithCancel(r.Context())
	ended := make(chan error, 1)
	r.cancel, r.ended, r.begun = cancel, ended, time.Now()
	go func() { ended <- r.failover.Run(ctx, r.state) }()
	synctest.Wait()
}

// stop ends the Failover. The bubble fails the test if a goroutine is left.
func (r *trial) stop() {
	r.Helper()
	r.cancel()
	if err := <-r.ended; err != nil {
		r.Errorf("Run returned %v", err)
	}
	r.cancel = nil
	for _, s := range r.sources {
		if s.Open() {
			r.Errorf("%s still runs", s.name)
		}
	}
}

func (r *trial) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// lack sets whether a subscribed resource is missing.
func (r *trial) lack(missing bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = missing
}

// active fails unless this source is active; "" for none.
func (r *trial) active(name string) {
	r.Helper()
	got := ""
	for _, s := range r.failover.States() {
		if s.Active {
			got += s.Name
		}
	}
	if got != name {
		r.Fatalf("after %s: active %q, want %q: %+v", time.Since(r.begun), got, name, r.failover.States())
	}
}

// writers lists the sources of all updates, in order.
func (r *trial) writers() (names string) {
	for _, u := range r.state.applied() {
		names += u.Source
	}
	return names
}

func TestASourceThatFailsIsTriedAgainWithinTheBounds(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		r.pass(10 * time.Minute)
		starts := r.sources[0].attempts()
		if len(starts) < 15 {
			r.Fatalf("%d attempts in 10 minutes", len(starts))
		}
		for i, at := range starts[1:] {
			bound := min(DefaultMinBackoff<<min(i, 20), DefaultMaxBackoff) + time.Millisecond
			if pause := at.Sub(starts[i]); pause <= 0 || pause > bound {
				r.Errorf("pause %d: %s, want at most %s", i+1, pause, bound)
			}
		}
		if s := r.failover.States()[0]; s.Attempts != len(starts) || s.LastError != errDown || s.Active {
			r.Errorf("state %+v after %d attempts", s, len(starts))
		}
	}, down)
}

// After a stream that lived for long, the next failure counts as the first again.
func TestAStreamThatLivesResetsTheBackoff(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		for range 50 {
			r.pass(5 * time.Minute) // the bound is 30 s now
			r.sources[0].set(up)
			r.pass(DefaultMaxBackoff + failover.StableAfter + time.Second)
			r.active("a")
			before := len(r.sources[0].attempts())
			r.sources[0].set(up) // the stream ends
			r.pass(DefaultMinBackoff + time.Millisecond)
			r.active("a")
			if got := len(r.sources[0].attempts()); got != before+1 {
				r.Fatalf("%d attempts after the loss, want 1", got-before)
			}
			r.sources[0].set(down)
		}
	}, down)
}

// Finding F4: a control plane that answers and then ends each stream is not retried six times a
// second, because it would push everything each time.
func TestTheBackoffGrowsForAServerThatAnswersAndEndsEachStream(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		for range 5 * 60 * 10 {
			r.sources[0].set(up) // ends the stream, if there is one
			r.pass(100 * time.Millisecond)
		}
		// 6 attempts while the bound doubles to 8 s, then one every 15 s on average: about 20.
		if n := len(r.sources[0].attempts()); n > 60 {
			r.Errorf("%d streams in 5 minutes", n)
		}
	}, up)
}

// The next source is used meanwhile.
func TestTheNextSourceTakesOverFromAServerThatEndsEachStream(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		took := false
		for range 5 * 60 * 10 {
			if r.sources[0].count() > 0 {
				r.sources[0].set(up)
			}
			r.pass(100 * time.Millisecond)
			took = took || r.failover.States()[1].Active
		}
		if !took {
			r.Error("the second source never took over")
		}
	}, up, up)
}

// A server that accepts no connections is retried as soon as it accepts one, however long that
// takes.
func TestAServerThatAcceptsAgainIsRetriedAtOnce(t *testing.T) {
	among(t, func(r *trial) {
		accepts := make(chan struct{})
		r.sources[0].away = &unreachable{errDown, func(ctx context.Context, _ time.Time) bool {
			ctx, cancel := context.WithTimeout(ctx, lookupInterval)
			defer cancel()
			select {
			case <-ctx.Done():
				return false
			case <-accepts:
				return true
			}
		}}
		r.run()
		r.pass(time.Hour + lookupInterval/2)
		if n, want := len(r.sources[0].attempts()), int(time.Hour/lookupInterval)+1; n != want {
			r.Errorf("%d attempts in an hour, want one each %s: %d", n, lookupInterval, want)
		}
		r.sources[0].then(up)
		close(accepts)
		r.pass(0)
		r.active("a")
		r.sources[0].set(up) // the backoff starts over
		r.pass(DefaultMinBackoff + time.Millisecond)
		r.active("a")
	}, down)
}

// A control plane that is restarted again and again, and lives for a second each time, is retried
// at once, because each time the connection failed first.
func TestAServerThatIsRestartedAgainAndAgainIsRetriedAtOnce(t *testing.T) {
	among(t, func(r *trial) {
		r.sources[0].away = &unreachable{errDown, func(ctx context.Context, _ time.Time) bool {
			return wake.Sleep(ctx, redialInterval)
		}}
		r.run()
		for range 50 {
			r.sources[0].set(down)
			r.pass(5 * time.Second)
			r.sources[0].then(up)
			r.pass(DefaultMinBackoff + redialInterval)
			r.active("a")
			r.pass(time.Second)
		}
	}, up)
}

// Nor does the backoff grow when its connections are lost, one after the other.
func TestAServerWhoseConnectionsAreLostIsRetriedAtOnce(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		for range failover.MaxShort {
			r.sources[0].ends(&lost{errDown})
			r.pass(DefaultMinBackoff + time.Millisecond)
			r.active("a")
			r.pass(time.Second)
		}
	}, up)
}

func TestReconnectsAreSpread(t *testing.T) {
	const spread, agents = time.Minute, 200
	var after []time.Duration
	for range agents {
		among(t, func(r *trial) {
			r.failover.ReconnectSpread = spread
			r.sources[0].away = &unreachable{errDown, func(context.Context, time.Time) bool { return true }}
			r.run()
			r.sources[0].then(up)
			for r.failover.States()[0].Active == false {
				r.pass(100 * time.Millisecond)
			}
			after = append(after, time.Since(r.begun))
		}, down)
	}
	slices.Sort(after)
	if first, last := after[0], after[agents-1]; first > spread/10 || last < spread-spread/10 || last > spread+time.Second {
		t.Errorf("they come from %s to %s, want all of 0 to %s", first, last, spread)
	}
	if median := after[agents/2]; median < spread/3 || median > spread*2/3 {
		t.Errorf("half of them have come after %s, want about %s", median, spread/2)
	}
}

// If nothing is cached, a source may have nothing to send: its open stream counts as connected, but
// the next sources are opened too.
func TestAnOpenStreamCountsAsConnectedWhileNothingIsCached(t *testing.T) {
	among(t, func(r *trial) {
		r.failover.Holding = func() bool { return false }
		r.run()
		r.pass(DefaultFirstAnswer - time.Second)
		if len(r.connected) != 0 || !r.failover.Contact().IsZero() {
			r.Errorf("before its time: connected %v", r.connected)
		}
		r.pass(2 * time.Second)
		if !slices.Equal(r.connected, []bool{true}) || time.Since(r.failover.Contact()) != 0 {
			r.Errorf("connected %v, contact %s", r.connected, r.failover.Contact())
		}
		r.active("")
		r.sources[0].then(down)
		r.sources[0].ends(errDown)
		r.pass(time.Second)
		if !slices.Equal(r.connected, []bool{true, false}) || !r.failover.Contact().IsZero() {
			r.Errorf("after its end: connected %v", r.connected)
		}
	}, silent)
	among(t, func(r *trial) {
		r.failover.Holding = func() bool { return false }
		r.lack(true)
		r.run()
		r.pass(DefaultFirstAnswer + time.Second)
		r.active("b")
	}, silent, up)
	among(t, func(r *trial) {
		r.failover.Holding = func() bool { return true }
		r.run()
		r.pass(time.Hour)
		if len(r.connected) != 0 {
			r.Errorf("connected %v, though it confirms nothing that is cached", r.connected)
		}
	}, silent)
}

// protocol.md 7.12.
func TestTheNextSourceTakesOverAfterOneFailedAttemptWhenSomethingIsMissing(t *testing.T) {
	among(t, func(r *trial) {
		r.lack(true)
		r.run()
		r.active("b")
		if n := len(r.sources[0].attempts()); n != 1 {
			r.Errorf("%d attempts at the first", n)
		}
		if n := len(r.sources[2].attempts()); n != 0 {
			r.Errorf("%d attempts at the third, want none", n)
		}
	}, down, up, up)
}

func TestTheLastSourceTakesOverWhenEveryOtherFails(t *testing.T) {
	among(t, func(r *trial) {
		r.lack(true)
		r.run()
		r.active("c")
	}, down, down, up)
}

func TestTheNextSourceWaitsForFailoverAfterWhenNothingIsMissing(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		r.active("a")
		r.pass(time.Hour)
		r.sources[0].set(down)
		r.pass(DefaultFailoverAfter - time.Millisecond)
		r.active("")
		if n := len(r.sources[1].attempts()); n != 0 {
			r.Errorf("%d attempts at the next before its turn", n)
		}
		r.pass(failover.LackingPoll + time.Millisecond)
		r.active("b")
		if !slices.Equal(r.connected, []bool{true, false, true}) {
			r.Errorf("connected %v", r.connected)
		}
	}, up, up)
}

func TestTheNextSourceComesAtOnceWhenSomethingIsMissingMeanwhile(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		r.sources[0].set(down)
		r.pass(time.Second)
		r.active("")
		r.lack(true)
		r.pass(failover.LackingPoll)
		r.active("b")
	}, up, up)
}

// A short loss is no reason to use another control plane.
func TestASourceThatComesBackBeforeFailoverAfterIsKept(t *testing.T) {
	among(t, func(r *trial) {
		r.run()
		r.sources[0].set(up)
		r.pass(DefaultMinBackoff + time.Millisecond)
		r.active("a")
		r.pass(time.Hour)
		if n := len(r.sources[1].attempts()); n != 0 {
			r.Errorf("%d attempts at the next", n)
		}
	}, up, up)
}

func TestTheFirstSourceTakesOverAgainWhenItAnswersAndNotBefore(t *testing.T) {
	among(t, func(r *trial) {
		r.lack(true)
		r.run()
		r.active("b")
		r.sources[0].set(silent)
		r.pass(10 * time.Minute)
		if !r.failover.States()[0].Open {
			r.Error("the first was not tried")
		}
		r.active("b")
		r.sources[0].set(up)
		r.pass(DefaultMaxBackoff + time.Millisecond)
		r.active("a")
		if r.sources[1].Open() {
			r.Error("the second still runs")
		}
		if got := r.writers(); got != "ba" {
			r.Errorf("fed by %s", got)
		}
		// The second waits until it is needed; it is not opened, and has no failure.
		tried := len(r.sources[1].attempts())
		r.pass(time.Hour)
		if n := len(r.sources[1].attempts()); n != tried {
			r.Errorf("%d attempts at the second meanwhile", n-tried)
		}
		if s := r.failover.States()[1]; s.Active || s.Attempts != 0 || s.LastError != nil {
			r.Errorf("the one that waits: %+v", s)
		}
		if !slices.Equal(r.connected, []bool{true, true}) {
			r.Errorf("connected %v: want never lost", r.connected)
		}
	}, down, up)
}

// Two sources never write at once: the one that takes over waits for the end of the other before
// anything of its response is applied.
func TestTheOtherEndsBeforeTheFirstSourceWrites(t *testing.T) {
	among(t, func(r *trial) {
		r.lack(true)
		r.sources[1].slow = 3 * time.Second
		r.run()
		r.active("b")
		r.sources[0].set(up)
		for r.writers() == "b" && time.Since(r.begun) < time.Hour {
			r.pass(10 * time.Millisecond)
		}
		if got := r.writers(); got != "ba" {
			r.Fatalf("fed by %s", got)
		}
		if r.sources[1].Open() {
			r.Error("the first feeds while the second runs")
		}
	}, down, up)
}

// A response that comes while a source of a higher priority is active is not applied.
func TestAnAnswerThatComesTooLateAppliesNothing(t *testing.T) {
	among(t, func(r *trial) {
		r.lack(true)
		late := make(chan struct{})
		r.failover.Sources[1] = slowly{r.sources[1], late}
		r.run() // the second is opened, and has not answered
		r.active("")
		r.sources[0].set(up)
		r.pass(time.Minute)
		r.active("a")
		close(late)
		r.pass(time.Minute)
		r.active("a")
		if got := r.writers(); got != "a" || r.sources[1].unneeded != 1 {
			r.Errorf("updates of %s; %d answers not needed", got, r.sources[1].unneeded)
		}
		if s := r.failover.States()[1]; s.Attempts != 0 || s.LastError != nil {
			r.Errorf("the one that was not needed: %+v", s)
		}
	}, down, up)
}

// slowly is a source that answers when its channel is closed.
type slowly struct {
	*scripted
	answer chan struct{}
}

func (s slowly) Run(ctx context.Context, target State, answered func() error) error {
	return s.scripted.Run(ctx, target, func() error {
		<-s.answer
		return answered()
	})
}

func TestTheThirdSourceWaitsForTheSecondToFailAgain(t *testing.T) {
	among(t, func(r *trial) {
		r.lack(true)
		r.run()
		r.active("b")
		r.sources[0].set(up)
		r.pass(time.Minute)
		r.active("a")
		r.sources[0].set(down) // now the second is opened, not the third
		r.pass(time.Minute)
		r.active("b")
		if n := len(r.sources[2].attempts()); n != 0 {
			r.Errorf("%d attempts at the third", n)
		}
	}, down, up, up)
}

// A stream that ends so that another one to the same server is opened is not a failure, and the
// source need not wait until it is needed.
func TestAStreamThatIsReopenedIsNoFailure(t *testing.T) {
	among(t, func(r *trial) {
		r.lack(true)
		r.run()
		r.active("b")
		r.lack(false)
		r.pass(time.Hour)
		r.sources[1].ends(errReopen)
		synctest.Wait()
		r.active("b")
		if s := r.failover.States()[1]; s.Attempts != 0 || s.LastError != nil {
			r.Errorf("it counts as a failure: %+v", s)
		}
		if n := len(r.sources[1].attempts()); n != 2 {
			r.Errorf("%d streams, want 2", n)
		}
	}, down, up)
}

// A server that ends a stream because it stops, or to balance its clients, has not failed: nothing is reported, and
// the next stream is opened at once, also many times in a row.
func TestAServerThatSendsItsClientsAwayHasNotFailed(t *testing.T) {
	among(t, func(r *trial) {
		counted := &failures{}
		r.failover.Events = counted
		r.run()
		for range 20 {
			r.pass(failover.StableAfter / 5)
			r.sources[0].ends(fmt.Errorf("receiving: %w", &lost{reconnect.Moved(reconnect.MaxAge)}))
			synctest.Wait()
			r.active("a")
		}
		if n := len(r.sources[0].attempts()); n != 21 {
			r.Errorf("%d streams, want 21", n)
		}
		if slices.Contains(r.connected, false) {
			r.Errorf("connected %v: the loss was reported", r.connected)
		}
		if len(counted.reasons) > 0 {
			r.Errorf("failures %q", counted.reasons)
		}
		// When nobody serves any more it is a loss.
		r.sources[0].then(down)
		r.sources[0].ends(reconnect.Moved(reconnect.Stopping))
		synctest.Wait()
		r.active("")
		if !slices.Equal(r.connected[len(r.connected)-1:], []bool{false}) || len(counted.reasons) != 1 {
			r.Errorf("connected %v, failures %q", r.connected, counted.reasons)
		}
	}, up, up)
}

// A server that has no room counts as failed, with a reason of its own; the next one takes over at once although
// nothing is missing, and the first one is tried again when it has said.
func TestTheNextSourceTakesOverAtOnceFromAServerThatIsFull(t *testing.T) {
	among(t, func(r *trial) {
		counted := &failures{}
		r.failover.Events = counted
		r.sources[0].away = &unreachable{error: reconnect.Full(time.Minute, "more than 3 proxies")}
		r.run()
		r.active("b")
		if !slices.Equal(counted.reasons, []string{ReasonFull}) || slices.Contains(r.connected, false) {
			r.Errorf("failures %q, connected %v", counted.reasons, r.connected)
		}
		r.sources[0].then(up)
		r.pass(time.Minute - time.Second)
		r.active("b")
		r.pass(time.Minute/2 + 2*time.Second)
		r.active("a")
	}, down, up)
}

// failures counts the failures of sources.
type failures struct{ reasons []string }

func (f *failures) Attempted(string)                 {}
func (f *failures) Connected(string)                 {}
func (f *failures) Failed(_, reason string)          { f.reasons = append(f.reasons, reason) }
func (f *failures) Took(string, bool, time.Duration) {}

func TestStatesTellWhatIsKnownBeforeRunToo(t *testing.T) {
	among(t, func(r *trial) {
		if s := r.failover.States(); len(s) != 2 || s[0].Name != "a" || s[1].Name != "b" || s[0].Active || s[0].Open {
			r.Errorf("before: %+v", s)
		}
		r.run()
		r.pass(time.Second)
		s := r.failover.States()
		if !s[0].Active || !s[0].Open || s[0].LastError != nil || !s[0].Since.Equal(r.begun) || !s[0].LastMessage.Equal(r.begun) {
			r.Errorf("active: %+v", s[0])
		}
		if s[1].Active || s[1].Open || !s[1].LastMessage.IsZero() {
			r.Errorf("waiting: %+v", s[1])
		}
		r.sources[0].set(down)
		synctest.Wait()
		if s := r.failover.States()[0]; s.Active || s.LastError != errDown || !s.Since.Equal(time.Now()) {
			r.Errorf("lost: %+v", s)
		}
	}, up, up)
}

// The Node of a group may change: the sources are run again, with the same State.
func TestAFailoverRunsAgain(t *testing.T) {
	among(t, func(r *trial) {
		for range 3 {
			r.run()
			r.pass(time.Minute)
			r.active("a")
			r.stop()
			r.active("")
			if s := r.failover.States()[0]; s.Attempts != 0 {
				r.Errorf("a stop counts as a failed attempt: %+v", s)
			}
		}
		if got := r.writers(); got != "aaa" {
			r.Errorf("fed by %s", got)
		}
	}, up, up)
}

// An agent that only issues certificates has no control plane.
func TestAFailoverWithoutSourcesWaitsForItsEnd(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &Failover{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := f.Run(ctx, &state{}); err != nil || ctx.Err() == nil {
			t.Errorf("ended with %v while its context says %v", err, ctx.Err())
		}
		if s := f.States(); len(s) > 0 {
			t.Errorf("states %v", s)
		}
	})
}

// The calls of Connected come in the order of what they report, also if one takes long: the last
// one says whether a source is connected.
func TestConnectedIsReportedInOrder(t *testing.T) {
	among(t, func(r *trial) {
		report, slow := r.failover.Connected, make(chan struct{})
		r.failover.Connected = func(is bool) {
			if !is {
				<-slow
			}
			report(is)
		}
		r.lack(true)
		r.run()
		r.sources[0].set(down)
		r.pass(time.Second)
		r.active("b")
		close(slow)
		r.pass(time.Second)
		if want := []bool{true, false, true}; !slices.Equal(r.connected, want) {
			t.Errorf("connected %v, want %v", r.connected, want)
		}
	}, up, up)
}

// The last call of Connected says that nothing is connected, also if Run ends before a loss was
// reported.
func TestTheEndOfRunReportsTheLoss(t *testing.T) {
	for range 20 { // which of two ready channels Run reads is random
		among(t, func(r *trial) {
			report, slow := r.failover.Connected, make(chan struct{})
			r.failover.Connected = func(is bool) {
				<-slow
				report(is)
			}
			r.failover.Holding = func() bool { return false }
			r.run()
			r.pass(DefaultFirstAnswer + time.Second)
			r.sources[0].set(down)
			r.pass(time.Second)
			r.cancel()
			close(slow)
			r.stop()
			if want := []bool{true, false}; !slices.Equal(r.connected, want) {
				t.Errorf("connected %v, want %v", r.connected, want)
			}
		}, silent)
	}
}
