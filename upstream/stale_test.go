package upstream

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/upstream/failover"
)

// design.md section 4: an open stream that is silent is replaced. A second stream beside it takes
// over when it is answered, and the first one writes to the state until then.
func TestAQuietStreamIsReplacedByAnotherThatAnswers(t *testing.T) {
	among(t, func(r *trial) {
		r.failover.StaleAfter = 10 * time.Minute
		r.run()
		r.pass(10*time.Minute - time.Second)
		if n := len(r.sources[0].attempts()); n != 1 {
			r.Fatalf("%d streams before its time", n)
		}
		r.pass(2 * time.Second)
		if n := len(r.sources[0].attempts()); n != 2 {
			r.Fatalf("%d streams, want a second", n)
		}
		r.active("a")
		if s := r.failover.States()[0]; s.Stale || s.Attempts != 0 {
			r.Errorf("after the second answered: %+v", s)
		}
		if r.sources[0].count() != 1 {
			r.Error("the first stream still runs")
		}
		if slices.Contains(r.connected, false) {
			r.Errorf("connected %v: want never lost", r.connected)
		}
		if n := len(r.sources[1].attempts()); n != 0 {
			r.Errorf("%d attempts at the next", n)
		}
	}, up, up)
}

// If the second stream is not answered, the next source takes over; the silent stream stays open
// until then.
func TestTheNextSourceTakesOverFromAQuietStream(t *testing.T) {
	var log bytes.Buffer // read after everything has ended
	among(t, func(r *trial) {
		r.failover.Log = slog.New(slog.NewTextHandler(&log, nil))
		r.failover.StaleAfter = 10 * time.Minute
		r.lack(true)
		r.run()
		r.active("a")
		r.sources[0].then(down)
		r.sources[1].then(down)
		r.pass(11 * time.Minute)
		r.active("a")
		if s := r.failover.States()[0]; !s.Stale || s.LastError == nil {
			r.Errorf("it is not said to be stale: %+v", s)
		}
		r.sources[1].then(up)
		r.pass(time.Minute)
		r.active("b")
		if slices.Contains(r.connected, false) {
			r.Errorf("connected %v: want never lost", r.connected)
		}
		r.sources[0].then(up)
		r.pass(time.Minute)
		r.active("a")
	}, up, up)
	if !strings.Contains(log.String(), errReplaced.Error()) || strings.Contains(log.String(), "context canceled") {
		t.Errorf("the log does not say why the first source was closed:\n%s", &log)
	}
}

// Finding P7: a second stream that is accepted and never answered is a failed attempt too.
func TestTheNextSourceTakesOverFromOneThatHangs(t *testing.T) {
	among(t, func(r *trial) {
		r.failover.StaleAfter = 10 * time.Minute
		r.lack(true)
		r.run()
		r.active("a")
		r.sources[0].then(silent)
		r.pass(10*time.Minute + DefaultFirstAnswer - time.Second)
		r.active("a")
		if at := r.failover.Contact(); time.Since(at) < 10*time.Minute {
			r.Errorf("contact %s ago, though nothing has come", time.Since(at))
		}
		r.pass(2 * time.Second)
		r.active("b")
		if slices.Contains(r.connected, false) {
			r.Errorf("connected %v: want never lost", r.connected)
		}
	}, up, up)
}

// A source that accepts the connection and does not answer has failed like one that is unreachable.
// Its run continues nevertheless.
func TestASourceThatNeverAnswersLetsTheNextTry(t *testing.T) {
	among(t, func(r *trial) {
		r.lack(true)
		r.run()
		r.pass(DefaultFirstAnswer - time.Second)
		r.active("")
		r.pass(2 * time.Second)
		r.active("b")
		if n := len(r.sources[0].attempts()); n != 1 || !r.sources[0].Open() {
			r.Errorf("%d attempts at the first, open %t: want the one that waits", n, r.sources[0].Open())
		}
	}, silent, up)
}

// The run of the only source continues for as long as it takes.
func TestTheOnlySourceIsWaitedFor(t *testing.T) {
	among(t, func(r *trial) {
		var failed atomic.Int64
		r.failover.Failed = func() { failed.Add(1) }
		r.lack(true)
		r.run()
		r.pass(time.Hour)
		if n := len(r.sources[0].attempts()); n != 1 {
			r.Errorf("%d attempts, want one that waits", n)
		}
		if failed.Load() == 0 {
			r.Error("nobody was told that no source answers")
		}
	}, silent)
}

// Failed is called when every source has failed, not before.
func TestFailedIsCalledWhenEverySourceHasFailed(t *testing.T) {
	among(t, func(r *trial) {
		var failed atomic.Int64
		r.failover.Failed = func() { failed.Add(1) }
		r.run() // the first fails at once, and no resource is missing
		if failed.Load() != 0 {
			r.Error("told after the first")
		}
		r.pass(DefaultFailoverAfter + failover.LackingPoll)
		if failed.Load() == 0 {
			r.Error("not told after the second")
		}
	}, down, down)
}
