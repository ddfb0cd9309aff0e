package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"

	grpccredentials "google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
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
	info := authInfo{CommonAuthInfo: grpccredentials.CommonAuthInfo{SecurityLevel: grpccredentials.NoSecurity}}
	if first, ok := c.(*sniffed); ok {
		if secure, ok := first.Conn.(*tls.Conn); ok {
			info.SecurityLevel = grpccredentials.PrivacyAndIntegrity
			if chains := secure.ConnectionState().VerifiedChains; len(chains) > 0 {
				info.certificate = chains[0][0]
			}
		}
	}
	return c, info, nil
}

// authInfo is what is known of the client of a connection.
type authInfo struct {
	grpccredentials.CommonAuthInfo
	certificate *x509.Certificate // verified; nil for none
}

// AuthType implements credentials.AuthInfo.
func (authInfo) AuthType() string { return "tls" }

// certificateOf returns the verified certificate of the client of a call; nil for none.
func certificateOf(ctx context.Context) *x509.Certificate {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(authInfo); ok {
			return info.certificate
		}
	}
	return nil
}
