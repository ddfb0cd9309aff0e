package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"

	"google.golang.org/grpc"
	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/holdfast-xds/holdfast/internal/listener"
)

// handshake is gRPC's credentials of the server. If there is a TLS handshake the listener has made it,
// so that REST has it, too; gRPC only needs to know the client's certificate.
type handshake struct {
	grpccredentials.TransportCredentials
}

func newHandshake() handshake { return handshake{insecure.NewCredentials()} }

// Clone implements credentials.TransportCredentials.
func (h handshake) Clone() grpccredentials.TransportCredentials { return h }

// ServerHandshake implements credentials.TransportCredentials.
func (handshake) ServerHandshake(c net.Conn) (net.Conn, grpccredentials.AuthInfo, error) {
	info := authInfo{conn: listener.Of(c), CommonAuthInfo: grpccredentials.CommonAuthInfo{SecurityLevel: grpccredentials.NoSecurity}}
	var secure bool
	if conn, ok := listener.Under[*departing](c); ok {
		info.leaving = conn.leaving
	}
	if secure, info.certificate = shown(c); secure {
		info.SecurityLevel = grpccredentials.PrivacyAndIntegrity
	}
	return c, info, nil
}

// shown reports whether a connection is encrypted, and returns the verified certificate of its client; nil for
// none.
func shown(c net.Conn) (secure bool, certificate *x509.Certificate) {
	conn, ok := listener.Under[*tls.Conn](c)
	if !ok {
		return false, nil
	}
	if chains := conn.ConnectionState().VerifiedChains; len(chains) > 0 {
		certificate = chains[0][0]
	}
	return true, certificate
}

// connectionKey is the key of a connection in the context of a request by REST.
type connectionKey struct{}

// credentialsOfREST is CredentialsOf for a request by REST.
func credentialsOfREST(r *http.Request) (c Credentials) {
	c.Authorization = r.Header.Values("Authorization")
	if conn, ok := r.Context().Value(connectionKey{}).(net.Conn); ok {
		c.Secure, c.Certificate = shown(conn)
	}
	return c
}

// authInfo is what is known of the client of a connection.
type authInfo struct {
	grpccredentials.CommonAuthInfo
	certificate *x509.Certificate // verified; nil for none
	conn        *listener.Conn    // nil for one without bounds
	leaving     <-chan struct{}   // closed when the connection has got a GOAWAY; nil for never
}

// AuthType implements credentials.AuthInfo.
func (authInfo) AuthType() string { return "tls" }

// Credentials are what a client shows of who it is.
type Credentials struct {
	// Secure reports whether the connection is encrypted, and the client knows whom it talks to.
	Secure bool
	// Certificate is the certificate with which the client authenticated, which the listener has
	// verified; nil for none.
	Certificate *x509.Certificate
	// Authorization are the values of the header of that name.
	Authorization []string
}

// CredentialsOf returns the credentials of the client of a call to a Server, also for services of
// Config.Register.
func CredentialsOf(ctx context.Context) (c Credentials) {
	c.Authorization = metadata.ValueFromIncomingContext(ctx, "authorization")
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(authInfo); ok {
			c.Secure, c.Certificate = info.SecurityLevel == grpccredentials.PrivacyAndIntegrity, info.certificate
		}
	}
	return c
}

// busyStream and busyCall tell the listener that a connection has a call.
func busyStream(srv any, g grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	conn := connOf(g.Context())
	conn.Begin()
	defer conn.End()
	return handle(srv, g)
}

func busyCall(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	conn := connOf(ctx)
	conn.Begin()
	defer conn.End()
	return handle(ctx, req)
}

// connOf returns the connection of a call; nil for one without bounds.
func connOf(ctx context.Context) *listener.Conn {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	info, _ := p.AuthInfo.(authInfo)
	return info.conn
}
