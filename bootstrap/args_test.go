package bootstrap

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/cgroup"
)

func TestWorkersAndHeapFollowTheLimits(t *testing.T) {
	for cpu, want := range map[float64]int{0: 0, 0.1: 1, 1: 1, 1.5: 2, 2: 2, 63.2: 64} {
		if got := Concurrency(cgroup.Limits{CPU: cpu}); got != want {
			t.Errorf("%v CPUs: %d workers, want %d", cpu, got, want)
		}
	}
	for memory, want := range map[uint64]uint64{0: 0, 100: 95, 1 << 30: 1<<30 - 1<<30/20, 1<<64 - 1: 1<<64 - 1 - (1<<64-1)/20} {
		if got := HeapLimit(cgroup.Limits{Memory: memory}); got != want {
			t.Errorf("%d bytes: a heap of %d, want %d", memory, got, want)
		}
	}
}

func TestArgumentsStandOneALine(t *testing.T) {
	all := EnvoyArgs{Bootstrap: "/etc/envoy dir/envoy.yaml", Concurrency: 2, DrainTime: 1500 * time.Millisecond, LogLevel: "warning"}
	text, err := all.Text()
	if want := "-c\n/etc/envoy dir/envoy.yaml\n--concurrency\n2\n--drain-time-s\n2\n--log-level\nwarning\n"; err != nil || string(text) != want {
		t.Errorf("%q, %v", text, err)
	}
	if got := (EnvoyArgs{Bootstrap: "a.yaml"}).Args(); !slices.Equal(got, []string{"-c", "a.yaml"}) {
		t.Errorf("%q", got)
	}
	if text, err := (EnvoyArgs{Bootstrap: "a\nb.yaml"}).Text(); err == nil {
		t.Errorf("%q", text)
	}
}
