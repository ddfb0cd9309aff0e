package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answer is one to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

// send makes a GET request on a connection of its own.
func send(url string) (answer, error) {
	return fetch(&http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}, url)
}

// ask makes a GET request to the agent's admin socket.
func (w *world) ask(path string) (answer, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.path("admin.sock"))
	}
	return fetch(&http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}, "http://holdfast"+path)
}

func fetch(client *http.Client, url string) (answer, error) {
	resp, err := client.Get(url)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

// metric returns the sum of a metric of the agent over all its labels; it fails if
// there is none of the name.
func (w *world) metric(name string) (sum float64, err error) {
	metrics, err := w.ask("/metrics")
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(metrics.body) {
		labels, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if !strings.HasPrefix(labels, name+"{") {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", line, err)
		}
		sum, found = sum+n, true
	}
	if !found {
		return 0, fmt.Errorf("there is no metric %s", name)
	}
	return sum, nil
}

// notReady returns nil if the agent says that it is not ready, for a reason with the
// text.
func (w *world) notReady(text string) error {
	got, err := w.ask("/readyz")
	if err == nil && (got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, text)) {
		err = fmt.Errorf("/readyz answers %d %q, want 503 with %q", got.status, got.body, text)
	}
	return err
}

// ready returns nil if the agent says that it is ready.
func (w *world) ready() error {
	got, err := w.ask("/readyz")
	if err == nil && got.status != http.StatusOK {
		err = fmt.Errorf("/readyz answers %d %q, want 200", got.status, got.body)
	}
	return err
}

// presented returns the chain that a new handshake shows, whoever asks.
func (w *world) presented() (chain []*x509.Certificate, err error) {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: 5 * time.Second}, "tcp", w.addr(), &tls.Config{
		InsecureSkipVerify: true,
		// Called before the server can refuse who asks.
		VerifyConnection: func(s tls.ConnectionState) error {
			chain = s.PeerCertificates
			return nil
		},
	})
	if err == nil {
		_ = conn.Close()
	}
	if chain != nil {
		return chain, nil
	}
	return nil, fmt.Errorf("no certificate is shown: %w", err)
}

// sameCertificate fails unless two certificates are one.
func sameCertificate(t T, what string, got, want *x509.Certificate) {
	t.Helper()
	if !bytes.Equal(got.Raw, want.Raw) {
		t.Fatalf("%s: serial %x, want %x", what, got.SerialNumber, want.SerialNumber)
	}
}
