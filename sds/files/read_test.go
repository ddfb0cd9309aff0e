package files

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// tree is a temporary directory, given by its real path.
type tree struct {
	testing.TB
	dir string
}

func newTree(t testing.TB) *tree {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &tree{t, dir}
}

// at is the path of a name, with "/" between its parts.
func (tr *tree) at(name string) string { return filepath.Join(tr.dir, filepath.FromSlash(name)) }

func (tr *tree) check(err error) {
	tr.Helper()
	if err != nil {
		tr.Fatal(err)
	}
}

// write writes a file, and the directories above it.
func (tr *tree) write(name, content string) {
	tr.Helper()
	tr.check(os.MkdirAll(filepath.Dir(tr.at(name)), 0o755))
	tr.check(os.WriteFile(tr.at(name), []byte(content), 0o600))
}

// link makes a symbolic link; an absolute target is one below the tree.
func (tr *tree) link(name, target string) {
	tr.Helper()
	if strings.HasPrefix(target, "/") {
		target = tr.at(target)
	}
	tr.check(os.MkdirAll(filepath.Dir(tr.at(name)), 0o755))
	tr.check(os.Symlink(target, tr.at(name)))
}

func (tr *tree) rename(from, to string) { tr.Helper(); tr.check(os.Rename(tr.at(from), tr.at(to))) }
func (tr *tree) remove(name string)     { tr.Helper(); tr.check(os.RemoveAll(tr.at(name))) }

// allow allows directories of the tree.
func (tr *tree) allow(names ...string) *Dirs {
	tr.Helper()
	var paths []string
	for _, name := range names {
		paths = append(paths, tr.at(name))
	}
	return allow(tr, paths...)
}

// mustReturn fails if f does not return: it must not block.
func mustReturn(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("it blocks")
	}
}

func TestFileIsReadThroughLinksThatStayInside(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(*tree)
		dirs []string
		path string
	}{
		{"a plain file", func(tr *tree) { tr.write("a/f", "inside") }, []string{"a"}, "a/f"},
		{"a link", func(tr *tree) { tr.write("a/g", "inside"); tr.link("a/f", "g") }, []string{"a"}, "a/f"},
		{"a link to a link", func(tr *tree) {
			tr.write("a/h", "inside")
			tr.link("a/g", "h")
			tr.link("a/f", "g")
		}, []string{"a"}, "a/f"},
		{"more links than os.Root follows", func(tr *tree) {
			tr.write("a/0", "inside")
			for i := range 20 {
				tr.link("a/"+strings.Repeat("x", i+1), "./"+strings.Repeat("x", i))
			}
			tr.remove("a/x")
			tr.link("a/x", "0")
			tr.link("a/f", strings.Repeat("x", 20))
		}, []string{"a"}, "a/f"},
		{"a link of a directory", func(tr *tree) { tr.write("a/d/f", "inside"); tr.link("a/e", "d") }, []string{"a"}, "a/e/f"},
		{"an absolute link", func(tr *tree) { tr.write("a/d/g", "inside"); tr.link("a/f", "/a/d/g") }, []string{"a"}, "a/f"},
		{"a link that leaves and comes back", func(tr *tree) { tr.write("a/g", "inside"); tr.link("a/f", "../a/g") }, []string{"a"}, "a/f"},
		{"a link through a directory outside", func(tr *tree) {
			tr.write("a/g", "inside")
			tr.link("out/back", "/a")
			tr.link("a/f", "../out/back/g")
		}, []string{"a"}, "a/f"},
		{"an allowed directory that is a link", func(tr *tree) {
			tr.write("real/a/g", "inside")
			tr.link("a", "real/a")
			tr.link("real/a/f", "/a/g")
		}, []string{"a"}, "a/f"},
		{"a link above the allowed directory", func(tr *tree) { tr.write("real/a/f", "inside"); tr.link("up", "real") }, []string{"up/a"}, "up/a/f"},
		{"from one allowed directory into another", func(tr *tree) {
			tr.write("b/g", "inside")
			tr.link("a/f", "../b/g")
		}, []string{"a", "b"}, "a/f"},
		{"from one into another that is a link", func(tr *tree) {
			tr.write("real/g", "inside")
			tr.link("b", "real")
			tr.link("a/f", "/b/g")
		}, []string{"a", "b"}, "a/f"},
		{"beside a directory that does not exist", func(tr *tree) { tr.write("a/f", "inside") }, []string{"none", "a"}, "a/f"},
		{"a directory inside an allowed one", func(tr *tree) { tr.write("a/d/f", "inside") }, []string{"a/d", "a"}, "a/d/f"},
		{"of the largest size", func(tr *tree) {
			tr.write("a/f", "inside")
			tr.check(os.Truncate(tr.at("a/f"), MaxFile))
		}, []string{"a"}, "a/f"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTree(t)
			tc.make(tr)
			data, err := tr.allow(tc.dirs...).Read(tr.at(tc.path))
			if err != nil || strings.TrimRight(string(data), "\x00") != "inside" {
				t.Errorf("got %q, %v", data, err)
			}
		})
	}
}

func TestFileOutsideIsNotRead(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(*tree)
		path string
		says string // of the target
	}{
		{"an absolute link", func(tr *tree) { tr.link("a/f", "/out/secret") }, "a/f", "out/secret"},
		{"a link with two dots", func(tr *tree) { tr.link("a/f", "../out/secret") }, "a/f", "out/secret"},
		{"a link to a link outside", func(tr *tree) {
			tr.link("a/g", "../out/secret")
			tr.link("a/f", "g")
		}, "a/f", "out/secret"},
		{"a link of a directory", func(tr *tree) { tr.link("a/d", "../out") }, "a/d/secret", "out/secret"},
		{"a directory with the same beginning", func(tr *tree) {
			tr.write("a2/f", "secret")
			tr.link("a/f", "../a2/f")
		}, "a/f", "a2/f"},
		{"two dots are of the real directory", func(tr *tree) {
			tr.write("a/deep/g", "inside")
			tr.write("real/g", "secret")
			tr.link("real/deep/f", "../g")
			tr.link("a/d", "/real/deep")
		}, "a/d/f", "real/g"},
		{"the directory above", func(tr *tree) { tr.link("a/f", "..") }, "a/f", ""},
		{"a link back to the allowed directory", func(tr *tree) {
			tr.link("b/back", "/a")
			tr.write("a/f", "secret")
		}, "b/back/f", "-"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTree(t)
			tr.write("out/secret", "secret")
			tr.write("a/other", "inside")
			tc.make(tr)
			if _, err := os.Stat(tr.at(tc.path)); err != nil {
				t.Fatalf("there is nothing to refuse: %v", err)
			}
			data, err := tr.allow("a").Read(tr.at(tc.path))
			if data != nil || !errors.Is(err, ErrOutside) {
				t.Fatalf("got %q, %v, want ErrOutside", data, err)
			}
			if tc.says == "-" {
				return
			}
			want := "read " + tr.at(tc.path) + ": its link leads to " + tr.at(tc.says) + ": outside the allowed directories (" +
				tr.at("a") + "): to allow it, add " + filepath.Dir(tr.at(tc.says)) + " to them"
			if err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

func TestWhatIsNoReadableFileIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name string
		make func(*tree)
		path string
		says string
		gone bool
	}{
		{"missing", func(tr *tree) {}, "a/f", "no such file", true},
		{"missing directory", func(tr *tree) {}, "a/d/f", "no such file", true},
		{"dangling link", func(tr *tree) { tr.link("a/f", "gone") }, "a/f", "gone: no such file", true},
		{"below a file", func(tr *tree) { tr.write("a/g", "x") }, "a/g/f", "not a directory", false},
		{"links in a circle", func(tr *tree) { tr.link("a/f", "g"); tr.link("a/g", "f") }, "a/f", "too many links", false},
		{"a directory", func(tr *tree) { tr.write("a/d/f", "x") }, "a/d", "it is a directory", false},
		{"a link to the allowed directory", func(tr *tree) { tr.link("a/f", ".") }, "a/f", "it is a directory", false},
		{"a named pipe", func(tr *tree) { tr.check(syscall.Mkfifo(tr.at("a/f"), 0o600)) }, "a/f", "a named pipe", false},
		{"a link to a named pipe", func(tr *tree) {
			tr.check(syscall.Mkfifo(tr.at("a/g"), 0o600))
			tr.link("a/f", "g")
		}, "a/f", "a named pipe", false},
		{"a named pipe in place of an allowed directory", func(tr *tree) {
			tr.check(syscall.Mkfifo(tr.at("b"), 0o600))
			tr.link("a/f", "/b")
		}, "a/f", "a named pipe", false},
		{"larger than the limit", func(tr *tree) {
			tr.write("a/f", "")
			tr.check(os.Truncate(tr.at("a/f"), MaxFile+1))
		}, "a/f", "larger than the limit of 1048576 bytes", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTree(t)
			tr.write("a/other", "inside")
			tc.make(tr)
			mustReturn(t, func() {
				data, err := tr.allow("a", "b").Read(tr.at(tc.path))
				if err == nil || data != nil {
					t.Errorf("got %q, %v", data, err)
					return
				}
				if !strings.HasPrefix(err.Error(), "read "+tr.at(tc.path)+": ") || !strings.Contains(err.Error(), tc.says) {
					t.Errorf("error %q says not %q of %s", err, tc.says, tr.at(tc.path))
				}
				if strings.Count(err.Error(), tr.at(tc.path)) != 1 {
					t.Errorf("error %q repeats itself", err)
				}
				if errors.Is(err, fs.ErrNotExist) != tc.gone || errors.Is(err, ErrOutside) {
					t.Errorf("error %q is of the wrong kind", err)
				}
			})
		})
	}
}

func TestSocketIsRefused(t *testing.T) {
	tr := newTree(t)
	t.Chdir(tr.dir) // a socket's path may have 107 bytes only
	listener, err := net.Listen("unix", "s")
	tr.check(err)
	defer listener.Close()
	if _, err := tr.allow("").Read(tr.at("s")); err == nil || !strings.Contains(err.Error(), "it is a socket") {
		t.Errorf("got %v", err)
	}
}

func TestDeviceIsRefused(t *testing.T) {
	if _, err := allow(t, "/dev").Read("/dev/zero"); err == nil || !strings.Contains(err.Error(), "it is a device") {
		t.Errorf("got %v", err)
	}
}

func TestUnreadableFileIsAnErrorThatSaysWhoMustRead(t *testing.T) {
	for _, tc := range []struct{ name, denied string }{{"the file", "a/f"}, {"its directory", "a"}} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTree(t)
			tr.write("a/f", "inside")
			tr.check(os.Chmod(tr.at(tc.denied), 0))
			t.Cleanup(func() { tr.check(os.Chmod(tr.at(tc.denied), 0o700)) }) // to be removed
			data, err := tr.allow("a").Read(tr.at("a/f"))
			if os.Geteuid() == 0 { // root ignores the mode, unless it lacks the capability
				if err == nil && string(data) != "inside" {
					t.Errorf("got %q", data)
				}
				return
			}
			if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "read "+tr.at("a/f")+": permission denied: give uid ") {
				t.Errorf("got %q, %v", data, err)
			}
		})
	}
}

func TestExchangeAfterTheCheckLeadsNowhere(t *testing.T) {
	for _, tc := range []struct {
		name     string
		exchange func(*tree)
	}{
		{"the file became an absolute link", func(tr *tree) { tr.remove("a/d/f"); tr.link("a/d/f", "/out/f") }},
		{"the file became a relative link", func(tr *tree) { tr.remove("a/d/f"); tr.link("a/d/f", "../../out/f") }},
		{"its directory became a link", func(tr *tree) { tr.remove("a/d"); tr.link("a/d", "/out") }},
		{"its directory became a relative link", func(tr *tree) { tr.remove("a/d"); tr.link("a/d", "../out") }},
		{"the file became a pipe", func(tr *tree) { tr.remove("a/d/f"); tr.check(syscall.Mkfifo(tr.at("a/d/f"), 0o600)) }},
		{"the file became a directory", func(tr *tree) { tr.remove("a/d/f"); tr.write("a/d/f/g", "secret") }},
		{"the file grew", func(tr *tree) { tr.check(os.Truncate(tr.at("a/d/f"), MaxFile+1)) }},
		{"the file was deleted", func(tr *tree) { tr.remove("a/d/f") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTree(t)
			tr.write("out/f", "secret")
			tr.write("a/d/f", "inside")
			dir, name, err := tr.allow("a").locate(tr.at("a/d/f"))
			tr.check(err)
			tc.exchange(tr)
			mustReturn(t, func() {
				f, err := openIn(dir, name)
				if err != nil {
					return
				}
				defer f.Close()
				if data, err := readAll(f, false); err == nil || data != nil {
					t.Errorf("got %q, %v", data, err)
				}
			})
		})
	}
}

func TestFilesOfOthersAreRefusedWhereThatIsAskedFor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to somebody else")
	}
	tr := newTree(t)
	tr.write("a/own", "own")
	tr.write("a/other", "other")
	tr.check(os.Chown(tr.at("a/other"), 54321, -1))
	dirs := tr.allow("a").Owned()
	if b, err := dirs.Read(tr.at("a/own")); err != nil || string(b) != "own" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := dirs.Read(tr.at("a/other")); err == nil || !strings.Contains(err.Error(), "it belongs to uid 54321, and holdfast runs as uid 0: remove it") {
		t.Errorf("%v", err)
	}
}

// A read that hangs blocks a thread: there is at most one for each file.
func TestAReadThatHangsIsGivenUpAndNotRepeated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d, hang := allow(t, "/certs"), make(chan struct{})
		begun := 0
		read := func() ([]byte, error) { begun++; <-hang; return []byte("x"), nil }
		for _, want := range []string{"read /certs/a: not read within 5s: ", "read /certs/a: an earlier read has not ended: "} {
			if _, err := d.readUnlessHung("/certs/a", read); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		close(hang)
		synctest.Wait()
		if b, err := d.readUnlessHung("/certs/a", read); err != nil || string(b) != "x" || begun != 2 {
			t.Errorf("when it has ended: %q, %v, %d reads", b, err, begun)
		}
	})
}
