package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// choice is a flag of a few values.
type choice struct {
	target *string
	values []string
}

func (c choice) Set(text string) error {
	if !slices.Contains(c.values, text) {
		return fmt.Errorf("%q: want %s", text, Alternatives(c.values))
	}
	*c.target = text
	return nil
}
func (c choice) String() string { return *c.target }
func (c choice) Type() string   { return strings.Join(c.values, "|") }

// Alternatives returns "a, b or c".
func Alternatives(values []string) string {
	last := len(values) - 1
	if last < 1 {
		return strings.Join(values, "")
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// Choice makes a flag of a few values. The default is what target holds, or the first one. Its Type has them with | between them.
func Choice(target *string, values ...string) pflag.Value {
	if *target == "" {
		*target = values[0]
	}
	return choice{target, values}
}

// outputFormat is a choice in which table and text are two names of the format for people, so that one variable suits all commands.
type outputFormat struct{ choice }

func (o outputFormat) Set(text string) error {
	if other := map[string]string{"text": "table", "table": "text"}[text]; slices.Contains(o.values, other) {
		text = other
	}
	return o.choice.Set(text)
}

// OutputFormat makes a flag of output formats, of which the first is the default. Those of a command have table or text, never both.
func OutputFormat(target *string, formats ...string) pflag.Value {
	*target = formats[0]
	return outputFormat{choice{target, formats}}
}

// AddOutput adds the flag of the output format.
func AddOutput(flags *pflag.FlagSet, target *string, formats ...string) {
	flags.VarP(OutputFormat(target, formats...), "output", "o", "output format")
}

// CompleteChoices completes the values of the flags of a command that have a few.
func CompleteChoices(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if kind := f.Value.Type(); strings.Contains(kind, "|") {
			complete := cobra.FixedCompletions(strings.Split(kind, "|"), cobra.ShellCompDirectiveNoFileComp)
			_ = c.RegisterFlagCompletionFunc(f.Name, complete) // once for each flag
		}
	})
}
