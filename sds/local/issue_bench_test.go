package local_test

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// BenchmarkIssue makes a key, has it signed by an authority in the pod and verifies the
// certificate: what a renewal costs.
func BenchmarkIssue(b *testing.B) {
	for _, kind := range []pki.KeyType{pki.ECDSAP256, pki.ECDSAP384, pki.RSA2048, pki.RSA3072} {
		b.Run(string(kind), func(b *testing.B) {
			now := time.Now()
			a, err := local.NewDev("mesh.test", now)
			if err != nil {
				b.Fatal(err)
			}
			names := pki.Names{ID: "spiffe://mesh.test/ns/shop/sa/web"}
			for b.Loop() {
				key, err := kind.Generate()
				if err != nil {
					b.Fatal(err)
				}
				answer, err := a.Sign(pki.Request{Key: key, Names: names, Lifetime: time.Hour}, now)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := (pki.Expectation{Key: key.Public(), Names: &names, Roots: answer.Roots}).Verify(answer.Chain, now); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
