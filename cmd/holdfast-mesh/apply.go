package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/analysis"
	"github.com/holdfast-xds/holdfast/mesh/config/change"
	"github.com/holdfast-xds/holdfast/mesh/config/dir"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/mesh/register"
)

// store is what the commands that work on etcd have in common.
type store struct {
	options etcd.Options
	stdin   io.Reader
	warned  int // how many warnings read has printed
}

// open opens the store. Its Close must be called.
func (s *store) open() (*etcd.Client, error) {
	if len(s.options.Endpoints) == 0 {
		return nil, errors.New("--etcd is missing: name the members of the etcd that has the documents")
	}
	return etcd.Open(s.options)
}

// flags adds those of the store.
func (s *store) flags(c *cobra.Command) {
	c.Flags().SortFlags = false
	etcdFlags(c.Flags(), &s.options)
	c.Flags().StringVar(&s.options.Author, "author", "", "`NAME` of who writes, which a conflict shows (default USER@HOST)")
}

// read reads documents from files and directories, and from standard input for "-", and prints what is wrong in them. Errors
// are cli.ErrReported.
func (s *store) read(paths []string, out io.Writer) ([]*config.Config, error) {
	in, err := input(paths, s.stdin)
	if err != nil {
		return nil, err
	}
	documents, problems := in.Documents()
	if err := printProblems(out, problems); err != nil {
		return nil, err
	}
	shown, _ := config.Unsuppressed(problems)
	s.warned = len(shown)
	if config.Invalid(problems) {
		return nil, cli.ErrReported
	}
	return documents, nil
}

// input returns what paths are read from: files, directories, and stdin for "-".
func input(paths []string, stdin io.Reader) (in dir.Input, err error) {
	in.Paths = slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return path == "-" })
	if len(in.Paths) == len(paths) {
		return in, nil
	}
	in.Stdin, err = io.ReadAll(io.LimitReader(stdin, userfile.Max+1))
	if err == nil && len(in.Stdin) > userfile.Max {
		err = fmt.Errorf("more than %d bytes", userfile.Max)
	}
	if err != nil {
		return in, cli.Failed(fmt.Errorf("%s: %w", dir.StandardInput, err))
	}
	return in, nil
}

// printProblems prints problems, without those that are suppressed.
func printProblems(out io.Writer, problems []config.Problem) error {
	shown, _ := config.Unsuppressed(problems)
	for _, p := range shown {
		if err := printable.Fprintf(out, "%s\n", p); err != nil {
			return cli.Failed(err)
		}
	}
	return nil
}

// warn prints warnings about references of documents, as they will be beside those that are stored, and returns how many there are.
func warn(out io.Writer, stored []etcd.Stored, documents []*config.Config) (warned int) {
	index := &config.Index{}
	for _, s := range stored {
		if s.Config != nil {
			index.Put(s.Config)
		}
	}
	applied := make(map[config.Key]bool)
	for _, doc := range documents {
		index.Put(doc)
		applied[doc.Meta.Key] = true
	}
	for _, p := range analysis.Of(index, config.DefaultDomain).Problems {
		if applied[p.Key] && !p.Suppressed {
			_ = printable.Fprintf(out, "%s\n", p)
			warned++
		}
	}
	return warned
}

// plan compares documents with the store.
func plan(stored []etcd.Stored, documents []*config.Config, prune bool) *change.Plan {
	there := make([]change.Stored, 0, len(stored))
	for _, s := range stored {
		there = append(there, change.Stored{Key: s.Key, Config: s.Config, Version: fmt.Sprint(s.Revision)})
	}
	return change.New(there, documents, prune)
}

// listed reads what a command compares with: the namespace, or everything.
func listed(ctx context.Context, client *etcd.Client, namespace string, errs io.Writer) ([]etcd.Stored, error) {
	l, err := client.List(ctx, "", namespace)
	if err != nil {
		return nil, cli.Failed(err)
	}
	if len(l.Denied) > 0 {
		_ = printable.Fprintf(errs, "holdfast-mesh: kinds that this user may not read in the namespace %s are left out: %d\n", namespace, len(l.Denied))
	}
	return l.Documents, nil
}

// withoutRegistrations leaves out what servers have published of proxies that have registered, unless one of the documents
// takes its place: it is no person's, and nothing to prune or to copy.
func withoutRegistrations(stored []etcd.Stored, documents []*config.Config) []etcd.Stored {
	applied := make(map[config.Key]bool, len(documents))
	for _, doc := range documents {
		applied[doc.Meta.Key] = true
	}
	return slices.DeleteFunc(slices.Clone(stored), func(s etcd.Stored) bool { return register.IsRegistration(s.Config) && !applied[s.Key] })
}

// inNamespace returns an error if a document is not of a namespace; "" is any.
func inNamespace(documents []*config.Config, namespace string) error {
	for _, doc := range documents {
		if namespace != "" && doc.Namespace != namespace {
			return fmt.Errorf("%s: %s is not in the namespace %s, which --namespace names", doc.Origin, doc.Meta.Key, namespace)
		}
	}
	return nil
}

const applyLong = `Write documents to etcd. All of them are checked first, with each other and with what is stored; if one has an
error, nothing is written. A document that says what is stored already is left alone. One that somebody else
changes in the meantime is not overwritten: the error says who did, and when. Warnings are printed, with their codes
(docs/mesh-warnings.md); with --strict, nothing is written because of them.

With --prune, what is stored and is in none of the files is deleted: of one namespace with --namespace, else
all. More than half of what is stored is not deleted without --max-prune-percent. Workloads that have registered
themselves are not deleted: servers have written them.

A tenant that may write its own namespace only names it with --namespace.`

func newApply(stdout io.Writer) *cobra.Command {
	s := &store{}
	var files []string
	var namespace string
	var prune, dryRun, strict bool
	var percent int
	c := &cobra.Command{
		Use: "apply -f FILE|DIR|-…", Short: "write documents to etcd", Long: applyLong, Args: cobra.NoArgs,
		Example: "holdfast-mesh apply --etcd http://127.0.0.1:2379 -f ./mesh\nholdfast-mesh apply --etcd http://127.0.0.1:2379 -n shop --prune --dry-run -f ./shop",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case len(files) == 0:
				return errors.New("no documents: name files or directories with -f")
			case percent < 0 || percent > 100:
				return fmt.Errorf("--max-prune-percent %d: want 0 to 100", percent)
			}
			s.stdin = cmd.InOrStdin()
			documents, err := s.read(files, stdout)
			if err != nil {
				return err
			}
			if err := inNamespace(documents, namespace); err != nil {
				return cli.Failed(err)
			}
			if len(documents) == 0 && prune {
				return cli.Failed(errors.New("there are no documents in the files: --prune would delete everything, and nothing is changed"))
			}
			client, err := s.open()
			if err != nil {
				return err
			}
			defer client.Close()
			stored, err := listed(cmd.Context(), client, namespace, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if warned := s.warned + warn(cmd.ErrOrStderr(), stored, documents); strict && warned > 0 {
				return cli.Failed(fmt.Errorf("--strict: nothing is written, because of %d warnings", warned))
			}
			stored = withoutRegistrations(stored, documents)
			var problems []config.Problem
			for _, doc := range documents {
				if err := client.Check(doc); err != nil {
					problems = append(problems, config.Problem{File: doc.Origin, Key: doc.Meta.Key, Message: err.Error()})
				}
			}
			if len(problems) > 0 {
				return errors.Join(printProblems(stdout, problems), cli.ErrReported)
			}
			p := plan(stored, documents, prune)
			if err := p.CheckPrune(len(stored), percent); err != nil {
				return cli.Failed(err)
			}
			return carryOut(cmd.Context(), stdout, client, p, dryRun)
		},
	}
	s.flags(c)
	c.Flags().StringArrayVarP(&files, "filename", "f", nil, "`FILE`, or directory, of documents; - for standard input. May be repeated")
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of all the documents; empty: any")
	c.Flags().BoolVar(&prune, "prune", false, "delete what is stored and is in none of the files")
	c.Flags().IntVar(&percent, "max-prune-percent", 50, "`PERCENT` of the stored documents that --prune may delete; 100: all")
	c.Flags().BoolVar(&strict, "strict", false, "write nothing if there is a warning about one of the documents")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would happen, and change nothing")
	return c
}

// carryOut does what is planned, and prints each change.
func carryOut(ctx context.Context, stdout io.Writer, w config.Writer, p *change.Plan, dryRun bool) error {
	show := func(a change.Action) {
		switch {
		case a.Err != nil:
			_ = printable.Fprintf(stdout, "%s failed: %v\n", a.Key, a.Err)
		case dryRun:
			_ = printable.Fprintf(stdout, "%s %s (dry run)\n", a.Key, a.Verb)
		default:
			_ = printable.Fprintf(stdout, "%s %s\n", a.Key, a.Verb)
		}
	}
	if dryRun {
		for _, a := range p.Actions {
			show(a)
		}
		return nil
	}
	return cli.Failed(p.Do(ctx, w, show))
}

func newDelete(stdout io.Writer) *cobra.Command {
	s := &store{}
	var files []string
	var namespace string
	var dryRun, ignoreMissing bool
	c := &cobra.Command{
		Use: "delete {KIND NAME… | -f FILE|DIR|-…}", Short: "delete documents in etcd",
		Long: `Delete documents in etcd: those that are named, or those of files, whatever they say. NAME may have a
namespace before it, with a slash; without one, and without --namespace, it is of the namespace default.`,
		Example: "holdfast-mesh delete --etcd http://127.0.0.1:2379 virtualservice shop/reviews",
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(files) > 0) == (len(args) > 0) {
				return errors.New("name a kind and documents, or files with -f")
			}
			var keys []config.Key
			if len(args) > 0 {
				var err error
				if keys, err = keysOf(args, namespace); err != nil {
					return err
				}
			} else {
				s.stdin = cmd.InOrStdin()
				documents, err := s.read(files, stdout)
				if err != nil {
					return err
				}
				if err := inNamespace(documents, namespace); err != nil {
					return cli.Failed(err)
				}
				for _, doc := range documents {
					keys = append(keys, doc.Meta.Key)
				}
			}
			client, err := s.open()
			if err != nil {
				return err
			}
			defer client.Close()
			p := &change.Plan{}
			for _, key := range keys {
				old, err := client.Revision(cmd.Context(), key)
				if err != nil {
					return cli.Failed(err)
				}
				if old == "" && ignoreMissing {
					continue
				}
				if old == "" {
					return cli.Failed(fmt.Errorf("%s: %w: nothing is changed", key, config.ErrNotFound))
				}
				p.Actions = append(p.Actions, change.Action{Key: key, Verb: change.Deleted, Version: old})
			}
			return carryOut(cmd.Context(), stdout, client, p, dryRun)
		},
	}
	s.flags(c)
	c.Flags().StringArrayVarP(&files, "filename", "f", nil, "`FILE`, or directory, of documents; - for standard input. May be repeated")
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of the documents")
	c.ValidArgsFunction = completeDocuments(s, nil, math.MaxInt)
	c.Flags().BoolVar(&ignoreMissing, "ignore-not-found", false, "delete the others if some do not exist")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would happen, and change nothing")
	return c
}

// keysOf returns the documents that KIND NAME… means.
func keysOf(args []string, namespace string) ([]config.Key, error) {
	if len(args) < 2 {
		return nil, errors.New("name a kind and a document, such as: virtualservice shop/reviews")
	}
	kind, err := config.KindNamed(args[0])
	if err != nil {
		return nil, err
	}
	var keys []config.Key
	for _, arg := range args[1:] {
		before, name, has := strings.Cut(arg, "/")
		key := config.Key{Kind: kind, Namespace: before, Name: name}
		switch {
		case !has:
			key.Namespace, key.Name = cmp.Or(namespace, config.DefaultNamespace), arg
		case namespace != "" && namespace != before:
			return nil, fmt.Errorf("%q is in the namespace %s, and --namespace is %s: leave one of them out", arg, before, namespace)
		}
		if !config.SchemaOf(kind).Namespaced {
			if has {
				return nil, fmt.Errorf("%q: a %s is in no namespace", arg, kind.Short())
			}
			key.Namespace = ""
		}
		keys = append(keys, key)
	}
	return keys, nil
}
