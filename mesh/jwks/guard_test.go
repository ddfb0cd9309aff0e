package jwks

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// Where keys are never asked for, and, without a flag, not either.
var (
	metadataAddrs = []string{
		"169.254.169.254", "169.254.170.2", "fe80::1", "fe80::a9fe:a9fe%lo", "::ffff:169.254.169.254", "fd00:ec2::254", "fd00:ec2::23",
		"100.100.100.200", "192.0.0.192", "168.63.129.16", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::254", "::ffff:100.100.100.200",
		"64:ff9b::a9fe:a9fe", "64:ff9b::6464:64c8", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::", "64:ff9b:1:0:a9:fea9:fe00:0",
		"2002:a9fe:a9fe::", "2002:a83f:8110::1", "::169.254.169.254", "::ffff:0:169.254.169.254", "2001:0:a9fe:a9fe::", "2001::5601:5601", "fd01::5efe:a9fe:a9fe", "2001:db8::200:5efe:a9fe:a9fe",
	}
	loopbackAddrs = []string{"127.0.0.1", "127.8.9.10", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "::127.0.0.1", "::ffff:0.0.0.0"}
	otherAddrs    = []string{"10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:db8::1", "fd00::1", "64:ff9b::808:808", "2002:808:808::1", "192.0.0.191", "169.253.0.1", "2606:4700::1"}
)

func TestMetadataAndLoopbackAddressesAreRefused(t *testing.T) {
	never, unless := newGuard(nil, false), newGuard(nil, true)
	for _, a := range metadataAddrs {
		if never.refused(netip.MustParseAddr(a)) == "" || unless.refused(netip.MustParseAddr(a)) == "" {
			t.Errorf("%s would be asked", a)
		}
	}
	for _, a := range loopbackAddrs {
		if why := never.refused(netip.MustParseAddr(a)); !strings.Contains(why, "--jwks-allow-loopback") {
			t.Errorf("%s: %q", a, why)
		}
	}
	for _, a := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
		if why := unless.refused(netip.MustParseAddr(a)); why != "" {
			t.Errorf("%s with the flag: %s", a, why)
		}
	}
	for _, a := range otherAddrs {
		if why := never.refused(netip.MustParseAddr(a)); why != "" {
			t.Errorf("%s: %s", a, why)
		}
	}
}

// get asks by a client of a transport, as a Store does.
func get(t *testing.T, g *guard, at string) (string, error) {
	t.Helper()
	text, err := (&Client{Transport: g, Timeout: DefaultTimeout}).get(t.Context(), at)
	return string(text), err
}

// The address that a name has is looked at when it is dialed, and so is that of a redirect.
func TestWhatIsDialedIsGuarded(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; r.URL.Path == "/away" {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "keys")
	}))
	defer server.Close()
	direct := func(*http.Request) (*url.URL, error) { return nil, nil }
	never, unless := newGuard(nil, false), newGuard(nil, true)
	never.proxy, unless.proxy = direct, direct
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	for _, at := range []string{server.URL, "http://localhost:" + port} {
		if _, err := get(t, never, at); err == nil || !strings.Contains(err.Error(), "--jwks-allow-loopback") || asked > 0 {
			t.Errorf("%s: %v, %d requests", at, err, asked)
		}
	}
	if text, err := get(t, unless, server.URL); err != nil || text != "keys" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := get(t, unless, server.URL+"/away"); err == nil || !strings.Contains(err.Error(), "link-local") {
		t.Errorf("a redirect: %v", err)
	}
}

// A proxy asks in the name of who sends it: it is not asked for what would not be asked directly.
func TestAProxyIsNotAskedForWhatIsRefused(t *testing.T) {
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked = append(asked, r.URL.Host); r.URL.Path == "/away" {
			http.Redirect(w, r, "http://evil.example/", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "keys")
	}))
	defer proxy.Close()
	at, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	g := newGuard(nil, false)
	g.proxy = func(*http.Request) (*url.URL, error) { return at, nil } // on loopback, as a sidecar is
	g.lookup = func(_ context.Context, _, host string) ([]netip.Addr, error) {
		switch host {
		case "evil.example":
			return []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("64:ff9b::a9fe:a9fe")}, nil
		case "local.example":
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		case "good.example":
			return []netip.Addr{netip.MustParseAddr("8.8.8.8")}, nil
		}
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	for _, host := range []string{"evil.example", "local.example", "169.254.169.254", "[fd00:ec2::23]", "127.0.0.1:15014", "localhost", "a.localhost", "metadata.google.internal", "METADATA.google.internal."} {
		if _, err := get(t, g, "http://"+host+"/"); err == nil || !strings.Contains(err.Error(), "keys are not asked for") || len(asked) > 0 {
			t.Errorf("%s: %v, %q", host, err, asked)
		}
	}
	for _, host := range []string{"good.example", "known-to-the-proxy.example", "8.8.8.8"} {
		asked = nil
		if text, err := get(t, g, "http://"+host+"/"); err != nil || text != "keys" || len(asked) != 1 {
			t.Errorf("%s: %q %v, %q", host, text, err, asked)
		}
	}
	asked = nil
	if _, err := get(t, g, "http://good.example/away"); err == nil || len(asked) != 1 {
		t.Errorf("a redirect: %v, %q", err, asked)
	}
}
