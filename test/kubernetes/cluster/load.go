package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
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

// Response is what one request was answered with.
type Response struct {
	Status int
	Header http.Header
	Body   string
	// CommonName is that of the server's certificate, "" without TLS.
	CommonName string
	// Error says why there is no answer, or no whole one.
	Error string
}

// GetIn sends a GET from a container that has /load.
func (c *Cluster) GetIn(namespace, pod, container, url string, args ...string) (r Response, err error) {
	out, err := c.Kubectl(append([]string{"exec", "--namespace", namespace, pod, "--container", container, "--", "/load", "-once", "-url", url}, args...)...)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal([]byte(out), &r)
}

// Get sends a GET from the node.
func (c *Cluster) Get(program, url string, args ...string) (r Response, err error) {
	out, err := c.Run(program, append([]string{"-once", "-url", url}, args...)...)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal([]byte(out), &r)
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
	cmd   *exec.Cmd
	input io.Closer // ends it
	out   bytes.Buffer
}

// StartLoad starts the program load of module test/kubernetes on the node.
func (c *Cluster) StartLoad(program, url string, args ...string) (*Load, error) {
	return startLoad(c.Command(program, append([]string{"-url", url}, args...)...))
}

// StartLoadIn starts the program /load in a container.
func (c *Cluster) StartLoadIn(namespace, pod, container, url string, args ...string) (*Load, error) {
	return startLoad(c.KubectlCommand(append([]string{"exec", "--stdin", "--namespace", namespace, pod, "--container", container, "--", "/load", "-url", url}, args...)...))
}

func startLoad(cmd *exec.Cmd) (_ *Load, err error) {
	l := &Load{cmd: cmd}
	if l.input, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = &l.out, &l.out
	return l, cmd.Start()
}

// Stop ends the load, and returns what came of it.
func (l *Load) Stop() (Report, error) {
	_ = l.input.Close()
	err := l.cmd.Wait()
	var r Report
	if err := json.Unmarshal(l.out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("the load wrote %q: %w", l.out.String(), err)
	}
	return r, err
}
