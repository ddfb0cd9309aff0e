package fleet

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// sequences is how many histories are played, steps how long one is at most.
const (
	sequences = 100_000
	steps     = 25
	workers   = 4
)

// TestRandomHistoriesOfAFleet plays random histories. HOLDFAST_SEED chooses others, HOLDFAST_SEQUENCE plays one alone, by the
// number that was printed.
func TestRandomHistoriesOfAFleet(t *testing.T) {
	base, n := number(t, "HOLDFAST_SEED", 1)<<32, uint64(sequences)
	if raceEnabled {
		n /= 50 // it is many times slower with the race detector
	}
	if testing.Short() {
		n /= 100
	}
	if os.Getenv("HOLDFAST_SEQUENCE") != "" {
		play(t, number(t, "HOLDFAST_SEQUENCE", 0))
		return
	}
	for worker := range uint64(workers) {
		t.Run(fmt.Sprintf("part %d", worker), func(t *testing.T) {
			t.Parallel()
			for i := worker; i < n && !t.Failed(); i += workers {
				play(t, base+i)
			}
		})
	}
}

func number(t *testing.T, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// play plays one history.
func play(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{random: rand.New(rand.NewPCG(seed, 1))}
		defer func() {
			if err := recover(); err != nil {
				w.report(t, seed, fmt.Sprint(err))
				panic(err)
			}
		}()
		w.play(t, seed)
	})
}

// sorts are the proxies of every history.
var sorts = []struct {
	name string
	form xds.Form
	meta map[string]any
}{
	{"web", xds.Delta, map[string]any{"NAMESPACE": "shop", "LABELS": map[string]any{"app": "web"}, "INTERCEPTION_MODE": "NONE"}},
	{"d-1", xds.SotW, map[string]any{"NAMESPACE": "shop", "LABELS": map[string]any{"app": "d"}, "INSTANCE_IPS": "10.0.1.1"}},
	{"edge", xds.Delta, map[string]any{"NAMESPACE": "infra", "TYPE": "router", "LABELS": map[string]any{"app": "edge"}}},
	{"far", xds.SotW, map[string]any{"NAMESPACE": "far", "LABELS": map[string]any{"app": "far"}}},
}

func (w *world) play(t *testing.T, seed uint64) {
	r := w.random
	for range r.IntN(12) { // what there is at the start
		contents := pool[r.IntN(len(pool))]
		w.history = append(w.history, event{contents[0].Meta.Key, contents[r.IntN(len(contents))]})
	}
	for i := range 2 {
		w.planes = append(w.planes, w.start(fmt.Sprintf("plane %d", i), len(w.history)))
	}
	first := r.IntN(len(sorts))
	for i := range 2 {
		s := sorts[(first+i)%len(sorts)]
		c := newProxy(w, s.name, s.form, s.meta)
		c.connect(w.planes[r.IntN(2)])
		w.proxies = append(w.proxies, c)
	}
	w.settle()
	for range 1 + r.IntN(steps) {
		w.step()
	}
	w.rest()
	// What a new proxy gets from a new control plane.
	reference := &world{random: r, history: w.history}
	reference.planes = []*plane{reference.start("reference", len(w.history))}
	for _, c := range w.proxies {
		fresh := newProxy(reference, c.name, c.form, c.node.GetMetadata().AsMap())
		fresh.connect(reference.planes[0])
		reference.proxies = append(reference.proxies, fresh)
	}
	reference.settle()
	for i, c := range w.proxies {
		if diff := c.differs(reference.proxies[i]); diff != "" && !t.Failed() {
			w.report(t, seed, c.name+" at "+c.plane.name+":\n"+diff)
		}
		if c.problem != "" && !t.Failed() {
			w.report(t, seed, c.problem)
		}
	}
	for _, world := range []*world{w, reference} {
		for _, c := range world.proxies {
			c.disconnect()
		}
		for _, p := range world.planes {
			p.stop()
		}
	}
}

// report fails the test with what has happened.
func (w *world) report(t *testing.T, seed uint64, problem string) {
	t.Errorf("HOLDFAST_SEQUENCE=%d: %s\nafter\n%s", seed, problem, strings.Join(w.trace, "\n"))
}
