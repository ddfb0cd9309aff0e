package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/reaper"
)

// Limits of what an application may answer, in bytes, and how many redirects are followed.
const (
	MaxHeader       = 64 << 10
	maxHealthAnswer = 64 << 10
	maxRedirects    = 10
)

// userAgent is sent with requests that have none of their own.
const userAgent = "holdfast-probe/1.0"

// Check is one attempt to find out whether the application is healthy. Its zero value is no Check.
type Check struct {
	// probe makes the attempt; a process that it starts is one of a reaper, which may be nil.
	probe func(context.Context, *reaper.Reaper) error
	text  string
}

// String returns what is probed, without headers and arguments, which may be secrets.
func (c Check) String() string { return c.text }

// IsZero reports whether there is nothing to probe.
func (c Check) IsZero() bool { return c.probe == nil }

// Dialer opens connections to an application.
type Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// DialFrom returns a Dialer that uses an address of this host; the zero value for any. Connections do not linger in TIME-WAIT,
// of which frequent probes would leave thousands (Kubernetes issue 89898).
func DialFrom(from netip.Addr) Dialer {
	d := &net.Dialer{}
	if from.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if tcp, ok := conn.(*net.TCPConn); ok && err == nil {
			_ = tcp.SetLinger(1) // seconds; an optimization
		}
		return conn, err
	}
}

// NewClient returns a client for probes. Like the kubelet, it opens a connection for each probe, sends no credentials of its
// own and does not verify certificates, and takes HTTP/2 if a server with TLS prefers it. redirect is its CheckRedirect.
func NewClient(dial Dialer, redirect func(next *http.Request, before []*http.Request) error) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            dial,
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true},
			ForceAttemptHTTP2:      true,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: MaxHeader,
		},
		CheckRedirect: redirect,
	}
}

// WithinHost follows redirects as the kubelet does: within the host only, and the redirect to another host is the answer.
func WithinHost(next *http.Request, before []*http.Request) error {
	switch {
	case next.URL.Hostname() != before[0].URL.Hostname():
		return http.ErrUseLastResponse
	case len(before) >= maxRedirects:
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	return nil
}

// HTTP succeeds if a GET is answered with a status from 200 to 399. As with the kubelet, the certificate of HTTPS is not
// verified, and redirects to the same host are followed; one to another host is a success. header may have a Host.
func HTTP(dial Dialer, to *url.URL, header http.Header) Check {
	client := NewClient(dial, WithinHost)
	if header = header.Clone(); header == nil {
		header = make(http.Header)
	}
	if header.Get("User-Agent") == "" {
		header.Set("User-Agent", userAgent)
	}
	return Check{text: to.Redacted(), probe: func(ctx context.Context, _ *reaper.Reaper) error {
		req := (&http.Request{Method: http.MethodGet, URL: to, Header: header, Host: header.Get("Host")}).WithContext(ctx)
		resp, err := client.Do(req)
		if err != nil {
			if of, ok := errors.AsType[*url.Error](err); ok {
				err = of.Err // without the URL, which Check has
			}
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode > 399 {
			return fmt.Errorf("the answer has the status %d", resp.StatusCode)
		}
		return nil
	}}
}

// TCP succeeds if a connection can be opened.
func TCP(dial Dialer, addr string) Check {
	return Check{text: "tcp://" + addr, probe: func(ctx context.Context, _ *reaper.Reaper) error {
		return AskTCP(ctx, dial, addr)
	}}
}

// AskTCP opens a connection once.
func AskTCP(ctx context.Context, dial Dialer, addr string) error {
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// GRPC succeeds if gRPC's health service says that a service is SERVING; "" stands for the server as a whole.
func GRPC(dial Dialer, addr, service string) Check {
	text := "grpc://" + addr
	if service != "" {
		text += "/" + service
	}
	return Check{text: text, probe: func(ctx context.Context, _ *reaper.Reaper) error { return AskGRPC(ctx, dial, addr, service, userAgent) }}
}

// AskGRPC asks gRPC's health service once, without TLS, as the kubelet does. The error says why the service is not SERVING.
func AskGRPC(ctx context.Context, dial Dialer, addr, service, userAgent string) error {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return dial(ctx, "tcp", addr) }),
		grpc.WithUserAgent(userAgent),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxHealthAnswer)),
	)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return errors.New("the server does not have the health service of gRPC (grpc.health.v1.Health)")
	case err != nil:
		return err
	case answer.GetStatus() != healthpb.HealthCheckResponse_SERVING:
		return fmt.Errorf("the service %q is %s", service, answer.GetStatus())
	}
	return nil
}

// Exec succeeds if a command exits with 0. The process and its children end with the attempt, except children that have left
// its process group. It has the environment of this process without the settings of holdfast. There must be a command. Its
// attempts must not overlap.
func Exec(args []string) Check {
	return Check{text: "exec:" + args[0], probe: (&command{args: args}).run}
}

// join returns host:port.
func join(host string, port uint32) string {
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}
