// Package dial configures connections to gRPC and HTTP servers: the address, the proxy, TLS with files that are
// read again for each attempt, and a bearer token. The clients for control planes and for CAs use it,
// each with its own flag names. For servers of ours it configures TLS.
//
// It promises that a configuration error names the flag. It does not connect. All functions may be
// called concurrently.
package dial

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// Security configures how a server is reached and authenticated. Files are read again for each attempt,
// so that they can be rotated.
type Security struct {
	// Flags is the prefix of the flags that errors name: "istio" for --istio-ca; "" for "upstream".
	Flags string
	// Plaintext disables encryption. Without it TLS is used, except on a Unix socket, which the file
	// system protects.
	Plaintext bool
	// CA is a file of PEM certificates that the server's certificate must lead to; "" for those of the
	// system.
	CA string
	// Cert and Key are files with the client's certificate chain and its key; both or none.
	Cert, Key string
	// ServerName is sent as SNI and compared with the certificate; "" for the host of the address.
	ServerName string
	// SANs, if any, replace the comparison of the server name: one of them must be a DNS name, URI, IP
	// address or e-mail address of the certificate.
	SANs []string
	// TokenFile contains a bearer token; "" for none.
	TokenFile string
	// Shown, if set, is called with the end of the validity of Cert whenever it is read for an attempt.
	Shown func(end time.Time)
}

// flag returns the name of a flag.
func (s Security) flag(name string) string {
	return "--" + cmp.Or(s.Flags, "upstream") + "-" + name
}

// Check returns an error for contradicting settings.
func (s Security) Check() error {
	if (s.Cert == "") != (s.Key == "") {
		return fmt.Errorf("%s and %s go together: give both or none", s.flag("cert"), s.flag("key"))
	}
	if !s.Plaintext {
		return nil
	}
	for _, f := range []struct{ set, flag string }{
		{s.CA, "ca"},
		{s.Cert, "cert"},
		{s.ServerName, "server-name"},
		{strings.Join(s.SANs, ","), "san"},
	} {
		if f.set != "" {
			return fmt.Errorf("%s has no meaning with %s: leave one of them out", s.flag(f.flag), s.flag("plaintext"))
		}
	}
	return nil
}

// Transport returns the credentials of one gRPC connection.
func (s Security) Transport() (credentials.TransportCredentials, error) {
	cfg, err := s.TLS()
	switch {
	case err != nil:
		return nil, err
	case cfg == nil:
		return insecure.NewCredentials(), nil
	}
	return credentials.NewTLS(cfg), nil
}

// TLS reads the files and returns the TLS configuration, nil for plaintext. The minimum version is TLS
// 1.2.
func (s Security) TLS() (*tls.Config, error) {
	if s.Plaintext {
		return nil, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: s.ServerName}
	if s.CA != "" {
		var err error
		if cfg.RootCAs, err = CertPool(s.CA); err != nil {
			return nil, fmt.Errorf("%s: %w", s.flag("ca"), err)
		}
	}
	if s.Cert != "" {
		pair, err := KeyPair(s.Cert, s.Key)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", s.flag("cert"), s.flag("key"), err)
		}
		cfg.Certificates = []tls.Certificate{pair}
		if s.Shown != nil {
			s.Shown(pair.Leaf.NotAfter)
		}
	}
	if len(s.SANs) > 0 {
		// The standard verification only supports one host name. verify verifies the chain
		// in the same way, and then compares the names with SANs.
		cfg.InsecureSkipVerify = true
		cfg.VerifyConnection = s.verify(cfg.RootCAs)
	}
	return cfg, nil
}

// CertPool reads the certificates in a file.
func CertPool(file string) (*x509.CertPool, error) {
	pem, err := userfile.Read(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no PEM certificate", file)
	}
	return pool, nil
}

// KeyPair reads a certificate with its chain, and its key.
func KeyPair(cert, key string) (tls.Certificate, error) {
	chain, err := userfile.Read(cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	private, err := userfile.ReadSecret(key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(chain, private)
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
		if slices.ContainsFunc(s.SANs, func(want string) bool { return slices.Contains(names, want) }) {
			return nil
		}
		return fmt.Errorf("certificate names %s, and none of them is one of %s %s",
			strings.Join(names, ", "), s.flag("san"), strings.Join(s.SANs, ", "))
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

// Token reads the bearer token; "" if none is configured.
func (s Security) Token() (string, error) {
	if s.TokenFile == "" {
		return "", nil
	}
	b, err := userfile.ReadSecret(s.TokenFile)
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.flag("token-file"), err)
	}
	token := strings.TrimSpace(string(b))
	switch {
	case token == "":
		return "", fmt.Errorf("%s: %s is empty", s.flag("token-file"), s.TokenFile)
	case strings.ContainsAny(token, "\r\n"):
		return "", fmt.Errorf("%s: %s holds more than one line", s.flag("token-file"), s.TokenFile)
	}
	return token, nil
}

// CheckCredentials returns an error for an address that contains a user and password, because addresses
// are shown in logs, metrics and status. The error does not contain them.
func CheckCredentials(what, addr string) error {
	masked := redact.MaskURL(addr)
	if masked == addr {
		return nil
	}
	return fmt.Errorf("%s %q: a user or password in the address would be shown in logs and metrics: leave it out, and send it as a header (--upstream-header, --istio-header) or as a token (--upstream-token-file, --istio-token-file)", what, masked)
}

// Target converts an address to a gRPC target, and reports whether it is a Unix socket. what names the
// type of server in errors, such as "upstream", and want the accepted forms of addresses.
func Target(what, want, addr string) (target string, unix bool, err error) {
	if err := CheckCredentials(what, addr); err != nil {
		return "", false, err
	}
	switch {
	case strings.HasPrefix(addr, "unix:"):
		path := strings.TrimPrefix(strings.TrimPrefix(addr, "unix:"), "//")
		if path == "" {
			return "", false, fmt.Errorf("%s %q: the path is missing", what, addr)
		}
		return "unix:" + path, true, nil
	case strings.HasPrefix(addr, "dns:"):
		if strings.TrimLeft(strings.TrimPrefix(addr, "dns:"), "/") == "" {
			return "", false, fmt.Errorf("%s %q: the host is missing", what, addr)
		}
		return addr, false, nil
	case strings.Contains(addr, "://"):
		return "", false, fmt.Errorf("%s %q: unknown scheme; want %s", what, addr, want)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return "", false, fmt.Errorf("%s %q: want %s", what, addr, want)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", false, fmt.Errorf("%s %q: port %q is not a number from 1 to 65535", what, addr, port)
	}
	if net.ParseIP(host) != nil {
		return "passthrough:///" + addr, false, nil
	}
	return "dns:///" + addr, false, nil
}
