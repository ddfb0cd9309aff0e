package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
)

const drainLong = `Drain Envoy's connections: the agent becomes not ready, and Envoy's health checks fail. The
command returns when no connection is left (and the agent's --drain-min has passed), or
after the agent's --drain-timeout. Use it as preStop hook.

If the agent does not run Envoy, Envoy keeps serving, and "holdfast undrain" or the next
agent on the same socket undoes the drain. If the agent runs Envoy, Envoy also drains its
listeners, which cannot be undone.

The command fails if the agent does not answer for 5 s.`

const undrainLong = `Undo "holdfast drain": Envoy's health checks pass, and the agent is ready again. If somebody
else made the health checks fail before (POST /healthcheck/fail), they still fail. It is an
error if there is no drain, if the agent is shutting down, or if the agent runs Envoy.`

const waitLong = `Wait until the agent is ready: it serves its socket, and has a configuration and
certificates; if it runs Envoy, until Envoy is live. Use it as postStart hook, so that
containers that start later can use the mesh.`

const resumeLong = `Serve resources again that are held back because Envoy crashed with them: if Envoy, as a
child of the agent, crashes three times within ten minutes, each time within a minute of
its start, the agent serves the last stable version of what had changed before (see
"holdfast status"). It is an error if nothing is held back.`

// newAction makes a command that requests an action of the agent, and waits until it is done.
func newAction(name, short, long string) *command {
	c := newCommand(name, short, long, "\nholdfast "+name)
	c.callAgent(func(ctx context.Context, client admin.Client) error { return failed(client.Do(ctx, name)) })
	return c
}

func newWait() *command {
	c := newCommand("wait", "wait until the agent is ready (use as postStart hook)", waitLong, "\nholdfast wait --timeout 30s")
	var timeout time.Duration
	c.section("Timeout").Var(numberOf(&timeout, time.Minute, notNegative), "timeout", "fail after this `DURATION`, and report what is missing; 0: wait forever")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		return failed(awaitReady(ctx, client))
	})
	return c
}

// awaitReady polls until the agent is ready, or ctx ends.
func awaitReady(ctx context.Context, client admin.Client) error {
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	var last error // the reason of the last poll
	for {
		missing, err := client.Ready(ctx)
		switch {
		case err == nil && missing == "":
			return nil
		case err == nil:
			last = errors.New(missing)
		case last == nil || ctx.Err() == nil: // a poll that the timeout cut off has no reason
			last = err
		}
		select {
		case <-poll.C:
			if ctx.Err() == nil {
				continue
			}
		case <-ctx.Done():
		}
		return fmt.Errorf("not ready in time: %w", last)
	}
}
