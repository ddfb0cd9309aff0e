package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func keyFile(t *testing.T, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func pkcs8(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return keyFile(t, "PRIVATE KEY", der)
}

func TestSignaturesAreThoseOfTheKeyAndTheSameEachTime(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("sums")
	sum := sha256.Sum256(data)
	for _, tc := range []struct {
		name   string
		key    any
		verify func(detached []byte) bool
	}{
		{"Ed25519", private, func(s []byte) bool { return ed25519.Verify(public, data, s) }},
		{"ECDSA", curve, func(s []byte) bool {
			der, err := base64.StdEncoding.DecodeString(string(s))
			return err == nil && ecdsa.VerifyASN1(&curve.PublicKey, sum[:], der)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := readSigner(pkcs8(t, tc.key))
			if err != nil {
				t.Fatal(err)
			}
			one, err := s.detached(data)
			if err != nil || !tc.verify(one) {
				t.Fatalf("the signature does not verify: %v", err)
			}
			if two, _ := s.detached(data); !bytes.Equal(one, two) {
				t.Error("two signatures differ")
			}
		})
	}
}

func TestOtherKeysAreRejectedWithWhatIsWanted(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{
		"P-384": pkcs8(t, other), "encrypted": keyFile(t, "ENCRYPTED PRIVATE KEY", []byte{1}), "damaged": keyFile(t, "PRIVATE KEY", []byte{1}), "empty": empty,
	} {
		if _, err := readSigner(file); err == nil || !strings.Contains(err.Error(), "openssl genpkey") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := readSigner(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that does not exist was read")
	}
}

// The example of the specification of DSSE.
func TestTheEncodingThatAnEnvelopeSigns(t *testing.T) {
	if got := string(preAuthentication("http://example.com/HelloWorld", []byte("hello world"))); got != "DSSEv1 29 http://example.com/HelloWorld 11 hello world" {
		t.Errorf("got %q", got)
	}
}
