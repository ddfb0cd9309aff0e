package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/holdfast-xds/holdfast/agent/admin"
)

const statusLong = `Show the state of the running agent: first problems, then the control planes, the cached
resources of each type and whether Envoy ACKed them, and the connected clients.
docs/troubleshooting.md explains the columns.`

const statusExample = `
holdfast status

# for programs
holdfast status -o json

# from an agent with another --admin
holdfast status --admin unix:/tmp/holdfast/admin.sock`

func newStatus() *command {
	c := newCommand("status", "show problems, control planes, resources and clients of the running agent", statusLong, statusExample)
	var asJSON bool
	c.section("Output").VarP(either(&asJSON, "text", "json"), "output", "o", "output format")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		status, err := client.Status(ctx)
		if err != nil {
			return failed(err)
		}
		if asJSON {
			return failed(writeJSON(c.OutOrStdout(), status))
		}
		status.Admin = client.Addr
		return failed(status.WriteText(c.OutOrStdout()))
	})
	return c
}

const dumpLong = `Show the resources in the cache of the running agent, as JSON: their names, versions,
content and sources, and the reason if Envoy NACKed one.

[redacted] replaces fields that Envoy's API marks as sensitive (keys, passwords), literal
values of headers that contain credentials (authorization, cookie, x-api-key, …-token),
URLs with a password, and private keys in PEM format anywhere. Other secrets in the
configuration cannot be recognized.`

const dumpExample = `
# everything
holdfast dump

# the clusters; one route configuration
holdfast dump --type CDS
holdfast dump --type RDS --name local_route`

func newDump() *command {
	c := newCommand("dump", "show the resources in the cache of the running agent, redacted", dumpLong, dumpExample)
	var output, typeName, name string
	flags := c.section("Which resources")
	flags.StringVar(&typeName, "type", "", "`TYPE` of the resources, a short name (CDS, EDS, LDS, RDS, SRDS, VHDS, SDS, RTDS, ECDS, …) or a type URL; empty: all types")
	flags.StringVar(&name, "name", "", "`NAME` of the resource; empty: all")
	c.section("Output").VarP(oneOf(&output, "json"), "output", "o", "output format")
	c.callAgent(func(ctx context.Context, client admin.Client) error {
		if typeName != "" {
			if _, err := admin.ParseType(typeName); err != nil {
				return err
			}
		}
		return failed(client.Dump(ctx, c.OutOrStdout(), typeName, name))
	})
	return c
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

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
