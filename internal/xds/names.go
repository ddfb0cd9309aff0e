package xds

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
