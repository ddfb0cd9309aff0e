// Package keystore keeps identities in a directory: a private key, its certificate
// and the roots, for a restarted agent to go on with while the CA is away, and for
// other programs to read.
//
// It promises that a key is never seen beside a certificate that is not its own:
// the files of one identity are written as a whole, in a directory of their own,
// and put into place by one rename, as kubelet does it with a secret. They can be
// read by the agent's user only. A write that fails leaves what was there before.
//
// The layout, for an identity that is published as NAME (docs/certificates.md says
// what each file is for):
//
//	DIR/NAME/tls.key -> ..data/tls.key      and tls.crt, ca.crt, state.json
//	DIR/NAME/..data  -> ..2026_11_21T10_00_00.000000000Z
//	DIR/NAME/..2026_11_21T10_00_00.000000000Z/tls.key …
//
// The generation before the last stays, for who is reading it. A Store is used by
// one process; its methods may be called concurrently for different names.
package keystore

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/owndir"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// The files of an identity: those of a Kubernetes secret of type kubernetes.io/tls,
// and what only holdfast reads.
const (
	KeyFile   = "tls.key"
	CertFile  = "tls.crt"
	RootsFile = "ca.crt"
	stateFile = "state.json"

	current = "..data"
	// stamp names generations, so that they sort by age.
	stamp = "..2006_01_02T15_04_05.000000000Z"
	// format is that of stateFile.
	format = 1

	// hashed begins the names of directories that are made of a hash.
	hashed = "name-"
)

// ErrNone says that nothing is kept under a name.
var ErrNone = errors.New("nothing is kept")

// ErrUnsafe says that others could put keys of their own into the directory.
var ErrUnsafe = owndir.ErrUnsafe

// Sub is the directory that is made in one which root made for others too.
const Sub = "holdfast"

// Record is what is kept of one identity.
type Record struct {
	Pair pki.Pair
	// Domain is the trust domain of the identity, Anchors what is trusted of each.
	Domain  string
	Anchors map[string][]pki.Anchor
	// Issued is when the certificate was issued, Renew when its successor is asked
	// for.
	Issued, Renew time.Time
}

// state is Record but for the pair, in stateFile.
type state struct {
	Format  int                 `json:"format"`
	Domain  string              `json:"domain"`
	Issued  time.Time           `json:"issued"`
	Renew   time.Time           `json:"renew"`
	Anchors map[string][]anchor `json:"anchors"`
}

type anchor struct {
	DER   []byte    `json:"der"`
	Since time.Time `json:"since"`
	Left  time.Time `json:"left,omitzero"`
}

// Store is a directory of identities. Make one with New and call Open.
type Store struct {
	dir string // that was named

	mu  sync.Mutex
	own *owndir.Dir // nil until it could be opened
}

// New returns the store in a directory, which must be absolute; it does no I/O.
func New(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%q is not absolute: give the whole path", dir)
	}
	return &Store{dir: filepath.Clean(dir)}, nil
}

// Open makes the directory, private, if it is missing; in a directory that root made for
// others too it makes Sub. It fails with ErrUnsafe where others may write to it or could
// replace it. After another error, Load and Save try again.
func (s *Store) Open() error {
	_, err := s.root()
	return err
}

// Below opens a directory of that name for other files beside the identities, makes it if
// it is missing, and returns where it is. Others can neither look into it nor have made
// it; who could exchange the directory that was named for Open could exchange it too.
func (s *Store) Below(name string) (path string, err error) {
	if err := s.Open(); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d, err := s.own.Below(name)
	if err != nil {
		return "", fmt.Errorf("identity directory: %w", err)
	}
	return d.Path, d.Root.Close()
}

// root returns the directory, which is opened once.
func (s *Store) root() (*os.Root, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		if now, err := os.Stat(s.own.Path); err == nil {
			if mine, err := s.own.Root.Stat("."); err == nil && os.SameFile(now, mine) {
				return s.own.Root, nil
			}
		}
		_ = s.own.Root.Close() // it was removed, or another is in its place
		s.own = nil
	}
	own, err := owndir.Open(s.dir, owndir.Use{Name: "identity directory", Sub: Sub, Group: -1})
	if err != nil {
		return nil, err
	}
	s.own = own
	return own.Root, nil
}

// place returns the directory of a name, which may hold characters that a file's
// cannot, or be longer. Each name has one of its own.
func place(name string) string {
	escaped := url.PathEscape(name)
	switch {
	case escaped == "", len(escaped) > 200, strings.HasPrefix(escaped, "."), strings.HasPrefix(escaped, hashed):
		sum := sha256.Sum256([]byte(name))
		escaped = hashed + hex.EncodeToString(sum[:])
	}
	return escaped
}

// Load returns what is kept under a name, or ErrNone. The key is that of the
// certificate; whether that still holds is for the caller to verify.
func (s *Store) Load(name string) (Record, error) {
	root, err := s.root()
	if err != nil {
		return Record{}, fmt.Errorf("identity %q: %w", name, err)
	}
	place := place(name)
	// All are read from one generation.
	generation, err := root.Readlink(filepath.Join(place, current))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, ErrNone
	}
	if err != nil {
		return Record{}, fmt.Errorf("identity %q: %w", name, err)
	}
	r, err := load(root, filepath.Join(place, filepath.Base(generation)))
	if err != nil {
		return Record{}, fmt.Errorf("identity %q in %s: %w", name, filepath.Join(s.dir, place), err)
	}
	return r, nil
}

func load(root *os.Root, dir string) (Record, error) {
	content := make(map[string][]byte)
	for _, file := range []string{KeyFile, CertFile, stateFile} {
		b, err := root.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return Record{}, err
		}
		content[file] = b
	}
	pair, err := pki.ParsePair(content[CertFile], content[KeyFile])
	if err != nil {
		return Record{}, err
	}
	var st state
	if err := json.Unmarshal(content[stateFile], &st); err != nil {
		return Record{}, fmt.Errorf("%s: %w", stateFile, err)
	}
	if st.Format != format {
		return Record{}, fmt.Errorf("%s has format %d, and this version reads %d", stateFile, st.Format, format)
	}
	r := Record{Pair: pair, Domain: st.Domain, Issued: st.Issued, Renew: st.Renew, Anchors: make(map[string][]pki.Anchor)}
	for domain, anchors := range st.Anchors {
		for _, a := range anchors {
			c, err := x509.ParseCertificate(a.DER)
			if err != nil {
				return Record{}, fmt.Errorf("%s: root of %q: %w", stateFile, domain, err)
			}
			r.Anchors[domain] = append(r.Anchors[domain], pki.Anchor{Cert: c, Since: a.Since, Left: a.Left})
		}
	}
	return r, nil
}

// Save keeps an identity under a name in place of what was kept before. After an
// error that is what is kept.
func (s *Store) Save(name string, r Record) error {
	st := state{Format: format, Domain: r.Domain, Issued: r.Issued.UTC(), Renew: r.Renew.UTC(), Anchors: make(map[string][]anchor)}
	var roots []*x509.Certificate
	for domain, anchors := range r.Anchors {
		for _, a := range anchors {
			st.Anchors[domain] = append(st.Anchors[domain], anchor{DER: a.Cert.Raw, Since: a.Since.UTC(), Left: a.Left.UTC()})
			if domain == r.Domain {
				roots = append(roots, a.Cert)
			}
		}
	}
	encoded, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("identity %q: %w", name, err)
	}
	root, err := s.root()
	if err != nil {
		return fmt.Errorf("identity %q: %w", name, err)
	}
	err = save(root, place(name), map[string][]byte{
		KeyFile: r.Pair.KeyPEM(), CertFile: r.Pair.ChainPEM(), RootsFile: pki.EncodeCerts(roots), stateFile: encoded,
	})
	if err != nil {
		return fmt.Errorf("identity %q: %w", name, err)
	}
	return nil
}

// save writes a new generation of files and puts it into place.
func save(root *os.Root, place string, content map[string][]byte) error {
	if err := root.MkdirAll(place, 0o700); err != nil {
		return err
	}
	before, _ := root.Readlink(filepath.Join(place, current)) // "" for none
	generation, err := begin(root, place)
	if err != nil {
		return err
	}
	dir := filepath.Join(place, generation)
	placed := false
	defer func() {
		if !placed {
			_ = root.RemoveAll(dir)
		}
	}()
	for file, b := range content {
		if err := write(root, filepath.Join(dir, file), b); err != nil {
			return err
		}
	}
	if err := syncDir(root, dir); err != nil {
		return err
	}
	for file := range content {
		// They lead through current, so they are made once. Until it is there they lead
		// nowhere: what fails here must leave what was there before.
		if target, err := root.Readlink(filepath.Join(place, file)); err == nil && target == filepath.Join(current, file) {
			continue
		}
		if err := link(root, filepath.Join(current, file), filepath.Join(place, file)); err != nil {
			return err
		}
	}
	if err := link(root, generation, filepath.Join(place, current)); err != nil {
		return err
	}
	placed = true
	if err := syncDir(root, place); err != nil {
		return err
	}
	prune(root, place, generation, before)
	return nil
}

// begin makes the directory of a new generation and returns its name. A clock that
// stands still, or was set back, has names that are taken.
func begin(root *os.Root, place string) (generation string, err error) {
	for now := time.Now().UTC(); ; now = now.Add(1) {
		generation = now.Format(stamp)
		if err = root.Mkdir(filepath.Join(place, generation), 0o700); !errors.Is(err, fs.ErrExist) {
			return generation, err
		}
	}
}

// prune removes the generations but those that are named. What cannot be removed
// now is tried again with the next.
func prune(root *os.Root, place string, keep ...string) {
	entries, err := fs.ReadDir(root.FS(), place)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "..") && !slices.Contains(keep, e.Name()) {
			_ = root.RemoveAll(filepath.Join(place, e.Name()))
		}
	}
}

// write makes a file that only the owner may read, and that is on disk when it
// returns.
func write(root *os.Root, path string, content []byte) error {
	f, err := root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// link makes a symbolic link, in place of whatever has its name.
func link(root *os.Root, target, path string) error {
	tmp := path + ".tmp"
	if err := root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.Symlink(target, tmp); err != nil {
		return err
	}
	return root.Rename(tmp, path)
}

func syncDir(root *os.Root, dir string) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
