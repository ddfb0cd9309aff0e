package upstream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority is a certificate authority for one test.
type authority struct {
	*testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// file is the authority's certificate in PEM.
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	ca := &authority{T: t}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, key := ca.sign(template)
	ca.key = key
	ca.cert = template
	ca.file = ca.write(name+".pem", "CERTIFICATE", der)
	return ca
}

// sign issues a certificate; the first one is that of the authority itself.
func (ca *authority) sign(template *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	ca.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ca.check(err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := ca.cert, ca.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err = x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	ca.check(err)
	return der, key
}

// pair is a certificate with its key, in PEM files.
type pair struct{ cert, key string }

// issue issues a certificate for a server and client with some names: DNS names, IP addresses and
// URIs.
func (ca *authority) issue(file string, names ...string) pair {
	ca.Helper()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: file},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		u, err := url.Parse(name)
		switch ip := net.ParseIP(name); {
		case ip != nil:
			template.IPAddresses = append(template.IPAddresses, ip)
		case err == nil && u.Scheme != "":
			template.URIs = append(template.URIs, u)
		default:
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, key := ca.sign(template)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	ca.check(err)
	return pair{ca.write(file+".pem", "CERTIFICATE", der), ca.write(file+".key", "PRIVATE KEY", private)}
}

// server is the TLS configuration of a server with a certificate.
func (ca *authority) server(p pair) *tls.Config {
	ca.Helper()
	loaded, err := tls.LoadX509KeyPair(p.cert, p.key)
	ca.check(err)
	return &tls.Config{Certificates: []tls.Certificate{loaded}}
}

// pool contains only the certificate of the authority.
func (ca *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pem, err := os.ReadFile(ca.file)
	ca.check(err)
	pool.AppendCertsFromPEM(pem)
	return pool
}

func (ca *authority) write(name, kind string, der []byte) string {
	ca.Helper()
	file := filepath.Join(ca.TempDir(), name)
	ca.check(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return file
}

func (ca *authority) check(err error) {
	ca.Helper()
	if err != nil {
		ca.Fatal(err)
	}
}
