package cache

import (
	"math"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
)

// sourceID stands for a source, in two bytes: each entry says of two contents where they
// are from.
type sourceID = history.Source

// sources are all that there were, by their ID.
type sources struct {
	names []string
	ids   map[string]sourceID
}

func newSources() sources {
	return sources{[]string{"", LocalSource}, map[string]sourceID{"": history.Unknown, LocalSource: history.Local}}
}

// id returns that of a source. There are few; of one too many it is not known what it gave.
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
