package sds

import (
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

// Names that stand for files (those of Istio).
const (
	fileCertPrefix = "file-cert:" // CERT~KEY
	fileRootPrefix = "file-root:" // PATH, or
	systemRoots    = fileRootPrefix + "system"
)

// fileName is a name that stands for files.
type fileName struct {
	cert, key string // of file-cert
	root      string // of file-root; "" for the system's
}

// parseFileName reads a name that stands for files; false for another.
func parseFileName(name string) (fileName, bool) {
	if rest, ok := strings.CutPrefix(name, fileCertPrefix); ok {
		cert, key, ok := strings.Cut(rest, "~")
		if !ok || !isPath(cert) || !isPath(key) {
			return fileName{}, false
		}
		return fileName{cert: cert, key: key}, true
	}
	if name == systemRoots {
		return fileName{}, true
	}
	path, ok := strings.CutPrefix(name, fileRootPrefix)
	if !ok || !isPath(path) {
		return fileName{}, false
	}
	return fileName{root: path}, true
}

// isPath reports whether a path is absolute and as short as it can be written, so
// that each file has one name.
func isPath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.ContainsAny(path, "~\x00")
}

// resolve returns what a name stands for.
func (m *Manager) resolve(name string) string { return cmp.Or(m.cfg.Aliases[name], name) }

// Owns reports whether a secret is made here, so that nobody else is asked for it.
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
			switch {
			case name == id.cfg.Secret, id.cfg.Names.ID != "" && name == id.cfg.Names.ID:
				return true
			}
			if domain, err := pki.TrustDomain(id.cfg.Names.ID); err == nil && name == pki.SPIFFE+domain {
				return true
			}
		}
	}
	return false
}

// checkNames reports names that are given twice, and aliases for nothing.
func (m *Manager) checkNames() error {
	taken := make(map[string]string)
	take := func(name, what string) error {
		if _, err := xds.CheckName(name); err != nil {
			return fmt.Errorf("secret %q: %w", name, err)
		}
		if _, isFile := parseFileName(name); isFile || name == AllRoots {
			return fmt.Errorf("%q is no name to give: it has a meaning of its own", name)
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
			return fmt.Errorf("--secret-alias %s=%s: %s is no secret that is made here", alias, target, target)
		}
	}
	return nil
}

// build makes every secret that does not depend on what clients ask for; called
// under mu. Where two sources have the same, that of the first counts.
func (m *Manager) build() map[string]secret {
	out := make(map[string]secret)
	// Each is made once under each of its names: the name is part of it.
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
		for id, pair := range s.others {
			add(id, func(name string) secret { return certificate(name, pair) })
		}
	}
	all := make(map[string][]*x509.Certificate)
	for _, s := range m.sources {
		if s.cfg.CRL != "" && s.crl == nil {
			continue // without its revocations a root would be trusted too much
		}
		for domain, roots := range s.domains {
			certs := roots.Certs()
			if len(certs) == 0 {
				continue
			}
			if domain != "" {
				all[domain] = union(all[domain], certs)
				add(pki.SPIFFE+domain, func(name string) secret { return trustedCA(name, pki.EncodeCerts(certs), s.crl) })
			}
			if domain == s.domain && s.cfg.Validator == TrustedCA {
				add(s.cfg.RootSecret, func(name string) secret { return trustedCA(name, pki.EncodeCerts(certs), s.crl) })
			}
		}
		if s.cfg.Validator == SPIFFE {
			if by := s.byDomain(); len(by) > 0 {
				add(s.cfg.RootSecret, func(name string) secret { return spiffe(name, by) })
			}
		}
	}
	if len(all) > 0 {
		add(AllRoots, func(name string) secret { return spiffe(name, all) })
	}
	return out
}

// byDomain returns the roots of each trust domain; called under m.mu.
func (s *source) byDomain() map[string][]*x509.Certificate {
	out := make(map[string][]*x509.Certificate)
	for domain, roots := range s.domains {
		if certs := roots.Certs(); domain != "" && len(certs) > 0 {
			out[domain] = certs
		}
	}
	return out
}

// union returns certificates of two sorted lists, each once.
func union(a, b []*x509.Certificate) []*x509.Certificate {
	var both pki.Roots
	both.Restore(anchors(a))
	both.Restore(anchors(b))
	return both.Certs()
}

func anchors(certs []*x509.Certificate) []pki.Anchor {
	out := make([]pki.Anchor, len(certs))
	for i, c := range certs {
		out[i].Cert = c
	}
	return out
}
