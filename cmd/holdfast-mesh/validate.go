package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/analysis"
	"github.com/holdfast-xds/holdfast/mesh/config/dir"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
)

const validateLong = `Check documents without serving them: every error and warning with file, line and field. Errors are
what serve would not take. Warnings are fields that have no effect, references to hosts, subsets,
gateways and delegates that no document defines, and what a document asks for that another one has. With
errors, the exit code is 1.

With --etcd, those that etcd has are checked; Secrets need --secret-key-file. It is also said which of them have what another one asks for
because of the creationTimestamp that their author wrote, though etcd has had the other one for longer, as
may be in a store that a version before has filled: a server keeps it so until the document is deleted.`

func newValidate(stdout io.Writer) *cobra.Command {
	s := &store{}
	c := &cobra.Command{
		Use: "validate {DIR|FILE… | --etcd URL}", Short: "check documents", Long: validateLong,
		Example: "holdfast-mesh validate ./mesh\nholdfast-mesh validate --etcd http://127.0.0.1:2379",
		RunE: func(cmd *cobra.Command, args []string) error {
			stored := len(s.options.Endpoints) > 0
			switch {
			case len(args) == 0 && !stored:
				return errors.New("no directory or file to check, and no --etcd")
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
				problems = dir.Validate(args...)
			}
			if err := printProblems(stdout, problems); err != nil {
				return err
			}
			if config.Invalid(problems) {
				return cli.ErrReported
			}
			return nil
		},
	}
	c.Flags().SortFlags = false
	etcdFlags(c.Flags(), &s.options)
	return c
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
	problems = append(problems, keptOwners(kept.Contests, config.Contests(indexed(etcd.Ages{}.Of(l.Documents)), config.DefaultDomain))...)
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
