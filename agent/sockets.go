package agent

import (
	"context"
	"errors"
	"time"
)

// socketsEvery is the interval at which the paths of the sockets are checked.
const socketsEvery = time.Second

// sockets returns an error if the path of a Unix socket does not lead to that of this agent, so that
// clients cannot connect to it. During a takeover the sockets of the other agent replace these.
func (a *Agent) sockets() error {
	a.life.mu.Lock()
	released := a.life.released
	a.life.mu.Unlock()
	if a.socket == nil || released {
		return nil
	}
	return errors.Join(a.socket.Present(), a.surface.Present())
}

// setReleased records whether another agent may replace the sockets.
func (a *Agent) setReleased(released bool) {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	a.life.released = released
}

// keepSockets creates sockets again that were deleted or replaced, until ctx ends. Connected clients
// are not affected.
func (a *Agent) keepSockets(ctx context.Context) error {
	ticker := time.NewTicker(socketsEvery)
	defer ticker.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if a.leaving() {
			continue // the takeover creates them
		}
		missing := a.sockets()
		if missing == nil {
			last = ""
			continue
		}
		err := a.restoreListeners()
		switch {
		case err == nil:
			a.cfg.Log.Warn("a socket was deleted or replaced by another program, and created again", "err", missing)
			last = ""
		case err.Error() != last: // not once a second
			a.cfg.Log.Error("a socket was deleted or replaced by another program, and cannot be created, retrying every second", "err", err)
			last = err.Error()
		}
	}
}

// restoreListeners listens again on sockets that were deleted or replaced, and on sockets and
// addresses that were released to another agent.
func (a *Agent) restoreListeners() error {
	errs := []error{a.socket.Restore(), a.surface.Restore()}
	if a.rest != nil {
		errs = append(errs, a.rest.Restore())
	}
	return errors.Join(errs...)
}
