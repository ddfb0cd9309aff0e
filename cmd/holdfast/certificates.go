package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/sds/istio"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// certificateFlags are the flags about the certificates that the agent makes.
type certificateFlags struct {
	sourceFlags
	more        moreSources
	aliases     aliases
	secretDirs  list
	identityDir string
}

func (f *certificateFlags) add(c *command) {
	flags := c.section("Certificates made by the agent (docs/certificates.md says which source is for whom)")
	f.sourceFlags.add(flags)
	flags = c.section("Certificates, whatever their source")
	flags.Var(&f.more, "certificates", "a further source of certificates, as a JSON `OBJECT` (in the file of --config: a list of mappings) of the flags above, without dashes: {\"ca\": \"dir:/etc/ca\", \"identity\": [\"spiffe://td/a secret=a\"], \"root-secret\": \"a-roots\"}. Repeatable")
	flags.StringVar(&f.identityDir, "identity-dir", "", "`DIR` where keys and certificates are kept, mode 0600, so that a restarted agent goes on with them while the CA is away, and other programs find them; it is made, private. Empty: in memory only")
	flags.Var(&f.secretDirs, "secret-dir", "`DIR` that secrets called file-cert:CERT~KEY and file-root:PATH may be read from; repeatable. Without one such names lead nowhere")
	flags.Var(&f.aliases, "secret-alias", "`NAME=SECRET`: a further name of a secret that is made here, such as web=default; repeatable")
}

// config returns what the flags say.
func (f *certificateFlags) config() (sds.Config, error) {
	cfg := sds.Config{Aliases: f.aliases, SecretDirs: f.secretDirs, IdentityDir: f.identityDir}
	sources := f.more
	if f.ca != "" {
		sources = append(moreSources{&f.sourceFlags}, sources...)
	} else if given := f.given(); given != "" {
		return sds.Config{}, fmt.Errorf("--%s has no meaning without --ca: say where certificates come from", given)
	}
	for _, s := range sources {
		c, err := s.config()
		if err != nil {
			return sds.Config{}, fmt.Errorf("--ca %s: %w", redact.MaskURL(s.ca), err)
		}
		cfg.Sources = append(cfg.Sources, c)
	}
	switch {
	case len(cfg.Sources) == 0 && f.identityDir != "":
		return sds.Config{}, errors.New("--identity-dir has no meaning without --ca: say where certificates come from")
	case len(cfg.Sources) == 0 && len(f.secretDirs) == 0 && len(f.aliases) > 0:
		return sds.Config{}, errors.New("--secret-alias has no meaning without --ca or --secret-dir")
	case f.identityDir != "":
		dir, err := filepath.Abs(f.identityDir)
		if err != nil {
			return sds.Config{}, fmt.Errorf("--identity-dir: %w", err)
		}
		cfg.IdentityDir = dir
	}
	return cfg, nil
}

// sourceFlags are the flags of one source of certificates.
type sourceFlags struct {
	flags *pflag.FlagSet

	ca                    string
	identities            identities
	rootSecret            string
	validator             *choice
	roots, crl            string
	keyType               string
	lifetime              time.Duration
	rootOverlap, rootLead time.Duration
	security              dial.Security
	sans                  list
	headers               headers
	signer                string
}

func (f *sourceFlags) add(flags *pflag.FlagSet) {
	f.flags = flags
	f.validator = oneOf(sds.TrustedCA, sds.SPIFFE)
	flags.StringVar(&f.ca, "ca", "", "`SOURCE` of the certificates: dir:DIR a mounted CA, which signs here; istio:ADDR a CA that speaks Istio's protocol; spire:unix:PATH the SPIFFE Workload API; files:DIR a certificate that others make; dev, or dev:DIR, a CA made at the first start, not for production. Empty: none")
	flags.Var(&f.identities, "identity", "`ID`, a SPIFFE ID (spiffe://td/ns/n/sa/a), that the certificate is for. After it, separated by blanks, may stand dns=NAME, ip=ADDR and secret=NAME, the name under which it is served if not \"default\". Repeatable")
	flags.StringVar(&f.rootSecret, "root-secret", sds.DefaultRoots, "`NAME` of the secret with the roots that peers' certificates must lead to")
	flags.Var(f.validator, "root-validator", "its form: any certificate of one of the roots, or Envoy's SPIFFE validator with the roots of each trust domain")
	flags.StringVar(&f.roots, "ca-roots", "", "PEM `FILE` of the only roots that are trusted; empty: those that the source names")
	flags.StringVar(&f.crl, "crl", "", "PEM `FILE` of revocation lists, one for each CA, that Envoy shall check peers' certificates by")
	flags.StringVar(&f.keyType, "key-type", string(pki.DefaultKeyType), "`TYPE` of keys that are generated: ecdsa-p256, ecdsa-p384, rsa-2048, rsa-3072 or rsa-4096")
	flags.DurationVar(&f.lifetime, "cert-lifetime", sds.DefaultLifetime, "how long certificates are asked to live (`DURATION`); they are renewed at half of what they get")
	flags.DurationVar(&f.rootOverlap, "root-overlap", sds.DefaultRootOverlap, "how long a root is trusted that its source does not name any more (`DURATION`); with spire its bundles count at once, unless this is given")
	flags.DurationVar(&f.rootLead, "root-lead", sds.DefaultRootLead, "how long a new root is trusted before the first certificate of it is used, so that peers learn of it (`DURATION`)")
	flags.StringVar(&f.security.CA, "istio-ca", "", "PEM `FILE` of the authorities that the certificate of istio:ADDR must lead to; empty: those of the system")
	flags.StringVar(&f.security.TokenFile, "istio-token-file", "", "`FILE` of the bearer token for it; it is read again at every call")
	flags.Var(&f.headers, "istio-header", "`NAME=VALUE` sent with every call to it, such as ClusterID=Kubernetes; repeatable")
	flags.StringVar(&f.signer, "istio-cert-signer", "", "`NAME` of the signer that it shall use, where it has several; empty: its own")
	flags.StringVar(&f.security.Cert, "istio-cert", "", "PEM `FILE` of a client certificate for it; with --istio-key")
	flags.StringVar(&f.security.Key, "istio-key", "", "PEM `FILE` of the key of --istio-cert")
	flags.StringVar(&f.security.ServerName, "istio-server-name", "", "`NAME` that its certificate must have and that is sent as SNI; empty: the host of the address")
	flags.Var(&f.sans, "istio-san", "`NAME` that its certificate must have instead; one of several is enough; repeatable")
	flags.BoolVar(&f.security.Plaintext, "istio-plaintext", false, "speak to it without TLS; on a loopback address only")
}

// given returns a flag that was set, "" for none.
func (f *sourceFlags) given() (name string) {
	f.flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && name == "" {
			name = flag.Name
		}
	})
	return name
}

func (f *sourceFlags) config() (sds.SourceConfig, error) {
	for _, d := range []struct {
		flag string
		set  time.Duration
	}{{"--cert-lifetime", f.lifetime}, {"--root-overlap", f.rootOverlap}, {"--root-lead", f.rootLead}} {
		if d.set <= 0 {
			return sds.SourceConfig{}, fmt.Errorf("%s %s: want a positive duration", d.flag, d.set)
		}
	}
	kind, err := pki.ParseKeyType(f.keyType)
	if err != nil {
		return sds.SourceConfig{}, fmt.Errorf("--key-type: %w", err)
	}
	if !strings.HasPrefix(f.ca, "istio:") {
		var stray error
		f.flags.VisitAll(func(flag *pflag.Flag) {
			if flag.Changed && strings.HasPrefix(flag.Name, "istio-") && stray == nil {
				stray = fmt.Errorf("--%s is for istio:ADDR only", flag.Name)
			}
		})
		if stray != nil {
			return sds.SourceConfig{}, stray
		}
	}
	security := f.security
	security.SANs = f.sans
	cfg := sds.SourceConfig{
		CA: f.ca, Identities: f.identities, RootSecret: f.rootSecret, Validator: f.validator.value,
		Roots: f.roots, CRL: f.crl, KeyType: kind, Lifetime: f.lifetime, RootLead: f.rootLead,
		Istio: istio.Config{Security: security, Headers: f.headers, Signer: f.signer},
	}
	if f.flags.Lookup("root-overlap").Changed {
		cfg.RootOverlap = f.rootOverlap
	}
	return cfg, nil
}

// moreSources is a repeatable flag of objects, each with the flags of one source.
type moreSources []*sourceFlags

func (m *moreSources) Set(text string) error {
	tree, err := parseJSON(text)
	if err != nil {
		return err
	}
	object, ok := tree.(map[string]any)
	if !ok {
		return errors.New(`want an object, such as {"ca": "dir:/etc/ca"}`)
	}
	return m.setMap(object)
}

// setMap adds the source that a mapping says.
func (m *moreSources) setMap(object map[string]any) error {
	f := &sourceFlags{}
	flags := pflag.NewFlagSet("certificates", pflag.ContinueOnError)
	f.add(flags)
	var known []string
	flags.VisitAll(func(flag *pflag.Flag) { known = append(known, flag.Name) })
	for _, key := range slices.Sorted(maps.Keys(object)) {
		flag := flags.Lookup(key)
		if flag == nil {
			return fmt.Errorf("unknown key %q%s", key, didYouMean("", key, known))
		}
		if err := setYAML(flag, object[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		flag.Changed = true
	}
	if f.ca == "" {
		return errors.New("ca is missing: say where the certificates come from")
	}
	*m = append(*m, f)
	return nil
}

func (m *moreSources) String() string { return "" }
func (*moreSources) Type() string     { return "OBJECT" }
func (*moreSources) repeatable()      {}

// identities is a repeatable flag of what certificates are for.
type identities []sds.Identity

func (l *identities) Set(text string) error {
	var id string
	var dns, ips []string
	var one sds.Identity
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
			return fmt.Errorf("%q: want a SPIFFE ID, and after it dns=NAME, ip=ADDR or secret=NAME", word)
		}
	}
	if id != "" || len(dns)+len(ips) > 0 {
		var err error
		if one.Names, err = pki.ParseNames(id, dns, ips); err != nil {
			return err
		}
	} else if one.Secret == "" {
		return errors.New("is empty")
	}
	*l = append(*l, one)
	return nil
}

func (l *identities) String() string {
	var all []string
	for _, id := range *l {
		all = append(all, id.Names.String())
	}
	return strings.Join(all, "; ")
}
func (*identities) Type() string { return "ID" }
func (*identities) repeatable()  {}

// aliases is a repeatable flag of NAME=SECRET pairs.
type aliases map[string]string

func (a *aliases) Set(text string) error {
	name, secret, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("want NAME=SECRET")
	}
	return a.add(name, secret)
}

func (a *aliases) add(name, secret string) error {
	if name == "" || secret == "" {
		return errors.New("want NAME=SECRET, neither of them empty")
	}
	if _, twice := (*a)[name]; twice {
		return fmt.Errorf("%q is given twice", name)
	}
	if *a == nil {
		*a = make(aliases)
	}
	(*a)[name] = secret
	return nil
}

func (a *aliases) setMap(m map[string]any) error { return eachText(m, a.add) }

func (a *aliases) String() string {
	if len(*a) == 0 {
		return ""
	}
	b, _ := json.Marshal(*a) // of texts, which always marshals
	return string(b)
}
func (*aliases) Type() string { return "NAME=SECRET" }
func (*aliases) repeatable()  {}
