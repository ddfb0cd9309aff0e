package sds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

type Status struct {
	Identities []IdentityStatus
	Roots      []RootStatus
	Files      []FileStatus
	Faults     []string
}

// IdentityStatus is the state of one identity and of its certificate in use.
type IdentityStatus struct {
	// Secret is the published secret, CA its origin; Names are those in use, or else the configured ones.
	Secret, CA, Names string
	// Serial (in hexadecimal), Issuer and the validity are empty without a certificate in use.
	Serial, Issuer   string
	NotBefore, Until time.Time
	// Next is when the next certificate is requested; the zero time if the source pushes certificates.
	Next time.Time
	// Pending is when a verified successor comes into use; the zero time if there is none.
	Pending time.Time
	// Attempts counts the failures since the last success, and Err is the last failure.
	Attempts int
	Err      error
	// Issued and Failed count since the start of the process.
	Issued uint64
	Failed map[pki.Reason]uint64
}

type RootStatus struct {
	CA, Domain, Subject, Serial string
	Until                       time.Time
	// Left is when the source stopped naming the root; the zero time if it still names it.
	Left time.Time
}

// FileStatus is the state of a secret that clients subscribe to by the paths of its files.
type FileStatus struct {
	Name string
	// Version is "" if the secret could not be read yet; Err is the current problem with its files.
	Version string
	Err     error
}

// Status returns the state of all identities, roots and files.
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
	for _, name := range slices.Sorted(maps.Keys(m.fileStatus)) {
		f := m.fileStatus[name]
		f.Name = name
		out.Files = append(out.Files, f)
	}
	return out
}

func (id *identity) status() IdentityStatus {
	out := IdentityStatus{
		Secret: id.cfg.Secret, CA: id.s.cfg.CA, Names: id.cfg.Names.String(),
		Attempts: id.attempts, Err: id.err, Issued: id.issued, Failed: maps.Clone(id.failed),
	}
	if id.s.authority != nil {
		out.Next = id.nextAttempt
	}
	if id.next != nil {
		out.Pending = id.next.From
	}
	if h := id.current; h != nil {
		leaf := h.pair.Leaf()
		if names, err := pki.NamesOf(leaf); err == nil {
			out.Names = names.String()
		}
		out.Serial, out.Issuer = leaf.SerialNumber.Text(16), leaf.Issuer.String()
		out.NotBefore, out.Until = leaf.NotBefore, h.Until
	}
	return out
}

// Ready returns what is missing of the valid certificates and the roots to verify peers; nil for nothing.
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
			case !now.Before(id.current.Until):
				expired := fmt.Errorf("the certificate %q expired at %s", id.cfg.Secret, id.current.Until.UTC().Format(time.RFC3339))
				return errors.Join(expired, id.err)
			}
		}
		if _, ok := m.secrets[s.cfg.RootSecret]; !ok && !s.lenient {
			return fmt.Errorf("no roots %q yet from %s", s.cfg.RootSecret, s.cfg.CA)
		}
	}
	return nil
}
