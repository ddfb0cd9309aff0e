package state

import (
	"math"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
)

// LocalSource is the source of the resources that the agent itself makes.
const LocalSource = "local"

// Sources has all sources so far, by ID: each entry has the ID, in two bytes.
type Sources struct {
	names []string
	ids   map[string]history.Source
}

func newSources() *Sources {
	return &Sources{[]string{"", LocalSource}, map[string]history.Source{"": history.Unknown, LocalSource: history.Local}}
}

// ID returns the ID of a source. There are few sources; after 65,535 they are unknown.
func (s *Sources) ID(name string) history.Source {
	id, ok := s.ids[name]
	if !ok && len(s.names) <= math.MaxUint16 {
		id = history.Source(len(s.names))
		s.names, s.ids[name] = append(s.names, name), id
	}
	return id
}

// Name returns the name of a source.
func (s *Sources) Name(id history.Source) string { return s.names[id] }
