package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"testing"
	"time"
)

var someTime = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func TestAnArchiveIsSortedAndHasItsDirectories(t *testing.T) {
	archive, err := tarGzip([]entry{
		{name: "b/c", mode: executable, data: []byte("x"), uid: 5, gid: 6},
		{name: "a", mode: regular, data: []byte("y")},
		{name: "b/link", link: "c"},
	}, someTime)
	if err != nil {
		t.Fatal(err)
	}
	zipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil || zipped.Name != "" || !zipped.ModTime.IsZero() {
		t.Fatalf("the header of gzip is %+v, %v", zipped, err)
	}
	var names string
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names += h.Name + " "
		if !h.ModTime.Equal(someTime) || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s: %+v", h.Name, h)
		}
		if h.Name == "b/c" && (h.Uid != 5 || h.Gid != 6 || h.Mode != 0o755) {
			t.Errorf("b/c is %+v", h)
		}
	}
	if names != "a b/ b/c b/link " {
		t.Errorf("names: %s", names)
	}
}

func TestTheOrderOfEntriesDoesNotMatter(t *testing.T) {
	one := []entry{{name: "a", data: []byte("1")}, {name: "d/b", data: []byte("2")}}
	a, err := tarGzip(one, someTime)
	if err != nil {
		t.Fatal(err)
	}
	b, err := tarGzip([]entry{one[1], one[0]}, someTime)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("the archives differ")
	}
}

func TestNamesThatWouldLeaveTheFolderAreRejected(t *testing.T) {
	for _, name := range []string{"/a", "../a", "a/../../b", "a//b", ""} {
		if _, err := tarOf([]entry{{name: name}}, someTime); err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
	if _, err := tarOf([]entry{{name: "a"}, {name: "a"}}, someTime); err == nil {
		t.Error("the same name twice was accepted")
	}
	if err := put(t.TempDir(), "../a", nil, regular); err == nil {
		t.Error("put left the folder")
	}
}
