package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/analysis"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
)

const validateLong = `Check documents without serving them: every error and warning with file, line and field. Errors are
what serve would not take. Warnings are fields that have no effect, references to hosts, subsets,
gateways and delegates that no document defines, and what a document asks for that another one has. With
errors, the exit code is 1; with --strict, also with warnings.

Each warning has a code, such as HM0201, which docs/mesh-warnings.md describes. The annotation
holdfast.dev/suppress: "HM0201,HM0203" of a document, or --suppress, suppresses warnings that are about what is
meant; how many they are is told on standard error. With -o json, standard output is a list of objects
with code, severity, file, line, kind, namespace, name, field and message, and nothing else.

With --etcd, those that etcd has are checked; Secrets need --secret-key-file. It is also said which of them have what another one asks for
because of the creationTimestamp that their author wrote, though etcd has had the other one for longer, as
may be in a store that a version before has filled: a server keeps it so until the document is deleted.`

func newValidate(stdout io.Writer) *cobra.Command {
	s := &store{}
	var files, suppress []string
	var output string
	var strict, showSuppressed bool
	c := &cobra.Command{
		Use: "validate {DIR|FILE… | -f FILE|DIR|-… | --etcd URL}", Short: "check documents", Long: validateLong,
		Example: "holdfast-mesh validate ./mesh\nhelm template ./chart | holdfast-mesh validate --strict -f -\nholdfast-mesh validate --etcd http://127.0.0.1:2379 -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			stored := len(s.options.Endpoints) > 0
			args = append(slices.Clone(args), files...)
			suppressions, err := parseSuppressions(suppress)
			if err != nil {
				return err
			}
			switch {
			case len(args) == 0 && !stored:
				return errors.New("no directory or file to check (- is standard input), and no --etcd")
			case len(args) > 0 && stored:
				return errors.New("give files, or --etcd: `holdfast-mesh diff --etcd` compares them")
			}
			signal.Reset(os.Interrupt, syscall.SIGTERM) // they end it at once: there is nothing to clean up
			var problems []config.Problem
			if stored {
				client, err := s.open()
				if err != nil {
					return err
				}
				defer client.Close()
				if problems, err = validateStored(cmd.Context(), client); err != nil {
					return cli.Failed(err)
				}
			} else {
				in, err := input(args, cmd.InOrStdin())
				if err != nil {
					return err
				}
				problems = in.Validate()
			}
			for i := range problems {
				problems[i].Suppressed = problems[i].Suppressed || slices.ContainsFunc(suppressions, func(s config.Suppression) bool { return s.Has(problems[i]) })
			}
			return report(stdout, cmd.ErrOrStderr(), problems, output, showSuppressed, strict)
		},
	}
	c.Flags().SortFlags = false
	c.Flags().StringArrayVarP(&files, "filename", "f", nil, "`FILE`, or directory, of documents; - for standard input. May be repeated")
	cli.AddOutput(c.Flags(), &output, "text", "json")
	c.Flags().BoolVar(&strict, "strict", false, "warnings are failures, too: the exit code is 1")
	c.Flags().StringArrayVar(&suppress, "suppress", nil, "suppress warnings: `CODE`, CODE=KIND/NAMESPACE/NAME or CODE=KIND/NAME, in which * stands for anything. May be repeated")
	c.Flags().BoolVar(&showSuppressed, "show-suppressed", false, "show the warnings that are suppressed, too")
	etcdFlags(c.Flags(), &s.options)
	return c
}

func parseSuppressions(texts []string) (out []config.Suppression, err error) {
	for _, text := range texts {
		s, err := config.ParseSuppression(text)
		if err != nil {
			return nil, fmt.Errorf("--suppress %w", err)
		}
		out = append(out, s)
	}
	return out, nil
}

// report prints problems, and how many are suppressed. It returns cli.ErrReported if one is an error or, if strict, a warning that is not
// suppressed.
func report(stdout, stderr io.Writer, problems []config.Problem, output string, showSuppressed, strict bool) error {
	shown, suppressed := config.Unsuppressed(problems)
	failed := config.Invalid(shown) || strict && len(shown) > 0
	if suppressed > 0 {
		_ = printable.Fprintf(stderr, "holdfast-mesh: warnings that are suppressed: %d (--show-suppressed shows them)\n", suppressed)
	}
	if showSuppressed {
		shown = problems
	}
	if output == "json" {
		e := json.NewEncoder(yamlproto.JSONWriter(stdout))
		e.SetIndent("", "  ")
		if err := e.Encode(config.Reports(shown)); err != nil {
			return cli.Failed(err)
		}
	} else {
		for _, p := range shown {
			text := p.String()
			if p.Suppressed {
				text += " (suppressed)"
			}
			if err := printable.Fprintf(stdout, "%s\n", text); err != nil {
				return cli.Failed(err)
			}
		}
	}
	if failed {
		return cli.ErrReported
	}
	return nil
}

// validateStored returns what is wrong in the documents of etcd.
func validateStored(ctx context.Context, client *etcd.Client) ([]config.Problem, error) {
	l, err := client.List(ctx, "", "")
	if err != nil {
		return nil, err
	}
	ages, found, err := client.Ages(ctx)
	switch {
	case etcd.Denied(err):
		return nil, fmt.Errorf("%w, which is where the ages that documents keep are", err)
	case err != nil:
		return nil, err
	case !found:
		ages = etcd.AgesBefore(l.Documents)
	}
	var problems []config.Problem
	for _, d := range l.Documents {
		problems = append(problems, d.Problems...)
	}
	indexed := func(documents []*config.Config) *config.Index {
		index := &config.Index{}
		for _, doc := range documents {
			index.Put(doc)
		}
		return index
	}
	kept := analysis.Of(indexed(ages.Of(l.Documents)), config.DefaultDomain)
	problems = append(problems, kept.Problems...)
	owners := keptOwners(kept.Contests, config.Contests(indexed(etcd.Ages{}.Of(l.Documents)), config.DefaultDomain))
	config.MarkSuppressed(owners, indexed(ages.Of(l.Documents)).Get)
	problems = append(problems, owners...)
	config.SortProblems(problems)
	return problems, nil
}

// keptOwners returns a warning for each document that has what another one asks for because it keeps an age that etcd has not counted.
// kept are the contests with the ages that documents keep, counted those with etcd's.
func keptOwners(kept, counted []config.Contest) (out []config.Problem) {
	type contest struct {
		what         string
		owner, other config.Key
	}
	store := make(map[contest]bool)
	for _, c := range counted {
		store[contest{c.What, c.Owner.Meta.Key, c.Other.Meta.Key}] = true
	}
	for _, c := range kept {
		owner, other := c.Owner.Meta.Key, c.Other.Meta.Key
		if store[contest{c.What, other, owner}] {
			out = append(out, config.Problem{Code: config.OwnerByTimestamp, File: c.Owner.Origin, Key: owner, Severity: config.SeverityWarning, Message: fmt.Sprintf(
				"it has %s because its creationTimestamp is %s, though etcd has had %s (%s) for longer. Servers keep it so; if it is deleted and applied again, that one has it",
				c.What, c.Owner.Created.UTC().Format(time.RFC3339), other, c.Other.Origin)})
		}
	}
	return out
}
