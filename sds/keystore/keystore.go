// Package keystore stores identities in a directory (a private key, its certificate and the trusted roots) so
// that a restarted agent can continue without the CA, and so that other programs can read them.
//
// It promises that a reader never sees a key beside the certificate of another key: the files of one identity
// are written to a directory of their own and put into place by one rename, as kubelet publishes a Secret.
// Only the agent's user can read them. A failed write leaves the previous files in place. It does not promise
// that a stored certificate is valid.
//
// The layout, for an identity that is published as NAME (docs/certificates.md describes the files):
//
//	DIR/NAME/tls.key -> ..data/tls.key      and tls.crt, ca.crt, state.json
//	DIR/NAME/..data  -> ..2026_11_21T10_00_00.000000000Z
//	DIR/NAME/..2026_11_21T10_00_00.000000000Z/tls.key …
//
// The previous generation is not removed, because a program may be reading it. A Store is used by one process;
// its methods may be called concurrently for different names.
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

// The files of an identity: those of a kubernetes.io/tls Secret, and one for holdfast itself.
const (
	KeyFile   = "tls.key"
	CertFile  = "tls.crt"
	RootsFile = "ca.crt"
	stateFile = "state.json"

	current = "..data"
	// stamp is the time format of the names of generations; the names sort by age.
	stamp  = "..2006_01_02T15_04_05.000000000Z"
	format = 1

	hashed = "name-"
)

// ErrNone reports that nothing is stored under a name.
var ErrNone = errors.New("nothing is stored")

// ErrUnsafe reports that other users could write keys into the directory.
var ErrUnsafe = owndir.ErrUnsafe

// Sub is the name of the subdirectory that is used if root created the directory for everybody.
const Sub = "holdfast"

type Record struct {
	Pair pki.Pair
	// Domain is the trust domain of the identity, and Anchors the trust anchors by trust domain.
	Domain  string
	Anchors map[string][]pki.Anchor
	// Issued is when the certificate was issued, and Renew when its successor is requested.
	Issued, Renew time.Time
}

// state is the content of stateFile: a Record without its pair.
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

// Store is a directory of identities. Create it with New and call Open.
type Store struct {
	dir string // as configured

	mu  sync.Mutex
	own *owndir.Dir // nil while it could not be opened
}

// New returns the store in a directory, which must be an absolute path. It does no I/O.
func New(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%q is not an absolute path", dir)
	}
	return &Store{dir: filepath.Clean(dir)}, nil
}

// Open creates the directory, readable for this user only, if it is missing. If root created it for everybody,
// its subdirectory Sub is used. After an error other than ErrUnsafe, Load and Save try again.
func (s *Store) Open() error {
	_, err := s.root()
	return err
}

// Below opens or creates a subdirectory for files other than identities, which other users can neither read
// nor have created, unless they can replace the configured directory itself. It returns the path.
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

// root returns the directory, and opens it if it is not open or was replaced.
func (s *Store) root() (*os.Root, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own != nil {
		if now, err := os.Stat(s.own.Path); err == nil {
			if opened, err := s.own.Root.Stat("."); err == nil && os.SameFile(now, opened) {
				return s.own.Root, nil
			}
		}
		_ = s.own.Root.Close() // it was removed or replaced
		s.own = nil
	}
	own, err := owndir.Open(s.dir, owndir.Use{Name: "identity directory", Sub: Sub, Group: -1})
	if err != nil {
		return nil, err
	}
	s.own = own
	return own.Root, nil
}

// dirName returns the directory of a secret name, which may be no file name. Each name has its own.
func dirName(name string) string {
	escaped := url.PathEscape(name)
	switch {
	case escaped == "", len(escaped) > 200, strings.HasPrefix(escaped, "."), strings.HasPrefix(escaped, hashed):
		sum := sha256.Sum256([]byte(name))
		escaped = hashed + hex.EncodeToString(sum[:])
	}
	return escaped
}

// Load returns the identity that is stored under a name, or ErrNone. The caller must verify the certificate.
func (s *Store) Load(name string) (Record, error) {
	place, generation := dirName(name), ""
	root, err := s.root()
	if err == nil { // all files are read from the same generation
		if generation, err = root.Readlink(filepath.Join(place, current)); errors.Is(err, fs.ErrNotExist) {
			return Record{}, ErrNone
		}
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
		return Record{}, fmt.Errorf("%s has format %d, want %d", stateFile, st.Format, format)
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

// Save replaces the identity that is stored under a name. After an error the previous one is still stored.
func (s *Store) Save(name string, r Record) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("identity %q: %w", name, err)
		}
	}()
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
		return err
	}
	root, err := s.root()
	if err != nil {
		return err
	}
	return save(root, dirName(name), map[string][]byte{
		KeyFile: r.Pair.KeyPEM(), CertFile: r.Pair.ChainPEM(), RootsFile: pki.EncodeCerts(roots), stateFile: encoded,
	})
}

// save writes a new generation of files and puts it into place.
func save(root *os.Root, place string, content map[string][]byte) error {
	if err := root.MkdirAll(place, 0o700); err != nil {
		return err
	}
	before, _ := root.Readlink(filepath.Join(place, current)) // "" for none
	generation, err := createGeneration(root, place)
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
	if err := owndir.SyncDir(root, dir); err != nil {
		return err
	}
	for file := range content {
		// These links through current are created once. A failure leaves the previous generation in use.
		if target, err := root.Readlink(filepath.Join(place, file)); err == nil && target == filepath.Join(current, file) {
			continue
		}
		if err := replaceLink(root, filepath.Join(current, file), filepath.Join(place, file)); err != nil {
			return err
		}
	}
	if err := replaceLink(root, generation, filepath.Join(place, current)); err != nil {
		return err
	}
	placed = true
	if err := owndir.SyncDir(root, place); err != nil {
		return err
	}
	prune(root, place, generation, before)
	return nil
}

// createGeneration creates the next directory. Its name may be taken if the clock was set back.
func createGeneration(root *os.Root, place string) (generation string, err error) {
	for now := time.Now().UTC(); ; now = now.Add(1) {
		generation = now.Format(stamp)
		if err = root.Mkdir(filepath.Join(place, generation), 0o700); !errors.Is(err, fs.ErrExist) {
			return generation, err
		}
	}
}

// prune removes all other generations. A removal that fails is retried after the next save.
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

// write creates a file that only its owner may read, and syncs it to the disk.
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

func replaceLink(root *os.Root, target, path string) error {
	tmp := path + ".tmp"
	if err := root.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := root.Symlink(target, tmp); err != nil {
		return err
	}
	return root.Rename(tmp, path)
}
