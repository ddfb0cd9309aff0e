package bubble

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Without one processor this crashes the race detector of Go 1.26 within seconds.
func TestTimersThatAreDueAtOnceMayBeArmedTogether(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	fired := 0
	Test(t, func(t *testing.T) {
		if race && runtime.GOMAXPROCS(0) != 1 {
			t.Errorf("%d goroutines may run at a time", runtime.GOMAXPROCS(0))
		}
		var mu sync.Mutex
		for range 8 {
			go func() {
				for range 5000 {
					time.AfterFunc(0, func() {
						mu.Lock()
						fired++
						mu.Unlock()
					})
				}
			}()
		}
		synctest.Wait()
	})
	if fired != 40_000 || runtime.GOMAXPROCS(0) != before {
		t.Errorf("%d of 40,000 timers fired; %d goroutines may run at a time, before %d", fired, runtime.GOMAXPROCS(0), before)
	}
}

func TestBubblesOfParallelTestsGiveTheProcessorsBack(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Run("all", func(t *testing.T) {
		for range 4 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				Test(t, func(*testing.T) { time.Sleep(time.Hour) })
			})
		}
	})
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("%d goroutines may run at a time, before %d", now, before)
	}
}
