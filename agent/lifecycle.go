package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/wake"
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
	drain *drain    // in progress or complete; nil for none
	beat  time.Time // when the watchdog last had every lock
}

// Every watchdogEvery the watchdog takes every lock of the agent. If it has not succeeded for
// stuckAfter, the agent is deadlocked.
const (
	watchdogEvery = time.Second
	stuckAfter    = 15 * time.Second
)

func (a *Agent) watch(ctx context.Context) {
	wake.Loop(ctx, nil, func() (next time.Time) {
		for _, m := range a.groups.Members() {
			m.Cache().Idle()
		}
		if a.certificates != nil {
			_ = a.certificates.Ready()
		}
		a.life.mu.Lock()
		a.life.beat = time.Now()
		a.life.mu.Unlock()
		return time.Now().Add(watchdogEvery)
	})
}

// Live returns an error if the agent is deadlocked, which only a restart resolves.
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

// Resume serves resources again that are held back because Envoy crashed with them.
func (a *Agent) Resume(context.Context) error {
	held := false
	for _, m := range a.groups.Members() {
		held = m.Cache().Resume() || held
	}
	if !held {
		return errors.New("resume: nothing is held back")
	}
	return nil
}
