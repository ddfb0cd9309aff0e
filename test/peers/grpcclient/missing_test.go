package grpcclient

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A route leads 90 % of the RPCs to one cluster and 10 % to one that does not exist. gRPC asks for both in one request, and
// decides after 15 s by a timer of its own that the second does not exist. Through the agent no RPC may be lost that a client
// of the control plane itself would not lose: a second client is just that, at the same time.
func TestAClusterThatDoesNotExistTakesNoOtherAway(t *testing.T) {
	t.Parallel()
	const existing, missing = "c0", "no-such-cluster"
	withBothUpstreams(t, func(w *world) {
		cp := newControlPlane(w.Rig)
		to := backend(w.Rig)
		cp.set(weighted(map[string]uint32{existing: 90, missing: 10}), map[string]string{existing: to})
		agent := w.startAgent([]*controlPlane{cp})
		direct := startClient(w.Rig, "direct", directly(w.Rig, agent, cp))
		behind := startClient(w.Rig, "behind", agent.GRPCBootstrap())
		// gRPC's timer, and then as long as shows what the RPCs are like.
		time.Sleep(15*time.Second + 8*time.Second)
		directly, through := resultOf(direct.finish(), missing), resultOf(behind.finish(), missing)
		w.Logf("direct: %s", directly)
		w.Logf("through the agent: %s", through)
		if directly.good < 300 {
			w.Fatalf("directly too few RPCs succeed for a comparison")
		}
		if through.first == 0 || through.first > directly.first+2*time.Second {
			w.Errorf("the first RPC through the agent succeeds after %s, directly after %s", through.first, directly.first)
		}
		// What is lost for the missing cluster is about a tenth of all, in both.
		if share := through.share(); share < directly.share()-0.1 {
			w.Errorf("through the agent %.0f %% of the RPCs succeed, directly %.0f %%", 100*share, 100*directly.share())
		}
		for _, err := range through.others {
			w.Errorf("an RPC through the agent fails, and not for the missing cluster: %s", err)
		}
	})
}

// result is how the RPCs of a client ended.
type result struct {
	// first is the time from the first RPC to the end of the first that has succeeded, 0 if none has.
	first time.Duration
	// good and lost count those that began after that.
	good, lost int
	// others are the errors, a few, of those of lost that do not name the missing cluster.
	others []string
}

func (r result) share() float64 { return float64(r.good) / float64(max(1, r.good+r.lost)) }

func (r result) String() string {
	return fmt.Sprintf("the first success after %s, then %d succeed and %d do not", r.first.Round(time.Millisecond), r.good, r.lost)
}

func resultOf(calls []call, missing string) (r result) {
	var begun, since time.Time
	for _, c := range calls {
		if begun.IsZero() || c.Begun.Before(begun) {
			begun = c.Begun
		}
		if c.Err == "" && (since.IsZero() || c.Ended.Before(since)) {
			since = c.Ended
		}
	}
	if since.IsZero() {
		for _, c := range calls[:min(len(calls), 3)] {
			r.others = append(r.others, c.Err)
		}
		r.lost = len(calls)
		return r
	}
	r.first = since.Sub(begun)
	for _, c := range calls {
		switch {
		case c.Begun.Before(since):
		case c.Err == "":
			r.good++
		default:
			r.lost++
			if !strings.Contains(c.Err, missing) && len(r.others) < 5 {
				r.others = append(r.others, c.Err)
			}
		}
	}
	return r
}
