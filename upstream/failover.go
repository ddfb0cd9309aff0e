package upstream

import (
	"cmp"
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

	"github.com/holdfast-xds/holdfast/internal/reconnect"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/upstream/failover"
)

// Defaults of Failover.
const (
	DefaultMinBackoff    = 250 * time.Millisecond
	DefaultMaxBackoff    = 30 * time.Second
	DefaultFailoverAfter = 5 * time.Second
	DefaultFirstAnswer   = 15 * time.Second
	DefaultStaleAfter    = 30 * time.Minute
)

// Failover runs the first of several sources that answers, in order of priority
// (design.md section 4, protocol.md 7.12). Package failover decides which runs to open, to close
// and to use; a Failover does so.
type Failover struct {
	// Sources are in order of priority. There may be none.
	Sources []Source
	// Durations that are 0 take the defaults.
	failover.Timing
	// Lacking and Holding are those of failover.Config. If they are nil, nothing is missing, and
	// something is cached.
	Lacking, Holding func() bool
	// Connected is called with true when a source answers or, if nothing is cached, has been silent
	// on an open stream for FirstAnswer; and with false when it is lost.
	Connected func(bool)
	// Failed, if set, is called when every source has failed an attempt and none answers; more
	// than once if that does not change.
	Failed func()
	// Events, if set, counts events of the sources.
	Events Events
	Log    *slog.Logger

	once    sync.Once
	wake    chan struct{} // signals Run after an input of the machine
	mu      sync.Mutex
	machine *failover.Machine
	runs    map[failover.Run]*run
}

// Events counts, by the name of a source, the attempts to run it, how often it became active, and
// the attempts that failed or got no answer, with one of Reasons. Took records how long an attempt took
// until it was answered or failed. The methods must not block.
type Events interface {
	Attempted(source string)
	Connected(source string)
	Failed(source, reason string)
	Took(source string, answered bool, d time.Duration)
}

// count counts an event, if Events is set.
func (f *Failover) count(i int, event func(to Events, source string)) {
	if f.Events != nil {
		event(f.Events, f.Sources[i].Name())
	}
}

func (f *Failover) countFailure(i int, reason string) {
	f.count(i, func(to Events, source string) { to.Failed(source, reason) })
}

// SourceState describes one source.
type SourceState struct {
	Name string
	failover.State
	// Open is set if a stream to it is open, on which it may not have answered yet.
	Open bool
	// Route says through which proxy it was reached last, or why directly; "" if it has none.
	Route string
	// LastMessage is when the source last sent anything; the zero time for never and for sources
	// that do not record it.
	LastMessage time.Time
}

// errPreferred ends a run because a source of a higher priority is active, errReplaced because
// another run has taken over.
var (
	errPreferred = errors.New("another upstream was preferred")
	errReplaced  = errors.New("closed, because another upstream answers and this one was silent")
)

// States returns the state of each source, in order of priority.
func (f *Failover) States() []SourceState {
	f.once.Do(f.init)
	states := make([]SourceState, len(f.Sources))
	f.mu.Lock()
	for i := range states {
		states[i].State = f.machine.State(i)
	}
	f.mu.Unlock()
	for i, s := range f.Sources {
		states[i].Name, states[i].Open = s.Name(), states[i].Active
		if o, ok := s.(interface{ Open() bool }); ok {
			states[i].Open = o.Open()
		}
		if r, ok := s.(interface{ Route() string }); ok {
			states[i].Route = r.Route()
		}
		states[i].LastMessage, _ = f.lastMessage(i)
	}
	return states
}

// TakeLocks takes and releases the locks of the sources, for a watchdog.
func (f *Failover) TakeLocks() {
	watchdog.Lock(&f.mu)
	for _, s := range f.Sources {
		if locked, has := s.(interface{ TakeLocks() }); has {
			locked.TakeLocks()
		}
	}
}

// lastMessage returns when a source last sent anything; false if it does not record that.
func (f *Failover) lastMessage(i int) (time.Time, bool) {
	m, ok := f.Sources[i].(interface{ LastMessage() time.Time })
	if !ok {
		return time.Time{}, false
	}
	return m.LastMessage(), true
}

// several reports whether a source has another address than that of its newest run.
func (f *Failover) several(i int) bool {
	s, ok := f.Sources[i].(interface{ Several() bool })
	return ok && s.Several()
}

// Contact returns when a source last answered: now, if one is connected and not stale; the zero
// time if none is connected.
func (f *Failover) Contact() time.Time {
	f.once.Do(f.init)
	f.mu.Lock()
	active, stale := f.machine.Active()
	presumed := f.machine.Presumed()
	f.mu.Unlock()
	if active < 0 && !presumed {
		return time.Time{}
	}
	if stale {
		if at, ok := f.lastMessage(active); ok {
			return at
		}
	}
	return time.Now()
}

// Forward opens a stream of another service to the active source or, if that cannot forward, to the
// first one in order of priority that can. It fails with UNAVAILABLE if there is none.
func (f *Failover) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	f.once.Do(f.init)
	f.mu.Lock()
	active, _ := f.machine.Active()
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
	f.Log = cmp.Or(f.Log, slog.New(slog.DiscardHandler))
	if f.Lacking == nil {
		f.Lacking = func() bool { return false }
	}
	if f.Holding == nil {
		f.Holding = func() bool { return true }
	}
	f.wake, f.runs = make(chan struct{}, 1), make(map[failover.Run]*run)
	f.machine = f.newMachine()
}

func (f *Failover) newMachine() *failover.Machine {
	return failover.New(failover.Config{
		Sources: len(f.Sources),
		Timing: failover.Timing{
			MinBackoff:      cmp.Or(f.MinBackoff, DefaultMinBackoff),
			MaxBackoff:      cmp.Or(f.MaxBackoff, DefaultMaxBackoff),
			FailoverAfter:   cmp.Or(f.FailoverAfter, DefaultFailoverAfter),
			FirstAnswer:     cmp.Or(f.FirstAnswer, DefaultFirstAnswer),
			StaleAfter:      cmp.Or(f.StaleAfter, DefaultStaleAfter),
			ReconnectSpread: f.ReconnectSpread,
		},
		Lacking: f.Lacking, Holding: f.Holding, LastMessage: f.lastMessage, Several: f.several, Random: rand.N[time.Duration],
	}, time.Now())
}

// run is an open run of a source.
type run struct {
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when Source.Run has returned
}

// Run writes to the state until ctx ends, and then returns nil.
func (f *Failover) Run(ctx context.Context, state State) error {
	f.once.Do(f.init)
	d := &driver{Failover: f, ctx: ctx, state: state, work: make(chan struct{}, 1)}
	defer d.end()
	d.goroutines.Go(d.perform)
	wake.Loop(ctx, f.wake, func() (next time.Time) {
		d.input(func(m *failover.Machine, now time.Time) { next = m.Tick(now) })
		return next
	})
	return nil
}

// driver performs the outputs of the machine during one Run.
type driver struct {
	*Failover
	ctx        context.Context
	state      State
	goroutines sync.WaitGroup
	// batches are the outputs that have not been performed yet, in order; under mu. work holds a
	// value when there may be some.
	batches   []batch
	work      chan struct{}
	connected bool // what Connected was last called with; it belongs to perform
}

// batch is what one input brought about. done is closed when it has been performed.
type batch struct {
	out  []failover.Output
	done chan struct{}
}

// end waits until all runs have ended. Afterwards Run may be called again.
func (d *driver) end() {
	d.goroutines.Wait()
	d.mu.Lock()
	d.machine = d.newMachine()
	d.mu.Unlock()
	if d.connected {
		d.setConnected(false)
	}
}

func (d *driver) setConnected(connected bool) {
	d.connected = connected
	if d.Connected != nil {
		d.Connected(connected)
	}
}

// input passes an input to the machine. The result is closed when the outputs have been performed; it
// is nil if there are none.
func (d *driver) input(give func(m *failover.Machine, now time.Time)) (done <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	give(d.machine, time.Now())
	out := d.machine.Outputs()
	if len(out) == 0 {
		return nil
	}
	b := batch{out, make(chan struct{})}
	for _, o := range b.out {
		if o.Op == failover.Open {
			d.open(o.Source, o.Run)
		}
	}
	d.batches = append(d.batches, b)
	wake.Signal(d.work)
	return b.done
}

// event is input from a goroutine other than that of Run, which then calls Tick.
func (d *driver) event(give func(m *failover.Machine, now time.Time)) (done <-chan struct{}) {
	done = d.input(give)
	wake.Signal(d.wake)
	return done
}

// perform performs the outputs in order: otherwise Connected could report that a source was lost
// after another one has answered.
func (d *driver) perform() {
	for {
		d.mu.Lock()
		batches := d.batches
		d.batches = nil
		d.mu.Unlock()
		for _, b := range batches {
			for _, o := range b.out {
				d.do(o)
			}
			close(b.done)
		}
		select {
		case <-d.ctx.Done():
			return
		case <-d.work:
		}
	}
}

// open runs a source; called with mu held.
func (d *driver) open(i int, id failover.Run) {
	ctx, cancel := context.WithCancelCause(d.ctx)
	r := &run{cancel: cancel, ended: make(chan struct{})}
	d.runs[id] = r
	d.count(i, Events.Attempted)
	began, answered := time.Now(), false
	took := func() {
		d.count(i, func(to Events, source string) { to.Took(source, answered, time.Since(began)) })
	}
	d.goroutines.Go(func() {
		err := d.Sources[i].Run(ctx, d.state, func() error {
			use := false
			answered = true
			took()
			done := d.event(func(m *failover.Machine, now time.Time) { use = m.Answered(now, i, id) })
			if !use {
				return errPreferred
			}
			select {
			case <-done: // the run before has ended
				return nil
			case <-d.ctx.Done():
				return d.ctx.Err()
			}
		})
		if errors.Is(context.Cause(ctx), errReplaced) {
			err = errReplaced
		}
		cancel(nil)
		d.mu.Lock()
		delete(d.runs, id)
		d.mu.Unlock()
		close(r.ended)
		if d.ctx.Err() != nil {
			return
		}
		if !answered {
			took()
		}
		if err == nil {
			err = fmt.Errorf("upstream %s ended", d.Sources[i].Name())
		}
		how, after := endOf(err)
		d.event(func(m *failover.Machine, now time.Time) { m.Ended(now, i, id, how, after, err) })
	})
}

// endOf returns how a run ended, and after which time a source that is full may be tried again.
func endOf(err error) (how failover.End, after time.Duration) {
	after, full := reconnect.IsFull(err)
	switch {
	case errors.Is(err, errPreferred):
		how = failover.NotUsed
	case errors.Is(err, errReopen):
		how = failover.Reopen
	case reconnect.IsMoved(err): // before Lost: the server closes the connection soon after
		how = failover.Moved
	case full:
		how = failover.Full
	case errors.As(err, new(*unreachable)):
		how = failover.Unreachable
	case errors.As(err, new(*lost)):
		how = failover.Lost
	}
	return how, after
}

// do performs an output other than Open.
func (d *driver) do(o failover.Output) {
	name := d.Sources[o.Source].Name()
	switch o.Op {
	case failover.Close:
		d.mu.Lock()
		r := d.runs[o.Run]
		d.mu.Unlock()
		if r != nil {
			r.cancel(errReplaced)
			<-r.ended
		}
	case failover.Await:
		d.goroutines.Go(func() { d.await(o) })
	case failover.Use:
		d.count(o.Source, Events.Connected)
		d.Log.Info("control plane connected", "upstream", name)
	case failover.Connected, failover.Disconnected:
		d.setConnected(o.Op == failover.Connected)
	case failover.AllFailed:
		if d.Failed != nil {
			d.Failed()
		}
	case failover.Failure:
		d.countFailure(o.Source, reasonOf(o.Err))
		message := "cannot connect to the control plane, retrying"
		if o.Answered {
			message = "control plane disconnected, reconnecting"
		}
		log := d.Log.With("upstream", name, "attempts", o.Attempts, "err", o.Err)
		if o.Pause > 0 {
			log = log.With("retry_in", o.Pause)
		}
		log.Log(d.ctx, levelOf(o.Attempts), message)
	case failover.Silence:
		d.countFailure(o.Source, ReasonSilent)
		d.Log.Log(d.ctx, levelOf(o.Attempts), "control plane does not answer", "upstream", name, "attempts", o.Attempts, "err", o.Err)
	case failover.Another:
		d.Log.Info("opening another stream to the control plane", "upstream", name, "reason", o.Err)
	}
}

// await waits until a source accepts connections again, or its name must be looked up again.
func (d *driver) await(o failover.Output) {
	unreached, _ := errors.AsType[*unreachable](o.Err)
	accepts := unreached.await(d.ctx, o.Reached)
	if d.ctx.Err() == nil {
		d.event(func(m *failover.Machine, now time.Time) { m.Reached(now, o.Source, accepts) })
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
