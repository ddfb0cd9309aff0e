package dial

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// Proxy says through which proxy a server is reached. The zero value is ProxyEnv.
type Proxy struct{ setting string }

// The settings that are no URL.
const (
	// ProxyEnv: the environment variables HTTPS_PROXY and NO_PROXY say it, as for curl and gRPC's own clients.
	ProxyEnv = "env"
	// ProxyNone: none.
	ProxyNone = "none"
)

// proxySchemes are the schemes of a proxy's URL.
const proxySchemes = "http, https, socks5 or socks5h"

// ParseProxy parses ProxyEnv, ProxyNone or the URL of a proxy. A URL has no credentials, because settings are shown: they are in the environment.
func ParseProxy(text string) (Proxy, error) {
	switch text {
	case "", ProxyEnv, ProxyNone:
		return Proxy{text}, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Hostname() == "":
		return Proxy{}, fmt.Errorf("%q: want %s, %s or the URL of a proxy, such as http://proxy.example:3128", redact.MaskURL(text), ProxyEnv, ProxyNone)
	case u.User != nil:
		return Proxy{}, fmt.Errorf("%q: a user or password would be shown with the settings: put the URL into the environment variable HTTPS_PROXY", redact.MaskURL(text))
	}
	return Proxy{text}, checkProxy(u)
}

func checkProxy(u *url.URL) error {
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return nil
	}
	return fmt.Errorf("proxy %s: scheme %q: want %s", redact.MaskURL(u.String()), u.Scheme, proxySchemes)
}

func (p Proxy) String() string { return cmp.Or(p.setting, ProxyEnv) }

// URL returns the proxy for a server; nil for none. target is the URL of the server.
func (p Proxy) URL(target *url.URL) (*url.URL, error) {
	switch p.setting {
	case ProxyNone:
		return nil, nil
	case "", ProxyEnv:
		return httpproxy.FromEnvironment().ProxyFunc()(target)
	}
	return url.Parse(p.setting)
}

// For returns the proxy for the server of an address, host:port, that is spoken to with gRPC; nil for none.
func (p Proxy) For(addr string) (*url.URL, error) {
	u, err := p.URL(&url.URL{Scheme: "https", Host: addr}) // also in plaintext, as gRPC's own clients do
	if err != nil || u == nil {
		return nil, err
	}
	return u, checkProxy(u)
}

// DialFunc connects to an address; it has the form of net.Dialer.DialContext.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// DialContext makes a DialFunc what package golang.org/x/net/proxy wants.
func (f DialFunc) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	return f(ctx, network, addr)
}

// Dial is DialContext without a context.
func (f DialFunc) Dial(network, addr string) (net.Conn, error) {
	return f(context.Background(), network, addr)
}

// Through connects to an address, host:port, through a proxy, to which connect connects. The proxy resolves the name, except with socks5. The
// error does not contain the proxy's credentials.
func Through(ctx context.Context, through *url.URL, connect DialFunc, addr string) (net.Conn, error) {
	conn, err := connectThrough(ctx, through, connect, addr)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", redact.MaskURL(through.String()), err)
	}
	return conn, nil
}

func connectThrough(ctx context.Context, through *url.URL, connect DialFunc, addr string) (net.Conn, error) {
	if strings.HasPrefix(through.Scheme, "socks5") {
		socks, err := proxy.FromURL(through, connect)
		if err != nil {
			return nil, err
		}
		return socks.(proxy.ContextDialer).DialContext(ctx, "tcp", addr)
	}
	port := cmp.Or(through.Port(), map[string]string{"http": "80", "https": "443"}[through.Scheme])
	conn, err := connect(ctx, "tcp", net.JoinHostPort(through.Hostname(), port))
	if err != nil {
		return nil, err
	}
	if through.Scheme == "https" {
		conn = tls.Client(conn, &tls.Config{ServerName: through.Hostname(), MinVersion: tls.VersionTLS12})
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	conn, err = ask(conn, through, addr)
	if !stop() && err == nil {
		_ = conn.Close()
		return nil, ctx.Err()
	}
	return conn, err
}

// ask asks an HTTP proxy for a connection to an address (RFC 9110, section 9.3.6).
func ask(conn net.Conn, through *url.URL, addr string) (net.Conn, error) {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: make(http.Header)}
	if user := through.User; user != nil {
		password, _ := user.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	// The other side speaks first in no protocol that comes after this, but a proxy may send more than its answer at once.
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, req)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = conn.Close()
		return nil, fmt.Errorf("it does not connect to %s: %s", addr, redact.Line(resp.Status))
	}
	return &tunnel{conn, from}, nil
}

// tunnel is a connection of which some bytes were read already.
type tunnel struct {
	net.Conn
	from io.Reader
}

func (t *tunnel) Read(b []byte) (int, error) { return t.from.Read(b) }
