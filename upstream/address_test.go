package upstream

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream/failover"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
)

func TestAnInvalidAddressIsRejectedWithTheValidForms(t *testing.T) {
	const wanted = "want host:port, unix:PATH, dns:///HOST:PORT, http(s)://HOST or file:DIR"
	for addr, want := range map[string]string{
		"":                "upstream \"\": " + wanted,
		"xds.test":        "upstream \"xds.test\": " + wanted,
		":443":            "upstream \":443\": " + wanted,
		"xds.test:":       "upstream \"xds.test:\": " + wanted,
		"xds.test:65536":  "port \"65536\" is not a number from 1 to 65535",
		"xds.test:0":      "port \"0\" is not a number from 1 to 65535",
		"192.0.2.1:https": "port \"https\" is not a number from 1 to 65535",
		"2001:db8::1":     wanted,
		"unix:":           "the path is missing",
		"unix://":         "the path is missing",
		"dns:":            "the host is missing",
		"dns:///":         "the host is missing",
		"tcp://xds.test":  "unknown scheme; " + wanted,
	} {
		_, err := NewADS(Config{Addr: addr})
		if err == nil {
			t.Errorf("%s: accepted", addr)
			continue
		}
		expect(t, err, want)
	}
}

// Unix sockets use no TLS, whatever is set for other addresses: file permissions protect them.
func TestAUnixSocketIsSpokenToWithoutTLS(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "cp.sock")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	cp := xdstest.New(xdstest.Config{})
	cp.Set(xdstest.Cluster("c1", ""))
	cp.Serve(lis)
	t.Cleanup(cp.Stop)
	for _, addr := range []string{"unix:" + path, "unix://" + path} {
		if err := attempt(t, Config{Addr: addr, Security: dial.Security{CA: "ca-of-another-upstream.pem"}}); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	err = attempt(t, Config{Addr: "unix:" + path + ".none"})
	expect(t, err, "no such file or directory")
}

// If nobody listens, the error names the address, and Run ends.
func TestNobodyListens(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	_ = lis.Close()
	err = source(t, Config{Addr: addr, Security: dial.Security{Plaintext: true}}).Run(context.Background(), everyCluster(), nil)
	expect(t, err, "dial tcp "+addr+": connect: connection refused")
}

// The addresses of a name are tried in turn within one attempt.
func TestTheAddressesOfANameAreTriedInTurn(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := lis.Addr().String()
	_ = lis.Close()
	_, alive := controlPlane(t)
	err = attempt(t, Config{Addr: "dns:///xds.example.com:443", Security: dial.Security{Plaintext: true}, names: named(dead, alive)})
	if err != nil {
		t.Error(err)
	}
}

// named makes a name that has addresses.
func named(addrs ...string) resolver.Builder {
	names := manual.NewBuilderWithScheme("dns")
	var endpoints []resolver.Endpoint
	for _, addr := range addrs {
		endpoints = append(endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: addr}}})
	}
	names.InitialState(resolver.State{Endpoints: endpoints})
	return names
}

// An address that accepts connections may be full, unavailable, not a control plane at all, or close each connection: the next attempt takes
// another. Of many clients not all choose the same first.
func TestAnotherAddressIsTriedAfterOneThatFails(t *testing.T) {
	fails := func(t *testing.T, err error) string {
		lis, e := net.Listen("tcp", "127.0.0.1:0")
		if e != nil {
			t.Fatal(e)
		}
		s := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return err }))
		go func() { _ = s.Serve(lis) }()
		t.Cleanup(s.Stop)
		return lis.Addr().String()
	}
	closes := func(t *testing.T) string {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = lis.Close() })
		go func() {
			for {
				conn, err := lis.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
		return lis.Addr().String()
	}
	for how, bad := range map[string]func(t *testing.T) string{
		"full":          func(t *testing.T) string { return fails(t, status.Error(codes.ResourceExhausted, "too many streams")) },
		"unavailable":   func(t *testing.T) string { return fails(t, status.Error(codes.Unavailable, "not ready")) },
		"unimplemented": func(t *testing.T) string { return fails(t, status.Error(codes.Unimplemented, "unknown service")) },
		"it closes":     closes,
	} {
		t.Run(how, func(t *testing.T) {
			_, alive := controlPlane(t)
			first := 0
			for range 20 {
				a := source(t, Config{Addr: "dns:///xds.example.com:443", Security: dial.Security{Plaintext: true}, names: named(bad(t), alive, bad(t))})
				attempts := 0
				for answered := false; !answered; attempts++ {
					if attempts == 3 {
						t.Fatal("no answer in three attempts at three addresses")
					}
					ctx, cancel := context.WithTimeout(t.Context(), limit)
					err := a.Run(ctx, everyCluster(), func() error {
						answered = true
						cancel()
						return nil
					})
					if ctx.Err() != nil && !answered {
						t.Fatalf("it hangs: %v", err)
					}
					cancel()
				}
				if attempts == 1 {
					first++
				}
			}
			if first == 0 || first == 20 && how != "it closes" { // then gRPC takes another within the attempt
				t.Errorf("the same address was first for all of 20 clients (the good one for %d)", first)
			}
		})
	}
}

// … and while one does not answer on an open stream, a second stream goes to another.
func TestAnotherAddressIsTriedWhileOneHangs(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		<-stream.Context().Done()
		return nil
	}))
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	_, alive := controlPlane(t)
	a := source(t, Config{Addr: "dns:///xds.example.com:443", Security: dial.Security{Plaintext: true}, names: named(lis.Addr().String(), alive)})
	a.dialer.used(alive) // the other one is tried first
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	f := &Failover{Sources: []Source{a}, Timing: failover.Timing{FirstAnswer: 100 * time.Millisecond}, Connected: func(connected bool) {
		if connected {
			cancel()
		}
	}}
	began := time.Now()
	if err := f.Run(ctx, everyCluster()); err != nil || time.Since(began) >= limit {
		t.Errorf("no answer for %v: %v, %+v", limit, err, f.States())
	}
}
