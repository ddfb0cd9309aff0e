package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/proof"
	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

const rehearseLong = `Show what would be if the control plane went away now: what Envoy would be served, also after a
restart of Envoy and of the agent; what would be missing then, and why; and what would end while
the control plane stays away: TTLs, certificates, --max-stale.

This follows from what the running agent knows; nothing is tried, and nothing changes. With --live
it is tried: the running agent is cut off from its control planes for a time, and put back, also
if this command is interrupted. Meanwhile readiness, Envoy and requests are watched. What Envoy
lacks then, it lacks for users, too: begin with one pod. With --prove it is tried with a second
agent and a second Envoy, of which nobody notices anything.

The exit code is 1 if something would be missing, or was lost: for cron, CI and game days.`

const rehearseExample = `
holdfast rehearse

# cut off for half a minute: does Envoy keep serving?
holdfast rehearse --live 30s

# does the state on disk suffice, with a real Envoy?
holdfast rehearse --prove --envoy /usr/local/bin/envoy --config /etc/holdfast/holdfast.yaml

# for cron
holdfast rehearse -o json > /dev/null || echo 'look at holdfast rehearse'`

func newRehearse(p process) *command {
	c := newCommand("rehearse", "show what would be if the control plane went away now", rehearseLong, rehearseExample)
	var output string
	var live time.Duration
	var prove proveFlags
	flags := c.section("What is tried")
	flags.Var(numberOf(&live, 0, notNegative), "live", "cut the running agent off from its control planes for this `DURATION` (1s to 1h), and watch what happens. 0: nothing is tried")
	prove.add(flags)
	c.addOutput(&output, "table", "json", "yaml")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		switch {
		case live > 0 && prove.prove:
			return errors.New("--live and --prove are two rehearsals: do one after the other")
		case prove.prove:
			return prove.run(ctx, p, c, client, output)
		case live > 0:
			if err := admin.CheckCut(live); err != nil {
				return fmt.Errorf("--live: %w", err)
			}
			r, err := client.RehearseLive(ctx, live)
			if err != nil {
				return cli.Failed(err)
			}
			return c.report(r, output, "something was lost while the control plane was cut off")
		}
		r, err := client.Rehearsal(ctx)
		if err != nil {
			return cli.Failed(err)
		}
		return c.report(r, output, "something would be missing if the control plane went away now")
	})
	return c
}

// proveFlags are the flags of `holdfast rehearse --prove`. Most of them are those of `holdfast run`.
type proveFlags struct {
	prove      bool
	cfg        proof.Config
	envoyAdmin string
}

func (f *proveFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.prove, "prove", false, "start a second agent without a control plane on a copy of the state, and an Envoy on it, and compare what this Envoy has with what the running one has. Both run in memory, in a network of their own without a way out, and write to nothing. It needs Linux and root. The second agent has the settings of the variables and of the file of --config")
	flags.StringVar(&f.cfg.Envoy, "envoy", "", "`PATH` of Envoy, for --prove")
	flags.StringVar(&f.cfg.StateDir, "state-dir", "", "`DIR` of the running agent's --state-dir, for --prove")
	flags.StringVar(&f.cfg.IdentityDir, "identity-dir", "", "`DIR` of the running agent's --identity-dir, if it has one, for --prove")
	flags.StringVar(&f.cfg.Socket, "socket", bootstrap.DefaultSocket, "`PATH` of the running agent's --socket, for --prove")
	flags.StringVar(&f.cfg.Bootstrap, "bootstrap", "", "`FILE` of the running Envoy's bootstrap, for --prove")
	flags.StringVar(&f.envoyAdmin, "envoy-admin", "", "`ADDR` of the running Envoy's admin interface, host:port or unix:PATH, for --prove; empty: as in the bootstrap")
}

func (f *proveFlags) run(ctx context.Context, p process, c *command, client admin.Client, output string) (err error) {
	for _, required := range []struct{ value, flag string }{{f.cfg.Envoy, "envoy"}, {f.cfg.StateDir, "state-dir"}, {f.cfg.Bootstrap, "bootstrap"}} {
		if required.value == "" {
			return fmt.Errorf("--prove needs --%s", required.flag)
		}
	}
	f.cfg.Admin, f.cfg.Environ = f.envoyAdmin, p.environ
	if file := c.Flags().Lookup(configFlag).Value.String(); file != "" {
		if file, err = filepath.Abs(file); err != nil {
			return cli.Failed(err)
		}
		f.cfg.Environ = append(slices.Clone(p.environ), envName(configFlag)+"="+file)
	}
	if f.cfg.Admin == "" {
		if f.cfg.Admin, err = bootstrap.ReadAdmin(f.cfg.Bootstrap); err != nil {
			return cli.Failed(err)
		}
	}
	r, err := proof.Run(ctx, f.cfg)
	if err != nil {
		return cli.Failed(fmt.Errorf("--prove: %w", err))
	}
	if err := client.Proved(ctx, r.At, len(r.Losses)); err != nil { // for its metrics
		warn(c, []string{"the agent is not told the result: " + err.Error()})
	}
	return c.report(r, output, "a second Envoy, without a control plane, does not have what the running one has")
}

// rehearsal is the result of one.
type rehearsal interface {
	Lost() bool
	WriteText(io.Writer) error
}

// report writes the result of a rehearsal. If something was lost, it returns an error.
func (c *command) report(r rehearsal, output, lost string) error {
	err := writeAs(c.OutOrStdout(), output, r, r.WriteText)
	if err == nil && r.Lost() {
		err = errors.New(lost)
	}
	return cli.Failed(err)
}
