package keyfile

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

var key = bytes.Repeat([]byte("KEY!"), Size/4)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Kubelet gives a Secret to root and to the group of the pod.
func TestAKeyOfRootMayBeReadByAGroup(t *testing.T) {
	for _, tc := range []struct {
		owner, user int
		want        os.FileMode
	}{{0, 0, 0o600}, {65532, 65532, 0o600}, {0, 65532, 0o640}} {
		if got := greatestMode(tc.owner, tc.user); got != tc.want {
			t.Errorf("of uid %d for uid %d: %04o, want %04o", tc.owner, tc.user, got, tc.want)
		}
	}
}

func TestAKeyFileIsReadOnlyIfItIsKept(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		must(t, os.Chmod(path, mode))
		return path
	}
	good := file("good", string(key), 0o600)
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(good, link))
	for _, path := range []string{good, link, file("read only", string(key), 0o400)} {
		if got, err := Load(path); err != nil || !bytes.Equal(got, key) {
			t.Errorf("%s: %v", path, err)
		}
	}
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	refused := map[string]string{
		filepath.Join(dir, "missing"):                   "head -c 32 /dev/urandom",
		file("short", "SECRETSHORT", 0o600):             "has 11 bytes",
		file("empty", "", 0o600):                        "has 0 bytes",
		file("line", string(key)+"\n", 0o600):           "has 33 bytes",
		file("group", string(key), 0o640):               "chmod 0600",
		file("world", string(key), 0o604):               "chmod 0600",
		file("executable", string(key), 0o700):          "chmod 0600",
		filepath.Join(dir, "pipe"):                      "not a regular file",
		dir:                                             "not a regular file",
		file("huge", strings.Repeat("x", 1<<20), 0o600): "has 1048576 bytes",
	}
	if os.Geteuid() == 0 { // only root can change the owner of a file
		path := file("another's", string(key), 0o600)
		must(t, os.Chown(path, 1, -1))
		refused[path] = "belongs to uid 1"
	}
	for path, want := range refused {
		_, err := Load(path)
		switch {
		case err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path):
			t.Errorf("%s: %v, want %q", path, err, want)
		case strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), string(key[:8])):
			t.Errorf("%s: the error has the key: %v", path, err)
		}
	}
}
