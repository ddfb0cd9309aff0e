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
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// DevLifetime is that of an authority made for development.
const DevLifetime = 365 * 24 * time.Hour

// NewDev makes a self-signed authority for development, that can sign for one trust
// domain, or with "" for any.
func NewDev(domain string, now time.Time) (*Authority, error) {
	key, err := pki.DefaultKeyType.Generate()
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"holdfast"}, CommonName: "development authority, not for production"},
		NotBefore:    now.Add(-Backdate), NotAfter: now.Add(DevLifetime),
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

// Dev is an authority for development, made when it is first run. Make one with
// OpenDev and run Run.
type Dev struct {
	// place returns the directory where it is kept, which is this user's alone; nil for dir.
	place  func() (string, error)
	domain string
	now    func() time.Time
	log    *slog.Logger

	mu        sync.Mutex
	dir       *Dir       // where it is kept, so that a restart and others find it; nil for memory only, and before Run with place
	authority *Authority // for memory only; nil before Run
	made      chan struct{}
}

// OpenDev returns the authority for development that is kept in a directory, or,
// with "", in memory; it does no I/O. Several agents may share a directory: the
// first one makes the authority.
func OpenDev(dir, domain string, now func() time.Time, log *slog.Logger) (*Dev, error) {
	d := &Dev{domain: domain, now: now, log: log, made: make(chan struct{})}
	if dir != "" {
		var err error
		if d.dir, err = NewDir(dir, now, log); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// OpenDevIn is OpenDev for the directory that place returns when Run begins. What another
// user put there is refused.
func OpenDevIn(place func() (string, error), domain string, now func() time.Time, log *slog.Logger) *Dev {
	return &Dev{place: place, domain: domain, now: now, log: log, made: make(chan struct{})}
}

// Run makes the authority where there is none, and follows it, as Dir.Run does.
func (d *Dev) Run(ctx context.Context, roots func([]*x509.Certificate), fault func(error)) error {
	d.log.Warn("certificates are signed by an authority made for development: whoever reads its key can be anyone. Use --ca dir:, istio: or spire: in production")
	dir, err := d.directory()
	if err != nil {
		return fmt.Errorf("development authority: %w", err)
	}
	if dir != nil {
		if err := d.keep(dir.path); err != nil {
			return fmt.Errorf("development authority in %s: %w", dir.path, err)
		}
		return dir.Run(ctx, roots, fault)
	}
	a, err := NewDev(d.domain, d.now())
	if err != nil {
		return fmt.Errorf("development authority: %w", err)
	}
	d.mu.Lock()
	d.authority = a
	d.mu.Unlock()
	close(d.made)
	roots(a.Roots())
	<-ctx.Done()
	return nil
}

// directory returns where the authority is kept, nil for in memory only.
func (d *Dev) directory() (*Dir, error) {
	if d.place == nil {
		return d.dir, nil
	}
	path, err := d.place()
	if err != nil {
		return nil, err
	}
	dir, err := NewDir(path, d.now, d.log)
	if err != nil {
		return nil, err
	}
	dir.dirs = dir.dirs.Owned()
	d.mu.Lock()
	d.dir = dir
	d.mu.Unlock()
	close(d.made)
	return dir, nil
}

// Issue signs a certificate.
func (d *Dev) Issue(ctx context.Context, r pki.Request) (pki.Answer, error) {
	d.mu.Lock()
	dir := d.dir
	d.mu.Unlock()
	if dir != nil {
		return dir.Issue(ctx, r)
	}
	select {
	case <-d.made:
	case <-ctx.Done():
		return pki.Answer{}, ctx.Err()
	}
	d.mu.Lock()
	a, dir := d.authority, d.dir
	d.mu.Unlock()
	if dir != nil {
		return dir.Issue(ctx, r)
	}
	return a.Sign(r, d.now())
}

// current is the link to the files of an authority that was made.
const current = "..data"

// keep writes a new authority to a directory that has none: it may be a volume of
// its own, and so is not renamed. The files are written beside and put into place
// by making one link, so that of several agents one makes the authority, and none
// reads half of it.
func (d *Dev) keep(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, istioLayout.cert)); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	switch other, err := foreign(dir); {
	case err != nil:
		return err
	case other:
		return fmt.Errorf("the directory has files, and no %s: name another one, or remove them", istioLayout.cert)
	}
	if _, err := os.Lstat(filepath.Join(dir, current)); err != nil {
		if err := d.make(dir); err != nil {
			return err
		}
	}
	for _, name := range slices.Backward(istioLayout.names()) { // the certificate last: with it all is there
		if err := os.Symlink(filepath.Join(current, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// foreign reports whether a directory has files that keep did not make.
func foreign(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		ours := strings.HasPrefix(e.Name(), "..") || slices.Contains(istioLayout.names(), e.Name()) && e.Type()&fs.ModeSymlink != 0
		if !ours {
			return true, nil
		}
	}
	return false, nil
}

// make writes an authority, and puts it into place unless another agent did.
func (d *Dev) make(dir string) error {
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
	if err := os.Symlink(filepath.Base(tmp), filepath.Join(dir, current)); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil // by another agent, meanwhile
		}
		return err
	}
	placed = true
	return nil
}
