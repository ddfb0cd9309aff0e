package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/envoy"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// lifecycle is what the agent does about its end, and Envoy's.
type lifecycle struct {
	// envoy runs Envoy as a child; nil where it runs elsewhere. admin is that of an
	// Envoy that runs elsewhere; nil if it is not known.
	envoy *envoy.Supervisor
	admin *envoy.Admin

	mu      sync.Mutex
	drained chan struct{} // made when a drain begins, closed when it is over
	// left is closed when another agent takes over.
	left chan struct{}
	beat time.Time // when the watchdog last came round
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
		for _, m := range a.members() {
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
		return fmt.Errorf("stuck since %s: a lock is not given back", since.Round(time.Second))
	}
	return nil
}

// Drain lets Envoy end its connections, and makes the agent not ready, for good. It
// returns when Envoy may be ended. Those who ask while a drain is under way wait for
// it.
func (a *Agent) Drain(ctx context.Context) {
	a.life.mu.Lock()
	under := a.life.drained
	if under == nil {
		a.life.drained = make(chan struct{})
	}
	a.life.mu.Unlock()
	if under != nil {
		select {
		case <-under:
		case <-ctx.Done():
		}
		return
	}
	defer close(a.life.drained)
	a.cfg.Log.Info("draining: not ready from now on")
	switch {
	case a.life.envoy != nil:
		a.life.envoy.Drain(ctx)
	case a.life.admin != nil:
		envoy.Drain(ctx, a.life.admin, a.cfg.Envoy.Draining, a.cfg.Log)
	}
}

// draining reports whether a drain has begun.
func (a *Agent) draining() bool {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	return a.life.drained != nil
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
			a.Drain(drain)
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
		return errors.New("hot restart: Envoy is not run by the agent: start it with `holdfast run -- envoy …`")
	}
	return a.life.envoy.HotRestart(ctx)
}

// crashed takes in that the Envoy which the agent ran as its child since started has
// crashed.
func (a *Agent) crashed(started time.Time) {
	for _, m := range a.members() {
		if m.kind.userAgent == xds.EnvoyUserAgent {
			m.Crashed(started)
		}
	}
}

// Resume serves once more what is held back because Envoy crashed with it.
func (a *Agent) Resume(context.Context) error {
	held := false
	for _, m := range a.members() {
		held = m.Resume() || held
	}
	if !held {
		return errors.New("resume: nothing is held back")
	}
	return nil
}

// takenWithin is how long a successor may take until its socket is in place.
const takenWithin = 30 * time.Second

// Handover leaves what there can be only one of to another agent, which asks for it:
// the lock of the state, that of the socket, the addresses of admin and health. What
// clients have goes on until the successor's socket is there. Then this agent ends.
func (a *Agent) Handover(context.Context) error {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	switch {
	case a.life.envoy != nil:
		return errors.New("takeover: this agent runs Envoy as its child, which would end with it")
	case a.socket == nil:
		return errors.New("takeover: this agent has no socket")
	}
	select {
	case <-a.life.left:
		return errors.New("takeover: another agent is taking over")
	default:
		close(a.life.left)
	}
	a.cfg.Log.Info("another agent takes over")
	return nil
}

// handoverRetry is how often, and handoverWithin how long, what another agent leaves
// is tried for.
const (
	handoverRetry  = 20 * time.Millisecond
	handoverWithin = 10 * time.Second
)

// takeOver asks the agent that serves the admin address to leave, and waits until it has
// left what is needed first: its state, then the addresses of admin and health. Without
// one there is nothing to take over.
func (a *Agent) takeOver(ctx context.Context) error {
	path, unix := strings.CutPrefix(a.cfg.Admin, "unix:")
	if !unix {
		return errors.New("--takeover needs --admin unix:PATH, the same as that of the agent that is taken over from: it is asked there")
	}
	serves := func() bool {
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	if !serves() {
		a.cfg.Log.Info("nobody to take over from", "admin", a.cfg.Admin)
		return nil
	}
	if err := (admin.Client{Addr: a.cfg.Admin}).Do(ctx, "takeover"); err != nil {
		return fmt.Errorf("--takeover: %w", err)
	}
	a.cfg.Log.Info("taking over from another agent")
	left := retry(ctx, func() error {
		if serves() {
			return errors.New("it still serves its admin address")
		}
		return nil
	})
	if left == nil && a.cfg.Health != "" {
		var lis net.Listener
		if lis, left = a.listen(ctx, a.cfg.Health); left == nil {
			_ = lis.Close()
		}
	}
	if left != nil {
		return fmt.Errorf("--takeover: the other agent has not left within %s: %w", handoverWithin, left)
	}
	return nil
}

// listen listens on a TCP address. One that takes over waits for the other agent to give
// it free.
func (a *Agent) listen(ctx context.Context, addr string) (lis net.Listener, err error) {
	try := func() (err error) {
		lis, err = net.Listen("tcp", addr)
		return err
	}
	if a.cfg.Takeover {
		err = retry(ctx, try)
	} else {
		err = try()
	}
	return lis, err
}

// retry tries until it works, handoverWithin has passed or ctx ends, and returns the last
// error.
func retry(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, handoverWithin)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(handoverRetry):
		}
	}
}

// awaitSuccessor waits until the socket of another agent is in place of this one's.
func (a *Agent) awaitSuccessor(ctx context.Context) error {
	if err := a.socket.Release(); err != nil {
		return err
	}
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	late := time.NewTimer(takenWithin)
	defer late.Stop()
	for !a.socket.Replaced() {
		select {
		case <-ctx.Done():
			return nil
		case <-late.C:
			return fmt.Errorf("another agent was to take over, and its socket is not there after %s: this one ends, since it has given away the locks", takenWithin)
		case <-poll.C:
		}
	}
	a.cfg.Log.Info("another agent has taken over")
	return nil
}
