// Package ca is the certificate authority of a mesh: Istio's service CreateCertificate, for agents and for
// pilot-agent, and the certificate of the control plane's own server.
//
// It promises:
//   - a certificate has the identity that its client has proved over an encrypted connection, and no other name,
//     whatever the request asks for;
//   - it leads to a root that the answer names, and is verified before it is handed out;
//   - no private key leaves this process, and none but the authority's is on disk.
//
// All methods may be called by several goroutines at once.
package ca

import (
	"cmp"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	pb "istio.io/api/security/v1alpha1"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/repeats"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// Lifetimes of certificates, as Istio has them.
const (
	DefaultLifetime    = 24 * time.Hour
	DefaultMaxLifetime = 90 * 24 * time.Hour
)

// Limits of requests.
const (
	maxRequest    = 64 << 10 // bytes of a CSR
	maxIdentities = 10_000   // whose rates are remembered
	// linesPerSecond bounds those of the log about requests that are refused, of one minute and client each.
	linesPerSecond = 10
	// perIdentity and burst bound the certificates of one identity: all pods of a service account may come at once.
	perIdentity, burst = rate.Limit(10), 100
)

// Authority signs certificates, as those of package local do. If it has a method Require, it is told what it has to sign,
// so that it does not replace what is in use by what signs less.
type Authority interface {
	// Run watches the authority until ctx ends, and calls roots when what peers must trust has changed, and fault
	// with its current problem, nil for none.
	Run(ctx context.Context, roots func([]*x509.Certificate), fault func(error)) error
	Issue(ctx context.Context, r pki.Request) (pki.Answer, error)
}

// Config configures a Server.
type Config struct {
	Authority Authority
	// Identify says who a client is, nil for nobody, or returns an error of gRPC; TrustDomains are those of the mesh,
	// its own first.
	Identify     func(ctx context.Context, c downstream.Credentials, domains []string) (*proxy.Identity, error)
	TrustDomains func() ([]string, error)
	// Assigned reports whether a trust domain is that of an issuer of tokens: it is exchanged for no other one. nil means
	// that none is.
	Assigned func(domain string) bool
	// MaxLifetime bounds the lifetime that a client may ask for; 0 means DefaultMaxLifetime.
	MaxLifetime time.Duration
	// Names are the DNS names and IP addresses of the control plane's own server. OptionalNames says that it has another
	// certificate, so that the authority need not sign these.
	Names         []string
	OptionalNames bool
	Metrics       *Metrics
	Now           func() time.Time // nil means time.Now
	Log           *slog.Logger     // may be nil
}

// Server is the authority of a mesh. Create one with New, and run Run.
type Server struct {
	pb.UnimplementedIstioCertificateServiceServer
	cfg   Config
	own   own
	rates *lru.Cache[string, *rate.Limiter]
	// repeats limits the lines that clients can cause.
	repeats *repeats.Limiter

	mu    sync.Mutex
	roots []*x509.Certificate
}

// New checks the names; it does no I/O.
func New(cfg Config) (*Server, error) {
	cfg.MaxLifetime = cmp.Or(cfg.MaxLifetime, DefaultMaxLifetime)
	cfg.Metrics = cmp.Or(cfg.Metrics, NewMetrics(nil))
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Assigned == nil {
		cfg.Assigned = func(string) bool { return false }
	}
	names, err := ownNames(cfg.Names)
	if err != nil {
		return nil, err
	}
	rates, _ := lru.New[string, *rate.Limiter](maxIdentities) // the size is positive
	s := &Server{cfg: cfg, rates: rates, repeats: repeats.New(1, linesPerSecond), own: own{names: names}}
	if a, ok := cfg.Authority.(interface{ Require(func() []pki.Names) }); ok {
		a.Require(s.required)
	}
	return s, nil
}

// Register adds the service to a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) { pb.RegisterIstioCertificateServiceServer(g, s) }

// Roots returns the roots to which certificates of clients may lead: those that the authority names. A former one is trusted
// no longer than its operator says, who may have a reason.
func (s *Server) Roots() []*x509.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roots
}

// setRoots takes the roots of the authority.
func (s *Server) setRoots(named []*x509.Certificate) {
	s.mu.Lock()
	if former := s.roots; len(former) > 0 && !slices.ContainsFunc(named, func(c *x509.Certificate) bool { return slices.ContainsFunc(former, c.Equal) }) {
		s.cfg.Log.Warn("all roots of the authority were replaced at once: agents do not trust them before they renew their certificates, and handshakes fail until then. Name the former roots, too, in root-cert.pem for the lifetime of a certificate")
	}
	s.roots = named
	s.mu.Unlock()
	first := named[0]
	for _, c := range named {
		if c.NotAfter.Before(first.NotAfter) {
			first = c
		}
	}
	s.cfg.Metrics.rootExpiry.Set(float64(first.NotAfter.Unix()))
	s.cfg.Log.Info("the authority's roots", "count", len(named), "subject", first.Subject.String(), "not_after", first.NotAfter.UTC().Format(time.RFC3339))
}

// CreateCertificate implements the service: it signs the public key of a request for who the client is.
func (s *Server) CreateCertificate(ctx context.Context, req *pb.IstioCertificateRequest) (*pb.IstioCertificateResponse, error) {
	s.cfg.Metrics.requests.Inc()
	by := repeats.Peer(peerOf(ctx))
	resp, err := s.create(ctx, req, &by)
	if err != nil {
		s.cfg.Metrics.refused.WithLabelValues(status.Code(err).String()).Inc()
		s.repeats.Log(s.cfg.Log, slog.LevelWarn, status.Code(err).String()+" "+by, "no certificate issued", "peer", peerOf(ctx), "code", status.Code(err).String(), "err", status.Convert(err).Message())
		return nil, err
	}
	return resp, nil
}

// create makes the answer. by is who asks, for the log: once the client has proved an identity, that.
func (s *Server) create(ctx context.Context, req *pb.IstioCertificateRequest, by *string) (*pb.IstioCertificateResponse, error) {
	credentials := downstream.CredentialsOf(ctx)
	if !credentials.Secure {
		return nil, status.Error(codes.Unauthenticated, "certificates are issued over TLS only: ask --tls-listen")
	}
	domains, err := s.cfg.TrustDomains()
	if err != nil {
		return nil, err
	}
	id, err := s.cfg.Identify(ctx, credentials, domains)
	switch {
	case err != nil:
		s.cfg.Metrics.unauthenticated.Inc()
		return nil, err
	case id == nil:
		s.cfg.Metrics.unauthenticated.Inc()
		return nil, status.Error(codes.Unauthenticated, "the client proves no identity, neither with a token nor with a certificate that has a SPIFFE ID")
	}
	*by = id.ID()
	if !slices.Contains(domains, id.TrustDomain) {
		return nil, status.Errorf(codes.PermissionDenied, "the trust domain of %s is not one of the mesh (%s)", id.ID(), strings.Join(domains, ", "))
	}
	if !s.limiter(id.ID()).AllowN(s.cfg.Now(), 1) {
		return nil, status.Errorf(codes.ResourceExhausted, "more than %d certificates a second for %s", int(perIdentity), id.ID())
	}
	for _, name := range []string{"ImpersonatedIdentity", "CertSigner"} {
		if value := req.GetMetadata().GetFields()[name]; value.GetStringValue() != "" { // Istio's agents send an empty CertSigner
			return nil, status.Errorf(codes.InvalidArgument, "%s %.100q is not supported", name, value.GetStringValue())
		}
	}
	key, named, err := parseRequest(req.GetCsr(), *id, s.interchangeable(id.TrustDomain, domains))
	if err != nil {
		s.cfg.Metrics.malformed.Inc()
		return nil, err
	}
	return s.sign(ctx, req, key, named, credentials)
}

// interchangeable returns the trust domains of the mesh of which a client may have a certificate, as in a mesh that changes
// its name. The trust domain of an issuer stands for itself alone: with a certificate of another one, a client would be a
// workload for which its issuer does not speak, and its former certificate would prove that for the next one.
func (s *Server) interchangeable(domain string, of []string) (out []string) {
	for _, other := range of {
		if other == domain || !s.cfg.Assigned(domain) && !s.cfg.Assigned(other) {
			out = append(out, other)
		}
	}
	return out
}

// required returns what the authority has to sign: the certificate of this server, and those of workloads in the trust
// domain of the mesh and in those of issuers. Its other aliases may be those of other authorities.
func (s *Server) required() (all []pki.Names) {
	if !s.cfg.OptionalNames {
		all = append(all, s.own.names)
	}
	domains, err := s.cfg.TrustDomains()
	if err != nil {
		return all // the configuration was not read yet
	}
	for i, domain := range domains {
		id := proxy.Identity{TrustDomain: domain, Namespace: "x", ServiceAccount: "x"}.ID()
		if _, err := pki.TrustDomain(id); err == nil && (i == 0 || s.cfg.Assigned(domain)) { // else nobody gets a certificate of it
			all = append(all, pki.Names{ID: id})
		}
	}
	return all
}

// sign signs a key that has been checked.
func (s *Server) sign(ctx context.Context, req *pb.IstioCertificateRequest, key crypto.PublicKey, id proxy.Identity, credentials downstream.Credentials) (*pb.IstioCertificateResponse, error) {
	names := pki.Names{ID: id.ID()}
	answer, err := s.cfg.Authority.Issue(ctx, pki.Request{Key: publicKey{key}, Names: names, Lifetime: s.lifetime(req.GetValidityDuration())})
	if err == nil {
		_, err = pki.Expectation{Key: key, Names: &names, Roots: answer.Roots}.Verify(answer.Chain, s.cfg.Now())
	}
	if err != nil {
		s.repeats.Log(s.cfg.Log, slog.LevelError, "the authority", "the authority cannot sign", "identity", id.ID(), "err", err)
		return nil, status.Error(codes.Unavailable, "the authority cannot sign now: see the log of the control plane")
	}
	s.noteChain(answer)
	leaf, by := answer.Chain[0], "token"
	if proved, _ := proxy.IdentityOf(credentials.Certificate); proved != nil {
		by = "certificate " + credentials.Certificate.SerialNumber.Text(16)
	}
	sum := sha256.Sum256(leaf.Raw)
	s.cfg.Metrics.issued.Inc()
	s.cfg.Log.Info("certificate issued", "identity", id.ID(), "serial", leaf.SerialNumber.Text(16), "sha256", hex.EncodeToString(sum[:]),
		"not_after", leaf.NotAfter.UTC().Format(time.RFC3339), "peer", peerOf(ctx), "proved_by", by)
	resp := &pb.IstioCertificateResponse{}
	for _, c := range answer.Chain {
		resp.CertChain = append(resp.CertChain, string(pki.EncodeCerts([]*x509.Certificate{c})))
	}
	resp.CertChain = append(resp.CertChain, string(pki.EncodeCerts(answer.Roots)))
	return resp, nil
}

// noteChain tells the metrics when the first of the authority's own certificates expires, without which it signs nothing.
func (s *Server) noteChain(answer pki.Answer) {
	authorities := answer.Chain[1:]
	if len(authorities) == 0 {
		authorities = answer.Roots // a root signs itself
	}
	first := slices.MinFunc(authorities, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	s.cfg.Metrics.chainExpiry.Set(float64(first.NotAfter.Unix()))
}

func (s *Server) lifetime(seconds int64) time.Duration {
	if seconds <= 0 {
		return min(DefaultLifetime, s.cfg.MaxLifetime)
	}
	return time.Duration(min(seconds, int64(s.cfg.MaxLifetime/time.Second))) * time.Second
}

// limiter returns the limiter of an identity.
func (s *Server) limiter(id string) *rate.Limiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, found := s.rates.Get(id)
	if !found {
		l = rate.NewLimiter(perIdentity, burst)
		s.rates.Add(id, l)
	}
	return l
}

// parseRequest returns the public key of a certificate request (PKCS#10 in PEM), and the identity for which it is: that of
// the client, in one of the trust domains for which the request may ask. Any other name is an error, because the
// client's agent would reject the certificate without it.
func parseRequest(text string, client proxy.Identity, domains []string) (key crypto.PublicKey, id proxy.Identity, err error) {
	if len(text) > maxRequest {
		return nil, id, status.Errorf(codes.InvalidArgument, "the certificate request has %d bytes: want %d or fewer", len(text), maxRequest)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || !strings.HasSuffix(block.Type, "CERTIFICATE REQUEST") || strings.TrimSpace(string(rest)) != "" {
		return nil, id, status.Error(codes.InvalidArgument, "want one certificate request, as PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = pki.CheckPublicKey(csr.PublicKey) // before a signature of a key that is too large
	}
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, id, status.Errorf(codes.InvalidArgument, "the certificate request: %v", err)
	}
	if name, err := unknownName(csr); err != nil || name >= 0 {
		return nil, id, status.Errorf(codes.PermissionDenied, "the certificate request asks for a name of a form that is not known here (%d): want the SPIFFE ID %s alone", name, client.ID())
	}
	if len(csr.DNSNames) > 0 || len(csr.IPAddresses) > 0 || len(csr.EmailAddresses) > 0 || len(csr.URIs) > 1 {
		return nil, id, status.Errorf(codes.PermissionDenied, "the certificate request asks for more names than the SPIFFE ID %s", client.ID())
	}
	id = client
	for _, uri := range csr.URIs {
		if slices.Contains(domains, uri.Host) {
			id.TrustDomain = uri.Host
		}
		if uri.String() != id.ID() {
			return nil, id, status.Errorf(codes.PermissionDenied, "the certificate request is for %.300q, and the client is %s", uri.String(), client.ID())
		}
	}
	if _, err := pki.TrustDomain(id.ID()); err != nil {
		return nil, id, status.Errorf(codes.InvalidArgument, "no certificate can have this identity: %.300v", err)
	}
	return csr.PublicKey, id, nil
}

// subjectAltName is the extension of the names of a certificate (RFC 5280, section 4.2.1.6).
var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// unknownName returns the form of a name in a request that x509 does not read, such as that of a directory; -1 for none.
func unknownName(csr *x509.CertificateRequest) (form int, err error) {
	const email, dns, uri, ip = 1, 2, 6, 7
	for _, extension := range csr.Extensions {
		if !extension.Id.Equal(subjectAltName) {
			continue
		}
		var names []asn1.RawValue
		if _, err := asn1.Unmarshal(extension.Value, &names); err != nil {
			return -1, err
		}
		for _, name := range names {
			if name.Class != asn1.ClassContextSpecific || !slices.Contains([]int{email, dns, uri, ip}, name.Tag) {
				return name.Tag, nil
			}
		}
	}
	return -1, nil
}

// publicKey is the key of a request, of which nobody here has the private half.
type publicKey struct{ crypto.PublicKey }

func (k publicKey) Public() crypto.PublicKey { return k.PublicKey }

func (publicKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("only the public key is known")
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// Parse returns the authority that a flag names: dir:DIR for one in files, dev or dev:DIR for one that is made.
func Parse(text string, log *slog.Logger) (Authority, error) {
	kind, dir, named := strings.Cut(text, ":")
	switch {
	case kind == "dir" && dir != "":
		return local.NewDir(dir, time.Now, log)
	case kind == "dev" && (dir != "" || !named):
		return local.OpenDev(dir, "", time.Now, log)
	}
	return nil, fmt.Errorf("%q: want dir:DIR, dev or dev:DIR, with an absolute path such as dir:/etc/cacerts", text)
}
