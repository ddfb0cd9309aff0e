package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/dial"
)

const (
	// askTimeout is how long a command waits for the status of a server, and compareTimeout for a comparison of configurations.
	askTimeout     = 10 * time.Second
	compareTimeout = time.Minute
)

// admin is the admin address of a server, and what a command proves there.
type admin struct{ addr, ca, cert, key string }

// add adds the flags.
func (a *admin) add(flags *pflag.FlagSet) {
	flags.StringVar(&a.addr, "admin", defaultAdmin, "`ADDR` of the server's --admin: host:port or unix:PATH")
	flags.StringVar(&a.cert, "admin-cert", "", "PEM `FILE` of a certificate and its chain, for an --admin with --admin-client-ca; with --admin-key")
	flags.StringVar(&a.key, "admin-key", "", "PEM `FILE` of the private key of --admin-cert")
	flags.StringVar(&a.ca, "admin-ca", "", "PEM `FILE` of the CAs to trust for the certificate of --admin; empty: those of the system")
}

// ask gets a path.
func (a *admin) ask(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, nil, askTimeout, into)
}

// send posts JSON.
func (a *admin) send(ctx context.Context, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return a.do(ctx, http.MethodPost, path, text, compareTimeout, into)
}

// do sends a request, and decodes the answer.
func (a *admin) do(ctx context.Context, method, path string, body []byte, timeout time.Duration, into any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	scheme, host, transport, err := a.transport()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, scheme+"://"+host+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("--admin %q: want host:port or unix:PATH", a.addr)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return cli.Failed(fmt.Errorf("no answer from %s: %w (is holdfast-mesh running there? --admin names its address)", a.addr, errors.Unwrap(err)))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		said := strings.TrimSpace(string(text))
		if strings.Contains(said, "HTTP request to an HTTPS server") { // of net/http
			said += " Give --admin-cert, --admin-key and --admin-ca: this address wants a certificate"
		}
		return cli.Failed(fmt.Errorf("%s answers %s: %s", a.addr, resp.Status, said))
	}
	return cli.Failed(json.NewDecoder(resp.Body).Decode(into))
}

// transport returns how the address is reached, and what stands in a URL for it.
func (a *admin) transport() (scheme, host string, t *http.Transport, err error) {
	t = &http.Transport{DisableKeepAlives: true}
	path, unix := strings.CutPrefix(a.addr, "unix:")
	switch {
	case (a.cert == "") != (a.key == ""):
		return "", "", nil, errors.New("--admin-cert and --admin-key go together: give both or none")
	case unix && (a.cert != "" || a.ca != ""):
		return "", "", nil, errors.New("--admin-cert and --admin-ca are for an --admin at host:port: at a Unix socket there is no TLS")
	case unix:
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		return "http", "localhost", t, nil
	case a.cert == "" && a.ca == "":
		return "http", a.addr, t, nil
	case a.cert == "":
		return "", "", nil, errors.New("--admin-ca: an --admin with TLS wants a certificate: give --admin-cert and --admin-key")
	}
	pair, err := dial.KeyPair(a.cert, a.key)
	if err != nil {
		return "", "", nil, fmt.Errorf("--admin-cert, --admin-key: %w", err)
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	if a.ca != "" {
		if t.TLSClientConfig.RootCAs, err = dial.CertPool(a.ca); err != nil {
			return "", "", nil, fmt.Errorf("--admin-ca: %w", err)
		}
	}
	return "https", a.addr, t, nil
}
