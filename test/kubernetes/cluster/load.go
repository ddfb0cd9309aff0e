package cluster

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Report is what came of the requests of a load.
type Report struct {
	Sent        int
	Failures    []Failure
	Median, Max time.Duration
}

// Failure is a request that failed.
type Failure struct {
	Began  time.Time
	Took   time.Duration
	Reason string
}

// Span returns the time from the begin of the first to the begin of the last request that failed.
func (r Report) Span() time.Duration {
	var first, last time.Time
	for _, f := range r.Failures {
		if first.IsZero() || f.Began.Before(first) {
			first = f.Began
		}
		if f.Began.After(last) {
			last = f.Began
		}
	}
	return last.Sub(first)
}

// String says how many requests failed, and how.
func (r Report) String() string {
	counts, order := make(map[string]int), []string(nil)
	for _, f := range r.Failures {
		if counts[f.Reason]++; counts[f.Reason] == 1 {
			order = append(order, f.Reason)
		}
	}
	text := fmt.Sprintf("%d of %d requests failed", len(r.Failures), r.Sent)
	if len(order) == 0 {
		return text
	}
	text += fmt.Sprintf(", within %.1f s", r.Span().Seconds())
	for _, reason := range order[:min(len(order), 5)] {
		text += fmt.Sprintf("\n  %d × %s", counts[reason], strings.TrimSpace(reason))
	}
	return text
}

// Load is a running load.
type Load struct {
	cmd *exec.Cmd
	out *strings.Builder
}

// StartLoad starts the program load, which make builds into the directory of the components, on the node.
func (c *Cluster) StartLoad(program, url string, args ...string) (*Load, error) {
	return startLoad(c.Command(program, append([]string{"-url", url}, args...)...))
}

func startLoad(cmd *exec.Cmd) (*Load, error) {
	l := &Load{cmd: cmd, out: new(strings.Builder)}
	cmd.Stdout, cmd.Stderr = l.out, l.out
	return l, cmd.Start()
}

// Stop ends the load, and returns what came of it.
func (l *Load) Stop() (Report, error) {
	_ = l.cmd.Process.Signal(syscall.SIGTERM)
	err := l.cmd.Wait()
	var r Report
	if err := json.Unmarshal([]byte(l.out.String()), &r); err != nil {
		return r, fmt.Errorf("the load wrote %q: %w", l.out, err)
	}
	return r, err
}
