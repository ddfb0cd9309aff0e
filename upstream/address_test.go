package upstream

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xdstest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
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
	names := manual.NewBuilderWithScheme("dns")
	names.InitialState(resolver.State{Endpoints: []resolver.Endpoint{
		{Addresses: []resolver.Address{{Addr: dead}}}, {Addresses: []resolver.Address{{Addr: alive}}},
	}})
	err = attempt(t, Config{
		Addr: "dns:///xds.example.com:443", Security: dial.Security{Plaintext: true},
		options: []grpc.DialOption{grpc.WithResolvers(names)},
	})
	if err != nil {
		t.Error(err)
	}
}
