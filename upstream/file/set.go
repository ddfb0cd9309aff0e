package file

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

type key struct{ typeURL, name string }

type content struct {
	hash    uint64
	entries []entry
}

// member is a file of the directory.
type member struct {
	seen observed
	// parsed is the current content, nil if that is invalid.
	parsed *content
	// served is parsed, or the last valid content; nil if there never was any.
	served *content
	err    error
}

// set holds the files of a directory. No resource is in the served contents of two files.
type set map[string]*member

// load returns the set after a pass. While the directory settles, a file that is gone is kept. The receiver does not change.
func (s set) load(p pass, now time.Time, settling bool) set {
	next := make(set, len(p))
	for name, m := range s {
		if settling && m.served != nil {
			gone := *m
			gone.seen = observed{name: name, err: errGone} // so that it is read when it is back
			gone.parsed, gone.err = nil, &ParseError{File: name, Err: errGone}
			next[name] = &gone
		}
	}
	for _, o := range p {
		m := &member{}
		if previous := s[o.name]; previous != nil {
			*m = *previous
		}
		m.read(o, now)
		next[o.name] = m
	}
	next.assign()
	return next
}

// parsed returns the hash of the content of a file that was read last, valid or not.
func (s set) parsed(name string) (hash uint64, ok bool) {
	m := s[name]
	if m == nil || m.seen.err != nil {
		return 0, false
	}
	return m.seen.hash, true
}

// read records the current content of a file. Content without data equals the parsed content.
func (m *member) read(o observed, now time.Time) {
	data := o.data
	o.data = nil
	m.seen = o
	switch {
	case o.err != nil:
		m.parsed, m.err = nil, &ParseError{File: o.name, Err: o.err}
	case data == nil && m.parsed != nil && m.parsed.hash == o.hash:
		m.err = nil
	case data != nil:
		entries, err := parse(o.name, data, now)
		if m.parsed, m.err = nil, err; err == nil {
			m.parsed = &content{hash: o.hash, entries: entries}
		}
	}
}

// assign chooses the contents to be served, without a resource twice: a file that did not change has precedence
// over one that did, and of two changed files the first in order of name. The other file keeps its last valid
// content, which conflicts with no other file's.
func (s set) assign() {
	var changed []*member
	fixed := make(map[*member]bool)
	for _, name := range s.names() {
		m := s[name]
		if m.parsed != nil && m.parsed != m.served {
			changed = append(changed, m)
		} else {
			fixed[m] = true
		}
	}
	// Each failed round fixes one more file at its last valid content.
	for !s.claim(changed, fixed) {
	}
	for _, m := range changed {
		if !fixed[m] {
			m.served, m.err = m.parsed, nil
		}
	}
}

// claim assigns every resource to its file, with precedence to the fixed files. If a changed file conflicts,
// claim fixes it and returns false.
func (s set) claim(changed []*member, fixed map[*member]bool) bool {
	owners := make(map[key]entry)
	for _, name := range s.names() {
		if m := s[name]; fixed[m] && m.served != nil {
			for _, e := range m.served.entries {
				owners[e.key()] = e
			}
		}
	}
	for _, m := range changed {
		if fixed[m] {
			continue
		}
		for _, e := range m.parsed.entries {
			k := e.key()
			if existing, ok := owners[k]; ok {
				where := existing.file
				if existing.line > 0 {
					where += fmt.Sprintf(":%d", existing.line)
				}
				m.err = e.fault(fmt.Errorf("%s %q is in %s too", xds.Short(k.typeURL), k.name, where))
				fixed[m] = true
				return false
			}
			owners[k] = e
		}
	}
	return true
}

func (s set) names() []string { return slices.Sorted(maps.Keys(s)) }

func (s set) complete() bool {
	for _, m := range s {
		if m.served == nil {
			return false
		}
	}
	return true
}

func (s set) resources() map[string][]*xds.Resource {
	byType := make(map[string][]*xds.Resource)
	for _, name := range s.names() {
		if m := s[name]; m.served != nil {
			for _, e := range m.served.entries {
				byType[e.resource.Type] = append(byType[e.resource.Type], e.resource)
			}
		}
	}
	return byType
}

// errGone is that of a file that is kept.
var errGone = fmt.Errorf("it is gone; its resources stay in use until no file has come or gone for %s, since the directory was away or empty", settleAfter)

// neverValid returns the errors of the files that have no content.
func (s set) neverValid() []error {
	var errs []error
	for _, name := range s.names() {
		if m := s[name]; m.served == nil {
			errs = append(errs, m.err)
		}
	}
	return errs
}
