package controlplane

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// changes is how many configurations follow one another.
const changes = 1000

// A configuration that changes a thousand times at random, some milliseconds apart: in the end the Envoy behind the agent
// has what an Envoy has that is connected to the same control plane, and nobody has sent a NACK. PEERS_SEED repeats a run.
func TestAfterAThousandRandomChangesEnvoyHasWhatADirectOneHas(t *testing.T) {
	for _, kind := range []struct {
		name string
		make func() store
	}{
		{"a snapshot cache", func() store { return newSnapshots(false) }},
		{"a snapshot cache for ADS", func() store { return newSnapshots(true) }},
		{"linear caches", func() store { return newLinears() }},
		{"a mux of a linear and a snapshot cache", func() store { return newMux() }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			inAllForms(t, func(w *world) {
				w.endsLikeADirectOne(kind.make())
			})
		})
	}
}

func (w *world) endsLikeADirectOne(s store) {
	w.Helper()
	seed := w.seed()
	m := newMesh(seed)
	w.Check(s.set("0", m.resources()))
	w.serve(s)
	agent := w.startAgent("--removal-confirm-after", "1s") // what looks like an accident in between, it confirms soon
	behind := agent.Envoy("envoy", w.below)
	w.Check(behind.Wait(limit, behind.Ready))

	pauses := rand.New(rand.NewPCG(seed, 1))
	for i := range changes {
		m.step()
		w.Check(s.set(strconv.Itoa(i+1), m.resources()))
		time.Sleep(time.Duration(1+pauses.IntN(8)) * time.Millisecond)
	}

	direct := w.DirectEnvoy("direct", w.below, w.addr)
	var want map[string]string
	w.Check(direct.Wait(limit, func() (err error) {
		want, err = has(direct, m.wanted())
		return err
	}))
	begun := time.Now()
	w.Check(behind.Wait(limit, func() error {
		got, err := dump(behind)
		if err != nil {
			return err
		}
		if d := different(got, want); d != "" {
			return errors.New("the Envoy behind the agent differs from the direct one:\n" + d)
		}
		return nil
	}))
	w.neverNacked()
	w.NeverRejected("the Envoy behind the agent", behind)
	w.NeverRejected("the direct Envoy", direct)
	w.Logf("%d resources are the same %s after the direct Envoy was complete; %d responses with clusters, %d with endpoints",
		len(want), time.Since(begun).Round(time.Millisecond), w.sent(resource.ClusterType), w.sent(resource.EndpointType))
}

// seed returns that of PEERS_SEED, else another at each call; it is printed.
func (w *world) seed() uint64 {
	w.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("PEERS_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		w.Check(err)
	}
	w.Logf("PEERS_SEED=%d", seed)
	return seed
}

// limit bounds a wait for what a busy machine may take its time for.
const limit = 30 * time.Second

// The comparison of two Envoys is worth something only if it can fail.
func TestTheComparisonOfDumpsCanFail(t *testing.T) {
	same := map[string]string{"cluster a": "1", "route b": "2"}
	if d := different(same, map[string]string{"cluster a": "1", "route b": "2"}); d != "" {
		t.Errorf("the same differs: %s", d)
	}
	for name, other := range map[string]map[string]string{
		"less":  {"cluster a": "1"},
		"more":  {"cluster a": "1", "route b": "2", "listener c": "3"},
		"other": {"cluster a": "1", "route b": "3"},
	} {
		if different(other, same) == "" {
			t.Errorf("%s: nothing differs", name)
		}
	}
}
