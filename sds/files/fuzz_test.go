package files

import (
	"os"
	"strings"
	"testing"
)

// FuzzRead shows that no path, and no target of a symbolic link in an allowed
// directory, has anything read that lies outside. All files inside have the same
// content, which no other file has. "$" stands for the directory above. More
// seeds are in testdata/fuzz.
func FuzzRead(f *testing.F) {
	const inside = "the content of the files inside"
	tr := newTree(f)
	tr.write("out/secret", "the content of the file outside")
	tr.write("a/..2026_1/file", inside)
	tr.link("a/..data", "..2026_1")
	tr.link("a/file", "..data/file")
	tr.link("a/relative", "../out/secret")
	tr.link("a/absolute", "/out/secret")
	tr.link("a/dir", "../out")
	d := tr.allow("a")
	for _, name := range []string{"relative", "absolute", "dir/secret"} {
		if data, err := os.ReadFile(tr.at("a/" + name)); err != nil || string(data) == inside {
			f.Fatalf("%s does not lead outside: %v", name, err)
		}
	}
	if data, err := d.Read(tr.at("a/file")); err != nil || string(data) != inside {
		f.Fatalf("nothing can be read at all: %q, %v", data, err)
	}
	for _, seed := range []string{"", "file", "relative", "absolute", "dir/secret", "../out/secret", "$/out/secret", "/etc/passwd"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ReplaceAll(text, "$", tr.dir)
		paths := []string{text, tr.at("a/" + text), tr.at("a") + "/" + text, tr.at("a") + text}
		os.Remove(tr.at("a/fuzzed"))
		if os.Symlink(text, tr.at("a/fuzzed")) == nil {
			paths = append(paths, tr.at("a/fuzzed"), tr.at("a/fuzzed/secret"), tr.at("a/fuzzed/out/secret"))
		}
		for _, path := range paths {
			data, err := d.Read(path)
			switch {
			case err != nil && data != nil:
				t.Errorf("%q: an error and %d bytes: %v", path, len(data), err)
			case err == nil && string(data) != inside:
				t.Errorf("%q: a file outside was read: %.40q", path, data)
			case err == nil && !d.Contains(path):
				t.Errorf("%q was read, which by its name may not be", path)
			}
		}
	})
}
