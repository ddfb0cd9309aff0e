package pki_test

import (
	"crypto/ecdsa"
	"crypto/rsa"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

func TestEachKindOfKeyIsGeneratedAndReadAgain(t *testing.T) {
	bits := map[pki.KeyType]int{pki.ECDSAP256: 256, pki.ECDSAP384: 384, pki.RSA2048: 2048, pki.RSA3072: 3072, pki.RSA4096: 4096}
	if len(pki.KeyTypes()) != len(bits) {
		t.Errorf("the kinds are %v", pki.KeyTypes())
	}
	for _, kind := range pki.KeyTypes() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			if parsed, err := pki.ParseKeyType(string(kind)); err != nil || parsed != kind {
				t.Errorf("its name is read as %q, %v", parsed, err)
			}
			key, err := kind.Generate()
			if err != nil {
				t.Fatal(err)
			}
			got := 0
			switch key := key.(type) {
			case *ecdsa.PrivateKey:
				got = key.Curve.Params().BitSize
			case *rsa.PrivateKey:
				got = key.N.BitLen()
			}
			if got != bits[kind] || strings.HasPrefix(string(kind), "rsa") != isRSA(key) {
				t.Errorf("%T of %d bits", key, got)
			}
			if _, err := pki.ParseKey(pki.EncodeKey(key)); err != nil {
				t.Error(err)
			}
			again, err := kind.Generate()
			if err != nil || string(pki.EncodeKey(again)) == string(pki.EncodeKey(key)) {
				t.Errorf("the next is the same: %v", err)
			}
		})
	}
}

func isRSA(key any) bool {
	_, ok := key.(*rsa.PrivateKey)
	return ok
}

func TestKindOfKeyThatDoesNotExistIsRefusedWithThoseThatDo(t *testing.T) {
	for _, tc := range []struct {
		name, kind string
		want       pki.KeyType
		says       string
	}{
		{"none is the default", "", pki.ECDSAP256, ""},
		{"unknown", "dsa", "", `unknown key type "dsa": want one of ecdsa-p256, ecdsa-p384, rsa-2048, rsa-3072, rsa-4096`},
		{"in capitals", "RSA-2048", "", "want one of ecdsa-p256"},
		{"Ed25519", "ed25519", "", "Envoy 1.40 offers no such signature in TLS, and handshakes would fail: use ecdsa-p256"},
		{"Ed25519 in its own spelling", "Ed25519", "", "use ecdsa-p256"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := pki.ParseKeyType(tc.kind)
			if got != tc.want || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %q, %v, want %q and %q", got, err, tc.want, tc.says)
			}
		})
	}
	if key, err := pki.KeyType("dsa").Generate(); err == nil || key != nil {
		t.Errorf("it generates %T, %v", key, err)
	}
}
