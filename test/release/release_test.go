package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// Versions of the releases that tests make; upgrades are from the first to the second.
const (
	before  = "v0.1.0-rc.1"
	version = "v0.1.0"
)

// work is a folder for all tests, which TestMain removes.
var work string

func TestMain(m *testing.M) {
	var err error
	if work, err = os.MkdirTemp("", "holdfast-release-test-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(work)
	os.Exit(code)
}

// run runs a command, which must succeed, and returns what it printed.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func write(t testing.TB, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// made is a release that was made once for all tests.
type made struct {
	once sync.Once
	dir  string
}

var (
	current, older, arm made
	keys, keysBefore    sync.Once
)

// keyFiles are the private and the public key of the version's release, made by openssl: Ed25519.
func keyFiles(t testing.TB) (private, public string) {
	private, public = filepath.Join(kept(), "key.pem"), filepath.Join(kept(), "public.pem")
	keys.Do(func() {
		newKey(t, private, public, "-algorithm", "ed25519")
	})
	return private, public
}

// keyFilesBefore are those of the release before: ECDSA.
func keyFilesBefore(t testing.TB) (private, public string) {
	private, public = filepath.Join(kept(), "key-before.pem"), filepath.Join(kept(), "public-before.pem")
	keysBefore.Do(func() {
		newKey(t, private, public, "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
	})
	return private, public
}

// kept is the folder of releases and keys.
func kept() string {
	if dir := os.Getenv("RELEASES"); dir != "" {
		return dir
	}
	return work
}

// newKey makes a key with openssl, unless it is there.
func newKey(t testing.TB, private, public string, options ...string) {
	t.Helper()
	if _, err := os.Stat(public); err != nil {
		run(t, "openssl", append([]string{"genpkey", "-out", private}, options...)...)
		run(t, "openssl", "pkey", "-in", private, "-pubout", "-out", public)
	}
}

// releaseOf makes a release of a repository. An update of Debian is no failure of a test.
func releaseOf(t testing.TB, repository, dist string, env []string, args ...string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(envoytest.Root(t), "bin", "release"), append([]string{
		"-repository", repository, "-dist", dist, "-fetched", filepath.Join(envoytest.Root(t), ".peers", "release"), "-dirty", "-newer-debian"}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("release: %v\n%s", err, out)
	}
}

// folder returns where a release is, and makes it if it was not yet. While one works on the tests, RELEASES names a
// folder in which releases, and their keys, stay for the next run.
func (m *made) folder(t testing.TB, name string, args ...string) string {
	t.Helper()
	m.once.Do(func() {
		dir := filepath.Join(kept(), name)
		if _, err := os.Stat(filepath.Join(dir, "SHA256SUMS")); err == nil {
			m.dir = dir
			return
		}
		releaseOf(t, envoytest.Root(t), dir, nil, args...)
		m.dir = dir
	})
	if m.dir == "" {
		t.Fatalf("the release %s could not be made", name)
	}
	return m.dir
}

// platforms are those of the release that is looked at most.
func platforms() string {
	if testing.Short() {
		return "linux/amd64"
	}
	return ""
}

// dist is the release of the version.
func dist(t testing.TB) string {
	t.Helper()
	private, _ := keyFiles(t)
	return current.folder(t, "dist", "-version", version, "-platforms", platforms(), "-signing-key", private)
}

// distBefore is the release before it: packages only.
func distBefore(t testing.TB) string {
	t.Helper()
	private, _ := keyFilesBefore(t)
	return older.folder(t, "before", "-version", before, "-platforms", "linux/amd64", "-without-envoy", "-signing-key", private)
}

// distARM is the version for arm64.
func distARM(t testing.TB) string {
	t.Helper()
	return arm.folder(t, "arm64", "-version", version, "-platforms", "linux/arm64", "-without-envoy")
}

// untar unpacks a .tar or .tar.gz below dir.
func untar(t testing.TB, archive, dir string) {
	t.Helper()
	data := []byte(read(t, archive))
	var r io.Reader = bytes.NewReader(data)
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		zipped, err := gzip.NewReader(r)
		if err != nil {
			t.Fatal(err)
		}
		r = zipped
	}
	unpack(t, r, dir)
}

// unpack writes the files of a tar stream below dir, with their owners if they are not root.
func unpack(t testing.TB, r io.Reader, dir string) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return
		}
		check(err)
		at := filepath.Join(dir, path.Clean("/"+h.Name))
		check(os.MkdirAll(filepath.Dir(at), 0o755))
		switch h.Typeflag {
		case tar.TypeDir:
			check(os.MkdirAll(at, 0o755))
			check(os.Chmod(at, h.FileInfo().Mode()))
		case tar.TypeSymlink:
			check(os.Symlink(h.Linkname, at))
		case tar.TypeReg:
			f, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY|os.O_EXCL, h.FileInfo().Mode())
			check(err)
			_, err = io.Copy(f, archive)
			check(err)
			check(f.Close())
		default:
			t.Fatalf("%s is of the type %c", h.Name, h.Typeflag)
		}
		check(os.Lchown(at, h.Uid, h.Gid))
	}
}

// unpacked is the archive of a platform, unpacked.
func unpacked(t testing.TB, dist, platform string) string {
	t.Helper()
	name, dir := "holdfast-"+version+"-"+platform, t.TempDir()
	untar(t, filepath.Join(dist, name+".tar.gz"), dir)
	return filepath.Join(dir, name)
}

// root is the repository.
func root(t testing.TB) string {
	t.Helper()
	return envoytest.Root(t)
}
