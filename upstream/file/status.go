package file

import (
	"maps"
	"slices"
	"strings"
	"time"
)

type Status struct {
	// Err is why the directory cannot be read; nil if it can.
	Dir    string
	Err    error
	Loaded time.Time
	// Complete is set if each file has valid content, so that resources in none of the files are removed.
	Complete bool
	// Files lists the files in order of name, including ignored ones.
	Files []FileStatus
	// Rejected holds the clients' NACKs of the newest content of each type, by type URL.
	Rejected map[string]error
}

type FileStatus struct {
	Name string
	// Size is in bytes, as last read; 0 for a file that could not be read.
	Size int64
	// Resources counts the resources of the file that are served.
	Resources int
	// Err is a *ParseError that says why the current content is not served. If Resources is not 0, the last valid
	// content is.
	Err error
	// Ignored is why the file is not read at all; "" if it is.
	Ignored string
}

func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := Status{
		Dir: s.config.Dir, Err: s.dirErr, Loaded: s.loaded,
		Complete: !s.loaded.IsZero() && s.files.complete(),
		Rejected: maps.Clone(s.nacked),
	}
	for _, name := range s.files.names() {
		m := s.files[name]
		f := FileStatus{Name: name, Err: m.err}
		if m.seen.info != nil {
			f.Size = m.seen.info.Size()
		}
		if m.served != nil {
			f.Resources = len(m.served.entries)
		}
		status.Files = append(status.Files, f)
	}
	for name, why := range s.ignored {
		status.Files = append(status.Files, FileStatus{Name: name, Ignored: why})
	}
	slices.SortFunc(status.Files, func(a, b FileStatus) int { return strings.Compare(a.Name, b.Name) })
	return status
}
