package atomicfile

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// entries returns the names in dir, to show that no temporary file is left.
func entries(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return strings.Join(names, " ")
}

func TestWriteReplacesTheFileAndSetsItsMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "envoy.yaml")
	for _, step := range []struct {
		data string
		mode os.FileMode
	}{{"first", 0o600}, {"second", 0o666}} { // 0666: no usual umask would leave it
		if err := Write(path, []byte(step.data), step.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != step.data {
			t.Errorf("%q, %v", got, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != step.mode {
			t.Errorf("mode %v, %v, want %v", info.Mode(), err, step.mode)
		}
	}
	if got := entries(t, filepath.Dir(path)); got != "envoy.yaml" {
		t.Errorf("left behind: %s", got)
	}
}

func TestWriteReplacesASymbolicLinkAndLeavesItsTarget(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "envoy.json")
	if err := os.WriteFile(target, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := Write(link, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "old" {
		t.Errorf("target: %q, %v", got, err)
	}
}

func TestAFailedWriteNamesTheFileAndLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken.json")
	if err := os.MkdirAll(filepath.Join(taken, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{taken, filepath.Join("/proc", "missing", "envoy.json")} {
		if err := Write(path, []byte("x"), 0o644); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if got := entries(t, dir); got != "taken.json" {
		t.Errorf("left behind: %s", got)
	}
}

// As of sockets and the state. Who may not read the file may not look into the directory.
func TestADirectoryThatIsMissingIsCreated(t *testing.T) {
	for mode, want := range map[os.FileMode]os.FileMode{0o644: 0o755, 0o640: 0o755, 0o600: 0o700} {
		dir := filepath.Join(t.TempDir(), "a")
		path := filepath.Join(dir, "b", "envoy.json")
		if err := Write(path, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("of a file of mode %o: %v, %v, want %o", mode, info.Mode(), err, want)
		}
		if got := entries(t, filepath.Dir(path)); got != "envoy.json" {
			t.Errorf("there is %s", got)
		}
	}
}

func TestAReaderNeverSeesHalfAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "envoy.json")
	contents := [2]string{strings.Repeat("a", 1<<16), strings.Repeat("b", 1<<17)}
	if err := Write(path, []byte(contents[0]), 0o644); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{}) // closed by the writers' waiter below
	var writers sync.WaitGroup
	for _, c := range contents { // two writers at once: neither takes the other's temporary file
		writers.Go(func() {
			for range 20 {
				if err := Write(path, []byte(c), 0o644); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { writers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		got, err := os.ReadFile(path)
		if err != nil || (string(got) != contents[0] && string(got) != contents[1]) {
			t.Errorf("read %d bytes, %v", len(got), err)
			running = false
		}
	}
	<-done
}
