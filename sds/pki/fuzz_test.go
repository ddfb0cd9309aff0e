package pki_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// FuzzParsePair shows that a pair that was read is the same when it is written and
// read again, and that an error tells nothing of a key. More seeds are in
// testdata/fuzz, as they are of the other targets.
func FuzzParsePair(f *testing.F) {
	key := fuzzKey("leaf")
	c := newFuzzChain(f)
	chain := pki.EncodeCerts([]*x509.Certificate{c.leaf, c.mid})
	f.Add(chain, pki.EncodeKey(key))
	f.Add(chain, pki.EncodeKey(fuzzKey("other")))
	f.Add(chain, block("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key))))
	f.Add(pki.EncodeKey(key), chain)
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, chain, key []byte) {
		p, err := pki.ParsePair(chain, key)
		if err != nil {
			if p.Key != nil || p.Chain != nil {
				t.Error("an error and a pair")
			}
			for _, text := range [][]byte{chain, key} {
				if leak := leakOfPEM(err.Error(), text); leak != "" {
					t.Errorf("error %q tells %q", err, leak)
				}
			}
			return
		}
		again, err := pki.ParsePair(p.ChainPEM(), p.KeyPEM())
		if err != nil {
			t.Fatalf("what was written is not read: %v", err)
		}
		if !sameCerts(p.Chain, again.Chain) || !p.Key.(interface{ Equal(crypto.PrivateKey) bool }).Equal(again.Key) {
			t.Error("it is another when it is read again")
		}
		if !bytes.Equal(p.KeyPEM(), again.KeyPEM()) {
			t.Error("it is written in another way")
		}
	})
}

// kindOfBlock is what an error may repeat of a text.
var kindOfBlock = regexp.MustCompile(`^[A-Z0-9 ]*$`)

// leakOfPEM returns what an error repeats of the blocks of private keys in a text.
func leakOfPEM(said string, text []byte) string {
	for b, rest := pem.Decode(text); b != nil; b, rest = pem.Decode(rest) {
		if !strings.Contains(b.Type, "PRIVATE KEY") {
			continue
		}
		coded := base64.StdEncoding.EncodeToString(b.Bytes)
		for _, secret := range []struct {
			text   string
			window int
		}{{string(b.Bytes), 12}, {coded, 16}} {
			for i := range len(secret.text) - secret.window + 1 {
				if part := secret.text[i : i+secret.window]; strings.Contains(said, part) && !kindOfBlock.MatchString(part) {
					return part
				}
			}
		}
	}
	return ""
}

// fuzzKey returns the same key for a name each time, so that seeds stay good.
func fuzzKey(name string) *ecdsa.PrivateKey {
	sum := sha256.Sum256([]byte(name))
	return must(ecdsa.ParseRawPrivateKey(elliptic.P256(), sum[:]))
}

// fuzzChain is a good chain.
type fuzzChain struct{ root, mid, leaf *x509.Certificate }

func newFuzzChain(f *testing.F) fuzzChain {
	f.Helper()
	certificate := func(name, issuer string, change func(*x509.Certificate)) *x509.Certificate {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
			BasicConstraintsValid: true,
		}
		change(template)
		parent := &x509.Certificate{Subject: pkix.Name{CommonName: issuer}, SubjectKeyId: []byte(issuer)}
		return must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, parent, fuzzKey(name).Public(), fuzzKey(issuer)))))
	}
	authority := func(name string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			c.Subject, c.SubjectKeyId = pkix.Name{CommonName: name}, []byte(name)
			c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign
		}
	}
	return fuzzChain{
		root: certificate("root", "root", authority("root")),
		mid:  certificate("mid", "root", authority("mid")),
		leaf: certificate("leaf", "mid", func(c *x509.Certificate) {
			pkitest.URIs(pkitest.ID)(c)
			c.KeyUsage = x509.KeyUsageDigitalSignature
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		}),
	}
}

// signed returns what an authority signs, whatever it is; false if it is no certificate.
func signed(tbs []byte, issuer string) (*x509.Certificate, bool) {
	sum := sha256.Sum256(tbs)
	der, err := asn1.Marshal(struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		asn1.RawValue{FullBytes: tbs},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}},
		asn1.BitString{Bytes: must(ecdsa.SignASN1(rand.Reader, fuzzKey(issuer), sum[:]))},
	})
	if err != nil {
		return nil, false
	}
	c, err := x509.ParseCertificate(der)
	return c, err == nil
}

// namesExtension returns the extension with the names in encoded form, nil for none.
func namesExtension(c *x509.Certificate) []byte {
	for _, e := range c.Extensions {
		if e.Id.String() == "2.5.29.17" {
			return e.Value
		}
	}
	return nil
}

// FuzzVerify shows that nothing is verified that x509 does not verify, or that has
// other names than are expected, another key, or may sign. The intermediate and the
// leaf are what is left of good ones before they are signed.
func FuzzVerify(f *testing.F) {
	good := newFuzzChain(f)
	want := pki.Expectation{
		Key: fuzzKey("leaf").Public(), Names: &pki.Names{ID: pkitest.ID}, Roots: []*x509.Certificate{good.root},
	}
	sane := func(tb testing.TB, leaf, mid *x509.Certificate, lax bool) bool {
		want := want
		want.Lax = lax
		v, err := want.Verify([]*x509.Certificate{leaf, mid}, now)
		if err != nil {
			return false
		}
		at := now
		if v.From.After(at) {
			at = v.From
		}
		usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		if lax {
			usages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
		}
		for _, usage := range usages {
			opts := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}}
			opts.Roots.AddCert(good.root)
			opts.Intermediates.AddCert(mid)
			if _, err := leaf.Verify(opts); err != nil {
				tb.Errorf("x509 does not verify it at %v: %v", at, err)
			}
		}
		if got := namesExtension(leaf); !bytes.Equal(got, namesExtension(good.leaf)) {
			tb.Errorf("its names are %q", got)
		}
		if !fuzzKey("leaf").PublicKey.Equal(leaf.PublicKey) {
			tb.Error("it is for another key")
		}
		if !lax && (leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0) {
			tb.Error("it may sign")
		}
		if !v.Root.Equal(good.root) || v.Until.After(leaf.NotAfter) || v.Until.After(good.root.NotAfter) || v.Until.Before(now) || v.From.Before(leaf.NotBefore) {
			tb.Errorf("verified as %v", v)
		}
		return true
	}
	for _, lax := range []bool{false, true} {
		if !sane(f, good.leaf, good.mid, lax) {
			f.Fatal("the good chain is not verified")
		}
		f.Add(good.leaf.RawTBSCertificate, good.mid.RawTBSCertificate, lax)
	}
	f.Add(good.mid.RawTBSCertificate, good.leaf.RawTBSCertificate, true)
	f.Fuzz(func(t *testing.T, leafTBS, midTBS []byte, lax bool) {
		mid, ok := signed(midTBS, "root")
		if !ok {
			mid = good.mid
		}
		if leaf, ok := signed(leafTBS, "mid"); ok {
			sane(t, leaf, mid, lax)
		}
		// A certificate that was not signed again.
		tail := good.leaf.Raw[4+len(good.leaf.RawTBSCertificate):]
		if leaf, err := x509.ParseCertificate(append(append([]byte{0x30, 0x82, good.leaf.Raw[2], good.leaf.Raw[3]}, leafTBS...), tail...)); err == nil {
			if sane(t, leaf, mid, lax) && !bytes.Equal(leafTBS, good.leaf.RawTBSCertificate) {
				t.Error("it is verified without a signature")
			}
		}
	})
}

// spiffeID is what the SPIFFE ID specification, section 2, allows, but for lengths and dots.
var spiffeID = regexp.MustCompile(`\Aspiffe://([a-z0-9._-]{1,255})((?:/[a-zA-Z0-9._-]+)*)\z`)

// FuzzTrustDomain shows that a SPIFFE ID is what the specification allows and nothing
// else, and that URL parsers agree.
func FuzzTrustDomain(f *testing.F) {
	for _, seed := range []string{
		"", pkitest.ID, "spiffe://td", "spiffe://td/", "spiffe://td/./a", "spiffe://td/..", "spiffe://td/...", "spiffe://Td/a",
		"spiffe://td:80/a", "spiffe://u@td/a", "spiffe://td/a?b", "spiffe://td/a#", "spiffe://td/%61", "spiffe:///a", "SPIFFE://td/a",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		domain, err := pki.TrustDomain(id)
		m := spiffeID.FindStringSubmatch(id)
		allowed := m != nil && len(id) <= 2048
		if allowed {
			for segment := range strings.SplitSeq(m[2], "/") {
				allowed = allowed && segment != "." && segment != ".."
			}
		}
		if allowed != (err == nil) || allowed && domain != m[1] || !allowed && domain != "" {
			t.Fatalf("%q is %q, %v", id, domain, err)
		}
		if !allowed {
			return
		}
		u, err := url.Parse(id)
		if err != nil || u.String() != id || u.Host != domain || u.Path != m[2] || u.User != nil {
			t.Errorf("%q as a URL is %v, %v", id, u, err)
		}
		if template := (pki.Request{Names: pki.Names{ID: id}}).Template(); len(template.URIs) != 1 || template.URIs[0].String() != id {
			t.Errorf("%q in a certificate is %v", id, template.URIs)
		}
	})
}
