// Package memory reduces the memory of the process: there is an agent in every pod, so unused memory is
// multiplied by a fleet.
//
// It promises to respect GOGC and GOMEMLIMIT of the environment. It does not limit memory: Go may
// exceed the soft limit. Limit must be called once, and GiveBack and Left may run concurrently with everything
// else.
package memory

import (
	"context"
	"log/slog"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// The garbage that may accumulate before a collection: gcPercent of the live heap, but at least
// minGarbage, because frequent small collections cost time, and at most maxGarbage, which is enough to
// justify a collection of a large heap; in bytes. Go's default is 100 percent of the live heap.
// While tens of thousands of updates a second replace each other, it is maxGarbage, because a fifth of the CPU time
// would be collections: if in each of the last churnFor intervals between collections at least churnRate bytes were
// allocated a second, and the live heap grew by an eighth at most. After a single burst, such as the first
// configuration, more room would have left more gaps between what is kept.
const (
	gcPercent  = 50
	minGarbage = 8 << 20
	maxGarbage = 24 << 20
	churnRate  = 40 << 20
	churnFor   = 8
)

// minHeap is Go's least size of the heap before a collection, for a GOGC of 100, in bytes.
const minHeap = 4 << 20

// heapShare is the part of the container's memory that Go may use before it collects more often. The
// rest is for memory that Go does not count, and for an Envoy in the same container.
const heapShare = 0.8

// Limit configures Go's garbage collector, unless the environment does (GOGC and GOMEMLIMIT). container
// is the memory limit of the container in bytes, 0 for none.
func Limit(environ func(string) string, container uint64, log *slog.Logger) {
	if environ("GOGC") == "" {
		followHeap()
	}
	if environ("GOMEMLIMIT") == "" && container > 0 {
		limit := int64(heapShare * float64(container))
		debug.SetMemoryLimit(limit)
		log.Debug("memory", "container", container, "soft_limit", limit)
	}
}

// followHeap sets GOGC according to the live heap, now and after each collection.
func followHeap() {
	percent := 0
	var rhythm gcRhythm
	var after func(*gcSentinel)
	after = func(of *gcSentinel) {
		h := readHeap()
		if p := gcPercentFor(h.live, rhythm.churns(h, time.Now())); p != percent {
			percent = p
			debug.SetGCPercent(p)
		}
		runtime.SetFinalizer(of, after) // runs again after the next collection
	}
	after(&gcSentinel{})
}

// gcRhythm knows the heap after the last collection, when that was, and how many intervals in a row were churn.
type gcRhythm struct {
	heap
	at    time.Time
	churn int
}

// churns reports, after a collection, whether there has been churn for long enough: much was allocated, and hardly
// more than before is held.
func (r *gcRhythm) churns(h heap, now time.Time) bool {
	rate := float64(h.allocated-r.allocated) / max(now.Sub(r.at).Seconds(), 1e-6)
	if rate >= churnRate && h.live <= r.live+r.live/8 {
		r.churn++
	} else {
		r.churn = 0
	}
	r.heap, r.at = h, now
	return r.churn >= churnFor
}

// gcSentinel is an object that becomes garbage immediately, so that its finalizer runs after each
// collection. Its size is 16 bytes because smaller objects may share a block with live ones.
type gcSentinel struct{ _ [16]byte }

// gcPercentFor returns GOGC for a live heap, in steps, because changing it stops the process. churns is as in
// gcRhythm.
func gcPercentFor(live uint64, churns bool) int {
	live = max(live, 1<<20)
	garbage := min(max(live*gcPercent/100, minGarbage), maxGarbage)
	percent := garbage * 100 / live
	if churns {
		// A small heap may be as large as GOGC allows it for minHeap.
		percent = max(percent, min(maxGarbage*100/live, (live+maxGarbage)*100/minHeap))
	}
	return int(max(percent-percent%10, 10))
}

// leftShare is the part of the time, as a divisor, that collections of what clients left may take: of a large heap they take
// long, and clients come and go all the time.
const leftShare = 50

// Go returns memory to the system by itself, but keeps a reserve, and half of the live heap as room
// for garbage; and the pages of the program that a burst used stay resident. After a burst, when the
// process is idle, GiveBack returns both.
const (
	// checkPeriod is how often GiveBack checks whether the process is idle.
	checkPeriod = 2 * time.Second
	// quietBytes is the greatest allocation within an idle period, in bytes.
	quietBytes = 512 << 10
	// burstBytes is the least allocation for which a collection is worthwhile, in bytes; of a large
	// heap, whose collection costs more, it is an eighth of the live heap.
	burstBytes = 2 << 20
	burstShare = 8
	// startDelay is the pause before the first release: to map pages again during the start costs a
	// fifth of it.
	startDelay = 250 * time.Millisecond
)

// GiveBack returns memory to the system: first the pages of the program that only the start needed, and
// then the memory of each burst of allocations once it is over, until ctx ends.
func GiveBack(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(checkPeriod)
	defer tick.Stop()
	started := time.After(startDelay)
	b := burstDetector{}
	var leftFrom time.Time // when the next collection of what clients left is due
	for {
		select {
		case <-ctx.Done():
			return
		case <-started:
			giveBackProgram(log)
			continue
		case <-tick.C:
		}
		began := time.Now()
		if h := readHeap(); !b.quiet(h) || !b.burst(h) && (!left.Load() || began.Before(leftFrom)) {
			continue
		}
		left.Store(false)
		debug.FreeOSMemory()
		giveBackProgram(log)
		ended := time.Now()
		leftFrom = ended.Add(leftShare * ended.Sub(began))
		b.reset(readHeap())
	}
}

var left atomic.Bool

// Left says that much may have become garbage without any allocation, such as what was remembered of a client that has gone. It is
// given back as after a burst.
func Left() { left.Store(true) }

// heap is the number of bytes allocated since the start of the process, and the live bytes after the
// last collection.
type heap struct{ allocated, live uint64 }

func readHeap() heap {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return heap{s[0].Value.Uint64(), s[1].Value.Uint64()}
}

// burstDetector detects the end of a burst of allocations.
type burstDetector struct{ start, last uint64 }

// reset waits for the next burst.
func (b *burstDetector) reset(h heap) { b.start, b.last = h.allocated, h.allocated }

// quiet reports whether there was hardly any allocation since the last call.
func (b *burstDetector) quiet(h heap) bool {
	before := b.last
	b.last = h.allocated
	return h.allocated-before < quietBytes
}

// burst reports whether there was a burst since reset.
func (b *burstDetector) burst(h heap) bool {
	return h.allocated-b.start >= max(burstBytes, h.live/burstShare)
}
