package spire

import (
	"crypto/ed25519"
	"crypto/rand"
	"slices"
	"strings"
	"testing"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"go.uber.org/goleak"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

const (
	web   = "spiffe://mesh.test/ns/shop/sa/web"
	admin = "spiffe://mesh.test/ns/shop/sa/admin"
)

func TestWhatIsPushedIsPassedOn(t *testing.T) {
	r := atSocket(t)
	partner, successor := newAuthority(t, "partner.test"), newAuthority(t, "mesh.test")
	key, other := newKey(t), newKey(t)
	first := message(r.ca.svid(web, key), r.ca.svid(admin, other))
	first.FederatedBundles = map[string][]byte{"spiffe://partner.test": partner.cert.Raw}
	for _, svid := range first.Svids {
		svid.Bundle = slices.Concat(r.ca.cert.Raw, successor.cert.Raw)
	}
	first.Svids[0].X509Svid = slices.Concat(first.Svids[0].X509Svid, r.ca.cert.Raw)
	r.send(turn{message: first})
	u := r.expectUpdate()
	if len(u.Pairs) != 2 || !key.Equal(u.Pairs[0].Key) || !other.Equal(u.Pairs[1].Key) {
		t.Fatalf("%d certificates, want that of web and then that of admin", len(u.Pairs))
	}
	for i, id := range []string{web, admin} {
		if names, err := pki.NamesOf(u.Pairs[i].Leaf()); err != nil || !names.Equal(pki.Names{ID: id}) {
			t.Errorf("certificate %d is for %s (%v), want %s", i, names, err, id)
		}
	}
	same(t, "what follows the first leaf", u.Pairs[0].Chain[1:], r.ca.cert)
	same(t, "what follows the second leaf", u.Pairs[1].Chain[1:])
	if len(u.Bundles) != 2 {
		t.Errorf("%d bundles, want 2", len(u.Bundles))
	}
	same(t, "bundle", u.Bundles["mesh.test"], r.ca.cert, successor.cert)
	same(t, "federated bundle", u.Bundles["partner.test"], partner.cert)

	rotated := newKey(t)
	svid := successor.svid(web, rotated)
	r.send(turn{message: message(svid)}) // with its own authority alone, and no federated bundle
	u = r.expectUpdate()
	if len(u.Pairs) != 1 || !rotated.Equal(u.Pairs[0].Key) {
		t.Errorf("%d certificates, want one of the new key", len(u.Pairs))
	}
	if len(u.Bundles) != 1 {
		t.Errorf("%d bundles, want 1", len(u.Bundles))
	}
	same(t, "bundle", u.Bundles["mesh.test"], successor.cert)

	r.end()
	r.expectNothing()
	if streams := r.agent.streams(); len(streams) != 1 {
		t.Errorf("%d streams, want one for all", len(streams))
	}
}

func TestNoGoroutineOutlivesRun(t *testing.T) {
	r := atSocket(t)
	r.end()
	r.stop()
	before := goleak.IgnoreCurrent()
	r.serve()
	r.run(r.addr)
	r.send(turn{message: message(r.ca.svid(web, newKey(t)))})
	r.expectUpdate()
	r.end()
	r.stop()
	goleak.VerifyNone(t, before)
}

func TestAnUpdateThatCannotBeUsedChangesNothing(t *testing.T) {
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	check(t, err)
	for _, tc := range []struct {
		name    string
		message func(*rig, *workload.X509SVID) *workload.X509SVIDResponse
		want    string
	}{
		{"no SVID", func(*rig, *workload.X509SVID) *workload.X509SVIDResponse {
			return message()
		}, "no SVIDs in response"},
		{"a certificate that is none", func(_ *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			s.X509Svid = []byte("garbage")
			return message(s)
		}, "cannot parse DER encoded certificate"},
		{"a key that is none", func(_ *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			s.X509SvidKey = []byte("s3cret")
			return message(s)
		}, "cannot parse DER encoded private key"},
		{"the key of another certificate", func(r *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			s.X509SvidKey = r.ca.svid(web, newKey(r.T)).X509SvidKey
			return message(s)
		}, "does not match private key"},
		{"a good one and a bad one", func(r *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			bad := r.ca.svid(admin, newKey(r.T))
			bad.X509Svid = nil
			return message(s, bad)
		}, "no certificates found"},
		{"a key that Envoy does not take", func(r *rig, _ *workload.X509SVID) *workload.X509SVIDResponse {
			return message(r.ca.svid(web, edwards))
		}, web + ": key: Ed25519: Envoy 1.40 offers no such signature"},
		{"a chain that is too long", func(r *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			s.X509Svid = slices.Concat(s.X509Svid, slices.Repeat(r.ca.cert.Raw, pki.MaxChain))
			return message(s)
		}, web + ": certificate: a chain of 11 certificates: want 10 at most"},
		{"a bundle that is none", func(_ *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			s.Bundle = []byte("garbage")
			return message(s)
		}, "invalid data from the SPIRE agent: x509: malformed"},
		{"a bundle that is empty", func(_ *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			s.Bundle = nil
			return message(s)
		}, web + ": the bundle of its trust domain is empty"},
		{"a bundle that is too large", func(r *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			s.Bundle = slices.Repeat(r.ca.cert.Raw, pki.MaxRoots+1)
			return message(s)
		}, "bundle of mesh.test: 4097 certificates: want 4096 at most"},
		{"a federated bundle of nobody", func(r *rig, s *workload.X509SVID) *workload.X509SVIDResponse {
			m := message(s)
			m.FederatedBundles = map[string][]byte{"https://partner.test": r.ca.cert.Raw}
			return m
		}, "invalid data"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				good := func() turn { return turn{message: message(r.ca.svid(web, newKey(r.T)))} }
				r.send(good())
				r.expectUpdate()
				for range 3 { // reported once
					r.send(turn{message: tc.message(r, r.ca.svid(web, newKey(r.T)))})
				}
				err := r.expectFault(tc.want, "SPIFFE Workload API unix:/pipe: invalid data from the SPIRE agent")
				r.send(good())
				r.expectRecovery()
				r.send(good())
				r.expectUpdate()
				r.expectNothing()
				if streams := r.agent.streams(); len(streams) != 1 {
					r.Errorf("%d streams, want one for all", len(streams))
				}
				for _, text := range []string{err.Error(), r.log.String()} {
					if strings.Contains(text, "s3cret") {
						r.Errorf("a key is in the text: %s", text)
					}
				}
			})
		})
	}
}

func TestAFederatedBundleMayBeEmpty(t *testing.T) {
	inBubble(t, func(r *rig) {
		m := message(r.ca.svid(web, newKey(r.T)))
		m.FederatedBundles = map[string][]byte{"spiffe://partner.test": nil}
		r.send(turn{message: m})
		u := r.expectUpdate()
		if roots, ok := u.Bundles["partner.test"]; !ok || len(roots) > 0 {
			r.Errorf("bundles %v, want an empty one of partner.test", u.Bundles)
		}
	})
}

func TestWhatGoSpiffeSaysIsForDebugging(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.send(turn{message: message(&workload.X509SVID{})})
		r.expectFault("invalid data")
		r.end()
		lines := strings.Split(strings.TrimSpace(r.log.String()), "\n")
		for _, line := range lines {
			if !strings.Contains(line, "level=DEBUG msg=go-spiffe text=") {
				r.Errorf("logged: %s", line)
			}
		}
		if !strings.Contains(r.log.String(), "Failed to parse X509-SVID response") {
			r.Errorf("logged %q, want what go-spiffe says of the message", lines)
		}
	})
}
