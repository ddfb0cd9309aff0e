package sds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// systemBundles are where systems keep the certificates that they trust: those of
// Go's crypto/x509 for Linux.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Alpine
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL 6
	"/etc/ssl/ca-bundle.pem",                            // openSUSE
	"/etc/pki/tls/cacert.pem",                           // OpenELEC
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // CentOS, RHEL 7
	"/etc/ssl/cert.pem",                                 // Alpine
}

// followFiles reads the files that a name stands for until ctx ends, and calls use
// with the secret that they make, whenever it changes.
func (m *Manager) followFiles(ctx context.Context, name string, target fileName, use func(secret)) error {
	defer m.forgetFile(name)
	p := files.Poller{Dirs: m.dirs}
	var parse func(files.Contents) (secret, error)
	switch {
	case target.cert != "":
		p.Paths = []string{target.cert, target.key}
		parse = func(c files.Contents) (secret, error) { return m.pairOfFiles(name, target, c) }
	case target.root != "":
		p.Paths = []string{target.root}
		parse = func(c files.Contents) (secret, error) { return rootsOfFile(name, target.root, c) }
	default:
		path, dirs, err := systemBundle()
		if err != nil {
			m.noteFile(name, FileStatus{Err: err})
			<-ctx.Done()
			return nil
		}
		p.Paths, p.Dirs = []string{path}, dirs
		parse = func(c files.Contents) (secret, error) { return rootsOfFile(name, path, c) }
	}
	var now FileStatus
	return p.Run(ctx, func(c files.Contents) error {
		made, err := parse(c)
		if err != nil {
			return err
		}
		now.Version = made.Version
		m.noteFile(name, now)
		use(made)
		return nil
	}, func(err error) {
		now.Err = err
		m.noteFile(name, now)
	})
}

// pairOfFiles makes a secret of a certificate and its key.
func (m *Manager) pairOfFiles(name string, target fileName, c files.Contents) (secret, error) {
	for _, path := range []string{target.cert, target.key} {
		if c[path] == nil {
			return secret{}, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
		}
	}
	pair, err := pki.ParsePair(c[target.cert], c[target.key])
	if err != nil {
		return secret{}, fmt.Errorf("%s, %s: %w", target.cert, target.key, err)
	}
	if _, err := (pki.Expectation{Lax: true}).Verify(pair.Chain, m.now()); err != nil {
		return secret{}, fmt.Errorf("%s: %w", target.cert, err)
	}
	return certificate(name, pair), nil
}

// rootsOfFile makes a secret of a file of roots.
func rootsOfFile(name, path string, c files.Contents) (secret, error) {
	roots, err := pki.ParseCerts(c[path])
	if err != nil {
		return secret{}, fmt.Errorf("%s: %w", path, err)
	}
	return trustedCA(name, pki.EncodeCerts(union(roots, nil)), nil), nil
}

// systemBundle returns the file of the certificates that the system trusts. The
// variable SSL_CERT_FILE names another, as it does for OpenSSL and Go.
func systemBundle() (string, *files.Dirs, error) {
	candidates := systemBundles
	if path := os.Getenv("SSL_CERT_FILE"); path != "" {
		candidates = []string{path}
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			// Where it really is, is the system's business.
			dirs, err := files.NewDirs("/")
			return path, dirs, err
		}
	}
	return "", nil, errors.New("file-root:system: the system has no bundle of certificates: set SSL_CERT_FILE, or use file-root:PATH")
}

func (m *Manager) noteFile(name string, s FileStatus) {
	m.mu.Lock()
	before := m.read[name]
	m.read[name] = s
	m.mu.Unlock()
	switch {
	case s.Err != nil && (before.Err == nil || before.Err.Error() != s.Err.Error()):
		m.log.Warn("a secret of files cannot be read; what was read before stays", "name", name, "err", s.Err)
	case s.Err == nil && s.Version != before.Version:
		m.log.Info("a secret of files in use", "name", name, "version", s.Version)
	}
}

func (m *Manager) forgetFile(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.read, name)
}
