package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// check prints how the medians of two results files differ, and marks what lies
// outside of what both runs saw. It does not judge: only a file that cannot be read
// is an error.
func check(w io.Writer, oldPath, newPath string) error {
	before, err := readResults(oldPath)
	if err != nil {
		return err
	}
	after, err := readResults(newPath)
	if err != nil {
		return err
	}
	old := make(map[string]result)
	for _, r := range before {
		old[r.key()] = r
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "case\tmetric\ttarget\told\tnew\tunit\tchange\t")
	marked := 0
	for _, r := range after {
		o, known := old[r.key()]
		delete(old, r.key())
		if !known {
			fmt.Fprintf(tw, "%s\t%s\t%s\t-\t%s\t%s\tnew\t\n", r.Case, r.Metric, r.Target, number(r.Median), r.Unit)
			continue
		}
		mark := ""
		if apart(o.summary, r.summary) {
			mark = "*"
			marked++
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Case, r.Metric, r.Target, number(o.Median), number(r.Median), r.Unit, percent(o.Median, r.Median), mark)
	}
	for _, o := range before {
		if _, left := old[o.key()]; left {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t-\t%s\tgone\t\n", o.Case, o.Metric, o.Target, number(o.Median), o.Unit)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%d marked *: no round of one run came near a round of the other.\n", marked)
	return err
}

// apart tells whether the ranges of two runs do not meet.
func apart(a, b summary) bool { return a.Max < b.Min || b.Max < a.Min }

func percent(before, after float64) string {
	if before == 0 {
		if after == 0 {
			return "0%"
		}
		return "from 0"
	}
	return fmt.Sprintf("%+.1f%%", (after/before-1)*100)
}
