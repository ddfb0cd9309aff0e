package sds

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Status is what is known of the certificates.
type Status struct {
	Identities []IdentityStatus
	Roots      []RootStatus
	Files      []FileStatus
	// Faults are what is wrong with the sources now.
	Faults []string
}

// IdentityStatus is what is known of one identity and the certificate in use.
type IdentityStatus struct {
	// Secret is the name under which it is published, CA where it comes from, and
	// Names who it is for: as they are configured, or else as they are.
	Secret, CA, Names string
	// Serial, in hexadecimal, Issuer and the validity are those of the certificate
	// in use; empty without one.
	Serial, Issuer   string
	NotBefore, Until time.Time
	// Next is when the next certificate is asked for; the zero time where others
	// push it.
	Next time.Time
	// Pending is when a certificate comes into use that is here already; the zero
	// time for none.
	Pending time.Time
	// Attempts counts those that failed since the last that did not, Err says why.
	Attempts int
	Err      error
	// Issued and Failed count since the start.
	Issued uint64
	Failed map[pki.Reason]uint64
}

// RootStatus is one certificate that is trusted.
type RootStatus struct {
	CA, Domain, Subject, Serial string
	Until                       time.Time
	// Left is since when the source does not name it any more; the zero time if it
	// does.
	Left time.Time
}

// FileStatus is what is known of a secret that clients ask for by its files.
type FileStatus struct {
	Name string
	// Version is that of the secret; "" for none yet.
	Version string
	// Err is what is wrong with the files now.
	Err error
}

// Status returns what is known of the certificates.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out Status
	for _, s := range m.sources {
		for _, id := range s.identities {
			out.Identities = append(out.Identities, id.status())
		}
		for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
			for _, a := range s.domains[domain].Anchors() {
				out.Roots = append(out.Roots, RootStatus{
					CA: s.cfg.CA, Domain: domain, Subject: a.Cert.Subject.String(), Serial: a.Cert.SerialNumber.Text(16),
					Until: a.Cert.NotAfter, Left: a.Left,
				})
			}
		}
		for _, part := range slices.Sorted(maps.Keys(s.faults)) {
			out.Faults = append(out.Faults, s.faults[part].Error())
		}
	}
	for name, f := range m.read {
		f.Name = name
		out.Files = append(out.Files, f)
	}
	slices.SortFunc(out.Files, func(a, b FileStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (id *identity) status() IdentityStatus {
	out := IdentityStatus{
		Secret: id.cfg.Secret, CA: id.s.cfg.CA, Names: id.cfg.Names.String(),
		Attempts: id.attempts, Err: id.err, Issued: id.issued, Failed: maps.Clone(id.failed),
	}
	if id.s.authority != nil {
		out.Next = id.due
	}
	if id.next != nil {
		out.Pending = id.next.from
	}
	if h := id.current; h != nil {
		leaf := h.pair.Leaf()
		if names, err := pki.NamesOf(leaf); err == nil {
			out.Names = names.String()
		}
		out.Serial, out.Issuer = leaf.SerialNumber.Text(16), leaf.Issuer.String()
		out.NotBefore, out.Until = leaf.NotBefore, h.until
	}
	return out
}

// Ready returns nil if every identity has a certificate that is valid, and roots
// to check others by, or what is missing.
func (m *Manager) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, s := range m.sources {
		for _, id := range s.identities {
			switch {
			case id.current == nil && id.err != nil:
				return fmt.Errorf("no certificate %q yet from %s: %w", id.cfg.Secret, s.cfg.CA, id.err)
			case id.current == nil:
				return fmt.Errorf("no certificate %q yet from %s", id.cfg.Secret, s.cfg.CA)
			case !now.Before(id.current.until):
				ended := fmt.Errorf("the certificate %q ended at %s", id.cfg.Secret, id.current.until.UTC().Format(time.RFC3339))
				return errors.Join(ended, id.err)
			}
		}
		if _, ok := m.secrets[s.cfg.RootSecret]; !ok && !s.lax {
			return fmt.Errorf("no roots %q yet from %s", s.cfg.RootSecret, s.cfg.CA)
		}
	}
	return nil
}
