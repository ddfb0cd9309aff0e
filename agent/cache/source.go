package cache

import (
	"math"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
)

// sourceID identifies a source in two bytes: each entry has two.
type sourceID = history.Source

// sources has all sources so far, by ID.
type sources struct {
	names []string
	ids   map[string]sourceID
}

func newSources() sources {
	return sources{[]string{"", LocalSource}, map[string]sourceID{"": history.Unknown, LocalSource: history.Local}}
}

// id returns the ID of a source. There are few sources; after 65,535 they are unknown.
func (s *sources) id(name string) sourceID {
	id, ok := s.ids[name]
	if !ok && len(s.names) <= math.MaxUint16 {
		id = sourceID(len(s.names))
		s.names, s.ids[name] = append(s.names, name), id
	}
	return id
}

// name returns the name of a source.
func (s *sources) name(id sourceID) string { return s.names[id] }
