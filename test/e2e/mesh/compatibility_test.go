package mesh

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/test/testbed"
	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

// bothWays runs a test in which the holdfast-mesh under test comes after that of the last release, and the other way round.
func bothWays(t *testing.T, test func(t *testing.T, from, to string)) {
	t.Helper()
	testbed.Long(t)
	released, _, err := testbed.Released(envoytest.Root(t), "holdfast-mesh")
	if err != nil {
		t.Skip(err)
	}
	for name, programs := range map[string][2]string{"upgrade": {released, binary(t, "holdfast-mesh")}, "downgrade": {binary(t, "holdfast-mesh"), released}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, programs[0], programs[1])
		})
	}
}

// replaceMesh ends holdfast-mesh and starts another version of it, with the same flags.
func (w *world) replaceMesh(program string) {
	w.Helper()
	w.check(w.mesh.Stop(limit))
	w.program = program
	w.startMesh()
}

// The keys of an issuer of tokens that one version has stored are those of the other, while the issuer does not answer.
func TestKeysOfIssuersAreReadByTheVersionsBesideIt(t *testing.T) {
	bothWays(t, func(t *testing.T, from, to string) {
		issuer, err := tokens.New()
		if err != nil {
			t.Fatal(err)
		}
		keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(issuer.Keys) }))
		t.Cleanup(keys.Close)
		g := newGuarded(t, fmt.Sprintf("apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: tokens, namespace: shop}\nspec: {selector: {matchLabels: {app: web}}, jwtRules: [{issuer: %q, jwksUri: %q}]}\n", issuer.URL, keys.URL))
		g.write("allow", policy("allow", `action: ALLOW, rules: [{from: [{source: {requestPrincipals: ["*"]}}]}]`))
		g.args = append(g.args, "--state-dir", g.path("state"))
		g.replaceMesh(from)
		text, err := issuer.Token("shop", "client")
		g.check(err)
		token := g.request()
		token.Header = map[string]string{"Authorization": "Bearer " + string(text)}
		g.answers(token, "200 web")
		g.answers(g.request(), "403 RBAC: access denied")
		keys.Close()
		for i, program := range []string{to, from} {
			g.replaceMesh(program)
			// A policy that comes now brings the listeners with the keys that this version has.
			path := fmt.Sprintf("/denied-%d", i)
			g.write("deny", policy("deny", fmt.Sprintf("action: DENY, rules: [{to: [{operation: {paths: [%s]}}]}]", path)))
			denied := token
			denied.URL += path[1:]
			g.answers(denied, "403 RBAC: access denied")
			g.answers(token, "200 web")
		}
	})
}

// A machine that has registered with one version stays an endpoint at the other, while its agent is away.
func TestRegisteredWorkloadsAreReadByTheVersionsBesideIt(t *testing.T) {
	bothWays(t, func(t *testing.T, from, to string) {
		w := newWorld(t)
		w.through, w.program = true, from
		issuer, err := tokens.New()
		w.check(err)
		w.check(os.WriteFile(w.path("keys.json"), issuer.Keys, 0o600))
		flags := func(account string) []string {
			text, err := issuer.Token("shop", account)
			w.check(err)
			w.check(os.WriteFile(w.path("token-"+account), text, 0o600))
			return []string{"--upstream", w.xds, "--upstream-ca", w.path("ca/root-cert.pem"), "--upstream-token-file", w.path("token-" + account)}
		}
		_, backendPort, err := net.SplitHostPort(w.v1.Addr)
		w.check(err)
		port := w.freePort()
		w.write("group", fmt.Sprintf(workloadGroup, backendPort, port))
		w.args = append(w.args, "--listen", "", "--tls-listen", w.xds, "--state-dir", w.path("state"), "--ca", "dev:"+w.path("ca"), "--token-issuer", issuer.URL, "--token-keys", issuer.URL+"="+w.path("keys.json"))
		w.startMesh()
		w.startAgentWith(flags("client")...)
		w.startEnvoy()
		machine := w.beside("machine-1", "sidecar", `{"rack":"r1"}`)
		machine.of.metadata = []string{"AUTO_REGISTER_GROUP=machines", "INSTANCE_IPS=127.0.0.1"}
		machine.startAgentWith(flags("machine")...)
		machine.startEnvoy()
		machines := w.requestTo("machines.internal", port)
		w.answers(machines, "200 v1")
		machine.envoy.Kill()
		machine.agent.Kill()
		for _, program := range []string{to, from, to} {
			w.replaceMesh(program)
			w.connected()
			// What the client gets now comes from the state that this version has read.
			w.envoy.Kill()
			w.check(w.agent.Stop(limit))
			w.startAgentWith(flags("client")...)
			w.startEnvoy()
			w.answers(machines, "200 v1")
		}
		if damaged, _ := filepath.Glob(w.path("state/*.damaged")); len(damaged) > 0 || strings.Contains(w.mesh.Tail(1000), "damaged") {
			t.Errorf("set aside: %q\n%s", damaged, w.mesh.Tail(20))
		}
	})
}
