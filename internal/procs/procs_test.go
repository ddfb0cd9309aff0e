package procs

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneProcessorServesOneClientAndMoreServeMany(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(64))
	uses := func(t *testing.T, when string, want int) {
		t.Helper()
		if n := runtime.GOMAXPROCS(0); n != want {
			t.Errorf("%s: %d processors, want %d", when, n, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		p := New(func(string) string { return "" })
		p.Serve(20)
		p.Serve(1)
		uses(t, "at the start", maxProcessors)
		time.Sleep(startDelay)
		synctest.Wait()
		uses(t, "with the client that came meanwhile", 1)
		for _, tc := range []struct{ clients, want int }{{7, 1}, {8, 2}, {20, 3}, {1000, maxProcessors}, {1, 1}, {0, 1}} {
			p.Serve(tc.clients)
			uses(t, "with clients", tc.want)
		}
	})
	runtime.GOMAXPROCS(2)
	synctest.Test(t, func(t *testing.T) {
		p := New(func(string) string { return "" })
		time.Sleep(startDelay)
		synctest.Wait()
		uses(t, "without a client", 1)
		p.Serve(1000)
		uses(t, "with as many as there are", 2)
	})
}

func TestTheEnvironmentHasTheLastWord(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(7))
	synctest.Test(t, func(t *testing.T) {
		p := New(func(name string) string { return map[string]string{"GOMAXPROCS": "7"}[name] })
		time.Sleep(2 * startDelay)
		synctest.Wait()
		for _, clients := range []int{1, 100} {
			if p.Serve(clients); runtime.GOMAXPROCS(0) != 7 {
				t.Errorf("%d processors", runtime.GOMAXPROCS(0))
			}
		}
	})
}
