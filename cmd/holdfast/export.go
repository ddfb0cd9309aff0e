package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/export"
	"github.com/holdfast-xds/holdfast/agent/seed"
	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/keyfile"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const exportLong = `Export the last known good configuration: with --out as static files for Envoy, with a bootstrap
for them, so that Envoy can start without a control plane and without an agent; with --seed as
one file without secrets, for agents of the same role (holdfast run --seed).

Endpoints, routes and filter configurations are written into the clusters and listeners
that refer to them. With --bootstrap all of Envoy's own bootstrap that needs no agent is in
the new one. If something is missing, to which the files refer, it is listed and nothing is
written. The state is only read; an agent may be running.`

const exportExample = `
holdfast export --state-dir /var/lib/holdfast --bootstrap /etc/envoy/envoy.yaml \
    --out /etc/envoy/last-known-good
envoy -c /etc/envoy/last-known-good/bootstrap.json

# checked by an Envoy before anything is written, with the certificates that were stored
holdfast export --state-dir /var/lib/holdfast --bootstrap /etc/envoy/envoy.yaml \
    --out /etc/envoy/last-known-good --with-secrets --validate

# for an Envoy that has the directory under another path
holdfast export --state-dir /var/lib/holdfast --node-id web-1 --node-cluster web \
    --out ./files --envoy-dir /etc/envoy

# a seed for new pods, signed
openssl genpkey -algorithm ed25519 -out seed.key; openssl pkey -in seed.key -pubout -out seed.pub
holdfast export --seed web.seed --seed-key seed.key
holdfast run --upstream xds.example.com:443 --seed web.seed --seed-trust seed.pub`

// exportFlags are the flags of `holdfast export`.
type exportFlags struct {
	stateDir, identity   string
	keyFiles             []string
	out, envoyDir, admin string
	bootstrap            string
	node                 nodeFlags
	secrets              bool
	allowMissing         bool
	validate             bool
	envoy                string
	seed                 exportSeedFlags
}

func newExport() *command {
	c := newCommand("export", "export the last known good: as static files for Envoy, or as a seed for new pods", exportLong, exportExample)
	f := &exportFlags{}
	flags := c.section("The stored state (--state-dir is required, but for a seed)")
	flags.StringVar(&f.stateDir, "state-dir", "", "`DIR` of the agent's --state-dir")
	flags.StringVar(&f.identity, "state-identity", "", "`NAME` of the agent's --state-identity, if it has one")
	flags.Var(texts(&f.keyFiles), "state-key-file", "`FILE` of the key with which the state is encrypted")
	flags = c.section("Static files (--out, or --seed)")
	flags.StringVar(&f.out, "out", "", "`DIR` to write the files to; it is created if it is missing")
	flags.StringVar(&f.envoyDir, "envoy-dir", "", "`DIR` under which Envoy will see these files, if it is not --out")
	flags.StringVar(&f.admin, "envoy-admin", "", "`ADDR` of Envoy's admin interface: host:port on loopback, or unix:PATH; empty: that of --bootstrap; without --bootstrap "+bootstrap.DefaultAdmin)
	flags.BoolVar(&f.secrets, "with-secrets", false, "also write certificates with their private keys, unencrypted, readable by their owner only")
	flags.BoolVar(&f.allowMissing, "allow-missing", false, "write the files although something is missing to which they refer")
	flags.BoolVar(&f.validate, "validate", false, "let Envoy check all of it (envoy --mode validate) before it is written")
	flags.StringVar(&f.envoy, "envoy-binary", "envoy", "`FILE`, or command in PATH, of the Envoy for --validate")
	flags = c.section("Envoy's node (its bootstrap, or id and cluster)")
	flags.StringVar(&f.bootstrap, "bootstrap", "", "`FILE` of the bootstrap with which Envoy uses the agent: its node, and with --out all in it that needs no agent")
	f.node.add(flags)
	f.seed.add(c)
	c.run = func(ctx context.Context, warnings []string) error {
		warn(c, warnings)
		if f.seed.out != "" {
			return f.runSeed(ctx, c)
		}
		return f.run(ctx, c)
	}
	return c
}

// stateKeys reads the keys of the state.
func stateKeys(files []string) ([][]byte, error) {
	var keys [][]byte
	for _, file := range files {
		key, err := keyfile.Load(file)
		if err != nil {
			return nil, fmt.Errorf("--state-key-file: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

func (f *exportFlags) run(ctx context.Context, c *command) error {
	switch {
	case f.stateDir == "":
		return errors.New("--state-dir is missing: name the directory of the agent's state")
	case f.out == "":
		return errors.New("--out is missing: name the directory to write to, or with --seed the file of a seed")
	}
	node, err := f.node.identity(f.bootstrap)
	if err != nil {
		return err
	}
	if node == nil {
		return errors.New("the node is missing: give --bootstrap, or --node-id and --node-cluster")
	}
	keys, err := stateKeys(f.keyFiles)
	if err != nil {
		return err
	}
	seen, err := filepath.Abs(cmp.Or(f.envoyDir, f.out))
	if err != nil {
		return cli.Failed(err)
	}
	held, contact, err := agent.Stored(f.stateDir, f.identity, keys, node)
	if err != nil {
		return cli.Failed(fmt.Errorf("--state-dir: %w", err))
	}
	base, err := f.base(node, held)
	if err != nil {
		return err
	}
	build := func(dir string) (*export.Result, []export.File, error) {
		made, err := export.Build(held, export.Config{Bootstrap: base, Own: f.bootstrap != "", Dir: dir, Secrets: f.secrets})
		if err != nil {
			return nil, nil, err
		}
		text, err := bootstrap.Encode(made.Bootstrap, bootstrap.JSON)
		return made, append(made.Files, export.File{Name: "bootstrap.json", Data: text, Secret: made.Secret}), err
	}
	made, files, err := build(seen)
	switch {
	case err != nil:
		return cli.Failed(err)
	case len(made.Missing) > 0 && !f.allowMissing:
		help := "--allow-missing writes the rest"
		if f.bootstrap == "" {
			help = "--bootstrap takes over what is in Envoy's own bootstrap, " + help
		}
		return cli.Failed(fmt.Errorf("nothing is written: something is missing without which Envoy would not start, or would serve less (%s):\n  %s", help, strings.Join(made.Missing, "\n  ")))
	}
	if f.validate {
		if err := f.askEnvoy(ctx, build); err != nil {
			return cli.Failed(err)
		}
	}
	if err := writeFiles(f.out, files); err != nil {
		return cli.Failed(err)
	}
	return cli.Failed(f.report(c, made, contact))
}

// base returns the bootstrap that the new one is made from.
func (f *exportFlags) base(node *corev3.Node, held []*xds.Resource) (*bootstrapv3.Bootstrap, error) {
	if f.bootstrap == "" {
		var layers []string
		for _, r := range held {
			if r.Type == xds.RuntimeType && r.Body != nil {
				layers = append(layers, r.Name)
			}
		}
		slices.Sort(layers)
		return bootstrap.Standalone(node, f.admin, layers)
	}
	own, err := bootstrap.Read("read", f.bootstrap)
	if err != nil || f.admin == "" {
		return own, err
	}
	if err := bootstrap.SetAdmin(own, f.admin); err != nil {
		return nil, fmt.Errorf("--envoy-admin: %w", err)
	}
	return own, nil
}

// askEnvoy lets an Envoy check an export in a temporary directory, where its files are.
func (f *exportFlags) askEnvoy(ctx context.Context, build func(dir string) (*export.Result, []export.File, error)) (err error) {
	binary, err := exec.LookPath(f.envoy)
	if err != nil {
		return fmt.Errorf("--validate: %w: name an Envoy with --envoy-binary", err)
	}
	dir, err := os.MkdirTemp("", "holdfast-export.") // for its owner only
	if err != nil {
		return fmt.Errorf("--validate: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	made, files, err := build(dir)
	if err != nil {
		return err
	}
	if err := writeFiles(dir, files); err != nil {
		return fmt.Errorf("--validate: %w", err)
	}
	whole, err := made.Static()
	if err != nil {
		return err
	}
	text, err := bootstrap.Encode(whole, bootstrap.JSON)
	if err != nil {
		return fmt.Errorf("--validate: a type that this version does not know cannot be shown to Envoy: leave --validate out: %w", err)
	}
	return bootstrap.CheckWithEnvoy(ctx, binary, text, bootstrap.JSON, dir, nil)
}

// runSeed writes a seed.
func (f *exportFlags) runSeed(ctx context.Context, c *command) error {
	switch {
	case f.out != "" || f.secrets:
		return errors.New("--seed writes one file without secrets: leave --out and --with-secrets out")
	case f.validate || f.allowMissing:
		return errors.New("--validate and --allow-missing are for --out: a seed is not for Envoy")
	case f.stateDir == "" && (f.identity != "" || len(f.keyFiles) > 0):
		return errors.New("--state-identity and --state-key-file need --state-dir")
	case f.stateDir == "":
		return f.seed.run(ctx, c, nil)
	}
	node, err := f.node.identity(f.bootstrap)
	if err != nil {
		return err
	}
	if node == nil && f.identity == "" {
		return errors.New("the node is missing: give --bootstrap, or --node-id and --node-cluster, or --state-identity")
	}
	keys, err := stateKeys(f.keyFiles)
	if err != nil {
		return err
	}
	return f.seed.run(ctx, c, func(role string) (*seed.Seed, error) {
		s, err := agent.StoredSeed(f.stateDir, f.identity, keys, node, role)
		if err != nil {
			return nil, fmt.Errorf("--state-dir: %w", err)
		}
		return s, nil
	})
}

// writeFiles replaces each file atomically, in their order: a file comes after those that it refers
// to.
func writeFiles(dir string, files []export.File) error {
	for _, file := range files {
		path := filepath.Join(dir, file.Name)
		mode, dirMode := fs.FileMode(0o644), fs.FileMode(0o755)
		if file.Secret {
			mode = 0o600
		}
		if filepath.Dir(file.Name) != "." { // only certificates are in subdirectories
			dirMode = 0o700
		}
		if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
			return err
		}
		if err := atomicfile.Write(path, file.Data, mode); err != nil {
			return err
		}
	}
	return nil
}

// report lists what was written and what is missing.
func (f *exportFlags) report(c *command, made *export.Result, contact time.Time) error {
	out := c.OutOrStdout()
	fmt.Fprintf(out, "%s: last known good configuration", f.out)
	if !contact.IsZero() {
		fmt.Fprintf(out, " from %s", contact.UTC().Format(time.RFC3339))
	}
	fmt.Fprintln(out)
	for _, typeURL := range slices.SortedFunc(maps.Keys(made.Counts), xds.CompareTypes) {
		fmt.Fprintf(out, "  %s: %d\n", xds.Short(typeURL), made.Counts[typeURL])
	}
	list := func(title string, lines []string) {
		if len(lines) > 0 {
			fmt.Fprintf(out, "%s:\n  %s\n", title, strings.Join(lines, "\n  "))
		}
	}
	list("Missing resources, to which the files refer", made.Missing)
	list("To be known", made.Notes)
	_, err := fmt.Fprintf(out, "Start Envoy with -c %s\n", filepath.Join(f.out, "bootstrap.json"))
	return err
}
