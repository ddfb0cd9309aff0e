package push

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// peer returns a PeerAuthentication; spec is what it has beside the mode.
func peer(namespace, name, mode, more string) string {
	return fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: %s, namespace: %s}\nspec: {mtls: {mode: %s}%s}\n", name, namespace, mode, more)
}

const selecting = ", selector: {matchLabels: {app: a}}"

// selectedBy returns whether a selector selects labels.
func selectedBy(labels map[string]string) func(map[string]string) bool {
	return func(selector map[string]string) bool { return proxy.Selects(selector, labels) }
}

func TestTheModeOfAWorkload(t *testing.T) {
	for _, tc := range []struct {
		name      string
		documents []string
		want      string // of the port 80, and of the port 81
	}{
		{"nothing", nil, "PERMISSIVE PERMISSIVE"},
		{"the mesh", []string{peer("istio-system", "m", "STRICT", "")}, "STRICT STRICT"},
		{"the namespace beats the mesh", []string{peer("istio-system", "m", "STRICT", ""), peer("shop", "ns", "DISABLE", "")}, "DISABLE DISABLE"},
		{"the workload beats the namespace", []string{peer("shop", "ns", "DISABLE", ""), peer("shop", "w", "STRICT", selecting)}, "STRICT STRICT"},
		{"the port beats the workload", []string{peer("shop", "w", "STRICT", selecting+", portLevelMtls: {81: {mode: DISABLE}}")}, "STRICT DISABLE"},
		{"what is unset is inherited", []string{peer("istio-system", "m", "STRICT", ""), peer("shop", "ns", "UNSET", ""),
			peer("shop", "w", "UNSET", selecting+", portLevelMtls: {81: {mode: UNSET}}")}, "STRICT STRICT"},
		{"the oldest of a namespace", []string{peer("shop", "z", "STRICT", ""), peer("shop", "a", "DISABLE", "")}, "STRICT STRICT"},
		{"the oldest of a workload", []string{peer("shop", "z", "STRICT", selecting), peer("shop", "a", "DISABLE", selecting)}, "STRICT STRICT"},
		{"a selector in the root namespace has no effect", []string{peer("istio-system", "w", "STRICT", selecting)}, "PERMISSIVE PERMISSIVE"},
		{"another namespace", []string{peer("other", "ns", "STRICT", "")}, "PERMISSIVE PERMISSIVE"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := snapshot((&documents{}).put(t, strings.Join(tc.documents, "---\n")))
			selects := selectedBy(map[string]string{"app": "a"})
			if got := fmt.Sprintf("%s %s", s.MTLS("shop", 80, selects), s.MTLS("shop", 81, selects)); got != tc.want {
				t.Errorf("the modes are %s, want %s", got, tc.want)
			}
		})
	}
}

// The steps of a change: what servers accept, and whether clients speak mutual TLS. A transcript has a line
// for each change of documents or step.
func TestServersAcceptBothWhileClientsChange(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps []string // "set MODE", "other MODE" or "step", each with what follows
	}{
		{"what clients do not notice holds at once", []string{
			"set PERMISSIVE -> PERMISSIVE mutual settled", "set STRICT -> STRICT mutual settled", "set PERMISSIVE -> PERMISSIVE mutual settled",
		}},
		{"to plaintext", []string{
			"set STRICT -> STRICT mutual settled", "set DISABLE -> PERMISSIVE mutual", "step -> PERMISSIVE plain", "step -> DISABLE plain settled", "step -> DISABLE plain settled",
		}},
		{"to mutual TLS", []string{
			"set DISABLE -> DISABLE plain settled", "set STRICT -> PERMISSIVE plain", "step -> PERMISSIVE mutual", "step -> STRICT mutual settled",
		}},
		{"back before clients were told", []string{
			"set DISABLE -> DISABLE plain settled", "set STRICT -> PERMISSIVE plain", "set DISABLE -> DISABLE plain settled", "step -> DISABLE plain settled",
		}},
		{"back after clients were told", []string{
			"set DISABLE -> DISABLE plain settled", "set STRICT -> PERMISSIVE plain", "step -> PERMISSIVE mutual",
			"set DISABLE -> PERMISSIVE mutual", "step -> PERMISSIVE mutual", "step -> PERMISSIVE plain", "step -> DISABLE plain settled",
		}},
		{"others that change hold nothing up", []string{
			"set DISABLE -> DISABLE plain settled", "other STRICT -> DISABLE plain", "set STRICT -> PERMISSIVE plain",
			"other PERMISSIVE -> PERMISSIVE plain", "step -> PERMISSIVE plain", "other STRICT -> PERMISSIVE plain", "step -> PERMISSIVE plain",
			"other PERMISSIVE -> PERMISSIVE plain", "step -> PERMISSIVE mutual", "other STRICT -> PERMISSIVE mutual", "step -> STRICT mutual settled",
		}},
		{"a change while clients go another way has its own steps", []string{
			"set DISABLE -> DISABLE plain settled", "other DISABLE -> DISABLE plain", "step -> DISABLE plain", "set STRICT -> PERMISSIVE plain",
			"step -> PERMISSIVE plain", "step -> PERMISSIVE mutual", "step -> STRICT mutual settled",
		}},
		{"the same again", []string{
			"set DISABLE -> DISABLE plain settled", "set STRICT -> PERMISSIVE plain", "again -> PERMISSIVE plain", "step -> PERMISSIVE mutual", "again -> PERMISSIVE mutual", "step -> STRICT mutual settled",
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &documents{}
			var s *Snapshot
			for _, line := range tc.steps {
				what, want, _ := strings.Cut(line, " -> ")
				changed := map[config.Kind]bool{config.PeerAuthentication: true}
				if mode, ok := strings.CutPrefix(what, "set "); ok {
					d.put(t, peer("shop", "ns", mode, ""))
				} else if mode, ok := strings.CutPrefix(what, "other "); ok {
					d.put(t, peer("other", "ns", mode, ""))
				} else if what == "step" {
					changed = map[config.Kind]bool{AuthStep: true}
				}
				s = New(d, config.DefaultDomain, s, changed, false)
				got := s.MTLS("shop", 80, selectedBy(nil)).String() + " plain"
				if s.AcceptsMTLS(&service.Endpoint{Namespace: "shop", Port: 80}) {
					got = s.MTLS("shop", 80, selectedBy(nil)).String() + " mutual"
				}
				if s.Settled() {
					got += " settled"
				}
				if got != want {
					t.Fatalf("%s: it is %s, want %s", what, got, want)
				}
			}
		})
	}
}

// A port that has a mode of its own before or after a change is known while the change goes on.
func TestThePortsOfAWorkloadWhileAChangeGoesOn(t *testing.T) {
	d := (&documents{}).put(t, peer("shop", "w", "PERMISSIVE", selecting+", portLevelMtls: {80: {mode: DISABLE}}"))
	before := snapshot(d)
	d.put(t, peer("shop", "w", "PERMISSIVE", selecting+", portLevelMtls: {81: {mode: STRICT}}"))
	s := New(d, config.DefaultDomain, before, map[config.Kind]bool{config.PeerAuthentication: true}, false)
	selects := selectedBy(map[string]string{"app": "a"})
	if got := fmt.Sprint(s.MTLSPorts("shop", selects), s.MTLS("shop", 80, selects), s.MTLS("shop", 81, selects)); got != "[80 81] PERMISSIVE STRICT" {
		t.Errorf("the ports and modes are %s", got)
	}
	for range 2 {
		s = New(d, config.DefaultDomain, s, map[config.Kind]bool{AuthStep: true}, false)
	}
	if got := fmt.Sprint(s.MTLSPorts("shop", selects)); got != "[81]" || !s.Settled() {
		t.Errorf("after the change the ports are %s", got)
	}
}

// A port that has a mode of its own in the target alone is known, too.
func TestThePortsOfAWorkloadInTheTarget(t *testing.T) {
	d := (&documents{}).put(t, peer("shop", "w", "PERMISSIVE", selecting))
	s := snapshot(d)
	changed := map[config.Kind]bool{config.PeerAuthentication: true}
	for _, ports := range []string{"{80: {mode: DISABLE}}", "{81: {mode: STRICT}}"} {
		d.put(t, peer("shop", "w", "PERMISSIVE", selecting+", portLevelMtls: "+ports))
		s = New(d, config.DefaultDomain, s, changed, false)
	}
	selects := selectedBy(map[string]string{"app": "a"})
	if got := fmt.Sprint(s.MTLSPorts("shop", selects), s.MTLS("shop", 80, selects), s.MTLS("shop", 81, selects)); got != "[80 81] PERMISSIVE STRICT" {
		t.Errorf("the ports and modes are %s", got)
	}
}

// A step that is taken together with a change of the documents is that of those before: servers do not know
// of the change yet.
func TestAStepDoesNotTellClientsOfAChangeThatComesWithIt(t *testing.T) {
	d := (&documents{}).put(t, peer("shop", "ns", "STRICT", ""))
	s := snapshot(d)
	d.put(t, peer("shop", "ns", "DISABLE", ""))
	s = New(d, config.DefaultDomain, s, map[config.Kind]bool{config.PeerAuthentication: true, AuthStep: true}, false)
	if !s.AcceptsMTLS(&service.Endpoint{Namespace: "shop", Port: 80}) {
		t.Error("clients are told before servers")
	}
}

// Whatever changes and when, a server accepts what clients speak: both may have anything that they were sent
// since the last step, or what they had when that was taken. And what one namespace says holds after four steps, whatever the others do.
func TestServersAcceptWhatClientsSpeakWhateverChanges(t *testing.T) {
	modes := []string{"DISABLE", "PERMISSIVE", "STRICT", "UNSET"}
	namespaces := []string{"shop", "other", "third", "istio-system"}
	changed := map[config.Kind]bool{config.PeerAuthentication: true}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		d := (&documents{}).put(t, peer("shop", "ns", "DISABLE", ""))
		s := snapshot(d)
		change := func(namespaces []string) {
			d.put(t, peer(namespaces[random.IntN(len(namespaces))], "ns", modes[random.IntN(len(modes))], ""))
			s = New(d, config.DefaultDomain, s, changed, false)
		}
		speaks := func(of *Snapshot) (out []bool) {
			for _, ns := range namespaces {
				out = append(out, of.AcceptsMTLS(&service.Endpoint{Namespace: ns, Port: 80}))
			}
			return out
		}
		accepts := func(server *Snapshot, mutual []bool) {
			t.Helper()
			for i, ns := range namespaces {
				if mode := server.MTLS(ns, 80, selectedBy(nil)); mutual[i] && mode == modeDisable || !mutual[i] && mode != modeDisable && mode != modePermissive {
					t.Fatalf("seed %d: %s has the mode %s, and a client speaks mutual TLS: %v", seed, ns, mode, mutual[i])
				}
			}
		}
		clients := [][]bool{speaks(s)} // what clients may still speak
		servers := []*Snapshot{s}      // what servers may still have
		for range 60 {
			if random.IntN(3) > 0 {
				change(namespaces)
			} else {
				// All have answered the step before when the next one is taken.
				clients, servers = [][]bool{speaks(s)}, []*Snapshot{s}
				s = New(d, config.DefaultDomain, s, map[config.Kind]bool{AuthStep: true}, false)
			}
			clients, servers = append(clients, speaks(s)), append(servers, s)
			for _, mutual := range clients {
				for _, server := range servers {
					accepts(server, mutual)
				}
			}
		}
		d.put(t, peer("shop", "ns", "STRICT", ""))
		s = New(d, config.DefaultDomain, s, changed, false)
		for range 4 {
			for range random.IntN(3) {
				change(slices.DeleteFunc(slices.Clone(namespaces), func(ns string) bool { return ns == "shop" }))
			}
			s = New(d, config.DefaultDomain, s, map[config.Kind]bool{AuthStep: true}, false)
		}
		if got := s.MTLS("shop", 80, selectedBy(nil)); got.String() != "STRICT" {
			t.Fatalf("seed %d: after four steps the mode is %s", seed, got)
		}
	}
}
