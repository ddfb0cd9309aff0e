package userfile

import (
	"bytes"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestARegularFileIsReadAsAWhole(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	must(t, os.WriteFile(path, []byte("text"), 0o600))
	must(t, os.Symlink(path, link))
	for _, name := range []string{path, link} {
		for _, read := range []func(string) ([]byte, error){Read, ReadSecret} {
			if b, err := read(name); err != nil || string(b) != "text" {
				t.Errorf("%s: %q, %v", name, b, err)
			}
		}
	}
}

// None of them waits, and none fills the memory.
func TestWhatIsNoRegularFileIsRefused(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	pipe, socket := filepath.Join(dir, "pipe"), filepath.Join(dir, "socket")
	must(t, syscall.Mkfifo(pipe, 0o600))
	lis, err := net.Listen("unix", socket)
	must(t, err)
	t.Cleanup(func() { _ = lis.Close() })
	for path, want := range map[string]string{
		pipe: "it is a named pipe: name a regular file", dir: "it is a directory: name a regular file",
		"/dev/zero": "it is a device: name a regular file", socket: "it is a socket: name a regular file",
	} {
		if _, err := Read(path); err == nil || err.Error() != path+": "+want {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "none: no such file") {
		t.Errorf("a missing file: %v", err)
	}
}

func TestWhatIsTooLargeIsRefused(t *testing.T) {
	for _, tc := range []struct {
		read func(string) ([]byte, error)
		size int
		want string
	}{
		{Read, Max, ""}, {Read, Max + 1, "it is larger than the limit of 16384 KiB"},
		{ReadSecret, MaxSecret, ""}, {ReadSecret, MaxSecret + 1, "it is larger than the limit of 64 KiB"},
	} {
		path := filepath.Join(t.TempDir(), "file")
		must(t, os.WriteFile(path, bytes.Repeat([]byte{'x'}, tc.size), 0o600))
		b, err := tc.read(path)
		if tc.want == "" && (err != nil || len(b) != tc.size) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%d bytes: read %d, %v, want %q", tc.size, len(b), err, tc.want)
		}
	}
}

// A network file system that hangs is as one that needs longer than anybody waits.
func TestAFileSystemThatHangsIsNotWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, bytes.Repeat([]byte{'x'}, Max), 0o600))
	if _, err := within(path, time.Nanosecond, func() ([]byte, error) { return read(path, Max, nil) }); err == nil || !strings.Contains(err.Error(), "is it on a volume that hangs?") {
		t.Errorf("%v", err)
	}
}

func TestAFileForEverybodyIsNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(path, nil, 0o600))
	for mode, want := range map[fs.FileMode]bool{0o600: false, 0o640: false, 0o644: true} {
		must(t, os.Chmod(path, mode))
		if got := OthersMayRead(path); got != want {
			t.Errorf("%s: %v", mode, got)
		}
	}
	if OthersMayRead(path + "x") {
		t.Error("a missing file")
	}
}

func TestAReadThatHangsIsGivenUp(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		_, err := Within("key /k", func() ([]byte, error) { <-hang; return nil, nil })
		if err == nil || err.Error() != "key /k: not read within 5s: is it on a volume that hangs?" {
			t.Errorf("%v", err)
		}
	})
}

// A file system that hangs costs one thread for each path, however often and by how many it is read; when it answers, everything is as before.
func TestAPathThatHangsIsReadByOneAtATime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		answers, slow := make(chan struct{}), 0
		var reads atomic.Int64
		hangs := func() ([]byte, error) {
			reads.Add(1)
			<-answers
			return []byte("old"), nil
		}
		var readers sync.WaitGroup
		failed := make(chan error, 100)
		for range 10 {
			for range 10 {
				readers.Go(func() {
					_, err := within("/hangs", time.Second, hangs)
					failed <- err
				})
			}
			time.Sleep(2 * time.Second)
		}
		readers.Wait()
		close(failed)
		for err := range failed {
			if !errors.Is(err, ErrSlow) || !strings.Contains(err.Error(), "/hangs: not read within 1s") {
				t.Error(err)
			}
			slow++
		}
		if reads.Load() != 1 || slow != 100 {
			t.Errorf("%d reads hang for %d calls", reads.Load(), slow)
		}
		if b, err := within("/other", time.Second, func() ([]byte, error) { return []byte("x"), nil }); err != nil || string(b) != "x" {
			t.Errorf("another path: %q, %v", b, err)
		}
		close(answers)
		if b, err := within("/hangs", time.Second, func() ([]byte, error) { return []byte("new"), nil }); err != nil || string(b) != "new" {
			t.Errorf("when it answers: %q, %v", b, err)
		}
		time.Sleep(time.Second)
		paths.mu.Lock()
		defer paths.mu.Unlock()
		if paths.of["/hangs"] != nil || paths.of["/other"] != nil {
			t.Errorf("paths that nobody reads are remembered: %v", paths.of)
		}
	})
}
