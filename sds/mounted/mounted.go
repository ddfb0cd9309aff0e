// Package mounted reads certificates that other programs write to a directory, such as a kubernetes.io/tls
// Secret, a volume of cert-manager or of a CSI driver, or Istio's layout of files.
//
// It promises that it never returns a key with the certificate of another key, and that damaged or missing
// files do not withdraw earlier ones. Its caller checks the names of a certificate and whether it is trusted.
// One Source may run once at a time.
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

// layout names the files of a certificate. The roots file is optional.
type layout struct{ cert, key, roots string }

// layouts are the supported layouts; the first one with a certificate is used.
var layouts = []layout{
	{"tls.crt", "tls.key", "ca.crt"},                        // kubernetes.io/tls, cert-manager
	{"cert-chain.pem", "key.pem", "root-cert.pem"},          // Istio
	{"svid.pem", "svid_key.pem", "svid_bundle.pem"},         // spiffe-helper
	{"certificates.pem", "private_key.pem", "ca_certs.pem"}, // GKE's workload certificates
}

// Source is a directory with a certificate, its key and its roots. Create it with New and run Run.
type Source struct {
	dir    string
	poller files.Poller
}

// New returns the source of a directory. It does no I/O.
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

// Run watches the files until ctx ends and then returns nil. It calls update whenever the files have changed
// and are stable, and fault with the current problem, or with nil once it is resolved.
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

// parse reads the first layout whose certificate exists.
func (s *Source) parse(c files.Contents) (pki.Update, error) {
	for _, l := range layouts {
		cert, key := c[s.path(l.cert)], c[s.path(l.key)]
		if cert == nil {
			continue
		}
		if key == nil {
			return pki.Update{}, fmt.Errorf("there is %s but no %s", l.cert, l.key)
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
	return pki.Update{}, errors.New("no certificate: want tls.crt, tls.key, and ca.crt if peers shall be verified")
}
