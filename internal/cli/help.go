package cli

import (
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// HelpWidth is the width of help, in columns.
const HelpWidth = 96

// Section is flags below a title in the help of a command.
type Section struct {
	Title string
	Flags []*pflag.Flag
}

const group = "group"

// Group puts the flags that were added since the last call, or since the begin, below a title in the help of their command.
func Group(flags *pflag.FlagSet, title string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[group] == nil {
			_ = flags.SetAnnotation(f.Name, group, []string{title}) // the flag is there
		}
	})
}

// sections returns the flags of a command below the titles of their groups, those of none below "Flags".
func sections(c *cobra.Command) (all []Section) {
	at := make(map[string]int)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == FlagsFile {
			return
		}
		title := "Flags"
		if of := f.Annotations[group]; of != nil {
			title = of[0]
		}
		i, ok := at[title]
		if !ok {
			i = len(all)
			at[title] = i
			all = append(all, Section{Title: title})
		}
		all[i].Flags = append(all[i].Flags, f)
	})
	return all
}

// ListsHelp says how flags that are repeatable get values from elsewhere than the command line.
const ListsHelp = `Repeatable flags accept several values: in a variable, separated by commas, or one per line
if it contains line breaks; in the file, as a list.`

// SettingsHelp says from where flags get values; file is the flag of the file.
func SettingsHelp(prefix, file string) string {
	return wrap(fmt.Sprintf("A flag whose help has an environment variable in brackets (%s and the name of the flag in capitals, with underscores for dashes) can also be set by it, and by a key of the YAML file of --%s. The flag overrides the variable, which overrides the file.", prefix, file), HelpWidth)
}

const exitHelp = `Exit codes
  0  done, or stopped by SIGTERM or SIGINT
  1  failed; the reason is on standard error
  2  a flag, a variable, a key or a command is wrong`

// WriteRootHelp writes the help of a program: what it does, its commands, and a text about settings and exit codes.
func WriteRootHelp(w io.Writer, root *cobra.Command, commands []*cobra.Command, text string) {
	_, _ = fmt.Fprintf(w, "%s\n\nCommands\n", strings.TrimSpace(root.Long))
	for _, c := range commands {
		_, _ = fmt.Fprintf(w, "  %-13s %s\n", c.Name(), c.Short)
	}
	_, _ = fmt.Fprintf(w, "\n`%s help COMMAND` explains a command and its flags, with examples.\n\n%s\n", root.Name(), text)
}

// WriteHelp writes the help of a command: what it does, how it is called, examples, the flags of each section, that of the
// file of settings, and a text. prefix is that of variables.
func WriteHelp(w io.Writer, c *cobra.Command, usage string, sections []Section, file *pflag.Flag, prefix, text string) {
	about := strings.TrimSpace(c.Long)
	if about == "" {
		about = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	_, _ = fmt.Fprintf(w, "%s\n\nUsage\n  %s\n", about, usage)
	if c.Example != "" {
		_, _ = fmt.Fprintf(w, "\nExamples\n%s\n", indent(c.Example, "  "))
	}
	for _, s := range sections {
		_, _ = fmt.Fprintf(w, "\n%s\n", wrap(s.Title, HelpWidth))
		for _, f := range s.Flags {
			writeFlag(w, f, prefix)
		}
	}
	_, _ = fmt.Fprint(w, "\nSettings\n")
	writeFlag(w, file, prefix)
	_, _ = fmt.Fprintf(w, "\n%s\n", text)
}

// zeroUnits matches the end of a duration with units that are 0.
var zeroUnits = regexp.MustCompile(`([hm])(0m)?0s$`)

// writeFlag writes the name, variable and default of a flag, and below them what it does.
func writeFlag(w io.Writer, f *pflag.Flag, prefix string) {
	value, usage := pflag.UnquoteUsage(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if value != "" {
		name += " " + value
	}
	facts := []string{Variable(prefix, f.Name)}
	if OnCommandLineOnly(f) {
		facts = []string{CommandLineOnly}
	}
	if repeats(f) {
		facts = append(facts, "repeatable")
	}
	if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
		value := f.DefValue
		if f.Value.Type() == "duration" {
			value = zeroUnits.ReplaceAllString(value, "$1") // 24h, not 24h0m0s
		}
		facts = append(facts, "default "+value)
	}
	head := fmt.Sprintf("  %-42s [%s]", name, strings.Join(facts, ", "))
	if len(head) > HelpWidth {
		head = fmt.Sprintf("  %s\n        [%s]", name, strings.Join(facts, ", "))
	}
	_, _ = fmt.Fprintf(w, "%s\n%s\n", head, indent(wrap(usage, HelpWidth-8), "        "))
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
