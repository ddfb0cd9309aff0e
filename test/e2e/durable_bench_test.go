package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// What an update costs from the control plane to the ACK that it gets, one after the other,
// and how much of the agent's CPU time: without a state directory and with one, which is
// made in HOLDFAST_BENCH_DIR if that is set, to choose the disk. HOLDFAST_BIN names another
// holdfast.
func BenchmarkAnUpdateUntilItsACK(b *testing.B) {
	for _, state := range []bool{false, true} {
		b.Run(map[bool]string{false: "in memory", true: "on disk"}[state], func(b *testing.B) {
			w := newWorld(b, xdstest.Delta, xdstest.Delta)
			var extra []string
			if state {
				dir, err := os.MkdirTemp(os.Getenv("HOLDFAST_BENCH_DIR"), "state-")
				w.check(err)
				b.Cleanup(func() { _ = os.RemoveAll(dir) })
				extra = []string{"--state-dir", dir}
			}
			w.startAgent(append(extra, "--log-level", "error")...)
			c := w.scripted()
			c.Subscribe(xds.RouteType, "ingress")
			w.leadsTo(c, "c1")
			n, before := 0, w.cpu()
			for b.Loop() {
				w.setAndAcked(xdstest.Route("ingress", fmt.Sprint("number-", n)))
				n++
			}
			b.ReportMetric(float64((w.cpu()-before).Microseconds())/float64(n), "agent-cpu-µs/op")
		})
	}
}

// cpu returns the CPU time that the agent has used.
func (w *world) cpu() time.Duration {
	w.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.agent.PID()))
	w.check(err)
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks uint64
	for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.ParseUint(field, 10, 64)
		w.check(err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
