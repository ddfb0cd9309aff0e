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

// outputFormat is a choice of which the first value, table or text, has the other one for its second name.
type outputFormat struct{ choice }

func (o outputFormat) Set(text string) error {
	if text == "text" || text == "table" {
		text = o.values[0]
	}
	return o.choice.Set(text)
}

// AddOutput adds the flag of the output format, whose first value, table or text, is the default: one variable suits all commands.
func AddOutput(flags *pflag.FlagSet, target *string, formats ...string) {
	*target = formats[0]
	flags.VarP(outputFormat{choice{target, formats}}, "output", "o", "output format")
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
