package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

const freezeLong = `Serve to Envoy what it is served now, whatever the control plane sends, until "holdfast resume".

Without a TYPE everything is frozen but endpoints, because a freeze must not send requests to
hosts that are gone, and secrets, because certificates end. TTLs still end. What frozen
resources refer to is served on, although the control plane removes it.

What the control plane sends is kept and not served: "holdfast status" counts the changes that
wait, and "holdfast diff TYPE/NAME served held" shows them. The control plane gets a NACK with
the reason, so that its own tools do not show the configuration as accepted.

A freeze outlives restarts of Envoy and, with --state-dir, of the agent.`

const freezeExample = `
holdfast freeze --reason 'incident 4711: bad routes'

# only routes, and remind after two hours
holdfast freeze RDS VHDS --reason 'incident 4711' --for 2h

# what waits, and the end
holdfast status
holdfast diff RDS/local_route served held
holdfast resume`

func newFreeze() *command {
	c := newCommand("freeze", "serve what is served now, whatever the control plane sends", freezeLong, freezeExample)
	c.takesMany("[TYPE…]", completeTypes)
	var q admin.FreezeRequest
	flags := c.section("The freeze")
	flags.StringVar(&q.Reason, "reason", "", "`TEXT` that status, log and control plane show, of at most 200 bytes")
	flags.Var(numberOf(&q.For, 0, notNegative), "for", "remind after this `DURATION` (such as 2h) in status and readyz; nothing ends by itself. 0: never")
	flags.BoolVar(&q.ACK, "freeze-ack", false, "ACK what the control plane sends, for a control plane that does not cope with NACKs. It then shows as accepted what Envoy does not have")
	var output string
	c.addOutput(&output, "table", "json", "yaml")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		for _, name := range c.arguments {
			if _, err := admin.ParseType(name); err != nil {
				return err
			}
		}
		q.Types = c.arguments
		if err := client.Freeze(ctx, q); err != nil {
			return cli.Failed(err)
		}
		status, err := client.Status(ctx)
		if err != nil {
			return cli.Failed(err)
		}
		return cli.Failed(writeFreezes(c.OutOrStdout(), status, output))
	})
	return c
}

// writeFreezes writes what is frozen, for each node.
func writeFreezes(w io.Writer, status admin.Status, format string) error {
	type frozen struct {
		Node   string        `json:"node"`
		Freeze *admin.Freeze `json:"freeze"`
	}
	all := []frozen{}
	for _, g := range status.Groups {
		if g.Freeze != nil {
			all = append(all, frozen{g.NodeID, g.Freeze})
		}
	}
	switch format {
	case "json":
		return writeJSON(w, all)
	case "yaml":
		return writeYAML(w, all)
	}
	for _, g := range status.Groups {
		if g.Freeze != nil {
			if _, err := fmt.Fprintf(w, "node %q: %s\n", g.NodeID, admin.Printable(g.Freeze.Line(status.Now, ""))); err != nil {
				return err
			}
		}
	}
	return nil
}

const rollbackLong = `Serve what Envoy had accepted at an earlier time, and freeze it (see "holdfast freeze").

Without --to, that is what Envoy had accepted before the last change; contents that it accepted
within 5 s of each other are one change. A second rollback goes one change further back.

Without a TYPE/NAME all types are rolled back, consistently, but endpoints and secrets: what
clusters that come back need is taken from the newest endpoints that are known. With names only
these are rolled back and frozen.

If something of that time is missing (a version that is not kept any more, a secret, a
certificate that has ended), it is named and nothing changes, unless --partial is given. "holdfast
history" shows what is kept. "holdfast resume" serves the newest configuration again.`

const rollbackExample = `
# what would change, and do it
holdfast rollback --dry-run
holdfast rollback --reason 'incident 4711'

# to a time, or ten minutes back
holdfast rollback --to 2026-01-31T02:55:00Z
holdfast rollback --to 10m

# one route configuration, to a version of holdfast history
holdfast rollback RDS/local_route --to 5a2d0c1f9e8b7a66

# the end
holdfast resume`

func newRollback() *command {
	c := newCommand("rollback", "serve what Envoy had accepted at an earlier time, and freeze it", rollbackLong, rollbackExample)
	c.takesMany("[TYPE/NAME…]", completeNames)
	var q admin.RollbackRequest
	var to, output string
	flags := c.section("The rollback")
	flags.StringVar(&to, "to", "", "`TIME` (2026-01-31T02:55:00Z), duration before now (10m) or, with one TYPE/NAME, version; empty: before the last change")
	flags.StringVar(&q.Reason, "reason", "", "`TEXT` that status, log and control plane show, of at most 200 bytes")
	flags.BoolVar(&q.Partial, "partial", false, "roll back although something is missing, which stays as it is")
	flags.BoolVar(&q.DryRun, "dry-run", false, "show what would change")
	c.addOutput(&output, "table", "json", "yaml")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		for _, name := range c.arguments {
			if _, err := admin.ParseName(name); err != nil {
				return err
			}
		}
		q.Names = c.arguments
		if to != "" {
			at, err := admin.ParseTime(to, time.Now())
			switch {
			case err == nil:
				q.To = at
			case len(q.Names) == 1:
				q.Version = to
			default:
				return fmt.Errorf("--to %w; a version is that of one TYPE/NAME", err)
			}
		}
		all, err := client.RollBack(ctx, q)
		if err != nil {
			return cli.Failed(err)
		}
		return cli.Failed(writeRollbacks(c.OutOrStdout(), all, q, output))
	})
	return c
}

func writeRollbacks(w io.Writer, all []admin.Rollback, q admin.RollbackRequest, format string) error {
	missing := 0
	for _, r := range all {
		missing += len(r.Missing)
	}
	var err error
	switch format {
	case "json":
		err = writeJSON(w, all)
	case "yaml":
		err = writeYAML(w, all)
	default:
		for _, r := range all {
			writeRollback(w, r, q)
		}
	}
	if err == nil && missing > 0 && !q.Partial {
		return fmt.Errorf("nothing was rolled back, because something is missing: --partial rolls back the rest")
	}
	return err
}

func writeRollback(w io.Writer, r admin.Rollback, q admin.RollbackRequest) {
	did, to := "rolled back", "version "+q.Version
	if !r.Done {
		did = "would be rolled back"
	}
	if q.Version == "" {
		to = r.To.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	what := "1 resource"
	if n := len(r.Changes); n != 1 {
		what = fmt.Sprintf("%d resources", n)
	}
	_, _ = fmt.Fprintf(w, "node %q: %s %s to %s\n", r.Node, what, did, to)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, ch := range r.Changes {
		_, _ = fmt.Fprintf(t, "  %s/%s\t%s\t→ %s\n", ch.Type, admin.Printable(ch.Name), admin.VersionText(ch.From), admin.VersionText(ch.To))
	}
	_ = t.Flush()
	if len(r.Missing) > 0 {
		_, _ = fmt.Fprintln(w, "missing")
	}
	for _, m := range r.Missing {
		_, _ = fmt.Fprintf(w, "  %s/%s: %s\n", m.Type, admin.Printable(m.Name), admin.Printable(m.Why))
	}
	if r.Done {
		_, _ = fmt.Fprintln(w, "It is frozen: `holdfast resume` serves the newest configuration again.")
	}
}
