package upstream

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/upstream/failover"
)

// design.md section 4: a stream that is open and says nothing is not trusted for
// ever. A second one beside it takes over when it answers, and the state is fed all
// the while.
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
		if slices.Contains(r.told, false) {
			r.Errorf("connected %v: want never lost", r.told)
		}
		if n := len(r.sources[1].attempts()); n != 0 {
			r.Errorf("%d attempts at the next", n)
		}
	}, up, up)
}

// … else the next source does; the quiet stream goes on until then.
func TestTheNextSourceTakesOverFromAQuietStream(t *testing.T) {
	among(t, func(r *trial) {
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
		if slices.Contains(r.told, false) {
			r.Errorf("connected %v: want never lost", r.told)
		}
		r.sources[0].then(up)
		r.pass(time.Minute)
		r.active("a")
	}, up, up)
}

// Finding P7: a second stream that is accepted and says nothing is a failed attempt, too.
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
		if slices.Contains(r.told, false) {
			r.Errorf("connected %v: want never lost", r.told)
		}
	}, up, up)
}

// A source that is reached and says nothing has failed as one that is not reached
// has; it is waited for all the same.
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

// The only one is waited for as long as it takes.
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

// Failed is told when every source has failed, not before.
func TestThatAllHaveFailedIsTold(t *testing.T) {
	among(t, func(r *trial) {
		var failed atomic.Int64
		r.failover.Failed = func() { failed.Add(1) }
		r.run() // the first fails at once, and nothing is missing
		if failed.Load() != 0 {
			r.Error("told after the first")
		}
		r.pass(DefaultFailoverAfter + failover.LackingPoll)
		if failed.Load() == 0 {
			r.Error("not told after the second")
		}
	}, down, down)
}
