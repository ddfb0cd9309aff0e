package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestThePinnedPackagesOfDebian(t *testing.T) {
	pins, err := parsePins(debianPins)
	if err != nil {
		t.Fatal(err)
	}
	archs := make(map[string]bool)
	for _, p := range pins {
		archs[p.arch] = true
		if p.upstream() == "" {
			t.Errorf("%s has no revision of Debian", p)
		}
	}
	if !archs["amd64"] || !archs["arm64"] {
		t.Errorf("pinned: %v", pins)
	}
	if _, err := parsePins("libc6 1 amd64 abc LGPL-2.1-or-later"); err == nil {
		t.Error("a pin with half a hash was accepted")
	}
}

// apt puts a program of this name first in PATH, which has packages as Debian's archive does.
func apt(t *testing.T, packages ...string) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\nfor last; do :; done\n[ \"$last\" != update ] || exit 0\ncase $last in\n"
	for _, p := range packages {
		name, version, _ := strings.Cut(p, "=")
		script += fmt.Sprintf("%s|%s) printf %s >%s_%s_amd64.deb ;;\n", name, p, version, name, version)
	}
	if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(script+"*) echo \"E: Version for '$last' was not found\" >&2; exit 100 ;;\nesac\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func sha256Of(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Debian's archive has the newest version only; the one that is pinned comes from the snapshots then, and with -newer-debian
// another one if they cannot be reached either.
func TestAPinnedPackageIsFoundAfterAnUpdateOfDebian(t *testing.T) {
	const sha1 = "0123456789012345678901234567890123456789"
	pinned := pin{"libc6", "2.36-9+deb12u1", "amd64", sha256Of("2.36-9+deb12u1"), "LGPL-2.1-or-later"}
	newer := pinned
	newer.version, newer.sha256 = "2.36-9+deb12u2", sha256Of("2.36-9+deb12u2")
	snapshots := http.NewServeMux()
	answer := func(path, text string) {
		snapshots.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
	}
	answer("/good/mr/binary/libc6/2.36-9+deb12u1/binfiles", `{"result":[{"hash":"ff","architecture":"amd64"},{"hash":"0000000000000000000000000000000000000000","architecture":"arm64"},{"hash":"`+sha1+`","architecture":"amd64"}]}`)
	answer("/good/file/"+sha1, pinned.version)
	answer("/changed/mr/binary/libc6/2.36-9+deb12u1/binfiles", `{"result":[{"hash":"`+sha1+`","architecture":"amd64"}]}`)
	answer("/changed/file/"+sha1, "something else")
	server := httptest.NewServer(snapshots)
	defer server.Close()
	for name, tc := range map[string]struct {
		archive   string
		snapshots string
		newer     bool
		want      pin
		err       string
	}{
		"the archive has it":          {"libc6=2.36-9+deb12u1", "/none", false, pinned, ""},
		"the snapshots have it":       {"libc6=2.36-9+deb12u2", "/good", false, pinned, ""},
		"before a newer one":          {"libc6=2.36-9+deb12u2", "/good", true, pinned, ""},
		"nobody has it":               {"libc6=2.36-9+deb12u2", "/none", false, pin{}, "make debian-pins"},
		"a newer one is allowed":      {"libc6=2.36-9+deb12u2", "/none", true, newer, ""},
		"another release of Debian":   {"libc6=2.41-12", "/none", true, pin{}, "it is not that of Debian 12"},
		"the archive has nothing":     {"libc6-dev=2.36-9", "/none", true, pin{}, "was not found"},
		"the snapshots were tampered": {"libc6=2.36-9+deb12u2", "/changed", true, pin{}, "remove the file"},
	} {
		t.Run(name, func(t *testing.T) {
			apt(t, tc.archive)
			var said bytes.Buffer
			d := debian{dir: t.TempDir(), snapshots: server.URL + tc.snapshots, newer: tc.newer, say: func(format string, args ...any) { fmt.Fprintf(&said, format, args...) }}
			got, err := d.fetch(pinned)
			if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("%s, %v; want %s, %q", got, err, tc.want, tc.err)
			}
			if err != nil {
				return
			}
			if data, err := os.ReadFile(filepath.Join(d.dir, got.file())); err != nil || sha256Of(string(data)) != got.sha256 {
				t.Errorf("the file is %q, %v", data, err)
			}
			if left, err := os.ReadDir(d.dir); err != nil || len(left) != 1 {
				t.Errorf("left behind: %v, %v", left, err)
			}
			if (said.Len() > 0) != (got != pinned) {
				t.Errorf("said %q", said.String())
			}
		})
	}
}

func TestPinsAreRenewedInTheirPlace(t *testing.T) {
	sum := func(c string) string { return strings.Repeat(c, 64) }
	text := "# a comment\nlibc6 1-1 arm64 " + sum("a") + " LGPL\n\n  libc6   1-1 amd64 " + sum("b") + " LGPL\n"
	file := filepath.Join(t.TempDir(), "debian.txt")
	latest := func(p pin) (pin, error) {
		if p.arch == "amd64" {
			p.version, p.sha256 = "1-2", sum("c")
		}
		return p, nil
	}
	var out bytes.Buffer
	if err := repin(file, text, latest, &out); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if want := "# a comment\nlibc6 1-1 arm64 " + sum("a") + " LGPL\n\nlibc6 1-2 amd64 " + sum("c") + " LGPL\n"; string(got) != want || err != nil {
		t.Errorf("%q, %v\nwant %q", got, err, want)
	}
	if want := "libc6 1-1 for arm64 is the newest\nlibc6 1-1 for amd64 becomes 1-2\n"; out.String() != want {
		t.Errorf("it says %q", out.String())
	}
	broken := errors.New("no network")
	if err := repin(file, text, func(pin) (pin, error) { return pin{}, broken }, &out); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}
