package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The marks in CONTRIBUTING.md between which the table stands.
const (
	tableBegin = "<!-- minutes: made by `make minutes` -->\n"
	tableEnd   = "<!-- end of minutes -->\n"
)

// tablePage is the page with the table.
const tablePage = "CONTRIBUTING.md"

// between returns where in a page the table is.
func between(page []byte) (begin, end int, ok bool) {
	begin, end = bytes.Index(page, []byte(tableBegin)), bytes.Index(page, []byte(tableEnd))
	return begin + len(tableBegin), end, begin >= 0 && end >= begin+len(tableBegin)
}

// listed is how many packages and tests the table names.
const listed = 10

func rewriteTable(b book, parts []string, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	begin, end, ok := between(text)
	if !ok {
		return fmt.Errorf("%s has not the two marks %q and %q", file, strings.TrimSpace(tableBegin), strings.TrimSpace(tableEnd))
	}
	made, err := table(b, parts, string(text[begin:end]))
	if err != nil {
		return err
	}
	return os.WriteFile(file, slices.Concat(text[:begin], []byte(made), text[end:]), 0o644)
}

// table says of each part the minutes of its last run that passed, with caches and without, and of all parts together the longest packages and
// tests. Figures that were not measured here stay as they are in the table of before.
func table(b book, parts []string, before string) (string, error) {
	runs, err := b.runs()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("| part | minutes | no test runs | processor | tests | cold | no test runs, cold |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	measured := false
	var newest time.Time
	var packages, tests []timed
	for _, part := range parts {
		warm, isWarm := last(runs, part, false)
		cold, isCold := last(runs, part, true)
		cells := former(before, part)
		if !isWarm && !isCold && cells == nil {
			continue
		}
		if cells == nil {
			cells = make([]string, 6)
		}
		if isWarm || isCold {
			measured = true
			cells[3] = fmt.Sprint(max(warm.Tests, cold.Tests))
		}
		if isWarm {
			cells[0], cells[1], cells[2] = figure(warm.Took), figure(warm.Took-warm.Testing), figure(warm.Busy)
			newest = latest(newest, warm.Start)
		}
		if isCold {
			cells[4], cells[5] = figure(cold.Took), figure(cold.Took-cold.Testing)
			newest = latest(newest, cold.Start)
		}
		fmt.Fprintf(&out, "| `%s` | %s |\n", part, strings.Join(cells, " | "))
		of, err := readTimes(filepath.Join(b.dir, part))
		if err != nil {
			return "", err
		}
		for _, p := range of.packages {
			packages = append(packages, timed{p.name + " (" + part + ")", p.took})
		}
		for _, t := range of.tests {
			tests = append(tests, timed{t.name + " (" + part + ")", t.took})
		}
	}
	if !measured {
		return "", errors.New("no part has been measured here: the table stays as it is (`make minutes PARTS=check` measures one)")
	}
	fmt.Fprintf(&out, "\nThe longest packages and tests, in seconds:\n\n| package (part) | s | test (part) | s |\n| --- | ---: | --- | ---: |\n")
	longest := func(a, b timed) int { return cmp.Compare(b.took, a.took) }
	slices.SortStableFunc(packages, longest)
	slices.SortStableFunc(tests, longest)
	for i := range listed {
		fmt.Fprintf(&out, "| %s | %s |\n", row(packages, i), row(tests, i))
	}
	fmt.Fprintf(&out, "\nMeasured until %s.\n", newest.Format(time.DateOnly))
	return out.String(), nil
}

// former returns the cells of a part in a table, nil for none.
func former(table, part string) []string {
	_, rest, found := strings.Cut(table, "\n| `"+part+"` |")
	if !found {
		return nil
	}
	line, _, _ := strings.Cut(rest, "\n")
	cells := strings.Split(strings.TrimSuffix(strings.TrimSpace(line), "|"), "|")
	if len(cells) != 6 {
		return nil
	}
	for i, c := range cells {
		cells[i] = strings.TrimSpace(c)
	}
	return cells
}

func row(of []timed, i int) string {
	if i >= len(of) {
		return " | "
	}
	return fmt.Sprintf("%s | %.0f", of[i].name, of[i].took.Seconds())
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func figure(d time.Duration) string { return fmt.Sprintf("%.1f", d.Minutes()) }
