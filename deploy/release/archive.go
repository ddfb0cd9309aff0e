package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// entry is a file, a link or a directory in an archive or a layer. Its owner is root unless the fields say otherwise.
type entry struct {
	name     string // without a leading slash
	mode     fs.FileMode
	data     []byte
	link     string // the target of a symbolic link; "" for a file
	dir      bool
	uid, gid int
}

// tarOf returns a tar archive of the entries in the order of their names, with all directories above them.
func tarOf(entries []entry, at time.Time) ([]byte, error) {
	all, err := withParents(entries)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range all {
		header := &tar.Header{
			Name: e.name, Mode: int64(e.mode.Perm()), Uid: e.uid, Gid: e.gid, ModTime: at, Size: int64(len(e.data)),
			Typeflag: tar.TypeReg, Format: tar.FormatPAX,
		}
		if e.mode&fs.ModeSticky != 0 {
			header.Mode |= 0o1000
		}
		switch {
		case e.dir:
			header.Typeflag, header.Name = tar.TypeDir, e.name+"/"
		case e.link != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.link, 0o777
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// withParents returns the entries sorted, with the directories that hold them. The same name twice is an error.
func withParents(entries []entry) ([]entry, error) {
	seen := make(map[string]bool)
	var all []entry
	for _, e := range entries {
		if e.name != path.Clean(e.name) || strings.HasPrefix(e.name, "/") || strings.HasPrefix(e.name, "..") {
			return nil, fmt.Errorf("%q is not the name of a file in an archive", e.name)
		}
		if seen[e.name] {
			return nil, fmt.Errorf("%s is there twice", e.name)
		}
		seen[e.name] = true
		all = append(all, e)
	}
	for _, e := range entries {
		for dir := path.Dir(e.name); dir != "."; dir = path.Dir(dir) {
			if !seen[dir] {
				seen[dir] = true
				all = append(all, entry{name: dir, dir: true, mode: directory})
			}
		}
	}
	slices.SortFunc(all, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// gzipOf compresses data; the header has neither a name nor a time.
func gzipOf(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.DefaultCompression) // the best takes three times as long for a hundredth less
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// tarGzip is tarOf and gzipOf.
func tarGzip(entries []entry, at time.Time) ([]byte, error) {
	archive, err := tarOf(entries, at)
	if err != nil {
		return nil, err
	}
	return gzipOf(archive)
}

// below returns the entries inside a directory.
func below(dir string, entries []entry) []entry {
	moved := slices.Clone(entries)
	for i := range moved {
		moved[i].name = path.Join(dir, moved[i].name)
	}
	return moved
}
