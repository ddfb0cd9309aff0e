// Package resourceset keeps sets of resources that many have in memory once.
//
// It promises that a Set does not change, and that a Pool returns the same Set for the same resources
// as long as somebody uses it, and forgets it then. It does not know who has a set. Both may be used by
// several goroutines at once.
package resourceset

import (
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Set is resources of one type with distinct names. A nil Set is empty.
type Set struct {
	resources []*xds.Resource
	at        map[string]int
}

// Len returns the number of resources.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return len(s.resources)
}

// Resources returns the resources, which must not be changed.
func (s *Set) Resources() []*xds.Resource {
	if s == nil {
		return nil
	}
	return s.resources
}

// At returns the resource with an index.
func (s *Set) At(i int) *xds.Resource { return s.resources[i] }

// Index returns the index of the resource with a name; ok is false if there is none.
func (s *Set) Index(name string) (i int, ok bool) {
	if s == nil {
		return 0, false
	}
	i, ok = s.at[name]
	return i, ok
}

// equals reports whether the set has exactly these resources. Equal versions mean equal contents
// (protocol.md 7.5).
func (s *Set) equals(resources []*xds.Resource) bool {
	if s.Len() != len(resources) {
		return false
	}
	for _, r := range resources {
		if i, ok := s.Index(r.Name); !ok || s.At(i).Version != r.Version {
			return false
		}
	}
	return true
}

// Key is what a set is looked for by.
type Key struct {
	Type    string
	Version xds.SetVersion
}

// DefaultMin is the number of resources from which it is worth to share a set.
const DefaultMin = 64

// Pool has the sets that are in use.
type Pool struct {
	min int

	mu      sync.Mutex
	sets    map[Key]weak.Pointer[Set]
	sweepAt int // the size of sets from which the forgotten ones are removed
}

// NewPool returns an empty pool for sets of at least min resources.
func NewPool(min int) *Pool {
	return &Pool{min: min, sets: make(map[Key]weak.Pointer[Set]), sweepAt: DefaultMin}
}

// Min returns the number of resources from which a set is to be shared.
func (p *Pool) Min() int { return p.min }

// Intern returns the set with these resources, of which there must be one. They are distinct and of one
// type.
func (p *Pool) Intern(resources []*xds.Resource) *Set {
	key := Key{Type: resources[0].Type}
	for _, r := range resources {
		key.Version.Add(r)
	}
	if s := p.Find(key); s.equals(resources) {
		return s
	}
	s := &Set{resources: slices.Clip(resources), at: make(map[string]int, len(resources))}
	for i, r := range resources {
		s.at[r.Name] = i
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sets[key] = weak.Make(s)
	if len(p.sets) >= p.sweepAt {
		maps.DeleteFunc(p.sets, func(_ Key, s weak.Pointer[Set]) bool { return s.Value() == nil })
		p.sweepAt = max(DefaultMin, 2*len(p.sets))
	}
	return s
}

// Find returns the set that Intern returned last for resources with a key; nil for none. Its resources
// may be others, because a Version is a short hash.
func (p *Pool) Find(key Key) *Set {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sets[key].Value()
}
