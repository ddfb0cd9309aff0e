package admin

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/sds"
)

// collectCertificates sends the metrics of certificates; s is nil if none are issued.
func collectCertificates(send sender, s *sds.Status) {
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
			send("holdfast_certificates_failed_total", float64(n), id.Secret, id.CA, string(reason))
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

// certificateProblems lists the problems with certificates; s may be nil.
func certificateProblems(s *sds.Status, now time.Time) (lines problems) {
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

// writeCertificates writes the certificates for a person; s may be nil.
func writeCertificates(b *bytes.Buffer, s *sds.Status, now time.Time) {
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
