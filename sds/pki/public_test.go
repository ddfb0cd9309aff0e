package pki

import (
	"crypto"
	"crypto/x509"
	"testing"
)

func TestPublicKeysAreComparedByWhatTheyAre(t *testing.T) {
	generate := func(kind KeyType) crypto.PublicKey {
		key, err := kind.Generate()
		if err != nil {
			t.Fatal(err)
		}
		return key.Public()
	}
	// copied returns the key as another has read it.
	copied := func(key crypto.PublicKey) crypto.PublicKey {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			t.Fatal(err)
		}
		again, err := x509.ParsePKIXPublicKey(der)
		if err != nil {
			t.Fatal(err)
		}
		return again
	}
	ec, rsa := generate(ECDSAP256), generate(RSA2048)
	for _, tc := range []struct {
		name string
		a, b crypto.PublicKey
		want bool
	}{
		{"the same", ec, ec, true},
		{"the same of RSA", rsa, rsa, true},
		{"a copy", ec, copied(ec), true},
		{"a copy of RSA", copied(rsa), rsa, true},
		{"another", ec, generate(ECDSAP256), false},
		{"on another curve", ec, generate(ECDSAP384), false},
		{"of another kind", ec, rsa, false},
		{"none", nil, nil, false},
		{"none of the two", ec, nil, false},
		{"no key", "a", "a", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := samePublic(tc.a, tc.b); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
