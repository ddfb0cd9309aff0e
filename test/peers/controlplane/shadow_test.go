package controlplane

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/shadow"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
)

// shadowed is how many configurations a shadow sees. grace is longer than an Envoy waits for the endpoints of a cluster that was
// removed meanwhile: for 15 s it takes no other clusters (protocol.md 4.1).
const (
	shadowed = 200
	grace    = "25s"
)

// A shadow of an Envoy that is connected to go-control-plane directly finds no difference, neither while the configuration
// changes at random nor after that, and names what is different when it is.
func TestAShadowFindsWhatIsDifferentAndNothingElse(t *testing.T) {
	inAllForms(t, func(w *world) {
		s := newSnapshots(false)
		seed := w.seed()
		m := newMesh(seed)
		w.Check(s.set("0", m.resources()))
		w.serve(s)
		direct := w.DirectEnvoy("direct", w.below, w.addr)
		w.Check(direct.Wait(limit, direct.Ready))
		flags := []string{"shadow", "--envoy-admin", direct.Admin, "--upstream", w.addr, "--upstream-plaintext", "--upstream-protocol", w.above, "--interval", "1s"}
		running := w.Start("shadow", append(append([]string{rig.Holdfast(w)}, flags...), "--grace", grace, "--admin", "", "--health", "")...)

		pauses := rand.New(rand.NewPCG(seed, 1))
		for i := range shadowed {
			m.step()
			w.Check(s.set(strconv.Itoa(i+1), m.resources()))
			time.Sleep(time.Duration(1+pauses.IntN(100)) * time.Millisecond)
		}
		once := func() (shadow.Report, error) {
			out, err := exec.Command(rig.Holdfast(w), append(flags, "--once", "-o", "json", "--log-level", "error", "--grace", grace)...).Output()
			var r shadow.Report
			if json.Unmarshal(out, &r) != nil {
				w.Fatalf("holdfast shadow: %v\n%s", err, out)
			}
			return r, err
		}
		if r, err := once(); err != nil || r.Differs() || r.Compared["CDS"] == 0 || r.Compared["EDS"] == 0 || r.Compared["RDS"] == 0 {
			w.Errorf("%v: %+v", err, r)
		}
		w.Check(running.Stop(limit))
		log, err := os.ReadFile(w.Path("shadow.log"))
		w.Check(err)
		if strings.Contains(string(log), "differs") {
			w.Errorf("the shadow that ran meanwhile has found differences:\n%s", log)
		}

		// Of a control plane with another configuration it names each cluster.
		other := newWorld(t, w.above, w.below)
		another := newSnapshots(false)
		w.Check(another.set("0", newMesh(seed+1).resources()))
		other.serve(another)
		flags[4] = other.addr
		r, err := once()
		if err == nil || !r.Differs() {
			w.Errorf("the other control plane's: %v: %+v", err, r)
		}
		for _, d := range r.Differences {
			if d.Kind == shadow.Content && d.Field == "" {
				w.Error(fmt.Sprint(d))
			}
		}
		w.neverNacked()
		w.NeverRejected("the direct Envoy", direct)
	})
}
