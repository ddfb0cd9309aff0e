// Package istio asks a CA that speaks Istio's certificate service, such as istiod or
// istio-csr, to sign certificates.
//
// It promises:
//   - a request ends with its context, whatever the CA, a name server or the network
//     does or does not do;
//   - each has a connection of its own, for which names are looked up and files read
//     again, the token among them;
//   - the key stays here: what is sent is a certificate request.
//
// Of what the CA answers it checks the form and the size only: the rest is for who
// asked. All methods may be called concurrently.
package istio

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
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

// Reasons why there is no answer, beside those of package pki.
const (
	Unauthenticated pki.Reason = "unauthenticated" // the CA does not believe who asks
	Refused         pki.Reason = "refused"         // the CA will not answer the same request otherwise soon
	Unavailable     pki.Reason = "unavailable"     // the CA did not answer, or could not now
	Local           pki.Reason = "local"           // what is needed for asking is missing or damaged here, such as the token
)

// addresses says which addresses of a CA there are, for errors.
const addresses = "host:port, unix:PATH or dns:///HOST:PORT"

// maxAnswer bounds an answer, in bytes: 500 certificates or so.
const maxAnswer = 1 << 20

// connectTimeout bounds one attempt at one address, so that there is time left to
// say why it failed.
const connectTimeout = 5 * time.Second

// signerKey is what Istio calls the name of a Kubernetes signer in the metadata of a
// request.
const signerKey = "CertSigner"

// Config says how a CA is asked.
type Config struct {
	// Security is how the CA is reached and who it must be; its Flags are set by
	// New. Plaintext is for addresses of this machine only, and without effect on a
	// Unix socket, which never has TLS.
	dial.Security
	// Headers are sent as metadata of every request, such as ClusterID.
	Headers map[string]string
	// Signer is the name of the Kubernetes signer that istiod shall have the
	// certificate signed by, with CERT_SIGNER_DOMAIN; "" for the CA's own choice.
	Signer string
	// Dial replaces the connection in tests.
	Dial []grpc.DialOption
}

// CA is a CA that is asked.
type CA struct {
	addr, target string
	cfg          Config
}

// New checks the configuration; it does no I/O. addr is host:port, unix:PATH or
// dns:///HOST:PORT.
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
		return nil, fmt.Errorf("CA %q: --istio-plaintext is for addresses of this machine only (127.0.0.0/8, ::1, localhost): on the way the token could be read, and certificates and roots replaced; leave it out, and give --istio-ca if the CA's own certificate needs it", addr)
	}
	if unix {
		cfg.Plaintext = true
	}
	return &CA{addr: addr, target: target, cfg: cfg}, nil
}

// loopback reports whether an address that dial.Target takes can only be of this
// machine.
func loopback(addr string) bool {
	if rest, ok := strings.CutPrefix(addr, "dns:"); ok {
		// dns://SERVER/HOST stays as it is: the server may say anything of localhost.
		addr = strings.TrimPrefix(rest, "///")
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	return strings.EqualFold(host, "localhost") || net.ParseIP(host).IsLoopback()
}

// Run follows nothing: the CA names its roots in its answers. It returns nil when ctx
// ends.
func (c *CA) Run(ctx context.Context, _ func([]*x509.Certificate), _ func(error)) error {
	<-ctx.Done()
	return nil
}

// Issue asks for a certificate. It ends with ctx at the latest; errors are a
// *pki.Fault.
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
		return pki.Answer{}, c.fault(pki.Malformed, fmt.Errorf("the answer is not used: %w", err))
	}
	return answer, nil
}

// call sends a request over a fresh connection.
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
		grpc.WithDisableServiceConfig(), // DNS does not say how often is tried
		grpc.WithNoProxy(),              // as for every other server of the mesh
		grpc.WithUserAgent("holdfast"),
	}, c.cfg.Dial...)...)
	if err != nil {
		return nil, c.fault(Local, err)
	}
	defer hangUp(ctx, conn)
	var header metadata.MD
	response, err := pb.NewIstioCertificateServiceClient(conn).CreateCertificate(metadata.NewOutgoingContext(ctx, md), req, grpc.Header(&header))
	if err != nil {
		// The CA may repeat what it was sent.
		secrets := [][]byte{[]byte(token)}
		for name, value := range c.cfg.Headers {
			if redact.IsCredential(name, value) {
				secrets = append(secrets, []byte(value))
			}
		}
		return nil, c.failed(redact.Error(err, secrets...), header != nil)
	}
	return response, nil
}

// hangUp closes a connection, and waits for that until ctx ends. Close waits for the
// lookup of a name, and Go's resolver, which has no ear for its context while it
// waits for a name server, ends by itself only after 5 s.
func hangUp(ctx context.Context, conn *grpc.ClientConn) {
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

// failed says what a call failed with, and what to do. answering is whether the CA
// had begun to answer: one that only refuses does not (gRPC's Trailers-Only).
func (c *CA) failed(err error, answering bool) error {
	switch code := status.Code(err); code {
	case codes.Unauthenticated:
		hint := "no token is sent: give --istio-token-file"
		if c.cfg.TokenFile != "" {
			hint = fmt.Sprintf("is the token in %s valid now, and for the audience of the CA (that of istiod is istio-ca), and does the header ClusterID name the cluster as the CA does?", c.cfg.TokenFile)
		}
		return c.fault(Unauthenticated, fmt.Errorf("the CA does not believe who asks: %w: %s", err, hint))
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.Unknown, codes.Canceled:
		return c.fault(Unavailable, err)
	case codes.ResourceExhausted:
		if answering {
			return c.fault(pki.Oversized, fmt.Errorf("the answer has more than %d bytes: %w", maxAnswer, err))
		}
		return c.fault(Unavailable, err)
	default:
		return c.fault(Refused, fmt.Errorf("the CA refuses: %w", err))
	}
}

func (c *CA) fault(reason pki.Reason, err error) error {
	return &pki.Fault{Reason: reason, Err: fmt.Errorf("CA %s: %w", c.addr, err)}
}
