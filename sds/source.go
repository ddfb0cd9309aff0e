package sds

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/istio"
	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/mounted"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/spire"
)

// Defaults of SourceConfig.
const (
	DefaultLifetime    = 24 * time.Hour
	DefaultRootOverlap = 24 * time.Hour
	DefaultRootLead    = time.Minute

	DefaultSecret = "default"
	DefaultRoots  = "ROOTCA"
	// AllRoots is the name of the secret with the roots of every trust domain of every source.
	AllRoots = "ALL"
)

// Forms of the secret with the roots.
const (
	TrustedCA = "trusted-ca" // accepts every certificate that leads to one of the roots
	SPIFFE    = "spiffe"     // verifies by trust domain, with Envoy's SPIFFE validator
)

// SourceConfig configures one origin of certificates.
type SourceConfig struct {
	// CA is dir:DIR, istio:ADDR, spire:unix:PATH, files:DIR, dev or dev:DIR.
	CA string
	// Identities are the identities to obtain certificates for. A source that pushes certificates (spire,
	// files) may have one without names: it takes the first certificate.
	Identities []Identity
	// RootSecret is the secret with the roots, and Validator its form; by default DefaultRoots and TrustedCA.
	RootSecret, Validator string
	// Roots is a PEM file: if set, only certificates that lead to one of its roots are accepted, and
	// authorities cannot add roots. CRL is a PEM file of revocation lists for the clients; "" for none.
	Roots, CRL string
	KeyType    pki.KeyType
	// Lifetime is the requested validity; the CA may grant less. RootOverlap is how long a root stays
	// published after the source stopped naming it: by default DefaultRootOverlap, or 0 with spire, whose
	// bundles overlap themselves. RootLead is how long a new root is published before the first certificate
	// that leads to it is used, as long as another one is valid.
	Lifetime, RootOverlap, RootLead time.Duration
	Istio                           istio.Config
}

type Identity struct {
	// Names are exactly the names of the certificate; without any, all names are accepted.
	Names pki.Names
	// Secret is published in addition to the SPIFFE ID; "" selects DefaultSecret.
	Secret string
}

// authority signs certificate requests.
type authority interface {
	// Issue returns a certificate, or an error, before ctx ends.
	Issue(ctx context.Context, r pki.Request) (pki.Answer, error)
	// Run watches what the authority depends on until ctx ends. It calls roots when peers must trust other
	// roots, and fault with the current problem, or with nil once it is resolved.
	Run(ctx context.Context, roots func([]*x509.Certificate), fault func(error)) error
}

// pusher receives certificates that are issued elsewhere.
type pusher interface {
	// Run calls update with the complete content whenever it changes until ctx ends, and fault as above.
	Run(ctx context.Context, update func(pki.Update), fault func(error)) error
}

type source struct {
	m          *Manager
	cfg        SourceConfig
	identities []*identity
	// Exactly one of authority and pusher is set.
	authority authority
	pusher    pusher
	// lenient is set for certificates for general purposes, see pki.Expectation.Lax.
	lenient bool
	// authoritative is set if the bundles of the source are complete: a missing root was revoked.
	authoritative bool
	// pinnedFiles reads cfg.Roots and cfg.CRL; nil if neither is set.
	pinnedFiles *files.Poller

	// The fields below are protected by m.mu. domain is that of the identities; "" without SPIFFE ID.
	domain     string
	pinned     []*x509.Certificate // the roots of cfg.Roots; nil if not set or not read yet
	crl        []byte
	domains    map[string]*pki.Roots
	otherSVIDs map[string]pki.Pair
	// faults are the current problems by the part of the source that they concern.
	faults map[string]error
}

func (m *Manager) source(cfg SourceConfig) (*source, error) {
	cfg.RootSecret = cmp.Or(cfg.RootSecret, DefaultRoots)
	cfg.Lifetime = cmp.Or(cfg.Lifetime, DefaultLifetime)
	cfg.RootLead = cmp.Or(cfg.RootLead, DefaultRootLead)
	cfg.KeyType = cmp.Or(cfg.KeyType, pki.DefaultKeyType)
	cfg.Validator = cmp.Or(cfg.Validator, TrustedCA)
	if cfg.Validator != TrustedCA && cfg.Validator != SPIFFE {
		return nil, fmt.Errorf("--root-validator %q: want %s or %s", cfg.Validator, TrustedCA, SPIFFE)
	}
	s := &source{m: m, cfg: cfg, domains: make(map[string]*pki.Roots), faults: make(map[string]error)}
	if err := s.createOrigin(); err != nil {
		return nil, err
	}
	if s.cfg.RootOverlap == 0 && !s.authoritative {
		s.cfg.RootOverlap = DefaultRootOverlap
	}
	if err := s.addIdentities(); err != nil {
		return nil, err
	}
	if a, ok := s.authority.(interface{ Require(func() []pki.Names) }); ok {
		a.Require(s.required)
	}
	if err := s.watchPinned(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *source) createOrigin() (err error) {
	kind, rest, _ := strings.Cut(s.cfg.CA, ":")
	log := s.m.log.With("ca", s.cfg.CA)
	if rest == "" && kind != "dev" {
		return errors.New("want dir:DIR, istio:ADDR, spire:unix:PATH, files:DIR, dev or dev:DIR")
	}
	switch kind {
	case "dir":
		s.authority, err = local.NewDir(rest, s.m.now, log)
	case "dev":
		if len(s.cfg.Identities) == 0 {
			s.cfg.Identities = []Identity{{Names: pki.Names{ID: pki.SPIFFE + "holdfast.dev/workload"}}}
		}
		domain, _ := pki.TrustDomain(s.cfg.Identities[0].Names.ID)
		if rest == "" && s.m.store != nil {
			place := func() (string, error) { return s.m.store.Below(".dev-ca") } // no identity is stored under such a name
			s.authority = local.OpenDevIn(place, domain, s.m.now, log)
			break
		}
		s.authority, err = local.OpenDev(rest, domain, s.m.now, log)
	case "istio":
		s.authority, err = istio.New(rest, s.cfg.Istio)
	case "spire":
		s.authoritative = true
		s.pusher, err = spire.New(rest, log)
	case "files":
		s.lenient = true
		s.pusher, err = mounted.New(rest)
	default:
		err = errors.New("unknown kind: want dir:DIR, istio:ADDR, spire:unix:PATH, files:DIR, dev or dev:DIR")
	}
	return err
}

func (s *source) addIdentities() error {
	configured := s.cfg.Identities
	if len(configured) == 0 {
		if s.authority != nil {
			return errors.New("--identity is missing: name the identity of the certificate, such as --identity spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT")
		}
		configured = []Identity{{}}
	}
	for _, c := range configured {
		c.Secret = cmp.Or(c.Secret, DefaultSecret)
		if s.authority != nil && c.Names.Equal(pki.Names{}) {
			return fmt.Errorf("--identity of secret %q has no name", c.Secret)
		}
		if c.Names.ID != "" {
			domain, err := pki.TrustDomain(c.Names.ID)
			if err != nil {
				return fmt.Errorf("--identity: %w", err)
			}
			if s.domain != "" && s.domain != domain {
				return fmt.Errorf("--identity: trust domains %s and %s: give each a --ca of its own (certificates, in the file of --config)", s.domain, domain)
			}
			s.domain = domain
		}
		s.identities = append(s.identities, &identity{
			s: s, cfg: c, wake: make(chan struct{}, 1), failed: make(map[pki.Reason]uint64),
		})
	}
	return nil
}

// required returns the names that an authority in the pod has to sign: those of all identities.
func (s *source) required() (all []pki.Names) {
	for _, id := range s.identities {
		all = append(all, id.cfg.Names)
	}
	return all
}

func (s *source) watchPinned() error {
	var paths, dirs []string
	for _, path := range []*string{&s.cfg.Roots, &s.cfg.CRL} {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("--ca-roots, --crl: %w", err)
		}
		paths, dirs = append(paths, *path), append(dirs, filepath.Dir(*path))
	}
	if len(paths) == 0 {
		return nil
	}
	allowed, err := files.NewDirs(dirs...)
	if err != nil {
		return err
	}
	s.pinnedFiles = &files.Poller{Dirs: allowed, Paths: paths}
	return nil
}

func (s *source) run(ctx context.Context) error {
	s.restore()
	eg, ctx := errgroup.WithContext(ctx)
	if s.pinnedFiles != nil {
		eg.Go(func() error { return s.pinnedFiles.Run(ctx, s.loadPinned, s.fault("roots and revocations")) })
	}
	eg.Go(func() error {
		var err error
		if s.authority != nil {
			err = s.authority.Run(ctx, s.acceptRoots, s.fault("authority"))
		} else {
			err = s.pusher.Run(ctx, s.acceptPushed, s.fault("source"))
		}
		if err != nil && ctx.Err() == nil {
			// The current certificates stay in use; the rest of the agent does not depend on this source.
			s.fault("authority")(err)
			s.m.log.Error("a source of certificates failed permanently: fix it and restart the agent", "ca", s.cfg.CA, "err", err)
		}
		return nil
	})
	for _, id := range s.identities {
		eg.Go(func() error { return id.run(ctx) })
	}
	return eg.Wait()
}

func (s *source) restore() {
	if s.pinnedFiles != nil {
		// The files are read before anything is trusted. The poller reports problems.
		c := make(files.Contents)
		for _, path := range s.pinnedFiles.Paths {
			if b, err := s.pinnedFiles.Dirs.Read(path); err == nil {
				c[path] = b
			}
		}
		_ = s.loadPinned(c)
	}
	for _, id := range s.identities {
		id.restore()
	}
	s.m.mu.Lock()
	s.m.rebuild()
	s.m.mu.Unlock()
}

const storagePart = "identity directory"

// fault returns a function that sets the current problem of one part of the source; nil clears it.
func (s *source) fault(part string) func(error) {
	return func(err error) {
		s.m.mu.Lock()
		before := s.faults[part]
		if err == nil {
			delete(s.faults, part)
		} else {
			s.faults[part] = err
		}
		s.m.mu.Unlock()
		switch {
		case err != nil && (before == nil || before.Error() != err.Error()):
			s.m.log.Warn("a source of certificates has a problem: the current certificates stay in use", "ca", s.cfg.CA, "err", err)
		case err == nil && before != nil:
			s.m.log.Info("the problem of a source of certificates is resolved", "ca", s.cfg.CA)
		}
	}
}

// loadPinned uses the files of roots and revocation lists, also if only one of them has no problem.
func (s *source) loadPinned(c files.Contents) error {
	var roots []*x509.Certificate
	var rootsErr, crlErr error
	if s.cfg.Roots != "" {
		if roots, rootsErr = pki.ParseCerts(c[s.cfg.Roots]); rootsErr != nil {
			rootsErr = fmt.Errorf("--ca-roots %s: %w", s.cfg.Roots, rootsErr)
		}
	}
	crl := c[s.cfg.CRL]
	if s.cfg.CRL != "" {
		until, err := pki.CheckCRL(crl)
		switch {
		case err != nil:
			crl, crlErr = nil, fmt.Errorf("--crl %s: %w", s.cfg.CRL, err)
		case !until.IsZero() && until.Before(s.m.now()):
			crlErr = fmt.Errorf("--crl %s: a list expired at %s, and Envoy therefore rejects every certificate of its issuer: provide a new one", s.cfg.CRL, until.UTC().Format(time.RFC3339))
		}
	}
	s.m.mu.Lock()
	if roots != nil {
		s.pinned = roots
		s.setRoots(s.domain, nil)
	}
	if crl != nil {
		s.crl = crl
	}
	s.m.rebuild()
	s.m.mu.Unlock()
	s.recheck(true)
	return errors.Join(rootsErr, crlErr)
}

func (s *source) acceptRoots(roots []*x509.Certificate) {
	s.m.mu.Lock()
	s.setRoots(s.domain, roots)
	s.m.rebuild()
	s.m.mu.Unlock()
	for _, id := range s.identities {
		id.rootsChanged(roots)
	}
}

func (s *source) acceptPushed(u pki.Update) {
	s.m.mu.Lock()
	if s.identities[0].cfg.Names.ID == "" && len(u.Pairs) > 0 {
		s.domain = pki.DomainOf(u.Pairs[0])
	}
	for domain, roots := range u.Bundles {
		s.setRoots(domain, roots)
	}
	for domain := range s.domains {
		if _, ok := u.Bundles[domain]; !ok {
			s.setRoots(domain, nil)
		}
	}
	s.prune()
	s.m.rebuild() // publishes the roots before the certificates
	s.m.mu.Unlock()
	for _, id := range s.identities {
		id.acceptPushed(u.Pairs)
	}
	if !s.authoritative {
		return
	}
	// All certificates are also served under their SPIFFE IDs.
	others := make(map[string]pki.Pair)
	for _, p := range u.Pairs {
		if names, err := pki.NamesOf(p.Leaf()); err == nil {
			if _, err := s.verify(p, pki.Names{}, nil); err == nil {
				others[names.ID] = p
			}
		}
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.otherSVIDs = others
	s.m.rebuild()
}

// verify checks that a certificate has the names and leads to a trusted root. roots came with the
// certificate, and count only if no roots are pinned.
func (s *source) verify(p pki.Pair, names pki.Names, roots []*x509.Certificate) (pki.Verified, error) {
	e := pki.Expectation{Key: p.Key.Public(), Lax: s.lenient}
	if !names.Equal(pki.Names{}) {
		e.Names = &names
	}
	s.m.mu.Lock()
	switch {
	case s.cfg.Roots != "":
		e.Roots = s.pinned
	case len(roots) > 0:
		e.Roots = roots
	default:
		if known := s.domains[pki.DomainOf(p)]; known != nil {
			e.Roots = known.Certs()
		}
	}
	s.m.mu.Unlock()
	return e.Verify(p.Chain, s.m.now())
}

// setRoots sets the roots that the source names for a domain, unless roots are pinned. The caller holds m.mu.
func (s *source) setRoots(domain string, roots []*x509.Certificate) {
	r := s.domains[domain]
	if r == nil {
		r = &pki.Roots{}
		s.domains[domain] = r
	}
	if domain == s.domain && s.cfg.Roots != "" {
		if s.pinned == nil {
			return // not read yet
		}
		roots = s.pinned
	}
	if r.Set(s.m.now(), roots) {
		s.m.log.Info("trusted roots", "ca", s.cfg.CA, "domain", domain, "count", len(roots))
	}
}

// prune removes the roots that the source has not named for the overlap. The caller holds m.mu.
func (s *source) prune() (changed bool) {
	now := s.m.now()
	for domain, r := range s.domains {
		pruned := r.Prune(now, s.cfg.RootOverlap, func(c *x509.Certificate) bool {
			// The root of a certificate in use stays.
			return !s.authoritative && slices.ContainsFunc(s.identities, func(id *identity) bool {
				return id.current != nil && id.current.Root != nil && id.current.Root.Equal(c) && now.Before(id.current.Until)
			})
		})
		if pruned {
			s.m.log.Info("a root is no longer trusted", "ca", s.cfg.CA, "domain", domain)
		}
		changed = changed || pruned
	}
	maps.DeleteFunc(s.domains, func(_ string, r *pki.Roots) bool { return len(r.Certs()) == 0 })
	return changed
}

// recheck removes roots whose overlap has passed and wakes the identities; if urgent, to retry at once.
func (s *source) recheck(urgent bool) {
	s.m.mu.Lock()
	if s.prune() {
		s.m.rebuild()
	}
	s.m.mu.Unlock()
	for _, id := range s.identities {
		id.recheck(urgent)
	}
}

// spiffeValidator is the name of Envoy's certificate validator with a bundle for each trust domain.
const spiffeValidator = "envoy.tls.cert_validator.spiffe"

// secret is a published resource. roots is set if it contains roots instead of a certificate.
type secret struct {
	*xds.Resource
	roots bool
}

// encode converts a Secret to a resource. Equal secrets have equal bytes and so equal versions.
func encode(s *tlsv3.Secret) secret {
	r, err := xds.FromAny(xds.SecretType, "", marshal(s), time.Time{})
	if err != nil {
		panic("sds: a secret is not a valid resource: " + err.Error()) // New has checked the name
	}
	return secret{r, s.GetValidationContext() != nil}
}

// marshal packs a message that this package built, which always succeeds.
func marshal(m proto.Message) *anypb.Any {
	out := &anypb.Any{}
	if err := anypb.MarshalFrom(out, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic("sds: " + err.Error())
	}
	return out
}

func inline(b []byte) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
}

func certificate(name string, p pki.Pair) secret {
	return encode(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: inline(p.ChainPEM()), PrivateKey: inline(p.KeyPEM()),
	}}})
}

// trustedCA returns the Secret that accepts every certificate that leads to one of the roots. crl holds
// revocation lists in PEM; nil for none.
func trustedCA(name string, roots, crl []byte) secret {
	v := &tlsv3.CertificateValidationContext{TrustedCa: inline(roots)}
	if crl != nil {
		v.Crl = inline(crl)
	}
	return encode(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: v}})
}

// spiffe returns the Secret that verifies the certificates of each trust domain with the roots of that domain.
func spiffe(name string, domains map[string][]*x509.Certificate) secret {
	var conf tlsv3.SPIFFECertValidatorConfig
	for _, domain := range slices.Sorted(maps.Keys(domains)) {
		conf.TrustDomains = append(conf.TrustDomains, &tlsv3.SPIFFECertValidatorConfig_TrustDomain{
			Name: domain, TrustBundle: inline(pki.EncodeCerts(domains[domain])),
		})
	}
	return encode(&tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{
		ValidationContext: &tlsv3.CertificateValidationContext{
			CustomValidatorConfig: &corev3.TypedExtensionConfig{Name: spiffeValidator, TypedConfig: marshal(&conf)},
		},
	}})
}
