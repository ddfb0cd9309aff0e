package admin

import (
	"bytes"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Certificates is what is known of the certificates that the agent makes.
type Certificates struct {
	Identities []Identity   `json:"identities"`
	Roots      []Root       `json:"roots"`
	Files      []SecretFile `json:"files,omitempty"`
	// Faults is what is wrong with where they come from; what there is stays in use.
	Faults []string `json:"faults,omitempty"`
}

// Identity is what a certificate is for, and the one in use. No part of it is
// secret.
type Identity struct {
	// Secret is the name under which it is served, CA where it comes from, Names
	// its subject alternative names.
	Secret string `json:"secret"`
	CA     string `json:"ca"`
	Names  string `json:"names"`
	// Serial, in hexadecimal, Issuer and the validity are empty while there is none.
	Serial    string    `json:"serial,omitempty"`
	Issuer    string    `json:"issuer,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	// Next is when the next one is asked for, the zero time where others push it;
	// Pending when one comes into use that is there already.
	Next    time.Time `json:"next_attempt,omitzero"`
	Pending time.Time `json:"pending,omitzero"`
	// Attempts failed since the last that did not; Error says why.
	Attempts int    `json:"failed_attempts"`
	Error    string `json:"error,omitempty"`
	// Issued and Failed, by reason, count since the start.
	Issued uint64            `json:"issued"`
	Failed map[string]uint64 `json:"failed,omitempty"`
}

// Root is a certificate that peers' must lead to.
type Root struct {
	CA       string    `json:"ca"`
	Domain   string    `json:"trust_domain"`
	Subject  string    `json:"subject"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"not_after"`
	// Left is since when its source does not name it any more, and it is kept for
	// peers that still have certificates of it.
	Left time.Time `json:"left,omitzero"`
}

// SecretFile is a secret that clients ask for by the files that it is made of.
type SecretFile struct {
	Name string `json:"name"`
	// Version is the content's; "" while there is none.
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

var (
	certificateExpiryDesc = prometheus.NewDesc("holdfast_certificate_expiry_timestamp_seconds",
		"When the certificate in use ends, in seconds since 1970; absent while there is none.", []string{"secret", "ca"}, nil)
	certificateNextDesc = prometheus.NewDesc("holdfast_certificate_next_attempt_timestamp_seconds",
		"When the next certificate is asked for, in seconds since 1970; absent where others push it.", []string{"secret", "ca"}, nil)
	certificateIssuedDesc = prometheus.NewDesc("holdfast_certificates_issued_total",
		"Certificates that were verified and taken in.", []string{"secret", "ca"}, nil)
	certificateFailedDesc = prometheus.NewDesc("holdfast_certificates_failed_total",
		"Attempts to get a certificate that failed, by the reason.", []string{"secret", "ca", "reason"}, nil)
	certificateFailingDesc = prometheus.NewDesc("holdfast_certificate_failing_attempts",
		"Attempts that failed since the last that did not.", []string{"secret", "ca"}, nil)
	certificateValidDesc = prometheus.NewDesc("holdfast_certificate_valid",
		"Whether there is a certificate in use that has not ended, 1 or 0.", []string{"secret", "ca"}, nil)
	rootsDesc = prometheus.NewDesc("holdfast_trusted_roots",
		"Root certificates that are trusted.", []string{"trust_domain", "ca"}, nil)
	certificateFaultsDesc = prometheus.NewDesc("holdfast_certificate_faults",
		"Things that are wrong with where certificates come from, or with files that secrets are made of.", nil, nil)
)

// collectCertificates sends what is known of the certificates; s is nil where none
// are made.
func (c *stateCollector) collectCertificates(ch chan<- prometheus.Metric, s *Certificates) {
	if s == nil {
		return
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	now := time.Now()
	for _, id := range s.Identities {
		if !id.NotAfter.IsZero() {
			send(certificateExpiryDesc, prometheus.GaugeValue, seconds(id.NotAfter), id.Secret, id.CA)
		}
		if !id.Next.IsZero() {
			send(certificateNextDesc, prometheus.GaugeValue, seconds(id.Next), id.Secret, id.CA)
		}
		send(certificateValidDesc, prometheus.GaugeValue, number(now.Before(id.NotAfter)), id.Secret, id.CA)
		send(certificateFailingDesc, prometheus.GaugeValue, float64(id.Attempts), id.Secret, id.CA)
		send(certificateIssuedDesc, prometheus.CounterValue, float64(id.Issued), id.Secret, id.CA)
		for reason, n := range id.Failed {
			send(certificateFailedDesc, prometheus.CounterValue, float64(n), id.Secret, id.CA, reason)
		}
	}
	roots := make(map[[2]string]int)
	for _, r := range s.Roots {
		roots[[2]string{r.Domain, r.CA}]++
	}
	for labels, n := range roots {
		send(rootsDesc, prometheus.GaugeValue, float64(n), labels[0], labels[1])
	}
	faults := len(s.Faults)
	for _, f := range s.Files {
		if f.Error != "" {
			faults++
		}
	}
	send(certificateFaultsDesc, prometheus.GaugeValue, float64(faults))
}

// seconds returns a time in seconds since 1970.
func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// wrong lists what is wrong with the certificates; s may be nil.
func (s *Certificates) wrong(now time.Time) []string {
	if s == nil {
		return nil
	}
	var lines []string
	for _, id := range s.Identities {
		switch {
		case id.Error == "" && (id.Serial == "" || now.Before(id.NotAfter)):
			continue
		case id.Serial == "":
			lines = append(lines, fmt.Sprintf("certificate %s: none yet from %s, %s: %s", id.Secret, id.CA, plural(id.Attempts, "attempt"), id.Error))
		case !now.Before(id.NotAfter):
			line := fmt.Sprintf("certificate %s: it ended %s, and is still served; %s since", id.Secret, ago(now, id.NotAfter), plural(id.Attempts, "attempt"))
			if id.Error != "" {
				line += ": " + id.Error
			}
			lines = append(lines, line)
		default:
			lines = append(lines, fmt.Sprintf("certificate %s: not renewed, %s; the one in use ends %s: %s", id.Secret, plural(id.Attempts, "attempt"), in(now, id.NotAfter), id.Error))
		}
	}
	for _, fault := range s.Faults {
		lines = append(lines, "certificates: "+fault+" (what there is stays in use)")
	}
	for _, f := range s.Files {
		if f.Error != "" {
			lines = append(lines, fmt.Sprintf("secret %s: %s", f.Name, f.Error))
		}
	}
	return lines
}

// write writes the certificates for a person; s may be nil.
func (s *Certificates) write(b *bytes.Buffer, now time.Time) {
	if s == nil {
		return
	}
	b.WriteString("\nCertificates\n")
	t := newTable(b, "SECRET", "FROM", "FOR", "SERIAL", "ISSUER", "ENDS", "RENEWED", "ISSUED")
	for _, id := range s.Identities {
		t.row(id.Secret, id.CA, id.Names, id.Serial, id.Issuer, in(now, id.NotAfter), in(now, id.Next), fmt.Sprint(id.Issued))
	}
	for _, f := range s.Files {
		t.row(f.Name, "files", "", "", "", "", "", "")
	}
	t.end()
	b.WriteByte('\n')
	t = newTable(b, "TRUST DOMAIN", "FROM", "ROOT", "SERIAL", "ENDS", "NOT NAMED SINCE")
	for _, r := range s.Roots {
		left := ""
		if !r.Left.IsZero() {
			left = ago(now, r.Left)
		}
		t.row(r.Domain, r.CA, r.Subject, r.Serial, in(now, r.NotAfter), left)
	}
	t.end()
}

// in says how far away a time is that is mostly yet to come.
func in(now, at time.Time) string {
	switch {
	case at.IsZero():
		return ""
	case at.Before(now):
		return ago(now, at)
	}
	return "in " + age(at, now)
}
