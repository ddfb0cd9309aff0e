package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/pflag"
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

const settingsHelp = `A flag whose help has an environment variable in brackets (HOLDFAST_ and the name of the
flag in capitals, with underscores for dashes) can also be set by it, and by a key of the
YAML file of --config. The flag overrides the variable, which overrides the file.`

const exitHelp = `Exit codes
  0  done, or stopped by SIGTERM or SIGINT. A second signal exits at once, with code 143 or 130;
     while the agent runs Envoy as its child, the second signal ends the drain, and the agent
     exits within 10 s; a third one exits at once
  1  failed; the reason is on standard error
  2  a flag, a variable, a key or a command is wrong`

func writeRootHelp(w io.Writer, commands []*command) {
	_, _ = fmt.Fprintf(w, "%s\n\nCommands\n", rootLong)
	for _, c := range commands {
		_, _ = fmt.Fprintf(w, "  %-13s %s\n", c.Name(), c.Short)
	}
	_, _ = fmt.Fprintf(w, "\n`holdfast help COMMAND` explains a command and its flags, with examples.\n\n%s\n\n%s\n", settingsHelp, exitHelp)
}

// helpWidth is the width of help, in columns.
const helpWidth = 96

func (c *command) writeHelp(w io.Writer) {
	usage := c.CommandPath() + " [flags]"
	if _, argument, ok := strings.Cut(c.Use, " "); ok {
		usage += " " + argument
	}
	if c.takesChild {
		usage += " [-- envoy -c FILE …]"
	}
	_, _ = fmt.Fprintf(w, "%s\n\nUsage\n  %s\n\nExamples\n%s\n", strings.TrimSpace(c.Long), usage, indent(c.Example, "  "))
	for _, s := range c.sections {
		_, _ = fmt.Fprintf(w, "\n%s\n", wrap(s.Name(), helpWidth))
		s.VisitAll(func(f *pflag.Flag) { writeFlag(w, f) })
	}
	_, _ = fmt.Fprint(w, "\nSettings\n")
	writeFlag(w, c.Flags().Lookup(configFlag))
	_, _ = fmt.Fprintf(w, "\n%s\n%s\n\n%s\n", settingsHelp, listsHelp, exitHelp)
}

// zeroUnits matches the end of a duration with units that are 0.
var zeroUnits = regexp.MustCompile(`([hm])(0m)?0s$`)

// writeFlag writes the name, variable and default of a flag, and below them what it does.
func writeFlag(w io.Writer, f *pflag.Flag) {
	value, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if value != "" {
		name += " " + value
	}
	facts := []string{envName(f.Name)}
	if onCommandLineOnly(f) {
		facts = []string{commandLineOnly}
	}
	if _, list := f.Value.(multiple); list {
		facts = append(facts, "repeatable")
	}
	if f.DefValue != "" && f.DefValue != "false" {
		value := f.DefValue
		if f.Value.Type() == "duration" {
			value = zeroUnits.ReplaceAllString(value, "$1") // 24h, not 24h0m0s
		}
		facts = append(facts, "default "+value)
	}
	head := fmt.Sprintf("  %-42s [%s]", name, strings.Join(facts, ", "))
	if len(head) > helpWidth {
		head = fmt.Sprintf("  %s\n        [%s]", name, strings.Join(facts, ", "))
	}
	_, _ = fmt.Fprintf(w, "%s\n%s\n", head, indent(wrap(usage, helpWidth-8), "        "))
}

func indent(s, by string) string {
	lines := strings.Split(strings.Trim(s, "\n"), "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = by + line
		}
	}
	return strings.Join(lines, "\n")
}

func wrap(s string, width int) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		switch {
		case i == 0:
		case column+1+len(word) > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}
