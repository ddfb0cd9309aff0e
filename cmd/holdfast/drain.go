package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
)

const drainLong = `Let Envoy end its connections: the agent is not ready any more, and Envoy's health
checks fail. It returns when no connection is left (and --drain-min of the agent has
passed), or after the agent's --drain-timeout. For the preStop hook.

An Envoy that the agent does not run serves on, and "holdfast undrain" or the next
agent on the same socket undoes it. One that the agent runs drains its listeners,
too, and is to be ended.

It fails if the agent says nothing for 5 s.`

const undrainLong = `Undo "holdfast drain": Envoy's health checks pass, and the agent is ready again. What
somebody else has made fail before (POST /healthcheck/fail) goes on failing. It is an
error if nothing is drained, if the agent is about to end, or if it runs Envoy.`

const waitLong = `Wait until the agent is ready: its socket is there, and it has a configuration and
certificates to give; if it runs Envoy, until that serves. For the postStart hook, so
that what starts after it finds the mesh.`

func newDrain() *command {
	return newAction("drain", "let Envoy end its connections: for preStop", drainLong)
}

func newUndrain() *command {
	return newAction("undrain", "undo a drain", undrainLong)
}

const resumeLong = `Serve once more what is held back because Envoy crashed with it: after Envoy, run by
the agent as its child, has crashed three times within ten minutes, each time within a
minute of its start, the agent serves the last stable version of what changed before
(see "holdfast status"). It is an error if nothing is held back.`

func newResume() *command {
	return newAction("resume", "serve what is held back after crashes of Envoy", resumeLong)
}

// newAction makes a command that asks the agent to do something, and waits until it is done.
func newAction(name, short, long string) *command {
	c := newCommand(name, short, long, "\nholdfast "+name)
	var addr string
	addAdmin(c.section("Which agent"), &addr)
	c.run = func(ctx context.Context, warnings []string) error {
		warn(c, warnings)
		client, err := newClient(addr)
		if err != nil {
			return err
		}
		return failed(client.Do(ctx, name))
	}
	return c
}

func newWait() *command {
	c := newCommand("wait", "wait until the agent is ready: for postStart", waitLong, "\nholdfast wait --timeout 30s")
	var (
		addr    string
		timeout time.Duration
	)
	c.section("Timeout").Var(numberOf(&timeout, time.Minute, notNegative), "timeout", "fail after this `DURATION`, and report what is missing; 0: wait forever")
	addAdmin(c.section("Which agent"), &addr)
	c.run = func(ctx context.Context, warnings []string) error {
		warn(c, warnings)
		client, err := newClient(addr)
		if err != nil {
			return err
		}
		if timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, timeout)
			defer cancel()
		}
		return failed(awaitReady(ctx, client))
	}
	return c
}

// awaitReady asks until the agent is ready, or ctx ends.
func awaitReady(ctx context.Context, client admin.Client) error {
	poll := time.NewTicker(200 * time.Millisecond)
	defer poll.Stop()
	var last error // why it was not ready
	for {
		missing, err := client.Ready(ctx)
		switch {
		case err == nil && missing == "":
			return nil
		case err == nil:
			last = errors.New(missing)
		case last == nil || ctx.Err() == nil: // what the end of the time cuts off says nothing of the agent
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
