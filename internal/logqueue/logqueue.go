// Package logqueue writes lines to an output that may block, fail, or have no reader any more, such as standard error
// when a log driver hangs or has ended.
//
// It promises that who writes a line never waits for the output, and never fails because of it: lines wait in a queue
// of bounded size, from which one goroutine writes them in their order. What does not fit, or could not be written, is
// dropped, counted and, as soon as lines are written again, said in the log. It does not know what is in a line. All
// methods may be called concurrently.
package logqueue

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Room is how many bytes of each source may wait.
const Room = 1 << 20

// flushWithin is how long Close waits for an output that does not take the lines.
const flushWithin = time.Second

// atOnce is how many bytes are written at once, in whole lines; a longer line is written alone. Others may write to the
// same pipe, and up to so many bytes are not mixed with theirs (PIPE_BUF in pipe(7)).
const atOnce = 4096

// askAgain is the pause before the output is tried again that is full and does not block (EAGAIN): another process may
// have made it so.
const askAgain = 20 * time.Millisecond

// Stats describes what became of the lines.
type Stats struct {
	// Dropped counts the lines that were not written, by their source.
	Dropped map[string]uint64
	// Stuck is since when the output has taken nothing: a write has not returned, or each has failed. It is the zero
	// time if the last write succeeded. Err is then why it failed; nil while a write has not returned.
	Stuck time.Time
	Err   error
}

// Queue passes on the lines of its sources. Make one with New, and end it with Close.
type Queue struct {
	out io.Writer
	// log gets a warning about lines that were dropped; nil for none.
	log *slog.Logger

	mu      sync.Mutex
	sources []*source
	lines   []line    // that wait, the oldest first
	closing bool      // Close was called
	ended   bool      // nothing is written any more
	writing time.Time // when the write began that has not returned; zero for none
	failing time.Time // when the first began of the writes in a row that have failed; zero for none
	err     error     // of the last write
	torn    bool      // what was written last ended within a line

	changed chan struct{} // holds a value when there are lines, or Close was called
	done    chan struct{} // closed when ended
}

type line struct {
	from *source
	text []byte
}

// source is an io.Writer whose lines have room of their own in the queue. Its fields are guarded by the mutex of the queue.
type source struct {
	queue   *Queue
	name    string
	waiting int    // bytes
	dropped uint64 // lines
	unsaid  uint64 // those of them that the log was not told of
}

// New returns a queue in front of an output, which nobody else may write to as long as the queue is not closed.
func New(out io.Writer) *Queue {
	q := &Queue{out: out, changed: make(chan struct{}, 1), done: make(chan struct{})}
	go q.run()
	return q
}

// From returns where a source writes its lines: each Write has whole lines, of any size. It never fails.
func (q *Queue) From(name string) io.Writer {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.sources {
		if s.name == name {
			return s
		}
	}
	s := &source{queue: q, name: name}
	q.sources = append(q.sources, s)
	return s
}

// Report lets a log, which may write to this queue, say which lines were dropped, when lines are written again.
func (q *Queue) Report(log *slog.Logger) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.log = log
}

func (s *source) Write(text []byte) (int, error) {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || s.waiting > 0 && s.waiting+cost(text) > Room {
		s.drop(countLines(text))
		return len(text), nil
	}
	s.waiting += cost(text)
	q.lines = append(q.lines, line{from: s, text: bytes.Clone(text)})
	q.wake()
	return len(text), nil
}

// cost is how much of Room a text takes: what the queue needs for it counts, too.
func cost(text []byte) int { return len(text) + 64 }

// drop counts lines that are not written. The caller holds the mutex of the queue.
func (s *source) drop(n int) {
	s.dropped += uint64(n)
	s.unsaid += uint64(n)
}

// countLines counts lines; the last one may lack its end.
func countLines(text []byte) int {
	n := bytes.Count(text, []byte("\n"))
	if len(text) > 0 && text[len(text)-1] != '\n' {
		n++
	}
	return n
}

// wake tells the writer that something has changed. The caller holds mu.
func (q *Queue) wake() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// Close writes what waits, for a second at most, and returns. What is written to a source later is dropped.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closing = true
	q.wake()
	q.mu.Unlock()
	timer := time.NewTimer(flushWithin)
	defer timer.Stop()
	select {
	case <-q.done:
	case <-timer.C:
	}
}

// Stats returns what became of the lines until now.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	stats := Stats{Dropped: make(map[string]uint64, len(q.sources)), Stuck: q.failing}
	for _, s := range q.sources {
		stats.Dropped[s.name] = s.dropped
	}
	if !q.failing.IsZero() {
		stats.Err = q.err
	}
	if stats.Stuck.IsZero() {
		stats.Stuck = q.writing
	}
	return stats
}

// run is the writer: it ends when Close was called and nothing waits.
func (q *Queue) run() {
	defer close(q.done)
	for !q.over() {
		if batch := q.next(); len(batch) > 0 {
			q.write(batch)
		} else if !q.sayGaps() {
			<-q.changed
		}
	}
}

// over ends the queue if Close was called and nothing waits.
func (q *Queue) over() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = q.closing && len(q.lines) == 0 && len(q.gaps()) == 0
	return q.ended
}

// next takes what is written at once out of the queue.
func (q *Queue) next() (batch []line) {
	q.mu.Lock()
	defer q.mu.Unlock()
	size, n := 0, 0
	for _, l := range q.lines {
		if n > 0 && size+len(l.text) > atOnce {
			break
		}
		size, n = size+len(l.text), n+1
		l.from.waiting -= cost(l.text)
	}
	batch, q.lines = q.lines[:n:n], q.lines[n:]
	if len(q.lines) == 0 {
		q.lines = nil // its array is as large as the queue has ever been
	}
	if n > 0 {
		q.writing = time.Now()
	}
	return batch
}

// sayGaps lets the log say what was dropped, and reports whether there was something to say.
func (q *Queue) sayGaps() bool {
	q.mu.Lock()
	gaps, log := q.gaps(), q.log
	for _, g := range gaps {
		g.from.unsaid = 0
	}
	q.mu.Unlock()
	for _, g := range gaps {
		log.Warn("lines are missing here, because the output did not take them", "lines", g.lines, "from", g.from.name)
	}
	return len(gaps) > 0
}

type gap struct {
	from  *source
	lines uint64
}

// gaps returns what the log is to be told of: nothing without a log, and while the output takes nothing. The caller holds mu.
func (q *Queue) gaps() (gaps []gap) {
	if q.log == nil || !q.failing.IsZero() {
		return nil
	}
	for _, s := range q.sources {
		if s.unsaid > 0 {
			gaps = append(gaps, gap{s, s.unsaid})
		}
	}
	return gaps
}

// write writes lines, and counts those that could not be written.
func (q *Queue) write(batch []line) {
	var text []byte
	if q.torn {
		text = append(text, '\n')
	}
	before := len(text)
	for _, l := range batch {
		text = append(text, l.text...)
	}
	n, err := q.insist(text)
	q.mu.Lock()
	defer q.mu.Unlock()
	began := q.writing
	q.writing, q.err = time.Time{}, err
	if n > 0 {
		q.torn = text[n-1] != '\n'
	}
	if err == nil {
		q.failing = time.Time{}
		return
	}
	if q.failing.IsZero() {
		q.failing = began
	}
	written := max(0, n-before)
	for _, l := range batch {
		if written < len(l.text) {
			l.from.drop(countLines(l.text[written:]))
		}
		written = max(0, written-len(l.text))
	}
}

// insist writes to an output that may be full and not block.
func (q *Queue) insist(text []byte) (n int, err error) {
	for {
		var wrote int
		wrote, err = q.out.Write(text[n:])
		n += max(0, wrote)
		if !errors.Is(err, syscall.EAGAIN) || n == len(text) {
			return n, err
		}
		time.Sleep(askAgain)
	}
}

var dropped = prometheus.NewDesc("holdfast_log_lines_dropped_total",
	"Lines of the log, or of Envoy as a child, that were not written because standard error did not take them.", []string{"from"}, nil)

// Describe and Collect make the queue a prometheus.Collector of what was dropped.
func (q *Queue) Describe(to chan<- *prometheus.Desc) { to <- dropped }

func (q *Queue) Collect(to chan<- prometheus.Metric) {
	for from, n := range q.Stats().Dropped {
		to <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(n), from)
	}
}
