// Package bubble runs tests in the bubbles of testing/synctest, in virtual time.
//
// It promises what synctest promises, and that the race detector does not crash: in Go 1.26, timers of
// a bubble that are due immediately run in the goroutines that arm them, and share one context of the
// race detector without a lock (unlockAndRun in the runtime's time.go). Two of them at the same time
// end the process with SIGSEGV. Therefore, with the race detector, only one goroutine runs at a time
// while any bubble exists; the detector still finds races, because it compares the order of events and
// not their times.
//
// Test may be called by parallel tests.
package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

var (
	mu      sync.Mutex
	bubbles int
	procs   int // GOMAXPROCS outside of bubbles
)

// Test is synctest.Test.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	if race {
		enter()
		defer leave()
	}
	synctest.Test(t, f)
}

func enter() {
	mu.Lock()
	defer mu.Unlock()
	if bubbles++; bubbles == 1 {
		procs = runtime.GOMAXPROCS(1)
	}
}

func leave() {
	mu.Lock()
	defer mu.Unlock()
	if bubbles--; bubbles == 0 {
		runtime.GOMAXPROCS(procs)
	}
}
