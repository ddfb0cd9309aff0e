package dial

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestAProxySettingIsRead(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"env":                        "",
		"none":                       "",
		"http://proxy.test:3128":     "",
		"https://proxy.test":         "",
		"socks5://[2001:db8::1]:108": "",
		"socks5h://proxy.test":       "",
		"proxy.test:3128":            "want env, none or the URL of a proxy",
		"http://":                    "want env, none or the URL of a proxy",
		"off":                        "want env, none or the URL of a proxy",
		"ftp://proxy.test":           `scheme "ftp": want http, https, socks5 or socks5h`,
		"http://me:pw@proxy.test":    "put the URL into the environment variable HTTPS_PROXY",
	} {
		p, err := ParseProxy(text)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", text, err, want)
		case err != nil && strings.Contains(err.Error(), "pw"):
			t.Errorf("%q: %v shows the password", text, err)
		case err == nil && text != "" && p.String() != text:
			t.Errorf("%q is %q", text, p)
		}
	}
}

// The variables are those that REST, curl and gRPC's own clients read. gRPC is always asked for as https, also in plaintext.
func TestTheProxyOfTheEnvironment(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://user:secret@proxy.test:3128")
	t.Setenv("HTTP_PROXY", "http://other.test:3128")
	t.Setenv("NO_PROXY", ".svc,10.0.0.0/8,exact.test:15010")
	for addr, want := range map[string]string{
		"xds.example.com:443": "proxy.test:3128",
		"istiod.ns.svc:15010": "",
		"10.1.2.3:15010":      "",
		"192.0.2.1:15010":     "proxy.test:3128",
		"exact.test:15010":    "",
		"exact.test:443":      "proxy.test:3128",
		"127.0.0.1:15010":     "",
		"localhost:15010":     "",
	} {
		for _, p := range []Proxy{{}, {ProxyEnv}} {
			u, err := p.For(addr)
			if err != nil || (u == nil) != (want == "") || u != nil && u.Host != want {
				t.Errorf("%s: %v, %v, want %q", addr, u, err, want)
			}
		}
		if u, err := (Proxy{ProxyNone}).For(addr); u != nil || err != nil {
			t.Errorf("%s, none: %v, %v", addr, u, err)
		}
		if u, err := (Proxy{"http://set.test"}).For(addr); err != nil || u.Host != "set.test" {
			t.Errorf("%s, a URL: %v, %v", addr, u, err)
		}
	}
	t.Setenv("HTTPS_PROXY", "ftp://proxy.test")
	if u, err := (Proxy{}).For("xds.example.com:443"); err == nil {
		t.Errorf("a proxy of another scheme: %v", u)
	}
}

// proxied answers as an HTTP proxy that was asked for a connection.
func proxied(t *testing.T, answer string, asked *http.Request) DialFunc {
	t.Helper()
	return func(_ context.Context, network, addr string) (net.Conn, error) {
		if network != "tcp" || addr != "proxy.test:3128" {
			t.Errorf("it connects to %s %s", network, addr)
		}
		client, server := net.Pipe()
		go func() {
			defer func() { _ = server.Close() }()
			req, err := http.ReadRequest(bufio.NewReader(server))
			if err != nil {
				return
			}
			*asked = *req
			_, _ = io.WriteString(server, answer)
		}()
		return client, nil
	}
}

func TestAProxyIsAskedForAConnection(t *testing.T) {
	through := &url.URL{Scheme: "http", Host: "proxy.test:3128", User: url.UserPassword("user", "secret")}
	for answer, want := range map[string]string{
		"HTTP/1.1 200 OK\r\n\r\nhello":                        "",
		"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n": "proxy http://[redacted]@proxy.test:3128: it does not connect to xds.test:443: 403 Forbidden",
		"HTTP/1.1 407 \x1b[31msecret\r\n\r\n":                 "407",
		"rubbish":                                             "proxy http://[redacted]@proxy.test:3128: ",
		"":                                                    "EOF",
	} {
		var asked http.Request
		conn, err := Through(t.Context(), through, proxied(t, answer, &asked), "xds.test:443")
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) || strings.ContainsAny(err.Error(), "\x1b\n") || strings.Contains(err.Error(), ":secret@") {
				t.Errorf("%q: %v, want %q", answer, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		user, password, ok := (&http.Request{Header: http.Header{"Authorization": asked.Header["Proxy-Authorization"]}}).BasicAuth()
		if asked.Method != http.MethodConnect || asked.Host != "xds.test:443" || !ok || user != "user" || password != "secret" {
			t.Errorf("%s %s %q %q", asked.Method, asked.Host, user, password)
		}
		if got, err := io.ReadAll(conn); string(got) != "hello" || err != nil {
			t.Errorf("what came with the answer is lost: %q, %v", got, err)
		}
		_ = conn.Close()
	}
}

// A proxy that hangs costs the time that it has.
func TestAProxyThatHangsIsLeft(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Through(ctx, &url.URL{Scheme: "http", Host: "proxy.test"}, func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, server) }()
		return client, nil
	}, "xds.test:443")
	if err == nil || ctx.Err() == nil {
		t.Errorf("%v", err)
	}
}
