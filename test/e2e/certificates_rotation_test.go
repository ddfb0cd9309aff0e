package e2e

import (
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Certificates that live for seconds are exchanged again and again on both sides,
// while every request is a new handshake: none fails, and both sides are seen to
// have other certificates.
func TestFiftyRotationsUnderTrafficLoseNoHandshake(t *testing.T) {
	t.Parallel()
	rotations := testbed.Times(50, 10)
	p := newPods(t, xdstest.SotW, xdstest.Delta)
	p.identify(fromDir, fromDir, "--cert-lifetime", "6s", "--root-lead", "1s")
	p.start()
	traffic := testbed.StartTraffic(p.client.url, requestInterval)
	begun := time.Now()
	first := p.issued()
	seen := make(map[string]bool)
	p.callUntil(5*time.Minute, func(h handshake) error {
		seen["client "+h.client.SerialNumber.Text(16)] = true
		seen["server "+h.server.SerialNumber.Text(16)] = true
		if n := p.issued() - first; n < rotations {
			return fmt.Errorf("%d rotations, want %d", n, rotations)
		}
		return nil
	})
	p.check(traffic.Stop())
	handshakes := p.noHandshakeFailed()
	// A rotation that falls between two looks is not seen.
	if len(seen) < rotations/2 {
		t.Errorf("%d certificates were seen, want about %d", len(seen), rotations)
	}
	if handshakes < traffic.Sent {
		t.Errorf("%d handshakes for %d requests", handshakes, traffic.Sent)
	}
	p.neverAsked()
	t.Logf("%d rotations in %s: %d requests of traffic, %d handshakes, %d certificates seen, none failed",
		p.issued()-first, time.Since(begun).Round(time.Second), traffic.Sent, handshakes, len(seen))
}

// issued returns how many certificates were issued to both.
func (p *pods) issued() int {
	p.Helper()
	n := 0.0
	for _, pod := range []*pod{p.server, p.client} {
		issued, err := pod.metric("holdfast_certificates_issued_total")
		p.check(err)
		n += issued
	}
	return int(n)
}

// The authority is exchanged for one of a new root, three times, and the two agents
// notice at different times: no handshake fails, as each trusts the new root before
// the other has a certificate of it, and the old one for as long as there may be such.
func TestARootRotationUnderTrafficLosesNoHandshake(t *testing.T) {
	testbed.Long(t)
	t.Parallel()
	p := newPods(t, xdstest.Delta, xdstest.SotW)
	volume := pkitest.NewVolume(t)
	var now *pkitest.CA
	rotate := func(generation int) {
		t.Helper()
		now = pkitest.Root(t, fmt.Sprintf("root %d", generation), time.Now()).Intermediate(t, fmt.Sprintf("authority %d", generation))
		volume.Publish(t, istioFiles(now))
	}
	rotate(0)
	mounted := func(_ *pods, pod *pod) { pod.with("--ca", "dir:"+volume.Dir, "--identity", pod.id) }
	// The agents look at the directory every 2 s, one of them a second after the
	// other: the lead is well beyond that.
	p.apart = time.Second
	p.identify(mounted, mounted, "--cert-lifetime", "20s", "--root-lead", "5s", "--root-overlap", "30s")
	p.start()
	traffic := testbed.StartTraffic(p.client.url, requestInterval)
	begun := time.Now()
	for generation := 1; generation <= 3; generation++ {
		rotate(generation)
		var client, server time.Duration
		swapped := time.Now()
		p.callUntil(time.Minute, func(h handshake) error {
			for _, side := range []struct {
				cert  *x509.Certificate
				after *time.Duration
			}{{h.client, &client}, {h.server, &server}} {
				if *side.after == 0 && side.cert.CheckSignatureFrom(now.Cert) == nil {
					*side.after = time.Since(swapped)
				}
			}
			if client == 0 || server == 0 {
				return fmt.Errorf("after %s and %s (0 s: not yet) the certificates are of authority %d", client, server, generation)
			}
			return nil
		})
		t.Logf("root %d: the client has a certificate of it after %s, the server after %s", generation, client.Round(time.Millisecond), server.Round(time.Millisecond))
	}
	p.check(traffic.Stop())
	handshakes := p.noHandshakeFailed()
	t.Logf("3 roots in %s: %d requests of traffic, %d handshakes, none failed", time.Since(begun).Round(time.Second), traffic.Sent, handshakes)
	chain, err := p.server.presented()
	p.check(err)
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(now.Roots()[0])
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
		t.Errorf("the certificate in use does not lead to the newest root: %v", err)
	}
	for _, pod := range []*pod{p.server, p.client} {
		if n, err := pod.metric("holdfast_trusted_roots"); err != nil || n < 2 {
			t.Errorf("%v roots are trusted (%v), want those of before too", n, err)
		}
	}
}
