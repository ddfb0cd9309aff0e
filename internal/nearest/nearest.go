// Package nearest finds the name that somebody meant who wrote another one: of a flag, a key, a command, an annotation.
//
// It promises the same answer whatever the order of the known names is. It has no state; all functions may be called
// concurrently.
package nearest

import "slices"

// Question returns ", did you mean …?" with the nearest known name after the prefix, or "" if no name is near.
func Question(prefix, given string, known []string) string {
	if meant := Name(given, known); meant != "" {
		return ", did you mean " + prefix + meant + "?"
	}
	return ""
}

// maxName is the longest name that is compared. The time grows with the length, and some names come from whoever asks.
const maxName = 256

// Name returns the known name with the smallest distance from the given one, "" if all distances are greater than a third of
// its length plus one.
func Name(given string, known []string) string {
	best, least := "", len(given)/3+2
	if len(given) > maxName {
		return ""
	}
	for _, name := range slices.Sorted(slices.Values(known)) {
		if d := distance(given, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
