package sds

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Prefixes of secret names that refer to files, as Istio defines them.
const (
	fileCertPrefix = "file-cert:" // followed by CERT~KEY
	fileRootPrefix = "file-root:" // followed by PATH
	systemRoots    = fileRootPrefix + "system"
)

type fileSecret struct {
	cert, key string // the paths of file-cert
	root      string // the path of file-root; "" for the roots of the system
}

// parseFileSecret parses a secret name that refers to files; ok is false for other names.
func parseFileSecret(name string) (parsed fileSecret, ok bool) {
	if rest, ok := strings.CutPrefix(name, fileCertPrefix); ok {
		cert, key, _ := strings.Cut(rest, "~")
		return fileSecret{cert: cert, key: key}, isPath(cert) && isPath(key)
	}
	if name == systemRoots {
		return fileSecret{}, true
	}
	path, ok := strings.CutPrefix(name, fileRootPrefix)
	return fileSecret{root: path}, ok && isPath(path)
}

// isPath reports whether a path is absolute and in its shortest form: each file has one name.
func isPath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.ContainsAny(path, "~\x00")
}

// resolve returns the target of an alias, or the name itself.
func (m *Manager) resolve(name string) string { return cmp.Or(m.cfg.Aliases[name], name) }

// Owns reports whether this manager provides a secret, so that no control plane is asked for it.
func (m *Manager) Owns(name string) bool {
	name = m.resolve(name)
	switch {
	case strings.HasPrefix(name, fileCertPrefix), strings.HasPrefix(name, fileRootPrefix):
		return true
	case name == AllRoots:
		return len(m.sources) > 0
	}
	for _, s := range m.sources {
		if name == s.cfg.RootSecret || s.authoritative && strings.HasPrefix(name, pki.SPIFFE) {
			return true
		}
		for _, id := range s.identities {
			if name == id.cfg.Secret || id.cfg.Names.ID != "" && name == id.cfg.Names.ID {
				return true
			}
			if domain, err := pki.TrustDomain(id.cfg.Names.ID); err == nil && name == pki.SPIFFE+domain {
				return true
			}
		}
	}
	return false
}

// checkNames rejects a name that is given twice, and an alias without a target.
func (m *Manager) checkNames() error {
	taken := make(map[string]string)
	take := func(name, what string) error {
		if _, err := xds.CheckName(name); err != nil {
			return fmt.Errorf("secret %q: %w", name, err)
		}
		if _, isFile := parseFileSecret(name); isFile || name == AllRoots {
			return fmt.Errorf("the name %q is reserved", name)
		}
		if other, ok := taken[name]; ok {
			return fmt.Errorf("secret %q is both %s and %s: give one of them another name (secret=NAME of --identity, --root-secret)", name, other, what)
		}
		taken[name] = what
		return nil
	}
	for _, s := range m.sources {
		for _, id := range s.identities {
			if err := take(id.cfg.Secret, fmt.Sprintf("an identity of --ca %s", s.cfg.CA)); err != nil {
				return err
			}
		}
		if err := take(s.cfg.RootSecret, fmt.Sprintf("the roots of --ca %s", s.cfg.CA)); err != nil {
			return err
		}
	}
	for _, alias := range slices.Sorted(maps.Keys(m.cfg.Aliases)) {
		target := m.cfg.Aliases[alias]
		if err := take(alias, "an alias"); err != nil {
			return fmt.Errorf("--secret-alias: %w", err)
		}
		if _, again := m.cfg.Aliases[target]; again || !m.Owns(target) {
			return fmt.Errorf("--secret-alias %s=%s: %s is not a secret of this agent", alias, target, target)
		}
	}
	return nil
}

// build builds every secret that does not depend on subscriptions, of the first source that provides its
// name. The caller holds mu.
func (m *Manager) build() map[string]secret {
	out := make(map[string]secret)
	// A secret is built once for each of its names, because it contains its name.
	names := make(map[string][]string)
	for alias, target := range m.cfg.Aliases {
		names[target] = append(names[target], alias)
	}
	add := func(name string, of func(name string) secret) {
		for _, n := range append([]string{name}, names[name]...) {
			if _, ok := out[n]; !ok {
				out[n] = of(n)
			}
		}
	}
	for _, s := range m.sources {
		for _, id := range s.identities {
			if id.current == nil {
				continue
			}
			pair := id.current.pair
			of := func(name string) secret { return certificate(name, pair) }
			add(id.cfg.Secret, of)
			if has, err := pki.NamesOf(pair.Leaf()); err == nil && has.ID != "" {
				add(has.ID, of)
			}
		}
		for id, pair := range s.otherSVIDs {
			add(id, func(name string) secret { return certificate(name, pair) })
		}
	}
	all := make(map[string][]*x509.Certificate)
	for _, s := range m.sources {
		if s.cfg.CRL != "" && s.crl == nil {
			continue // without its CRL, a root would also accept revoked certificates
		}
		byDomain := make(map[string][]*x509.Certificate)
		for domain, roots := range s.domains {
			certs := roots.Certs()
			if len(certs) == 0 {
				continue
			}
			if domain != "" {
				byDomain[domain] = certs
				all[domain] = union(all[domain], certs)
				add(pki.SPIFFE+domain, func(name string) secret { return trustedCA(name, pki.EncodeCerts(certs), s.crl) })
			}
			if domain == s.domain && s.cfg.Validator == TrustedCA {
				add(s.cfg.RootSecret, func(name string) secret { return trustedCA(name, pki.EncodeCerts(certs), s.crl) })
			}
		}
		if s.cfg.Validator == SPIFFE && len(byDomain) > 0 {
			add(s.cfg.RootSecret, func(name string) secret { return spiffe(name, byDomain) })
		}
	}
	if len(all) > 0 {
		add(AllRoots, func(name string) secret { return spiffe(name, all) })
	}
	return out
}

// union returns the certificates of two lists in a stable order, without duplicates.
func union(a, b []*x509.Certificate) []*x509.Certificate {
	both := slices.Concat(a, b)
	slices.SortFunc(both, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	return slices.CompactFunc(both, (*x509.Certificate).Equal)
}
