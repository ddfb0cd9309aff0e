package dial

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Explain adds to the error of a connection, or of a call on it, what may have been meant, and which flag says so. It returns err itself if it
// has nothing to say. gRPC passes on the errors of TLS and HTTP as text only; those texts are measured with real servers
// (TestAMistakeInTheConnectionNamesTheFlag in package upstream).
func (s Security) Explain(err error) error {
	if err == nil {
		return nil
	}
	if hint := s.hint(err); hint != "" {
		return fmt.Errorf("%w (%s)", err, hint)
	}
	return err
}

func (s Security) hint(err error) string {
	text := err.Error()
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	switch code := status.Code(err); {
	case errors.As(err, new(tls.RecordHeaderError)), has("first record does not look like a TLS handshake"):
		return "the server does not speak TLS on this port: is it another port, or does " + s.flag("plaintext") + " belong here?"
	case has("missing selected ALPN property"):
		return "the server negotiates no protocol (ALPN), which gRPC requires: enable HTTP/2 in it, or set the environment variable GRPC_ENFORCE_ALPN_ENABLED=false for holdfast"
	case has("looked like an HTTP/1.1 header", "unexpected HTTP status code received from server"):
		if s.Flags != "" { // no other servers are polled
			return "the server speaks HTTP, but not gRPC, on this port: is it another port?"
		}
		return "the server speaks HTTP, but not gRPC, on this port: is it another port, or is REST meant (http://HOST or https://HOST)?"
	case s.Plaintext && has("error reading server preface"):
		return "the server closed the connection instead of speaking gRPC: does it require TLS? Then leave " + s.flag("plaintext") + " out"
	case errors.As(err, new(x509.UnknownAuthorityError)), has("certificate signed by unknown authority"):
		return s.flag("ca") + " names the file of the CA that the server's certificate leads to"
	case errors.As(err, new(x509.HostnameError)), has("x509: certificate is valid for", "x509: cannot validate certificate for", "x509: certificate is not valid for any names"):
		return s.flag("server-name") + " sets the name that the certificate must have, " + s.flag("san") + " another name or URI in it"
	case s.Cert == "" && has("tls: certificate required", "tls: bad certificate", "remote error: tls: handshake failure"):
		return "the server requires a client certificate: " + s.flag("cert") + " and " + s.flag("key")
	case code == codes.Unauthenticated && s.TokenFile == "" && s.Cert == "":
		return "it is shown neither a token nor a certificate: " + s.flag("token-file") + ", or " + s.flag("cert") + " and " + s.flag("key")
	}
	return ""
}
