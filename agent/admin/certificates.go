package admin

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Certificates describes the certificates that the agent issues.
type Certificates struct {
	Identities []Identity   `json:"identities"`
	Roots      []Root       `json:"roots"`
	Files      []SecretFile `json:"files,omitempty"`
	// Faults are problems with their sources; the current certificates stay in use.
	Faults []string `json:"faults,omitempty"`
}

// Identity describes a certificate and its renewal. It contains no secret.
type Identity struct {
	// Secret is the name under which it is served, CA its source, Names its subject alternative
	// names.
	Secret string `json:"secret"`
	CA     string `json:"ca"`
	Names  string `json:"names"`
	// Serial, in hexadecimal, Issuer and the validity are empty while there is no certificate.
	Serial    string    `json:"serial,omitempty"`
	Issuer    string    `json:"issuer,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	// Next is when the next one is requested, the zero time if its source pushes it. Pending is
	// when one that was issued already comes into use.
	Next    time.Time `json:"next_attempt,omitzero"`
	Pending time.Time `json:"pending,omitzero"`
	// Attempts counts the failed attempts since the last success; Error is the last failure.
	Attempts int    `json:"failed_attempts"`
	Error    string `json:"error,omitempty"`
	// Issued and Failed, by reason, count since the start.
	Issued uint64            `json:"issued"`
	Failed map[string]uint64 `json:"failed,omitempty"`
}

// Root is a trusted root certificate.
type Root struct {
	CA       string    `json:"ca"`
	Domain   string    `json:"trust_domain"`
	Subject  string    `json:"subject"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"not_after"`
	// Left is when its source removed it. It stays trusted for a while, because peers may still
	// have certificates of it.
	Left time.Time `json:"left,omitzero"`
}

// SecretFile is a secret that clients name by the files that it is made from.
type SecretFile struct {
	Name string `json:"name"`
	// Version is that of the content; "" while there is none.
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

// collectCertificates sends the metrics of certificates; s is nil if none are issued.
func (c *stateCollector) collectCertificates(send sender, s *Certificates) {
	if s == nil {
		return
	}
	now := time.Now()
	for _, id := range s.Identities {
		if !id.NotAfter.IsZero() {
			send("holdfast_certificate_expiry_timestamp_seconds", seconds(id.NotAfter), id.Secret, id.CA)
		}
		if !id.Next.IsZero() {
			send("holdfast_certificate_next_attempt_timestamp_seconds", seconds(id.Next), id.Secret, id.CA)
		}
		send("holdfast_certificate_valid", number(now.Before(id.NotAfter)), id.Secret, id.CA)
		send("holdfast_certificate_failing_attempts", float64(id.Attempts), id.Secret, id.CA)
		send("holdfast_certificates_issued_total", float64(id.Issued), id.Secret, id.CA)
		for reason, n := range id.Failed {
			send("holdfast_certificates_failed_total", float64(n), id.Secret, id.CA, reason)
		}
	}
	roots := make(map[[2]string]int)
	for _, r := range s.Roots {
		roots[[2]string{r.Domain, r.CA}]++
	}
	for labels, n := range roots {
		send("holdfast_trusted_roots", float64(n), labels[0], labels[1])
	}
	faults := len(s.Faults)
	for _, f := range s.Files {
		if f.Error != "" {
			faults++
		}
	}
	send("holdfast_certificate_faults", float64(faults))
}

// seconds returns a time in seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// problems lists the problems with certificates; s may be nil.
func (s *Certificates) problems(now time.Time) (lines problems) {
	if s == nil {
		return nil
	}
	for _, id := range s.Identities {
		attempts := plural(id.Attempts, "attempt")
		switch valid := now.Before(id.NotAfter); {
		case id.Error == "" && (id.Serial == "" || valid):
		case id.Serial == "":
			lines.add("certificate %s: none yet from %s, %s: %s", id.Secret, id.CA, attempts, id.Error)
		case valid:
			lines.add("certificate %s: not renewed after %s; the one in use expires %s: %s", id.Secret, attempts, in(now, id.NotAfter), id.Error)
		default:
			line := fmt.Sprintf("certificate %s: expired %s, and is still served; %s since: %s", id.Secret, ago(now, id.NotAfter), attempts, id.Error)
			lines.add("%s", strings.TrimSuffix(line, ": "))
		}
	}
	for _, fault := range s.Faults {
		lines.add("certificates: %s (the current certificates stay in use)", fault)
	}
	for _, f := range s.Files {
		lines.addIf(f.Error != "", "secret %s: %s", f.Name, f.Error)
	}
	return lines
}

// write writes the certificates for a person; s may be nil.
func (s *Certificates) write(b *bytes.Buffer, now time.Time) {
	if s == nil {
		return
	}
	b.WriteString("\nCertificates\n")
	t := newTable(b, "SECRET", "FROM", "FOR", "SERIAL", "ISSUER", "EXPIRES", "RENEWAL", "ISSUED")
	for _, id := range s.Identities {
		t.row(id.Secret, id.CA, id.Names, id.Serial, id.Issuer, in(now, id.NotAfter), in(now, id.Next), fmt.Sprint(id.Issued))
	}
	for _, f := range s.Files {
		t.row(f.Name, "files", "", "", "", "", "", "")
	}
	t.end()
	b.WriteByte('\n')
	t = newTable(b, "TRUST DOMAIN", "FROM", "ROOT", "SERIAL", "EXPIRES", "REMOVED BY SOURCE")
	for _, r := range s.Roots {
		left := ""
		if !r.Left.IsZero() {
			left = ago(now, r.Left)
		}
		t.row(r.Domain, r.CA, r.Subject, r.Serial, in(now, r.NotAfter), left)
	}
	t.end()
}

// in returns how far away a time is, which is usually in the future.
func in(now, at time.Time) string {
	switch {
	case at.IsZero():
		return ""
	case at.Before(now):
		return ago(now, at)
	}
	return "in " + age(at, now)
}
