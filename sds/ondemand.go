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

// systemBundles are the trusted certificates of Linux distributions, as in Go's crypto/x509.
var systemBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Alpine
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL 6
	"/etc/ssl/ca-bundle.pem",                            // openSUSE
	"/etc/pki/tls/cacert.pem",                           // OpenELEC
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // CentOS, RHEL 7
	"/etc/ssl/cert.pem",                                 // Alpine
}

// readFiles reads the files of a name until ctx ends, and calls use whenever the resulting secret changes.
func (m *Manager) readFiles(ctx context.Context, name string, target fileSecret, use func(secret)) error {
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.fileStatus, name)
	}()
	p := files.Poller{Dirs: m.dirs, Paths: []string{target.cert, target.key}}
	parse := func(c files.Contents) (secret, error) { return m.pairFromFiles(name, target, c) }
	if target.cert == "" {
		if target.root == "" {
			var err error
			if target.root, p.Dirs, err = systemBundle(); err != nil {
				m.setFileStatus(name, FileStatus{Error: err.Error()})
				<-ctx.Done()
				return nil
			}
		}
		p.Paths = []string{target.root}
		parse = func(c files.Contents) (secret, error) { return rootsFromFile(name, target.root, c) }
	}
	var current FileStatus
	return p.Run(ctx, func(c files.Contents) error {
		made, err := parse(c)
		if err != nil {
			return err
		}
		current.Version = made.Version
		m.setFileStatus(name, current)
		use(made)
		return nil
	}, func(err error) {
		current.Error = errorText(err)
		m.setFileStatus(name, current)
	})
}

func (m *Manager) pairFromFiles(name string, target fileSecret, c files.Contents) (secret, error) {
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

func rootsFromFile(name, path string, c files.Contents) (secret, error) {
	roots, err := pki.ParseCerts(c[path])
	if err != nil {
		return secret{}, fmt.Errorf("%s: %w", path, err)
	}
	return trustedCA(name, pki.EncodeCerts(union(roots, nil)), nil), nil
}

// systemBundle returns the file of the system's trusted certificates; SSL_CERT_FILE overrides it, as for Go.
func systemBundle() (string, *files.Dirs, error) {
	candidates := systemBundles
	if path := os.Getenv("SSL_CERT_FILE"); path != "" {
		candidates = []string{path}
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			// The file may be a link to anywhere: the system administrator chose it.
			dirs, err := files.NewDirs("/")
			return path, dirs, err
		}
	}
	return "", nil, errors.New("file-root:system: the system has no bundle of certificates: set SSL_CERT_FILE, or use file-root:PATH")
}

func (m *Manager) setFileStatus(name string, s FileStatus) {
	m.mu.Lock()
	before := m.fileStatus[name]
	m.fileStatus[name] = s
	m.mu.Unlock()
	switch {
	case s.Error != "" && before.Error != s.Error:
		m.log.Warn("the files of a secret cannot be used: the previous content stays", "name", name, "err", s.Error)
	case s.Error == "" && s.Version != before.Version:
		m.log.Info("the files of a secret are in use", "name", name, "version", s.Version)
	}
}
