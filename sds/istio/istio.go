// Package istio requests certificates from a CA with Istio's service, such as istiod or istio-csr.
//
// It promises:
//   - a request ends with its context, even if the CA, a name server or the network hangs;
//
// - each request uses a new connection, for which names are resolved and files are read again;
//   - the private key stays in this process: only a certificate request is sent.
//
// It checks the form and the size of a response; its caller verifies the certificate. All methods may be
// called concurrently.
package istio

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	pb "istio.io/api/security/v1alpha1"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Reasons for a failed request, in addition to those of package pki.
const (
	Unauthenticated pki.Reason = "unauthenticated" // the CA does not accept the credentials
	Refused         pki.Reason = "refused"         // the CA rejects the request, and a retry is unlikely to change that
	Unavailable     pki.Reason = "unavailable"     // the CA did not answer, or is temporarily unable to
	Local           pki.Reason = "local"           // a local file that the request needs is missing or invalid, such as the token
)

// addresses lists the accepted forms of an address, for errors.
const addresses = "host:port, unix:PATH or dns:///HOST:PORT"

// maxAnswer bounds a response, in bytes: about 500 certificates.
const maxAnswer = 1 << 20

// connectTimeout bounds one attempt to connect to one address, to leave time to report why it failed.
const connectTimeout = 5 * time.Second

// signerKey is Istio's metadata key for the name of a Kubernetes signer.
const signerKey = "CertSigner"

// Config configures the requests to a CA.
type Config struct {
	// Security says how to connect to the CA and whom to accept; New sets its Flags. Plaintext is only allowed
	// for addresses of this machine; a Unix socket never uses TLS.
	dial.Security
	// Headers are sent as metadata of every request, for example ClusterID.
	Headers map[string]string
	// Signer is the Kubernetes signer, without CERT_SIGNER_DOMAIN, that istiod shall use; "" lets it choose.
	Signer string
	// Dial replaces the connection in tests.
	Dial []grpc.DialOption
}

// CA is a client of one CA.
type CA struct {
	addr, target string
	cfg          Config
}

// New checks the configuration. It does no I/O. addr is host:port, unix:PATH or dns:///HOST:PORT.
func New(addr string, cfg Config) (*CA, error) {
	cfg.Flags = "istio"
	target, unix, err := dial.Target("CA", addresses, addr)
	if err != nil {
		return nil, err
	}
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if cfg.Plaintext && !unix && !loopback(addr) {
		return nil, fmt.Errorf("CA %q: --istio-plaintext is only allowed for addresses of this machine (127.0.0.0/8, ::1, localhost), because others on the network could read the token and replace certificates and roots: remove it, and set --istio-ca if the CA's certificate needs it", addr)
	}
	if unix {
		cfg.Plaintext = true
	}
	return &CA{addr: addr, target: target, cfg: cfg}, nil
}

// loopback reports whether an address that dial.Target accepts can only refer to this machine.
func loopback(addr string) bool {
	if rest, ok := strings.CutPrefix(addr, "dns:"); ok {
		// dns://SERVER/HOST is not stripped: the server may resolve localhost to any address.
		addr = strings.TrimPrefix(rest, "///")
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// Run waits until ctx ends, and then returns nil: this CA names its roots only in responses.
func (c *CA) Run(ctx context.Context, _ func([]*x509.Certificate), _ func(error)) error {
	<-ctx.Done()
	return nil
}

// Issue requests a certificate. It returns when ctx ends at the latest; errors are a *pki.Fault.
func (c *CA) Issue(ctx context.Context, r pki.Request) (pki.Answer, error) {
	csr, err := r.CSR()
	if err != nil {
		return pki.Answer{}, c.fault(Local, err)
	}
	req := &pb.IstioCertificateRequest{Csr: string(csr), ValidityDuration: int64(r.Lifetime / time.Second)}
	if c.cfg.Signer != "" {
		req.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{signerKey: structpb.NewStringValue(c.cfg.Signer)}}
	}
	response, err := c.call(ctx, req)
	if err != nil {
		return pki.Answer{}, err
	}
	answer, err := parse(response.GetCertChain())
	if err != nil {
		return pki.Answer{}, c.fault(pki.Malformed, fmt.Errorf("invalid response: %w", err))
	}
	return answer, nil
}

func (c *CA) call(ctx context.Context, req *pb.IstioCertificateRequest) (*pb.IstioCertificateResponse, error) {
	creds, err := c.cfg.Transport()
	if err != nil {
		return nil, c.fault(Local, err)
	}
	token, err := c.cfg.Token()
	if err != nil {
		return nil, c.fault(Local, err)
	}
	md := metadata.New(c.cfg.Headers)
	if token != "" {
		md.Set("authorization", "Bearer "+token)
	}
	conn, err := grpc.NewClient(c.target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithDisableServiceConfig(), // retries must not depend on DNS
		grpc.WithNoProxy(),              // as for every other server of the mesh
		grpc.WithUserAgent("holdfast"),
	}, c.cfg.Dial...)...)
	if err != nil {
		return nil, c.fault(Local, err)
	}
	defer closeConn(ctx, conn)
	var header metadata.MD
	response, err := pb.NewIstioCertificateServiceClient(conn).CreateCertificate(metadata.NewOutgoingContext(ctx, md), req, grpc.Header(&header))
	if err != nil {
		// The error of the CA may quote the request's metadata.
		secrets := [][]byte{[]byte(token)}
		for name, value := range c.cfg.Headers {
			if redact.IsCredential(name, value) {
				secrets = append(secrets, []byte(value))
			}
		}
		return nil, c.callError(redact.Error(err, secrets...), header != nil)
	}
	return response, nil
}

// closeConn closes a connection but does not wait longer than ctx. Close waits for a running name lookup, and
// Go's resolver ignores its context while it waits for a name server, for up to 5 s.
func closeConn(ctx context.Context, conn *grpc.ClientConn) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = conn.Close()
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

// callError explains why a call failed. answering reports whether the CA had started a response: an immediate
// error has none (gRPC's Trailers-Only).
func (c *CA) callError(err error, answering bool) error {
	switch code := status.Code(err); code {
	case codes.Unauthenticated:
		hint := "no token was sent: set --istio-token-file"
		if c.cfg.TokenFile != "" {
			hint = fmt.Sprintf("check that the token in %s is valid and has the audience of the CA (istiod: istio-ca), and that the header ClusterID is the cluster's name in the CA", c.cfg.TokenFile)
		}
		return c.fault(Unauthenticated, fmt.Errorf("the CA does not accept the credentials: %w: %s", err, hint))
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.Unknown, codes.Canceled:
		return c.fault(Unavailable, c.cfg.Explain(err))
	case codes.ResourceExhausted:
		if answering {
			return c.fault(pki.Oversized, fmt.Errorf("the response has more than %d bytes: %w", maxAnswer, err))
		}
		return c.fault(Unavailable, err)
	default:
		return c.fault(Refused, fmt.Errorf("the CA rejected the request: %w", err))
	}
}

func (c *CA) fault(reason pki.Reason, err error) error {
	return &pki.Fault{Reason: reason, Err: fmt.Errorf("CA %s: %w", c.addr, err)}
}

// parse splits the certificates of a response, leaf first, into the chain and the roots. The last of several
// elements contains the roots, self-signed or not (ca.proto, IstioCertificateResponse). Roots may also precede
// it: istiod repeats them (istio/istio#43654), and since 1.25.1 sends one element for each root
// (istio/istio#55793). In a single element only self-signed certificates can be recognized as roots.
func parse(elements []string) (pki.Answer, error) {
	var certs []*x509.Certificate
	last := 0 // the index of the first certificate of the last element
	for i, text := range elements {
		parsed, err := pki.ParseCerts([]byte(text))
		if err != nil {
			return pki.Answer{}, fmt.Errorf("element %d of %d: %w", i+1, len(elements), err)
		}
		last = len(certs)
		certs = append(certs, parsed...)
	}
	switch len(elements) {
	case 0:
		return pki.Answer{}, errors.New("it contains no certificate")
	case 1:
		return pki.Split(certs), nil
	}
	a := pki.Split(certs[:last])
	roots := certs[last:]
	for _, c := range a.Roots {
		if !slices.ContainsFunc(roots, c.Equal) {
			roots = append(roots, c)
		}
	}
	a.Roots = roots
	a.Chain = slices.DeleteFunc(a.Chain, func(c *x509.Certificate) bool { return slices.ContainsFunc(roots, c.Equal) })
	if len(a.Chain) == 0 {
		return pki.Answer{}, errors.New("every certificate in it is a root")
	}
	return a, nil
}
