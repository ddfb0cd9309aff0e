package sds

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

func TestANewRootIsPublishedBeforeTheFirstCertificateOfIt(t *testing.T) {
	signing(t, nil, func(r *rig) {
		before, old := r.checkCertificate(), r.roots(DefaultRoots)
		next := r.authority()
		r.ca.rotate(next, false) // only the answer names the new root
		r.state.names()
		r.wait(r.status().Next.Sub(r.now()) + time.Second)
		if after := r.checkCertificate(); !after.Leaf().Equal(before.Leaf()) {
			t.Error("the new certificate is in use at once: a peer that has not heard of its root refuses it")
		}
		roots := r.roots(DefaultRoots)
		if len(roots) != 2 || !slices.ContainsFunc(roots, next.Roots()[0].Equal) || !slices.ContainsFunc(roots, old[0].Equal) {
			t.Errorf("%d roots, want the old and the new one", len(roots))
		}
		r.wait(DefaultRootLead)
		after := r.checkCertificate()
		if after.Leaf().Equal(before.Leaf()) {
			t.Error("the new certificate is not in use")
		}
		// The old root stays during the overlap, for peers with its certificates.
		r.wait(DefaultRootOverlap - time.Hour)
		if got := r.roots(DefaultRoots); len(got) != 2 {
			t.Errorf("%d roots", len(got))
		}
		r.wait(2 * time.Hour)
		if got := r.roots(DefaultRoots); !same(got, next.Roots()) {
			t.Errorf("%d roots", len(got))
		}
		r.checkCertificate()
	})
}

// The root of a replaced, mounted CA is known before the CA signs a certificate.
func TestACertificateOfAnExchangedCAIsRenewedBeforeTheOverlapEnds(t *testing.T) {
	signing(t, func(c *Config) {
		c.Sources[0].Lifetime = 10 * 24 * time.Hour
	}, func(r *rig) {
		before := r.checkCertificate()
		next := r.authority()
		r.ca.rotate(next, true)
		r.wait(time.Second)
		if got := r.roots(DefaultRoots); len(got) != 2 {
			t.Errorf("%d roots published", len(got))
		}
		r.wait(DefaultRootLead - 5*time.Second)
		if after := r.checkCertificate(); !after.Leaf().Equal(before.Leaf()) {
			t.Error("renewed before peers can know the root")
		}
		r.wait(DefaultRootOverlap/10 + 10*time.Second)
		if after := r.checkCertificate(); after.Leaf().Equal(before.Leaf()) {
			t.Error("not renewed, though its root goes in a day, and it lives for ten")
		}
	})
}

func TestARootStaysAsLongAsTheCertificateInUseNeedsIt(t *testing.T) {
	signing(t, func(c *Config) {
		c.Sources[0].Lifetime = 10 * 24 * time.Hour
	}, func(r *rig) {
		r.checkCertificate()
		r.ca.rotate(r.authority(), true)
		r.ca.setMode("fails")
		for range 9 * 24 {
			r.wait(time.Hour)
			r.checkCertificate()
		}
	})
}

func TestWithPinnedRootsNobodyAddsToThem(t *testing.T) {
	file := filepath.Join(t.TempDir(), "roots.pem")
	signing(t, func(c *Config) { c.Sources[0].Roots = file }, func(r *rig) {
		// Without the file no root is trusted, so no certificate is used.
		r.wait(time.Minute)
		if r.pair(DefaultSecret) != nil || r.roots(DefaultRoots) != nil {
			t.Error("something is published without the pinned roots")
		}
		if s := r.m.Status(); len(s.Faults) != 1 || !strings.Contains(s.Faults[0], file) {
			t.Errorf("faults %q", s.Faults)
		}
		r.write(file, pki.EncodeCerts(r.ca.authority.Roots()))
		r.wait(5 * time.Second)
		before := r.checkCertificate()
		r.ca.rotate(r.authority(), true)
		r.wait(14 * time.Hour)
		if after := r.checkCertificate(); !after.Leaf().Equal(before.Leaf()) {
			t.Error("a certificate of a root that is not pinned is in use")
		}
		if s := r.status(); s.Failed[pki.Untrusted] == 0 {
			t.Errorf("%+v", s)
		}
		r.write(file, slices.Concat(pki.EncodeCerts(r.ca.authority.Roots()), pki.EncodeCerts(r.roots(DefaultRoots))))
		r.wait(5*time.Second + DefaultRootLead)
		if after := r.checkCertificate(); after.Leaf().Equal(before.Leaf()) {
			t.Error("not renewed though its root is pinned by now")
		}
		// Invalid content of the file changes nothing.
		published := r.roots(DefaultRoots)
		r.write(file, []byte("-----BEGIN CERTIFICATE-----\nrubbish\n"))
		r.wait(time.Minute)
		if !same(r.roots(DefaultRoots), published) {
			t.Error("the roots went with the file")
		}
	})
}

// Without its CRL, a root would also accept revoked certificates.
func TestRootsWaitForTheirRevocations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "crl.pem")
	signing(t, func(c *Config) { c.Sources[0].CRL = file }, func(r *rig) {
		r.wait(time.Minute)
		if r.roots(DefaultRoots) != nil {
			t.Error("roots without revocations")
		}
		if err := r.m.Ready(); err == nil || !strings.Contains(err.Error(), `no roots "ROOTCA" yet`) {
			t.Errorf("ready: %v", err)
		}
		crl := r.crl()
		r.write(file, crl)
		r.wait(5 * time.Second)
		if got := r.state.secret(DefaultRoots).GetValidationContext().GetCrl().GetInlineBytes(); string(got) != string(crl) {
			t.Errorf("CRL %q", got)
		}
		r.write(file, []byte("rubbish"))
		r.wait(5 * time.Second)
		if got := r.state.secret(DefaultRoots).GetValidationContext().GetCrl().GetInlineBytes(); string(got) != string(crl) {
			t.Error("rubbish took the revocations away")
		}
		if s := r.m.Status(); len(s.Faults) != 1 || !strings.Contains(s.Faults[0], "--crl") {
			t.Errorf("faults %q", s.Faults)
		}
	})
}

func TestTheSPIFFEValidatorHasABundleForEachTrustDomain(t *testing.T) {
	signing(t, func(c *Config) {
		c.Sources[0].Validator = SPIFFE
		c.Sources = append(c.Sources, SourceConfig{CA: "dev", RootSecret: "other-roots", Identities: []Identity{
			{Names: pki.Names{ID: "spiffe://other.test/x"}, Secret: "other"},
		}})
	}, func(r *rig) {
		bundles := func(name string) []string {
			var conf tlsv3.SPIFFECertValidatorConfig
			ext := r.state.secret(name).GetValidationContext().GetCustomValidatorConfig()
			if err := ext.GetTypedConfig().UnmarshalTo(&conf); err != nil || ext.GetName() != spiffeValidator {
				t.Fatalf("%s: %v, %s", name, err, ext.GetName())
			}
			var domains []string
			for _, d := range conf.GetTrustDomains() {
				if _, err := pki.ParseCerts(d.GetTrustBundle().GetInlineBytes()); err != nil {
					t.Errorf("%s: %v", d.GetName(), err)
				}
				domains = append(domains, d.GetName())
			}
			return domains
		}
		if got := bundles(DefaultRoots); !slices.Equal(got, []string{"mesh.test"}) {
			t.Errorf("%s: %q", DefaultRoots, got)
		}
		if got := bundles(AllRoots); !slices.Equal(got, []string{"mesh.test", "other.test"}) {
			t.Errorf("%s: %q", AllRoots, got)
		}
		if r.roots("other-roots") == nil || r.roots("spiffe://mesh.test") == nil || r.roots("spiffe://other.test") == nil {
			t.Error("plain roots are missing")
		}
	})
}

// An unchanged secret has the same bytes and is not published again.
func TestASecretIsPublishedOncePerContent(t *testing.T) {
	signing(t, nil, func(r *rig) {
		first := r.state.names()
		slices.Sort(first)
		if want := []string{AllRoots, DefaultRoots, DefaultSecret, "spiffe://mesh.test", workload}; !slices.Equal(first, want) {
			t.Errorf("published %q, want %q", first, want)
		}
		r.wait(10 * time.Hour)
		if again := r.state.names(); len(again) > 0 {
			t.Errorf("published again %q", again)
		}
		r.wait(4 * time.Hour)
		renewed := r.state.names()
		slices.Sort(renewed)
		if want := []string{DefaultSecret, workload}; !slices.Equal(renewed, want) {
			t.Errorf("after a renewal %q, want %q", renewed, want)
		}
	})
}

// crl creates an empty revocation list that expires in a month.
func (r *rig) crl() []byte {
	r.Helper()
	key, err := pki.ECDSAP256.Generate()
	if err != nil {
		r.Fatal(err)
	}
	issuer := &x509.Certificate{KeyUsage: x509.KeyUsageCRLSign, SubjectKeyId: []byte{1}}
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: r.now(), NextUpdate: r.now().Add(30 * 24 * time.Hour)}
	der, err := x509.CreateRevocationList(rand.Reader, list, issuer, key)
	if err != nil {
		r.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func (r *rig) write(path string, content []byte) {
	r.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		r.Fatal(err)
	}
}
