// Package memory keeps the memory of the process low: there is one agent in every pod, so
// that what it holds for nothing is multiplied by a fleet.
package memory

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// How much garbage there may be before it is collected: gcPercent of what is held, but at
// least minGarbage, since to look through little for little costs time, and at most
// maxGarbage, for which looking through much is worth while; in bytes. Go's own is as much
// as is held.
const (
	gcPercent  = 50
	minGarbage = 8 << 20
	maxGarbage = 24 << 20
)

// heapShare is the part of the container's memory that Go may use before it collects
// harder; the rest is for what it does not count, and for an Envoy in the container.
const heapShare = 0.8

// Limit sets how Go's collector works, unless the environment says it, as it may for every Go
// program: GOGC and GOMEMLIMIT. container is the memory of the container in bytes, 0 for no
// limit.
func Limit(environ func(string) string, container uint64, log *slog.Logger) {
	if environ("GOGC") == "" {
		tune()
	}
	if environ("GOMEMLIMIT") == "" && container > 0 {
		limit := int64(heapShare * float64(container))
		debug.SetMemoryLimit(limit)
		log.Debug("memory", "container", container, "soft_limit", limit)
	}
}

// tune sets the collector by what is held, now and after each collection.
func tune() {
	percent := 0
	var after func(*collection)
	after = func(of *collection) {
		if p := percentOf(read().live); p != percent {
			percent = p
			debug.SetGCPercent(p)
		}
		runtime.SetFinalizer(of, after) // until the next one
	}
	after(&collection{})
}

// collection is garbage at once, and so finalized by each collection. Smaller ones share a
// block with others that may be held.
type collection struct{ _ [16]byte }

// percentOf returns GOGC for what is held, in steps: to change it stops the process.
func percentOf(live uint64) int {
	live = max(live, 1<<20)
	garbage := min(max(live*gcPercent/100, minGarbage), maxGarbage)
	percent := int(garbage * 100 / live)
	return max(percent-percent%10, 10)
}

// Go gives memory back by itself, but keeps what it may need again, and half of what is
// held as room for garbage; and what a burst touched of the program stays resident. After
// a burst, when all is quiet, both are given back.
const (
	// period is how often it is looked whether all is quiet.
	period = 2 * time.Second
	// quiet is how much may be allocated in a period that is quiet, in bytes.
	quiet = 512 << 10
	// burst is how much must have been allocated for it to be worth while, in bytes; of a
	// large heap, whose collection costs more, an eighth of what is held.
	burst      = 2 << 20
	burstShare = 8
	// start is how long the program is left alone at first: to map pages again in
	// the midst of a start costs a fifth of it.
	start = 250 * time.Millisecond
)

// GiveBack gives back what of the program only its start needed, and then what a burst
// left, each time that one is over, until ctx ends.
func GiveBack(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	started := time.After(start)
	b := bursts{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-started:
			giveBackProgram(log)
			continue
		case <-tick.C:
		}
		if !b.over(read()) {
			continue
		}
		debug.FreeOSMemory()
		giveBackProgram(log)
		b.begin(read())
	}
}

// heap is how much was allocated since the process began, and how much was held when the
// collector last looked, in bytes.
type heap struct{ allocated, live uint64 }

func read() heap {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return heap{s[0].Value.Uint64(), s[1].Value.Uint64()}
}

// bursts tells when a burst of allocations is over.
type bursts struct{ begun, last uint64 }

// begin begins to wait for one.
func (b *bursts) begin(h heap) { b.begun, b.last = h.allocated, h.allocated }

// over reports whether there was a burst, and nothing much since the last call.
func (b *bursts) over(h heap) bool {
	still := h.allocated-b.last < quiet
	b.last = h.allocated
	return still && h.allocated-b.begun >= max(burst, h.live/burstShare)
}
