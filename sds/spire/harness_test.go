package spire

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/proto/spiffe/workload"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// No Run may leave a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds a wait for what happens within a few seconds at a real socket, and
// patience one in a bubble, where it takes no time.
const (
	limit    = 20 * time.Second
	patience = time.Hour
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// authority signs SVIDs for one test.
type authority struct {
	*testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, domain string) *authority {
	t.Helper()
	ca := &authority{T: t, key: newKey(t), cert: &x509.Certificate{
		Subject: pkix.Name{CommonName: domain}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	ca.cert = ca.sign(ca.cert, ca.key.Public())
	return ca
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	return key
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

// svid makes an SVID of an ID and a key, whose bundle is this authority alone.
func (ca *authority) svid(id string, key crypto.Signer) *workload.X509SVID {
	ca.Helper()
	uri, err := url.Parse(id)
	check(ca.T, err)
	cert := ca.sign(&x509.Certificate{URIs: []*url.URL{uri}, KeyUsage: x509.KeyUsageDigitalSignature}, key.Public())
	private, err := x509.MarshalPKCS8PrivateKey(key)
	check(ca.T, err)
	return &workload.X509SVID{SpiffeId: id, X509Svid: cert.Raw, X509SvidKey: private, Bundle: ca.cert.Raw}
}

// message is what an agent sends: these SVIDs.
func message(svids ...*workload.X509SVID) *workload.X509SVIDResponse {
	return &workload.X509SVIDResponse{Svids: svids}
}

// turn is the next action of an agent: it sends the message, or without one ends the stream
// with err.
type turn struct {
	message *workload.X509SVIDResponse
	err     error
}

// agent serves the Workload API as a test says.
type agent struct {
	workload.UnimplementedSpiffeWorkloadAPIServer
	// turns are taken by whichever stream is open.
	turns chan turn

	mu sync.Mutex
	// opened are the times at which streams were opened.
	opened []time.Time
}

func (a *agent) FetchX509SVID(_ *workload.X509SVIDRequest, stream grpc.ServerStreamingServer[workload.X509SVIDResponse]) error {
	a.mu.Lock()
	a.opened = append(a.opened, time.Now())
	a.mu.Unlock()
	md, _ := metadata.FromIncomingContext(stream.Context())
	if !slices.Equal(md.Get("workload.spiffe.io"), []string{"true"}) {
		return status.Error(codes.InvalidArgument, "security header missing from request")
	}
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case next := <-a.turns:
			if next.message == nil {
				return next.err
			}
			if err := stream.Send(next.message); err != nil {
				return err
			}
		}
	}
}

// streams returns when streams were opened.
func (a *agent) streams() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.opened)
}

// serve serves on a listener until stop is called, or the test ends.
func (a *agent) serve(t *testing.T, lis net.Listener) (stop func()) {
	srv := grpc.NewServer()
	workload.RegisterSpiffeWorkloadAPIServer(srv, a)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(lis)
	}()
	stop = func() {
		srv.Stop()
		<-ended
	}
	t.Cleanup(stop)
	return stop
}

// event is one call of a source: update, or else fault, with nil for a resolved one.
type event struct {
	update *pki.Update
	fault  error
}

// rig is a source that runs, and the agent that it asks.
type rig struct {
	*testing.T
	agent  *agent
	addr   string
	ca     *authority
	limit  time.Duration
	events chan event
	log    *log
	// serve begins to serve again at the same address, after stop.
	serve func()
	stop  func()
	// end ends Run and waits for it.
	end func()
}

func newRig(t *testing.T) *rig {
	return &rig{
		T: t, agent: &agent{turns: make(chan turn)}, ca: newAuthority(t, "mesh.test"),
		events: make(chan event, 100), log: &log{},
	}
}

// atSocket runs a source at a Unix socket of the file system.
func atSocket(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.limit = limit
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "agent %41.sock") // as a URI it is written in another way
	r.serve = func() {
		lis, err := net.Listen("unix", socket)
		check(t, err)
		r.stop = r.agent.serve(t, lis)
	}
	r.serve()
	r.run("unix:" + socket)
	return r
}

// inBubble runs a test in a bubble, with a source that reaches the agent through a
// pipe.
func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.limit = patience
		pipe := &xdstest.Pipe{}
		r.serve = func() { r.stop = r.agent.serve(t, pipe.Listen()) }
		r.serve()
		r.run("unix:/pipe", grpc.WithContextDialer(pipe.DialContext))
		test(r)
	})
}

// run runs the source until the test ends, or end is called.
func (r *rig) run(addr string, dial ...grpc.DialOption) {
	r.Helper()
	r.addr = addr
	s, err := New(addr, slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	check(r.T, err)
	s.dial = dial
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Run(ctx, func(u pki.Update) { r.events <- event{update: &u} }, func(err error) { r.events <- event{fault: err} }); err != nil {
			r.Errorf("Run ended with %v, want nil", err)
		}
	}()
	r.end = func() {
		cancel()
		<-ended
	}
	r.Cleanup(r.end)
}

// send lets the agent take a turn once there is a stream.
func (r *rig) send(next turn) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	select {
	case r.agent.turns <- next:
	case <-ctx.Done():
		r.Fatal("the agent is not asked")
	}
}

func (r *rig) next() event {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), r.limit)
	defer cancel()
	select {
	case e := <-r.events:
		return e
	case <-ctx.Done():
		r.Fatal("no call")
	}
	return event{}
}

// expectUpdate waits for an update, which must be the next call.
func (r *rig) expectUpdate() pki.Update {
	r.Helper()
	e := r.next()
	if e.update == nil {
		r.Fatalf("fault %v, want an update", e.fault)
	}
	return *e.update
}

// expectFault waits for a fault with the texts, which must be the next call.
func (r *rig) expectFault(texts ...string) error {
	r.Helper()
	e := r.next()
	if e.fault == nil {
		r.Fatalf("update %v, or mended; want a fault with %q", e.update, texts)
	}
	for _, text := range texts {
		if !strings.Contains(e.fault.Error(), text) {
			r.Errorf("fault %q, want one with %q", e.fault, text)
		}
	}
	return e.fault
}

// expectRecovery waits for an update and the end of the fault.
func (r *rig) expectRecovery() {
	r.Helper()
	r.expectUpdate()
	if e := r.next(); e.update != nil || e.fault != nil {
		r.Fatalf("update %v, fault %v; want that it is mended", e.update, e.fault)
	}
}

// expectNothing fails if there was a call that the test did not wait for.
func (r *rig) expectNothing() {
	r.Helper()
	select {
	case e := <-r.events:
		r.Errorf("update %v, fault %v; want nothing", e.update, e.fault)
	default:
	}
}

// log keeps what is logged.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

var _ io.Writer = (*log)(nil)

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// same fails unless the certificates are these, in this order.
func same(t *testing.T, what string, got []*x509.Certificate, want ...*x509.Certificate) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b *x509.Certificate) bool { return a.Equal(b) }) {
		t.Errorf("%s: %d certificates, want these %d", what, len(got), len(want))
	}
}
