package sds

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Status is the state of all certificates. It contains no secret. Its JSON form is a part of the status of
// the agent.
type Status struct {
	Identities []IdentityStatus `json:"identities"`
	Roots      []RootStatus     `json:"roots"`
	Files      []FileStatus     `json:"files,omitempty"`
	// Faults are problems with sources; the current certificates stay in use.
	Faults []string `json:"faults,omitempty"`
}

// IdentityStatus is the state of one identity and of its certificate in use.
type IdentityStatus struct {
	// Secret is the published secret, CA its origin; Names are those in use, or else the configured ones.
	Secret string `json:"secret"`
	CA     string `json:"ca"`
	Names  string `json:"names"`
	// Serial (in hexadecimal), Issuer and the validity are empty without a certificate in use.
	Serial    string    `json:"serial,omitempty"`
	Issuer    string    `json:"issuer,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	// Next is when the next certificate is requested; the zero time if the source pushes certificates.
	Next time.Time `json:"next_attempt,omitzero"`
	// Pending is when a verified successor comes into use; the zero time if there is none.
	Pending time.Time `json:"pending,omitzero"`
	// Attempts counts the failures since the last success, and Error is the last failure.
	Attempts int    `json:"failed_attempts"`
	Error    string `json:"error,omitempty"`
	// Issued and Failed count since the start of the process.
	Issued uint64                `json:"issued"`
	Failed map[pki.Reason]uint64 `json:"failed,omitempty"`
}

// RootStatus is the state of a trusted root certificate.
type RootStatus struct {
	CA       string    `json:"ca"`
	Domain   string    `json:"trust_domain"`
	Subject  string    `json:"subject"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"not_after"`
	// Left is when the source stopped naming the root; the zero time if it still names it. The root stays
	// trusted for a while, because peers may still have certificates of it.
	Left time.Time `json:"left,omitzero"`
}

// FileStatus is the state of a secret that clients subscribe to by the paths of its files.
type FileStatus struct {
	Name string `json:"name"`
	// Version is "" if the secret could not be read yet; Error is the current problem with its files.
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
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
					NotAfter: a.Cert.NotAfter, Left: a.Left,
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
		Attempts: id.attempts, Error: errorText(id.err), Issued: id.issued, Failed: maps.Clone(id.failed),
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
		out.NotBefore, out.NotAfter = leaf.NotBefore, h.Until
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
