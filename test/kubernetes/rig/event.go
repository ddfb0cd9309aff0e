package rig

import (
	"fmt"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// Event is something that happens to pods under load.
type Event struct {
	Name string
	// Happens returns when it is over, and the pods are Ready again.
	Happens func()
	// MayFail says why requests may fail; "" if none may.
	MayFail string
	// MaxNotReady is for how long a pod that was Ready may not be.
	MaxNotReady time.Duration
	// Measured says that the event is measured only, and nothing of it judged.
	Measured bool
}

// result is what came of an event.
type result struct {
	shape, event string
	report       cluster.Report
	notReady     time.Duration
	still        bool // not Ready at the end
}

// results are those of all tests, for the table at their end.
var results []result

// minSent is how many requests a load must have sent to say anything.
const minSent = 300

// Play lets an event happen to the pods that a selector selects, under load, and judges what came of it.
func (n *Namespace) Play(shape, selector string, start func() *cluster.Load, e Event) {
	n.Helper()
	watch, err := Node.WatchReady(n.Name, selector)
	n.Check(err)
	load := start()
	time.Sleep(2 * time.Second)
	e.Happens()
	time.Sleep(2 * time.Second)
	report, err := load.Stop()
	n.Check(err)
	notReady, still := watch.Stop()
	results = append(results, result{shape, e.Name, report, notReady, still != nil})
	n.Logf("%s; not Ready for %.1f s (%v)", report, notReady.Seconds(), still)
	if e.Measured {
		return
	}
	if still != nil {
		n.Error(still)
	}
	if report.Sent < minSent {
		n.Errorf("only %d requests were sent: the load does not say anything", report.Sent)
	}
	if len(report.Failures) > 0 && e.MayFail == "" {
		n.Errorf("%s", report)
	}
	if notReady > e.MaxNotReady {
		n.Errorf("a pod was not Ready for %s, want at most %s", notReady, e.MaxNotReady)
	}
}

// table is what the documentation has of the results.
func table() string {
	var text strings.Builder
	text.WriteString("| shape | event | failed requests | not Ready |\n| --- | --- | --- | --- |\n")
	for _, r := range results {
		failed := fmt.Sprintf("%d of %d", len(r.report.Failures), r.report.Sent)
		if len(r.report.Failures) > 0 {
			failed += fmt.Sprintf(", within %.1f s", r.report.Span().Seconds())
		}
		notReady := fmt.Sprintf("%.1f s", r.notReady.Seconds())
		if r.still {
			notReady = "until the end of the event"
		}
		fmt.Fprintf(&text, "| %s | %s | %s | %s |\n", r.shape, r.event, failed, notReady)
	}
	return text.String()
}
