package main

import (
	"io"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
)

const rootLong = `holdfast keeps Envoy configured when its control plane does not answer.

It runs next to Envoy, fetches Envoy's configuration (xDS) from a control plane, and serves
it on a Unix socket. If the control plane becomes unreachable, Envoy keeps its
configuration, also when it restarts.

    control plane  --xDS-->  holdfast run  --Unix socket-->  Envoy

Quick start:

    holdfast bootstrap --out envoy.yaml --node-id web-1 --node-cluster web
    holdfast run --upstream xds.example.com:443 --bootstrap envoy.yaml
    envoy -c envoy.yaml`

const listsHelp = cli.ListsHelp + ` NAME=VALUE pairs may also be a JSON
object in the variable, and a mapping in the file.`

const exitHelp = `Exit codes
  0  done, or stopped by SIGTERM or SIGINT. A second signal exits at once, with code 143 or 130;
     while the agent runs Envoy as its child, the second signal ends the drain, and the agent
     exits within 10 s; a third one exits at once
  1  failed; the reason is on standard error
  2  a flag, a variable, a key or a command is wrong`

// sectionsOf returns the sections of flags of a command.
func (c *command) sectionsOf() (all []cli.Section) {
	for _, s := range c.sections {
		section := cli.Section{Title: s.Name()}
		s.VisitAll(func(f *pflag.Flag) { section.Flags = append(section.Flags, f) })
		all = append(all, section)
	}
	return all
}

func (c *command) writeHelp(w io.Writer) {
	usage := c.CommandPath() + " [flags]"
	if _, argument, ok := strings.Cut(c.Use, " "); ok {
		usage += " " + argument
	}
	if c.takesChild {
		usage += " [-- envoy -c FILE …]"
	}
	cli.WriteHelp(w, c.Command, usage, c.sectionsOf(), c.Flags().Lookup(configFlag), envPrefix, cli.SettingsHelp(envPrefix, configFlag)+"\n"+listsHelp+"\n\n"+exitHelp)
}
