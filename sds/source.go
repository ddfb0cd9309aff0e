package sds

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

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
	// AllRoots is the secret with the roots of every trust domain of every source.
	AllRoots = "ALL"
)

// Forms of the secret with the roots.
const (
	TrustedCA = "trusted-ca" // whoever leads to one of the roots
	SPIFFE    = "spiffe"     // by trust domain, with Envoy's SPIFFE validator
)

// SourceConfig is one place where certificates come from.
type SourceConfig struct {
	// CA is dir:DIR, istio:ADDR, spire:unix:PATH, files:DIR, dev or dev:DIR.
	CA string
	// Identities are what certificates are for. Those who make them themselves
	// (spire, files) may have one without names: whatever they give first.
	Identities []Identity
	// RootSecret is the name of the secret with the roots, Validator its form; ""
	// for DefaultRoots and TrustedCA.
	RootSecret, Validator string
	// Roots is a file of root certificates, in PEM. If it is set only what leads to
	// one of them is taken, and authorities cannot add others. CRL is a file of
	// revocations, in PEM, for clients and servers to look into; "" for none.
	Roots, CRL string
	KeyType    pki.KeyType
	// Lifetime is what is asked for; the CA may give less. RootOverlap is how long
	// a root is published that is not named any more: 0 for DefaultRootOverlap, but
	// none with spire, whose bundles say themselves what overlaps. RootLead is how
	// long a new root is published before the first certificate that leads to it is
	// used, as long as there is another that is valid.
	Lifetime, RootOverlap, RootLead time.Duration
	// Istio configures istio:ADDR.
	Istio istio.Config
}

// Identity is what a certificate is for.
type Identity struct {
	// Names are exactly those of the certificate. Empty: whatever it has.
	Names pki.Names
	// Secret is the name under which it is published, beside its SPIFFE ID; "" for
	// DefaultSecret.
	Secret string
}

// authority signs requests.
type authority interface {
	// Issue returns a certificate, or why there is none, before ctx ends.
	Issue(ctx context.Context, r pki.Request) (pki.Answer, error)
	// Run follows what the authority depends on until ctx ends, and calls roots
	// when peers must trust others, fault with what is wrong, nil when it is mended.
	Run(ctx context.Context, roots func([]*x509.Certificate), fault func(error)) error
}

// pusher gets certificates that others make.
type pusher interface {
	// Run calls update with all there is, whenever it changes, until ctx ends, and
	// fault as an authority does.
	Run(ctx context.Context, update func(pki.Update), fault func(error)) error
}

// source is one SourceConfig at work.
type source struct {
	m          *Manager
	cfg        SourceConfig
	identities []*identity
	// One of these is set.
	authority authority
	pusher    pusher
	// lax: the certificates are made by others for purposes of their own.
	lax bool
	// authoritative: what it says of its bundles is all there is, and a root that is
	// left out was revoked.
	authoritative bool
	// pins reads cfg.Roots and cfg.CRL; nil for neither.
	pins *files.Poller

	// Under m.mu.
	// domain is the trust domain of the identities; "" where they have none.
	domain  string
	pinned  []*x509.Certificate // nil where nothing is pinned, or it was not read
	crl     []byte
	domains map[string]*pki.Roots
	// others are the certificates that were pushed, by SPIFFE ID.
	others map[string]pki.Pair
	// faults are what is wrong now, by what it is wrong with.
	faults map[string]error
}

// source makes a source; it does no I/O.
func (m *Manager) source(cfg SourceConfig) (*source, error) {
	if cfg.RootSecret == "" {
		cfg.RootSecret = DefaultRoots
	}
	if cfg.Lifetime == 0 {
		cfg.Lifetime = DefaultLifetime
	}
	if cfg.RootLead == 0 {
		cfg.RootLead = DefaultRootLead
	}
	if cfg.KeyType == "" {
		cfg.KeyType = pki.DefaultKeyType
	}
	switch cfg.Validator {
	case "":
		cfg.Validator = TrustedCA
	case TrustedCA, SPIFFE:
	default:
		return nil, fmt.Errorf("--root-validator %q: want %s or %s", cfg.Validator, TrustedCA, SPIFFE)
	}
	s := &source{m: m, cfg: cfg, domains: make(map[string]*pki.Roots), faults: make(map[string]error)}
	if err := s.open(); err != nil {
		return nil, err
	}
	if s.cfg.RootOverlap == 0 && !s.authoritative {
		s.cfg.RootOverlap = DefaultRootOverlap
	}
	if err := s.addIdentities(); err != nil {
		return nil, err
	}
	if err := s.pin(); err != nil {
		return nil, err
	}
	return s, nil
}

// open makes what cfg.CA names.
func (s *source) open() (err error) {
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
			place := func() (string, error) { return s.m.store.Below(".dev-ca") } // no secret is kept under such a name
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
		s.lax = true
		s.pusher, err = mounted.New(rest)
	default:
		err = errors.New("unknown kind: want dir:DIR, istio:ADDR, spire:unix:PATH, files:DIR, dev or dev:DIR")
	}
	return err
}

// addIdentities checks the identities and makes them.
func (s *source) addIdentities() error {
	configured := s.cfg.Identities
	if len(configured) == 0 {
		if s.authority != nil {
			return errors.New("--identity is missing: say what the certificate is for, such as --identity spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT")
		}
		configured = []Identity{{}}
	}
	for _, c := range configured {
		if c.Secret == "" {
			c.Secret = DefaultSecret
		}
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
		s.identities = append(s.identities, newIdentity(s, c))
	}
	return nil
}

// pin makes what reads the files of roots and revocations.
func (s *source) pin() error {
	var paths, dirs []string
	for _, f := range []struct{ flag, path string }{{"--ca-roots", s.cfg.Roots}, {"--crl", s.cfg.CRL}} {
		if f.path == "" {
			continue
		}
		path, err := filepath.Abs(f.path)
		if err != nil {
			return fmt.Errorf("%s: %w", f.flag, err)
		}
		paths, dirs = append(paths, path), append(dirs, filepath.Dir(path))
	}
	if len(paths) == 0 {
		return nil
	}
	allowed, err := files.NewDirs(dirs...)
	if err != nil {
		return err
	}
	s.pins = &files.Poller{Dirs: allowed, Paths: paths}
	if s.cfg.Roots != "" {
		s.cfg.Roots = paths[0]
	}
	if s.cfg.CRL != "" {
		s.cfg.CRL = paths[len(paths)-1]
	}
	return nil
}

// run makes the certificates of the source until ctx ends.
func (s *source) run(ctx context.Context) error {
	s.resume()
	eg, ctx := errgroup.WithContext(ctx)
	if s.pins != nil {
		eg.Go(func() error { return s.pins.Run(ctx, s.usePins, s.fault("roots and revocations")) })
	}
	eg.Go(func() error {
		var err error
		if s.authority != nil {
			err = s.authority.Run(ctx, s.useRoots, s.fault("authority"))
		} else {
			err = s.pusher.Run(ctx, s.usePush, s.fault("source"))
		}
		if err != nil && ctx.Err() == nil {
			// The certificates that there are stay; the others of the agent's tasks
			// do not depend on it.
			s.fault("authority")(err)
			s.m.log.Error("a source of certificates has failed for good: start the agent again when it is mended", "ca", s.cfg.CA, "err", err)
		}
		return nil
	})
	for _, id := range s.identities {
		eg.Go(func() error { return id.run(ctx) })
	}
	return eg.Wait()
}

// resume takes up what was kept of an earlier process.
func (s *source) resume() {
	if s.pins != nil {
		// Read once before anything is trusted. What is wrong is said by the poller.
		c := make(files.Contents)
		for _, path := range s.pins.Paths {
			if b, err := s.pins.Dirs.Read(path); err == nil {
				c[path] = b
			}
		}
		_ = s.usePins(c)
	}
	for _, id := range s.identities {
		id.resume()
	}
	s.m.mu.Lock()
	s.m.rebuild()
	s.m.mu.Unlock()
}

// fault returns what notes what is wrong with one part of the source.
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
			s.m.log.Warn("certificates: what there is stays in use until this is mended", "ca", s.cfg.CA, "err", err)
		case err == nil && before != nil:
			s.m.log.Info("certificates: mended", "ca", s.cfg.CA)
		}
	}
}

// complain notes that nothing can be kept on disk.
func (s *source) complain(err error) { s.fault("identity directory")(err) }

// usePins takes in the files of roots and revocations. What is wrong with one does
// not keep the other from being used.
func (s *source) usePins(c files.Contents) error {
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
			crlErr = fmt.Errorf("--crl %s: a list ended at %s, and with it Envoy refuses every certificate of its issuer: write a new one", s.cfg.CRL, until.UTC().Format(time.RFC3339))
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
	s.look(true)
	return errors.Join(rootsErr, crlErr)
}

// useRoots takes in the roots that an authority names.
func (s *source) useRoots(roots []*x509.Certificate) {
	s.m.mu.Lock()
	s.setRoots(s.domain, roots)
	s.m.rebuild()
	s.m.mu.Unlock()
	for _, id := range s.identities {
		id.rootsChanged(roots)
	}
}

// usePush takes in what was pushed.
func (s *source) usePush(u pki.Update) {
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
	s.m.rebuild() // roots before certificates
	s.m.mu.Unlock()
	for _, id := range s.identities {
		id.usePush(u.Pairs)
	}
	if !s.authoritative {
		return
	}
	// All of them are served under their SPIFFE IDs.
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
	s.others = others
	s.m.rebuild()
}

// verify checks a certificate against what it must be. roots are those that came
// with it; they count only where none are pinned.
func (s *source) verify(p pki.Pair, names pki.Names, roots []*x509.Certificate) (pki.Verified, error) {
	e := pki.Expectation{Key: p.Key.Public(), Lax: s.lax}
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
		e.Roots = s.trusted(pki.DomainOf(p))
	}
	s.m.mu.Unlock()
	return e.Verify(p.Chain, s.m.now())
}

// setRoots takes in what the source names of one trust domain; called under m.mu.
// Where roots are pinned, nobody adds to them.
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

// trusted returns the roots of a trust domain; called under m.mu.
func (s *source) trusted(domain string) []*x509.Certificate {
	if r := s.domains[domain]; r != nil {
		return r.Certs()
	}
	return nil
}

// prune drops roots that nobody has named for the overlap; called under m.mu.
func (s *source) prune() (changed bool) {
	now := s.m.now()
	for domain, r := range s.domains {
		pruned := r.Prune(now, s.cfg.RootOverlap, func(c *x509.Certificate) bool {
			// A certificate in use is not left without its root.
			return !s.authoritative && slices.ContainsFunc(s.identities, func(id *identity) bool {
				return id.current != nil && id.current.root != nil && id.current.root.Equal(c) && now.Before(id.current.until)
			})
		})
		if pruned {
			s.m.log.Info("a root is trusted no longer", "ca", s.cfg.CA, "domain", domain)
		}
		changed = changed || pruned
	}
	maps.DeleteFunc(s.domains, func(_ string, r *pki.Roots) bool { return len(r.Certs()) == 0 })
	return changed
}

// look makes everything be looked at again: roots may have had their time, and
// certificates be due. urgent says that what failed shall be tried at once.
func (s *source) look(urgent bool) {
	s.m.mu.Lock()
	if s.prune() {
		s.m.rebuild()
	}
	s.m.mu.Unlock()
	for _, id := range s.identities {
		id.look(urgent)
	}
}
