package keystore_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/sds/keystore"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

var now = time.Date(2026, 11, 21, 10, 0, 0, 123456789, time.UTC)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) *keystore.Store {
	t.Helper()
	s, err := keystore.New(dir)
	check(t, err)
	check(t, s.Open())
	return s
}

// newStore opens a store in a directory that did not exist.
func newStore(t testing.TB) (s *keystore.Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "ids")
	return open(t, dir), dir
}

// record returns a record with a pair of its own, whose parts all tell its number.
func record(t testing.TB, number int) keystore.Record {
	t.Helper()
	root := pkitest.Root(t, fmt.Sprintf("root %d", number), now)
	return keystore.Record{
		Pair:    root.Intermediate(t, "mid").Leaf(t, pkitest.DNS(fmt.Sprintf("n%d", number))),
		Domain:  fmt.Sprintf("n%d", number),
		Anchors: map[string][]pki.Anchor{fmt.Sprintf("n%d", number): {{Cert: root.Cert, Since: now}}},
		Issued:  now.Add(time.Duration(number) * time.Second), Renew: now.Add(time.Hour),
	}
}

// same fails unless two records are one.
func same(t testing.TB, got, want keystore.Record) {
	t.Helper()
	if !bytes.Equal(got.Pair.ChainPEM(), want.Pair.ChainPEM()) || !bytes.Equal(got.Pair.KeyPEM(), want.Pair.KeyPEM()) {
		t.Errorf("it is the pair of %v, want that of %v", got.Pair.Leaf().DNSNames, want.Pair.Leaf().DNSNames)
	}
	if got.Domain != want.Domain || !got.Issued.Equal(want.Issued) || !got.Renew.Equal(want.Renew) {
		t.Errorf("%q issued %v, renew %v, want %q, %v, %v", got.Domain, got.Issued, got.Renew, want.Domain, want.Issued, want.Renew)
	}
	if len(got.Anchors) != len(want.Anchors) {
		t.Errorf("anchors of %d domains, want %d", len(got.Anchors), len(want.Anchors))
	}
	for domain, anchors := range want.Anchors {
		if !slices.EqualFunc(got.Anchors[domain], anchors, func(a, b pki.Anchor) bool {
			return a.Cert.Equal(b.Cert) && a.Since.Equal(b.Since) && a.Left.Equal(b.Left) && a.Left.IsZero() == b.Left.IsZero()
		}) {
			t.Errorf("anchors of %q are %v, want %v", domain, got.Anchors[domain], anchors)
		}
	}
}

func loads(t testing.TB, s *keystore.Store, name string, want keystore.Record) {
	t.Helper()
	got, err := s.Load(name)
	if err != nil {
		t.Fatalf("load %q: %v", name, err)
	}
	same(t, got, want)
}

func TestWhatIsSavedIsLoadedByTheNextProcess(t *testing.T) {
	s, dir := newStore(t)
	a, b, c := pkitest.Root(t, "a", now), pkitest.Root(t, "b", now), pkitest.Root(t, "c", now)
	elsewhere := time.FixedZone("elsewhere", -5*3600)
	r := keystore.Record{
		Pair:   a.Intermediate(t, "mid").Leaf(t),
		Domain: "example.org",
		Anchors: map[string][]pki.Anchor{
			"example.org": {{Cert: a.Cert, Since: now}, {Cert: b.Cert, Since: now.Add(-time.Hour), Left: now.Add(time.Minute).In(elsewhere)}},
			"other.org":   {{Cert: c.Cert, Since: now}},
			"":            {{Cert: c.Cert, Since: now}},
		},
		Issued: now.In(elsewhere), Renew: now.Add(time.Hour),
	}
	check(t, s.Save("web", r))
	loads(t, open(t, dir), "web", r)

	file := func(name string) string {
		content, err := os.ReadFile(filepath.Join(dir, "web", name))
		check(t, err)
		return string(content)
	}
	if file(keystore.CertFile) != string(r.Pair.ChainPEM()) || file(keystore.KeyFile) != string(r.Pair.KeyPEM()) {
		t.Error("the files hold another pair")
	}
	if file(keystore.RootsFile) != string(pki.EncodeCerts(append(a.Roots(), b.Roots()...))) {
		t.Error("the file of roots holds others than those of the domain")
	}
	for line := range strings.Lines(string(r.Pair.KeyPEM())) { // not "KEY", which the base64 of a certificate has once in a hundred times
		if strings.Contains(file("state.json"), strings.TrimSpace(line)) {
			t.Error("the key is in the file of the state too")
		}
	}
}

func TestRecordWithoutAnchorsIsKept(t *testing.T) {
	s, _ := newStore(t)
	r := keystore.Record{Pair: pkitest.Root(t, "a", now).Leaf(t)}
	check(t, s.Save("web", r))
	loads(t, s, "web", r)
}

func TestNothingIsKeptAtFirst(t *testing.T) {
	s, dir := newStore(t)
	if _, err := s.Load("web"); !errors.Is(err, keystore.ErrNone) {
		t.Errorf("got %v", err)
	}
	check(t, os.RemoveAll(dir))
	if _, err := s.Load("web"); !errors.Is(err, keystore.ErrNone) {
		t.Errorf("without the directory: %v", err)
	}
	check(t, s.Save("web", record(t, 1)))
	if _, err := s.Load("we"); !errors.Is(err, keystore.ErrNone) {
		t.Errorf("under another name: %v", err)
	}
}

func TestEachNameHasADirectoryOfItsOwnInTheStore(t *testing.T) {
	s, dir := newStore(t)
	sum := sha256.Sum256([]byte(".."))
	long := strings.Repeat("l", 300)
	names := []string{
		"", ".", "..", "...", "~", "a", "a/b", "a%2Fb", "a%2fb", "/a", "a/", "/", "../a", "../../a", "..data", ".hidden",
		"default", "dev-ca", "spiffe://example.org/ns/shop/sa/cart", "file-cert:/a~/b", "a b", "a\tb", "a\nb", "a\x00b", "\xff", "ä",
		"tls.key", "state.json", "ROOTCA", `a\b`, "a:b", "-", "name-", "name-" + hex.EncodeToString(sum[:]),
		long, long + "l", strings.Repeat("l", 200), strings.Repeat("l", 201), strings.Repeat("/", 100), strings.Repeat("ä", 100),
	}
	records := make(map[string]keystore.Record)
	for i, name := range names {
		records[name] = record(t, i)
		if err := s.Save(name, records[name]); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range names {
		loads(t, s, name, records[name])
	}
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			t.Errorf("%s is in the store", e)
		}
	}
	if len(entries) != len(names) {
		t.Errorf("%d directories for %d names", len(entries), len(names))
	}
	if beside, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(beside) != 1 {
		t.Errorf("beside the store there are %v, %v", beside, err)
	}
	for _, place := range []string{"default", "spiffe:%2F%2Fexample.org%2Fns%2Fshop%2Fsa%2Fcart"} {
		if _, err := os.Stat(filepath.Join(dir, place, keystore.KeyFile)); err != nil {
			t.Errorf("not where the documentation says: %v", err)
		}
	}
}

func TestOnlyTheOwnerMayReadWhateverTheUmask(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o077} {
		t.Run(fmt.Sprintf("%03o", umask), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "above", "ids")
			defer syscall.Umask(syscall.Umask(umask))
			s := open(t, dir)
			check(t, s.Save("web", record(t, 1)))
			seen := 0
			check(t, filepath.WalkDir(filepath.Dir(dir), func(path string, e fs.DirEntry, err error) error {
				check(t, err)
				info, err := e.Info()
				check(t, err)
				want := fs.FileMode(0o600)
				switch {
				case e.Type()&fs.ModeSymlink != 0:
					return nil
				case e.IsDir():
					want = 0o700
				default:
					seen++
				}
				if info.Mode().Perm() != want {
					t.Errorf("%s has mode %04o", path, info.Mode().Perm())
				}
				return nil
			}))
			if seen != 4 {
				t.Errorf("%d files", seen)
			}
		})
	}
}

func TestStoreThatOthersMayWriteToIsUnsafe(t *testing.T) {
	for _, tc := range []struct {
		mode fs.FileMode
		safe bool
	}{{0o700, true}, {0o755, true}, {0o750, true}, {0o720, false}, {0o702, false}, {0o770, false}, {0o777, false}} {
		t.Run(fmt.Sprintf("%04o", tc.mode), func(t *testing.T) {
			dir := t.TempDir()
			check(t, os.Chmod(dir, tc.mode))
			s, err := keystore.New(dir)
			check(t, err)
			err = s.Open()
			if below := filepath.Join(dir, keystore.Sub); tc.mode&0o002 != 0 && os.Geteuid() == 0 {
				// It is root's, and for others too.
				if info, statErr := os.Stat(below); err != nil || statErr != nil || info.Mode().Perm() != 0o700 {
					t.Errorf("%v; %s: %v, %v", err, below, info, statErr)
				}
				return
			}
			if tc.safe && err != nil || !tc.safe && !errors.Is(err, keystore.ErrUnsafe) {
				t.Errorf("got %v", err)
			}
			if !tc.safe && !strings.Contains(err.Error(), fmt.Sprintf("others may write to %s (mode %04o)", dir, tc.mode)) {
				t.Errorf("error %q does not say what is wrong", err)
			}
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != tc.mode {
				t.Errorf("its mode was changed: %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestStoreIsADirectoryNamedFromTheTop(t *testing.T) {
	for _, dir := range []string{"", "ids", "./ids"} {
		if s, err := keystore.New(dir); err == nil || s != nil {
			t.Errorf("%q: %v, %v", dir, s, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "ids")} {
		s, err := keystore.New(dir)
		check(t, err)
		if err := s.Open(); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// A clock that is too coarse, or is set back to an instant that it was at before, has
// the same effect as one that stands still.
func TestSavesAtOneInstantFollowOneAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, _ := newStore(t)
		for i := range 5 {
			r := record(t, i)
			check(t, s.Save("web", r))
			loads(t, s, "web", r)
		}
	})
}
