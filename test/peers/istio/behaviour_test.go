package istio

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The same documents send the same requests to the same places, with the same headers, statuses and
// attempts, with holdfast-mesh as with istiod.
func TestDocumentsHaveTheBehaviourOfIstiod(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	certs := t.TempDir()
	ca := newAuthority(t, certs, "ca")
	other := newAuthority(t, certs, "other")
	w := &world{ca: ca, certs: map[string]tls.Certificate{
		"client":   ca.issue(t, "client", "spiffe://cluster.local/ns/default/sa/default", "client.test"),
		"stranger": other.issue(t, "stranger", "", "stranger.test"),
		"revoked":  ca.issue(t, "revoked", "", "revoked.test"),
	}}
	for name, id := range map[string]string{
		"frontend": "spiffe://cluster.local/ns/shop/sa/frontend", "former": "spiffe://old.example/ns/default/sa/default",
		"sleep": "spiffe://cluster.local/ns/default/sa/sleep", "long": "spiffe://cluster.local/ns/default-2/sa/default",
	} {
		w.certs[name] = ca.issue(t, name, id)
	}
	ca.issue(t, "gateway", "", "*.test")
	w.backends = startBackends(t, ca, certs)
	w.backends.startAuthorizers(t)
	w.startCollectors(t, logsBeside(certs))
	issuer := newIssuer(t)
	w.ports["keys"] = portOf(t, issuer.url)
	ca.revoke(t, "s2", "revoked")
	secrets := startSecrets(t, certs)
	for _, path := range files {
		for i, g := range readGroups(t, path, w.backends, issuer, certs) {
			g.first = i == 0
			t.Run(g.Name, func(t *testing.T) {
				dir := t.TempDir()
				if *keep != "" {
					dir = filepath.Join(*keep, g.Name)
					check(t, os.MkdirAll(dir, 0o700))
				}
				w.compare(t, g, dir, secrets, certs)
			})
		}
	}
	if w.hits == 0 && !t.Failed() {
		t.Error("no request came to a backend")
	}
}

// compare runs the cases of a group with istiod, and then with holdfast-mesh: both Envoys listen on the
// same ports.
func (w *world) compare(t *testing.T, g *group, dir, secrets, certs string) {
	clientCerts := ""
	if g.authenticates() {
		w.ca.issue(t, "workload", g.workloadID())
		clientCerts = certs
	}
	address, admin := startHoldfast(t, g, dir, certs)
	planes := []struct {
		name, xds, certs string
	}{{"istiod", startIstiod(t, g), ""}, {"holdfast-mesh", address, clientCerts}}
	outcomes := make(map[string]map[*request][]*outcome)
	for _, plane := range planes {
		w.collectors.forget(t)
		e := startEnvoy(t, g, dir, plane.name, plane.xds, secrets, plane.certs)
		if *shadowAll || g.first && plane.name == "istiod" {
			shadows(t, e, plane.name, plane.xds, plane.certs)
		}
		outcomes[plane.name] = make(map[*request][]*outcome)
		for _, c := range g.cases {
			for _, r := range c.requests {
				if r.parallel {
					e.propagated(t)
				}
				outcomes[plane.name][r] = w.run(r)
				if g.Inbound && plane.name == "holdfast-mesh" {
					w.explain(t, g, c, r, admin, outcomes[plane.name][r][0])
				}
			}
		}
		select {
		case <-e.exited:
			t.Fatalf("the Envoy of %s has ended:\n%s", plane.name, tail(e.log, 30))
		default:
		}
		e.stop()
	}
	for _, c := range g.cases {
		t.Run(c.Name, func(t *testing.T) {
			differs := false
			for _, r := range c.requests {
				istiod, holdfast := outcomes["istiod"][r], outcomes["holdfast-mesh"][r]
				if slices.ContainsFunc(istiod, func(o *outcome) bool { return len(o.Seen) > 0 }) {
					w.hits++
				}
				for _, problem := range r.unmet(istiod) {
					t.Errorf("%s\n  with istiod: %s", r.text, problem)
				}
				diff := difference(describe(r, istiod), describe(r, holdfast))
				if problems := r.unmet(holdfast); len(problems) > 0 {
					for _, problem := range problems {
						diff = append(diff, "with holdfast-mesh: "+problem)
					}
				}
				differs = differs || len(diff) > 0
				if c.Differs == "" && len(diff) > 0 {
					t.Errorf("%s\n  %s", r.text, strings.Join(diff, "\n  "))
				}
			}
			if c.Differs != "" && !differs {
				t.Errorf("it does not differ any more: remove %q", c.Differs)
			}
		})
	}
}
