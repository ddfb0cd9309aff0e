package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// lifecycle is what the agent does about its end, and Envoy's.
type lifecycle struct {
	// envoy runs Envoy as a child; nil where it runs elsewhere. admin is that of an
	// Envoy that runs elsewhere; nil if it is not known.
	envoy *envoy.Supervisor
	admin *envoy.Admin

	// health is held while Envoy's health checks are made to fail or to pass, with the mark of
	// that.
	health sync.Mutex
	// failedAt is when this agent made the checks fail, zero if it did not, or has undone it.
	failedAt time.Time

	mu    sync.Mutex
	drain *drain // under way or over; nil for none
	// ending says that the agent was asked to end.
	ending bool
	// leaving says that another agent takes over, and released that the locks and the
	// addresses which it needs were given up.
	leaving  bool
	released bool
	// successors passes the connection of that agent to awaitEnd. over is closed when
	// the agent has ended, and nobody receives from successors any more.
	successors chan net.Conn
	over       chan struct{}
	beat       time.Time // when the watchdog last came round
}

// watchdogEvery is how often every lock of the agent is taken to see whether it can
// be, stuck when that has not succeeded for so long that it never will.
const (
	watchdogEvery = time.Second
	stuckAfter    = 15 * time.Second
)

// watch takes every lock again and again until ctx ends.
func (a *Agent) watch(ctx context.Context) error {
	ticker := time.NewTicker(watchdogEvery)
	defer ticker.Stop()
	for {
		for _, m := range a.groups.Members() {
			m.Cache().Idle()
		}
		if a.certificates != nil {
			_ = a.certificates.Ready()
		}
		a.life.mu.Lock()
		a.life.beat = time.Now()
		a.life.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Live returns nil while the loops turn, or since when they do not: then only a
// restart helps.
func (a *Agent) Live() error {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	if a.life.beat.IsZero() {
		return nil // not started
	}
	if since := time.Since(a.life.beat); since > stuckAfter {
		return fmt.Errorf("deadlocked since %s: a lock is not released", since.Round(time.Second))
	}
	return nil
}

// end notes that the agent was asked to end.
func (a *Agent) end() {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	a.life.ending = true
}

// runEnvoy runs Envoy until ctx ends, and drains it then; or until Envoy ends, which
// the error says. It is at its end at the latest when serving is.
func (a *Agent) runEnvoy(ctx, serving context.Context) error {
	running, end := context.WithCancel(serving)
	defer end()
	// A drain that a second signal hurries.
	drain, hurry := context.WithCancel(serving)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer hurry()
	wg.Go(func() {
		select {
		case <-ctx.Done():
			_ = a.Drain(drain) // nobody undoes it now
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

// HotRestart exchanges Envoy for a new one.
func (a *Agent) HotRestart(ctx context.Context) error {
	if a.life.envoy == nil {
		return errors.New("hot restart: the agent does not run Envoy: start it with `holdfast run -- envoy …`")
	}
	return a.life.envoy.HotRestart(ctx)
}

// crashed takes in that the Envoy which the agent ran as its child since started has
// crashed.
func (a *Agent) crashed(started time.Time) {
	for _, m := range a.groups.Members() {
		if m.Kind().UserAgent != xds.EnvoyUserAgent {
			continue
		}
		before := m.Cache().Fallback()
		m.Crashed(started)
		if before == nil && m.Cache().Fallback() != nil {
			a.metrics.FellBack()
		}
	}
}

// Resume serves once more what is held back because Envoy crashed with it.
func (a *Agent) Resume(context.Context) error {
	held := false
	for _, m := range a.groups.Members() {
		held = m.Resume() || held
	}
	if !held {
		return errors.New("resume: nothing is held back")
	}
	return nil
}
