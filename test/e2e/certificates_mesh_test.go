package e2e

import (
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
	"github.com/holdfast-xds/holdfast/test/testbed"
	"github.com/holdfast-xds/holdfast/test/testbed/tokens"
)

// meshCA is a holdfast-mesh whose authority is in a directory.
type meshCA struct {
	addr, roots string
	volume      *pkitest.Volume
	process     *testbed.Process
	tokens      *tokens.Issuer
}

// newMeshCA starts a holdfast-mesh with an authority's files.
func newMeshCA(p *pods, files map[string][]byte) *meshCA {
	p.Helper()
	pod := p.server
	issuer, err := tokens.New()
	pod.check(err)
	keys := pod.write("mesh-keys.json", issuer.Keys)
	m := &meshCA{addr: fmt.Sprintf("127.0.0.1:%d", pod.freePort()), roots: pod.path("mesh-roots.pem"), volume: pkitest.NewVolume(pod), tokens: issuer}
	m.volume.Publish(pod, files)
	settings := pod.write("mesh/mesh.yaml", []byte(`{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: "trustDomain: `+pkitest.Domain+`"}}`))
	admin := fmt.Sprintf("127.0.0.1:%d", pod.freePort())
	m.process, err = testbed.Start("holdfast-mesh", pod.path("mesh.log"), filepath.Join(envoytest.Root(p), "bin", "holdfast-mesh"), "serve", "--config", filepath.Dir(settings),
		"--listen", "", "--tls-listen", m.addr, "--admin", admin, "--ca", "dir:"+m.volume.Dir, "--token-issuer", issuer.URL, "--token-keys", issuer.URL+"="+keys)
	pod.check(err)
	pod.Cleanup(func() { pod.check(m.process.Stop(limit)) })
	pod.check(m.process.Wait(limit, func() error {
		status, body, err := testbed.Get("http://" + admin + "/ready")
		if err == nil && status != 200 {
			err = fmt.Errorf("/ready: %d %s", status, body)
		}
		return err
	}))
	return m
}

// trusted writes what the agents trust at holdfast-mesh itself.
func (m *meshCA) trusted(p *pods, roots ...*x509.Certificate) {
	p.server.write("mesh-roots.pem", pki.EncodeCerts(roots))
}

// origin lets a pod's agent ask for its certificate, with a token of its service account.
func (m *meshCA) origin(_ *pods, pod *pod) {
	parts := strings.Split(pod.id, "/") // spiffe://DOMAIN/ns/NAMESPACE/sa/ACCOUNT
	token, err := m.tokens.Token(parts[4], parts[6])
	pod.check(err)
	pod.with("--ca", "istio:"+m.addr, "--istio-ca", m.roots, "--istio-token-file", pod.write("mesh-token", token), "--identity", pod.id)
}

// holdfast-mesh replaces its root in the three steps of docs/mesh-security.md, while certificates live for seconds and every
// request is a new handshake: none fails.
func TestAMeshReplacesItsRootWithoutAFailedHandshake(t *testing.T) {
	testbed.Long(t)
	t.Parallel()
	p := newPods(t, xdstest.SotW, xdstest.Delta)
	first, second := pkitest.Root(t, "first", time.Now()), pkitest.Root(t, "second", time.Now())
	under := map[*pkitest.CA]*pkitest.CA{first: first.Intermediate(t, "first authority"), second: second.Intermediate(t, "second authority")}
	files := func(signer *pkitest.CA, roots ...*pkitest.CA) map[string][]byte {
		all := istioFiles(under[signer])
		var certs []*x509.Certificate
		for _, root := range roots {
			certs = append(certs, root.Cert)
		}
		all["root-cert.pem"] = pki.EncodeCerts(certs)
		return all
	}
	m := newMeshCA(p, files(first, first))
	m.trusted(p, first.Cert)
	p.identify(m.origin, m.origin, "--cert-lifetime", "12s", "--root-lead", "1s", "--root-overlap", "30s")
	p.start()
	traffic := testbed.StartTraffic(p.client.url, requestInterval)
	// renewed waits until both have other certificates than at first, of an authority.
	renewed := func(by *pkitest.CA) func(handshake) error {
		var former []string
		return func(h handshake) error {
			now := []string{h.client.SerialNumber.String(), h.server.SerialNumber.String()}
			if former == nil {
				former = now
			}
			for i, c := range []*x509.Certificate{h.client, h.server} {
				if now[i] == former[i] || c.CheckSignatureFrom(under[by].Cert) != nil {
					return fmt.Errorf("%s has a certificate of %s, the same %t", c.URIs, c.Issuer, now[i] == former[i])
				}
			}
			return nil
		}
	}
	step := func(name string, signer *pkitest.CA, roots ...*pkitest.CA) {
		t.Helper()
		m.trusted(p, first.Cert, second.Cert)
		m.volume.Publish(t, files(signer, roots...))
		time.Sleep(4 * time.Second) // holdfast-mesh reads the files every 2 s
		p.callUntil(time.Minute, renewed(signer))
		t.Logf("%s: both have new certificates of %s", name, signer.Cert.Subject.CommonName)
	}
	step("both roots are named", first, first, second)
	step("the second one signs", second, second, first)
	step("the first one is gone", second, second)
	p.check(traffic.Stop())
	handshakes := p.noHandshakeFailed()
	if log := m.process.Tail(100_000); strings.Contains(log, "replaced at once") || strings.Count(log, `msg="certificate issued"`) < 6 {
		t.Errorf("the log of holdfast-mesh:\n%s", log)
	}
	t.Logf("%d requests of traffic, %d handshakes, none failed", traffic.Sent, handshakes)
}
