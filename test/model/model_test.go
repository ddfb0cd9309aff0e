// Package model plays random sequences over the whole path of a resource: a reference control
// plane, the upstream session, the cache, downstream sessions and reference clients, in one
// goroutine and in virtual time. Every stream has either wire form. The control plane changes
// resources, is slow, stops, and comes back with the other form or as another server. Clients
// subscribe, NACK, are slow, reconnect, restart and crash. The disk is slow, and the agent is
// stopped or killed.
//
// These invariants must hold after every step, and when everything has come to rest:
//
//  1. At rest each client has what the control plane has of its subscriptions; of a NACKed
//     resource it has a content that a client ACKed, or none.
//  2. A removal is sent to a client only if the control plane removed the resource, not because
//     the control plane disconnected or was replaced.
//  3. Each response has a cause: none answers an ACK, and none has unchanged resources except
//     where the rules of docs/protocol-facts require it.
//  4. A client is sent nothing older than what it ACKed, except after a NACK.
//  5. No complete set is sent while the wildcard is unknown, and none lacks a known resource.
//  6. Each nonce of the control plane gets one answer, a NACK only for what a client NACKed; in
//     SotW the newest of several. No client counts as having ACKed what it NACKs.
//  7. It comes to rest: the numbers of messages and timers are bounded.
//  8. After a long time the control plane is asked for what clients subscribe to, and for nothing
//     else.
//  9. An agent that was restarted without a control plane serves what was ACKed. An agent that was
//     killed may have lost what it had not written, but nothing that it had ACKed to the control
//     plane because a client ACKed it.
//  10. What clients ACKed is on disk when the control plane gets the ACK that this caused, unless
//     the ACK was due because of the ACK timeout.
//  11. During a fallback no client is sent the suspected content of a suspect: it gets a content
//     that a client used for a minute, or none. Each of the last three Envoys that crashed had
//     what is suspected, and it was not stable. Everything that is no suspect, and a suspect that
//     the control plane changes, obeys all other invariants, and so does everything after the
//     fallback. Nothing becomes stable that no client was sent. A fallback survives a restart of
//     the agent.
//
// For suspects, and during a fallback, invariants 1, 2, 4, 5 and 9 do not hold. A content that was
// served in place of an absence is removed after the fallback like a removed cluster: in SotW a
// moment later.
//
// Known faults of the product are ignored (found_test.go). TTLs have a model of their own
// (ttl_test.go).
package model

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// sequences is the number of sequences that TestRandomSequencesAgainstTheModel plays. The race
// detector makes each many times slower and finds nothing more in one goroutine, so with it there
// are fewer (raceSequences); CI runs both.
const (
	sequences     = 100_000
	raceSequences = 1_000
	workers       = 8
)

// TestRandomSequencesAgainstTheModel plays random sequences. HOLDFAST_SEED chooses
// others; the seed of the one that fails is printed with its shortest form.
// HOLDFAST_SEQUENCE plays one alone, by the number that was printed.
func TestRandomSequencesAgainstTheModel(t *testing.T) { playRandom(t, withDisk) }

// TestRandomSequencesWithRestartsAgainstTheModel also restarts the agent, which restores what it
// wrote to disk.
func TestRandomSequencesWithRestartsAgainstTheModel(t *testing.T) { playRandom(t, withRestarts) }

// TestRandomSequencesWithCrashesAgainstTheModel also has an Envoy that is the agent's child and
// crashes, mostly several times in a row.
func TestRandomSequencesWithCrashesAgainstTheModel(t *testing.T) { playRandom(t, withCrashes) }

// TestRandomSequencesUnderAGuardAgainstTheModel also has a removal guard, and a control plane that
// loses everything now and then: at rest clients have what it confirms.
func TestRandomSequencesUnderAGuardAgainstTheModel(t *testing.T) { playRandom(t, withAccidents) }

// TestRandomSequencesWithUpgradesAgainstTheModel also has clients that are upgraded and rolled back, and whose builds NACK other contents.
func TestRandomSequencesWithUpgradesAgainstTheModel(t *testing.T) { playRandom(t, withUpgrades) }

func playRandom(t *testing.T, draw func(seed uint64) *sequence) {
	base := number(t, "HOLDFAST_SEED", 1)
	n := sequences
	if raceEnabled {
		n = raceSequences
	}
	if testing.Short() {
		n /= 20
	}
	if os.Getenv("HOLDFAST_SEQUENCE") != "" {
		if seq := search(t, draw, number(t, "HOLDFAST_SEQUENCE", 0), 1); seq != nil {
			report(t, seq, overlooked)
		}
		return
	}
	t.Logf("%d sequences from HOLDFAST_SEED=%d", n, base)
	for i := range workers {
		t.Run(fmt.Sprintf("part %d", i), func(t *testing.T) {
			t.Parallel()
			share := n / workers
			if seq := search(t, draw, base<<32+uint64(i*share), share); seq != nil {
				report(t, seq, overlooked)
			}
		})
	}
}

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	s := os.Getenv(variable)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// search plays n sequences, beginning with a seed, until one breaks an invariant.
func search(t *testing.T, draw func(uint64) *sequence, seed uint64, n int) *sequence {
	for i := range n {
		seq := draw(seed + uint64(i))
		if play(t, seq, noFault, overlooked, false).violation != nil {
			return seq
		}
	}
	return nil
}

// play plays a sequence in a bubble of its own.
func play(t *testing.T, seq *sequence, f fault, kn known, verbose bool) (w *world) {
	bubble.Test(t, func(t *testing.T) {
		w = seq.play(t.Context(), f, kn, verbose)
	})
	return w
}

// report prints the shortest form of a sequence that fails.
func report(t *testing.T, seq *sequence, kn known) {
	t.Helper()
	less, w := shrink(t, seq, kn)
	if less == nil {
		t.Errorf("HOLDFAST_SEQUENCE=%d broke an invariant, and does not when it is played again", seq.seed)
		return
	}
	t.Errorf("HOLDFAST_SEQUENCE=%d breaks an invariant, also with %d of its %d steps only:\n%s\n%s",
		seq.seed, len(less.steps), len(seq.steps), w.transcript(), w.violation)
}

// shrink drops steps as long as the same invariant is broken; it returns nil if none is now.
func shrink(t *testing.T, seq *sequence, kn known) (*sequence, *world) {
	first := play(t, seq, noFault, kn, false).violation
	if first == nil {
		return nil, nil
	}
	invariant := first.invariant
	for size := len(seq.steps) / 2; size > 0; {
		dropped := false
		for at := 0; at+size <= len(seq.steps); {
			less := seq.without(at, size)
			if v := play(t, less, noFault, kn, false).violation; v != nil && v.invariant == invariant {
				seq, dropped = less, true
			} else {
				at += size
			}
		}
		if !dropped || size > 1 {
			size /= 2
		}
	}
	return seq, play(t, seq, noFault, kn, true)
}

func newRandom(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
