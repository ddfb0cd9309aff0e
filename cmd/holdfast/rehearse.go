package main

import (
	"context"
	"errors"

	"github.com/holdfast-xds/holdfast/agent/admin"
)

const rehearseLong = `Show what would be if the control plane went away now: what Envoy would be served, also after a
restart of Envoy and of the agent; what would be missing then, and why; and what would end while
the control plane stays away: TTLs, certificates, --max-stale.

This follows from what the running agent knows; nothing is tried, and nothing changes. The exit
code is 1 if something would be missing: for cron, CI and game days.`

const rehearseExample = `
holdfast rehearse

# for cron
holdfast rehearse -o json > /dev/null || echo 'look at holdfast rehearse'`

func newRehearse() *command {
	c := newCommand("rehearse", "show what would be if the control plane went away now", rehearseLong, rehearseExample)
	var output string
	c.section("Output").VarP(oneOf(&output, "table", "json", "yaml"), "output", "o", "output format")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		r, err := client.Rehearsal(ctx)
		if err != nil {
			return failed(err)
		}
		switch output {
		case "json":
			err = writeJSON(c.OutOrStdout(), r)
		case "yaml":
			err = writeYAML(c.OutOrStdout(), r)
		default:
			err = r.WriteText(c.OutOrStdout())
		}
		if err == nil && r.Lost() {
			err = errors.New("something would be missing if the control plane went away now")
		}
		return failed(err)
	})
	return c
}
