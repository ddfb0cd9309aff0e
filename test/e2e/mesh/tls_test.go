package mesh

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// authority is a CA for tests.
type authority struct {
	w    *world
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes a CA, and writes its certificate to NAME.pem.
func newAuthority(w *world, name string) *authority {
	w.Helper()
	a := &authority{w: w}
	template := a.template(name)
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	a.cert, a.key = a.sign(name, template, nil)
	return a
}

func (a *authority) template(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
}

// issue writes a certificate of the CA and its key to NAME.pem and NAME.key, with a SPIFFE ID if one is
// given.
func (a *authority) issue(name string, id ...string) *x509.Certificate {
	a.w.Helper()
	template := a.template(name)
	for _, text := range id {
		uri, err := url.Parse(text)
		a.w.check(err)
		template.URIs = append(template.URIs, uri)
	}
	cert, _ := a.sign(name, template, a.cert)
	return cert
}

func (a *authority) sign(name string, template, parent *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.w.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.w.check(err)
	signer := a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	a.w.check(err)
	cert, err := x509.ParseCertificate(der)
	a.w.check(err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	a.w.check(err)
	a.w.check(os.WriteFile(a.w.path(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	a.w.check(os.WriteFile(a.w.path(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return cert, key
}

func TestClientsNeedACertificateOfTheCA(t *testing.T) {
	w := newWorld(t)
	w.through = true
	ca, other := newAuthority(w, "ca"), newAuthority(w, "other-ca")
	ca.issue("server")
	ca.issue("client")
	other.issue("stranger")
	w.args = append(w.args, "--listen", "", "--tls-listen", w.xds, "--tls-cert", w.path("server.pem"), "--tls-key", w.path("server.key"),
		"--tls-client-ca", w.path("ca.pem"))
	w.startMesh()
	for _, tc := range []struct {
		name, client string
	}{
		{"no certificate", ""},
		{"a certificate of another CA", "stranger"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags := []string{"--upstream", w.xds, "--upstream-ca", w.path("ca.pem")}
			if tc.client != "" {
				flags = append(flags, "--upstream-cert", w.path(tc.client+".pem"), "--upstream-key", w.path(tc.client+".key"))
			}
			w.startAgentWith(append(flags, "--node-id", "client-1", "--node-cluster", "client")...)
			w.rejected("")
			if proxies := w.status().Proxies; len(proxies) > 0 {
				t.Errorf("served: %+v", proxies)
			}
			w.check(w.agent.Stop(limit))
		})
	}
	w.startAgentWith("--upstream", w.xds, "--upstream-ca", w.path("ca.pem"), "--upstream-cert", w.path("client.pem"), "--upstream-key", w.path("client.key"))
	w.startEnvoy()
	w.answers(w.request(), "200 v1")
	w.synced()
	// Files that are replaced are those of the next connection.
	w.check(w.agent.Stop(limit))
	other.issue("server")
	w.startAgentWith("--upstream", w.xds, "--upstream-ca", w.path("other-ca.pem"), "--upstream-cert", w.path("client.pem"), "--upstream-key", w.path("client.key"))
	w.synced()
}

// rejected waits until the agent knows why its control plane does not serve it.
func (w *world) rejected(reason string) {
	w.Helper()
	w.check(w.agent.Wait(limit, func() error {
		s, err := admin.Client{Addr: "unix:" + w.own("admin.sock")}.Status(w.Context())
		if err != nil {
			return err
		}
		got := ""
		if len(s.Groups) > 0 && len(s.Groups[0].Upstreams) > 0 {
			got = s.Groups[0].Upstreams[0].LastError
		}
		if got == "" || !strings.Contains(got, reason) {
			return fmt.Errorf("the agent's last error is %q, want %q", got, reason)
		}
		return nil
	}))
}

// secret writes a Secret with a certificate and its key.
func (w *world) secret(namespace, name, files string) {
	w.Helper()
	indented := func(file string) string {
		text, err := os.ReadFile(w.path(file))
		w.check(err)
		return strings.ReplaceAll("\n"+strings.TrimSpace(string(text)), "\n", "\n    ")
	}
	w.write("secret-"+namespace+"-"+name, fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: %s}
type: kubernetes.io/tls
stringData:
  tls.crt: |%s
  tls.key: |%s
`, name, namespace, indented(files+".pem"), indented(files+".key")))
}

// A gateway whose certificate says who it is gets the Secret that its Gateway names, and the next one under
// load. Nobody else does: not without a certificate, not in plaintext, not with the identity of another
// namespace (mesh.md M9).
func TestASecretIsForAGatewayThatAuthenticates(t *testing.T) {
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			w := newWorld(t)
			w.through, w.form = true, form
			w.of = node{id: "edge-1", kind: "router", labels: `{"app":"edge"}`, dir: w.dir}
			ca := newAuthority(w, "ca")
			ca.issue("server")
			ca.issue("edge", "spiffe://cluster.local/ns/shop/sa/edge")
			ca.issue("thief", "spiffe://cluster.local/ns/store/sa/thief")
			ca.issue("nobody")
			first, second := ca.issue("first"), ca.issue("second")
			port := w.freePort()
			w.write("gateway", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec:
  selector: {app: edge}
  servers:
  - port: {number: %d, name: https, protocol: HTTPS}
    bind: 127.0.0.1
    hosts: ["*"]
    tls: {mode: SIMPLE, credentialName: web}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http: [{route: [{destination: {host: web.internal, subset: canary}}]}]
`, port))
			w.secret("shop", "web", "first")
			plain, secure := w.xds, w.freeAddr()
			w.args = append(w.args, "--tls-listen", secure, "--tls-cert", w.path("server.pem"), "--tls-key", w.path("server.key"),
				"--tls-client-ca", w.path("ca.pem"))
			w.startMesh()
			as := func(name string) []string {
				return []string{"--upstream", secure, "--upstream-ca", w.path("ca.pem"), "--upstream-cert", w.path(name + ".pem"), "--upstream-key", w.path(name + ".key")}
			}
			served := func() *x509.Certificate {
				conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{InsecureSkipVerify: true})
				if err != nil {
					return nil
				}
				defer func() { _ = conn.Close() }()
				return conn.ConnectionState().PeerCertificates[0]
			}
			for i, flags := range [][]string{{"--upstream", plain, "--upstream-plaintext"}, as("nobody")} {
				w.startAgentWith(flags...)
				w.startEnvoy()
				w.check(w.mesh.Wait(limit, func() error {
					if n := strings.Count(w.mesh.Tail(1000), "the proxy has not authenticated"); n <= i {
						return errors.New("the log does not say why there is no Secret")
					}
					return w.answered("LDS")
				}))
				if cert := served(); cert != nil {
					t.Errorf("a gateway with %v has a certificate", flags)
				}
				w.envoy.Kill()
				w.check(w.agent.Stop(limit))
			}
			w.startAgentWith(append(as("thief"), "--node-id", "edge-1", "--node-cluster", "e2e", "--node-metadata", "NAMESPACE=shop")...)
			w.rejected(`its namespace is "shop", and that of its identity "store"`)
			w.check(w.agent.Stop(limit))

			w.startAgentWith(as("edge")...)
			w.startEnvoy()
			request := testbed.Request{URL: fmt.Sprintf("https://127.0.0.1:%d/", port), Host: "anything.example.com"}
			w.answers(request, "200 v2")
			if cert := served(); !cert.Equal(first) {
				t.Error("the gateway has another certificate")
			}
			stop, failed := make(chan struct{}), make(chan error, 1)
			go func() {
				defer close(failed)
				for {
					select {
					case <-stop:
						return
					default:
					}
					if status, _, err := request.Get(); err != nil || status != http.StatusOK {
						failed <- fmt.Errorf("a request failed: %d %w", status, err)
						return
					}
				}
			}()
			w.secret("shop", "web", "second")
			w.check(w.envoy.Wait(limit, func() error {
				if cert := served(); !cert.Equal(second) {
					return errors.New("the gateway does not have the second certificate")
				}
				return nil
			}))
			w.secret("store", "web", "first") // another namespace's is not the gateway's
			w.remove("secret-shop-web")       // what is gone stays in use
			w.check(w.mesh.Wait(limit, func() error {
				if code, out, _ := run(t, "get", "secrets", "--admin", w.admin); code != 0 || strings.Contains(out, "shop") || !strings.Contains(out, "store") {
					return fmt.Errorf("the documents are\n%s", out)
				}
				return nil
			}))
			if cert := served(); !cert.Equal(second) {
				t.Error("the gateway does not keep its certificate")
			}
			close(stop)
			w.check(<-failed)
			w.check(w.mesh.Wait(limit, func() error { // it keeps what nobody else would get
				for _, of := range w.status().Proxies[0].Types {
					if of.Type == "SDS" && of.State == "NOT SENT" || of.Type != "SDS" && of.State == "SYNCED" {
						continue
					}
					return fmt.Errorf("%s is %s", of.Type, of.State)
				}
				return nil
			}))
			for _, log := range []string{w.mesh.Tail(10_000), w.agent.Tail(10_000)} {
				if strings.Contains(log, "PRIVATE KEY") {
					t.Error("a log has a private key")
				}
			}
		})
	}
}
