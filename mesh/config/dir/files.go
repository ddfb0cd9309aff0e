package dir

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// file is a file of the directory.
type file struct {
	// hash is that of the content that was loaded last; known is false if none was.
	hash  uint64
	known bool
	// documents are the valid documents in the order of the file, and the last valid content of those
	// that are not valid now.
	documents []*config.Config
	// parsed is set once the file could be parsed. invalid are the documents in it that are not valid and
	// had no valid content in this file.
	parsed  bool
	invalid []config.Key
	// unnamed is set if a document has no name or kind and no document of the file, known before, may be it.
	unnamed bool
	gone    bool // it is kept although it is not there, see files.keep
	// absent is set if it is gone, or its directory is empty: what it had yields to what is in a file
	// that is there.
	absent bool
	// problems are those of the documents, and unreadable is why the file could not be read.
	problems   []config.Problem
	unreadable *config.Problem
}

// files are the files of a directory by name.
type files map[string]*file

// load returns the files after a scan. A file that is gone is kept if it is of a directory that was away. The receiver does
// not change.
func (f files) load(p pass, were away) files {
	next := make(files, len(p))
	for _, o := range p {
		loaded := &file{}
		if previous := f[o.name]; previous != nil {
			*loaded = *previous
		}
		loaded.read(o)
		next[o.name] = loaded
	}
	next.keep(f, were)
	return next
}

// waits returns the problems for which a start waits: of documents that are not valid, or cannot be read, and have no last
// valid content.
func (f files) waits() (problems []config.Problem) {
	valid, _ := f.documents()
	for _, name := range f.names() {
		of := f[name]
		if of.absent {
			continue // what it had is there
		}
		if !of.parsed {
			problems = append(problems, of.problems...)
			if of.unreadable != nil {
				problems = append(problems, *of.unreadable)
			}
			continue
		}
		lacking := func(key config.Key) bool { return slices.Contains(of.invalid, key) && valid[key] == nil }
		for _, p := range of.problems {
			if p.Severity == config.SeverityError && (lacking(p.Key) || of.unnamed && p.Key.Name == "") {
				problems = append(problems, p)
			}
		}
	}
	return problems
}

// keep keeps documents that moved between files and are not valid, or cannot be parsed, where they are now.
func (f files) keep(before files, were away) {
	valid := make(map[config.Key]bool)
	unparsed, newUnparsed := false, false
	for name, of := range f {
		unparsed = unparsed || !of.parsed
		newUnparsed = newUnparsed || !of.parsed && before[name] == nil
		for _, c := range of.documents {
			valid[c.Meta.Key] = true
		}
	}
	last, _ := before.documents()
	for _, name := range f.names() {
		for _, key := range f[name].invalid {
			if c := last[key]; c != nil && !valid[key] {
				f[name].documents = append(slices.Clone(f[name].documents), c)
				valid[key] = true
			}
		}
	}
	for name, of := range before {
		isFile := !strings.HasSuffix(name, "/")
		if f[name] != nil || !isFile {
			continue
		}
		gone := *of
		gone.gone, gone.absent = true, true
		switch {
		case newUnparsed || of.gone && unparsed: // perhaps it is the new file that cannot be parsed
			gone.unreadable = &config.Problem{File: name, Message: "it is gone; its documents stay in use until all new files can be parsed"}
		case were.has(name):
			gone.unreadable = &config.Problem{File: name, Message: fmt.Sprintf("it is gone; its documents stay in use until no file has come or gone for %s, since its directory was away or empty", settleAfter)}
		default:
			continue
		}
		f[name] = &gone
	}
}

// rank orders files that are there before those that are absent.
func (f *file) rank() int {
	if f.absent {
		return 1
	}
	return 0
}

// loaded returns the hash of the content of a file that was loaded last.
func (f files) loaded(name string) (hash uint64, ok bool) {
	if of := f[name]; of != nil && of.unreadable == nil && of.known {
		return of.hash, true
	}
	return 0, false
}

// read takes in a file as a scan found it.
func (f *file) read(o observed) {
	f.unreadable, f.gone, f.absent = nil, false, o.err == errEmptied
	switch {
	case o.err != nil:
		f.unreadable = &config.Problem{File: o.name, Message: o.err.Error()}
		f.parsed = f.parsed || o.err == errCircle
	case o.data != nil:
		f.parse(o.name, o.data)
		f.hash, f.known = o.hash, true
	}
}

// parse replaces the documents. One that is not valid keeps its last valid content; a file that
// cannot be parsed keeps all documents. If it is not known which document one is, because its name or
// kind is missing, no document is taken for deleted.
func (f *file) parse(name string, data []byte) {
	documents, broken := config.Read(name, data)
	if broken != nil {
		f.problems = []config.Problem{*broken}
		return
	}
	if len(documents) == 0 && len(f.documents) == 0 && isBlank(data) {
		// A full disk and a shell's ">" leave such a file.
		f.problems = []config.Problem{{File: name, Message: "it is empty: delete it, or write a comment into it if it is to have no documents"}}
		return
	}
	f.parsed, f.invalid, f.unnamed = true, nil, false
	if len(documents) == 0 && len(f.documents) > 0 {
		f.problems = []config.Problem{{File: name, Message: "it has no documents any more; those that it had stay in use: delete the file to delete them"}}
		return
	}
	before := make(map[config.Key]*config.Config)
	for _, c := range f.documents {
		before[c.Meta.Key] = c
	}
	f.documents, f.problems = nil, nil
	first := make(map[config.Key]*config.Config)
	unknown := false
	for _, d := range documents {
		f.problems = append(f.problems, d.Problems...)
		c := d.Config
		if c == nil {
			invalid := config.Invalid(d.Problems)
			unknown = unknown || invalid && d.Key.Name == ""
			if c = before[d.Key]; c == nil && invalid {
				f.invalid = append(f.invalid, d.Key)
			}
			if c == nil || !invalid {
				continue
			}
		} else {
			c.ResourceVersion = config.ContentVersion(c)
		}
		if other := first[d.Key]; other != nil {
			f.problems = append(f.problems, duplicate(name, c, other))
			continue
		}
		first[d.Key] = c
		f.documents = append(f.documents, c)
	}
	if !unknown {
		return
	}
	f.unnamed = len(before) == 0
	for _, key := range slices.SortedFunc(maps.Keys(before), config.CompareKeys) {
		if first[key] == nil {
			f.documents = append(f.documents, before[key])
		}
	}
}

// isBlank reports whether a file has nothing but white space and marks of documents.
func isBlank(data []byte) bool {
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && string(line) != "---" {
			return false
		}
	}
	return true
}

// duplicate is the problem of a document that has the key of another.
func duplicate(name string, c, used *config.Config) config.Problem {
	var line int
	// An Origin that is not of this form leaves the line 0.
	_, _ = fmt.Sscanf(c.Origin[min(len(name), len(c.Origin)):], ":%d", &line)
	return config.Problem{File: name, Line: line, Key: c.Meta.Key,
		Message: fmt.Sprintf("it is in %s too: that document is used, and this is not", used.Origin)}
}

// names returns the names of the files in order.
func (f files) names() []string { return slices.Sorted(maps.Keys(f)) }

// documents returns the documents of all files by key, and the problems. Of two documents with one
// key, that in the first file is used, of those that are there.
func (f files) documents() (map[config.Key]*config.Config, []config.Problem) {
	documents := make(map[config.Key]*config.Config)
	var problems []config.Problem
	names := f.names()
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(f[a].rank(), f[b].rank()) })
	for _, name := range names {
		of := f[name]
		if of.unreadable != nil {
			problems = append(problems, *of.unreadable)
		}
		problems = append(problems, of.problems...)
		for _, c := range of.documents {
			used := documents[c.Meta.Key]
			if used != nil && of.absent {
				continue
			}
			if used != nil {
				problems = append(problems, duplicate(name, c, used))
				continue
			}
			documents[c.Meta.Key] = c
		}
	}
	config.SortProblems(problems)
	return documents, problems
}
