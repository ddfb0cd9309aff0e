package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

const eventsLong = `Show what happened to the agent: control planes, clients, Envoy, certificates, the disk, and which
resources were added, changed, removed and accepted. Changes that go on are one event a minute
for each type.

The agent keeps the newest events in memory and, with --state-dir, about 16 MiB on disk: after a
crash "holdfast events --offline DIR" shows them, also while no agent runs.`

const eventsExample = `
holdfast events --since 1h
holdfast events --type RDS --name local_route

# as they happen, also when the agent ends and the next one starts
holdfast events -f

# of an agent that does not run any more
holdfast events --offline /var/lib/holdfast --since 2026-01-31T02:00:00Z`

func newEvents() *command {
	c := newCommand("events", "show what happened: changes, control planes, clients, certificates", eventsLong, eventsExample)
	var f events.Filter
	var since, typeName, dir, output string
	var follow bool
	flags := c.section("Which events")
	flags.StringVar(&since, "since", "", "since this `TIME` (2026-01-31T02:55:00Z) or within this duration (1h); empty: all")
	flags.StringVar(&typeName, "type", "", "`TYPE` of resources, a short name (CDS, EDS, LDS, RDS, …) or a type URL; empty: all events")
	flags.StringVar(&f.Name, "name", "", "`NAME` of a resource or a certificate; empty: all")
	flags.StringVar(&f.Node, "node", "", "`ID` of the node of the clients; empty: all")
	flags.BoolVarP(&follow, "follow", "f", false, "go on with the events to come")
	flags.StringVar(&dir, "offline", "", "read the events from this `DIR`, the --state-dir of an agent, instead of asking an agent")
	c.section("Output").VarP(cli.OutputFormat(&output, "table", "json", "yaml"), "output", "o", "output format; json is one object a line")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		if since != "" {
			at, err := admin.ParseTime(since, time.Now())
			if err != nil {
				return fmt.Errorf("--since %w", err)
			}
			f.Since = at
		}
		if typeName != "" {
			typeURL, err := admin.ParseType(typeName)
			if err != nil {
				return err
			}
			f.Type = xds.Short(typeURL)
		}
		if follow && dir != "" {
			return fmt.Errorf("--follow asks a running agent: leave out --offline, or --follow")
		}
		some := false
		each := func(e events.Event) error {
			some = true
			return writeEvent(c.OutOrStdout(), e, output)
		}
		var err error
		switch {
		case dir != "":
			err = readEvents(dir, f, each)
		case follow:
			err = followEvents(ctx, client, f, c.ErrOrStderr(), each)
		default:
			err = client.Events(ctx, f, false, each)
		}
		if err == nil && !some && output == "table" && !follow {
			_, err = fmt.Fprintln(c.OutOrStdout(), "no events")
		}
		return cli.Failed(err)
	})
	return c
}

// reconnect is the time between two attempts to reach an agent that has gone away.
const reconnect = time.Second

// followEvents calls each with events as they come, also of the agent that follows one that has gone away: nothing that it
// knows is left out, and nothing is told twice.
func followEvents(ctx context.Context, client admin.Client, f events.Filter, stderr io.Writer, each func(events.Event) error) error {
	var broken error              // of each
	told := make(map[string]bool) // the events that ended at f.Since, which the next agent may tell again
	gone := false
	for {
		err := client.Events(ctx, f, true, func(e events.Event) error {
			gone = false
			text, err := json.Marshal(e)
			if err != nil {
				return err
			}
			switch ended := cmp.Or(e.Until, e.Time); {
			case ended.Equal(f.Since) && told[string(text)]:
				return nil
			case ended.After(f.Since):
				f.Since = ended
				clear(told)
			}
			told[string(text)] = true
			broken = each(e)
			return broken
		})
		switch {
		case ctx.Err() != nil || broken != nil:
			return broken
		case gone: // it has been said
		case errors.Is(err, admin.ErrGone):
			gone = true
			if _, err := fmt.Fprintf(stderr, "holdfast: %v: waiting for the next one\n", err); err != nil {
				return err
			}
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reconnect):
		}
	}
}

// readEvents calls each with the events in a state directory.
func readEvents(dir string, f events.Filter, each func(events.Event) error) error {
	all, err := events.Read(filepath.Join(dir, events.Name), f)
	if err != nil {
		return fmt.Errorf("--offline %s: %w", dir, err)
	}
	for _, e := range all {
		if err := each(e); err != nil {
			return err
		}
	}
	return nil
}

func writeEvent(w io.Writer, e events.Event, format string) error {
	switch format {
	case "json":
		return json.NewEncoder(yamlproto.JSONWriter(w)).Encode(e)
	case "yaml":
		if _, err := io.WriteString(w, "---\n"); err != nil {
			return err
		}
		return writeYAML(w, e)
	}
	node := ""
	if e.Node != "" {
		node = " [" + e.Node + "]"
	}
	_, err := fmt.Fprintf(w, "%s%s %s\n", e.Time.UTC().Format("2006-01-02T15:04:05.000Z"), admin.Printable(node), admin.Printable(e.Line()))
	return err
}
