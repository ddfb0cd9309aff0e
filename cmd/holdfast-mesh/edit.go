package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/change"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
)

const editLong = `Open a document of etcd in an editor, and write what was changed. The editor is that of the environment's
HOLDFAST_EDITOR, VISUAL or EDITOR, else vi. What is not valid is opened again with what is wrong at the top;
a file that is left as it is, or empty, changes nothing. If somebody else has changed the document meanwhile,
nothing is overwritten, and the file stays. A Secret is not shown: apply it from a file.`

func newEdit(stdout io.Writer) *cobra.Command {
	s := &store{}
	var namespace string
	c := &cobra.Command{
		Use: "edit KIND NAME", Short: "change a document of etcd in an editor", Long: editLong,
		Example: "holdfast-mesh edit --etcd http://127.0.0.1:2379 virtualservice shop/reviews",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			keys, err := keysOf(args, namespace)
			if err != nil {
				return err
			}
			if keys[0].Kind == config.Secret {
				return cli.Failed(errors.New("a Secret is not shown in an editor: apply it from a file"))
			}
			client, err := s.open()
			if err != nil {
				return err
			}
			defer client.Close()
			return cli.Failed(edit(cmd, stdout, client, keys[0]))
		},
	}
	s.flags(c)
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of the document")
	c.ValidArgsFunction = completeDocuments(s, nil, 1)
	return c
}

// edit lets a person change a document.
func edit(cmd *cobra.Command, stdout io.Writer, client *etcd.Client, key config.Key) (err error) {
	ctx := cmd.Context()
	old, problems, err := client.Read(ctx, key)
	switch {
	case err != nil:
		return err
	case old == nil && len(problems) > 0:
		return fmt.Errorf("%s cannot be read: apply it from a file: %s", key, problems[0].Message)
	case old == nil:
		return fmt.Errorf("%s: %w", key, config.ErrNotFound)
	}
	dir, err := os.MkdirTemp("", "holdfast-mesh-edit-")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, key.Name+".yaml")
	keep := false
	defer func() {
		if keep {
			err = fmt.Errorf("%w (what you wrote is in %s)", err, file)
		} else {
			_ = os.RemoveAll(dir)
		}
	}()
	original := change.YAML(old)
	text := original
	for {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		if err := runEditor(ctx, cmd, file); err != nil {
			return err
		}
		changed, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		content := withoutHead(string(changed))
		switch {
		case strings.TrimSpace(content) == "" || content == original:
			err := printable.Fprintf(stdout, "%s unchanged\n", key)
			return err
		case string(changed) == text && text != original: // it was opened with errors and left as it was
			keep = true
			return fmt.Errorf("%s is not valid", key)
		}
		doc, wrong := readOne(key, []byte(content))
		if wrong != "" {
			text = head(wrong) + content
			continue
		}
		doc.ResourceVersion = old.ResourceVersion
		if _, err := client.Update(ctx, doc); err != nil {
			keep = true
			return err
		}
		err = printable.Fprintf(stdout, "%s %s\n", key, change.Configured)
		return err
	}
}

// mark begins the lines that head writes.
const mark = "#! "

// head are lines at the top of a file that say what is wrong.
func head(wrong string) string {
	var b strings.Builder
	for line := range strings.Lines("this is not valid, and nothing was written; leave the file as it is to give up\n" + wrong) {
		b.WriteString(mark + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}

func withoutHead(text string) string {
	for strings.HasPrefix(text, mark) {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

// readOne reads the document with a key; wrong says why it cannot be used.
func readOne(key config.Key, text []byte) (doc *config.Config, wrong string) {
	documents, broken := config.Read("edit", text)
	if broken != nil {
		return nil, broken.String()
	}
	var b strings.Builder
	for _, d := range documents {
		for _, p := range d.Problems {
			if p.Severity == config.SeverityError {
				_ = printable.Fprintf(&b, "%s\n", p)
			}
		}
		if d.Key == key && d.Config != nil {
			doc = d.Config
		}
	}
	if b.Len() == 0 && (doc == nil || len(documents) > 1 && key.Kind != config.MeshConfig && key.Kind != config.MeshNetworks) {
		return nil, fmt.Sprintf("it must be the one document %s", key)
	}
	return doc, b.String()
}

// runEditor lets a person change a file.
func runEditor(ctx context.Context, cmd *cobra.Command, file string) error {
	editor := strings.Fields(cmp.Or(os.Getenv("HOLDFAST_EDITOR"), os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi"))
	if len(editor) == 0 {
		return errors.New("the editor in the environment is empty: set EDITOR")
	}
	run := exec.CommandContext(ctx, editor[0], append(editor[1:], file)...)
	run.Stdin, run.Stdout, run.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := run.Run(); err != nil {
		return fmt.Errorf("the editor %s: %w: nothing is changed", editor[0], err)
	}
	return nil
}
