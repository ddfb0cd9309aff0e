package procs

import (
	"runtime"
	"testing"
)

func TestOneProcessorServesOneClientAndMoreServeMany(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(64))
	p := New(func(string) string { return "" })
	uses := func(when string, want int) {
		t.Helper()
		if n := runtime.GOMAXPROCS(0); n != want {
			t.Errorf("%s: %d processors, want %d", when, n, want)
		}
	}
	uses("before the first client", limit)
	for _, tc := range []struct{ clients, want int }{{1, 1}, {7, 1}, {8, 2}, {20, 3}, {1000, limit}, {1, 1}, {0, 1}} {
		p.Serve(tc.clients)
		uses("with clients", tc.want)
	}
	runtime.GOMAXPROCS(2)
	p = New(func(string) string { return "" })
	p.Serve(1000)
	uses("with two that there are", 2)
}

func TestTheEnvironmentHasTheLastWord(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(7))
	p := New(func(name string) string { return map[string]string{"GOMAXPROCS": "7"}[name] })
	for _, clients := range []int{1, 100} {
		if p.Serve(clients); runtime.GOMAXPROCS(0) != 7 {
			t.Errorf("%d processors", runtime.GOMAXPROCS(0))
		}
	}
}
