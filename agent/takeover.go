package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/wake"
)

const (
	// takenWithin is the time that a successor has until it serves on everything.
	takenWithin = 30 * time.Second
	// lastLook is the time for reading what it may have said before.
	lastLook = 100 * time.Millisecond
	// restoreEvery is the interval of attempts to take back what a successor was given.
	restoreEvery = time.Second
	// handoverRetry is the interval, and handoverWithin the maximum time, of a successor's attempts
	// to bind what another agent has released.
	handoverRetry  = 20 * time.Millisecond
	handoverWithin = 10 * time.Second
	// socketsEvery is the interval at which the paths of the sockets are checked.
	socketsEvery = time.Second
)

// Handover starts a takeover that another agent has requested (handOver).
func (a *Agent) Handover(admit func() (net.Conn, error)) error {
	switch {
	case a.life.envoy != nil:
		return errors.New("takeover: this agent runs Envoy as its child, and Envoy would exit with it")
	case a.socket == nil:
		return errors.New("takeover: this agent has no socket")
	case a.keeper == nil && a.isFrozen():
		return errors.New("takeover: this agent is frozen, and without --state-dir the other would not be: `holdfast resume` first")
	case a.keeper == nil && a.holdsBack():
		return errors.New("takeover: this agent holds back removals that look like an accident, and without --state-dir the other would apply them at once: wait until the control plane confirms them or sends the resources again, or confirm them with `holdfast resume --removals`")
	case !a.life.leaving.CompareAndSwap(false, true):
		return errors.New("takeover: another takeover is in progress")
	}
	conn, err := admit()
	if err != nil {
		a.life.leaving.Store(false)
		return err
	}
	select {
	case a.life.successors <- conn:
	case <-a.life.over:
		_ = conn.Close() // this agent stops, so the other need not wait
	}
	return nil
}

// holdsBack reports whether clients have what a control plane seems to have removed by accident.
func (a *Agent) holdsBack() bool {
	return slices.ContainsFunc(a.groups.Members(), func(m *group.Member) bool { return len(m.Cache().AgentReport().HeldBack) > 0 })
}

// awaitEnd returns when ctx or serving ends, or when another agent has taken over.
func (a *Agent) awaitEnd(ctx, serving context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(serving, cancel)()
	for {
		select {
		case <-ctx.Done():
			return
		case conn := <-a.life.successors:
			over := a.handOver(ctx, conn)
			a.metrics.TakenOver(over && ctx.Err() == nil)
			if over {
				return
			}
		}
	}
}

// handOver releases the lock of the state, those of the sockets, and the TCP addresses, and reports
// whether the successor has confirmed that it serves on all of them. If it exits or takes too long,
// they are taken back. Both sockets are served until the successor replaces them.
func (a *Agent) handOver(ctx context.Context, conn net.Conn) (over bool) {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	a.cfg.Log.Info("takeover by another agent started")
	a.life.released.Store(true)
	if a.keeper != nil {
		a.keeper.handOver()
	}
	a.socket.Detach()
	a.surface.Release()
	if a.rest != nil {
		a.rest.Release()
	}
	err := confirmed(conn)
	switch {
	case ctx.Err() != nil:
		return true // this agent stops in any case, and the successor continues
	case err == nil:
		a.cfg.Log.Info("takeover by another agent complete")
		return true
	}
	a.cfg.Log.Warn("takeover by another agent failed: this agent keeps serving, and takes back its state, sockets and addresses", "err", err)
	_ = conn.Close()
	a.life.released.Store(false)
	a.takeBack(ctx)
	a.life.leaving.Store(false)
	return false
}

// confirmed tells a successor what it waits for, and returns nil when it has confirmed and
// was told that this agent ends.
func confirmed(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(takenWithin))
	if _, err := fmt.Fprintln(conn, admin.Released); err != nil {
		return err
	}
	said, err := admin.ReadLine(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) { // this process may have been stopped meanwhile, and the answer is there
		_ = conn.SetDeadline(time.Now().Add(lastLook))
		said, err = admin.ReadLine(conn)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = fmt.Fprintln(conn, admin.Withdrawn) // it may be stopped, and read this later
		return fmt.Errorf("it has not confirmed within %s", takenWithin)
	case err != nil:
		return fmt.Errorf("it has exited: %w", err)
	case said != admin.Confirmed:
		return fmt.Errorf("it says %q: want %q", said, admin.Confirmed)
	}
	_, err = fmt.Fprintln(conn, admin.Ended)
	return err
}

func (a *Agent) takeBack(ctx context.Context) {
	if a.keeper != nil {
		a.keeper.takeBack()
	}
	last := ""
	for {
		err := a.restoreListeners()
		if err == nil {
			a.cfg.Log.Info("sockets and addresses taken back")
			return
		}
		if text := err.Error(); text != last { // not once a second
			a.cfg.Log.Warn("a socket or an address cannot be taken back, retrying every second", "err", err)
			last = text
		}
		if !wake.Sleep(ctx, restoreEvery) {
			return
		}
	}
}

// bind binds everything that the agent serves on. With --takeover, it first tries what can be tried
// while another agent serves, then requests that agent to release it, and confirms when all is bound.
// Then the other agent exits.
func (a *Agent) bind(ctx context.Context) error {
	alone := []func() error{a.bindSocket, a.bindREST, a.surface.Listen}
	if a.shadow != nil {
		alone = []func() error{a.surface.Listen}
	}
	if !a.cfg.Takeover {
		return a.bindAll(ctx, alone)
	}
	if !strings.HasPrefix(a.cfg.Admin.Addr, "unix:") {
		return errors.New("--takeover needs --admin unix:PATH, the same as that of the running agent")
	}
	if err := a.try(); err != nil {
		return err
	}
	other, err := admin.Client{Addr: a.cfg.Admin.Addr}.Takeover(ctx, a.cfg.Log)
	if errors.Is(err, admin.ErrNoAgent) {
		a.cfg.Log.Info("no agent to take over from", "admin", a.cfg.Admin.Addr)
		return a.bindAll(ctx, alone)
	}
	if err != nil {
		return fmt.Errorf("--takeover: %w", err)
	}
	a.cfg.Log.Info("takeover from another agent started")
	// The socket comes last: as soon as it is replaced, clients connect to this agent.
	steps := []func() error{a.openState, a.surface.Listen, a.bindREST, a.bindSocket}
	if err := a.bindAll(ctx, steps); err != nil {
		other.Abandon()
		return fmt.Errorf("%w (the other agent keeps serving)", err)
	}
	if err := other.Confirm(); err != nil {
		return fmt.Errorf("--takeover: %w", err)
	}
	return nil
}

// bindAll runs one step after the other. With --takeover, a step is retried for handoverWithin while its address is in use.
func (a *Agent) bindAll(ctx context.Context, steps []func() error) error {
	inUse := func(err error) bool { return a.cfg.Takeover && errors.Is(err, syscall.EADDRINUSE) }
	for _, step := range steps {
		deadline := time.Now().Add(handoverWithin)
		err := step()
		for err != nil && inUse(err) && time.Now().Before(deadline) && wake.Sleep(ctx, handoverRetry) {
			err = step()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// try binds everything for a moment. What is in use may be in use by the other agent, and is no error.
func (a *Agent) try() error {
	if err := downstream.Try(a.cfg.Socket); err != nil {
		return err
	}
	if a.certificates != nil {
		if err := a.certificates.Open(); err != nil {
			return err
		}
	}
	if err := a.surface.Try(); err != nil {
		return err
	}
	if a.cfg.REST == "" {
		return nil
	}
	if err := listener.Try(a.cfg.REST); err != nil {
		return fmt.Errorf("--rest: %w", err)
	}
	return nil
}

func (a *Agent) openState() error {
	if a.keeper == nil {
		return nil
	}
	if err := a.keeper.open(); err != nil {
		return fmt.Errorf("--takeover: this agent would start without the stored state: %w", err)
	}
	return nil
}

func (a *Agent) bindSocket() error {
	socket, err := downstream.Listen(a.cfg.Socket, &a.cfg.Peers)
	if err != nil {
		return err
	}
	a.socket = socket
	uids, gids := socket.Admitted()
	a.cfg.Log.Info("serving xDS", "socket", a.cfg.Socket.Path, "uids", uids, "gids", gids)
	return nil
}

func (a *Agent) bindREST() error {
	if a.cfg.REST == "" {
		return nil
	}
	rest, err := listener.Listen(a.cfg.REST)
	if err != nil {
		return fmt.Errorf("--rest: %w", err)
	}
	a.rest = rest
	a.cfg.Log.Info("serving REST", "addr", a.rest.Addr().String())
	return nil
}

func (a *Agent) unbind() {
	a.surface.Close()
	if a.socket != nil {
		_ = a.socket.Close()
	}
	if a.rest != nil {
		_ = a.rest.Close()
	}
}

// sockets returns an error if the path of a Unix socket does not lead to that of this agent, so that
// clients cannot connect to it. During a takeover the sockets of the other agent replace these.
func (a *Agent) sockets() error {
	if a.socket == nil || a.life.released.Load() {
		return nil
	}
	return errors.Join(a.socket.Present(), a.surface.Present())
}

// keepSockets creates sockets again that were deleted or replaced, until ctx ends.
func (a *Agent) keepSockets(ctx context.Context) {
	last := ""
	for wake.Sleep(ctx, socketsEvery) {
		if a.life.leaving.Load() {
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

// restoreListeners listens again on what was deleted, replaced, or released to another agent.
func (a *Agent) restoreListeners() error {
	errs := []error{a.socket.Restore(), a.surface.Restore()}
	if a.rest != nil {
		errs = append(errs, a.rest.Restore())
	}
	return errors.Join(errs...)
}
