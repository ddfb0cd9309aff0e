package istio

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

func TestAnAnswerIsDividedIntoChainAndRoots(t *testing.T) {
	root, other := newAuthority(t, "root", nil), newAuthority(t, "other", nil)
	middle := newAuthority(t, "middle", root)
	low := newAuthority(t, "low", middle)
	type certs = []*x509.Certificate
	for _, tc := range []struct {
		name string
		// elements are those after the leaf; with joined the first is in the leaf's.
		elements     []certs
		joined       bool
		chain, roots certs
	}{
		{"istiod: leaf, intermediates, root", []certs{{low.cert}, {middle.cert}, {root.cert}}, false, certs{low.cert, middle.cert}, certs{root.cert}},
		{"istiod without intermediates", []certs{{root.cert}}, false, nil, certs{root.cert}},
		{"istiod before 1.25.1: several roots in the last element", []certs{{low.cert, middle.cert}, {root.cert, other.cert}}, false, certs{low.cert, middle.cert}, certs{root.cert, other.cert}},
		{"istiod 1.25.1: each of several roots in an element", []certs{{middle.cert}, {other.cert}, {root.cert}}, false, certs{middle.cert}, certs{root.cert, other.cert}},
		{"istiod with the root in its chain", []certs{{middle.cert, root.cert}, {root.cert}}, false, certs{middle.cert}, certs{root.cert}},
		{"istio-csr: leaf and chain, root", []certs{{low.cert, middle.cert}, {root.cert}}, true, certs{low.cert, middle.cert}, certs{root.cert}},
		{"a root that another one signed", []certs{{low.cert}, {middle.cert}}, false, certs{low.cert}, certs{middle.cert}},
		{"a root that another one signed, in the chain as well", []certs{{low.cert, middle.cert}, {middle.cert}}, false, certs{low.cert}, certs{middle.cert}},
		{"one element without a root", []certs{{low.cert, middle.cert}}, true, certs{low.cert, middle.cert}, nil},
		{"one element with a root", []certs{{middle.cert, root.cert}}, true, certs{middle.cert}, certs{root.cert}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			r.service.answer = func(_ context.Context, req received) ([]string, error) {
				elements := []string{text(low.leaf(req.csr))}
				for i, certs := range tc.elements {
					if i == 0 && tc.joined {
						elements[0] += text(certs...)
						continue
					}
					elements = append(elements, text(certs...))
				}
				return elements, nil
			}
			req := request(t)
			answer, err := newCA(t, r.addr, r.cfg).Issue(t.Context(), req)
			check(t, err)
			if !answer.Chain[0].PublicKey.(*ecdsa.PublicKey).Equal(req.Key.Public()) {
				t.Error("the first certificate is not that of the key")
			}
			same(t, "chain after the leaf", answer.Chain[1:], tc.chain...)
			same(t, "roots", answer.Roots, tc.roots...)
		})
	}
}

func TestAnAnswerThatIsNoneIsAFault(t *testing.T) {
	root := newAuthority(t, "root", nil)
	good := text(root.cert)
	for _, tc := range []struct {
		name     string
		elements []string
		reason   pki.Reason
		text     string
	}{
		{"empty", nil, pki.Malformed, "it contains no certificate"},
		{"no PEM", []string{"garbage", good}, pki.Malformed, "element 1 of 2: no PEM certificate"},
		{"an element without a certificate", []string{good, ""}, pki.Malformed, "element 2 of 2: no PEM certificate"},
		{"cut off", []string{good, good[:len(good)-20]}, pki.Malformed, "element 2 of 2: a PEM block that is damaged"},
		{"garbage in PEM", []string{"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, pki.Malformed, "element 1 of 1: certificate 1"},
		{"a key", []string{string(pki.EncodeKey(root.key))}, pki.Malformed, `a PEM block "PRIVATE KEY"`},
		{"a leaf that is a root", []string{good, good}, pki.Malformed, "every certificate in it is a root"},
		{"too large", []string{good, strings.Repeat(good, maxAnswer/len(good)+1)}, pki.Oversized, "more than 1048576 bytes"},
		{"far too large", []string{strings.Repeat("x", 8*maxAnswer)}, pki.Oversized, "more than 1048576 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, answerWith(tc.elements...))
			_, err := r.ask(t)
			checkFault(t, err, tc.reason, tc.text, "CA "+r.addr)
		})
	}
}

func TestALargeAnswerWithinTheBoundIsTaken(t *testing.T) {
	root := newAuthority(t, "root", nil)
	good := text(root.cert)
	r := newRig(t, func(_ context.Context, req received) ([]string, error) {
		return []string{text(root.leaf(req.csr)), strings.Repeat(good, (maxAnswer-4096)/len(good))}, nil
	})
	answer, err := r.ask(t)
	check(t, err)
	if len(answer.Roots) < 1000 {
		t.Errorf("%d roots, want all of them", len(answer.Roots))
	}
}
