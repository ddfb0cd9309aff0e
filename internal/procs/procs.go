// Package procs decides how many processors run Go at once (GOMAXPROCS).
//
// A change costs microseconds of work in each of five goroutines, one after another. Where there
// is another processor each hand-over wakes a thread on it, which costs more than the work: with
// one client, one processor needs a third less CPU time than two, and is faster (docs/performance.md).
// Envoy has better uses for the other. Only clients are served in parallel to advantage.
package procs

import (
	"runtime"
	"sync"
)

const (
	// limit is how many processors are used at most: each has caches of its own.
	limit = 4
	// clientsFor is how many clients are worth another processor.
	clientsFor = 8
)

// Procs sets GOMAXPROCS. Make one with New.
type Procs struct {
	mu   sync.Mutex
	most int // 0: the environment says how many
	now  int
}

// New uses as many as there are, at most four, until the first client comes: there may be state
// to read. Go knows of the CPU limit of the container. Nothing is done, now and later, if
// the environment sets GOMAXPROCS, as it may for every Go program.
func New(environ func(string) string) *Procs {
	p := &Procs{}
	if environ("GOMAXPROCS") == "" {
		p.most = min(runtime.GOMAXPROCS(0), limit)
		p.use(p.most)
	}
	return p
}

// Serve takes in how many clients are connected. It may be called concurrently.
func (p *Procs) Serve(clients int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.most > 0 {
		p.use(min(1+clients/clientsFor, p.most))
	}
}

// use sets how many are used. To do so stops the process for a moment.
func (p *Procs) use(n int) {
	if n != p.now {
		p.now = n
		runtime.GOMAXPROCS(n)
	}
}
