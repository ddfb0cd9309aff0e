package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// As long as it starts, the agent uses all of up to four.
func TestOneEnvoyIsServedByOneProcessor(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start()
	w.check(w.agent.Wait(limit, func() error {
		metrics, err := w.ask("/metrics")
		if err == nil && !strings.Contains(metrics.body, "\ngo_sched_gomaxprocs_threads 1\n") {
			err = fmt.Errorf("the agent uses more than one processor:\n%s", metrics.body)
		}
		return err
	}))
}
