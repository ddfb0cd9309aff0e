// Package procs sets how many processors run Go code at once (GOMAXPROCS).
//
// An update is handled by five goroutines, one after the other, each for microseconds. With several
// processors, each handover wakes a thread on another processor, which costs more than the work itself:
// with one client, one processor needs a fifth less CPU time than two, and is not slower
// (docs/performance.md). Envoy can use the other processors. Only serving many clients benefits from
// parallelism.
//
// It promises to respect GOMAXPROCS of the environment. All methods may be called concurrently.
package procs

import (
	"runtime"
	"sync"
	"time"
)

const (
	// maxProcessors is the greatest number of processors in use: each has caches of its own.
	maxProcessors = 4
	// clientsPerProcessor is the number of clients that justify another processor.
	clientsPerProcessor = 8
	// startDelay is how long all processors are used at first: there may be state to read.
	startDelay = 250 * time.Millisecond
)

// Yield lets the goroutines run that the caller has woken, if there is only one processor: they would otherwise wait
// until the caller does. With several they run already.
func Yield() {
	if runtime.GOMAXPROCS(0) == 1 {
		runtime.Gosched()
	}
}

// Procs sets GOMAXPROCS. Create it with New.
type Procs struct {
	max int // 0: the environment says how many

	mu      sync.Mutex
	started bool
	clients int
}

// New uses all processors, at most four, for a quarter of a second, and then as many as the clients
// need. Go respects the CPU limit of the container. If the environment sets GOMAXPROCS, New and Serve
// do nothing.
func New(environ func(string) string) *Procs {
	if environ("GOMAXPROCS") != "" {
		return &Procs{}
	}
	p := &Procs{max: min(runtime.GOMAXPROCS(0), maxProcessors)}
	p.update()
	time.AfterFunc(startDelay, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.started = true
		p.update()
	})
	return p
}

// Serve sets the number of connected clients.
func (p *Procs) Serve(clients int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients = clients
	p.update()
}

// update sets GOMAXPROCS, which stops the process for a moment if the value changes.
func (p *Procs) update() {
	n := p.max
	if p.started {
		n = min(n, 1+p.clients/clientsPerProcessor)
	}
	runtime.GOMAXPROCS(n) // 0 changes nothing
}
