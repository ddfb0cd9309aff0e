package bootstrap

import (
	"fmt"
	"slices"
	"strings"
)

// contextLines is how many equal lines stand around a change.
const contextLines = 3

// Diff returns what changes before into after, as unified diff, "" for nothing.
func Diff(beforeName, afterName, before, after string) string {
	if before == after {
		return ""
	}
	edits := compare(lines(before), lines(after))
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", beforeName, afterName)
	for start := 0; start < len(edits); {
		first := start
		for first < len(edits) && edits[first].kind == ' ' {
			first++
		}
		if first == len(edits) {
			break
		}
		// A hunk ends before a run of equal lines too long to join it with the next.
		last, equal := first, 0
		end := first
		for ; end < len(edits) && equal <= 2*contextLines; end++ {
			if edits[end].kind == ' ' {
				equal++
			} else {
				last, equal = end, 0
			}
		}
		hunk := edits[max(start, first-contextLines):min(len(edits), last+1+contextLines)]
		writeHunk(&out, hunk)
		start = min(len(edits), last+1+contextLines)
	}
	return out.String()
}

// edit is one line: common (' '), only before ('-') or only after ('+'). a and b count the lines before it on each side.
type edit struct {
	kind byte
	text string
	a, b int
}

// lines keeps the ends of lines, so that a missing last one shows.
func lines(s string) []string {
	if s == "" {
		return nil
	}
	return strings.SplitAfter(strings.TrimSuffix(s, "\n"), "\n")
}

// compare finds the longest common lines. Files differ in little as a rule: what is equal at both ends is left out of the
// table.
func compare(a, b []string) []edit {
	var head, tail int
	for head < len(a) && head < len(b) && trim(a[head]) == trim(b[head]) {
		head++
	}
	for tail < len(a)-head && tail < len(b)-head && trim(a[len(a)-1-tail]) == trim(b[len(b)-1-tail]) {
		tail++
	}
	var edits []edit
	for i := range head {
		edits = append(edits, edit{' ', a[i], i, i})
	}
	edits = append(edits, compareMiddle(a[head:len(a)-tail], b[head:len(b)-tail], head)...)
	for i := range tail {
		at, bt := len(a)-tail+i, len(b)-tail+i
		edits = append(edits, edit{' ', a[at], at, bt})
	}
	return edits
}

func trim(line string) string { return strings.TrimSuffix(line, "\n") }

// maxTable bounds the memory of a comparison; beyond, all old lines are said to go and all new ones to come.
const maxTable = 1 << 24

func compareMiddle(a, b []string, offset int) []edit {
	var edits []edit
	i, j := 0, 0
	if len(a)*len(b) <= maxTable {
		// longest[i][j] is how many lines a[i:] and b[j:] have in common.
		longest := make([][]int32, len(a)+1)
		for i := range longest {
			longest[i] = make([]int32, len(b)+1)
		}
		for i := range slices.Backward(a) {
			for j := range slices.Backward(b) {
				if trim(a[i]) == trim(b[j]) {
					longest[i][j] = longest[i+1][j+1] + 1
				} else {
					longest[i][j] = max(longest[i+1][j], longest[i][j+1])
				}
			}
		}
		for i < len(a) && j < len(b) {
			switch {
			case trim(a[i]) == trim(b[j]):
				edits = append(edits, edit{' ', a[i], offset + i, offset + j})
				i, j = i+1, j+1
			case longest[i+1][j] >= longest[i][j+1]:
				edits = append(edits, edit{'-', a[i], offset + i, offset + j})
				i++
			default:
				edits = append(edits, edit{'+', b[j], offset + i, offset + j})
				j++
			}
		}
	}
	for ; i < len(a); i++ {
		edits = append(edits, edit{'-', a[i], offset + i, offset + j})
	}
	for ; j < len(b); j++ {
		edits = append(edits, edit{'+', b[j], offset + i, offset + j})
	}
	return edits
}

func writeHunk(out *strings.Builder, hunk []edit) {
	var before, after int
	for _, e := range hunk {
		if e.kind != '+' {
			before++
		}
		if e.kind != '-' {
			after++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", span(hunk[0].a, before), span(hunk[0].b, after))
	for _, e := range hunk {
		fmt.Fprintf(out, "%c%s\n", e.kind, trim(e.text))
	}
}

// span is the place of a hunk: an empty one is named by the line before it.
func span(start, n int) string {
	if n > 0 {
		start++
	}
	return fmt.Sprintf("%d,%d", start, n)
}
