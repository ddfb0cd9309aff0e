package ca

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	pb "istio.io/api/security/v1alpha1"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an authority behind the server of the mesh, with TLS and in plaintext. A token is the namespace and the account.
type rig struct {
	*testing.T
	ca         *Server
	log        safeBuffer
	registry   *prometheus.Registry
	tls, plain string // addresses
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{T: t, registry: prometheus.NewRegistry()}
	dev, err := local.OpenDev("", "", time.Now, slog.New(slog.DiscardHandler))
	r.check(err)
	cfg := Config{
		Authority: dev, Names: []string{"localhost", "127.0.0.1"}, Metrics: NewMetrics(r.registry), Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		TrustDomains: func() ([]string, error) { return []string{"cluster.local", "old.example", "Old.Example"}, nil },
		Identify: func(_ context.Context, c downstream.Credentials, _ []string) (*proxy.Identity, error) {
			if id, err := proxy.IdentityOf(c.Certificate); id != nil || err != nil || len(c.Authorization) == 0 {
				return id, err
			}
			domain, rest, _ := strings.Cut(c.Authorization[0], "/")
			namespace, account, found := strings.Cut(rest, "/")
			if !found {
				return nil, status.Error(codes.Unauthenticated, "a wrong token")
			}
			return &proxy.Identity{TrustDomain: domain, Namespace: namespace, ServiceAccount: account}, nil
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	r.ca, err = New(cfg)
	r.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	xds := downstream.New(downstream.Config{Register: r.ca.Register})
	ended := make(chan error, 3)
	go func() { ended <- r.ca.Run(ctx) }()
	listen := func(tlsConfig *tls.Config) string {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		r.check(err)
		addr := lis.Addr().String()
		if tlsConfig != nil {
			lis = tls.NewListener(lis, tlsConfig)
		}
		go func() { ended <- xds.Serve(ctx, lis) }()
		return addr
	}
	r.plain = listen(nil)
	r.tls = listen(&tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair, err := r.ca.Certificate()
		if err != nil {
			return nil, err
		}
		return &tls.Config{Certificates: []tls.Certificate{*pair}, ClientCAs: pki.Pool(r.ca.Roots()), ClientAuth: tls.VerifyClientCertIfGiven, NextProtos: []string{"h2"}}, nil
	}})
	r.wait(func() bool {
		_, err := r.ca.Certificate()
		return err == nil
	})
	t.Cleanup(func() {
		cancel()
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

func (r *rig) check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// safeBuffer is a log that is read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// ask requests a certificate over TLS with a token, or with a certificate.
func (r *rig) ask(token string, own *tls.Certificate, req *pb.IstioCertificateRequest) (*pb.IstioCertificateResponse, error) {
	r.Helper()
	conf := &tls.Config{RootCAs: pki.Pool(r.ca.Roots()), ServerName: "localhost"}
	if own != nil {
		conf.Certificates = []tls.Certificate{*own}
	}
	return r.askAt(r.tls, credentials.NewTLS(conf), token, req)
}

func (r *rig) askAt(addr string, with credentials.TransportCredentials, token string, req *pb.IstioCertificateRequest) (*pb.IstioCertificateResponse, error) {
	r.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(with))
	r.check(err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token)
	}
	return pb.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, req, grpc.WaitForReady(true))
}

// request returns a request for a key and names.
func request(t *testing.T, key crypto.Signer, change func(*x509.CertificateRequest)) *pb.IstioCertificateRequest {
	t.Helper()
	template := &x509.CertificateRequest{}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &pb.IstioCertificateRequest{Csr: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))}
}

func named(ids ...string) func(*x509.CertificateRequest) {
	return func(r *x509.CertificateRequest) {
		for _, id := range ids {
			u, err := url.Parse(id)
			if err != nil {
				panic(err)
			}
			r.URIs = append(r.URIs, u)
		}
	}
}

func certificate(t *testing.T, resp *pb.IstioCertificateResponse) *x509.Certificate {
	t.Helper()
	certs, err := pki.ParseCerts([]byte(resp.GetCertChain()[0]))
	if err != nil || len(resp.GetCertChain()) != 2 {
		t.Fatalf("%d elements, %v", len(resp.GetCertChain()), err)
	}
	return certs[0]
}

func (r *rig) counted(name string) (total float64) {
	r.Helper()
	families, err := r.registry.Gather()
	r.check(err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return total
}

// Who proves an identity gets a certificate with it, and with that certificate the next one.
func TestACertificateIsOfWhoAsks(t *testing.T) {
	r := newRig(t)
	key := pkitest.Key(t)
	const id, old = "spiffe://cluster.local/ns/shop/sa/web", "spiffe://old.example/ns/shop/sa/web"
	var own *tls.Certificate
	for _, tc := range []struct {
		name, token string
		ids         []string
		seconds     int64
		want        string
		lifetime    time.Duration
	}{
		{"by a token", "cluster.local/shop/web", []string{id}, 3600, id, time.Hour},
		{"without a name in the request", "cluster.local/shop/web", nil, 0, id, DefaultLifetime},
		{"in another trust domain of the mesh", "cluster.local/shop/web", []string{old}, 0, old, DefaultLifetime},
		{"for longer than there is", "cluster.local/shop/web", nil, 1 << 40, id, DefaultMaxLifetime},
		{"by its certificate", "", []string{id}, 0, id, DefaultLifetime},
		{"by its certificate, whatever token it has", "cluster.local/kube-system/admin", []string{id}, 0, id, DefaultLifetime},
	} {
		with := own
		if tc.token != "" && !strings.Contains(tc.name, "whatever") {
			with = nil
		}
		req := request(t, key, named(tc.ids...))
		req.ValidityDuration = tc.seconds
		resp, err := r.ask(tc.token, with, req)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		cert := certificate(t, resp)
		names, err := pki.NamesOf(cert)
		if got := cert.NotAfter.Sub(cert.NotBefore) - local.Backdate; err != nil || !names.Equal(pki.Names{ID: tc.want}) || got > tc.lifetime || got < tc.lifetime-time.Minute {
			t.Errorf("%s: %s for %s, %v", tc.name, names, got, err)
		}
		if cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign != 0 || !key.Public().(*ecdsa.PublicKey).Equal(cert.PublicKey) {
			t.Errorf("%s: %+v", tc.name, cert)
		}
		own = &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
		if !strings.Contains(r.log.String(), `msg="certificate issued" identity=`+tc.want+" serial="+cert.SerialNumber.Text(16)) {
			t.Errorf("%s: no audit line for it:\n%s", tc.name, &r.log)
		}
	}
	if issued, asked := r.counted("citadel_server_success_cert_issuance_count"), r.counted("citadel_server_csr_count"); issued != 6 || asked != 6 {
		t.Errorf("%v of %v requests are counted", issued, asked)
	}
	if strings.Contains(r.log.String(), "PRIVATE KEY") {
		t.Error("a key is in the log")
	}
	if until := time.Unix(int64(r.counted("citadel_server_cert_chain_expiry_timestamp")), 0); !until.After(time.Now()) {
		t.Errorf("the authority's own certificates expire at %s", until)
	}
}

// A name of a form that x509 does not read is a name, too.
func TestANameOfAnotherFormIsRefused(t *testing.T) {
	r := newRig(t)
	for form, name := range map[int]string{0: "another name", 4: "a directory", 8: "a registered id"} {
		names, err := asn1.Marshal([]asn1.RawValue{
			{Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte("spiffe://cluster.local/ns/shop/sa/web")},
			{Class: asn1.ClassContextSpecific, Tag: form, Bytes: []byte{1}},
		})
		r.check(err)
		req := request(t, pkitest.Key(t), func(c *x509.CertificateRequest) {
			c.ExtraExtensions = []pkix.Extension{{Id: subjectAltName, Value: names}}
		})
		if _, err := r.ask("cluster.local/shop/web", nil, req); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACertificateIsRefused(t *testing.T) {
	r := newRig(t)
	key := pkitest.Key(t)
	const mine, id = "cluster.local/shop/web", "spiffe://cluster.local/ns/shop/sa/web"
	small, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // it is to be refused
	r.check(err)
	good := request(t, key, named(id))
	forged := request(t, key, named(id))
	block, _ := pem.Decode([]byte(forged.Csr))
	block.Bytes[len(block.Bytes)-1] ^= 1
	forged.Csr = string(pem.EncodeToMemory(block))
	for name, tc := range map[string]struct {
		token string
		req   *pb.IstioCertificateRequest
		code  codes.Code
		why   string
	}{
		"nobody":                        {"", good, codes.Unauthenticated, "proves no identity"},
		"a wrong token":                 {"x", good, codes.Unauthenticated, "a wrong token"},
		"another trust domain":          {"evil.example/shop/web", good, codes.PermissionDenied, "is not one of the mesh"},
		"another identity":              {mine, request(t, key, named("spiffe://cluster.local/ns/kube-system/sa/admin")), codes.PermissionDenied, "and the client is " + id},
		"another trust domain's":        {mine, request(t, key, named("spiffe://evil.example/ns/shop/sa/web")), codes.PermissionDenied, "and the client is " + id},
		"two identities":                {mine, request(t, key, named(id, "spiffe://cluster.local/ns/a/sa/b")), codes.PermissionDenied, "more names"},
		"an identity with a query":      {mine, request(t, key, named(id+"?a=b")), codes.PermissionDenied, "and the client is"},
		"an identity with another case": {mine, request(t, key, named("spiffe://cluster.local/ns/shop/sa/WEB")), codes.PermissionDenied, "and the client is"},
		"a DNS name":                    {mine, request(t, key, func(c *x509.CertificateRequest) { c.DNSNames = []string{"istiod.istio-system.svc"} }), codes.PermissionDenied, "more names"},
		"an address":                    {mine, request(t, key, func(c *x509.CertificateRequest) { c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }), codes.PermissionDenied, "more names"},
		"an e-mail address":             {mine, request(t, key, func(c *x509.CertificateRequest) { c.EmailAddresses = []string{"a@b"} }), codes.PermissionDenied, "more names"},
		"a trust domain in capitals":    {"Old.Example/shop/web", request(t, key, nil), codes.InvalidArgument, "no certificate can have this identity"},
		"an identity that is too long":  {"cluster.local/shop/" + strings.Repeat("a", 3000), request(t, key, nil), codes.InvalidArgument, "no certificate can have this identity"},
		"no request":                    {mine, &pb.IstioCertificateRequest{}, codes.InvalidArgument, "want one certificate request"},
		"two requests":                  {mine, &pb.IstioCertificateRequest{Csr: good.Csr + good.Csr}, codes.InvalidArgument, "want one certificate request"},
		"a certificate as a request":    {mine, &pb.IstioCertificateRequest{Csr: strings.ReplaceAll(good.Csr, " REQUEST", "")}, codes.InvalidArgument, "want one certificate request"},
		"a key that it does not have":   {mine, forged, codes.InvalidArgument, "the certificate request"},
		"a weak key":                    {mine, request(t, small, named(id)), codes.InvalidArgument, "RSA of 1024 bits"},
		"a long request":                {mine, &pb.IstioCertificateRequest{Csr: strings.Repeat("x", maxRequest+1)}, codes.InvalidArgument, "want 65536 or fewer"},
		"somebody else's certificate":   {mine, &pb.IstioCertificateRequest{Csr: good.Csr, Metadata: fields("ImpersonatedIdentity")}, codes.InvalidArgument, "not supported"},
		"a signer that there is not":    {mine, &pb.IstioCertificateRequest{Csr: good.Csr, Metadata: fields("CertSigner")}, codes.InvalidArgument, "not supported"},
	} {
		if resp, err := r.ask(tc.token, nil, tc.req); resp != nil || status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.why) {
			t.Errorf("%s: %v, %v, want %s %q", name, resp, err, tc.code, tc.why)
		}
	}
	if resp, err := r.askAt(r.plain, insecure.NewCredentials(), mine, good); resp != nil || status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "over TLS only") {
		t.Errorf("over plaintext: %v, %v", resp, err)
	}
	// A subject is nobody's word, and is not taken over.
	resp, err := r.ask(mine, nil, request(t, key, func(c *x509.CertificateRequest) {
		c.Subject = pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}
	}))
	r.check(err)
	if cert := certificate(t, resp); cert.Subject.String() != "" {
		t.Errorf("the subject is %s", cert.Subject)
	}
	if n := r.counted("citadel_server_authentication_failure_count"); n != 2 {
		t.Errorf("%v requests without an identity are counted", n)
	}
}

func fields(name string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{name: structpb.NewStringValue("x")}}
}

func TestOneIdentityDoesNotKeepOthersWaiting(t *testing.T) {
	now := time.Now()
	r := newRig(t, func(c *Config) { c.Now = func() time.Time { return now } })
	req := request(t, pkitest.Key(t), nil)
	for range burst {
		if _, err := r.ask("cluster.local/shop/web", nil, req); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.ask("cluster.local/shop/web", nil, req); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more: %v", err)
	}
	if _, err := r.ask("cluster.local/shop/api", nil, req); err != nil {
		t.Errorf("another identity: %v", err)
	}
}

// A former root stays trusted for as long as it is named, and the server's own certificate follows the new one.
func TestARootIsReplaced(t *testing.T) {
	t.Parallel() // it waits for the directory to be read again
	dir := pkitest.NewVolume(t)
	publish := func(ca *pkitest.CA, former ...*x509.Certificate) {
		dir.Publish(t, map[string][]byte{"ca-cert.pem": ca.Pair().ChainPEM(), "ca-key.pem": ca.Pair().KeyPEM(), "root-cert.pem": pki.EncodeCerts(append(ca.Roots(), former...))})
	}
	first, second := pkitest.Root(t, "first", time.Now()), pkitest.Root(t, "second", time.Now())
	publish(first)
	signer, err := local.NewDir(dir.Dir, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config) { c.Authority = signer })
	key := pkitest.Key(t)
	former, err := r.ask("cluster.local/shop/web", nil, request(t, key, nil))
	r.check(err)
	publish(second, first.Cert)
	r.wait(func() bool {
		pair, err := r.ca.Certificate()
		return err == nil && pair.Leaf.CheckSignatureFrom(second.Roots()[0]) == nil
	})
	// With its former certificate, a client gets one of the new root.
	resp, err := r.ask("", &tls.Certificate{Certificate: [][]byte{certificate(t, former).Raw}, PrivateKey: key}, request(t, key, nil))
	r.check(err)
	if err := certificate(t, resp).CheckSignatureFrom(second.Roots()[0]); err != nil {
		t.Error(err)
	}
	// Its key is known to others: its operator takes the former root away, and nothing leads to it any more.
	third := pkitest.Root(t, "third", time.Now())
	publish(third)
	r.wait(func() bool { return len(r.ca.Roots()) == 1 })
	if resp, err := r.ask("", &tls.Certificate{Certificate: [][]byte{certificate(t, former).Raw}, PrivateKey: key}, request(t, key, nil)); err == nil {
		t.Errorf("with a certificate of a root that is gone: %v", resp)
	}
	if !strings.Contains(r.log.String(), "all roots of the authority were replaced at once") {
		t.Errorf("the log does not warn:\n%s", &r.log)
	}
}

func (r *rig) wait(until func() bool) {
	r.Helper()
	for deadline := time.Now().Add(30 * time.Second); !until(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("not within 30 s:\n%s", &r.log)
		}
	}
}

func TestAnAuthorityIsNamed(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, good := range []string{"dir:/a", "dev", "dev:/a"} {
		if _, err := Parse(good, log); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "dir:", "dev:", "/a", "istio:x"} {
		if _, err := Parse(bad, log); err == nil || !strings.Contains(err.Error(), "want dir:DIR") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := New(Config{Names: []string{"a b"}}); err == nil || !strings.Contains(err.Error(), "is not a DNS name") {
		t.Error(err)
	}
}

// A client whose trust domain is that of an issuer gets no certificate of another one, whether a token or a former
// certificate proves who it is; nor does anybody else get one of that.
func TestACertificateIsOfTheTrustDomainOfItsIssuer(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Assigned = func(domain string) bool { return domain == "b.example" }
		c.TrustDomains = func() ([]string, error) { return []string{"cluster.local", "b.example", "old.example"}, nil }
	})
	key := pkitest.Key(t)
	const a, b, old = "spiffe://cluster.local/ns/shop/sa/web", "spiffe://b.example/ns/shop/sa/web", "spiffe://old.example/ns/shop/sa/web"
	resp, err := r.ask("b.example/shop/web", nil, request(t, key, named(b)))
	r.check(err)
	if names, err := pki.NamesOf(certificate(t, resp)); err != nil || !names.Equal(pki.Names{ID: b}) {
		t.Fatalf("the certificate is for %s, %v", names, err)
	}
	own := &tls.Certificate{Certificate: [][]byte{certificate(t, resp).Raw}, PrivateKey: key}
	for _, tc := range []struct {
		name, token, id string
		with            *tls.Certificate
		refused         bool
	}{
		{"another trust domain, by a token", "b.example/shop/web", a, nil, true},
		{"an alias, by a token", "b.example/shop/web", old, nil, true},
		{"another trust domain, by a certificate", "", a, own, true},
		{"another trust domain, by a certificate and another's token", "cluster.local/shop/web", a, own, true},
		{"its own again", "", b, own, false},
		{"that of the issuer, by a token of the mesh", "cluster.local/shop/web", b, nil, true},
		{"that of the issuer, by a token of an alias", "old.example/shop/web", b, nil, true},
		{"an alias, by a token of the mesh", "cluster.local/shop/web", old, nil, false},
	} {
		resp, err := r.ask(tc.token, tc.with, request(t, key, named(tc.id)))
		if tc.refused != (status.Code(err) == codes.PermissionDenied) || !tc.refused && err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if !tc.refused {
			if names, err := pki.NamesOf(certificate(t, resp)); err != nil || !names.Equal(pki.Names{ID: tc.id}) {
				t.Errorf("%s: the certificate is for %s, %v", tc.name, names, err)
			}
		}
	}
	// Without a name in the request, it is the client's.
	resp, err = r.ask("", own, request(t, key, nil))
	r.check(err)
	if names, err := pki.NamesOf(certificate(t, resp)); err != nil || !names.Equal(pki.Names{ID: b}) {
		t.Errorf("without a name: for %s, %v", names, err)
	}
}

// An authority that signs nothing for the mesh, such as one of another trust domain, does not take the place of one that
// does, and the log says why.
func TestAnAuthorityOfAnotherTrustDomainTakesNobodysPlace(t *testing.T) {
	t.Parallel() // it waits for the directory to be read again
	dir := pkitest.NewVolume(t)
	publish := func(ca *pkitest.CA) {
		dir.Publish(t, map[string][]byte{"ca-cert.pem": ca.Pair().ChainPEM(), "ca-key.pem": ca.Pair().KeyPEM(), "root-cert.pem": pki.EncodeCerts(ca.Roots())})
	}
	root := pkitest.Root(t, "root", time.Now())
	publish(root.Intermediate(t, "first"))
	signer, err := local.NewDir(dir.Dir, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *Config) { c.Authority = signer })
	for name, change := range map[string]pkitest.Option{
		"of another trust domain": pkitest.Constrained("other.example"),
		"of other servers": func(c *x509.Certificate) {
			c.PermittedDNSDomains, c.PermittedDNSDomainsCritical = []string{"other.example"}, true
		},
	} {
		before := strings.Count(r.log.String(), "the former authority stays in use")
		publish(root.Intermediate(t, "wrong", change))
		r.wait(func() bool { return strings.Count(r.log.String(), "the former authority stays in use") > before })
		if _, err := r.ask("cluster.local/shop/web", nil, request(t, pkitest.Key(t), nil)); err != nil {
			t.Errorf("with one %s: %v", name, err)
		}
	}
	second := root.Intermediate(t, "second", pkitest.Constrained("cluster.local"))
	publish(second)
	r.wait(func() bool {
		resp, err := r.ask("cluster.local/shop/web", nil, request(t, pkitest.Key(t), nil))
		return err == nil && strings.Contains(resp.GetCertChain()[1], string(pki.EncodeCerts(second.Chain()[:1])))
	})
	if !strings.Contains(r.log.String(), "the authority has no problem any more") {
		t.Errorf("the log does not say that it is mended:\n%s", &r.log)
	}
}

// What the authority has to sign is what clients may ask it for.
func TestWhatTheAuthorityHasToSign(t *testing.T) {
	domains := []string{"cluster.local", "old.example", "b.example", "C.example"}
	own, mesh, b := "localhost, 127.0.0.1", "spiffe://cluster.local/ns/x/sa/x", "spiffe://b.example/ns/x/sa/x"
	for _, tc := range []struct {
		name     string
		optional bool
		assigned []string
		err      error
		want     []string
	}{
		{"its own certificate, and those of the mesh", false, nil, nil, []string{own, mesh}},
		{"with another certificate of its own", true, nil, nil, []string{mesh}},
		{"before the configuration was read", false, nil, status.Error(codes.Unavailable, ""), []string{own}},
		{"with the trust domains of issuers", false, []string{"b.example", "c.example", "C.example"}, nil, []string{own, mesh, b}}, // capitals are in no SPIFFE ID
	} {
		s, err := New(Config{
			Names: []string{"localhost", "127.0.0.1"}, OptionalNames: tc.optional, Assigned: func(d string) bool { return slices.Contains(tc.assigned, d) },
			TrustDomains: func() ([]string, error) { return domains, tc.err },
		})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, names := range s.required() {
			got = append(got, names.String())
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

// Anybody can ask without an end: that fills no disk, and the metric counts all.
func TestRefusalsAreLoggedOnceForWhoAsks(t *testing.T) {
	r := newRig(t)
	req := request(t, pkitest.Key(t), nil)
	for range 50 {
		if _, err := r.ask("", nil, req); status.Code(err) != codes.Unauthenticated {
			t.Fatal(err)
		}
		for _, account := range []string{"web", "api"} {
			if _, err := r.ask("cluster.local/shop/"+account, nil, &pb.IstioCertificateRequest{}); status.Code(err) != codes.InvalidArgument {
				t.Fatal(err)
			}
		}
	}
	if got := strings.Count(r.log.String(), "no certificate issued"); got != 3 {
		t.Errorf("%d lines, want one for the address and one for each identity:\n%s", got, r.log.String())
	}
	if got := r.counted("holdfast_mesh_certificates_refused_total"); got != 150 {
		t.Errorf("%v are counted", got)
	}
}
