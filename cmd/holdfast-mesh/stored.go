package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/change"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
)

// selection is what KIND and NAME of a command mean.
type selection struct {
	kind            config.Kind // "" for all
	namespace, name string      // "" for all
}

// selected reads the arguments [KIND [NAME]].
func selected(args []string, namespace string) (selection, error) {
	switch len(args) {
	case 0:
		return selection{namespace: namespace}, nil
	case 1:
		kind, err := config.KindNamed(args[0])
		return selection{kind: kind, namespace: namespace}, err
	}
	keys, err := keysOf(args, namespace)
	if err != nil {
		return selection{}, err
	}
	return selection{keys[0].Kind, keys[0].Namespace, keys[0].Name}, nil
}

// getStored shows documents of etcd.
func getStored(ctx context.Context, stdout, stderr io.Writer, client *etcd.Client, s selection, output string) error {
	l, err := client.List(ctx, s.kind, s.namespace)
	if err != nil {
		return cli.Failed(err)
	}
	if len(l.Denied) > 0 {
		_ = printable.Fprintf(stderr, "holdfast-mesh: kinds that this user may not read in the namespace %s are left out: %d\n", s.namespace, len(l.Denied))
	}
	docs := slices.DeleteFunc(l.Documents, func(d etcd.Stored) bool { return s.name != "" && d.Key.Name != s.name })
	if len(docs) == 0 {
		return cli.Failed(fmt.Errorf("etcd has no %s", s))
	}
	for _, d := range docs {
		if err := printProblems(stderr, d.Problems); err != nil {
			return err
		}
	}
	if output == "table" {
		return write(stdout, output, nil, func(w io.Writer) {
			_, _ = fmt.Fprintln(w, "KIND\tNAMESPACE\tNAME\tREVISION\tCHANGED\tBY\tVALID")
			for _, d := range docs {
				valid := "yes"
				if d.Config == nil {
					valid = "no"
				}
				changed := "-"
				if !d.Author.Time.IsZero() {
					changed = d.Author.Time.UTC().Format(time.RFC3339)
				}
				_ = printable.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", d.Key.Kind.Label(), d.Key.Namespace, d.Key.Name, d.Revision, changed, d.Author.Name, valid)
			}
		})
	}
	return writeDocuments(stdout, stderr, output, docs)
}

func (s selection) String() string {
	text := "document"
	if s.kind != "" {
		text = s.kind.Label()
	}
	if s.name != "" {
		text += " " + s.name
	}
	if s.namespace != "" {
		text += " in the namespace " + s.namespace
	}
	return text
}

// object is what documents are in a file: a document, or the ConfigMap of a MeshConfig with the MeshNetworks beside it.
type object struct {
	*config.Config
	networks *config.Config // nil for none
}

// objectsOf joins the documents that are one ConfigMap.
func objectsOf(documents []*config.Config) (out []object) {
	byKey := make(map[config.Key]*config.Config)
	beside := func(doc *config.Config, kind config.Kind) *config.Config {
		return byKey[config.Key{Kind: kind, Namespace: doc.Namespace, Name: doc.Name}]
	}
	for _, doc := range documents {
		byKey[doc.Meta.Key] = doc
	}
	for _, doc := range documents {
		switch {
		case doc.Kind == config.MeshConfig:
			out = append(out, object{doc, beside(doc, config.MeshNetworks)})
		case doc.Kind == config.MeshNetworks && beside(doc, config.MeshConfig) != nil:
		default:
			out = append(out, object{doc, nil})
		}
	}
	return out
}

func (o object) json() ([]byte, error) {
	if o.networks != nil {
		return config.MarshalMesh(o.Config, o.networks)
	}
	return config.Marshal(o.Config, config.Author{})
}

// writeDocuments writes the valid ones of documents: as YAML that apply takes, or as a List in JSON. Secrets are left out:
// without their content, apply would empty them.
func writeDocuments(stdout, stderr io.Writer, output string, docs []etcd.Stored) error {
	var valid []*config.Config
	secrets := 0
	for _, d := range docs {
		switch {
		case d.Key.Kind == config.Secret:
			secrets++
		case d.Config != nil:
			valid = append(valid, d.Config)
		}
	}
	if secrets > 0 {
		_ = printable.Fprintf(stderr, "holdfast-mesh: Secrets are not shown: %d left out; `holdfast-mesh migrate --with-secrets` copies them\n", secrets)
	}
	items := []json.RawMessage{}
	for _, o := range objectsOf(valid) {
		text, err := o.json()
		if err != nil {
			return cli.Failed(err)
		}
		items = append(items, text)
	}
	if output == "json" {
		e := json.NewEncoder(yamlproto.JSONWriter(stdout))
		e.SetIndent("", "  ")
		return cli.Failed(e.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}))
	}
	for i, item := range items {
		text, err := yamlproto.Block(item)
		if err != nil {
			return cli.Failed(err)
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := stdout.Write(text); err != nil {
			return cli.Failed(err)
		}
	}
	return nil
}

func newWatch(stdout io.Writer) *cobra.Command {
	s := &store{}
	var namespace string
	c := &cobra.Command{
		Use: "watch [KIND [NAME]]", Short: "show changes of documents in etcd as they come", Args: cobra.MaximumNArgs(2),
		Long: `Show each change of documents in etcd from now on, until it is interrupted: when, what, by whom, as which
revision. What is not valid is shown with the reason: it changes nothing for proxies.`,
		Example: "holdfast-mesh watch --etcd http://127.0.0.1:2379 virtualservices -n shop",
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, err := selected(args, namespace)
			if err != nil {
				return err
			}
			client, err := s.open()
			if err != nil {
				return err
			}
			defer client.Close()
			var broken error
			ctx, stop := context.WithCancel(cmd.Context())
			defer stop()
			err = client.Watch(ctx, sel.kind, sel.namespace, func(ch etcd.Change) {
				if sel.name != "" && ch.Key.Name != sel.name || broken != nil {
					return
				}
				if broken = printChange(stdout, ch); broken != nil {
					stop()
				}
			})
			return cli.Failed(errors.Join(broken, err))
		},
	}
	s.flags(c)
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of the documents; empty: all")
	c.ValidArgsFunction = completeDocuments(s, nil, 1)
	return c
}

// printChange prints a change in one line, and what is wrong below.
func printChange(w io.Writer, ch etcd.Change) error {
	verb, at := change.Configured, time.Now()
	switch {
	case ch.Deleted:
		verb = change.Deleted
	case ch.Created:
		verb = change.Created
	}
	if !ch.Author.Time.IsZero() {
		at = ch.Author.Time
	}
	by := ""
	if ch.Author.Name != "" {
		by = " by " + ch.Author.Name
	}
	if err := printable.Fprintf(w, "%s  %s %s%s, revision %d\n", at.UTC().Format(time.RFC3339), ch.Key, verb, by, ch.Revision); err != nil {
		return err
	}
	shown, _ := config.Unsuppressed(ch.Problems)
	for _, p := range shown {
		if err := printable.Fprintf(w, "  %s\n", p); err != nil {
			return err
		}
	}
	return nil
}
