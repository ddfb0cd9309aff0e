package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

const statusLong = `Show the state of the running agent: first problems, then the control planes, the cached
resources of each type and whether Envoy ACKed them, and the connected clients.
docs/troubleshooting.md explains the columns.

With --check, the exit code is 1 if there is a problem with which requests fail or something is
lost. That the control plane is away is no such problem while its last configuration is served.`

const statusExample = `
holdfast status

# again and again
holdfast status --watch

# for programs
holdfast status -o json

# for cron and CI
holdfast status --check > /dev/null || echo 'look at holdfast status'

# from an agent with another --admin
holdfast status --admin unix:/tmp/holdfast/admin.sock`

func newStatus() *command {
	c := newCommand("status", "show problems, control planes, resources and clients of the running agent", statusLong, statusExample)
	var output string
	var check, watch bool
	flags := c.section("Output")
	c.addOutput(&output, "table", "json", "yaml")
	flags.BoolVar(&check, "check", false, "fail if there is a problem of the level error")
	flags.BoolVarP(&watch, "watch", "w", false, "show it again every two seconds, until interrupted")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		if watch && check {
			return errors.New("give --check or --watch, not both")
		}
		status, err := showStatus(ctx, client, c.OutOrStdout(), output)
		for watch && err == nil && wake.Sleep(ctx, watchEvery) {
			if isTerminal(c.OutOrStdout()) {
				_, _ = io.WriteString(c.OutOrStdout(), "\x1b[H\x1b[2J") // from the top of an empty screen
			}
			_, err = showStatus(ctx, client, c.OutOrStdout(), output)
		}
		if watch && ctx.Err() != nil {
			return nil
		}
		if err == nil && check {
			err = checkStatus(status)
		}
		return cli.Failed(err)
	})
	return c
}

// watchEvery is the interval of --watch.
const watchEvery = 2 * time.Second

// showStatus writes the status of an agent, and returns it.
func showStatus(ctx context.Context, client admin.Client, w io.Writer, format string) (admin.Status, error) {
	status, err := client.Status(ctx)
	if err != nil {
		return status, err
	}
	status.Admin = client.Addr
	return status, writeAs(w, format, status, status.WriteText)
}

// checkStatus returns the problems of the level error; nil for none.
func checkStatus(status admin.Status) error {
	var texts []string
	for _, p := range status.Problems() {
		if p.Level == admin.Failing {
			texts = append(texts, p.Text)
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "\n  "))
}

const dumpLong = `Show the resources in the cache of the running agent: their names, versions, content and
sources, and the reason if Envoy NACKed one. A table has no contents.

[redacted] replaces fields that Envoy's API marks as sensitive (keys, passwords), literal
values of headers that contain credentials (authorization, cookie, x-api-key, …-token),
URLs with a password, and private keys in PEM format anywhere. Other secrets in the
configuration cannot be recognized.`

const dumpExample = `
# everything
holdfast dump

# the clusters; one route configuration
holdfast dump --type CDS
holdfast dump --type RDS --name local_route

# what there is, without contents
holdfast dump -o table`

func newDump() *command {
	c := newCommand("dump", "show the resources in the cache of the running agent, redacted", dumpLong, dumpExample)
	var output, typeName, name string
	flags := c.section("Which resources")
	flags.StringVar(&typeName, "type", "", "`TYPE` of the resources, a short name (CDS, EDS, LDS, RDS, SRDS, VHDS, SDS, RTDS, ECDS, …) or a type URL; empty: all types")
	flags.StringVar(&name, "name", "", "`NAME` of the resource; empty: all")
	c.addOutput(&output, "json", "yaml", "table")
	c.callAgentOrState(func(ctx context.Context, client admin.Client) error {
		if typeName != "" {
			if _, err := admin.ParseType(typeName); err != nil {
				return err
			}
		}
		return cli.Failed(writeDump(ctx, client, c.OutOrStdout(), typeName, name, output))
	})
	return c
}

// writeDump writes the resources of an agent. JSON is written as it comes.
func writeDump(ctx context.Context, client admin.Client, w io.Writer, typeName, name, format string) error {
	if format == "json" {
		return client.Dump(ctx, yamlproto.JSONWriter(w), typeName, name)
	}
	var text bytes.Buffer
	if err := client.Dump(ctx, &text, typeName, name); err != nil {
		return err
	}
	if format == "yaml" {
		out, err := yamlproto.Block(text.Bytes())
		if err == nil {
			_, err = w.Write(out)
		}
		return err
	}
	var dump struct {
		Resources []struct {
			Type, Name, Version, Source, Standing, Reason, Error string
			GoodVersion                                          string    `json:"good_version"`
			FellBack                                             bool      `json:"fell_back"`
			Frozen                                               bool      `json:"frozen"`
			Changed                                              time.Time `json:"changed"`
		}
	}
	if err := json.Unmarshal(text.Bytes(), &dump); err != nil {
		return fmt.Errorf("the dump of %s: %w", client.Addr, err)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TYPE\tNAME\tSTANDING\tVERSION\tSERVED\tSINCE\tSOURCE\tPROBLEM")
	for _, r := range dump.Resources {
		served := r.GoodVersion
		if !r.Frozen && !r.FellBack && r.Standing != xds.Nacked.String() {
			served = cmp.Or(served, r.Version)
		}
		since := "-"
		if !r.Changed.IsZero() {
			since = r.Changed.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", admin.Printable(r.Type), admin.Printable(r.Name), r.Standing, cmp.Or(r.Version, "-"),
			cmp.Or(served, "-"), since, admin.Printable(cmp.Or(r.Source, "-")), admin.Printable(cmp.Or(r.Reason, r.Error, "-")))
	}
	return t.Flush()
}

// callAgent adds --admin to a command, which calls do with a client of the running agent.
func (c *command) callAgent(do func(context.Context, admin.Client) error) {
	var addr string
	c.section("Which agent").StringVar(&addr, "admin", admin.DefaultAddr, "`ADDR` of the agent's --admin: unix:PATH or host:port")
	c.run = func(ctx context.Context, warnings []string) error {
		warn(c, warnings)
		if addr == "" {
			return errors.New("--admin is empty: give the --admin of the agent, unix:PATH or host:port")
		}
		if err := admin.CheckAddrs(addr, ""); err != nil {
			return err
		}
		return do(ctx, admin.Client{Addr: addr})
	}
}

// callAgentOrState is callAgent for a command that also answers from a state directory alone.
func (c *command) callAgentOrState(do func(context.Context, admin.Client) error) {
	c.callAgent(do)
	online := c.run
	var dir string
	var keys []string
	flags := c.section("A state directory in place of an agent")
	flags.StringVar(&dir, "offline", "", "answer from this `DIR`, the --state-dir of an agent, which may be dead, instead of asking an agent")
	flags.Var(texts(&keys), "state-key-file", "`FILE` of the key with which the state is encrypted, for --offline")
	c.run = func(ctx context.Context, warnings []string) error {
		if dir == "" {
			return online(ctx, warnings)
		}
		warn(c, warnings)
		loaded, err := stateKeys(keys)
		if err != nil {
			return err
		}
		handler, err := agent.Offline(dir, loaded)
		if err != nil {
			return cli.Failed(fmt.Errorf("--offline: %w", err))
		}
		return do(ctx, admin.Client{Addr: dir, Handler: handler})
	}
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(yamlproto.JSONWriter(w))
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

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

const resumeLong = `End a freeze or a rollback ("holdfast freeze", "holdfast rollback"): the newest configuration of
the control plane is served.

Also serve resources again that are held back because Envoy crashed with them: if Envoy, as a
child of the agent, crashes three times within ten minutes, each time within a minute of
its start, the agent serves the last stable version of what had changed before (see
"holdfast status"). It is an error if nothing is frozen or held back.

With --removals only, and at once, confirm what the control plane removed and the agent holds
back because it looks like an accident (--max-removal-percent): it takes effect now, and not
only when the control plane has confirmed it. What is frozen stays so.

With --rejected only, offer to Envoy again, at once, what it rejected: everything, or these
names. The agent does so by itself when something has changed that it refers to, and otherwise
ever more seldom (docs/design.md, I7).`

const resumeExample = `
holdfast resume
holdfast resume --removals

# what Envoy rejected: what there is, and offer it again
holdfast resume --rejected --dry-run
holdfast resume --rejected LDS/ingress`

func newResume() *command {
	c := newCommand("resume", "serve again what is frozen, held back or rejected", resumeLong, resumeExample)
	c.takesMany("[TYPE/NAME…]", completeNames)
	var removals, rejected bool
	var offer admin.OfferRequest
	flags := c.section("What")
	flags.BoolVar(&removals, "removals", false, "confirm the removals that are held back because they look like an accident")
	flags.BoolVar(&rejected, "rejected", false, "offer again what Envoy rejected")
	flags.BoolVar(&offer.DryRun, "dry-run", false, "with --rejected: show what would be offered again")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		offer.Names = c.arguments
		switch {
		case removals && rejected:
			return errors.New("give --removals or --rejected, not both")
		case !rejected && (offer.DryRun || len(offer.Names) > 0):
			return errors.New("names and --dry-run need --rejected: everything that is frozen or held back is resumed together")
		case removals:
			return cli.Failed(client.Do(ctx, "resume-removals"))
		case rejected:
			return offerAgain(ctx, client, offer, c.OutOrStdout())
		}
		before, err := client.Status(ctx)
		if err != nil {
			return cli.Failed(err)
		}
		if err := client.Do(ctx, "resume"); err != nil {
			return cli.Failed(err)
		}
		if err := writeResumed(c.OutOrStdout(), before.Groups); err != nil {
			return cli.Failed(err)
		}
		return cli.Failed(writeStillHeldBack(ctx, client, c.OutOrStdout()))
	})
	return c
}

// offerAgain offers what was rejected again, and says what.
func offerAgain(ctx context.Context, client admin.Client, q admin.OfferRequest, w io.Writer) error {
	for _, name := range q.Names {
		if _, err := admin.ParseName(name); err != nil {
			return err
		}
	}
	all, err := client.OfferAgain(ctx, q)
	if err != nil {
		return cli.Failed(err)
	}
	is := "is"
	if q.DryRun {
		is = "would be"
	}
	for _, o := range all {
		if _, err := fmt.Fprintf(w, "node %q: %s/%s %s offered again; it was rejected: %s\n", admin.Printable(o.Node), o.Type, admin.Printable(o.Name), is, admin.Printable(o.Reason)); err != nil {
			return err
		}
	}
	return nil
}

// writeResumed says what has ended, of what there was before.
func writeResumed(w io.Writer, before []admin.Group) error {
	for _, g := range before {
		var ended []string
		if g.Freeze != nil {
			ended = append(ended, g.Freeze.Ended())
		}
		if g.Fallback != nil {
			ended = append(ended, fmt.Sprintf("what was held back because Envoy crashed with it is served again, resources: %d", len(g.Fallback.Suspects)))
		}
		for _, text := range ended {
			if _, err := fmt.Fprintf(w, "node %q: %s\n", admin.Printable(g.NodeID), admin.Printable(text)); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeStillHeldBack names the removals that are held back.
func writeStillHeldBack(ctx context.Context, client admin.Client, w io.Writer) error {
	status, err := client.Status(ctx)
	if err != nil {
		return err
	}
	for _, g := range status.Groups {
		for _, t := range g.Types {
			if t.Withheld == 0 {
				continue
			}
			if _, err := fmt.Fprintf(w, "still held back for node %q: %s: %s; `holdfast resume --removals` confirms it\n", admin.Printable(g.NodeID), t.Type, t.HeldBack()); err != nil {
				return err
			}
		}
	}
	return nil
}

// newAction makes a command that requests an action of the agent, and waits until it is done.
func newAction(name, short, long string) *command {
	c := newCommand(name, short, long, "\nholdfast "+name)
	c.callAgent(func(ctx context.Context, client admin.Client) error { return cli.Failed(client.Do(ctx, name)) })
	return c
}

const logLevelLong = `Change the level of the log of the running agent, until it ends: debug logs every xDS message.
The agent's --log-level is the level after its next start.`

func newLogLevel() *command {
	c := newCommand("loglevel", "change the level of the running agent's log", logLevelLong, "\nholdfast loglevel debug")
	c.takes(strings.Join(admin.LogLevels, "|"))
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		if !slices.Contains(admin.LogLevels, c.argument) {
			return fmt.Errorf("level %q: want one of %s", c.argument, strings.Join(admin.LogLevels, ", "))
		}
		answer, err := client.SetLogLevel(ctx, c.argument)
		if err == nil {
			_, err = fmt.Fprintln(c.OutOrStdout(), answer)
		}
		return cli.Failed(err)
	})
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
		return cli.Failed(awaitReady(ctx, client))
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
