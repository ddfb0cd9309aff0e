package local

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// DevLifetime is the validity of a development authority.
const DevLifetime = 365 * 24 * time.Hour

// NewDev generates a self-signed authority that can sign for one trust domain, or with "" for any.
func NewDev(domain string, now time.Time) (*Authority, error) {
	key, err := pki.DefaultKeyType.Generate()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{"holdfast"}, CommonName: "development authority, not for production"},
		NotBefore: now.Add(-Backdate), NotAfter: now.Add(DevLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if domain != "" {
		template.PermittedURIDomains, template.PermittedDNSDomainsCritical = []string{domain}, true
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return New(pki.Pair{Key: key, Chain: []*x509.Certificate{cert}}, []*x509.Certificate{cert})
}

// Dev is an authority for development, generated when it first runs. Create it with OpenDev or OpenDevIn.
type Dev struct {
	Dir
	// openDir returns a directory for this user only; nil for a configured directory, or memory only.
	openDir func() (string, error)
	domain  string
}

// OpenDev returns the development authority that is stored in a directory, or with "" only in memory. It does
// no I/O. If several agents share the directory, the first one generates the authority.
func OpenDev(dir, domain string, now func() time.Time, log *slog.Logger) (*Dev, error) {
	d := OpenDevIn(nil, domain, now, log)
	if dir != "" {
		if err := d.setPath(dir); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// OpenDevIn is OpenDev for the directory that openDir returns to Run. Files of other users are rejected.
func OpenDevIn(openDir func() (string, error), domain string, now func() time.Time, log *slog.Logger) *Dev {
	return &Dev{Dir: Dir{path: "memory", now: now, log: log, loaded: make(chan struct{})}, openDir: openDir, domain: domain}
}

// Run generates the authority if it does not exist, and then works as Dir.Run.
func (d *Dev) Run(ctx context.Context, roots func([]*x509.Certificate), fault func(error)) error {
	d.log.Warn("certificates are signed by a development authority: whoever reads its key can impersonate every workload. Give another --ca in production")
	if d.openDir != nil {
		path, err := d.openDir()
		if err == nil {
			err = d.setPath(path)
		}
		if err != nil {
			return fmt.Errorf("development authority: %w", err)
		}
		d.dirs = d.dirs.Owned()
	}
	if d.dirs != nil {
		if err := d.persist(d.path); err != nil {
			return fmt.Errorf("development authority in %s: %w", d.path, err)
		}
		return d.Dir.Run(ctx, roots, fault)
	}
	a, err := NewDev(d.domain, d.now())
	if err != nil {
		return fmt.Errorf("development authority: %w", err)
	}
	d.use(a)
	roots(a.Roots())
	<-ctx.Done()
	return nil
}

const current = "..data"

// persist writes a new authority to a directory that has none. The directory may be a mount point, which cannot
// be renamed, so the files are put into place by one link: only one of several agents generates the authority,
// and no agent reads a part of it.
func (d *Dev) persist(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, istioLayout.cert)); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	names := istioLayout.names()
	for _, e := range entries {
		ours := strings.HasPrefix(e.Name(), "..") || slices.Contains(names, e.Name()) && e.Type()&fs.ModeSymlink != 0
		if !ours {
			return fmt.Errorf("the directory has other files but no %s: choose another directory, or remove the files", istioLayout.cert)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, current)); err != nil {
		if err := d.create(dir); err != nil {
			return err
		}
	}
	for _, name := range slices.Backward(names) { // the certificate comes last: once it exists, all files do
		if err := os.Symlink(filepath.Join(current, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// create writes an authority and puts it into place unless another agent was faster.
func (d *Dev) create(dir string) error {
	a, err := NewDev(d.domain, d.now())
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(dir, "..dev-ca-")
	if err != nil {
		return err
	}
	placed := false
	defer func() {
		if !placed {
			_ = os.RemoveAll(tmp)
		}
	}()
	cert := pki.EncodeCerts([]*x509.Certificate{a.cert})
	for name, content := range map[string][]byte{
		istioLayout.cert: cert, istioLayout.chain: cert, istioLayout.roots: cert, istioLayout.key: pki.EncodeKey(a.key),
	} {
		if err := os.WriteFile(filepath.Join(tmp, name), content, 0o600); err != nil {
			return err
		}
	}
	err = os.Symlink(filepath.Base(tmp), filepath.Join(dir, current))
	placed = err == nil
	if errors.Is(err, fs.ErrExist) {
		return nil // another agent was faster
	}
	return err
}
