package pki_test

import (
	"bytes"
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// ecParameters is what OpenSSL writes before a key: the OID of P-256.
var ecParameters = block("EC PARAMETERS", []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7})

func TestPrivateKeyIsReadInEachForm(t *testing.T) {
	ec := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	rs := must(rsa.GenerateKey(rand.Reader, 2048))
	sec1 := must(x509.MarshalECPrivateKey(ec))
	for _, tc := range []struct {
		name string
		text []byte
		key  crypto.Signer
	}{
		{"PKCS#8 of ECDSA", block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(ec))), ec},
		{"PKCS#8 of RSA", block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(rs))), rs},
		{"PKCS#1", block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rs)), rs},
		{"SEC1", block("EC PRIVATE KEY", sec1), ec},
		{"SEC1 after its parameters", slices.Concat(ecParameters, block("EC PRIVATE KEY", sec1)), ec},
		{"with text around it", slices.Concat([]byte("Bag Attributes\n"), block("EC PRIVATE KEY", sec1), []byte("the end")), ec},
		{"with the line ends of Windows", bytes.ReplaceAll(block("EC PRIVATE KEY", sec1), []byte("\n"), []byte("\r\n")), ec},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := pki.ParseKey(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			again, err := pki.ParseKey(pki.EncodeKey(got))
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []crypto.Signer{got, again} {
				if !key.(interface{ Equal(crypto.PrivateKey) bool }).Equal(tc.key) {
					t.Error("it is another key")
				}
			}
		})
	}
	for _, curve := range []elliptic.Curve{elliptic.P384(), elliptic.P521()} {
		t.Run("PKCS#8 of ECDSA on "+curve.Params().Name, func(t *testing.T) {
			der := must(x509.MarshalPKCS8PrivateKey(must(ecdsa.GenerateKey(curve, rand.Reader))))
			if _, err := pki.ParseKey(block("PRIVATE KEY", der)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPrivateKeyIsRefusedWithTheReasonAndWithoutAnyOfIt(t *testing.T) {
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	ec := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must(x509.MarshalPKCS8PrivateKey(ec))
	good := block("PRIVATE KEY", der)
	body := bytes.Split(good, []byte("\n"))[1]
	rs := must(rsa.GenerateKey(rand.Reader, 1024)) //nolint:gosec // too short on purpose
	small := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	cert := pkitest.Root(t, "root", now).Cert
	for _, tc := range []struct {
		name   string
		text   []byte
		secret []byte // DER
		says   string
	}{
		{"PKCS#8 that is encrypted", block("ENCRYPTED PRIVATE KEY", der), der, "encrypted: it must be in the clear"},
		{"PEM that is encrypted", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der, Headers: map[string]string{
			"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}}), der, "encrypted: it must be in the clear"},
		{"Ed25519", block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(ed))), ed, "Ed25519: Envoy 1.40 offers no such signature in TLS"},
		{"X25519", block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(must(ecdh.X25519().GenerateKey(rand.Reader))))), nil, "cannot sign"},
		{"RSA of 1024 bits", block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rs)), x509.MarshalPKCS1PrivateKey(rs), "RSA of 1024 bits: Envoy takes 2048 or more"},
		{"P-224", block("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(small))), must(x509.MarshalECPrivateKey(small)), "ECDSA on P-224: Envoy takes P-256"},
		{"two keys", slices.Concat(good, good), der, "more than one PEM block"},
		{"a key and its certificate", slices.Concat(good, pki.EncodeCerts([]*x509.Certificate{cert})), der, "more than one PEM block"},
		{"a certificate", pki.EncodeCerts([]*x509.Certificate{cert}), der, `a PEM block "CERTIFICATE" instead of a private key`},
		{"a public key", block("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(ec.Public()))), der, `a PEM block "PUBLIC KEY" instead of a private key`},
		{"nothing", nil, nil, "no PEM private key"},
		{"parameters alone", ecParameters, nil, "no PEM private key"},
		{"DER", der, der, "no PEM private key"},
		{"base64 without the lines around it", body, der, "no PEM private key"},
		{"cut off in its body", good[:len(good)/2], der, "damaged or cut off"},
		{"cut off in its last line", good[:len(good)-8], der, "damaged or cut off"},
		{"cut off in its first line", good[10:], der, "damaged or cut off"},
		{"damaged in its body", bytes.Replace(good, body[4:8], []byte("!!!!"), 1), der, "damaged or cut off"},
		{"without line breaks", bytes.ReplaceAll(good, []byte("\n"), nil), der, "damaged or cut off"},
		{"with the key in the name of the block", []byte("-----BEGIN " + string(body) + "-----\n\n-----END " + string(body) + "-----\n"), der, "a PEM block of an unknown kind"},
		{"with a part of the key in the name of the block", []byte("-----BEGIN " + string(body[:20]) + "-----\n\n-----END " + string(body[:20]) + "-----\n"), der, "a PEM block of an unknown kind"},
		{"with what may be a key in the name of the block", []byte("-----BEGIN " + strings.Repeat("K", 31) + "-----\n\n-----END " + strings.Repeat("K", 31) + "-----\n"), nil, "a PEM block of an unknown kind"},
		{"another key's form", block("RSA PRIVATE KEY", der), der, `the PEM block "RSA PRIVATE KEY" contains no valid private key`},
		{"DER cut off", block("PRIVATE KEY", der[:len(der)/2]), der, `the PEM block "PRIVATE KEY" contains no valid private key`},
		{"a scalar of zero", block("EC PRIVATE KEY", zeroScalar(t, ec)), nil, "contains no valid private key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			key, err := pki.ParseKey(tc.text)
			if err == nil || key != nil {
				t.Fatalf("it was taken: %T, %v", key, err)
			}
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %q does not tell %q", err, tc.says)
			}
			checkNoLeak(t, err, tc.secret)
			_, err = pki.ParsePair(pki.EncodeCerts([]*x509.Certificate{cert}), tc.text)
			checkNoLeak(t, err, tc.secret)
			_, err = pki.ParseCerts(tc.text)
			if err != nil {
				checkNoLeak(t, err, tc.secret)
			}
		})
	}
}

// zeroScalar returns a key in SEC1 whose secret is zero.
func zeroScalar(t *testing.T, key *ecdsa.PrivateKey) []byte {
	der, secret := must(x509.MarshalECPrivateKey(key)), must(key.Bytes())
	zero := bytes.Replace(der, secret, make([]byte, len(secret)), 1)
	if bytes.Equal(zero, der) {
		t.Fatal("the secret is not found")
	}
	return zero
}

// checkNoLeak fails if an error contains six consecutive bytes of a secret: raw, in
// hexadecimal, or six characters of its base64.
func checkNoLeak(t *testing.T, err error, secret []byte) {
	t.Helper()
	if leak := leakOf(err.Error(), secret); leak != "" {
		t.Errorf("error %q tells %q of the key", err, leak)
	}
}

func leakOf(text string, secret []byte) string {
	const window = 6
	lower := strings.ToLower(text)
	for i := range len(secret) - window + 1 {
		part := secret[i : i+window]
		if strings.Contains(text, string(part)) || strings.Contains(lower, hex.EncodeToString(part)) {
			return string(part)
		}
	}
	coded := base64.StdEncoding.EncodeToString(secret)
	for i := range len(coded) - window + 1 {
		if strings.Contains(text, coded[i:i+window]) {
			return coded[i : i+window]
		}
	}
	return ""
}

func TestTheCheckForLeaksCanFail(t *testing.T) {
	secret := []byte("0123456789")
	for _, text := range []string{"x 234567 x", "x 323334353637 x", "x MDEyMz x"} {
		if leakOf(text, secret) == "" {
			t.Errorf("%q passes", text)
		}
	}
	if leak := leakOf("x 23456 x", secret); leak != "" {
		t.Errorf("it finds %q", leak)
	}
}

func TestCertificatesAreReadFromPEM(t *testing.T) {
	a, b := pkitest.Root(t, "a", now).Cert, pkitest.Root(t, "b", now).Cert
	type list = []*x509.Certificate
	ta, tb := string(pki.EncodeCerts(list{a})), string(pki.EncodeCerts(list{b}))
	key := string(pki.EncodeKey(pkitest.Key(t)))
	for _, tc := range []struct {
		name, text string
		want       list
		says       string
	}{
		{"one", ta, list{a}, ""},
		{"two", ta + tb, list{a, b}, ""},
		{"the same twice", ta + ta, list{a, a}, ""},
		{"text around each", "subject=a\n" + ta + "\n# b follows\n\n" + tb + "the end\n", list{a, b}, ""},
		{"no line break at the end", strings.TrimSpace(ta + tb), list{a, b}, ""},
		{"the line ends of Windows", strings.ReplaceAll(ta+tb, "\n", "\r\n"), list{a, b}, ""},
		{"none", "", nil, "no PEM certificate"},
		{"text alone", "hello", nil, "no PEM certificate"},
		{"DER", string(a.Raw), nil, "no PEM certificate"},
		{"a key among them", ta + key + tb, nil, `"PRIVATE KEY" among the certificates`},
		{"a key alone", key, nil, `"PRIVATE KEY" among the certificates`},
		{"the first cut off", ta[:len(ta)/2], nil, "damaged or cut off"},
		{"the second cut off", ta + tb[:len(tb)/2], nil, "damaged or cut off"},
		{"the second cut off in its last line", ta + tb[:len(tb)-10], nil, "damaged or cut off"},
		{"the first cut off, the second whole", ta[:len(ta)/2] + "\n" + tb, nil, "damaged or cut off"},
		{"the first without its first line", ta[30:] + tb, nil, "damaged or cut off"},
		{"the second without its first line", ta + tb[30:], nil, "damaged or cut off"},
		{"a letter that is no base64", ta + strings.Replace(tb, "MII", "M!I", 1), nil, "damaged or cut off"},
		{"no certificate within", string(block("CERTIFICATE", []byte("hello"))), nil, "certificate 1: x509"},
		{"an empty block", ta + "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n", nil, "certificate 2: x509"},
		{"more behind it", string(block("CERTIFICATE", append(a.Raw[:len(a.Raw):len(a.Raw)], 0))), nil, "certificate 1: x509"},
		{"as many as may be", strings.Repeat(ta, pki.MaxRoots), slices.Repeat(list{a}, pki.MaxRoots), ""},
		{"too many", strings.Repeat(ta, pki.MaxRoots+1), nil, "more than 4096 certificates"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := pki.ParseCerts([]byte(tc.text))
			switch {
			case tc.says == "" && (err != nil || !sameCerts(got, tc.want)):
				t.Errorf("%d certificates, %v", len(got), err)
			case tc.says != "" && (err == nil || got != nil || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("%d certificates, %v, want an error that tells %q", len(got), err, tc.says)
			}
		})
	}
}

func TestPairIsReadOnlyIfItsPartsBelongTogether(t *testing.T) {
	mid := pkitest.Root(t, "root", now).Intermediate(t, "mid")
	good, other := mid.Leaf(t), mid.Leaf(t)
	rsaKey := pki.EncodeKey(must(pki.RSA2048.Generate()))
	last := good.Chain[1]
	for _, tc := range []struct {
		name       string
		chain, key []byte
		reason     pki.Reason
		says       string
	}{
		{"good", good.ChainPEM(), good.KeyPEM(), "", ""},
		{"another key", good.ChainPEM(), other.KeyPEM(), pki.WrongKey, "not that of the first certificate"},
		{"a key of another kind", good.ChainPEM(), rsaKey, pki.WrongKey, "not that of the first certificate"},
		{"the chain the wrong way round", pki.EncodeCerts([]*x509.Certificate{last, good.Leaf()}), good.KeyPEM(), pki.WrongKey, "first certificate"},
		{"no certificate", nil, good.KeyPEM(), "none", "certificate: no PEM certificate"},
		{"no key", good.ChainPEM(), nil, "none", "key: no PEM private key"},
		{"too long a chain", slices.Concat(good.ChainPEM(), bytes.Repeat(pki.EncodeCerts([]*x509.Certificate{last}), 9)), good.KeyPEM(), pki.Oversized, "11 certificates"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := pki.ParsePair(tc.chain, tc.key)
			if tc.says == "" {
				if err != nil || !sameCerts(p.Chain, good.Chain) || !bytes.Equal(p.ChainPEM(), tc.chain) || !bytes.Equal(p.KeyPEM(), tc.key) {
					t.Errorf("%v, %v", p, err)
				}
				return
			}
			if err == nil || p.Key != nil || p.Chain != nil || pki.ReasonOf(err, "none") != tc.reason || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v (%s), want %s and %q", err, pki.ReasonOf(err, "none"), tc.reason, tc.says)
			}
		})
	}
}

func TestListsOfRevocationsSayWhenTheFirstOfThemEnds(t *testing.T) {
	ca := pkitest.Root(t, "root", now)
	list := func(until time.Time) string {
		return string(block("X509 CRL", must(x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
			Number: big.NewInt(1), ThisUpdate: now.Add(-time.Hour), NextUpdate: until,
		}, ca.Cert, ca.Key))))
	}
	early, late, endless := now.Add(time.Hour), now.Add(2*time.Hour), string(block("X509 CRL", endlessCRL(t, ca)))
	for _, tc := range []struct {
		name, text string
		until      time.Time
		says       string
	}{
		{"one", list(early), early, ""},
		{"one that has ended", list(now.Add(-time.Minute)), now.Add(-time.Minute), ""},
		{"the first is earlier", list(early) + list(late), early, ""},
		{"the second is earlier", list(late) + list(early), early, ""},
		{"one does not say", endless, time.Time{}, ""},
		{"the first does not say", endless + list(early), early, ""},
		{"the last does not say", list(early) + endless, early, ""},
		{"none", "", time.Time{}, `no PEM block "X509 CRL"`},
		{"a certificate", string(pki.EncodeCerts(ca.Roots())), time.Time{}, `"CERTIFICATE" among the revocation lists`},
		{"the second damaged", list(early) + string(block("X509 CRL", []byte("hello"))), time.Time{}, "list 2: x509"},
		{"the second cut off", list(early) + list(late)[:100], time.Time{}, "cut off"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			until, err := pki.CheckCRL([]byte(tc.text))
			switch {
			case tc.says == "" && (err != nil || !until.Equal(tc.until)):
				t.Errorf("%v, %v, want %v", until, err, tc.until)
			case tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)):
				t.Errorf("%v, want an error that tells %q", err, tc.says)
			}
		})
	}
}

// endlessCRL returns a list without the time of the next update.
func endlessCRL(t *testing.T, ca *pkitest.CA) []byte {
	type tbs struct {
		Version   int
		Signature pkix.AlgorithmIdentifier
		Issuer    asn1.RawValue
		This      time.Time
	}
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}}
	list := must(asn1.Marshal(struct {
		TBS       tbs
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{tbs{1, algorithm, asn1.RawValue{FullBytes: ca.Cert.RawSubject}, now}, algorithm, asn1.BitString{Bytes: []byte{1}, BitLength: 8}}))
	if parsed, err := x509.ParseRevocationList(list); err != nil || !parsed.NextUpdate.IsZero() {
		t.Fatalf("%v", err)
	}
	return list
}
