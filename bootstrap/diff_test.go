package bootstrap

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestADiffShowsWhatChangesAndThreeLinesAround(t *testing.T) {
	numbers := func(from, to int) (s string) {
		for i := from; i <= to; i++ {
			s += fmt.Sprintln(i)
		}
		return s
	}
	for _, tc := range []struct{ name, before, after, want string }{
		{"nothing", "a\n", "a\n", ""},
		{"a new file", "", "a\nb\n", "--- x\n+++ y\n@@ -0,0 +1,2 @@\n+a\n+b\n"},
		{"an emptied file", "a\n", "", "--- x\n+++ y\n@@ -1,1 +0,0 @@\n-a\n"},
		{"one line", numbers(1, 9), strings.Replace(numbers(1, 9), "5\n", "five\n", 1),
			"--- x\n+++ y\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"},
		{"two lines far apart", numbers(1, 20), strings.NewReplacer("2\n3", "2\nx\n3", "\n18\n", "\n").Replace(numbers(1, 20)),
			"--- x\n+++ y\n@@ -1,5 +1,6 @@\n 1\n 2\n+x\n 3\n 4\n 5\n@@ -15,6 +16,5 @@\n 15\n 16\n 17\n-18\n 19\n 20\n"},
		{"two lines near each other", numbers(1, 9), strings.NewReplacer("2\n", "", "8\n", "").Replace(numbers(1, 9)),
			"--- x\n+++ y\n@@ -1,9 +1,7 @@\n 1\n-2\n 3\n 4\n 5\n 6\n 7\n-8\n 9\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Diff("x", "y", tc.before, tc.after); got != tc.want {
				t.Errorf("got\n%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

// Whoever applies what Diff says to the one text gets the other.
func TestADiffCanBeApplied(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	lines := func() string {
		var b strings.Builder
		for range random.IntN(40) {
			fmt.Fprintln(&b, random.IntN(6))
		}
		return b.String()
	}
	for range 500 {
		before, after := lines(), lines()
		diff := Diff("x", "y", before, after)
		if got := apply(t, before, diff); got != after {
			t.Fatalf("%q\n%s\nbecame %q, want %q", before, diff, got, after)
		}
	}
}

// apply does what a unified diff says, and insists that what it says of before is right.
func apply(t *testing.T, before, diff string) string {
	t.Helper()
	old, at := strings.SplitAfter(before, "\n"), 0
	var out strings.Builder
	for line := range strings.Lines(diff) {
		var start, n, newStart, newN int
		switch {
		case strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "+++ "):
		case strings.HasPrefix(line, "@@"):
			if _, err := fmt.Sscanf(line, "@@ -%d,%d +%d,%d @@", &start, &n, &newStart, &newN); err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				start--
			}
			for ; at < start; at++ {
				out.WriteString(old[at])
			}
			if newN > 0 {
				newStart--
			}
			if got := strings.Count(out.String(), "\n"); got != newStart {
				t.Fatalf("%s begins at line %d of the new text", line, got)
			}
		case line[0] == '+':
			out.WriteString(line[1:])
		default:
			if old[at] != line[1:] {
				t.Fatalf("line %d is %q, the diff says %q", at, old[at], line)
			}
			if line[0] == ' ' {
				out.WriteString(line[1:])
			}
			at++
		}
	}
	return out.String() + strings.Join(old[at:], "")
}

func TestADiffOfTooMuchIsStillADiff(t *testing.T) {
	before, after := strings.Repeat("a\n", 5000), strings.Repeat("b\n", 5000)
	if got := Diff("x", "y", before, after); strings.Count(got, "\n-a") != 5000 || strings.Count(got, "\n+b") != 5000 {
		t.Error("lines are missing")
	}
}
