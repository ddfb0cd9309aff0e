package mesh

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// changes is how many random changes the test makes.
const changes = 40

// Documents change at random under load, several at once, while holdfast-mesh and the agent are killed: no
// request fails, and at the end Envoy has what the documents say. HOLDFAST_SEED repeats a run.
func TestRandomChangesFailNoRequest(t *testing.T) {
	inAllForms(t, randomChanges)
	withVirtualHosts(t, randomChanges)
}

func randomChanges(w *world) {
	seed := rand.Uint64()
	if text := os.Getenv("HOLDFAST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		w.check(err)
	}
	w.Logf("HOLDFAST_SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w.start()
	tally, stop := w.load()
	ports := map[string]int{}
	for i := range changes {
		did := w.changeAtRandom(r, ports)
		if err := tally.More(1+r.IntN(40), limit); err != nil {
			w.Fatalf("after change %d, %s: %v", i, did, err)
		}
	}
	w.write("route", w.route(100, 0))
	w.write("rule", subsets("v1", "v2"))
	w.service(w.v1, w.v2)
	w.answers(w.request(), "200 v1")
	w.synced()
	w.check(w.envoy.Wait(limit, func() error { return w.hasOnly(ports) }))
	stop()
}

// changeAtRandom makes a change after which every subset of the service has an endpoint, and says what it
// was. ports has the other services.
func (w *world) changeAtRandom(r *rand.Rand, ports map[string]int) string {
	w.Helper()
	name := "other-" + strconv.Itoa(r.IntN(4))
	switch r.IntN(12) {
	case 0, 1, 2:
		weight := r.IntN(101)
		w.write("route", w.route(weight, 100-weight))
		return "weights"
	case 3:
		versions := []string{"v1", "v2"}
		r.Shuffle(2, func(i, j int) { versions[i], versions[j] = versions[j], versions[i] })
		w.write("rule", subsets(versions[0], versions[1]))
		return "subsets"
	case 4, 5:
		backends := []*testbed.Backend{w.v1, w.v2}
		for range r.IntN(3) {
			backends = append(backends, w.backend("more"))
		}
		w.service(backends...)
		return "endpoints"
	case 6, 7:
		if ports[name] == 0 {
			ports[name] = w.freePort()
			w.write(name, w.entry(name+".internal", ports[name], w.v2))
			return "a service more"
		}
		delete(ports, name)
		w.remove(name)
		return "a service less"
	case 8:
		for i := range 3 {
			weight := r.IntN(101)
			w.write("route", w.route(weight, 100-weight))
			w.write("rule", subsets([]string{"v1", "v2"}[i%2], []string{"v2", "v1"}[i%2]))
		}
		return "several at once"
	case 9:
		w.write("route", strings.Replace(w.route(1, 99), "weight: 99", "weight: -99", 1))
		return "a document that is not valid"
	case 10:
		w.mesh.Kill()
		w.write("route", w.route(50, 50))
		w.startMesh()
		return "holdfast-mesh restarted"
	default:
		if w.through {
			w.agent.Kill()
			w.startAgent()
		}
		return "agent restarted"
	}
}

// hasOnly returns nil if Envoy has a listener for each of the services, and for no other.
func (w *world) hasOnly(ports map[string]int) error {
	_, listeners, err := testbed.Get("http://" + w.envoy.Admin + "/listeners")
	if err != nil {
		return err
	}
	want := map[string]bool{fmt.Sprintf("127.0.0.1_%d", w.port): true}
	for _, port := range ports {
		want[fmt.Sprintf("127.0.0.1_%d", port)] = true
	}
	n := 0
	for line := range strings.Lines(listeners) {
		name, _, _ := strings.Cut(line, "::")
		if !want[name] {
			return fmt.Errorf("Envoy has the listener %s", name)
		}
		n++
	}
	if n != len(want) {
		return fmt.Errorf("Envoy has %d listeners, want %d", n, len(want))
	}
	return nil
}
