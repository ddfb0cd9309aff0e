package files

import (
	"errors"
	"strings"
	"testing"
)

func TestDirectoriesMustBeAbsoluteAndClean(t *testing.T) {
	for _, tc := range []struct{ name, path, says string }{
		{"empty", "", "empty"},
		{"relative", "certs/tls", "relative"},
		{"the working directory", ".", "relative"},
		{"with a dot", "/certs/./tls", `want "/certs/tls"`},
		{"with two dots", "/certs/../etc", `want "/etc"`},
		{"ending in a slash", "/certs/", `want "/certs"`},
		{"with two slashes", "/certs//tls", `want "/certs/tls"`},
		{"with a NUL byte", "/certs\x00", "NUL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := NewDirs("/fine", tc.path)
			if err == nil || d != nil {
				t.Fatalf("got %v, %v, want an error only", d, err)
			}
			quoted := strings.Trim(tc.path, "\x00")
			if !strings.Contains(err.Error(), quoted) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %q names not both %q and %q", err, quoted, tc.says)
			}
		})
	}
}

func TestReadableFilesAreReportedByName(t *testing.T) {
	for _, tc := range []struct {
		name, dirs, path string
		want             bool
	}{
		{"a file", "/certs", "/certs/tls.crt", true},
		{"a file further down", "/certs", "/certs/..data/tls.crt", true},
		{"a name that begins with two dots", "/certs", "/certs/..data", true},
		{"the second directory", "/certs /run/ca", "/run/ca/ca.crt", true},
		{"one directory in another", "/run /run/ca", "/run/ca", true},
		{"all there is", "/", "/certs/tls.crt", true},
		{"the directory itself", "/certs", "/certs", false},
		{"all there is, itself", "/", "/", false},
		{"above", "/certs", "/", false},
		{"beside", "/certs", "/etc/shadow", false},
		{"beside, with the same beginning", "/certs", "/certs2/tls.crt", false},
		{"no directory", "", "/certs/tls.crt", false},
		{"leaving it", "/certs", "/certs/../etc/shadow", false},
		{"not clean though inside", "/certs", "/certs//tls.crt", false},
		{"relative", "/", "certs/tls.crt", false},
		{"empty", "/", "", false},
		{"with a NUL byte", "/certs", "/certs/a\x00", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := allow(t, strings.Fields(tc.dirs)...)
			if got := d.Contains(tc.path); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if data, err := d.Read(tc.path); !tc.want && (err == nil || data != nil) {
				t.Errorf("it was read all the same: %q, %v", data, err)
			}
		})
	}
}

func TestPathOutsideIsRefusedByItsNameAndTheErrorHelps(t *testing.T) {
	_, err := allow(t, "/certs", "/run/ca").Read("/nowhere/tls.crt")
	want := "read /nowhere/tls.crt: outside the allowed directories (/certs, /run/ca): to allow it, add /nowhere to them"
	if !errors.Is(err, ErrOutside) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = allow(t).Read("/nowhere/tls.crt")
	want = "read /nowhere/tls.crt: outside the allowed directories (there are none): to allow it, add /nowhere to them"
	if !errors.Is(err, ErrOutside) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestDirectoriesAreThoseOfTheCall(t *testing.T) {
	paths := []string{"/certs"}
	d := allow(t, paths...)
	paths[0] = "/etc"
	if d.Contains("/etc/shadow") || !d.Contains("/certs/tls.crt") {
		t.Error("the caller's slice is still in use")
	}
}

func allow(t testing.TB, paths ...string) *Dirs {
	t.Helper()
	d, err := NewDirs(paths...)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
