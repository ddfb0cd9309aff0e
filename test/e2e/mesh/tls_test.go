package mesh

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
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
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
}

// issue writes a certificate of the CA and its key to NAME.pem and NAME.key.
func (a *authority) issue(name string) {
	a.w.Helper()
	a.sign(name, a.template(name), a.cert)
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
			w.check(w.agent.Wait(limit, func() error {
				s, err := admin.Client{Addr: "unix:" + w.own("admin.sock")}.Status(t.Context())
				if err == nil && (len(s.Groups) == 0 || len(s.Groups[0].Upstreams) == 0 || s.Groups[0].Upstreams[0].LastError == "") {
					err = errors.New("the agent was not rejected")
				}
				return err
			}))
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
}
