package etcd

import (
	"context"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

// named makes a certificate that of a user of etcd, on loopback.
func named(name string) pkitest.Option {
	return func(c *x509.Certificate) {
		c.Subject.CommonName = name
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
}

// leaf writes the files of a certificate.
func (s *store) leaf(ca *pkitest.CA, name string) tlsFiles {
	s.Helper()
	pair := ca.Leaf(s, named(name))
	return tlsFiles{s.file("ca.pem", string(pki.EncodeCerts(ca.Roots()))), s.file(name+".pem", string(pair.ChainPEM())), s.file(name+"-key.pem", string(pair.KeyPEM()))}
}

// The name in a client certificate is that of the user.
func TestAClientCertificateIsAUser(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.user("root", "root")
	s.user("server", "server-password")
	s.grant("server", "/holdfast/", "/holdfast0", clientv3.PermissionType(clientv3.PermReadWrite))
	_, err := s.raw.AuthEnable(context.Background())
	s.Check(err)
	s.stop()
	ca := pkitest.Root(t, "etcd", time.Now())
	s.tls = s.leaf(ca, "etcd-0")
	server, stranger := s.leaf(ca, "server"), s.leaf(ca, "stranger")
	s.start("data")
	c := s.open(etcd.Options{CA: server.ca, Cert: server.cert, Key: server.key})
	source := follow(s.Rig, c, "")
	write(t, c, entry(t, "a", "10.0.0.1"))
	source.has("a", "10.0.0.1")
	if _, err := s.open(etcd.Options{CA: server.ca, Cert: stranger.cert, Key: stranger.key}).Create(t.Context(), entry(t, "b", "10.0.0.1")); err == nil {
		t.Error("a user that does not exist writes")
	} else {
		t.Log(err)
	}
	other := pkitest.Root(t, "other", time.Now())
	_, err = s.open(etcd.Options{CA: s.file("other.pem", string(pki.EncodeCerts(other.Roots()))), Cert: server.cert, Key: server.key}).Create(t.Context(), entry(t, "b", "10.0.0.1"))
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown CA: %v", err)
	}
}
