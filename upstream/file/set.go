package file

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// key identifies a resource.
type key struct{ typeURL, name string }

// content is what a file said in one version.
type content struct {
	hash    uint64
	entries []entry
}

// member is a file of the directory.
type member struct {
	seen observed
	// parsed is the content as it is now, nil if that is bad.
	parsed *content
	// good is the content that counts: parsed, or the last one that was good;
	// nil if none ever was.
	good *content
	// err says why good is not what the file says now.
	err error
}

// set is the content of a directory: all its files, the last good content of
// each. No resource is in the good contents of two files.
type set struct {
	members map[string]*member
}

// load returns the set after a pass: with what changed read, without what is gone,
// and with the contents that count. The set itself stays as it is.
func (s *set) load(p pass, now time.Time) *set {
	next := &set{members: make(map[string]*member, len(p))}
	for _, o := range p {
		m := &member{}
		if before := s.members[o.name]; before != nil {
			*m = *before
		}
		m.read(o, now)
		next.members[o.name] = m
	}
	next.settle()
	return next
}

// parsed returns the hash of what was read of a file last, good or bad.
func (s *set) parsed(name string) (hash uint64, ok bool) {
	m := s.members[name]
	if m == nil || m.seen.err != nil {
		return 0, false
	}
	return m.seen.hash, true
}

// read takes in what a file says now. Content without data is what was parsed.
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

// settle decides which contents count. One that would be a second owner of a
// resource does not: a file that changed yields to those that did not, and of
// two that changed the later in order of name yields. It then keeps its last
// good content, which conflicts with no other's.
func (s *set) settle() {
	var changed []*member
	fixed := make(map[*member]bool)
	for _, name := range s.names() {
		m := s.members[name]
		if m.parsed != nil && m.parsed != m.good {
			changed = append(changed, m)
		} else {
			fixed[m] = true
		}
	}
	// Each round without success lets one more file yield.
	for !s.claim(changed, fixed) {
	}
	for _, m := range changed {
		if !fixed[m] {
			m.good, m.err = m.parsed, nil
		}
	}
}

// claim gives every resource its owner: first those of the files that stay as
// they are, then those of the changed ones. It reports false, with one more file
// fixed, if a changed one conflicts.
func (s *set) claim(changed []*member, fixed map[*member]bool) bool {
	owners := make(map[key]*owner)
	for _, name := range s.names() {
		if m := s.members[name]; fixed[m] && m.good != nil {
			for _, e := range m.good.entries {
				owners[key{e.resource.Type, e.resource.Name}] = &owner{m, e}
			}
		}
	}
	for _, m := range changed {
		if fixed[m] {
			continue
		}
		for _, e := range m.parsed.entries {
			k := key{e.resource.Type, e.resource.Name}
			if other := owners[k]; other != nil && other.member != m {
				m.err = &ParseError{File: m.seen.name, Line: e.line, Field: e.field, Err: fmt.Errorf("%s %q is in %s too", xds.Short(k.typeURL), k.name, other)}
				fixed[m] = true
				return false
			}
			owners[k] = &owner{m, e}
		}
	}
	return true
}

// owner is the file that a resource comes from.
type owner struct {
	member *member
	entry  entry
}

func (o *owner) String() string {
	if o.entry.line == 0 {
		return o.member.seen.name
	}
	return fmt.Sprintf("%s:%d", o.member.seen.name, o.entry.line)
}

func (s *set) names() []string {
	names := make([]string, 0, len(s.members))
	for name := range s.members {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}

// complete reports whether the good contents are all there is: no file's content
// is wholly unknown.
func (s *set) complete() bool {
	for _, m := range s.members {
		if m.good == nil {
			return false
		}
	}
	return true
}

// resources returns the good contents by type, in order of file.
func (s *set) resources() map[string][]*xds.Resource {
	byType := make(map[string][]*xds.Resource)
	for _, name := range s.names() {
		if m := s.members[name]; m.good != nil {
			for _, e := range m.good.entries {
				byType[e.resource.Type] = append(byType[e.resource.Type], e.resource)
			}
		}
	}
	return byType
}

// errors lists what is wrong, in order of file.
func (s *set) errors() []error {
	var errs []error
	for _, name := range s.names() {
		if m := s.members[name]; m.err != nil {
			errs = append(errs, m.err)
		}
	}
	return errs
}
