package dir

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/analysis"
)

// Validate reads files and directories as New would, and returns everything that is wrong in them,
// by file and line: what a document has by itself, two documents with one name, and references to what
// is in none of the documents (package analysis). What cannot be read is a problem too.
func Validate(paths ...string) []config.Problem { return Input{Paths: paths}.Validate() }

// StandardInput is the name of Input.Stdin in problems and origins.
const StandardInput = "standard input"

// Input is what documents are read from.
type Input struct {
	Paths []string // files and directories
	Stdin []byte   // the text of one more file, read after the others; nil for none
}

// Validate is the function Validate for an Input.
func (in Input) Validate() []config.Problem {
	v := read(in)
	for _, p := range analysis.Of(v.index, config.DefaultDomain).Problems {
		at := v.documents[p.Key]
		p.File, p.Line = v.files[p.Key], at.Line(p.Field)
		v.problems = append(v.problems, p)
	}
	config.SortProblems(v.problems)
	return v.problems
}

// Documents reads the input as New would, and returns the valid documents in the order of Schemas, by namespace
// and name, and what is wrong in each document by itself and with the files.
func (in Input) Documents() ([]*config.Config, []config.Problem) {
	v := read(in)
	config.SortProblems(v.problems)
	return v.index.All(), v.problems
}

func read(in Input) *validation {
	v := &validation{index: &config.Index{}, documents: make(map[config.Key]*config.Document)}
	for _, path := range in.Paths {
		v.path(path)
	}
	if in.Stdin != nil {
		v.text(StandardInput, in.Stdin)
	}
	return v
}

// validation collects the documents of several files.
type validation struct {
	index     *config.Index
	documents map[config.Key]*config.Document
	files     map[config.Key]string
	problems  []config.Problem
}

// path reads a file, or the files of a directory.
func (v *validation) path(path string) {
	info, err := os.Stat(path)
	if err != nil {
		v.problems = append(v.problems, config.Problem{File: path, Message: reason(err).Error()})
		return
	}
	if !info.IsDir() {
		v.file(path)
		return
	}
	l := lister{root: path, readDir: os.ReadDir, unreadable: make(map[string]error)}
	if err := l.list("", nil); err != nil {
		v.problems = append(v.problems, config.Problem{File: path, Message: reason(err).Error()})
	}
	for name, err := range l.unreadable {
		v.problems = append(v.problems, config.Problem{File: filepath.Join(path, filepath.FromSlash(name)), Message: err.Error()})
	}
	slices.Sort(l.names)
	for _, name := range l.names {
		v.file(filepath.Join(path, filepath.FromSlash(name)))
	}
}

// file reads the documents of a file.
func (v *validation) file(path string) {
	data, err := userfile.Read(path)
	if err != nil {
		v.problems = append(v.problems, config.Problem{File: path, Message: reasonOf(path, err).Error()})
		return
	}
	v.text(path, data)
}

// text reads the documents of the text of a file.
func (v *validation) text(path string, data []byte) {
	documents, broken := config.Read(path, data)
	if broken != nil {
		v.problems = append(v.problems, *broken)
	}
	for i := range documents {
		d := &documents[i]
		v.problems = append(v.problems, d.Problems...)
		switch {
		case d.Config == nil:
		case v.documents[d.Key] != nil:
			v.problems = append(v.problems, duplicate(path, d.Config, v.documents[d.Key].Config))
		default:
			if v.files == nil {
				v.files = make(map[config.Key]string)
			}
			v.documents[d.Key], v.files[d.Key] = d, path
			v.index.Put(d.Config)
		}
	}
}
