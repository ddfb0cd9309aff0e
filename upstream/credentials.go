package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Security says how an upstream is spoken to and who it must be. Files are read
// again at every attempt, so that they can be rotated.
type Security struct {
	// Plaintext sends everything in the clear. Without it TLS is used, but on a
	// Unix socket, which the file system protects.
	Plaintext bool
	// CA is a file of PEM certificates that an upstream's must lead to; "" for
	// the system's.
	CA string
	// Cert and Key are files with the client's certificate chain and its key;
	// both or none.
	Cert, Key string
	// ServerName is sent as SNI and checked against the certificate; "" for the
	// host of the address.
	ServerName string
	// SANs, if any, replace the check of the name: one of them must be a DNS
	// name, URI, IP address or e-mail address of the certificate.
	SANs []string
	// TokenFile holds a bearer token; "" for none.
	TokenFile string
}

// Check reports settings that contradict each other.
func (s Security) Check() error {
	if (s.Cert == "") != (s.Key == "") {
		return errors.New("--upstream-cert and --upstream-key go together: give both or none")
	}
	if !s.Plaintext {
		return nil
	}
	for _, f := range []struct{ set, flag string }{
		{s.CA, "--upstream-ca"},
		{s.Cert, "--upstream-cert"},
		{s.ServerName, "--upstream-server-name"},
		{strings.Join(s.SANs, ","), "--upstream-san"},
	} {
		if f.set != "" {
			return fmt.Errorf("%s has no meaning with --upstream-plaintext: leave one of them out", f.flag)
		}
	}
	return nil
}

// transport returns the credentials of one gRPC connection.
func (s Security) transport() (credentials.TransportCredentials, error) {
	cfg, err := s.tls()
	switch {
	case err != nil:
		return nil, err
	case cfg == nil:
		return insecure.NewCredentials(), nil
	}
	return credentials.NewTLS(cfg), nil
}

// tls reads the files and returns what a connection is secured with, nil for
// plaintext. TLS below 1.2 is refused.
func (s Security) tls() (*tls.Config, error) {
	if s.Plaintext {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName}
	if s.CA != "" {
		pem, err := os.ReadFile(s.CA)
		if err != nil {
			return nil, fmt.Errorf("--upstream-ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--upstream-ca: %s holds no PEM certificate", s.CA)
		}
	}
	if s.Cert != "" {
		pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
		if err != nil {
			return nil, fmt.Errorf("--upstream-cert, --upstream-key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if len(s.SANs) > 0 {
		// The standard check knows one host name; this one verifies the chain
		// in the same way and then the names that were asked for.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = s.verify(cfg.RootCAs)
	}
	return cfg, nil
}

func (s Security) verify(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		leaf := state.PeerCertificates[0]
		between := x509.NewCertPool()
		for _, c := range state.PeerCertificates[1:] {
			between.AddCert(c)
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err != nil {
			return err
		}
		names := certNames(leaf)
		for _, want := range s.SANs {
			if slices.Contains(names, want) {
				return nil
			}
		}
		return fmt.Errorf("certificate names %s, and none of them is one of --upstream-san %s",
			strings.Join(names, ", "), strings.Join(s.SANs, ", "))
	}
}

func certNames(c *x509.Certificate) []string {
	names := slices.Concat(c.DNSNames, c.EmailAddresses)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// token reads the bearer token; "" if none is configured.
func (s Security) token() (string, error) {
	if s.TokenFile == "" {
		return "", nil
	}
	b, err := os.ReadFile(s.TokenFile)
	if err != nil {
		return "", fmt.Errorf("--upstream-token-file: %w", err)
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return "", fmt.Errorf("--upstream-token-file: %s is empty", s.TokenFile)
	}
	if strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("--upstream-token-file: %s holds more than one line", s.TokenFile)
	}
	return token, nil
}

// target turns an address of --upstream into a gRPC target, and says whether it
// is a Unix socket.
func target(addr string) (target string, unix bool, err error) {
	switch {
	case strings.HasPrefix(addr, "unix:"):
		path := strings.TrimPrefix(strings.TrimPrefix(addr, "unix:"), "//")
		if path == "" {
			return "", false, fmt.Errorf("upstream %q: the path is missing", addr)
		}
		return "unix:" + path, true, nil
	case strings.HasPrefix(addr, "dns:"):
		if strings.TrimLeft(strings.TrimPrefix(addr, "dns:"), "/") == "" {
			return "", false, fmt.Errorf("upstream %q: the host is missing", addr)
		}
		return addr, false, nil
	case strings.Contains(addr, "://"):
		return "", false, fmt.Errorf("upstream %q: unknown scheme; want host:port, unix:PATH, dns:///HOST:PORT or file:DIR", addr)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return "", false, fmt.Errorf("upstream %q: want host:port, unix:PATH, dns:///HOST:PORT or file:DIR", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", false, fmt.Errorf("upstream %q: port %q is not a number from 1 to 65535", addr, port)
	}
	if net.ParseIP(host) != nil {
		return "passthrough:///" + addr, false, nil
	}
	return "dns:///" + addr, false, nil
}
