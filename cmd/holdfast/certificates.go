package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/nearest"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// certificateFlags are the flags of the certificates that the agent issues.
type certificateFlags struct {
	cfg    sds.Config // without Sources
	source sourceFlags
	more   []*sourceFlags
}

func (f *certificateFlags) add(c *command) {
	f.source.add(c.section("Certificates issued by the agent (docs/certificates.md compares the sources)"))
	flags := c.section("Certificates from any source")
	flags.Var(moreSources(&f.more), "certificates", "another source of certificates, as a JSON `OBJECT` (in the file of --config: a list of mappings) of the flags above, without dashes: {\"ca\": \"dir:/etc/ca\", \"identity\": [\"spiffe://td/a secret=a\"], \"root-secret\": \"a-roots\"}")
	flags.StringVar(&f.cfg.IdentityDir, "identity-dir", "", "`DIR` to store keys and certificates in, mode 0600, so that a restarted agent can use them while the CA is unreachable, and other programs can read them; it is created, private. Empty: in memory only")
	flags.Var(texts(&f.cfg.SecretDirs), "secret-dir", "`DIR` that secrets named file-cert:CERT~KEY and file-root:PATH may be read from. Without it, such secrets do not exist")
	flags.Var(aliases(&f.cfg.Aliases), "secret-alias", "`NAME=SECRET`, another name of a secret that the agent issues, such as web=default")
}

// config returns the configuration that the flags give.
func (f *certificateFlags) config() (sds.Config, error) {
	cfg := f.cfg
	sources := f.more
	if f.source.cfg.CA != "" {
		sources = append([]*sourceFlags{&f.source}, sources...)
	} else if given := f.source.given(""); given != "" {
		return sds.Config{}, fmt.Errorf("--%s has no meaning without --ca: name the source of the certificates", given)
	}
	for _, s := range sources {
		if given := s.given("istio-"); given != "" && !strings.HasPrefix(s.cfg.CA, "istio:") {
			return sds.Config{}, fmt.Errorf("--ca %s: --%s is for istio:ADDR only", redact.MaskURL(s.cfg.CA), given)
		}
		if s.given("root-overlap") == "" {
			s.cfg.RootOverlap = 0 // the default of the source
		}
		cfg.Sources = append(cfg.Sources, s.cfg)
	}
	switch {
	case len(cfg.Sources) == 0 && cfg.IdentityDir != "":
		return sds.Config{}, errors.New("--identity-dir has no meaning without --ca: name the source of the certificates")
	case len(cfg.Sources) == 0 && len(cfg.SecretDirs) == 0 && len(cfg.Aliases) > 0:
		return sds.Config{}, errors.New("--secret-alias has no meaning without --ca or --secret-dir")
	case cfg.IdentityDir != "":
		var err error
		if cfg.IdentityDir, err = filepath.Abs(cfg.IdentityDir); err != nil {
			return sds.Config{}, fmt.Errorf("--identity-dir: %w", err)
		}
	}
	return cfg, nil
}

// sourceFlags are the flags of one source of certificates.
type sourceFlags struct {
	flags *pflag.FlagSet
	cfg   sds.SourceConfig
}

func (f *sourceFlags) add(flags *pflag.FlagSet) {
	f.flags = flags
	cfg, ca := &f.cfg, &f.cfg.Istio
	cfg.KeyType = pki.DefaultKeyType
	flags.StringVar(&cfg.CA, "ca", "", "`SOURCE` of the certificates: dir:DIR, a mounted CA with which the agent signs; istio:ADDR, a CA with Istio's protocol; spire:unix:PATH, the SPIFFE Workload API; files:DIR, a certificate from files; dev or dev:DIR, a CA created at the first start, not for production. Empty: none")
	flags.Var(each(&cfg.Identities, parseIdentity), "identity", "SPIFFE `ID` (spiffe://td/ns/n/sa/a) of the certificate. dns=NAME, ip=ADDR and secret=NAME may follow, separated by blanks; secret is the name of the secret, \"default\" if not given")
	flags.StringVar(&cfg.RootSecret, "root-secret", sds.DefaultRoots, "`NAME` of the secret that contains the trusted root certificates")
	flags.Var(oneOf(&cfg.Validator, sds.TrustedCA, sds.SPIFFE), "root-validator", "form of that secret: trust any certificate of one of the roots, or use Envoy's SPIFFE validator with the roots of each trust domain")
	flags.StringVar(&cfg.Roots, "ca-roots", "", "PEM `FILE` of the only trusted roots; empty: those of the source")
	flags.StringVar(&cfg.CRL, "crl", "", "PEM `FILE` of certificate revocation lists, one per CA, for Envoy to check peers' certificates with")
	flags.Var(keyType(&cfg.KeyType), "key-type", "`TYPE` of generated keys: ecdsa-p256, ecdsa-p384, rsa-2048, rsa-3072 or rsa-4096")
	flags.Var(numberOf(&cfg.Lifetime, sds.DefaultLifetime, positive), "cert-lifetime", "requested lifetime of certificates (`DURATION`); they are renewed after half of the lifetime that the CA grants")
	flags.Var(numberOf(&cfg.RootOverlap, sds.DefaultRootOverlap, positive), "root-overlap", "keep trusting a root for this `DURATION` after its source has removed it; with spire it is removed at once, unless this flag is given")
	flags.Var(numberOf(&cfg.RootLead, sds.DefaultRootLead, positive), "root-lead", "trust a new root for this `DURATION` before the first certificate of it is used, so that peers trust it too")
	flags.StringVar(&ca.CA, "istio-ca", "", "PEM `FILE` of the CAs to trust for the TLS certificate of istio:ADDR; empty: those of the system")
	flags.StringVar(&ca.TokenFile, "istio-token-file", "", "`FILE` of the bearer token for istio:ADDR; it is read again for every call")
	flags.Var(headers(&ca.Headers), "istio-header", "`NAME=VALUE`, an extra header of every call to istio:ADDR, such as ClusterID=Kubernetes")
	flags.StringVar(&ca.Signer, "istio-cert-signer", "", "`NAME` of the signer that istio:ADDR is to use, if it has several; empty: its default")
	flags.StringVar(&ca.Cert, "istio-cert", "", "PEM `FILE` of a client certificate for istio:ADDR; with --istio-key")
	flags.StringVar(&ca.Key, "istio-key", "", "PEM `FILE` of the private key of --istio-cert")
	flags.StringVar(&ca.ServerName, "istio-server-name", "", "`NAME` to send as SNI, and to require in the certificate of istio:ADDR; empty: the host of the address")
	flags.Var(texts(&ca.SANs), "istio-san", "`NAME` to require in the certificate instead; one of several is enough")
	flags.BoolVar(&ca.Plaintext, "istio-plaintext", false, "connect to istio:ADDR without TLS; on a loopback address only")
}

// given returns the first flag but --ca whose name begins with prefix and that was set, "" for none.
func (f *sourceFlags) given(prefix string) (name string) {
	f.flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "ca" && name == "" && strings.HasPrefix(flag.Name, prefix) {
			name = flag.Name
		}
	})
	return name
}

// keyType makes a flag of the type of generated keys.
func keyType(target *pki.KeyType) scalar[pki.KeyType] {
	return scalar[pki.KeyType]{target, "TYPE", pki.ParseKeyType, func(kind pki.KeyType) string { return string(kind) }}
}

// moreSources makes a repeatable flag of objects, each with the flags of one source.
func moreSources(target *[]*sourceFlags) mapping {
	add := func(object map[string]any) error {
		f := &sourceFlags{}
		if err := f.set(object); err != nil {
			return err
		}
		*target = append(*target, f)
		return nil
	}
	return mapping{func(text string) error {
		tree, err := parseJSON(text)
		if err != nil {
			return err
		}
		object, ok := tree.(map[string]any)
		if !ok {
			return errors.New(`want an object, such as {"ca": "dir:/etc/ca"}`)
		}
		return add(object)
	}, add}
}

// set declares the flags and sets them from an object.
func (f *sourceFlags) set(object map[string]any) error {
	flags := pflag.NewFlagSet("certificates", pflag.ContinueOnError)
	f.add(flags)
	var known []string
	flags.VisitAll(func(flag *pflag.Flag) { known = append(known, flag.Name) })
	for _, key := range slices.Sorted(maps.Keys(object)) {
		flag := flags.Lookup(key)
		if flag == nil {
			return fmt.Errorf("unknown key %q%s", key, nearest.Question("", key, known))
		}
		if err := cli.SetYAML(flag, object[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		flag.Changed = true
	}
	if f.cfg.CA == "" {
		return errors.New("ca is missing: name the source of the certificates")
	}
	return nil
}

// parseIdentity parses the identity of a certificate.
func parseIdentity(text string) (one sds.Identity, err error) {
	var id string
	var dns, ips []string
	for i, word := range strings.Fields(text) {
		key, value, pair := strings.Cut(word, "=")
		switch {
		case i == 0 && strings.HasPrefix(word, pki.SPIFFE):
			id = word
		case pair && key == "dns":
			dns = append(dns, value)
		case pair && key == "ip":
			ips = append(ips, value)
		case pair && key == "secret" && value != "" && one.Secret == "":
			one.Secret = value
		default:
			return one, fmt.Errorf("%q: want a SPIFFE ID, and after it dns=NAME, ip=ADDR or secret=NAME", word)
		}
	}
	if id != "" || len(dns)+len(ips) > 0 {
		one.Names, err = pki.ParseNames(id, dns, ips)
	} else if one.Secret == "" {
		err = errors.New("is empty")
	}
	return one, err
}

// aliases makes a repeatable flag of NAME=SECRET pairs.
func aliases(target *map[string]string) mapping {
	return textPairs("NAME=SECRET", func(name, secret string) error {
		if name == "" || secret == "" {
			return errors.New("want NAME=SECRET, neither of them empty")
		}
		return addOnce(target, name, secret)
	})
}
