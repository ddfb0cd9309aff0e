package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent"
	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/seed"
	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// seedFlags are the flags of `holdfast run` for seeds.
type seedFlags struct {
	from, publish, role, key string
	trust                    []string // files
	maxAge, every            time.Duration
	security                 dial.Security
}

func (f *seedFlags) add(c *command) {
	f.security.Flags = "seed"
	flags := c.section("Seed: configuration for a pod that has nothing stored while no control plane answers (docs/offline.md)")
	flags.StringVar(&f.from, "seed", "", "`PLACE` of the seed: a file, a directory with its parts, such as a volume of ConfigMaps, or an https:// URL. It is read when every --upstream has failed and nothing is stored, and gives way to any upstream that answers")
	flags.Var(texts(&f.trust), "seed-trust", "PEM `FILE` of the public keys (Ed25519) of which one must have signed the seed. Without it, only a file is accepted that belongs to root and that nobody else can write to")
	flags.Var(numberOf(&f.maxAge, seed.DefaultMaxAge, positive), "seed-max-age", "do not use a seed that is older than this `DURATION`")
	flags.StringVar(&f.role, "seed-role", "", "`NAME` of the role: Envoys of one role have the same configuration. Empty: the node's cluster")
	flags.StringVar(&f.publish, "seed-publish", "", "`PLACE` to publish a seed of the accepted configuration to: a file, an https:// URL (PUT), or in Kubernetes configmap:NAMESPACE/NAME. Many agents of a role may publish to one place. Empty: none")
	flags.Var(numberOf(&f.every, seed.DefaultPublishEvery, bounds{min: int64(time.Second), max: int64(24 * time.Hour)}), "seed-publish-every", "replace the seed in --seed-publish when it is older than this `DURATION` (1s to 24h)")
	flags.StringVar(&f.key, "seed-key", "", "PEM `FILE` of the private key (Ed25519) to sign published seeds with; empty: they are not signed")
	flags.StringVar(&f.security.CA, "seed-ca", "", "PEM `FILE` of the CAs to trust for the certificate of an https:// URL; empty: those of the system")
	flags.StringVar(&f.security.TokenFile, "seed-token-file", "", "`FILE` of a bearer token to send to an https:// URL; it is read again each time")
}

// config returns the configuration that the flags give.
func (f *seedFlags) config() (out agent.SeedConfig, err error) {
	switch {
	case f.from == "" && len(f.trust) > 0:
		return out, errors.New("--seed-trust has no meaning without --seed: name the place of the seed")
	case f.publish == "" && f.key != "":
		return out, errors.New("--seed-key has no meaning without --seed-publish: name the place to publish to")
	}
	out.Role, out.Every = f.role, f.every
	if f.from != "" {
		if out.Source, err = f.source(); err != nil {
			return out, err
		}
	}
	if f.publish != "" {
		if out.Publish, err = seed.NewPlace(f.publish, f.security); err != nil {
			return out, err
		}
	}
	if f.key != "" {
		if out.Key, err = seed.ReadKey(f.key); err != nil {
			return out, fmt.Errorf("--seed-key: %w", err)
		}
	}
	return out, nil
}

func (f *seedFlags) source() (*seed.Source, error) {
	var trust []ed25519.PublicKey
	for _, file := range f.trust {
		keys, err := seed.ReadTrust(file)
		if err != nil {
			return nil, fmt.Errorf("--seed-trust: %w", err)
		}
		trust = append(trust, keys...)
	}
	return seed.NewSource(f.from, f.security, trust, f.maxAge)
}

// exportSeedFlags are the flags of `holdfast export --seed`.
type exportSeedFlags struct {
	out, role, key, addr string
}

func (f *exportSeedFlags) add(c *command) {
	flags := c.section("A seed, for agents of the same role that have nothing stored (in place of --out)")
	flags.StringVar(&f.out, "seed", "", "`FILE` to write the seed to; - for standard output. Without --state-dir it is made by the running agent")
	_ = flags.SetAnnotation("seed", cli.CommandLineOnly, []string{}) // run's --seed is the place to read from
	flags.StringVar(&f.role, "seed-role", "", "`NAME` of the role: Envoys of one role have the same configuration. Empty: that of the agent's --seed-role, or the node's cluster")
	flags.StringVar(&f.key, "seed-key", "", "PEM `FILE` of the private key (Ed25519) to sign the seed with; empty: it is not signed")
	flags.StringVar(&f.addr, "admin", admin.DefaultAddr, "`ADDR` of the running agent's admin interface, unix:PATH or host:port")
}

// run writes a seed, made by stored from a state directory or, if that is nil, by the running agent.
func (f *exportSeedFlags) run(ctx context.Context, c *command, stored func(role string) (*seed.Seed, error)) error {
	var s *seed.Seed
	var err error
	if stored != nil {
		s, err = stored(f.role)
	} else {
		var data []byte
		if data, err = (admin.Client{Addr: f.addr}).Seed(ctx); err == nil {
			s, err = seed.Decode(data, seed.Trust{Unsigned: true})
		}
	}
	if err != nil {
		return cli.Failed(err)
	}
	if f.role != "" {
		s.Role = f.role
	}
	var key ed25519.PrivateKey
	if f.key != "" {
		if key, err = seed.ReadKey(f.key); err != nil {
			return fmt.Errorf("--seed-key: %w", err)
		}
	}
	data, err := seed.Encode(s, key)
	if err != nil {
		return cli.Failed(err)
	}
	report := c.OutOrStdout()
	if f.out == "-" {
		report = c.ErrOrStderr()
		_, err = os.Stdout.Write(data)
	} else {
		err = atomicfile.Write(f.out, data, bootstrapMode)
	}
	if err != nil {
		return cli.Failed(err)
	}
	return cli.Failed(f.report(report, s, len(data)))
}

// report says what is in a seed and what is not.
func (f *exportSeedFlags) report(out io.Writer, s *seed.Seed, size int) error {
	fmt.Fprintf(out, "%s: seed of the role %q from %s, %d bytes\n", f.out, s.Role, s.At.UTC().Format(time.RFC3339), size)
	counts := make(map[string]int)
	for _, r := range s.Resources {
		counts[r.Type]++
	}
	for _, typeURL := range slices.SortedFunc(maps.Keys(counts), xds.CompareTypes) {
		fmt.Fprintf(out, "  %s: %d\n", xds.Short(typeURL), counts[typeURL])
	}
	for _, why := range slices.Sorted(maps.Keys(s.LeftOut)) {
		fmt.Fprintf(out, "  not in it: %d: %s\n", s.LeftOut[why], why)
	}
	var err error
	if f.key == "" {
		_, err = fmt.Fprintln(out, "It is not signed (--seed-key): an agent accepts it only as a local file that belongs to root.")
	}
	return err
}
