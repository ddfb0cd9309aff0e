package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

const historyLong = `Show which versions Envoy accepted, and when: those of one TYPE/NAME, or all names that changed.

The agent keeps the last 10 versions of a name, and at most --history-bytes of them; with
--state-dir they outlive it. "holdfast diff" shows what changed in them, and "holdfast rollback"
serves them again.`

const historyExample = `
# what changed, and when
holdfast history
holdfast history --since 1h

# the versions of one route configuration
holdfast history RDS/local_route`

func newHistory() *command {
	c := newCommand("history", "show which versions Envoy accepted, and when", historyLong, historyExample)
	c.takesMany("[TYPE | TYPE/NAME]", completeNames)
	var since, node, output string
	flags := c.section("Which versions")
	flags.StringVar(&since, "since", "", "only names that changed since this `TIME` (2026-01-31T02:55:00Z) or within this duration (1h)")
	flags.StringVar(&node, "node", "", "`ID` of the node of the clients; empty: all nodes")
	c.addOutput(&output, "table", "json", "yaml")
	c.callAgentOrState(func(ctx context.Context, client admin.Client) error {
		f := admin.HistoryFilter{Node: node}
		if len(c.arguments) > 1 {
			return fmt.Errorf("%d arguments are too many: `holdfast history` takes one", len(c.arguments))
		}
		if len(c.arguments) == 1 {
			var err error
			if f.Type, f.Name, err = typeAndName(c.arguments[0]); err != nil {
				return err
			}
		}
		if since != "" {
			at, err := admin.ParseTime(since, time.Now())
			if err != nil {
				return fmt.Errorf("--since %w", err)
			}
			f.Since = at
		}
		all, err := client.History(ctx, f)
		if err != nil {
			return cli.Failed(err)
		}
		return cli.Failed(writeHistory(c.OutOrStdout(), all, f, output))
	})
	return c
}

// typeAndName returns the type URL and the name of TYPE or TYPE/NAME.
func typeAndName(text string) (typeURL, name string, err error) {
	if typeURL, err = admin.ParseType(text); err == nil && !strings.Contains(strings.TrimPrefix(text, "type.googleapis.com/"), "/") {
		return typeURL, "", nil
	}
	k, err := admin.ParseName(text)
	return k.Type, k.Name, err
}

func writeHistory(w io.Writer, all []admin.NameHistory, f admin.HistoryFilter, format string) error {
	switch format {
	case "json":
		return writeJSON(w, all)
	case "yaml":
		return writeYAML(w, all)
	}
	switch {
	case len(all) == 0 && f.Name != "":
		return errors.New("no client accepted anything under this name, as far as is known: `holdfast status` shows what is cached")
	case len(all) == 0:
		_, err := fmt.Fprintln(w, "nothing that Envoy had accepted has changed")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if f.Name == "" {
		_, _ = fmt.Fprintln(t, "RESOURCE\tVERSIONS\tLAST CHANGE\tIS NOW")
	}
	for _, h := range all {
		if f.Name == "" {
			now := h.Versions[len(h.Versions)-1]
			_, _ = fmt.Fprintf(t, "%s/%s\t%d\t%s\t%s\n", h.Type, admin.Printable(h.Name), len(h.Versions), stamp(now.From, h.Began), admin.VersionText(now.Version))
			continue
		}
		_, _ = fmt.Fprintf(t, "%s/%s of node %q\n", h.Type, admin.Printable(h.Name), h.Node)
		if len(h.Versions) == 0 {
			_, _ = fmt.Fprintln(t, "no client accepted anything under this name")
		} else {
			_, _ = fmt.Fprintln(t, "FROM\tUNTIL\tVERSION\tUPSTREAM\tBYTES")
		}
		for _, v := range h.Versions {
			until, size := "now", fmt.Sprint(v.Size)
			if !v.Until.IsZero() {
				until = stamp(v.Until, time.Time{})
			}
			if v.Version != "" && !v.Kept {
				size = "not kept"
			}
			_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", stamp(v.From, h.Began), until, admin.VersionText(v.Version), admin.Printable(orDash(v.UpstreamVersion)), size)
		}
		if r := h.Rejected; r != nil {
			if err := t.Flush(); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(w, "the newest content, %s, was rejected at %s: %s\n%s\n", admin.VersionText(r.Version), stamp(r.Tries.Last, time.Time{}),
				admin.Printable(r.Reason), r.Tries.Line(time.Now()))
		}
	}
	return t.Flush()
}

// stamp returns a time for a person; for the zero time that it was before began.
func stamp(at, began time.Time) string {
	switch {
	case at.IsZero() && began.IsZero():
		return "-"
	case at.IsZero():
		return "before " + began.UTC().Format(time.RFC3339)
	}
	return at.UTC().Format(time.RFC3339)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

const diffLong = `Show how two contents of a resource differ, as YAML without secrets.

A and B are contents: served (what Envoy is sent), held (what the control plane sent last),
accepted (what Envoy ACKed last), previous (what it had accepted before), stable (with which it
ran for a minute), stored (what is on disk), upstream (as held, if a control plane is connected),
a time (2026-01-31T02:55:00Z), a duration before now (10m), a version of "holdfast history", or
the --admin of another agent (unix:PATH or host:port), whose Envoy's content is meant.

Without A and B, served and held are compared if they differ, and else previous and accepted.
Without B, A is compared with served. With --since everything that changed is compared.

With "holdfast freeze", what waits is the difference of served and held.`

const diffExample = `
# what changed last in the routes, and within the last hour
holdfast diff RDS/local_route
holdfast diff --since 1h

# with ten minutes ago, and with another agent
holdfast diff RDS/local_route 10m
holdfast diff CDS/shop unix:/run/other/admin.sock`

func newDiff() *command {
	c := newCommand("diff", "show what changed in a resource, or since a time", diffLong, diffExample)
	c.takesMany("TYPE/NAME [A [B]]", completeDiff)
	var since, node, color, output string
	flags := c.section("What to compare")
	flags.StringVar(&since, "since", "", "compare everything that Envoy accepted since this `TIME` (2026-01-31T02:55:00Z) or within this duration (1h) with what it had before")
	flags.StringVar(&node, "node", "", "`ID` of the node of the clients; empty: all nodes")
	flags = c.section("Output")
	c.addOutput(&output, "table", "json", "yaml")
	flags.Var(oneOf(&color, "auto", "always", "never"), "color", "colour the differences; auto: on a terminal, unless NO_COLOR is set")
	c.callAgentOrState(func(ctx context.Context, client admin.Client) error {
		d := &differ{client: client, node: node, out: c.OutOrStdout(), color: wantsColor(color, c.OutOrStdout()), format: output}
		switch {
		case since != "" && len(c.arguments) > 0:
			return errors.New("give TYPE/NAME or --since, not both: `holdfast diff TYPE/NAME TIME` compares with a time")
		case since != "":
			at, err := admin.ParseTime(since, time.Now())
			if err != nil {
				return fmt.Errorf("--since %w", err)
			}
			return cli.Failed(d.finish(d.since(ctx, at)))
		case len(c.arguments) == 0 || len(c.arguments) > 3:
			return errors.New("want TYPE/NAME [A [B]] or --since: `holdfast history` shows what changed")
		}
		if _, err := admin.ParseName(c.arguments[0]); err != nil {
			return err
		}
		return cli.Failed(d.finish(d.resource(ctx, c.arguments[0], c.arguments[1:])))
	})
	return c
}

// wantsColor reports whether output is coloured (https://no-color.org).
func wantsColor(flag string, out io.Writer) bool {
	return flag == "always" || flag == "auto" && os.Getenv("NO_COLOR") == "" && isTerminal(out)
}

func isTerminal(out io.Writer) bool {
	f, isFile := out.(*os.File)
	return isFile && term.IsTerminal(int(f.Fd()))
}

// differ writes differences.
type differ struct {
	client admin.Client
	node   string
	out    io.Writer
	color  bool
	format string
	// found collects the differences for the formats json and yaml.
	found []admin.Difference
}

// finish writes what was collected for a program, unless there was an error.
func (d *differ) finish(err error) error {
	switch {
	case err != nil:
		return err
	case d.format == "json":
		return writeJSON(d.out, append([]admin.Difference{}, d.found...))
	case d.format == "yaml":
		return writeYAML(d.out, append([]admin.Difference{}, d.found...))
	}
	return nil
}

// since writes the differences of everything that changed since a time.
func (d *differ) since(ctx context.Context, at time.Time) error {
	all, err := d.client.History(ctx, admin.HistoryFilter{Node: d.node, Since: at})
	if err != nil {
		return err
	}
	if len(all) == 0 && d.format == "table" {
		_, err := fmt.Fprintf(d.out, "nothing that Envoy had accepted has changed since %s\n", at.UTC().Format(time.RFC3339))
		return err
	}
	for _, h := range all {
		d.node = h.Node
		name := h.Type + "/" + h.Name
		if err := d.compare(ctx, name, oldest(h, at).Format(time.RFC3339Nano), "accepted"); errors.Is(err, admin.ErrUnknownContent) {
			if _, err := fmt.Fprintf(d.out, "%s: %v\n", admin.Printable(name), err); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
	}
	return nil
}

// oldest returns a time, or the first time after it of which it is known what a name was.
func oldest(h admin.NameHistory, at time.Time) time.Time {
	for _, v := range h.Versions {
		if !v.Until.IsZero() && !v.Until.After(at) {
			continue
		}
		for _, begins := range []time.Time{h.Began, v.From} {
			if begins.After(at) {
				at = begins
			}
		}
		break
	}
	return at.UTC()
}

// resource writes how two contents of a resource differ.
func (d *differ) resource(ctx context.Context, resource string, which []string) error {
	which = append(which, "", "")
	return d.compare(ctx, resource, which[0], which[1])
}

// compare writes how two contents of a resource differ, for the clients of each node.
func (d *differ) compare(ctx context.Context, resource, a, b string) error {
	all, err := admin.Diff(resource, a, b, func(which string) ([]admin.Content, error) { return d.contents(ctx, resource, which) })
	if err != nil {
		return err
	}
	for _, found := range all {
		if err := d.write(found); err != nil {
			return err
		}
	}
	return nil
}

// contents returns a content of a resource, of this agent or of another one.
func (d *differ) contents(ctx context.Context, resource, which string) ([]admin.Content, error) {
	if strings.HasPrefix(which, "unix:") || !strings.Contains(which, "T") && strings.Contains(which, ":") {
		return admin.Client{Addr: which}.Contents(ctx, "", resource, "served")
	}
	return d.client.Contents(ctx, d.node, resource, which)
}

func (d *differ) write(found admin.Difference) error {
	if d.format != "table" {
		d.found = append(d.found, found)
		return nil
	}
	text, shown, a, b := found.Diff, admin.Printable(found.Resource), found.A, found.B
	switch {
	case a.Version == b.Version:
		text = fmt.Sprintf("%s: %s and %s are the same, version %s\n", shown, a.Which, b.Which, admin.VersionText(b.Version))
	case text == "":
		text = fmt.Sprintf("%s: %s and %s differ only in what is not shown: secrets, or the order of fields (versions %s and %s)\n",
			shown, a.Which, b.Which, admin.VersionText(a.Version), admin.VersionText(b.Version))
	case d.color:
		text = colored(text)
	}
	_, err := io.WriteString(d.out, text)
	return err
}

// colored colours a unified diff as git does.
func colored(diff string) string {
	const red, green, cyan, bold, reset = "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[1m", "\x1b[m"
	var b strings.Builder
	for line := range strings.Lines(diff) {
		color := ""
		switch {
		case strings.HasPrefix(line, "+++ "), strings.HasPrefix(line, "--- "):
			color = bold
		case strings.HasPrefix(line, "+"):
			color = green
		case strings.HasPrefix(line, "-"):
			color = red
		case strings.HasPrefix(line, "@@"):
			color = cyan
		}
		if color == "" {
			b.WriteString(line)
			continue
		}
		b.WriteString(color + strings.TrimSuffix(line, "\n") + reset + "\n")
	}
	return b.String()
}
