package logqueue

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// output is an output whose next writes have results of their own; without one, it takes everything.
type output struct {
	mu      sync.Mutex
	text    bytes.Buffer
	results []result
	blocked chan struct{} // if set, a write waits until it is closed
}

type result struct {
	n   int
	err error
}

func (o *output) Write(text []byte) (int, error) {
	if o.blocked != nil {
		<-o.blocked
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.results) > 0 {
		r := o.results[0]
		o.results = o.results[1:]
		o.text.Write(text[:r.n])
		return r.n, r.err
	}
	return o.text.Write(text)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// logTo lets the queue report into itself, with lines that have no time.
func logTo(q *Queue) {
	noTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	q.Report(slog.New(slog.NewTextHandler(q.From("holdfast"), &slog.HandlerOptions{ReplaceAttr: noTime})))
}

func missing(n int, from string) string {
	return fmt.Sprintf("level=WARN msg=\"lines are missing here, because the output did not take them\" lines=%d from=%s\n", n, from)
}

func TestLinesAreWrittenInTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &output{}
		q := New(out)
		long := strings.Repeat("x", 3*atOnce) + "\n"
		want := ""
		for i, text := range []string{"one\n", "two\nthree\n", long, "four\n"} {
			want += text
			if n, err := q.From([]string{"holdfast", "envoy"}[i%2]).Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("Write = %d, %v", n, err)
			}
		}
		q.Close()
		if out.String() != want {
			t.Errorf("%q", out)
		}
		_, _ = io.WriteString(q.From("envoy"), "late\n")
		if stats := q.Stats(); stats.Dropped["holdfast"] != 0 || stats.Dropped["envoy"] != 1 || !stats.Stuck.IsZero() {
			t.Errorf("%+v", stats)
		}
	})
}

// An output that takes nothing stops nobody, needs no more than its room, and one source does not take that of another.
func TestAnOutputThatBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &output{blocked: make(chan struct{})}
		q := New(out)
		logTo(q)
		began := time.Now()
		line := strings.Repeat("e", 999) + "\n"
		const lines = 3000
		for range lines {
			_, _ = io.WriteString(q.From("envoy"), line)
		}
		synctest.Wait()
		_, _ = io.WriteString(q.From("holdfast"), "ours\n")
		time.Sleep(time.Minute)
		stats := q.Stats()
		if kept := lines - stats.Dropped["envoy"]; kept*uint64(len(line)) > Room+2*atOnce || kept < 900 {
			t.Errorf("%d lines are kept", kept)
		}
		if stats.Dropped["holdfast"] != 0 || !stats.Stuck.Equal(began) || stats.Err != nil {
			t.Errorf("%+v", stats)
		}
		if got := testutil.CollectAndCount(q); got != 2 {
			t.Errorf("%d metrics", got)
		}

		close(out.blocked)
		synctest.Wait()
		want := strings.Repeat(line, lines-int(stats.Dropped["envoy"])) + "ours\n" + missing(int(stats.Dropped["envoy"]), "envoy")
		if got := out.String(); got != want {
			t.Errorf("%d bytes are written, want %d, ending with %q", len(got), len(want), got[max(0, len(got)-300):])
		}
		if stats := q.Stats(); !stats.Stuck.IsZero() {
			t.Errorf("%+v", stats)
		}
		q.Close()
	})
}

// The end waits a second for an output that blocks.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &output{blocked: make(chan struct{})}
		q := New(out)
		_, _ = io.WriteString(q.From("holdfast"), "one\n")
		began := time.Now()
		q.Close()
		if took := time.Since(began); took != flushWithin {
			t.Errorf("Close took %s", took)
		}
		close(out.blocked) // lets the goroutine of the test end
	})
}

// What cannot be written is counted, and said when the output is well again: once, and after the lines before it.
func TestAnOutputThatFails(t *testing.T) {
	full := result{0, syscall.ENOSPC}
	for name, row := range map[string]struct {
		results []result
		want    string
	}{
		"once":           {[]result{full}, "b\n" + missing(1, "envoy") + "c\n"},
		"twice":          {[]result{full, full}, "c\n" + missing(2, "envoy")},
		"within a line":  {[]result{{1, syscall.ENOSPC}}, "a\nb\n" + missing(1, "envoy") + "c\n"},
		"full for now":   {[]result{{0, syscall.EAGAIN}, {1, syscall.EAGAIN}}, "aa\nb\nc\n"},
		"nothing at all": {nil, "aa\nb\nc\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out := &output{results: row.results}
				q := New(out)
				logTo(q)
				for _, text := range []string{"aa\n", "b\n", "c\n"} {
					_, _ = io.WriteString(q.From("envoy"), text)
					time.Sleep(time.Second)
				}
				if out.String() != row.want {
					t.Errorf("%q, want %q", out, row.want)
				}
				q.Close()
			})
		})
	}
}

// Who has lost its reader for good goes on, without telling itself of it again and again.
func TestNobodyReadsAnyMore(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	q := New(w)
	logTo(q)
	for range 3 {
		_, _ = io.WriteString(q.From("envoy"), "a line\n")
	}
	q.Close()
	if stats := q.Stats(); stats.Dropped["envoy"] != 3 || stats.Dropped["holdfast"] != 0 || !errors.Is(stats.Err, syscall.EPIPE) || stats.Stuck.IsZero() {
		t.Errorf("%+v", stats)
	}
}
