package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// event is a line of what gotestsum writes with --jsonfile-timing-events: the end of a test or of a package.
type event struct {
	Time    time.Time
	Action  string
	Package string
	Test    string
	Elapsed float64 // in seconds
}

type timed struct {
	name string
	took time.Duration
}

// times are those of the tests of one run of a part.
type times struct {
	packages, tests []timed // the longest first
	// union is the time in which at least one package ran.
	union time.Duration
}

// readTimes reads all files of times in a directory.
func readTimes(dir string) (times, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return times{}, err
	}
	var events []event
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return times{}, err
		}
		for lines := json.NewDecoder(f); ; {
			var e event
			if err = lines.Decode(&e); err != nil {
				break
			}
			events = append(events, e)
		}
		_ = f.Close()
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) { // the last line of what was interrupted
			return times{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	return timesOf(events), nil
}

func timesOf(events []event) (t times) {
	type span struct{ from, to time.Time }
	var spans []span
	// A test's own time does not have that of its parallel subtests: it lasts from the first start to the last end among it and its subtests.
	lasted := make(map[string]span)
	for _, e := range events {
		took := time.Duration(e.Elapsed * float64(time.Second))
		from := e.Time.Add(-took)
		switch {
		case e.Test != "" && e.Action == "skip":
		case e.Test != "":
			test, _, _ := strings.Cut(e.Test, "/")
			name := short(e.Package) + " " + test
			s, known := lasted[name]
			if !known || from.Before(s.from) {
				s.from = from
			}
			if e.Time.After(s.to) {
				s.to = e.Time
			}
			lasted[name] = s
		case took > 0: // not from the test cache
			t.packages = append(t.packages, timed{short(e.Package), took})
			spans = append(spans, span{from, e.Time})
		}
	}
	for name, s := range lasted {
		t.tests = append(t.tests, timed{name, s.to.Sub(s.from)})
	}
	longest := func(a, b timed) int { return cmp.Or(cmp.Compare(b.took, a.took), strings.Compare(a.name, b.name)) }
	slices.SortFunc(t.packages, longest)
	slices.SortFunc(t.tests, longest)
	slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
	var until time.Time
	for _, s := range spans {
		if s.from.Before(until) {
			s.from = until
		}
		if s.to.After(s.from) {
			t.union += s.to.Sub(s.from)
			until = s.to
		}
	}
	return t
}

const module = "github.com/holdfast-xds/holdfast"

// short is the path of a package below the repository.
func short(path string) string {
	return cmp.Or(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"), ".")
}
