package pki_test

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// What the SPIFFE ID specification, section 2, has as examples, and what it rules out.
func TestSPIFFEIDIsWhatItsSpecificationAllows(t *testing.T) {
	long := strings.Repeat("d", 255)
	for _, tc := range []struct{ name, id, domain string }{
		{"a service", "spiffe://staging.example.com/payments/mysql", "staging.example.com"},
		{"a service with a hyphen", "spiffe://staging.example.com/payments/web-fe", "staging.example.com"},
		{"a service account", "spiffe://k8s-west.example.com/ns/staging/sa/default", "k8s-west.example.com"},
		{"an opaque identifier", "spiffe://staging.example.com/9eebccd2-12bf-40a6-b262-65fe0487d453", "staging.example.com"},
		{"a trust domain", "spiffe://example.com", "example.com"},
		{"a trust domain of one label", "spiffe://cluster.local", "cluster.local"},
		{"a trust domain that is an address", "spiffe://1.2.3.4/service", "1.2.3.4"},
		{"every character of a trust domain", "spiffe://abcdefghijklmnopqrstuvwxyz0123456789-._", "abcdefghijklmnopqrstuvwxyz0123456789-._"},
		{"every character of a path", "spiffe://td/ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._", "td"},
		{"three dots", "spiffe://td/...", "td"},
		{"a segment that begins with a dot", "spiffe://td/.a/..b", "td"},
		{"the longest trust domain", "spiffe://" + long, long},
		{"the longest ID", "spiffe://td/" + strings.Repeat("p", 2048-len("spiffe://td/")), "td"},

		{"nothing", "", ""},
		{"no scheme", "example.com/a", ""},
		{"another scheme", "https://example.com/a", ""},
		{"the scheme in capitals", "SPIFFE://example.com/a", ""},
		{"one slash", "spiffe:/example.com/a", ""},
		{"no trust domain", "spiffe://", ""},
		{"no trust domain before a path", "spiffe:///a", ""},
		{"a capital in the trust domain", "spiffe://Example.com/a", ""},
		{"a port", "spiffe://example.com:80/a", ""},
		{"a user", "spiffe://user@example.com/a", ""},
		{"a user and a password", "spiffe://user:pw@example.com/a", ""},
		{"an address in brackets", "spiffe://[::1]/a", ""},
		{"an escape in the trust domain", "spiffe://ex%61mple.com/a", ""},
		{"a blank in the trust domain", "spiffe://exa mple.com/a", ""},
		{"a letter beyond ASCII in the trust domain", "spiffe://exämple.com/a", ""},
		{"a slash at the end of the trust domain", "spiffe://example.com/", ""},
		{"a slash at the end", "spiffe://example.com/a/", ""},
		{"an empty segment", "spiffe://example.com//a", ""},
		{"an empty segment further down", "spiffe://example.com/a//b", ""},
		{"a dot", "spiffe://example.com/./a", ""},
		{"a dot at the end", "spiffe://example.com/a/.", ""},
		{"two dots", "spiffe://example.com/a/../b", ""},
		{"an escape", "spiffe://example.com/%61", ""},
		{"an escaped slash", "spiffe://example.com/a%2Fb", ""},
		{"a query", "spiffe://example.com/a?b=c", ""},
		{"an empty query", "spiffe://example.com/a?", ""},
		{"a fragment", "spiffe://example.com/a#b", ""},
		{"an empty fragment", "spiffe://example.com/a#", ""},
		{"a query after the trust domain", "spiffe://example.com?a", ""},
		{"a colon", "spiffe://example.com/a:b", ""},
		{"a wildcard", "spiffe://example.com/*", ""},
		{"a blank", "spiffe://example.com/a b", ""},
		{"a blank before it", " spiffe://example.com/a", ""},
		{"a line break behind it", "spiffe://example.com/a\n", ""},
		{"a NUL", "spiffe://example.com/a\x00", ""},
		{"a letter beyond ASCII", "spiffe://example.com/ä", ""},
		{"too long a trust domain", "spiffe://" + long + "d", ""},
		{"too long", "spiffe://td/" + strings.Repeat("p", 2049-len("spiffe://td/")), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			domain, err := pki.TrustDomain(tc.id)
			if domain != tc.domain || (err == nil) != (tc.domain != "") {
				t.Errorf("got %q, %v, want %q", domain, err, tc.domain)
			}
			names, err := pki.ParseNames(tc.id, nil, []string{"10.0.0.1"})
			if bad := tc.domain == "" && tc.id != ""; bad != (err != nil) || !bad && names.ID != tc.id {
				t.Errorf("as a name: %v, %v", names, err)
			}
		})
	}
}

func TestNamesAreReadAndCompared(t *testing.T) {
	label := strings.Repeat("l", 63)
	long := strings.Join([]string{label, label, label, label[:61]}, ".")
	type texts = []string
	for _, tc := range []struct {
		name     string
		id       string
		dns, ips texts
		want     string
		says     string
	}{
		{"an ID", pkitest.ID, nil, nil, pkitest.ID, ""},
		{"all kinds", pkitest.ID, texts{"a.shop", "b.shop"}, texts{"10.0.0.1", "::1"}, pkitest.ID + ", a.shop, b.shop, 10.0.0.1, ::1", ""},
		{"DNS names alone", "", texts{"a"}, nil, "a", ""},
		{"IP addresses alone", "", nil, texts{"10.0.0.1"}, "10.0.0.1", ""},
		{"an address that is written long", "", nil, texts{"0:0:0:0:0:0:0:1", "::ffff:10.0.0.1"}, "::1, 10.0.0.1", ""},
		{"a wildcard", "", texts{"*.shop"}, nil, "*.shop", ""},
		{"an underscore", "", texts{"_a.shop"}, nil, "_a.shop", ""},
		{"the longest name", "", texts{long}, nil, long, ""},

		{"none", "", nil, nil, "", "no name"},
		{"no ID", "shop", nil, nil, "", `"shop" is not a SPIFFE ID (spiffe://TRUST-DOMAIN/PATH): scheme is missing`},
		{"an ID with a character that a trust domain has not", "spiffe://TD/a", nil, nil, "", "trust domain characters are limited to lowercase letters"},
		{"an ID with an empty segment", "spiffe://td//a", nil, nil, "", "path cannot contain empty segments"},
		{"an ID with a slash at its end", "spiffe://td/", nil, nil, "", "path cannot have a trailing slash"},
		{"too long an ID", "spiffe://td/" + strings.Repeat("p", 2048), nil, nil, "", "a SPIFFE ID of 2060 bytes: want 2048 or fewer"},
		{"too long a trust domain", "spiffe://" + strings.Repeat("d", 256), nil, nil, "", "its trust domain has 256 bytes: want 255 or fewer"},
		{"an empty DNS name", "", texts{""}, nil, "", `"" is not a DNS name`},
		{"a wildcard alone", "", texts{"*"}, nil, "", "not a DNS name"},
		{"a wildcard further down", "", texts{"a.*.shop"}, nil, "", "not a DNS name"},
		{"a wildcard within a label", "", texts{"a*.shop"}, nil, "", "not a DNS name"},
		{"a dot at the end", "", texts{"a."}, nil, "", "not a DNS name"},
		{"a dot at the beginning", "", texts{".a"}, nil, "", "not a DNS name"},
		{"a character within", "", texts{"a!b"}, nil, "", "not a DNS name"},
		{"a port", "", texts{"a.shop:80"}, nil, "", "not a DNS name"},
		{"too long a label", "", texts{label + "l"}, nil, "", "not a DNS name"},
		{"too long a name", "", texts{long + "l"}, nil, "", "not a DNS name"},
		{"no address", "", nil, texts{"a"}, "", `"a" is not an IP address`},
		{"a network", "", nil, texts{"10.0.0.0/8"}, "", "not an IP address"},
		{"an address with a zone", "", nil, texts{"fe80::1%eth0"}, "", "not an IP address"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := pki.ParseNames(tc.id, tc.dns, tc.ips)
			switch {
			case tc.says != "" && (err == nil || !n.Equal(pki.Names{}) || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("%v, %v, want an error that tells %q", n, err, tc.says)
			case tc.says == "" && (err != nil || n.String() != tc.want):
				t.Errorf("%v, %v, want %s", n, err, tc.want)
			}
		})
	}
	if got := (pki.Names{}).String(); got != "none" {
		t.Errorf("no names are %q", got)
	}
}

func TestNamesAreTheSameInAnyOrderAndOnceOrTwice(t *testing.T) {
	base := pki.Names{ID: pkitest.ID, DNS: []string{"a", "b"}, IPs: []string{"::1", "10.0.0.1"}}
	for _, tc := range []struct {
		name  string
		other pki.Names
		want  bool
	}{
		{"the same", base, true},
		{"another order", pki.Names{ID: pkitest.ID, DNS: []string{"b", "a"}, IPs: []string{"10.0.0.1", "::1"}}, true},
		{"one twice", pki.Names{ID: pkitest.ID, DNS: []string{"b", "a", "b"}, IPs: base.IPs}, true},
		{"another ID", pki.Names{ID: pkitest.ID + "2", DNS: base.DNS, IPs: base.IPs}, false},
		{"no ID", pki.Names{DNS: base.DNS, IPs: base.IPs}, false},
		{"one DNS name less", pki.Names{ID: pkitest.ID, DNS: base.DNS[:1], IPs: base.IPs}, false},
		{"one address more", pki.Names{ID: pkitest.ID, DNS: base.DNS, IPs: append(base.IPs[:2:2], "::2")}, false},
		{"an address as a DNS name", pki.Names{ID: pkitest.ID, DNS: append(base.DNS[:2:2], "::1"), IPs: base.IPs[1:]}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, back := base.Equal(tc.other), tc.other.Equal(base); got != tc.want || back != tc.want {
				t.Errorf("got %v, and %v the other way round", got, back)
			}
		})
	}
	if !slices.Equal(base.DNS, []string{"a", "b"}) {
		t.Error("comparing them has sorted them")
	}
}

func TestCertificateRequestIsSignedAndCarriesTheNamesAndNothingElse(t *testing.T) {
	names := must(pki.ParseNames(pkitest.ID, []string{"a.shop"}, []string{"10.0.0.1", "::1"}))
	for _, kind := range []pki.KeyType{pki.ECDSAP256, pki.ECDSAP384, pki.RSA2048} {
		t.Run(string(kind), func(t *testing.T) {
			key := must(kind.Generate())
			text, err := pki.Request{Key: key, Names: names}.CSR()
			if err != nil {
				t.Fatal(err)
			}
			block, rest := pem.Decode(text)
			if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
				t.Fatalf("it is %s", text)
			}
			csr, err := x509.ParseCertificateRequest(block.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			if err := csr.CheckSignature(); err != nil {
				t.Error(err)
			}
			if !key.Public().(interface{ Equal(crypto.PublicKey) bool }).Equal(csr.PublicKey) {
				t.Error("it is for another key")
			}
			if csr.Subject.String() != "" || len(csr.Extensions) != 1 {
				t.Errorf("subject %q and %d extensions", csr.Subject, len(csr.Extensions))
			}
			got, err := pki.NamesOf(&x509.Certificate{Extensions: csr.Extensions, DNSNames: csr.DNSNames, IPAddresses: csr.IPAddresses})
			if err != nil || !got.Equal(names) {
				t.Errorf("it is for %v, %v", got, err)
			}
		})
	}
	if text, err := (pki.Request{Key: must(pki.ECDSAP256.Generate()), Names: pki.Names{DNS: []string{"ä"}}}).CSR(); err == nil || text != nil {
		t.Errorf("a name that no certificate can have: %s, %v", text, err)
	}
}

func TestTemplateHasWhatAWorkloadNeedsAndItsNamesAreCritical(t *testing.T) {
	names := must(pki.ParseNames(pkitest.ID, []string{"a.shop"}, []string{"10.0.0.1"}))
	ca := pkitest.Root(t, "root", now)
	for _, tc := range []struct {
		kind  pki.KeyType
		usage x509.KeyUsage
	}{
		{pki.ECDSAP256, x509.KeyUsageDigitalSignature},
		{pki.RSA2048, x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment},
	} {
		t.Run(string(tc.kind), func(t *testing.T) {
			key := must(tc.kind.Generate())
			template := pki.Request{Key: key, Names: names, Lifetime: time.Hour}.Template()
			template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), now, now.Add(time.Hour)
			leaf := must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, ca.Cert, key.Public(), ca.Key))))
			if leaf.KeyUsage != tc.usage || leaf.IsCA || !leaf.BasicConstraintsValid || leaf.Subject.String() != "" {
				t.Errorf("usage %b, CA %v, subject %q", leaf.KeyUsage, leaf.IsCA, leaf.Subject)
			}
			for _, e := range leaf.Extensions {
				if e.Id.String() == "2.5.29.17" && !e.Critical {
					t.Error("the names are not critical")
				}
			}
			want := pki.Expectation{Key: key.Public(), Names: &names, Roots: ca.Roots()}
			if _, err := want.Verify([]*x509.Certificate{leaf}, now); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestTrustDomainOfACertificateIsThatOfItsID(t *testing.T) {
	ca := pkitest.Root(t, "root", now)
	for _, tc := range []struct {
		name string
		leaf options
		want string
	}{
		{"a SPIFFE ID", nil, pkitest.Domain},
		{"beside a DNS name", options{pkitest.DNS("a.shop")}, pkitest.Domain},
		{"none", options{pkitest.URIs(), pkitest.DNS("a.shop")}, ""},
		{"another URI", options{pkitest.URIs("https://example.org/a")}, ""},
		{"two", options{pkitest.URIs(pkitest.ID, pkitest.ID)}, ""},
		{"an IP address", with(func(c *x509.Certificate) { c.URIs, c.IPAddresses = nil, []net.IP{{10, 0, 0, 1}} }), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := pki.DomainOf(ca.Leaf(t, tc.leaf...)); got != tc.want {
				t.Errorf("got %q", got)
			}
		})
	}
}
