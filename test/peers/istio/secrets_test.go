package istio

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
)

// secretServer is in the place of the agent beside an Envoy: it answers for the workload's
// certificate ("default"), the roots of the mesh ("ROOTCA"), and for files by the names that Istio
// gives them.
type secretServer struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	dir string
}

// startSecrets serves secrets, and returns the address.
func startSecrets(t *testing.T, dir string) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	srv := grpc.NewServer()
	secretv3.RegisterSecretDiscoveryServiceServer(srv, &secretServer{dir: dir})
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	return lis.Addr().String()
}

// StreamSecrets answers each subscription once.
func (s *secretServer) StreamSecrets(stream secretv3.SecretDiscoveryService_StreamSecretsServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil // Envoy has closed the stream
		}
		if req.GetResponseNonce() != "" {
			continue
		}
		resp := &discoveryv3.DiscoveryResponse{TypeUrl: req.GetTypeUrl(), VersionInfo: "1", Nonce: "1"}
		for _, name := range req.GetResourceNames() {
			secret, err := s.secret(name)
			if err != nil {
				return err
			}
			packed, err := anypb.New(secret)
			if err != nil {
				return err
			}
			resp.Resources = append(resp.Resources, packed)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// secret returns a secret by its name.
func (s *secretServer) secret(name string) (*tlsv3.Secret, error) {
	switch kind, rest, _ := strings.Cut(name, ":"); kind {
	case "default":
		return certificate(name, filepath.Join(s.dir, "client.pem"), filepath.Join(s.dir, "client.key"))
	case "ROOTCA":
		return roots(name, filepath.Join(s.dir, "ca.pem"))
	case "file-cert":
		cert, key, ok := strings.Cut(rest, "~")
		if !ok {
			return nil, fmt.Errorf("%q has no key", name)
		}
		return certificate(name, cert, key)
	case "file-root":
		if rest == "system" {
			return roots(name, filepath.Join(s.dir, "other.pem"))
		}
		return roots(name, strings.Split(rest, "~")[0])
	}
	return nil, fmt.Errorf("no secret %q", name)
}

func certificate(name, cert, key string) (*tlsv3.Secret, error) {
	c, err := inline(cert)
	if err != nil {
		return nil, err
	}
	k, err := inline(key)
	if err != nil {
		return nil, err
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: c, PrivateKey: k}}}, nil
}

func roots(name, path string) (*tlsv3.Secret, error) {
	ca, err := inline(path)
	if err != nil {
		return nil, err
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: ca}}}, nil
}

func inline(path string) (*corev3.DataSource, error) {
	b, err := os.ReadFile(path)
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}, err
}
