package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Run is one run of a part.
type Run struct {
	Part string `json:"part"`
	// Tree is what `git write-tree` said when the run began; empty if the tree changed while the part ran.
	Tree string `json:"tree"`
	// With are the settings of the run, see settings.
	With  string    `json:"with,omitempty"`
	Start time.Time `json:"start"`
	// Took is the time on the clock, Testing the part of it in which a test ran, and Busy the processor time of all processes. What is not
	// Testing compiles, links, looks at the code, fetches or builds.
	Took    time.Duration `json:"took"`
	Testing time.Duration `json:"testing"`
	Busy    time.Duration `json:"busy"`
	Tests   int           `json:"tests"`
	Failed  bool          `json:"failed,omitempty"`
	// Cold reports that Go's caches were empty.
	Cold bool `json:"cold,omitempty"`
}

// book remembers runs in a directory.
type book struct{ dir string }

// runs returns what is remembered, the oldest first. A line that an interrupted run left unfinished is no run.
func (b book) runs() (runs []Run, err error) {
	f, err := os.Open(filepath.Join(b.dir, "runs.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); ; {
		if !lines.Scan() {
			return runs, lines.Err()
		}
		var r Run
		if json.Unmarshal(lines.Bytes(), &r) == nil && r.Part != "" {
			runs = append(runs, r)
		}
	}
}

func (b book) add(r Run) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(b.dir, "runs.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(slices.Concat([]byte("\n"), line, []byte("\n"))) // the line before may be unfinished
	return errors.Join(err, f.Close())
}

// lock keeps other runs of a part away until unlock is called.
func (b book) lock(part string) (unlock func(), err error) {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(b.dir, part+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s runs already: %w", part, err)
	}
	return func() { _ = f.Close() }, nil
}

// passed returns the last run of a part on a tree with some settings, if it passed: one that failed after it counts.
func passed(runs []Run, part, tree, with string) (Run, bool) {
	for _, r := range slices.Backward(runs) {
		if r.Part == part && r.Tree == tree && r.With == with {
			return r, !r.Failed
		}
	}
	return Run{}, false
}

// last returns the last run of a part that passed, cold or not.
func last(runs []Run, part string, cold bool) (Run, bool) {
	for _, r := range slices.Backward(runs) {
		if r.Part == part && !r.Failed && r.Cold == cold {
			return r, true
		}
	}
	return Run{}, false
}

// status prints one line for each part.
func status(b book, tree, with string, parts []string, to io.Writer) error {
	runs, err := b.runs()
	if err != nil {
		return err
	}
	for _, part := range parts {
		said := "has not run"
		for _, r := range slices.Backward(runs) {
			if r.Part != part {
				continue
			}
			said = "passed"
			if r.Failed {
				said = "FAILED"
			}
			if r.Tree != tree {
				said += " on another tree"
			}
			if r.With != with {
				said += " with other settings"
			}
			said += fmt.Sprintf(" at %s, in %s", r.Start.Local().Format(time.DateTime), minutes(r.Took))
			break
		}
		if _, err := fmt.Fprintf(to, "%-16s %s\n", part, said); err != nil {
			return err
		}
	}
	return nil
}
