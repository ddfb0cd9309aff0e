package sds

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// The authority in the pod is exchanged for one that may not sign for the identity: certificates are renewed by the former one,
// and peers are not told to trust the new one alone.
func TestAnAuthorityThatDoesNotSignTheIdentityTakesNobodysPlace(t *testing.T) {
	const lifetime = 10 * time.Minute // the files are read every two seconds, also in virtual time
	bubble.Test(t, func(t *testing.T) {
		r, v := &rig{T: t, log: new(buffer)}, pkitest.NewVolume(t)
		publish := func(ca *pkitest.CA) {
			v.Publish(t, map[string][]byte{"tls.crt": ca.Pair().ChainPEM(), "tls.key": ca.Pair().KeyPEM(), "ca.crt": pki.EncodeCerts(ca.Roots())})
		}
		one := pkitest.Root(t, "one", r.now())
		publish(one)
		r.start(Config{Sources: []SourceConfig{{CA: "dir:" + v.Dir, Lifetime: lifetime, Identities: []Identity{identified(workload)}}}, Now: r.now, Log: r.log.logger()})
		defer r.end()
		r.wait(2 * files.Period)
		first := r.checkCertificate()
		publish(pkitest.Root(t, "two", r.now(), pkitest.Constrained("other.test")))
		r.wait(2 * files.Period)
		if faults := r.m.Status().Faults; !slices.ContainsFunc(faults, func(text string) bool {
			return strings.Contains(text, "it signs no certificate that holds for "+workload)
		}) {
			t.Errorf("the status does not say that it was refused: %+v", faults)
		}
		r.wait(lifetime)
		if p := r.checkCertificate(); p.Leaf().Equal(first.Leaf()) {
			t.Error("the certificate is that of before")
		} else if err := p.Leaf().CheckSignatureFrom(one.Cert); err != nil {
			t.Error(err)
		}
		three := pkitest.Root(t, "three", r.now(), pkitest.Constrained("mesh.test"))
		publish(three)
		r.wait(2*files.Period + 2*lifetime)
		if err := r.checkCertificate().Leaf().CheckSignatureFrom(three.Cert); err != nil {
			t.Error(err)
		}
	})
}
