package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

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
that refer to them. Missing resources, to which the files refer, are listed. The state is
only read; an agent may be running.`

const exportExample = `
holdfast export --state-dir /var/lib/holdfast --bootstrap /etc/envoy/envoy.yaml \
    --out /etc/envoy/last-known-good
envoy -c /etc/envoy/last-known-good/bootstrap.json

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
	flags.StringVar(&f.admin, "envoy-admin", bootstrap.DefaultAdmin, "`ADDR` of Envoy's admin interface: host:port on loopback, or unix:PATH")
	flags.BoolVar(&f.secrets, "with-secrets", false, "also write certificates with their private keys, unencrypted, readable by their owner only")
	flags = c.section("Envoy's node (a bootstrap, or id and cluster)")
	flags.StringVar(&f.bootstrap, "bootstrap", "", "`FILE` of a bootstrap to read the node from")
	f.node.add(flags)
	f.seed.add(c)
	c.run = func(ctx context.Context, warnings []string) error {
		warn(c, warnings)
		if f.seed.out != "" {
			return f.runSeed(ctx, c)
		}
		return f.run(c)
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

func (f *exportFlags) run(c *command) error {
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
	made, err := export.Build(held, export.Config{Dir: seen, Secrets: f.secrets})
	if err != nil {
		return cli.Failed(err)
	}
	start, err := bootstrap.FromFiles(node, f.admin, filepath.Join(seen, made.Clusters), filepath.Join(seen, made.Listeners), made.Runtime)
	if err != nil {
		return err
	}
	text, err := bootstrap.Encode(start, bootstrap.JSON)
	if err != nil {
		return cli.Failed(err)
	}
	files := append(made.Files, export.File{Name: "bootstrap.json", Data: text})
	if err := writeFiles(f.out, files); err != nil {
		return cli.Failed(err)
	}
	return cli.Failed(f.report(c, made, contact))
}

// runSeed writes a seed.
func (f *exportFlags) runSeed(ctx context.Context, c *command) error {
	switch {
	case f.out != "" || f.secrets:
		return errors.New("--seed writes one file without secrets: leave --out and --with-secrets out")
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
	if len(made.Missing) > 0 {
		fmt.Fprintln(out, "Missing resources, to which the files refer:")
		for _, line := range made.Missing {
			fmt.Fprintf(out, "  %s\n", line)
		}
	}
	_, err := fmt.Fprintf(out, "Start Envoy with -c %s\n", filepath.Join(f.out, "bootstrap.json"))
	return err
}
