package main

import (
	"log/slog"
	"math"
	"runtime/debug"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/cgroup"
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
		{"a limit", nil, 1000, gcPercent, 800},
		{"no limit", nil, 0, gcPercent, math.MaxInt64},
		{"of the environment", map[string]string{"GOGC": "100", "GOMEMLIMIT": "1GiB"}, 1000, 100, math.MaxInt64},
	} {
		debug.SetGCPercent(100)
		debug.SetMemoryLimit(math.MaxInt64)
		limitMemory(func(name string) string { return tc.environ[name] }, cgroup.Limits{Memory: tc.memory}, slog.New(slog.DiscardHandler))
		if p, l := debug.SetGCPercent(100), debug.SetMemoryLimit(-1); p != tc.percent || l != tc.limit {
			t.Errorf("%s: GOGC %d, limit %d", tc.name, p, l)
		}
	}
}
