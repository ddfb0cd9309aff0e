package e2e

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "istio.io/api/security/v1alpha1"

	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// origin says where the certificate of one of two pods comes from.
type origin func(*pods, *pod)

// with gives the pod's agent flags.
func (p *pod) with(flags ...string) { p.flags = append(p.flags, flags...) }

// write writes a file into the pod's directory.
func (p *pod) write(name string, content []byte) (path string) {
	p.Helper()
	path = p.path(name)
	p.check(os.MkdirAll(filepath.Dir(path), 0o700))
	p.check(os.WriteFile(path, content, 0o600))
	return path
}

// fromDir signs with an authority in a directory.
func fromDir(_ *pods, pod *pod) {
	for name, content := range istioFiles(pod.ca) {
		pod.write("ca/"+name, content)
	}
	pod.with("--ca", "dir:"+pod.path("ca"), "--identity", pod.id)
}

// istioFiles are those of an authority, as in Istio's secret cacerts.
func istioFiles(ca *pkitest.CA) map[string][]byte {
	return map[string][]byte{
		"ca-cert.pem": pki.EncodeCerts(ca.Pair().Chain[:1]), "ca-key.pem": pki.EncodeKey(ca.Key),
		"cert-chain.pem": pki.EncodeCerts(ca.Pair().Chain), "root-cert.pem": pki.EncodeCerts(ca.Roots()),
	}
}

// fromDev signs with an authority for development, which the first of the two makes.
func fromDev(p *pods, pod *pod) {
	pod.with("--ca", "dev:"+p.server.path("dev-ca"), "--identity", pod.id)
}

// fromFiles takes a certificate that kubelet publishes.
func fromFiles(_ *pods, pod *pod) {
	volume, leaf := pkitest.NewVolume(pod), pod.ca.Leaf(pod, pkitest.URIs(pod.id))
	volume.Publish(pod, map[string][]byte{"tls.crt": leaf.ChainPEM(), "tls.key": leaf.KeyPEM(), "ca.crt": pki.EncodeCerts(pod.ca.Roots())})
	pod.with("--ca", "files:"+volume.Dir)
}

// fromNamedFiles has Envoy ask for the files that it wants.
func fromNamedFiles(_ *pods, pod *pod) {
	leaf := pod.ca.Leaf(pod, pkitest.URIs(pod.id))
	cert, key := pod.write("own/cert.pem", leaf.ChainPEM()), pod.write("own/key.pem", leaf.KeyPEM())
	pod.certificate = "file-cert:" + cert + "~" + key
	pod.roots = "file-root:" + pod.write("own/roots.pem", pki.EncodeCerts(pod.ca.Roots()))
	pod.with("--secret-dir", pod.path("own"))
}

// fromIstio has a CA sign that the agent has to ask.
func fromIstio(_ *pods, pod *pod) {
	ca := newIstioCA(pod)
	ca.start()
	pod.asks(ca)
}

// asks has a CA sign.
func (p *pod) asks(ca *istioCA) {
	p.Helper()
	p.with("--ca", "istio:"+ca.addr, "--identity", p.id,
		"--istio-ca", p.write("istiod.pem", pki.EncodeCerts(ca.own.Roots())),
		"--istio-token-file", p.write("token", []byte(istioToken+"\n")), "--istio-header", "ClusterID="+istioCluster)
}

// fromSPIRE takes what a Workload API pushes.
func fromSPIRE(p *pods, of *pod) {
	leaf := of.ca.Leaf(of, pkitest.URIs(of.id))
	key, err := x509.MarshalPKCS8PrivateKey(leaf.Key)
	of.check(err)
	api := &workloadAPI{answer: &workload.X509SVIDResponse{
		Svids:            []*workload.X509SVID{{SpiffeId: of.id, X509Svid: der(leaf.Chain), X509SvidKey: key, Bundle: der(of.ca.Roots())}},
		FederatedBundles: make(map[string][]byte),
	}}
	for _, peer := range []*pod{p.server, p.client} {
		if peer.domain() != of.domain() {
			api.answer.FederatedBundles[pki.SPIFFE+peer.domain()] = der(peer.ca.Roots())
		}
	}
	lis, err := net.Listen("unix", of.path("spire.sock"))
	of.check(err)
	srv := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(srv, api)
	of.Cleanup(serve(srv, lis))
	of.with("--ca", "spire:unix:"+of.path("spire.sock"))
}

// domain is the trust domain of a pod.
func (p *pod) domain() string {
	domain, err := pki.TrustDomain(p.id)
	p.check(err)
	return domain
}

// trustingAll is an origin whose Envoy has a root for each trust domain, and its own
// certificate by its ID.
func trustingAll(from origin) origin {
	return func(p *pods, pod *pod) {
		from(p, pod)
		pod.certificate, pod.roots = pod.id, sds.AllRoots
	}
}

// withSPIFFEValidator is an origin whose roots count for their trust domain only.
func withSPIFFEValidator(from origin) origin {
	return func(p *pods, pod *pod) {
		from(p, pod)
		pod.with("--root-validator", sds.SPIFFE)
	}
}

// workloadAPI is that of SPIFFE, for one workload whose certificate does not change.
type workloadAPI struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	answer *workload.X509SVIDResponse
}

func (a *workloadAPI) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	if err := stream.Send(a.answer); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// der is certificates as SPIFFE has them: one after the other.
func der(certs []*x509.Certificate) (out []byte) {
	for _, c := range certs {
		out = append(out, c.Raw...)
	}
	return out
}

// What a CA in the manner of Istio believes.
const (
	istioToken   = "who-asks"
	istioCluster = "Kubernetes"
)

// istioCA is a CA that speaks Istio's protocol on loopback.
type istioCA struct {
	pb.UnimplementedIstioCertificateServiceServer
	T
	addr string
	// own is the authority of its own certificate, for workloads that of theirs.
	own       *pkitest.CA
	workloads *local.Authority
	stop      func()
}

// newIstioCA makes a CA that signs for a pod; it is stopped.
func newIstioCA(pod *pod) *istioCA {
	pod.Helper()
	workloads, err := local.New(pod.ca.Pair(), pod.ca.Roots())
	pod.check(err)
	return &istioCA{
		T: pod, addr: fmt.Sprintf("127.0.0.1:%d", pod.freePort()),
		own: pkitest.Root(pod, "istiod", time.Now()), workloads: workloads,
	}
}

// start serves until stop, or the end of the test.
func (ca *istioCA) start() {
	ca.Helper()
	lis, err := testbed.Listen(ca.addr, limit)
	if err != nil {
		ca.Fatal(err)
	}
	leaf := ca.own.Leaf(ca, func(c *x509.Certificate) { c.URIs, c.IPAddresses = nil, []net.IP{net.IPv4(127, 0, 0, 1)} })
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Leaf().Raw}, PrivateKey: leaf.Key}},
	})))
	pb.RegisterIstioCertificateServiceServer(srv, ca)
	ca.stop = serve(srv, lis)
	ca.Cleanup(ca.stop)
}

// serve serves until the function that it returns is called, which waits for the end.
func serve(srv *grpc.Server, lis net.Listener) (stop func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(lis)
	}()
	return func() {
		srv.Stop()
		<-ended
	}
}

func (ca *istioCA) CreateCertificate(ctx context.Context, req *pb.IstioCertificateRequest) (*pb.IstioCertificateResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if !slices.Equal(md.Get("authorization"), []string{"Bearer " + istioToken}) || !slices.Equal(md.Get("clusterid"), []string{istioCluster}) {
		return nil, status.Errorf(codes.Unauthenticated, "token %q of cluster %q", md.Get("authorization"), md.Get("clusterid"))
	}
	block, _ := pem.Decode([]byte(req.GetCsr()))
	if block == nil {
		return nil, status.Error(codes.InvalidArgument, "the request is not PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || csr.CheckSignature() != nil || len(csr.URIs) != 1 {
		return nil, status.Errorf(codes.InvalidArgument, "the request is for %v, %v", csr.URIs, err)
	}
	answer, err := ca.workloads.Sign(pki.Request{
		Key: publicKey{csr.PublicKey}, Names: pki.Names{ID: csr.URIs[0].String()},
		Lifetime: time.Duration(req.GetValidityDuration()) * time.Second,
	}, time.Now())
	if err != nil {
		return nil, err
	}
	var chain []string
	for _, c := range slices.Concat(answer.Chain, answer.Roots) {
		chain = append(chain, string(pki.EncodeCerts([]*x509.Certificate{c})))
	}
	return &pb.IstioCertificateResponse{CertChain: chain}, nil
}

// publicKey is a key whose private half is with who asks.
type publicKey struct{ crypto.PublicKey }

func (k publicKey) Public() crypto.PublicKey { return k.PublicKey }
func (publicKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("the private key is not here")
}
