package istio

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestAddressesAreChecked(t *testing.T) {
	for _, tc := range []struct {
		addr string
		want string // part of the error; "" for none
	}{
		{"istiod.istio-system.svc:15012", ""},
		{"10.0.0.1:15012", ""},
		{"dns:///istiod.istio-system.svc:15012", ""},
		{"unix:/run/ca.sock", ""},
		{"unix:///run/ca.sock", ""},
		{"istiod", "want host:port, unix:PATH or dns:///HOST:PORT"},
		{"https://istiod:15012", "unknown scheme; want host:port"},
		{"unix:", "the path is missing"},
		{"istiod:0", "not a number from 1 to 65535"},
	} {
		t.Run(tc.addr, func(t *testing.T) {
			_, err := New(tc.addr, Config{})
			expect(t, err, tc.want)
		})
	}
}

func TestPlaintextIsForThisMachineOnly(t *testing.T) {
	const why = "is only allowed for addresses of this machine"
	for addr, want := range map[string]string{
		"127.0.0.1:15010":                 "",
		"127.8.7.6:15010":                 "",
		"[::1]:15010":                     "",
		"localhost:15010":                 "",
		"LocalHost:15010":                 "",
		"dns:///localhost:15010":          "",
		"dns:///localhost":                "",
		"dns:localhost:15010":             "",
		"unix:/run/ca.sock":               "",
		"istiod:15010":                    why,
		"10.0.0.1:15010":                  why,
		"0.0.0.0:15010":                   why,
		"[2001:db8::1]:15010":             why,
		"localhost.example.org:15010":     why,
		"dns:///istiod:15010":             why,
		"dns://10.0.0.53/localhost:15010": why,
	} {
		t.Run(addr, func(t *testing.T) {
			_, err := New(addr, Config{Security: dial.Security{Plaintext: true}})
			expect(t, err, want)
		})
	}
}

func TestSettingsThatContradictEachOtherAreRefused(t *testing.T) {
	_, err := New("127.0.0.1:15010", Config{Security: dial.Security{Plaintext: true, CA: "ca.pem"}})
	expect(t, err, "--istio-ca has no meaning with --istio-plaintext")
	_, err = New("127.0.0.1:15012", Config{Security: dial.Security{Cert: "c"}})
	expect(t, err, "--istio-cert and --istio-key go together")
}

func TestACAOnThisMachineMayBeAskedInTheClear(t *testing.T) {
	root := newAuthority(t, "root", nil)
	s := &service{answer: func(_ context.Context, r received) ([]string, error) {
		return []string{text(root.leaf(r.csr)), text(root.cert)}, nil
	}}
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	check(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "ca.sock")
	lis, err := net.Listen("unix", socket)
	check(t, err)
	s.serve(t, lis)
	tcp := listen(t)
	s.serve(t, tcp)
	for name, ca := range map[string]*CA{
		"a Unix socket": newCA(t, "unix:"+socket, Config{}),
		"loopback":      newCA(t, tcp.Addr().String(), Config{Security: dial.Security{Plaintext: true}}),
	} {
		t.Run(name, func(t *testing.T) {
			answer, err := ask(t, ca)
			check(t, err)
			same(t, "roots", answer.Roots, root.cert)
		})
	}
}

func TestACAThatIsNotWhoItShouldBeGetsNoRequest(t *testing.T) {
	r := newRig(t, answerWith())
	r.cfg.CA = newAuthority(t, "other", nil).file()
	r.cfg.TokenFile = write(t, "token", "t0ken")
	_, err := r.ask(t)
	checkFault(t, err, Unavailable, "certificate signed by unknown authority", "--istio-ca names the file")
	if asked := r.service.requests(); len(asked) > 0 {
		t.Errorf("%d requests arrived, want none", len(asked))
	}
}

func TestTheRootOfTheCAIsReadAgainAtTheNextRequest(t *testing.T) {
	r := newRig(t, refuse(status.Error(codes.Aborted, "it is asked")))
	right, err := os.ReadFile(r.cfg.CA)
	check(t, err)
	r.cfg.CA = newAuthority(t, "other", nil).file()
	ca := newCA(t, r.addr, r.cfg)
	_, err = ask(t, ca)
	checkFault(t, err, Unavailable, "unknown authority")
	check(t, os.WriteFile(r.cfg.CA, right, 0o600))
	_, err = ask(t, ca)
	checkFault(t, err, Unavailable, "it is asked")
}

func TestNobodyAtTheAddressIsReportedAtOnce(t *testing.T) {
	lis := listen(t)
	addr := lis.Addr().String()
	check(t, lis.Close())
	_, err := ask(t, newCA(t, addr, Config{}))
	checkFault(t, err, Unavailable, "connection refused")
}

// A server that accepts and is silent, at a real socket: the connection's buffers and
// the handshake are those of the system.
func TestASilentServerIsWaitedForNoLongerThanTheContext(t *testing.T) {
	lis := listen(t) // the kernel accepts for it
	defer func() { _ = lis.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := newCA(t, lis.Addr().String(), Config{}).Issue(ctx, request(t))
	checkFault(t, err, Unavailable)
	if status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("code %s, want %s: %v", status.Code(err), codes.DeadlineExceeded, err)
	}
}

// hangingResolver is a resolver that finds nothing and ends only when it is released, as Go's
// resolver does while a name server is silent.
type hangingResolver struct{ released chan struct{} }

func (d hangingResolver) Build(resolver.Target, resolver.ClientConn, resolver.BuildOptions) (resolver.Resolver, error) {
	return d, nil
}
func (d hangingResolver) Scheme() string                        { return "dns" }
func (d hangingResolver) ResolveNow(resolver.ResolveNowOptions) {}
func (d hangingResolver) Close()                                { <-d.released }

func TestALookupThatDoesNotEndIsLeftBehind(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := hangingResolver{make(chan struct{})}
		defer close(d.released)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := newCA(t, "ca.test:15012", Config{Dial: []grpc.DialOption{grpc.WithResolvers(d)}}).Issue(ctx, request(t))
		checkFault(t, err, Unavailable, "DeadlineExceeded")
	})
}

// resolverWithConfig is a resolver with a service config that demands four attempts.
type resolverWithConfig struct{ hangingResolver }

func (resolverWithConfig) Build(_ resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	const config = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s",
		"maxBackoff": "0.1s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}}]}`
	d := hangingResolver{make(chan struct{})}
	close(d.released)
	return d, cc.UpdateState(resolver.State{
		Addresses:     []resolver.Address{{Addr: "127.0.0.1:15010"}},
		ServiceConfig: cc.ParseServiceConfig(config),
	})
}

func TestDNSDoesNotSayHowOftenTheCAIsAsked(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		pipe := &xdstest.Pipe{}
		s := &service{answer: refuse(status.Error(codes.Unavailable, "later"))}
		s.serve(t, pipe.Listen())
		_, err := newCA(t, "localhost:15010", Config{
			Security: dial.Security{Plaintext: true},
			Dial:     []grpc.DialOption{grpc.WithContextDialer(pipe.DialContext), grpc.WithResolvers(resolverWithConfig{})},
		}).Issue(t.Context(), request(t))
		checkFault(t, err, Unavailable, "later")
		if asked := s.requests(); len(asked) != 1 {
			t.Errorf("asked %d times, want once", len(asked))
		}
	})
}

// The caller waits for 10 s and must get the reason within that time.
func TestAHandshakeThatHangsIsReported(t *testing.T) {
	for _, tc := range []struct {
		name     string
		security dial.Security
		text     string
	}{
		{"of TLS", dial.Security{}, "authentication handshake failed"},
		{"of HTTP/2", dial.Security{Plaintext: true}, "server preface"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				pipe := &xdstest.Pipe{}
				lis := pipe.Listen()
				defer func() { _ = lis.Close() }()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				go func() {
					if conn, err := lis.Accept(); err == nil {
						<-ctx.Done()
						_ = conn.Close()
					}
				}()
				began := time.Now()
				_, err := piped(t, pipe, tc.security).Issue(ctx, request(t))
				checkFault(t, err, Unavailable, tc.text)
				if waited := time.Since(began); waited != connectTimeout {
					t.Errorf("reported after %s, want %s", waited, connectTimeout)
				}
			})
		})
	}
}

func TestACAThatTakesTheRequestAndIsSilentIsWaitedForAsLongAsTheContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		pipe := &xdstest.Pipe{}
		s := &service{answer: func(ctx context.Context, _ received) ([]string, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		s.serve(t, pipe.Listen())
		ca := piped(t, pipe, dial.Security{Plaintext: true})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		_, err := ca.Issue(ctx, request(t))
		checkFault(t, err, Unavailable, "DeadlineExceeded")
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("ended after %s, want 10 s", waited)
		}
	})
}

func TestARequestEndsWhenItsContextIsCancelled(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		pipe := &xdstest.Pipe{}
		ctx, cancel := context.WithCancel(t.Context())
		s := &service{answer: func(serving context.Context, _ received) ([]string, error) {
			cancel()
			<-serving.Done()
			return nil, serving.Err()
		}}
		s.serve(t, pipe.Listen())
		_, err := piped(t, pipe, dial.Security{Plaintext: true}).Issue(ctx, request(t))
		checkFault(t, err, Unavailable, "Canceled")
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- newCA(t, "istiod:15012", Config{}).Run(ctx, nil, nil) }()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("ended with %v before its context", err)
		default:
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v, want nil", err)
		}
	})
}

// piped makes a CA that is reached through a pipe, as if it were at 127.0.0.1.
func piped(t *testing.T, pipe *xdstest.Pipe, security dial.Security) *CA {
	t.Helper()
	return newCA(t, "127.0.0.1:15012", Config{Security: security, Dial: []grpc.DialOption{grpc.WithContextDialer(pipe.DialContext)}})
}
