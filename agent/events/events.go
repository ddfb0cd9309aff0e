// Package events records what happened to an agent, so that an operator can look back: what its log says
// at Info and above, and which resources changed.
//
// It promises that:
//   - recording never blocks and never fails: what cannot be kept or written is counted;
//   - the events in memory are bounded in bytes, those on disk by two files of MaxFile each;
//   - changes of resources are folded, so that endpoints that change all the time cost about one event a
//     minute for each type;
//   - no event has a secret: the log has none, and of resources only the names are recorded.
//
// A Log is made with New, which does no I/O. Run owns its goroutine. All other methods may be called
// concurrently.
package events

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Event is something that happened.
type Event struct {
	Time time.Time `json:"time"`
	// Until is when the last of several changes happened that are one event; the zero time for one.
	Until time.Time `json:"until,omitzero"`
	// Level is that of the log: INFO, WARN or ERROR.
	Level string `json:"level"`
	Text  string `json:"text"`
	// Node is the id of the clients' node; "" for what concerns the agent as a whole.
	Node string `json:"node,omitempty"`
	// Type is the short name of a type of resources, and Name a resource or a certificate.
	Type string `json:"type,omitempty"`
	Name string `json:"name,omitempty"`
	// Counts counts the changes of resources: added, changed, removed, expired, withheld, acked. Names are the first
	// MaxNames of them.
	Counts map[string]int `json:"counts,omitempty"`
	Names  []string       `json:"names,omitempty"`
	// Details are further attributes, as the log has them.
	Details []Detail `json:"details,omitempty"`
}

// Detail is an attribute of an event.
type Detail struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

const (
	// MaxNames bounds the names of one event.
	MaxNames = 100
	// maxMemory bounds the bytes of the events in memory, about.
	maxMemory = 256 << 10
	// maxText bounds a text and a value.
	maxText = 2 << 10
	// maxBacklog bounds the events that a slow disk or follower has not taken.
	maxBacklog = 1024
)

// size returns about what an event takes in memory.
func (e *Event) size() int {
	n := 200 + len(e.Text) + len(e.Node) + len(e.Name)
	for _, name := range e.Names {
		n += 16 + len(name)
	}
	for _, d := range e.Details {
		n += 32 + len(d.Key) + len(d.Value)
	}
	return n
}

// Line returns the event as one line for a person, without its time.
func (e *Event) Line() string {
	var b strings.Builder
	if e.Level != slog.LevelInfo.String() {
		b.WriteString(e.Level + " ")
	}
	b.WriteString(e.Text)
	if len(e.Counts) > 0 {
		return b.String()
	}
	if e.Type != "" {
		b.WriteString(" type=" + e.Type)
	}
	if e.Name != "" {
		b.WriteString(" name=" + e.Name)
	}
	for _, d := range e.Details {
		b.WriteString(" " + d.Key + "=" + d.Value)
	}
	return b.String()
}

// Filter selects events; empty fields match everything.
type Filter struct {
	Since time.Time
	Node  string
	// Type is a short name.
	Type, Name string
}

// Admits reports whether an event passes the filter. An event with more names than it lists passes for
// every name.
func (f Filter) Admits(e *Event) bool {
	switch {
	case cmp.Or(e.Until, e.Time).Before(f.Since):
		return false
	case f.Node != "" && f.Node != e.Node:
		return false
	case f.Type != "" && !strings.EqualFold(f.Type, e.Type):
		return false
	}
	return f.Name == "" || f.Name == e.Name || slices.Contains(e.Names, f.Name) || len(e.Names) == MaxNames
}

// Log keeps events. Make one with New and call Run.
type Log struct {
	file *file // nil for memory only
	// plain is the log without the events.
	plain *slog.Logger
	wake  chan struct{}

	mu        sync.Mutex
	events    []Event
	bytes     int
	folds     map[foldKey]*fold
	followers map[*Follower]struct{}
	unwritten []Event
	total     uint64
	lost      uint64 // that were not written to disk
}

// New returns an empty log. path is the file of the events on disk, "" for none.
func New(path string) *Log {
	l := &Log{
		plain: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1),
		folds: make(map[foldKey]*fold), followers: make(map[*Follower]struct{}),
	}
	if path != "" {
		l.file = &file{path: path}
	}
	return l
}

// TakeLocks takes and releases the lock, for a watchdog.
func (l *Log) TakeLocks() { watchdog.Lock(&l.mu) }

// Record adds an event.
func (l *Log) Record(e Event) {
	e.Time = e.Time.UTC().Round(0)
	e.Text = bounded(e.Text)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total++
	l.keep(e)
	for f := range l.followers {
		f.add(e)
	}
	if l.file != nil {
		if len(l.unwritten) == maxBacklog {
			l.unwritten = l.unwritten[1:]
			l.lost++
		}
		l.unwritten = append(l.unwritten, e)
		wake.Signal(l.wake)
	}
}

// keep adds an event to those in memory. Called under mu.
func (l *Log) keep(e Event) {
	l.events = append(l.events, e)
	l.bytes += e.size()
	first := 0
	for l.bytes > maxMemory && first < len(l.events)-1 {
		l.bytes -= l.events[first].size()
		first++
	}
	l.events = slices.Delete(l.events, 0, first)
}

func bounded(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// Select returns the events in memory that pass a filter, the oldest first.
func (l *Log) Select(f Filter) (out []Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.events {
		if f.Admits(&l.events[i]) {
			out = append(out, l.events[i])
		}
	}
	return inOrder(out)
}

// inOrder sorts events by time: changes are recorded when they were folded.
func inOrder(list []Event) []Event {
	slices.SortStableFunc(list, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return list
}

// Counts returns how many events were recorded since the start, and how many of them are missing on disk.
func (l *Log) Counts() (total, lost uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total, l.lost
}

// Follower gets the events that are recorded from now on.
type Follower struct {
	l *Log
	// Under l.mu.
	events []Event
	missed int
	wake   chan struct{}
}

// Follow returns the events so far that pass a filter, and a Follower of those to come, which the caller
// must close.
func (l *Log) Follow(filter Filter) ([]Event, *Follower) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &Follower{l: l, wake: make(chan struct{}, 1)}
	l.followers[f] = struct{}{}
	var out []Event
	for i := range l.events {
		if filter.Admits(&l.events[i]) {
			out = append(out, l.events[i])
		}
	}
	return inOrder(out), f
}

// add is called under mu.
func (f *Follower) add(e Event) {
	if len(f.events) == maxBacklog {
		f.missed++
		return
	}
	f.events = append(f.events, e)
	wake.Signal(f.wake)
}

// Next waits for events, and returns them. missed is how many were left out because the caller is too
// slow. It returns none when ctx ends.
func (f *Follower) Next(ctx context.Context) (out []Event, missed int) {
	for {
		f.l.mu.Lock()
		out, missed, f.events, f.missed = f.events, f.missed, nil, 0
		f.l.mu.Unlock()
		if len(out) > 0 {
			return out, missed
		}
		select {
		case <-ctx.Done():
			return nil, 0
		case <-f.wake:
		}
	}
}

// Close ends the Follower.
func (f *Follower) Close() {
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	delete(f.l.followers, f)
}

// Run folds changes and writes to disk until ctx ends; it then writes what is left.
func (l *Log) Run(ctx context.Context) error {
	wake.Loop(ctx, l.wake, func() time.Time {
		next := l.fold(time.Now(), false)
		return wake.Earliest(next, l.write(time.Now()))
	})
	l.fold(time.Now(), true)
	l.write(time.Now())
	if l.file != nil {
		l.file.close()
	}
	return nil
}

// write writes to disk what was recorded, and returns when that must be tried again; the zero time for
// not.
func (l *Log) write(now time.Time) (retry time.Time) {
	if l.file == nil {
		return retry
	}
	if now.Before(l.file.retryAt) {
		return l.file.retryAt
	}
	l.mu.Lock()
	batch := l.unwritten
	l.unwritten = nil
	l.mu.Unlock()
	if len(batch) == 0 {
		return retry
	}
	var text []byte
	for _, e := range batch {
		line, err := json.Marshal(e)
		if err != nil {
			continue // there is nothing in an event that cannot be marshalled
		}
		text = append(append(text, line...), '\n')
	}
	if err := l.file.append(text); err != nil {
		l.mu.Lock()
		l.unwritten = append(batch, l.unwritten...)
		if more := len(l.unwritten) - maxBacklog; more > 0 {
			l.unwritten = slices.Delete(l.unwritten, 0, more)
			l.lost += uint64(more)
		}
		l.mu.Unlock()
		if l.file.failed(now) {
			l.plain.Warn("events cannot be written to disk; they are in memory only until they can", "err", err)
		}
		return l.file.retryAt
	}
	return retry
}

// Restore reads back the newest events on disk. It is called once, before Run.
func (l *Log) Restore() {
	if l.file == nil {
		return
	}
	old, err := Read(l.file.path, Filter{})
	if err != nil {
		return // there is none, or it cannot be read; write says so
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	newer := l.events
	l.events, l.bytes = nil, 0
	for _, e := range append(old, newer...) {
		l.keep(e)
	}
}

// Folding.

const (
	// firstFold is how long the first changes of a type are collected, minFold and maxFold bound the time
	// while changes go on.
	firstFold = 100 * time.Millisecond
	minFold   = time.Second
	maxFold   = time.Minute
)

type foldKey struct{ node, typeURL string }

// fold collects the changes of one type.
type fold struct {
	first, last time.Time // of the changes; zero for none yet
	counts      map[string]int
	names       []string
	due         time.Time
	window      time.Duration
}

// Change is what happened to a resource.
type Change string

// The changes of a resource.
const (
	Added   Change = "added"
	Changed Change = "changed"
	Removed Change = "removed"
	Expired Change = "expired"
	// ACKed: a client accepted a content that none had accepted before.
	ACKed Change = "acked"
	// Withheld: the control plane changed it, which is not served because it is frozen.
	Withheld Change = "withheld"
)

// Resource records a change of a resource for the clients of a node.
func (l *Log) Resource(node, typeURL, name string, what Change) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	k := foldKey{node, typeURL}
	f := l.folds[k]
	if f == nil {
		f = &fold{counts: make(map[string]int), window: firstFold, due: now.Add(firstFold)}
		l.folds[k] = f
		wake.Signal(l.wake)
	}
	if f.first.IsZero() {
		f.first = now
	}
	f.last = now
	f.counts[string(what)]++
	if len(f.names) < MaxNames && (len(f.names) == 0 || f.names[len(f.names)-1] != name) && !slices.Contains(f.names[max(0, len(f.names)-4):], name) {
		f.names = append(f.names, name)
	}
}

// fold records the changes that are due, or all of them, and returns when more are; the zero time for
// none.
func (l *Log) fold(now time.Time, all bool) (next time.Time) {
	var out []Event
	l.mu.Lock()
	for k, f := range l.folds {
		switch {
		case now.Before(f.due) && !all:
			next = wake.Earliest(next, f.due)
		case f.first.IsZero(): // nothing changed within the window
			delete(l.folds, k)
		default:
			out = append(out, f.event(k))
			f.window = min(max(minFold, 2*f.window), maxFold)
			f.due = now.Add(f.window)
			f.first, f.counts, f.names = time.Time{}, make(map[string]int), nil
			next = wake.Earliest(next, f.due)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(out, func(a, b Event) int { return a.Time.Compare(b.Time) })
	for _, e := range out {
		l.Record(e)
		l.plain.Info("resources changed", "node", e.Node, "type", e.Type, "changes", e.Text)
	}
	return next
}

// event returns the changes as one event: "CDS: 3 added, 1 changed, 0 removed (shop-v2, …)".
func (f *fold) event(k foldKey) Event {
	e := Event{Time: f.first, Level: slog.LevelInfo.String(), Node: k.node, Type: xds.Short(k.typeURL), Counts: f.counts, Names: f.names}
	if f.last.Sub(f.first) >= time.Second {
		e.Until = f.last.UTC().Round(0)
	}
	var parts []string
	for _, what := range []Change{Added, Changed, Removed, Expired, Withheld, ACKed} {
		if n := f.counts[string(what)]; n > 0 {
			text := string(what)
			if what == ACKed {
				text = "ACKed"
			}
			parts = append(parts, fmt.Sprintf("%d %s", n, text))
		}
	}
	const most = 3
	names := slices.Clone(f.names[:min(most, len(f.names))])
	if len(f.names) > most {
		names = append(names, "…")
	}
	e.Text = fmt.Sprintf("%s: %s (%s)", e.Type, strings.Join(parts, ", "), strings.Join(names, ", "))
	return e
}
