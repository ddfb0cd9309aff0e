package local

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// layout names the files of an authority.
type layout struct{ cert, key, chain, roots string }

var (
	// istioLayout is that of Istio's Secret cacerts; secretLayout that of a kubernetes.io/tls Secret.
	istioLayout  = layout{cert: "ca-cert.pem", key: "ca-key.pem", chain: "cert-chain.pem", roots: "root-cert.pem"}
	secretLayout = layout{cert: "tls.crt", key: "tls.key", roots: "ca.crt"}
)

func (l layout) names() []string {
	names := []string{l.cert, l.key, l.roots}
	if l.chain != "" {
		names = append(names, l.chain)
	}
	return names
}

// Dir is an authority in a directory that other programs write. Create it with NewDir and run Run.
type Dir struct {
	dirs *files.Dirs // nil for an authority that is only in memory
	log  *slog.Logger
	now  func() time.Time
	// required returns the names that the authority has to sign; nil for none.
	required func() []pki.Names

	// candidate is the authority that was read last, nil for none. Only Run uses it, and proven.
	candidate *Authority
	proven    trial

	mu        sync.Mutex
	path      string
	authority *Authority // nil until the files were read
	err       error      // the current problem with the files
	loaded    chan struct{}
}

// NewDir does no I/O. now returns the wall clock time.
func NewDir(path string, now func() time.Time, log *slog.Logger) (*Dir, error) {
	d := &Dir{now: now, log: log, loaded: make(chan struct{})}
	if err := d.setPath(path); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *Dir) setPath(path string) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.path = path
	d.dirs, err = files.NewDirs(path)
	return err
}

func (d *Dir) use(a *Authority) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.authority == nil {
		close(d.loaded)
	}
	d.authority = a
}

// Require says which names the authority has to sign certificates for; they may change. It must be called before Run.
// An authority that does not sign one of them does not take the place of one that does.
func (d *Dir) Require(names func() []pki.Names) { d.required = names }

// Run watches the files until ctx ends. It calls roots with what peers must trust whenever the authority
// changes, and fault with the current problem, or with nil once it is resolved; meanwhile the last valid
// authority stays in use. A new authority is tried before it is used (Require).
func (d *Dir) Run(ctx context.Context, roots func([]*x509.Certificate), fault func(error)) error {
	p := files.Poller{Dirs: d.dirs, Again: func(err error) error {
		if d.candidate == nil {
			return err
		}
		return d.consider(roots)
	}}
	for _, name := range append(istioLayout.names(), secretLayout.names()...) {
		p.Paths = append(p.Paths, filepath.Join(d.path, name))
	}
	return p.Run(ctx, func(c files.Contents) error {
		a, err := d.parse(c)
		d.candidate = a
		if err != nil {
			return fmt.Errorf("authority in %s: %w", d.path, err)
		}
		return d.consider(roots)
	}, func(err error) {
		d.mu.Lock()
		d.err = err
		d.mu.Unlock()
		fault(err)
	})
}

// trial is a trial of an authority that it has passed, and holds until a time.
type trial struct {
	authority *Authority
	names     []pki.Names
	until     time.Time
}

// consider uses the candidate unless the authority in use signs what the candidate does not. The error says what the
// candidate does not sign, also if it is used because there is none better.
func (d *Dir) consider(roots func([]*x509.Certificate)) error {
	var names []pki.Names
	if d.required != nil {
		names = d.required()
	}
	d.mu.Lock()
	current, now, next := d.authority, d.now(), d.candidate
	d.mu.Unlock()
	if p := d.proven; current == next && p.authority == next && now.Before(p.until) && slices.EqualFunc(p.names, names, pki.Names.Equal) {
		return nil
	}
	var failed []failure
	for f := range next.failures(names, now) {
		if current != next && current != nil && current.try(f.names, now) == nil {
			return fmt.Errorf("authority in %s: %w; the former authority stays in use, because it can", d.path, f)
		}
		failed = append(failed, f)
	}
	if current != next {
		d.warnIfShort(current, next, now)
		for _, w := range next.Warnings() {
			d.log.Warn(w, "dir", d.path)
		}
		d.use(next)
		roots(next.Roots())
	}
	if len(failed) > 0 {
		return fmt.Errorf("authority in %s: %w", d.path, failed[0])
	}
	until, _ := next.validUntil(now) // it has signed
	d.proven = trial{next, names, until}
	return nil
}

// shortRest is the rest of an authority's time of which an operator should know when it takes the place of one with more.
const shortRest = 7 * 24 * time.Hour

// warnIfShort warns of an authority that soon signs nothing any more, and takes the place of one that would for longer.
func (d *Dir) warnIfShort(current, next *Authority, now time.Time) {
	until, err := next.validUntil(now)
	if err != nil || until.Sub(now) > shortRest || current == nil {
		return
	}
	if former, err := current.validUntil(now); err == nil && former.After(until) {
		d.log.Warn("the new authority signs for a short time only, and the former one would for longer: replace it in time", "dir", d.path,
			"not_after", until.UTC().Format(time.RFC3339), "former_not_after", former.UTC().Format(time.RFC3339))
	}
}

// Issue signs a certificate. It first waits, until ctx ends, for the files to be read.
func (d *Dir) Issue(ctx context.Context, r pki.Request) (pki.Answer, error) {
	select {
	case <-d.loaded:
	case <-ctx.Done():
	}
	d.mu.Lock()
	a, path, err := d.authority, d.path, d.err
	d.mu.Unlock()
	if a == nil {
		return pki.Answer{}, cmp.Or(err, fmt.Errorf("authority in %s: not read yet: %w", path, ctx.Err()))
	}
	answer, err := a.Sign(r, d.now())
	if err != nil {
		return pki.Answer{}, fmt.Errorf("authority in %s: %w", path, err)
	}
	return answer, nil
}

func (d *Dir) parse(c files.Contents) (*Authority, error) {
	file := func(name string) []byte { return c[filepath.Join(d.path, name)] }
	l := istioLayout
	switch istio, secret := file(istioLayout.cert) != nil, file(secretLayout.cert) != nil; {
	case istio && secret:
		return nil, fmt.Errorf("there are both %s and %s: want only one authority in the directory", istioLayout.cert, secretLayout.cert)
	case secret:
		l = secretLayout
	case !istio:
		return nil, fmt.Errorf("neither %s nor %s is there", istioLayout.cert, secretLayout.cert)
	}
	if file(l.key) == nil {
		return nil, fmt.Errorf("%s is missing", l.key)
	}
	pair, err := pki.ParsePair(file(l.cert), file(l.key))
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", l.cert, l.key, err)
	}
	if l.chain != "" && file(l.chain) != nil {
		chain, err := pki.ParseCerts(file(l.chain))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.chain, err)
		}
		// The chain may begin with the authority's own certificate.
		if chain[0].Equal(pair.Leaf()) {
			chain = chain[1:]
		}
		pair.Chain = append(pair.Chain[:1:1], chain...)
	}
	roots, err := d.roots(l, file(l.roots), pair)
	if err != nil {
		return nil, err
	}
	return New(pair, roots)
}

// roots returns the roots of the file, or without a file the root at the end of the chain.
func (d *Dir) roots(l layout, text []byte, pair pki.Pair) ([]*x509.Certificate, error) {
	if text != nil {
		roots, err := pki.ParseCerts(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.roots, err)
		}
		return roots, nil
	}
	last := pair.Chain[len(pair.Chain)-1]
	if !pki.SelfSigned(last) {
		return nil, errors.New(l.roots + " is missing, and the certificate is not a root itself")
	}
	return []*x509.Certificate{last}, nil
}
