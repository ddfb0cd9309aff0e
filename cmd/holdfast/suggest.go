package main

import "slices"

// didYouMean returns ", did you mean …?" or, when nothing is near, "". The prefix
// goes before the name that is suggested, and is in none of those given.
func didYouMean(prefix, given string, known []string) string {
	if meant := nearest(given, known); meant != "" {
		return ", did you mean " + prefix + meant + "?"
	}
	return ""
}

// nearest returns the known name that differs least from what was given, "" if
// all differ in more than a third of its letters and one.
func nearest(given string, known []string) string {
	slices.Sort(known) // of equally near ones always the same
	best, least := "", len(given)/3+2
	for _, name := range known {
		if d := distance(given, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is that of Levenshtein.
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
