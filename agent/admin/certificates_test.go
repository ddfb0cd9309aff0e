package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// certified is a status with certificates of every kind.
func certified(now time.Time) *sds.Status {
	return &sds.Status{
		Identities: []sds.IdentityStatus{
			{Secret: "default", CA: "istio:ca:1", Names: "spiffe://mesh.test/web", Serial: "a1", Issuer: "CN=ca", NotAfter: now.Add(90 * time.Minute), Next: now.Add(time.Hour), Issued: 3},
			{Secret: "late", CA: "istio:ca:1", Names: "spiffe://mesh.test/late", Serial: "a2", Issuer: "CN=ca", NotAfter: now.Add(time.Minute), Next: now.Add(5 * time.Second), Attempts: 7, Error: "the CA is away", Failed: map[pki.Reason]uint64{"unavailable": 7}},
			{Secret: "ended", CA: "spire:unix:/s", Names: "spiffe://mesh.test/ended", Serial: "a3", Issuer: "CN=spire", NotAfter: now.Add(-time.Hour)},
			{Secret: "none", CA: "files:/tls", Attempts: 1, Error: "no certificate"},
		},
		Roots: []sds.RootStatus{
			{CA: "istio:ca:1", Domain: "mesh.test", Subject: "CN=root", Serial: "b1", NotAfter: now.Add(48 * time.Hour)},
			{CA: "istio:ca:1", Domain: "mesh.test", Subject: "CN=old", Serial: "b2", NotAfter: now.Add(24 * time.Hour), Left: now.Add(-time.Minute)},
		},
		Files:  []sds.FileStatus{{Name: "file-root:/a", Version: "v"}, {Name: "file-root:/b", Error: "not there"}},
		Faults: []string{"the token is missing"},
	}
}

func TestTheStatusShowsCertificates(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	s := Status{Version: "v1", Started: now, Now: now, Certificates: certified(now)}
	const want = `holdfast v1, up 0s: ready

Problems
  certificate ended: expired 1h ago, and is still served; 0 attempts since
  certificate none: none yet from files:/tls, 1 attempt: no certificate
  secret file-root:/b: not there
  certificate late: not renewed after 7 attempts; the one in use expires in 1m: the CA is away
  certificates: the token is missing (the current certificates stay in use)

Certificates
  SECRET        FROM           FOR                       SERIAL  ISSUER    EXPIRES   RENEWAL  ISSUED
  default       istio:ca:1     spiffe://mesh.test/web    a1      CN=ca     in 1h30m  in 1h    3
  late          istio:ca:1     spiffe://mesh.test/late   a2      CN=ca     in 1m     in 5s    0
  ended         spire:unix:/s  spiffe://mesh.test/ended  a3      CN=spire  1h ago    -        0
  none          files:/tls     -                         -       -         -         -        0
  file-root:/a  files          -                         -       -         -         -        -
  file-root:/b  files          -                         -       -         -         -        -

  TRUST DOMAIN  FROM        ROOT     SERIAL  EXPIRES  REMOVED BY SOURCE
  mesh.test     istio:ca:1  CN=root  b1      in 2d    -
  mesh.test     istio:ca:1  CN=old   b2      in 1d    1m ago

No client has connected yet, and no node is configured (--bootstrap, --node-id).

No client is connected.
`
	var b strings.Builder
	if err := s.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestCertificatesAreMeasured(t *testing.T) {
	bubble.Test(t, func(t *testing.T) { // at the beginning of the year 2000
		want := `# HELP holdfast_certificate_expiry_timestamp_seconds When the certificate in use expires, in seconds since 1970; absent while there is none.
# TYPE holdfast_certificate_expiry_timestamp_seconds gauge
holdfast_certificate_expiry_timestamp_seconds{ca="istio:ca:1",secret="default"} 9.466902e+08
holdfast_certificate_expiry_timestamp_seconds{ca="istio:ca:1",secret="late"} 9.4668486e+08
holdfast_certificate_expiry_timestamp_seconds{ca="spire:unix:/s",secret="ended"} 9.466812e+08
# HELP holdfast_certificate_failing_attempts Failed attempts to get a certificate since the last success.
# TYPE holdfast_certificate_failing_attempts gauge
holdfast_certificate_failing_attempts{ca="files:/tls",secret="none"} 1
holdfast_certificate_failing_attempts{ca="istio:ca:1",secret="default"} 0
holdfast_certificate_failing_attempts{ca="istio:ca:1",secret="late"} 7
holdfast_certificate_failing_attempts{ca="spire:unix:/s",secret="ended"} 0
# HELP holdfast_certificate_faults Problems with sources of certificates, and with files that secrets are made from.
# TYPE holdfast_certificate_faults gauge
holdfast_certificate_faults 2
# HELP holdfast_certificate_next_attempt_timestamp_seconds When the next certificate is requested, in seconds since 1970; absent if the source pushes it.
# TYPE holdfast_certificate_next_attempt_timestamp_seconds gauge
holdfast_certificate_next_attempt_timestamp_seconds{ca="istio:ca:1",secret="default"} 9.466884e+08
holdfast_certificate_next_attempt_timestamp_seconds{ca="istio:ca:1",secret="late"} 9.46684805e+08
# HELP holdfast_certificate_valid Whether a certificate is in use that has not expired, 1 or 0.
# TYPE holdfast_certificate_valid gauge
holdfast_certificate_valid{ca="files:/tls",secret="none"} 0
holdfast_certificate_valid{ca="istio:ca:1",secret="default"} 1
holdfast_certificate_valid{ca="istio:ca:1",secret="late"} 1
holdfast_certificate_valid{ca="spire:unix:/s",secret="ended"} 0
# HELP holdfast_certificates_failed_total Failed attempts to get a certificate, by reason.
# TYPE holdfast_certificates_failed_total counter
FAILED
# HELP holdfast_certificates_issued_total Certificates that were verified and taken into use.
# TYPE holdfast_certificates_issued_total counter
holdfast_certificates_issued_total{ca="files:/tls",secret="none"} 0
holdfast_certificates_issued_total{ca="istio:ca:1",secret="default"} 3
holdfast_certificates_issued_total{ca="istio:ca:1",secret="late"} 0
holdfast_certificates_issued_total{ca="spire:unix:/s",secret="ended"} 0
# HELP holdfast_trusted_roots Root certificates that are trusted.
# TYPE holdfast_trusted_roots gauge
holdfast_trusted_roots{ca="istio:ca:1",trust_domain="mesh.test"} 2
`
		// Each reason is there from the start.
		var failed []string
		for _, id := range [][2]string{{"files:/tls", "none"}, {"istio:ca:1", "default"}, {"istio:ca:1", "late"}, {"spire:unix:/s", "ended"}} {
			for _, reason := range sds.Reasons() {
				n := 0
				if id[1] == "late" && reason == sds.Unavailable {
					n = 7
				}
				failed = append(failed, fmt.Sprintf("holdfast_certificates_failed_total{ca=%q,reason=%q,secret=%q} %d", id[0], reason, id[1], n))
			}
		}
		want = strings.Replace(want, "FAILED", strings.Join(failed, "\n"), 1)
		var names []string
		for line := range strings.Lines(want) {
			if f := strings.Fields(line); f[0] == "#" && f[1] == "TYPE" {
				names = append(names, f[2])
			}
		}
		state := busy()
		state.status.Certificates = certified(time.Now())
		m := NewMetrics("v1")
		if err := testutil.GatherAndCompare(m.Gatherer(state), strings.NewReader(want), names...); err != nil {
			t.Error(err)
		}
		problems, err := testutil.GatherAndLint(m.Gatherer(state))
		if err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	})
}
