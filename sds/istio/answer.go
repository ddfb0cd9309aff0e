package istio

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// parse splits the certificates of a response, leaf first, into the chain and the roots.
//
// The last of several elements contains the roots, self-signed or not (ca.proto,
// IstioCertificateResponse). Roots may also precede it: istiod repeats them
// (istio/istio#43654), and since 1.25.1 sends one element for each root (istio/istio#55793). In
// a single element only self-signed certificates can be recognized as roots.
func parse(elements []string) (pki.Answer, error) {
	var certs []*x509.Certificate
	last := 0 // the index of the first certificate of the last element
	for i, text := range elements {
		parsed, err := pki.ParseCerts([]byte(text))
		if err != nil {
			return pki.Answer{}, fmt.Errorf("element %d of %d: %w", i+1, len(elements), err)
		}
		last = len(certs)
		certs = append(certs, parsed...)
	}
	switch len(elements) {
	case 0:
		return pki.Answer{}, errors.New("it contains no certificate")
	case 1:
		return pki.Split(certs), nil
	}
	a := pki.Split(certs[:last])
	roots := certs[last:]
	for _, c := range a.Roots {
		if !slices.ContainsFunc(roots, c.Equal) {
			roots = append(roots, c)
		}
	}
	a.Roots = roots
	a.Chain = slices.DeleteFunc(a.Chain, func(c *x509.Certificate) bool { return slices.ContainsFunc(roots, c.Equal) })
	if len(a.Chain) == 0 {
		return pki.Answer{}, errors.New("every certificate in it is a root")
	}
	return a, nil
}
