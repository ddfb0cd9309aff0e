package istio

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	pb "istio.io/api/security/v1alpha1"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// No request may leave a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds a wait for an event that happens immediately on loopback.
const limit = 20 * time.Second

// names are what the certificates of the tests are for.
var names = pki.Names{ID: "spiffe://mesh.test/ns/shop/sa/web", DNS: []string{"web.shop.svc", "web.shop.svc.mesh.test"}}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// authority signs certificates for one test.
type authority struct {
	*testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// newAuthority makes an authority under another one, or a root if that is nil.
func newAuthority(t *testing.T, name string, parent *authority) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca := &authority{T: t, key: key}
	if parent == nil {
		ca.cert = template
		parent = ca
	}
	ca.cert = parent.sign(template, key.Public())
	return ca
}

func (ca *authority) sign(template *x509.Certificate, key crypto.PublicKey) *x509.Certificate {
	ca.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	check(ca.T, err)
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key, ca.key)
	check(ca.T, err)
	c, err := x509.ParseCertificate(der)
	check(ca.T, err)
	return c
}

// leaf signs what a certificate request asks for.
func (ca *authority) leaf(csr *x509.CertificateRequest) *x509.Certificate {
	ca.Helper()
	return ca.sign(&x509.Certificate{URIs: csr.URIs, DNSNames: csr.DNSNames, KeyUsage: x509.KeyUsageDigitalSignature}, csr.PublicKey)
}

// server is the TLS configuration of a server at 127.0.0.1.
func (ca *authority) server() *tls.Config {
	ca.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(ca.T, err)
	cert := ca.sign(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}, key.Public())
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}}
}

// file returns a file with the certificate of the authority.
func (ca *authority) file() string {
	ca.Helper()
	return write(ca.T, "ca.pem", text(ca.cert))
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// text is certificates in PEM.
func text(certs ...*x509.Certificate) string { return string(pki.EncodeCerts(certs)) }

// received is a request as it arrived.
type received struct {
	*pb.IstioCertificateRequest
	csr  *x509.CertificateRequest
	head metadata.MD
}

// service answers requests as a test says, and records them.
type service struct {
	pb.UnimplementedIstioCertificateServiceServer
	answer func(context.Context, received) ([]string, error)

	mu       sync.Mutex
	received []received
}

func (s *service) CreateCertificate(ctx context.Context, req *pb.IstioCertificateRequest) (*pb.IstioCertificateResponse, error) {
	r := received{IstioCertificateRequest: req}
	r.head, _ = metadata.FromIncomingContext(ctx)
	block, _ := pem.Decode([]byte(req.GetCsr()))
	if block == nil {
		return nil, errors.New("the request is not PEM")
	}
	var err error
	if r.csr, err = x509.ParseCertificateRequest(block.Bytes); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.received = append(s.received, r)
	s.mu.Unlock()
	chain, err := s.answer(ctx, r)
	return &pb.IstioCertificateResponse{CertChain: chain}, err
}

// requests returns the requests so far.
func (s *service) requests() []received {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.received)
}

// serve serves on a listener until the test ends.
func (s *service) serve(t *testing.T, lis net.Listener, opts ...grpc.ServerOption) {
	srv := grpc.NewServer(opts...)
	pb.RegisterIstioCertificateServiceServer(srv, s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(lis)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-ended
	})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	return lis
}

// rig is a CA on loopback, with TLS, and a client.
type rig struct {
	root    *authority
	service *service
	addr    string
	cfg     Config
}

// newRig makes a CA that answers in this way.
func newRig(t *testing.T, answer func(context.Context, received) ([]string, error)) *rig {
	t.Helper()
	r := &rig{root: newAuthority(t, "root", nil), service: &service{answer: answer}}
	lis := listen(t)
	r.addr = lis.Addr().String()
	r.service.serve(t, lis, grpc.Creds(credentials.NewTLS(r.root.server())))
	r.cfg.Security = dial.Security{CA: r.root.file()}
	return r
}

// answerWith answers with these elements.
func answerWith(elements ...string) func(context.Context, received) ([]string, error) {
	return func(context.Context, received) ([]string, error) { return elements, nil }
}

// refuse answers with an error.
func refuse(err error) func(context.Context, received) ([]string, error) {
	return func(context.Context, received) ([]string, error) { return nil, err }
}

// ask asks once, for a new key.
func (r *rig) ask(t *testing.T) (pki.Answer, error) {
	t.Helper()
	return ask(t, newCA(t, r.addr, r.cfg))
}

func newCA(t *testing.T, addr string, cfg Config) *CA {
	t.Helper()
	ca, err := New(addr, cfg)
	check(t, err)
	return ca
}

func ask(t *testing.T, ca *CA) (pki.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	return ca.Issue(ctx, request(t))
}

func request(t *testing.T) pki.Request {
	t.Helper()
	key, err := pki.DefaultKeyType.Generate()
	check(t, err)
	return pki.Request{Key: key, Names: names, Lifetime: 90*time.Minute + time.Millisecond}
}

// checkFault fails unless err has the reason and the texts.
func checkFault(t *testing.T, err error, reason pki.Reason, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("an answer, want a failure: %s", reason)
	}
	if got := pki.ReasonOf(err, "none"); got != reason {
		t.Errorf("reason %s, want %s: %v", got, reason, err)
	}
	for _, want := range texts {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want one with %q", err, want)
		}
	}
}

// same fails unless the certificates are these.
func same(t *testing.T, what string, got []*x509.Certificate, want ...*x509.Certificate) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b *x509.Certificate) bool { return a.Equal(b) }) {
		t.Errorf("%s: %s, want %s", what, subjects(got), subjects(want))
	}
}

func subjects(certs []*x509.Certificate) []string {
	var out []string
	for _, c := range certs {
		out = append(out, c.Subject.CommonName+"#"+c.SerialNumber.Text(16))
	}
	return out
}

// expect fails unless err has the text, or is nil where the text is "".
func expect(t *testing.T, err error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Errorf("refused: %v", err)
	case text != "" && err == nil:
		t.Errorf("accepted; want an error with %q", text)
	case text != "" && !strings.Contains(err.Error(), text):
		t.Errorf("error %q, want one with %q", err, text)
	}
}
