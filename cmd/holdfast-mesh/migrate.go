package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/change"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
)

const migrateLong = `Copy all documents from a directory to etcd, or back. They are copied as they are, the oldest first, so that
who has what two of them ask for stays: proxies get the same from a server on either. In etcd the age of a
document is that of its key; to a directory a creationTimestamp is written that is later than the document's
own if that would make it older than it is.

To etcd, nothing is written unless all documents are valid; documents that etcd has already must be the same,
or --overwrite is given; those that it has besides stay. To a directory, which must be empty or not exist,
each document is written to NAMESPACE/KIND-NAME.yaml. Secrets are written in the clear there, readable for this
user only, with --with-secrets, and are left out without it. Workloads that have registered themselves are left
out: they are of the servers that run now.`

func newMigrate(stdout io.Writer) *cobra.Command {
	s := &store{}
	var from, to string
	var overwrite, secrets, skip, dryRun bool
	c := &cobra.Command{
		Use: "migrate {--from DIR | --to DIR}", Short: "copy documents from a directory to etcd, or back", Long: migrateLong, Args: cobra.NoArgs,
		Example: "holdfast-mesh migrate --etcd http://127.0.0.1:2379 --from ./mesh\nholdfast-mesh migrate --etcd http://127.0.0.1:2379 --to ./backup",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (from == "") == (to == "") {
				return errors.New("give --from or --to")
			}
			if to != "" {
				client, err := s.open()
				if err != nil {
					return err
				}
				defer client.Close()
				l, err := client.List(cmd.Context(), "", "")
				if err != nil {
					return cli.Failed(err)
				}
				documents := withoutRegistrations(l.Documents, nil)
				if err := inOrder(cmd.Context(), cmd.ErrOrStderr(), client, documents); err != nil {
					return cli.Failed(err)
				}
				return toDirectory(stdout, cmd.ErrOrStderr(), documents, to, secrets, skip, dryRun)
			}
			documents, err := s.read([]string{from}, stdout)
			if err != nil {
				return err
			}
			client, err := s.open()
			if err != nil {
				return err
			}
			defer client.Close()
			return toEtcd(cmd, stdout, client, documents, overwrite, dryRun)
		},
	}
	s.flags(c)
	c.Flags().StringVar(&from, "from", "", "`DIR` from which documents are copied to etcd")
	c.Flags().StringVar(&to, "to", "", "`DIR` to which documents are copied from etcd")
	c.Flags().BoolVar(&overwrite, "overwrite", false, "with --from: replace documents that etcd has")
	c.Flags().BoolVar(&secrets, "with-secrets", false, "with --to: write Secrets, too, in the clear")
	c.Flags().BoolVar(&skip, "skip-invalid", false, "with --to: leave out documents that are not valid, and say which")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would happen, and change nothing")
	return c
}

// toEtcd copies documents to etcd.
func toEtcd(cmd *cobra.Command, stdout io.Writer, client *etcd.Client, documents []*config.Config, overwrite, dryRun bool) error {
	stored, err := client.List(cmd.Context(), "", "")
	if err != nil {
		return cli.Failed(err)
	}
	there := make(map[config.Key]*config.Config)
	for _, d := range stored.Documents {
		there[d.Key] = d.Config
	}
	var write []*config.Config
	for _, doc := range documents {
		old, has := there[doc.Meta.Key]
		switch {
		case !has || overwrite:
			write = append(write, doc)
		case old == nil || !config.Same(old, doc):
			return cli.Failed(fmt.Errorf("%s is in etcd already and says something else: nothing was copied; --overwrite replaces it, and `holdfast-mesh diff --etcd` shows what differs", doc.Meta.Key))
		}
	}
	slices.SortStableFunc(write, config.ByAge)
	if !dryRun {
		if n, err := client.ImportAll(cmd.Context(), write); err != nil {
			return cli.Failed(fmt.Errorf("after %d of %d documents: %w: run it again with --overwrite to go on", n, len(write), err))
		}
	}
	_, err = fmt.Fprintf(stdout, "%d documents copied to etcd%s, %d were there\n", len(write), dry(dryRun), len(documents)-len(write))
	return cli.Failed(err)
}

// inOrder gives documents of etcd times of creation by which they come in the order of their ages, since a directory knows no other age.
func inOrder(ctx context.Context, stderr io.Writer, client *etcd.Client, documents []etcd.Stored) error {
	ages, _, err := client.Ages(ctx)
	switch {
	case etcd.Denied(err):
		_ = printable.Fprintf(stderr, "holdfast-mesh: the ages that documents keep from before etcd counted them are not known to this user, and are those of etcd here: %v\n", err)
	case err != nil:
		return err
	}
	aged := ages.Of(documents)
	slices.SortStableFunc(aged, config.ByAge)
	times := make(map[config.Key]time.Time, len(aged))
	var last *config.Config
	for _, doc := range aged {
		doc.Order = config.StoreOrder{}
		if last != nil && config.ByAge(doc, last) < 0 {
			doc.Created = last.Created
			if config.ByAge(doc, last) < 0 {
				doc.Created = last.Created.Add(time.Second)
			}
		}
		times[doc.Meta.Key], last = doc.Created, doc
	}
	for i, d := range documents {
		if d.Config != nil && !d.Config.Created.Equal(times[d.Key]) {
			dated := *d.Config
			dated.Created = times[d.Key]
			documents[i].Config = &dated
		}
	}
	return nil
}

func dry(dryRun bool) string {
	if dryRun {
		return " (dry run)"
	}
	return ""
}

// toDirectory copies documents to a directory.
func toDirectory(stdout, stderr io.Writer, documents []etcd.Stored, dir string, secrets, skip, dryRun bool) error {
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return cli.Failed(fmt.Errorf("%s is not empty: name a directory that is, or does not exist", dir))
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cli.Failed(err)
	}
	var copied []*config.Config
	left := 0
	for _, d := range documents {
		switch {
		case d.Key.Kind == config.Secret && !secrets:
			left++ // also without the key
		case d.Config == nil && skip:
			if err := printProblems(stderr, d.Problems); err != nil {
				return err
			}
		case d.Config == nil:
			return cli.Failed(fmt.Errorf("a document is not valid, and nothing was copied: %s: apply it again or delete it, or give --skip-invalid", d.Problems[0]))
		default:
			copied = append(copied, d.Config)
		}
	}
	for _, o := range objectsOf(copied) {
		if dryRun {
			break
		}
		if err := writeFile(dir, o); err != nil {
			return cli.Failed(err)
		}
	}
	if err := printable.Fprintf(stdout, "%d documents copied to %s%s\n", len(copied), dir, dry(dryRun)); err != nil {
		return cli.Failed(err)
	}
	if left > 0 {
		_, err := fmt.Fprintf(stdout, "%d Secrets left out: --with-secrets writes them in the clear\n", left)
		return cli.Failed(err)
	}
	return nil
}

// writeFile writes a document to a file of its own.
func writeFile(dir string, doc object) error {
	text, err := doc.json()
	if err == nil {
		text, err = yamlproto.Block(text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doc.Meta.Key, err)
	}
	dir = filepath.Join(dir, directoryOf(doc.Namespace))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if doc.Kind == config.Secret {
		mode = 0o600
	}
	return atomicfile.Write(filepath.Join(dir, strings.ToLower(doc.Kind.Label())+"-"+doc.Name+".yaml"), text, mode)
}

// directoryOf returns the name of the directory of a namespace; "_cluster" is that of none, which no namespace is called.
func directoryOf(namespace string) string {
	if namespace == "" {
		return "_cluster"
	}
	return namespace
}

// diffStored shows what documents would change in etcd. With differences, the error is cli.ErrReported.
func diffStored(stdout io.Writer, p *change.Plan) (differs bool, err error) {
	for _, a := range p.Actions {
		text := a.Diff()
		if text == "" {
			continue
		}
		differs = true
		if _, err := fmt.Fprint(stdout, printable.Lines(text)); err != nil {
			return differs, cli.Failed(err)
		}
	}
	return differs, nil
}

// diff shows what documents would change in etcd.
func (s *store) diff(cmd *cobra.Command, stdout io.Writer, paths []string, namespace string, prune bool) (differs bool, err error) {
	documents, err := s.read(paths, cmd.ErrOrStderr())
	if err != nil {
		return false, err
	}
	if err := inNamespace(documents, namespace); err != nil {
		return false, cli.Failed(err)
	}
	client, err := s.open()
	if err != nil {
		return false, err
	}
	defer client.Close()
	stored, err := listed(cmd.Context(), client, namespace, cmd.ErrOrStderr())
	if err != nil {
		return false, err
	}
	return diffStored(stdout, plan(withoutRegistrations(stored, documents), documents, prune))
}
