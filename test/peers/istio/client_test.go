package istio

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// outcome is what became of a request.
type outcome struct {
	// Status is that of the answer, or "closed" if there was none.
	Status  string
	Headers map[string]string
	Body    string
	// Certificate is the common name of the server's certificate, for HTTPS.
	Certificate string
	// Seen are the requests that backends got, in order.
	Seen []seen
	// Recorded says how many records match each expectation, and unrecorded which expectations are not met.
	Recorded, unrecorded []string
	// err is why there was no answer.
	err error
}

// tags numbers all requests of the process.
var tags atomic.Int64

// world is what the requests of a test meet beside the Envoy.
type world struct {
	*backends
	ca    *authority
	certs map[string]tls.Certificate // that clients may present
	collectors
	hits int // requests that came to a backend, with istiod
}

// run sends a request as often as it says.
func (w *world) run(r *request) []*outcome {
	out := make([]*outcome, r.times)
	if r.until {
		// What it comes to is compared.
		_ = eventually(5*time.Second, func() error {
			if out[0] = w.send(r); len(r.unmet(out)) > 0 {
				return io.ErrNoProgress
			}
			return nil
		})
		return out
	}
	if !r.parallel {
		for i := range out {
			out[i] = w.send(r)
		}
		out[0].Recorded, out[0].unrecorded = w.collectors.expect(r.want.records)
		return out
	}
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() { out[i] = w.send(r) })
	}
	wg.Wait()
	return out
}

func (w *world) send(r *request) *outcome {
	tag := strconv.FormatInt(tags.Add(1), 10)
	if r.method == "TCP" || r.method == "TLS" {
		return w.sendTCP(r)
	}
	o := w.sendHTTP(r, tag)
	if len(r.want.mirrored) > 0 {
		// Requests are mirrored without waiting for them. Whether they came is compared.
		_ = eventually(5*time.Second, func() error {
			if len(w.take(tag)) < 1+len(r.want.mirrored) {
				return io.ErrNoProgress
			}
			return nil
		})
	}
	o.Seen = w.take(tag)
	return o
}

// sendHTTP sends a request on a connection of its own.
func (w *world) sendHTTP(r *request, tag string) *outcome {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	dialer, address := r.dialer()
	req := (&http.Request{
		Method: r.method, URL: &url.URL{Scheme: r.url.Scheme, Host: address, Opaque: r.path}, Host: r.url.Hostname(),
		Header: make(http.Header), ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	req.Header.Set("User-Agent", "test")
	req.Header.Set(tagHeader, tag)
	for _, h := range r.headers {
		if strings.EqualFold(h[0], "Host") {
			req.Host = h[1]
			continue
		}
		req.Header.Add(h[0], h[1])
	}
	transport := &http.Transport{DialContext: r.dial(dialer), DisableCompression: true, DisableKeepAlives: r.proto != "h2c", Protocols: new(http.Protocols)}
	defer transport.CloseIdleConnections()
	if r.proto == "h2c" {
		transport.Protocols.SetUnencryptedHTTP2(true)
	} else {
		transport.Protocols.SetHTTP1(true)
	}
	if r.url.Scheme == "https" {
		transport.TLSClientConfig = w.clientTLS(r)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return &outcome{Status: "closed", err: err}
	}
	defer resp.Body.Close()
	o := &outcome{Status: strconv.Itoa(resp.StatusCode), Headers: make(map[string]string), Body: readAll(resp.Body)}
	for key, values := range resp.Header {
		o.Headers[strings.ToLower(key)] = strings.Join(values, ",")
	}
	if resp.TLS != nil {
		o.Certificate = resp.TLS.PeerCertificates[0].Subject.CommonName
	}
	return o
}

// clientTLS returns the settings of the TLS of a request. Whose certificate the server has, is compared.
func (w *world) clientTLS(r *request) *tls.Config {
	conf := &tls.Config{InsecureSkipVerify: true, ServerName: r.url.Hostname()}
	if r.sni != "" {
		conf.ServerName = r.sni
	}
	if r.cert != "" {
		cert := w.certs[r.cert] // sent even if the server says that it trusts others only
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	if r.tls12 {
		conf.MaxVersion = tls.VersionTLS12
	}
	if r.alpn != "" {
		conf.NextProtos = strings.Split(r.alpn, ",")
	}
	return conf
}

// sendTCP sends a line and reads one, over TLS if the method is TLS.
func (w *world) sendTCP(r *request) *outcome {
	dialer, address := r.dialer()
	conn, err := dialer.Dial("tcp", address)
	if err == nil && r.method == "TLS" {
		conn = tls.Client(conn, w.clientTLS(r))
	}
	if err != nil {
		return &outcome{Status: "closed", err: err}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		return &outcome{Status: "closed", err: err}
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return &outcome{Status: "closed", err: err}
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	return &outcome{Status: "ok", Body: rest, Seen: []seen{{Backend: name, Proto: "TCP"}}}
}

// dialer returns how to connect, and where to.
func (r *request) dialer() (*net.Dialer, string) {
	d := &net.Dialer{Timeout: 5 * time.Second}
	if r.from != "" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(captures[r.from].source, 0))
	}
	return d, net.JoinHostPort(cmp.Or(r.to, "127.0.0.1"), strconv.Itoa(r.port))
}

// dial returns how a transport connects: a PROXY header comes first, if there shall be one.
func (r *request) dial(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, address)
		if err == nil && r.proxied != "" {
			_, err = fmt.Fprintf(conn, "PROXY TCP4 %s 127.0.0.1 1000 %d\r\n", r.proxied, r.port)
		}
		return conn, err
	}
}
