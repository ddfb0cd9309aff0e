// Package mounted takes certificates that others make and put into a directory: a
// Kubernetes secret of type kubernetes.io/tls, what cert-manager or a CSI driver
// mounts, or Istio's layout of files.
//
// It promises that a key is never given with a certificate that is not its own,
// and that what is damaged or vanishes takes nothing away. It does not check who
// the certificate is for and whether it is trusted: that is for who gets it.
package mounted

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// layout names the files of a certificate. roots may be missing.
type layout struct{ cert, key, roots string }

// layouts are those that are looked for, in this order.
var layouts = []layout{
	{"tls.crt", "tls.key", "ca.crt"},                        // kubernetes.io/tls, cert-manager
	{"cert-chain.pem", "key.pem", "root-cert.pem"},          // Istio
	{"svid.pem", "svid_key.pem", "svid_bundle.pem"},         // spiffe-helper, the CSI driver of cert-manager for SPIFFE uses the first
	{"certificates.pem", "private_key.pem", "ca_certs.pem"}, // GKE's workload certificates
}

// Source is a directory of a certificate, its key and its roots. Make one with New
// and run Run.
type Source struct {
	dir    string
	poller files.Poller
}

// New returns the source of a directory; it does no I/O.
func New(dir string) (*Source, error) {
	dirs, err := files.NewDirs(dir)
	if err != nil {
		return nil, err
	}
	s := &Source{dir: dir, poller: files.Poller{Dirs: dirs}}
	for _, l := range layouts {
		s.poller.Paths = append(s.poller.Paths, s.path(l.cert), s.path(l.key), s.path(l.roots))
	}
	return s, nil
}

func (s *Source) path(name string) string { return filepath.Join(s.dir, name) }

// Run follows the files until ctx ends and returns nil then. update is called with
// what is there whenever it has changed and rests, fault with what is wrong, and
// nil when it is mended.
func (s *Source) Run(ctx context.Context, update func(pki.Update), fault func(error)) error {
	return s.poller.Run(ctx, func(c files.Contents) error {
		u, err := s.parse(c)
		if err != nil {
			return fmt.Errorf("certificate in %s: %w", s.dir, err)
		}
		update(u)
		return nil
	}, fault)
}

// parse reads the first layout of which a certificate is there.
func (s *Source) parse(c files.Contents) (pki.Update, error) {
	for _, l := range layouts {
		cert, key := c[s.path(l.cert)], c[s.path(l.key)]
		if cert == nil {
			continue
		}
		if key == nil {
			return pki.Update{}, fmt.Errorf("%s is missing beside %s", l.key, l.cert)
		}
		pair, err := pki.ParsePair(cert, key)
		if err != nil {
			return pki.Update{}, fmt.Errorf("%s, %s: %w", l.cert, l.key, err)
		}
		u := pki.Update{Pairs: []pki.Pair{pair}, Bundles: make(map[string][]*x509.Certificate)}
		if text := c[s.path(l.roots)]; text != nil {
			roots, err := pki.ParseCerts(text)
			if err != nil {
				return pki.Update{}, fmt.Errorf("%s: %w", l.roots, err)
			}
			u.Bundles[pki.DomainOf(pair)] = roots
		}
		return u, nil
	}
	return pki.Update{}, errors.New("no certificate: want tls.crt and tls.key, and ca.crt if peers shall be checked")
}
