package file

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Status is what a Source knows, for an operator.
type Status struct {
	// Dir is the directory, Err why it cannot be read; nil if it can.
	Dir string
	Err error
	// Loaded is when a change was loaded last; the zero time for never.
	Loaded time.Time
	// Complete says that each file has good content, so that what is in none of
	// them is removed.
	Complete bool
	// Files lists the files in order of name, ignored ones included.
	Files []FileStatus
	// Rejected holds the clients' errors about the newest content of a type, by
	// type URL.
	Rejected map[string]error
}

// FileStatus is what a Source knows of one file.
type FileStatus struct {
	Name string
	// Size is in bytes, as last read; 0 for a file that could not be.
	Size int64
	// Resources counts what is served of the file.
	Resources int
	// Err is a *ParseError that says why the file's content, as it is now, is
	// not served; nil if it is. The last good one is, if Resources is not 0.
	Err error
	// Ignored says why the file is not read at all; "" if it is.
	Ignored string
}

// Status returns what is known now.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := Status{
		Dir: s.config.Dir, Err: s.dirErr, Loaded: s.loaded,
		Complete: !s.loaded.IsZero() && s.files.complete(),
		Rejected: maps.Clone(s.rejected),
	}
	for _, name := range s.files.names() {
		m := s.files.members[name]
		f := FileStatus{Name: name, Err: m.err}
		if m.seen.info != nil {
			f.Size = m.seen.info.Size()
		}
		if m.good != nil {
			f.Resources = len(m.good.entries)
		}
		status.Files = append(status.Files, f)
	}
	for name, why := range s.ignored {
		status.Files = append(status.Files, FileStatus{Name: name, Ignored: why})
	}
	slices.SortFunc(status.Files, func(a, b FileStatus) int { return strings.Compare(a.Name, b.Name) })
	return status
}
