package mesh

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

// A mesh needs nothing but holdfast-mesh: it makes its own authority, and agents prove with a token who they are, get a
// certificate, and their configuration. Whoever takes the id of another's node gets neither.
func TestAMeshIssuesItsOwnCertificates(t *testing.T) {
	w := newWorld(t)
	w.through = true
	w.of = node{id: "client-1", kind: "sidecar", labels: `{"app":"client"}`, dir: w.dir}
	issuer, err := tokens.New()
	w.check(err)
	w.check(os.WriteFile(w.path("keys.json"), issuer.Keys, 0o600))
	issue := func(namespace, account string) (file string) {
		t.Helper()
		text, err := issuer.Token(namespace, account)
		w.check(err)
		file = w.path("token-" + namespace + "-" + account)
		w.check(os.WriteFile(file, text, 0o600))
		return file
	}
	mine, thief := issue("shop", "client"), issue("store", "thief")
	w.args = append(w.args, "--listen", "", "--tls-listen", w.xds, "--ca", "dev:"+w.path("ca"), "--token-issuer", issuer.URL, "--token-keys", issuer.URL+"="+w.path("keys.json"))
	w.startMesh()
	const id = "spiffe://cluster.local/ns/shop/sa/client"
	with := func(token, identity string) []string {
		return []string{
			"--upstream", w.xds, "--upstream-ca", w.path("ca/root-cert.pem"), "--upstream-token-file", token,
			"--ca", "istio:" + w.xds, "--istio-ca", w.path("ca/root-cert.pem"), "--istio-token-file", token, "--identity", identity, "--identity-dir", w.path("identity"),
		}
	}
	w.startAgentWith(with(mine, id)...)
	w.startEnvoy()
	w.answers(w.request(), "200 v1")
	w.synced()
	issued := `msg="certificate issued" identity=` + id
	w.check(w.agent.Wait(limit, func() error {
		s, err := admin.Client{Addr: "unix:" + w.own("admin.sock")}.Status(w.Context())
		if err != nil {
			return err
		}
		for _, c := range s.Certificates.Identities {
			if c.Serial != "" && c.Names == id {
				return nil
			}
		}
		return fmt.Errorf("certificates %+v", s.Certificates)
	}))
	w.check(w.mesh.Says(limit, issued))
	if log := w.mesh.Tail(10_000); strings.Count(log, issued) != 1 || strings.Contains(log, "PRIVATE KEY") || strings.Contains(log, "eyJ") {
		t.Errorf("the log of holdfast-mesh:\n%s", log)
	}
	w.envoy.Kill()
	w.check(w.agent.Stop(limit))

	// A token of another namespace is good, and yet not for this node and this identity.
	w.startAgentWith(append(with(thief, id), "--identity-dir", w.path("thief"), "--node-id", "client-1", "--node-cluster", "e2e", "--node-metadata", "NAMESPACE=shop")...)
	w.rejected(`its namespace is "shop", and that of its identity "store"`)
	w.check(w.mesh.Wait(limit, func() error {
		if log := w.mesh.Tail(10_000); !strings.Contains(log, "and the client is spiffe://cluster.local/ns/store/sa/thief") || strings.Count(log, issued) != 1 {
			return errors.New("the log does not say that the certificate was refused:\n" + log)
		}
		return nil
	}))
	w.check(w.agent.Stop(limit))

	// Without a token there is neither.
	w.startAgentWith("--upstream", w.xds, "--upstream-ca", w.path("ca/root-cert.pem"), "--node-id", "client-1", "--node-cluster", "e2e", "--node-metadata", "NAMESPACE=shop")
	w.rejected("proves it neither with a certificate that has a SPIFFE ID nor with a token")
	w.check(w.agent.Stop(limit))

	// REST is no way around.
	client := http.Client{Timeout: limit, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	for token, want := range map[string]int{"": http.StatusUnauthorized, thief: http.StatusForbidden, mine: http.StatusOK} {
		req, err := http.NewRequestWithContext(w.Context(), http.MethodPost, "https://"+w.xds+"/v3/discovery:clusters", strings.NewReader(`{"node":{"id":"client-1","metadata":{"NAMESPACE":"shop"}}}`))
		w.check(err)
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			text, err := os.ReadFile(token)
			w.check(err)
			req.Header.Set("Authorization", "Bearer "+string(text))
		}
		resp, err := client.Do(req)
		w.check(err)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("REST with the token %q: %s, want %d", token, resp.Status, want)
		}
	}

	// The authority is the same after a restart.
	w.check(w.mesh.Stop(limit))
	w.startMesh()
	w.startAgentWith(with(mine, id)...)
	w.startEnvoy()
	w.answers(w.request(), "200 v1")
}
