package mesh

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

// Two clusters of a mesh have an issuer of tokens each, and each its trust domain: their workloads get certificates of it and
// reach each other, and an agent of one gets no certificate of the other.
func TestIssuersOfTokensAreToldApart(t *testing.T) {
	p := newPairAtRest(t, "STRICT")
	other, err := tokens.New()
	p.check(err)
	other.URL = "https://b.example"
	p.trust(p.issuer, other)
	p.args = append(p.args, "--token-trust-domain", p.issuer.URL+"=cluster.local", "--token-trust-domain", other.URL+"=b.example")
	aliases := func(list string) {
		p.write("mesh", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'trustDomainAliases: ["+list+"]'}\n")
	}
	aliases("b.example")
	p.startMesh()
	p.startAgentOf(p.server, other, "web", "spiffe://b.example/ns/shop/sa/web")
	p.server.startEnvoy()
	p.run(p.world, "client")
	p.answers(p.request(), "200 v1")
	for _, id := range []string{"spiffe://cluster.local/ns/shop/sa/client", "spiffe://b.example/ns/shop/sa/web"} {
		p.check(p.mesh.Says(limit, `msg="certificate issued" identity=`+id+" "))
		if log := p.mesh.Tail(10_000); strings.Count(log, `msg="certificate issued" identity=`+id+" ") != 1 {
			t.Errorf("more than one certificate of %s:\n%s", id, log)
		}
	}

	// The same service account of the first cluster is somebody else.
	thief := p.beside("thief-1", "sidecar", `{"app":"web"}`)
	const web = "spiffe://cluster.local/ns/shop/sa/web"
	p.startAgentOf(thief, other, "web", web, "--node-id", "thief-1", "--node-cluster", "e2e", "--node-metadata", "NAMESPACE=shop")
	p.check(p.mesh.Wait(limit, func() error {
		if log := p.mesh.Tail(10_000); !strings.Contains(log, web) || !strings.Contains(log, "and the client is spiffe://b.example/ns/shop/sa/web") {
			return errors.New("the log does not say that the certificate was refused:\n" + log)
		}
		return nil
	}))
	if log := p.mesh.Tail(10_000); strings.Contains(log, `msg="certificate issued" identity=`+web) {
		t.Errorf("a certificate of %s was issued:\n%s", web, log)
	}
	p.check(thief.agent.Stop(limit))

	// A trust domain that the mesh does not have any more is that of nobody.
	client := http.Client{Timeout: limit, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	poll := func(issuer *tokens.Issuer) int {
		text, err := issuer.Token("shop", "web")
		p.check(err)
		req, err := http.NewRequestWithContext(p.Context(), http.MethodPost, "https://"+p.xds+"/v3/discovery:clusters", strings.NewReader(`{"node":{"id":"web-9","metadata":{"NAMESPACE":"shop"}}}`))
		p.check(err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+string(text))
		resp, err := client.Do(req)
		p.check(err)
		p.check(resp.Body.Close())
		return resp.StatusCode
	}
	if status := poll(other); status != http.StatusOK {
		t.Errorf("a token of an alias: %d", status)
	}
	aliases("c.example")
	p.check(p.mesh.Wait(limit, func() error {
		if status := poll(other); status != http.StatusUnauthorized {
			return fmt.Errorf("a token of a former alias: %d", status)
		}
		return nil
	}))
	p.check(p.mesh.Says(limit, "the trust domain of its issuer (--token-trust-domain) is b.example, and not one of the mesh"))
	if status := poll(p.issuer); status != http.StatusOK {
		t.Errorf("a token of the other issuer: %d", status)
	}
}
