package agent

import (
	"context"
	"errors"
	"time"
)

// socketsEvery is how often it is looked whether the sockets are in their places.
const socketsEvery = time.Second

// sockets returns nil if the paths of the Unix sockets lead to those of this agent, and
// else which one does not: Envoy, or whoever asks the agent, would not find it. While
// another agent takes over, its sockets come in place of these.
func (a *Agent) sockets() error {
	a.life.mu.Lock()
	released := a.life.released
	a.life.mu.Unlock()
	if a.socket == nil || released {
		return nil
	}
	return errors.Join(a.socket.Present(), a.surface.Present())
}

// setReleased notes that another agent may, or may not, put its sockets in place of these.
func (a *Agent) setReleased(released bool) {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	a.life.released = released
}

// keepSockets makes a socket anew that was deleted or replaced, until ctx ends. Clients
// that are connected do not notice.
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
			continue // whoever takes over, or back, sees to them
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

// restoreListeners listens again wherever the agent does not: on sockets that were deleted
// or replaced, and on all that another agent was given. The rest stays as it is.
func (a *Agent) restoreListeners() error {
	errs := []error{a.socket.Restore(), a.surface.Restore()}
	if a.rest != nil {
		errs = append(errs, a.rest.Restore())
	}
	return errors.Join(errs...)
}
