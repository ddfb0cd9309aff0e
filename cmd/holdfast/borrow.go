package main

import (
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
)

// borrow adds the flags of another command to this one. They count only if the boolean flag with is true: otherwise
// they are unknown flags on the command line, and variables and keys of the file are ignored, as those of any other
// command. A flag that both commands have is given once and sets the values of both. Borrowed flags are not in the help
// and in the manual page of this command; a shell completes them after with. All sections of c must have been added.
func (c *command) borrow(from *command, with string) {
	own := make(map[string]*pflag.Flag)
	c.visitFlags(func(f *pflag.Flag) { own[f.Name] = f })
	c.borrowed = pflag.NewFlagSet(from.Name(), pflag.ContinueOnError)
	from.visitFlags(func(f *pflag.Flag) {
		if shared := own[f.Name]; shared != nil {
			shared.Value = together(shared.Value, f.Value)
			return
		}
		f.Hidden = true
		c.borrowed.AddFlag(f)
		_ = c.borrowed.SetAnnotation(f.Name, cli.OnlyWith, []string{with, from.Name()}) // the flag is there
	})
	own[with].Value = revealing{own[with].Value, c.borrowed}
}

// revealing is a boolean flag that shows hidden flags while it is true.
type revealing struct {
	pflag.Value
	flags *pflag.FlagSet
}

func (r revealing) Set(text string) error {
	err := r.Value.Set(text)
	r.flags.VisitAll(func(f *pflag.Flag) { f.Hidden = r.String() != "true" })
	return err
}

// together makes one flag that sets two. Both are of the same kind.
func together(a, b pflag.Value) pflag.Value {
	switch a := a.(type) {
	case mapping:
		return mapping{inBoth(a.adder.Set, b.Set), inBoth(a.setMap, b.(mapping).setMap)}
	case adder:
		return adder(inBoth(a.Set, b.Set))
	}
	return pair{a, b}
}

// pair is a flag of one value that sets two.
type pair struct {
	pflag.Value
	other pflag.Value
}

func (p pair) Set(text string) error { return inBoth(p.Value.Set, p.other.Set)(text) }

// inBoth returns a function that calls a and then, if a succeeds, b.
func inBoth[T any](a, b func(T) error) func(T) error {
	return func(value T) error {
		if err := a(value); err != nil {
			return err
		}
		return b(value)
	}
}
