package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
)

const rehearseLong = `Show what would be if the control plane went away now: what Envoy would be served, also after a
restart of Envoy and of the agent; what would be missing then, and why; and what would end while
the control plane stays away: TTLs, certificates, --max-stale.

This follows from what the running agent knows; nothing is tried, and nothing changes. With --live
it is tried: the running agent is cut off from its control planes for a time, and put back, also
if this command is interrupted. Meanwhile readiness, Envoy and requests are watched. What Envoy
lacks then, it lacks for users, too: begin with one pod.

The exit code is 1 if something would be missing, or was lost: for cron, CI and game days.`

const rehearseExample = `
holdfast rehearse

# cut off for half a minute: does Envoy keep serving?
holdfast rehearse --live 30s

# for cron
holdfast rehearse -o json > /dev/null || echo 'look at holdfast rehearse'`

func newRehearse() *command {
	c := newCommand("rehearse", "show what would be if the control plane went away now", rehearseLong, rehearseExample)
	var output string
	var live time.Duration
	c.section("What is tried").Var(numberOf(&live, 0, notNegative), "live", "cut the running agent off from its control planes for this `DURATION` (1s to 1h), and watch what happens. 0: nothing is tried")
	c.section("Output").VarP(oneOf(&output, "table", "json", "yaml"), "output", "o", "output format")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		if live > 0 {
			if err := admin.CheckCut(live); err != nil {
				return fmt.Errorf("--live: %w", err)
			}
			r, err := client.RehearseLive(ctx, live)
			if err != nil {
				return failed(err)
			}
			return c.report(r, output, "something was lost while the control plane was cut off")
		}
		r, err := client.Rehearsal(ctx)
		if err != nil {
			return failed(err)
		}
		return c.report(r, output, "something would be missing if the control plane went away now")
	})
	return c
}

// rehearsal is the result of one.
type rehearsal interface {
	Lost() bool
	WriteText(io.Writer) error
}

// report writes the result of a rehearsal. If something was lost, it returns an error.
func (c *command) report(r rehearsal, output, lost string) (err error) {
	switch output {
	case "json":
		err = writeJSON(c.OutOrStdout(), r)
	case "yaml":
		err = writeYAML(c.OutOrStdout(), r)
	default:
		err = r.WriteText(c.OutOrStdout())
	}
	if err == nil && r.Lost() {
		err = errors.New(lost)
	}
	return failed(err)
}
