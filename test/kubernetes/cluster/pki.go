package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority that is valid for ten days.
func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := certificate(pkix.Name{CommonName: name}, nil, nil)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &authority{cert, key}, err
}

func certificate(subject pkix.Name, names []string, ips []net.IP) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)) // rand.Reader does not fail
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject, DNSNames: names, IPAddresses: ips,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// issue returns a certificate and its key, in PEM.
func (a *authority) issue(subject pkix.Name, names []string, ips []net.IP) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, certificate(subject, names, ips), a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	key, err = privatePEM(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, err
}

// roots returns the authority's certificate, in PEM.
func (a *authority) roots() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func privatePEM(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// ServerCertificate returns a new authority's certificate, and a certificate of it with its key for a server of these
// names, all in PEM.
func ServerCertificate(names ...string) (roots, cert, key []byte, err error) {
	a, err := newAuthority("test")
	if err != nil {
		return nil, nil, nil, err
	}
	cert, key, err = a.issue(pkix.Name{CommonName: names[0]}, names, nil)
	return a.roots(), cert, key, err
}

// writePKI writes the certificates of the components, their kubeconfigs, and the key of service account tokens.
func (c *Cluster) writePKI() error {
	ca, err := newAuthority("kubernetes")
	if err != nil {
		return err
	}
	caKey, err := privatePEM(ca.key)
	if err != nil {
		return err
	}
	files := map[string][]byte{"ca.crt": ca.roots(), "ca.key": caKey}
	ips := func(all ...string) (parsed []net.IP) {
		for _, ip := range all {
			parsed = append(parsed, net.ParseIP(ip))
		}
		return parsed
	}
	for _, k := range []struct {
		file, user, group string
		names             []string
		ips               []net.IP
		kubeconfig        bool
	}{
		{file: "apiserver", user: "kube-apiserver", names: []string{"localhost", "kubernetes.default.svc"}, ips: ips("127.0.0.1", apiServerIP, NodeIP)},
		{file: "apiserver-kubelet", user: "kube-apiserver-kubelet-client", group: "system:masters"},
		{file: "kubelet-server", user: "node1", names: []string{"node1"}, ips: ips("127.0.0.1", NodeIP)},
		{file: "admin", user: "admin", group: "system:masters", kubeconfig: true},
		{file: "kube-controller-manager", user: "system:kube-controller-manager", kubeconfig: true},
		{file: "kube-scheduler", user: "system:kube-scheduler", kubeconfig: true},
		{file: "kube-proxy", user: "system:kube-proxy", kubeconfig: true},
		{file: "kubelet", user: "system:node:node1", group: "system:nodes", kubeconfig: true},
	} {
		subject := pkix.Name{CommonName: k.user}
		if k.group != "" {
			subject.Organization = []string{k.group}
		}
		if files[k.file+".crt"], files[k.file+".key"], err = ca.issue(subject, k.names, k.ips); err != nil {
			return err
		}
		if k.kubeconfig {
			files[k.file+".kubeconfig"] = fmt.Appendf(nil, kubeconfig, c.path("pki", "ca.crt"), c.path("pki", k.file+".crt"), c.path("pki", k.file+".key"))
		}
	}
	tokens, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	if files["tokens.key"], err = privatePEM(tokens); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(tokens.Public())
	if err != nil {
		return err
	}
	files["tokens.pub"] = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	for name, content := range files {
		if err := os.WriteFile(c.path("pki", name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://127.0.0.1:6443", certificate-authority: %q}}]
users: [{name: user, user: {client-certificate: %q, client-key: %q}}]
contexts: [{name: context, context: {cluster: node, user: user}}]
current-context: context
`
