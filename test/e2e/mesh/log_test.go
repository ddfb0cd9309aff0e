package mesh

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// With a standard error that takes nothing, holdfast-mesh configures proxies as ever, counts what is lost, and ends when it
// is told to.
func TestALogThatTakesNothingStopsNothing(t *testing.T) {
	for _, kind := range []string{testbed.NobodyReads, testbed.ReaderGone, testbed.DiskFull} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			sink := testbed.NewSink(t, kind)
			w.via = sink.Via
			w.args = append(w.args, "--log-level", "debug")
			w.write("rule", subsets("v1", "v2"))
			w.write("route", w.route(100, 0))
			w.start()
			sink.Started()
			for i := range 40 { // each with a line in the log, which are more than the pipe takes
				w.write(fmt.Sprintf("broken-%d", i), "kind: VirtualService\nspec: {}\n")
			}
			w.write("route", w.route(0, 100))
			w.answers(w.request(), "200 v2")
			w.envoy.Kill()
			w.startEnvoy()
			w.answers(w.request(), "200 v2")
			_, metrics, err := testbed.Get("http://" + w.admin + "/metrics")
			w.check(err)
			if !strings.Contains(metrics, `holdfast_log_lines_dropped_total{from="holdfast"} `) {
				t.Error("the metrics do not count the lines that were lost")
			}
		})
	}
}
