package xds

import (
	"iter"

	"github.com/cespare/xxhash/v2"
)

// NameSet stands for a set of names: two are equal if their names are, but for a chance of one
// in 2^64. The zero value is the empty set.
type NameSet struct {
	size int
	sum  uint64
}

// Add puts a name into the set that is not in it.
func (s *NameSet) Add(name string) {
	s.size++
	s.sum += xxhash.Sum64String(name)
}

// NamesOf returns the set of some names, each of which comes once.
func NamesOf(names iter.Seq[string]) (s NameSet) {
	for name := range names {
		s.Add(name)
	}
	return s
}

// smallSet is how many names a set may have had for its memory to be used again.
const smallSet = 256

// ResetNames empties a set of names. The memory of a large one is left to the collector: a
// map never shrinks, and bursts are rare.
func ResetNames[K comparable](set *map[K]struct{}) {
	if len(*set) > smallSet {
		*set = make(map[K]struct{})
		return
	}
	clear(*set)
}
