package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// Another folder with the same files, another folder for temporary files, another time zone and umask, another cache with all
// platforms: the same bytes.
func TestTwoBuildsInDifferentFoldersAreEqual(t *testing.T) {
	private, _ := keyFiles(t)
	one := dist(t)
	other, two := filepath.Join(t.TempDir(), "a", "deeper", "folder"), filepath.Join(t.TempDir(), "dist")
	run(t, "git", "clone", "--quiet", "--shared", envoytest.Root(t), other)
	for name := range strings.SplitSeq(strings.Trim(run(t, "git", "-C", envoytest.Root(t), "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00"), "\x00") {
		info, err := os.Lstat(filepath.Join(envoytest.Root(t), name))
		if err != nil {
			_ = os.Remove(filepath.Join(other, name)) // deleted, and not committed yet
			continue
		}
		if info.Mode().IsRegular() {
			write(t, filepath.Join(other, name), read(t, envoytest.Root(t), name))
			if err := os.Chmod(filepath.Join(other, name), info.Mode()); err != nil {
				t.Fatal(err)
			}
		}
	}
	env := []string{"TZ=Asia/Tokyo", "TMPDIR=" + t.TempDir(), "GOFLAGS=-v", "GOAMD64=v2"}
	if !testing.Short() {
		env = append(env, "GOCACHE="+t.TempDir())
	}
	cmd := exec.Command("sh", "-c", `umask 077; exec "$@"`, "sh", filepath.Join(envoytest.Root(t), "bin", "release"),
		"-repository", other, "-dist", two, "-fetched", filepath.Join(envoytest.Root(t), ".peers", "release"), "-dirty", "-newer-debian",
		"-version", version, "-platforms", platforms(), "-signing-key", private)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("release: %v\n%s", err, out)
	}
	a, b := listed(t, one), listed(t, two)
	if strings.Join(a, " ") != strings.Join(b, " ") || len(a) < 15 {
		t.Fatalf("files %s\nand %s", a, b)
	}
	for _, name := range a {
		if read(t, one, name) != read(t, two, name) {
			t.Errorf("%s differs", name)
		}
	}
}

func listed(t testing.TB, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestARefusedReleaseSaysWhatToDo(t *testing.T) {
	full := t.TempDir()
	write(t, filepath.Join(full, "file"), "precious")
	rsa := filepath.Join(t.TempDir(), "rsa.pem")
	run(t, "openssl", "genpkey", "-algorithm", "rsa", "-out", rsa)
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no version":                 {nil, "make release VERSION=v0.1.0"},
		"a bad version":              {[]string{"-version", "1.0"}, "v0.1.0-rc.1"},
		"a platform":                 {[]string{"-version", version, "-platforms", "plan9/386"}, "linux/arm64"},
		"a folder that is not empty": {[]string{"-version", version, "-dist", full}, "DIST="},
		"a key of another kind":      {[]string{"-version", version, "-signing-key", rsa}, "openssl genpkey -algorithm ed25519"},
		"no repository":              {[]string{"-version", version, "-repository", full}, "made of a commit"},
		"an argument":                {[]string{version}, "flags only"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(filepath.Join(envoytest.Root(t), "bin", "release"), tc.args...)
			cmd.Dir = t.TempDir()
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), tc.want) {
				t.Errorf("%v: %s, want %q", err, out, tc.want)
			}
		})
	}
	if read(t, full, "file") != "precious" {
		t.Error("the file was changed")
	}
}
