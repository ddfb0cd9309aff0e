package xds

import (
	"iter"

	"github.com/cespare/xxhash/v2"
)

// NameSet is the hash of a set of names. Equal sets have equal NameSets; different sets have
// different ones, except with a probability of 2^-64. The zero value is that of the empty set.
type NameSet struct {
	size int
	sum  uint64
}

// Add adds a name that is not in the set.
func (s *NameSet) Add(name string) {
	s.size++
	s.sum += xxhash.Sum64String(name)
}

// NamesOf returns the NameSet of names without duplicates.
func NamesOf(names iter.Seq[string]) (s NameSet) {
	for name := range names {
		s.Add(name)
	}
	return s
}

// smallSet is the maximum size of a set whose memory ResetNames reuses.
const smallSet = 256

// ResetNames empties a set of names. It leaves the memory of a large set to the garbage collector,
// because a map never shrinks, and large sets are rare.
func ResetNames[K comparable](set *map[K]struct{}) {
	if len(*set) > smallSet {
		*set = make(map[K]struct{})
		return
	}
	clear(*set)
}
