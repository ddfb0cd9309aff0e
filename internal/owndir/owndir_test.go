package owndir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// stranger is a user and a group that no test runs as.
const stranger = 54321

// kind describes a directory of a test.
type kind struct {
	mode     fs.FileMode
	stranger bool // belongs to another user, which only root can arrange
}

func (k kind) make(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	uid, gid := -1, -1
	if k.stranger {
		if os.Geteuid() != 0 {
			t.Skip("only root can give a directory to somebody else")
		}
		uid = stranger
	}
	if err := errors.Join(os.Chown(dir, uid, gid), os.Chmod(dir, k.mode)); err != nil {
		t.Fatal(err)
	}
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode() & (fs.ModePerm | fs.ModeSticky | fs.ModeSetgid)
}

func TestADirectoryIsTakenOnlyIfItIsOnesOwn(t *testing.T) {
	const sticky = fs.ModeSticky
	ofRoot := "sub"
	if os.Geteuid() != 0 {
		ofRoot = "others may write to " // and so could replace the one below
	}
	for _, tc := range []struct {
		name        string
		above, here kind
		use         Use
		want        string // "": the directory; "sub": the one below; else part of the error
	}{
		{"own", kind{0o755, false}, kind{0o700, false}, Use{Sub: "sub"}, ""},
		{"own, readable", kind{0o755, false}, kind{0o755, false}, Use{Sub: "sub"}, ""},
		{"own, its group may write", kind{0o755, false}, kind{0o770, false}, Use{Sub: "sub"}, "others may write to "},
		{"own, its group may write, as in a volume", kind{0o755, false}, kind{0o770, false}, Use{Sub: "sub", GroupWrites: true}, ""},
		{"own, everybody may write", kind{0o755, false}, kind{0o777, false}, Use{}, "others may write to "},
		{"sticky, for everybody", kind{0o755, false}, kind{0o777 | sticky, false}, Use{}, "others may write to "},
		{"sticky, for everybody, with one below", kind{0o755, false}, kind{0o777 | sticky, false}, Use{Sub: "sub"}, "sub"},
		{"another's", kind{0o755, false}, kind{0o755, true}, Use{Sub: "sub"}, "belongs to uid 54321"},
		{"another's, for everybody", kind{0o755, false}, kind{0o777, true}, Use{Sub: "sub"}, "belongs to uid 54321, who could replace "},
		{"below another's", kind{0o755, true}, kind{0o700, false}, Use{Sub: "sub"}, "belongs to uid 54321, who could replace "},
		{"below one for everybody", kind{0o777, false}, kind{0o700, false}, Use{}, "others may write to "},
		{"root's, for everybody", kind{0o755, false}, kind{0o777, false}, Use{Sub: "sub"}, ofRoot},
		{"below one for a group", kind{0o775, false}, kind{0o700, false}, Use{}, "others may write to "},
		{"below a sticky one", kind{0o777 | sticky, false}, kind{0o700, false}, Use{}, ""},
		{"another's below a sticky one", kind{0o777 | sticky, false}, kind{0o700, true}, Use{}, "belongs to uid 54321"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			above := filepath.Join(t.TempDir(), "above")
			dir := filepath.Join(above, "dir")
			tc.above.make(t, above)
			if tc.above.mode != 0o755 {
				must(t, os.Chmod(above, 0o755))
			}
			tc.here.make(t, dir)
			must(t, os.Chmod(above, tc.above.mode))
			tc.use.Name, tc.use.Group = "state directory", -1
			d, err := Open(dir, tc.use)
			if m := mode(t, dir); m != tc.here.mode {
				t.Errorf("its mode is %s now, it was %s", m, tc.here.mode)
			}
			if tc.want != "" && tc.want != "sub" {
				if !errors.Is(err, ErrUnsafe) || !strings.HasPrefix(err.Error(), "state directory: ") || strings.Count(err.Error(), dir) > 2 || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%v, want %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = d.Root.Close() }()
			want := filepath.Join(dir, tc.want)
			if d.Path != want {
				t.Errorf("%s, want %s", d.Path, want)
			}
			if tc.want == "sub" && mode(t, want) != 0o700 {
				t.Errorf("%s has mode %s", want, mode(t, want))
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Another user who was faster, in a directory for everybody, gains nothing.
func TestADirectoryBelowThatIsAnothersIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "shared")
	kind{0o777 | fs.ModeSticky, false}.make(t, dir)
	kind{0o700, true}.make(t, filepath.Join(dir, "sub"))
	if _, err := Open(dir, Use{Name: "state directory", Sub: "sub", Group: -1}); !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "sub belongs to uid 54321") {
		t.Errorf("%v", err)
	}
}

func TestAMissingDirectoryIsMadeAsItShallBe(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	for _, tc := range []struct {
		use  Use
		want fs.FileMode
	}{
		{Use{Group: -1}, 0o700}, {Use{Mode: 0o750, Group: os.Getegid()}, 0o750}, {Use{Mode: 0o711, Group: -1}, 0o711},
	} {
		dir := filepath.Join(t.TempDir(), "some", "where")
		d, err := Open(dir, tc.use)
		must(t, err)
		_ = d.Root.Close()
		for _, made := range []string{dir, filepath.Dir(dir)} {
			if m := mode(t, made); m != tc.want {
				t.Errorf("%s has mode %s, want %s", made, m, tc.want)
			}
		}
	}
}

func TestNothingIsMadeForWhoOnlyReads(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	_, err := Open(dir, Use{Name: "state directory", Group: -1, Existing: true})
	if err == nil || err.Error() != "state directory "+dir+": does not exist" {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error("it was made")
	}
}

func TestNothingIsMadeWhereItWouldBeRefused(t *testing.T) {
	for name, above := range map[string]kind{"for everybody": {0o777, false}, "another's": {0o755, true}, "another's, for everybody": {0o777, true}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "above")
			above.make(t, dir)
			for _, use := range []Use{{Group: -1}, {Group: -1, Sub: "sub"}} {
				if above == (kind{0o777, false}) && use.Sub != "" {
					continue // where it is root's it is taken
				}
				if _, err := Open(filepath.Join(dir, "below", "deeper"), use); !errors.Is(err, ErrUnsafe) {
					t.Errorf("%+v: %v", use, err)
				}
				if _, err := Open(dir, use); !errors.Is(err, ErrUnsafe) {
					t.Errorf("%+v: %v", use, err)
				}
			}
			if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
				t.Errorf("made: %v, %v", entries, err)
			}
		})
	}
}

func TestWhatIsNoDirectoryIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(file, "dir")} {
		if _, err := Open(path, Use{Name: "state directory", Group: -1}); err == nil || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The target of a link is checked, and also who may replace the link.
func TestTheWayThroughLinksIsLookedAt(t *testing.T) {
	base := t.TempDir()
	own, open := filepath.Join(base, "own"), filepath.Join(base, "open")
	kind{0o700, false}.make(t, own)
	kind{0o777, false}.make(t, open)
	must(t, os.Symlink(own, filepath.Join(base, "good")))
	must(t, os.Symlink(own, filepath.Join(open, "bad")))
	must(t, os.Symlink("loop", filepath.Join(base, "loop")))
	d, err := Open(filepath.Join(base, "good"), Use{Name: "directory", Group: -1})
	must(t, err)
	_ = d.Root.Close()
	if _, err := Open(filepath.Join(open, "bad"), Use{Name: "directory", Group: -1}); !errors.Is(err, ErrUnsafe) {
		t.Errorf("%v", err)
	}
	if _, err := Open(filepath.Join(base, "loop"), Use{Name: "directory", Group: -1}); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("%v", err)
	}
}

// A user who replaces the directory later does not get the files.
func TestWhatIsOpenStaysTheSameDirectory(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "dir")
	d, err := Open(dir, Use{Name: "directory", Group: -1})
	must(t, err)
	defer func() { _ = d.Root.Close() }()
	must(t, os.Rename(dir, filepath.Join(base, "moved")))
	must(t, os.Mkdir(dir, 0o700))
	must(t, d.Root.WriteFile("x", nil, 0o600))
	if _, err := os.Lstat(filepath.Join(base, "moved", "x")); err != nil {
		t.Error(err)
	}
}

// Another user may be faster in a directory for everybody, with a link to a directory of
// the agent's or of root's: nothing is put there.
func TestWhatAnotherPlantedInADirectoryForEverybodyIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may use a directory of its own that is for everybody")
	}
	link := func(uid int) func(t *testing.T, entry, other string) {
		return func(t *testing.T, entry, other string) {
			must(t, os.Symlink(other, entry))
			must(t, os.Lchown(entry, uid, -1))
		}
	}
	for _, tc := range []struct {
		name  string
		plant func(t *testing.T, entry, other string)
		want  string
	}{
		{"a link of another's", link(stranger), "symbolic link"},
		{"a link of one's own", link(0), "symbolic link"},
		{"a directory of another's", func(t *testing.T, entry, _ string) { kind{0o700, true}.make(t, entry) }, "belongs to uid 54321"},
		{"a file", func(t *testing.T, entry, _ string) { must(t, os.WriteFile(entry, nil, 0o600)) }, ""},
		{"one that others may look into", func(t *testing.T, entry, _ string) { kind{0o755, false}.make(t, entry) }, "chmod 0700"},
	} {
		for _, mode := range []fs.FileMode{0o777, 0o777 | fs.ModeSticky} {
			for _, named := range []string{"", "sub", "sub/deeper"} {
				if named != "" && (mode != 0o777 || tc.want != "symbolic link") {
					continue // these are looked at as every directory is
				}
				t.Run(tc.name+" "+mode.String()+" "+named, func(t *testing.T) {
					base := t.TempDir()
					shared, other := filepath.Join(base, "shared"), filepath.Join(base, "other")
					kind{mode, false}.make(t, shared)
					kind{0o700, false}.make(t, other)
					tc.plant(t, filepath.Join(shared, "sub"), other)
					_, err := Open(filepath.Join(shared, named), Use{Name: "state directory", Sub: "sub", GroupWrites: true, Group: -1})
					if !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), filepath.Join(shared, "sub")) || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
						t.Errorf("%v, want %q", err, tc.want)
					}
					if entries, err := os.ReadDir(other); err != nil || len(entries) > 0 {
						t.Errorf("the other directory has %v, %v", entries, err)
					}
				})
			}
		}
	}
}

func TestADirectoryBelowIsMadeInTheOneThatIsOpen(t *testing.T) {
	base := t.TempDir()
	d, err := Open(filepath.Join(base, "dir"), Use{Name: "directory", Group: -1})
	must(t, err)
	defer func() { _ = d.Root.Close() }()
	below, err := d.Below("below")
	must(t, err)
	_ = below.Root.Close()
	if m := mode(t, below.Path); below.Path != filepath.Join(base, "dir", "below") || m != 0o700 {
		t.Errorf("%s has mode %s", below.Path, m)
	}
	must(t, os.Symlink(base, filepath.Join(base, "dir", "link")))
	if _, err := d.Below("link"); !errors.Is(err, ErrUnsafe) {
		t.Errorf("a link: %v", err)
	}
}
