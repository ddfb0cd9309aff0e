package upstream

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// proxyServer is an HTTP proxy that connects to where it is asked to, or refuses.
type proxyServer struct {
	refuses atomic.Bool
	asked   atomic.Int64
}

func (p *proxyServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p.asked.Add(1)
	if req.Method != http.MethodConnect || p.refuses.Load() {
		http.Error(w, "not here", http.StatusForbidden)
		return
	}
	to, err := net.Dial("tcp", req.Host)
	if err != nil {
		http.Error(w, "bad gateway", http.StatusBadGateway)
		return
	}
	defer func() { _ = to.Close() }()
	conn, sent, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(to, sent) }()
	_, _ = io.Copy(conn, to)
}

func proxyOf(t *testing.T, text string) dial.Proxy {
	t.Helper()
	p, err := dial.ParseProxy(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A gRPC control plane is reached through the proxy that is set, in TLS and plaintext, and directly if that does not let it through; status says
// which way it is.
func TestAControlPlaneIsReachedThroughAProxy(t *testing.T) {
	ca := newAuthority(t, "ca")
	_, plain := controlPlane(t)
	_, secure := controlPlane(t, withTLS(ca.server(ca.issue("server", "127.0.0.1"))))
	for name, tc := range map[string]struct {
		addr     string
		security dial.Security
	}{
		"plaintext": {plain, dial.Security{Plaintext: true}},
		"TLS":       {secure, dial.Security{CA: ca.file}},
		"dns:///":   {"dns:///" + plain, dial.Security{Plaintext: true}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &proxyServer{}
			server := httptest.NewServer(p)
			t.Cleanup(server.Close)
			for _, form := range []xds.Form{xds.Delta, xds.SotW} {
				a := source(t, Config{Addr: tc.addr, Security: tc.security, Form: form, Proxy: proxyOf(t, server.URL)})
				answers := func(want string) {
					t.Helper()
					if err := a.Run(t.Context(), everyCluster(), func() error { return errPreferred }); !errors.Is(err, errPreferred) {
						t.Fatalf("ended with %v, want an answer", err)
					}
					if route := a.Route(); !strings.HasPrefix(route, want) || want == "" && route != "" {
						t.Errorf("it is reached %q, want %q", route, want)
					}
				}
				p.refuses.Store(false)
				answers("through the proxy " + server.URL)
				p.refuses.Store(true)
				answers("directly, because the proxy does not let it through: proxy " + server.URL + ": it does not connect to ")
				asked := p.asked.Load()
				if answers("directly"); p.asked.Load() != asked {
					t.Error("a proxy that did not let it through is asked again although it is reached directly")
				}
			}
			direct := source(t, Config{Addr: tc.addr, Security: tc.security, Proxy: proxyOf(t, dial.ProxyNone)})
			if err := direct.Run(t.Context(), everyCluster(), func() error { return errPreferred }); !errors.Is(err, errPreferred) || direct.Route() != "" {
				t.Errorf("without a proxy: %v, %q", err, direct.Route())
			}
		})
	}
}

// Where neither way leads anywhere, the error says so of both, and the proxy is asked again when the direct way ends.
func TestNeitherTheProxyNorTheDirectWay(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := lis.Addr().String()
	_ = lis.Close()
	p := &proxyServer{}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	a := source(t, Config{Addr: dead, Security: dial.Security{Plaintext: true}, Proxy: proxyOf(t, server.URL)})
	for n := range 2 {
		err := a.Run(t.Context(), everyCluster(), func() error { return nil })
		expect(t, err, "it does not connect to "+dead+": 502 Bad Gateway")
		expect(t, err, "directly: dial tcp "+dead)
		if int(p.asked.Load()) != n+1 {
			t.Errorf("the proxy was asked %d times", p.asked.Load())
		}
	}
	if !errors.As(err, new(*unreachable)) && a.Route() != "" {
		t.Errorf("%v, %q", err, a.Route())
	}
}
