package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// A poll says it, too.
func TestAMistakeInTheConnectionOfPollsNamesTheFlag(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	_, secure := controlPlane(t, withTLS(ca.server(ca.issue("server", "plane.test", "127.0.0.1"))))
	for want, security := range map[string]dial.Security{
		"--upstream-ca names the file":         {CA: other.file},
		"--upstream-server-name sets the name": {CA: ca.file, ServerName: "else.test"},
	} {
		rest, err := NewREST(Config{Addr: "https://" + secure, Security: security})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		expect(t, rest.Run(ctx, everyCluster(), func() error { return nil }), want)
	}
}

// Whoever confuses TLS and plaintext, ports, protocols, CAs and names reads which flag says what was meant. The servers are real.
func TestAMistakeInTheConnectionNamesTheFlag(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	cert := ca.issue("server", "plane.test", "127.0.0.1")
	_, plain := controlPlane(t)
	_, secure := controlPlane(t, withTLS(ca.server(cert)))
	_, named := controlPlane(t, withTLS(ca.server(ca.issue("named", "plane.test"))))
	clients := ca.server(cert)
	clients.ClientAuth, clients.ClientCAs = tls.RequireAndVerifyClientCert, ca.pool()
	clients.MaxVersion = tls.VersionTLS12 // with TLS 1.3 the alert may be lost
	_, mutual := controlPlane(t, withTLS(clients))
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	conf := ca.server(cert)
	conf.NextProtos = nil
	lis, err := tls.Listen("tcp", "127.0.0.1:0", conf)
	if err != nil {
		t.Fatal(err)
	}
	noALPN := grpc.NewServer()
	go func() { _ = noALPN.Serve(lis) }()
	t.Cleanup(noALPN.Stop)
	refusing := func(code codes.Code, text string) string {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return status.Error(code, text) }))
		go func() { _ = s.Serve(lis) }()
		t.Cleanup(s.Stop)
		return lis.Addr().String()
	}
	plaintext := dial.Security{Plaintext: true}
	for name, tc := range map[string]struct {
		addr     string
		security dial.Security
		form     xds.Form
		want     string // "" for no hint
	}{
		"TLS to plaintext":       {plain, dial.Security{CA: ca.file}, xds.Delta, "does --upstream-plaintext belong here?"},
		"plaintext to TLS":       {secure, plaintext, xds.Delta, "leave --upstream-plaintext out"},
		"the wrong CA":           {secure, dial.Security{CA: other.file}, xds.Delta, "--upstream-ca names the file"},
		"the system's CAs":       {secure, dial.Security{}, xds.Delta, "--upstream-ca names the file"},
		"the wrong name":         {secure, dial.Security{CA: ca.file, ServerName: "else.test"}, xds.Delta, "--upstream-server-name sets the name"},
		"an address and a name":  {named, dial.Security{CA: ca.file}, xds.Delta, "--upstream-server-name sets the name"},
		"another prefix":         {secure, dial.Security{Flags: "istio", CA: other.file}, xds.Delta, "--istio-ca names the file"},
		"no client certificate":  {mutual, dial.Security{CA: ca.file}, xds.Delta, "--upstream-cert and --upstream-key"},
		"HTTP/1":                 {web.Listener.Addr().String(), plaintext, xds.Delta, "http://HOST"},
		"no ALPN":                {lis.Addr().String(), dial.Security{CA: ca.file}, xds.Delta, "GRPC_ENFORCE_ALPN_ENABLED=false"},
		"no token":               {refusing(codes.Unauthenticated, "who are you?"), plaintext, xds.Delta, "--upstream-token-file"},
		"too large in SotW":      {refusing(codes.ResourceExhausted, "grpc: received message larger than max (7900000 vs. 4194304)"), plaintext, xds.SotW, "--upstream-protocol delta"},
		"too large in Delta":     {refusing(codes.ResourceExhausted, "grpc: received message larger than max (7900000 vs. 4194304)"), plaintext, xds.Delta, ""},
		"what nobody can better": {refusing(codes.Unavailable, "later"), plaintext, xds.Delta, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := attempt(t, Config{Addr: tc.addr, Security: tc.security, Form: tc.form})
			expect(t, err, cmp.Or(tc.want, "rpc error"))
			if hinted := err != nil && strings.HasSuffix(err.Error(), ")") && strings.Contains(err.Error(), "--"); tc.want == "" && hinted {
				t.Errorf("%v: nothing is known to help", err)
			}
		})
	}
}
