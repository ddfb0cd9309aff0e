package sds

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds/local"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

const workload = "spiffe://mesh.test/ns/shop/sa/web"

// rig is a Manager with a scripted authority and one fake state, in virtual time.
type rig struct {
	*testing.T
	m     *Manager
	ca    *scripted
	state *fakeState
	log   *buffer
	// prepare replaces the origins of certificates.
	prepare func(*Manager)
	mu      sync.Mutex
	ahead   time.Duration // how far the wall clock was set
	stop    context.CancelFunc
	ended   chan struct{}
}

// now is the wall clock, which can be set.
func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Round(0).Add(r.ahead)
}

// set sets the wall clock forward, or back.
func (r *rig) set(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ahead += by
}

// signing runs a test with one identity whose certificates a scripted authority
// signs.
func signing(t *testing.T, change func(*Config), test func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{T: t, log: new(buffer)}
		r.ca = &scripted{r: r, authority: r.authority()}
		r.prepare = func(m *Manager) { m.sources[0].authority = r.ca }
		cfg := Config{
			Sources: []SourceConfig{{CA: "dev", Identities: []Identity{identified(workload)}}},
			Now:     r.now, Log: r.log.logger(),
		}
		if change != nil {
			change(&cfg)
		}
		r.start(cfg)
		test(r)
		r.end()
	})
}

func identified(id string) Identity { return Identity{Names: pki.Names{ID: id}} }

// start runs a Manager; one that ran before has ended.
func (r *rig) start(cfg Config) {
	r.Helper()
	m, err := New(cfg)
	if err != nil {
		r.Fatal(err)
	}
	r.m, r.state = m, newFakeState()
	if r.prepare != nil {
		r.prepare(m)
	}
	ctx, cancel := context.WithCancel(r.Context())
	r.stop, r.ended = cancel, make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.Run(ctx); err != nil {
			r.Error(err)
		}
	})
	wg.Go(func() {
		if err := m.Serve(ctx, r.state); err != nil {
			r.Error(err)
		}
	})
	go func() {
		wg.Wait()
		close(r.ended)
	}()
	synctest.Wait()
}

func (r *rig) end() {
	r.stop()
	<-r.ended
}

// authority makes a root authority that signs.
func (r *rig) authority() *local.Authority {
	r.Helper()
	a, err := local.NewDev("", r.now())
	if err != nil {
		r.Fatal(err)
	}
	return a
}

// wait lets virtual time pass.
func (r *rig) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// scripted is an authority that answers as its mode says.
type scripted struct {
	r *rig

	mu        sync.Mutex
	authority *local.Authority
	mode      string // "" signs
	asked     []time.Time
	roots     func([]*x509.Certificate)
}

func (s *scripted) setMode(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

// count returns the number of requests since the last call.
func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.asked)
	s.asked = nil
	return n
}

// rotate replaces the root of the authority, and announces the new one if tell is set.
func (s *scripted) rotate(a *local.Authority, tell bool) {
	s.mu.Lock()
	s.authority = a
	roots := s.roots
	s.mu.Unlock()
	if tell {
		roots(a.Roots())
	}
}

func (s *scripted) Run(ctx context.Context, roots func([]*x509.Certificate), _ func(error)) error {
	s.mu.Lock()
	s.roots = roots
	s.mu.Unlock()
	<-ctx.Done()
	return nil
}

// invalidAnswers are the answers of a malicious or broken authority, by mode.
var invalidAnswers = []string{"wrong key", "wrong name", "expired", "root missing", "oversized", "an authority", "empty"}

func (s *scripted) Issue(ctx context.Context, r pki.Request) (pki.Answer, error) {
	s.mu.Lock()
	s.asked = append(s.asked, time.Now())
	mode, a := s.mode, s.authority
	s.mu.Unlock()
	now := s.r.now()
	switch mode {
	case "stalls":
		<-ctx.Done()
		return pki.Answer{}, ctx.Err()
	case "fails":
		return pki.Answer{}, errors.New("connection refused")
	case "refuses":
		return pki.Answer{}, &pki.Fault{Reason: "unauthenticated", Err: errors.New("token expired")}
	case "empty":
		return pki.Answer{}, nil
	case "wrong key":
		key, err := pki.ECDSAP256.Generate()
		if err != nil {
			s.r.Error(err)
		}
		r.Key = key
	case "wrong name":
		r.Names.ID = "spiffe://mesh.test/ns/shop/sa/other"
	case "expired":
		now = now.Add(-48 * time.Hour)
	case "future":
		now = now.Add(time.Hour)
	}
	answer, err := a.Sign(r, now)
	switch mode {
	case "root missing":
		answer.Roots = s.r.authority().Roots()
	case "oversized":
		for range pki.MaxChain {
			answer.Chain = append(answer.Chain, answer.Chain[0])
		}
	case "an authority":
		answer.Chain = a.Roots()
	}
	return answer, err
}

// fakeState is the state of a group of clients.
type fakeState struct {
	changed chan struct{}

	mu        sync.Mutex
	held      map[string]*tlsv3.Secret
	order     []string // names in the order in which they were published
	published int
	add, drop []string
	result    error
}

func newFakeState() *fakeState {
	return &fakeState{changed: make(chan struct{}, 1), held: make(map[string]*tlsv3.Secret)}
}

func (f *fakeState) Publish(secrets []*xds.Resource, done func(error)) {
	f.mu.Lock()
	for _, r := range secrets {
		var s tlsv3.Secret
		if err := proto.Unmarshal(r.Body.GetValue(), &s); err != nil || s.GetName() != r.Name {
			panic("a secret that is none")
		}
		f.held[r.Name] = &s
		f.order = append(f.order, r.Name)
		f.published++
	}
	err := f.result
	f.mu.Unlock()
	done(err)
}

func (f *fakeState) Withdraw(names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		delete(f.held, name)
	}
}

func (f *fakeState) Changed() <-chan struct{} { return f.changed }

func (f *fakeState) Take() (add, drop []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	add, drop = f.add, f.drop
	f.add, f.drop = nil, nil
	return add, drop
}

// subscribe changes the subscriptions of the clients.
func (f *fakeState) subscribe(add, drop []string) {
	f.mu.Lock()
	f.add, f.drop = add, drop
	f.mu.Unlock()
	f.changed <- struct{}{}
	synctest.Wait()
}

// names lists the names that were published since the last call, in order.
func (f *fakeState) names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.order
	f.order = nil
	return out
}

func (f *fakeState) secret(name string) *tlsv3.Secret {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[name]
}

// pair returns the certificate that is published under a name; nil for none.
func (r *rig) pair(name string) *pki.Pair {
	r.Helper()
	s := r.state.secret(name)
	if s == nil {
		return nil
	}
	tls := s.GetTlsCertificate()
	p, err := pki.ParsePair(tls.GetCertificateChain().GetInlineBytes(), tls.GetPrivateKey().GetInlineBytes())
	if err != nil {
		r.Fatalf("%s: %v", name, err)
	}
	return &p
}

// roots returns the roots that are published under a name.
func (r *rig) roots(name string) []*x509.Certificate {
	r.Helper()
	s := r.state.secret(name)
	if s == nil {
		return nil
	}
	certs, err := pki.ParseCerts(s.GetValidationContext().GetTrustedCa().GetInlineBytes())
	if err != nil {
		r.Fatalf("%s: %v", name, err)
	}
	return certs
}

// checkCertificate fails the test unless the published certificate is valid for every peer.
func (r *rig) checkCertificate() *pki.Pair {
	r.Helper()
	p := r.pair(DefaultSecret)
	if p == nil {
		r.Fatalf("at %s: no certificate", r.now().Format(time.DateTime))
	}
	want := pki.Names{ID: workload}
	e := pki.Expectation{Names: &want, Key: p.Key.Public(), Roots: r.roots(DefaultRoots)}
	v, err := e.Verify(p.Chain, r.now())
	if err != nil {
		r.Fatalf("at %s: %v", r.now().Format(time.DateTime), err)
	}
	if v.From.After(r.now()) {
		r.Fatalf("at %s: valid only from %s on", r.now().Format(time.DateTime), v.From)
	}
	return p
}

// status returns the status of the first identity.
func (r *rig) status() IdentityStatus { return r.m.Status().Identities[0] }

func (r *rig) logged(text string) bool {
	return strings.Contains(r.log.String(), text)
}

// buffer holds a log.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func same(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, (*x509.Certificate).Equal)
}
