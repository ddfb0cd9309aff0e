package memory

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

func TestTheCollectorFollowsTheContainerUnlessTheEnvironmentSaysOtherwise(t *testing.T) {
	percent := debug.SetGCPercent(100)
	limit := debug.SetMemoryLimit(-1)
	defer func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}()
	for _, tc := range []struct {
		name    string
		environ map[string]string
		memory  uint64
		percent int
		limit   int64
	}{
		{"a limit", nil, 1000, gcPercentFor(readHeap().live, false), 800},
		{"no limit", nil, 0, gcPercentFor(readHeap().live, false), math.MaxInt64},
		{"of the environment", map[string]string{"GOGC": "100", "GOMEMLIMIT": "1GiB"}, 1000, 100, math.MaxInt64},
	} {
		debug.SetGCPercent(100)
		debug.SetMemoryLimit(math.MaxInt64)
		Limit(func(name string) string { return tc.environ[name] }, tc.memory, slog.New(slog.DiscardHandler))
		if p, l := debug.SetGCPercent(100), debug.SetMemoryLimit(-1); p != tc.percent || l != tc.limit {
			t.Errorf("%s: GOGC %d, limit %d", tc.name, p, l)
		}
	}
}

func TestWhatABurstLeftIsGivenBackWhenAllIsQuiet(t *testing.T) {
	const size = 64 << 20
	free := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.HeapIdle - m.HeapReleased
	}
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		garbage := make([][]byte, size>>20)
		for i := range garbage {
			garbage[i] = make([]byte, 1<<20)
		}
		held := free()
		runtime.KeepAlive(garbage)
		go GiveBack(ctx, slog.New(slog.DiscardHandler))
		time.Sleep(3 * checkPeriod)
		synctest.Wait()
		if now := free(); now+size/2 > held {
			t.Errorf("%d bytes of heap, and %d before", now, held)
		}
	})
}

// A client that goes leaves garbage and allocates nothing.
func TestWhatAClientLeftIsGivenBackWhenAllIsQuiet(t *testing.T) {
	for _, said := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go GiveBack(ctx, slog.New(slog.DiscardHandler))
			time.Sleep(3 * checkPeriod) // what was allocated before
			synctest.Wait()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if said {
				Left()
			}
			time.Sleep(2 * checkPeriod)
			synctest.Wait()
			runtime.ReadMemStats(&after)
			if collected := after.NumForcedGC > before.NumForcedGC; collected != said {
				t.Errorf("a client has gone: %v, collected: %v", said, collected)
			}
		})
	}
}

func TestABurstIsOverWhenNothingMuchIsAllocated(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		name  string
		live  uint64
		heaps []uint64 // allocated, period by period
		over  []bool
	}{
		{"nothing", 0, []uint64{0, 0}, []bool{false, false}},
		{"a burst", 0, []uint64{8 * mib, 8*mib + 1000}, []bool{false, true}},
		{"a burst that goes on", 0, []uint64{8 * mib, 16 * mib, 24 * mib}, []bool{false, false, false}},
		{"a trickle", 0, []uint64{500 << 10, 1000 << 10, 1500 << 10, 2000 << 10, 2500 << 10}, []bool{false, false, false, false, true}},
		{"little of much", 100 * mib, []uint64{8 * mib, 8 * mib}, []bool{false, false}},
		{"much of much", 100 * mib, []uint64{20 * mib, 20 * mib}, []bool{false, true}},
	} {
		b := burstDetector{}
		for i, allocated := range tc.heaps {
			h := heap{allocated, tc.live}
			if got := b.quiet(h) && b.burst(h); got != tc.over[i] {
				t.Errorf("%s: over is %v after period %d", tc.name, got, i)
			}
		}
	}
}

func TestTheRoomForGarbageFollowsWhatIsHeld(t *testing.T) {
	const mib = 1 << 20
	for live, want := range map[uint64]struct{ usual, churns int }{
		0: {800, 800}, 2 * mib: {400, 650}, 8 * mib: {100, 300}, 40 * mib: {50, 60}, 96 * mib: {20, 20}, 192 * mib: {10, 10}, 1024 * mib: {10, 10},
	} {
		if got, churns := gcPercentFor(live, false), gcPercentFor(live, true); got != want.usual || churns != want.churns {
			t.Errorf("GOGC is %d where %d MiB are held, and %d while updates replace each other, want %v", got, live/mib, churns, want)
		}
	}
}

// There is more room for garbage while updates replace each other, but not while the heap grows, because its peak is what
// counts. The intervals are longer with more room, which must not end it.
func TestUpdatesThatReplaceEachOtherAreRecognized(t *testing.T) {
	const mib = 1 << 20
	const usual, more = minGarbage / float64(churnRate), maxGarbage / float64(churnRate) // seconds between collections
	for name, ending := range map[string]struct {
		garbage uint64
		seconds float64
		live    uint64
		churns  bool
	}{
		"they go on":            {minGarbage, usual, 8 * mib, true},
		"there is more room":    {maxGarbage, more, 8 * mib, true},
		"a little more is held": {maxGarbage, more, 9 * mib, true},
		"less is held":          {maxGarbage, more, 7 * mib, true},
		"the heap has grown":    {maxGarbage, more, 10 * mib, false},
		"they are fewer":        {maxGarbage, 1.1 * more, 8 * mib, false},
	} {
		var rhythm gcRhythm
		at := time.Now()
		var allocated uint64
		collect := func(garbage uint64, seconds float64, live uint64) bool {
			allocated += garbage
			at = at.Add(time.Duration(0.99 * seconds * float64(time.Second)))
			return rhythm.churns(heap{allocated, live}, at)
		}
		collect(0, 0, 8*mib)
		for i := range churnFor - 1 {
			if collect(minGarbage, usual, 8*mib) {
				t.Fatalf("%s: after %d intervals", name, i+1)
			}
		}
		if !collect(minGarbage, usual, 8*mib) {
			t.Fatalf("%s: not after %d intervals", name, churnFor)
		}
		if got := collect(ending.garbage, ending.seconds, ending.live); got != ending.churns {
			t.Errorf("%s: churns is %v", name, got)
		}
	}
}

// The live heap grows, and GOGC follows.
func TestTheCollectorIsSetAfterEachCollection(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	followHeap()
	small := gcPercentNow()
	held := make([]byte, 256<<20)
	set := false
	for range 1000 { // finalizers run on a goroutine of the runtime
		runtime.GC()
		if set = gcPercentNow() < small; set {
			break
		}
	}
	runtime.KeepAlive(held)
	if !set {
		t.Errorf("GOGC stays %d", small)
	}
}

func gcPercentNow() int {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return int(s[0].Value.Uint64())
}
