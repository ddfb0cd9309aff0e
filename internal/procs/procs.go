// Package procs decides how many processors run Go at once (GOMAXPROCS).
//
// A change costs microseconds of work in each of five goroutines, one after another. Where there
// is another processor each hand-over wakes a thread on it, which costs more than the work: with
// one client, one processor needs a fifth less CPU time than two, and is not slower
// (docs/performance.md). Envoy has better uses for the other. Only clients are served in parallel
// to advantage.
package procs

import (
	"runtime"
	"sync"
	"time"
)

const (
	// limit is how many processors are used at most: each has caches of its own.
	limit = 4
	// clientsFor is how many clients are worth another processor.
	clientsFor = 8
	// start is how long all are used at first: there may be state to read.
	start = 250 * time.Millisecond
)

// Procs sets GOMAXPROCS. Make one with New.
type Procs struct {
	most int // 0: the environment says how many

	mu      sync.Mutex
	started bool
	clients int
}

// New uses as many as there are, at most four, for a quarter of a second, and then as many as
// the clients need. Go knows of the CPU limit of the container. Nothing is done, now and later,
// if the environment sets GOMAXPROCS, as it may for every Go program.
func New(environ func(string) string) *Procs {
	if environ("GOMAXPROCS") != "" {
		return &Procs{}
	}
	p := &Procs{most: min(runtime.GOMAXPROCS(0), limit)}
	p.use()
	time.AfterFunc(start, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.started = true
		p.use()
	})
	return p
}

// Serve takes in how many clients are connected. It may be called concurrently.
func (p *Procs) Serve(clients int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients = clients
	p.use()
}

// use sets how many are used, which stops the process for a moment if that changes.
func (p *Procs) use() {
	n := p.most
	if p.started {
		n = min(n, 1+p.clients/clientsFor)
	}
	runtime.GOMAXPROCS(n) // 0 changes nothing
}
