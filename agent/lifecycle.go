package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// lifecycle is the state of shutdown, drain and takeover.
type lifecycle struct {
	envoy *envoy.Supervisor // nil if Envoy is not a child
	admin *envoy.Admin      // of an Envoy that is not a child; nil if its address is not known

	// health is held while Envoy's health checks are made to fail or to pass. failedAt is when this
	// agent made them fail; zero if it did not, or has undone it.
	health   sync.Mutex
	failedAt time.Time

	// ending is set if a shutdown was requested. leaving is set while another agent takes over, and
	// released after the locks and addresses that it needs are released.
	ending, leaving, released atomic.Bool
	// successors passes the connection of that agent to awaitEnd. over is closed when the agent
	// has stopped, and nothing receives from successors any more.
	successors chan net.Conn
	over       chan struct{}

	mu    sync.Mutex
	drain *drain // in progress or complete; nil for none
}

// takeLocks takes each lock that serving needs, for the watchdog.
func (a *Agent) takeLocks(take watchdog.Take) {
	a.groups.TakeLocks(take)
	take("the streams of clients", a.server.TakeLocks)
	take("whether an Envoy is there", a.presence.TakeLocks)
	take("the events", a.events.TakeLocks)
	take("the metrics", a.metrics.TakeLocks)
	if a.certificates != nil {
		take("the certificates", a.certificates.TakeLocks)
	}
}

// Live returns an error if the agent is deadlocked, which only a restart resolves.
func (a *Agent) Live() error { return a.watchdog.Live() }

// runEnvoy runs Envoy until ctx ends, and then drains it, or until Envoy exits, which it returns as
// an error. It always returns when serving ends.
func (a *Agent) runEnvoy(ctx, serving context.Context) error {
	running, end := context.WithCancel(serving)
	defer end()
	// A second signal ends the drain.
	drain, hurry := context.WithCancel(serving)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer hurry()
	wg.Go(func() {
		select {
		case <-ctx.Done():
			_ = a.Drain(drain) // it cannot be undone during a shutdown
			end()
		case <-running.Done():
		}
	})
	wg.Go(func() {
		for {
			select {
			case <-a.cfg.Hurry:
				hurry()
				return
			case s := <-a.cfg.Signals:
				if s, ok := s.(syscall.Signal); ok {
					a.life.envoy.Signal(s)
				}
			case <-drain.Done():
				return
			}
		}
	})
	err := a.life.envoy.Run(running)
	end()
	return err
}

func (a *Agent) HotRestart(ctx context.Context) error {
	if a.life.envoy == nil {
		return errors.New("hot restart: the agent does not run Envoy: start it with `holdfast run -- envoy …`")
	}
	return a.life.envoy.HotRestart(ctx)
}

// crashed reports to the groups that the Envoy that was started as a child at this time has crashed.
func (a *Agent) crashed(started time.Time) {
	for _, m := range a.groups.Members() {
		if m.Key().UserAgent != xds.EnvoyUserAgent {
			continue
		}
		before := m.Cache().Fallback()
		m.Crashed(started)
		if before == nil && m.Cache().Fallback() != nil {
			a.metrics.FellBack()
		}
	}
}

// Resume serves resources again that are held back because Envoy crashed with them, and those that are
// frozen.
func (a *Agent) Resume(context.Context) error {
	held := false
	for _, m := range a.groups.Members() {
		held = m.Resume() || held
	}
	if !held {
		return errors.New("resume: nothing is frozen or held back after crashes of Envoy" + a.heldBackRemovals())
	}
	return nil
}

// heldBackRemovals says how many removals are held back, which `holdfast resume` leaves; "" for none.
func (a *Agent) heldBackRemovals() string {
	n := 0
	for _, m := range a.groups.Members() {
		for _, held := range m.Cache().AgentReport().HeldBack {
			n += held.HeldBack
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("; %d removals are held back because they look like an accident: `holdfast resume --removals` confirms them", n)
}

// ResumeRemovals makes the removals take effect that are held back because they look like an accident (design.md
// I10): the operator confirms them.
func (a *Agent) ResumeRemovals(context.Context) error {
	held := false
	for _, m := range a.groups.Members() {
		if m.Cache().ReleaseRemovals() {
			a.cfg.Log.Warn("what was held back because it looks like an accident takes effect: `holdfast resume --removals`", "node", m.Key().Node)
			held = true
		}
	}
	if !held {
		return errors.New("resume --removals: no removal is held back")
	}
	return nil
}

type drain struct {
	begun  chan struct{} // closed when Envoy's health checks fail
	done   chan struct{} // closed when it is complete; err is set then
	err    error
	cancel context.CancelCauseFunc
}

// Drain drains Envoy's connections, and makes the agent not ready, and the workload unhealthy, until Undrain. It returns when
// Envoy can be stopped, or an error if the drain was undone. Further calls wait for the drain that
// is in progress.
//
// A child also drains its listeners, and is stopped afterwards. If Envoy is not a child, its health
// checks fail, which also makes it close its connections, and which can be undone.
func (a *Agent) Drain(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.life.mu.Lock()
	under := a.life.drain
	d := &drain{begun: make(chan struct{}), done: make(chan struct{}), cancel: cancel}
	if under == nil {
		a.life.drain = d
		a.reportDrain(true)
	}
	a.life.mu.Unlock()
	if under != nil {
		select {
		case <-under.done:
			return under.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer close(d.done)
	a.cfg.Log.Info("drain started: the agent is not ready")
	var told error
	if a.life.envoy == nil && a.life.admin != nil {
		if told = a.failHealth(ctx); told != nil {
			a.cfg.Log.Warn("Envoy cannot be drained", "err", told)
		}
	}
	close(d.begun)
	switch {
	case a.life.envoy != nil:
		a.life.envoy.Drain(ctx)
	case a.life.admin != nil && told == nil:
		envoy.AwaitDrained(ctx, a.life.admin, a.cfg.Envoy.Draining, a.cfg.Log)
	}
	if errors.Is(context.Cause(ctx), envoy.ErrUndone) {
		d.err = envoy.ErrUndone
	}
	return d.err
}

func (a *Agent) draining() bool {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	return a.life.drain != nil
}

// Undrain undoes a drain: Envoy's health checks pass, and the agent is ready again. The drain of a
// child cannot be undone, because its listeners have drained, and neither can that of a shutdown.
func (a *Agent) Undrain(ctx context.Context) error {
	a.life.mu.Lock()
	d := a.life.drain
	a.life.mu.Unlock()
	switch {
	case a.life.ending.Load():
		return errors.New("undrain: the agent is shutting down")
	case d == nil:
		return errors.New("undrain: there is no drain to undo")
	case a.life.envoy != nil:
		return errors.New("undrain: the agent runs Envoy as its child, and the drain of its listeners cannot be undone: use POST /hot-restart, or restart the agent")
	}
	select {
	case <-d.begun:
	case <-ctx.Done():
		return ctx.Err()
	}
	if a.life.admin != nil {
		if _, err := a.passHealth(ctx, nil); err != nil {
			return err
		}
	}
	a.life.mu.Lock()
	if a.life.drain == d {
		a.life.drain = nil
		a.reportDrain(false)
	}
	a.life.mu.Unlock()
	d.cancel(envoy.ErrUndone)
	a.cfg.Log.Info("drain undone: the agent is ready again")
	return nil
}

// drainFile is the path of a file that exists if this agent, or one before it, made Envoy's health
// checks fail. It is next to the socket, where the next agent finds it, because that directory
// outlives the agent's container.
func (a *Agent) drainFile() string { return a.cfg.Socket.Path + ".drained" }

func (a *Agent) drainFileExists() (time.Time, bool) {
	info, err := os.Lstat(a.drainFile())
	if err != nil || !info.Mode().IsRegular() {
		return time.Time{}, false
	}
	return info.ModTime(), true
}

// failHealth makes the health checks of an Envoy that is not a child fail. If they fail already, no
// drain file is written, so that the drain of somebody else is not undone.
func (a *Agent) failHealth(ctx context.Context) error {
	a.life.health.Lock()
	defer a.life.health.Unlock()
	info, err := a.life.admin.Info(ctx)
	if err != nil {
		return err
	}
	if info.State == envoy.StateDraining {
		return nil
	}
	// The file is written first, because a file without a drain is harmless.
	if err := os.WriteFile(a.drainFile(), nil, 0o600); err != nil {
		a.cfg.Log.Warn("the drain cannot be recorded: the next agent will not undo it", "err", err)
	}
	a.life.failedAt = time.Now()
	return a.life.admin.FailHealth(ctx)
}

// passHealth undoes failHealth, of this agent or one before it, except if unless, which may be nil,
// returns true. It reports whether there was anything to undo: an Envoy that was started since has no
// failing health checks.
func (a *Agent) passHealth(ctx context.Context, unless func() bool) (undone bool, err error) {
	a.life.health.Lock()
	defer a.life.health.Unlock()
	at, marked := a.drainFileExists()
	if !marked && !a.life.failedAt.IsZero() { // the file could not be written, or was deleted
		at, marked = a.life.failedAt, true
	}
	if !marked || unless != nil && unless() {
		return false, nil
	}
	info, err := a.life.admin.Info(ctx)
	if err != nil {
		return false, err
	}
	const precision = 2 * time.Second // of Started
	// While it starts, its state does not tell whether its health checks fail.
	if info.State != envoy.StateLive && !info.Started.After(at.Add(precision)) {
		if err := a.life.admin.PassHealth(ctx); err != nil {
			return false, err
		}
		undone = true
	}
	a.life.failedAt = time.Time{}
	if err := os.Remove(a.drainFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.cfg.Log.Warn("the record of a drain cannot be deleted", "err", err)
	}
	return undone, nil
}

// undoEvery is the interval of attempts to undo the drain of a previous agent.
const undoEvery = 200 * time.Millisecond

// undoDrain undoes the drain of a previous agent, if Envoy is not a child, as soon as there is a
// configuration: the kubelet may replace the agent's container alone, and runs its preStop hook then.
func (a *Agent) undoDrain(ctx context.Context) {
	if a.life.admin == nil {
		return
	}
	if _, marked := a.drainFileExists(); !marked {
		return
	}
	warned := false
	for !a.draining() { // otherwise the drain file is now that of this agent's drain
		if a.servable() {
			undone, err := a.passHealth(ctx, a.draining)
			if undone {
				a.cfg.Log.Info("the drain of the previous agent is undone: Envoy is healthy again")
			}
			if err == nil {
				return
			}
			if !warned {
				warned = true
				a.cfg.Log.Warn("the drain of the previous agent cannot be undone, retrying", "err", err)
			}
		}
		if !wake.Sleep(ctx, undoEvery) {
			return
		}
	}
}
