package xdstest

import "iter"

// Steps yields the input of a fuzz target as pairs of bytes, an operation and its argument, with a
// limit of steps. It ignores a trailing single byte.
func Steps(input []byte, most int) iter.Seq2[byte, byte] {
	return func(yield func(op, arg byte) bool) {
		for i := range min(len(input)/2, most) {
			if !yield(input[2*i], input[2*i+1]) {
				return
			}
		}
	}
}
