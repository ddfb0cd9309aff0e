// Command controlplane is the control plane of the tests: go-control-plane's server, with TLS, that asks the API server
// (TokenReview) whether the token of a stream is of the service account that it should be.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Where Kubernetes puts a pod's own token.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	listen := flag.String("listen", ":18000", "`ADDR` where xDS is served")
	cert := flag.String("cert", "", "PEM `FILE` of the certificate")
	key := flag.String("key", "", "PEM `FILE` of its key")
	audience := flag.String("audience", "xds.example", "`AUDIENCE` that a token must be for")
	user := flag.String("user", "", "`NAME` of the user that a token must be of")
	port := flag.Uint("port", 9080, "`PORT` of Envoy's listener")
	application := flag.String("application", "127.0.0.1:8080", "`ADDR` where Envoy sends requests")
	clusters := flag.Int("clusters", 0, "`NUMBER` of further clusters, with endpoints")
	flag.Parse()
	if err := serve(*listen, *cert, *key, reviewer{audience: *audience, user: *user}, snapshot(uint32(*port), *application, *clusters)); err != nil {
		log.Fatal(err)
	}
}

// anyNode gives all nodes the same.
type anyNode struct{}

func (anyNode) ID(*corev3.Node) string { return "" }

// snapshot makes Envoy listen on a port of all addresses and send everything to the application.
func snapshot(port uint32, application string, further int) map[resource.Type][]types.Resource {
	listener := xdstest.Listener("ingress", port, "ingress")
	listener.GetAddress().GetSocketAddress().Address = "0.0.0.0"
	all := map[resource.Type][]types.Resource{
		resource.ListenerType: {listener},
		resource.RouteType:    {xdstest.Route("ingress", "application")},
		resource.ClusterType:  {xdstest.Cluster("application", "")},
		resource.EndpointType: {xdstest.CLA("application", application)},
	}
	for i := range further {
		name := fmt.Sprintf("outbound|80||service-%05d.default.svc.cluster.local", i)
		all[resource.ClusterType] = append(all[resource.ClusterType], xdstest.Cluster(name, ""))
		all[resource.EndpointType] = append(all[resource.EndpointType], xdstest.CLA(name, fmt.Sprintf("10.99.%d.%d:8080", i/250, i%250+1)))
	}
	return all
}

func serve(listen, cert, key string, tokens reviewer, resources map[resource.Type][]types.Resource) error {
	made, err := cache.NewSnapshot("1", resources)
	if err != nil {
		return err
	}
	snapshots := cache.NewSnapshotCache(true, anyNode{}, nil)
	if err := snapshots.SetSnapshot(context.Background(), "", made); err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	if tokens.client, err = apiClient(); err != nil {
		return err
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)), grpc.StreamInterceptor(tokens.intercept))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(srv, server.NewServer(context.Background(), snapshots, nil))
	lis, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	log.Print("serving on ", lis.Addr())
	return srv.Serve(lis)
}

// apiClient trusts the API server's certificate.
func apiClient() (*http.Client, error) {
	pem, err := os.ReadFile(serviceAccount + "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}, nil
}

// reviewer lets only streams pass whose token the API server knows.
type reviewer struct {
	audience, user string
	client         *http.Client
}

func (r reviewer) intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := r.check(stream.Context()); err != nil {
		log.Print("refused: ", err)
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return next(srv, stream)
}

func (r reviewer) check(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return errors.New("no token")
	}
	token, ok := strings.CutPrefix(values[0], "Bearer ")
	if !ok {
		return errors.New("not a bearer token")
	}
	var review struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       struct {
			Token     string   `json:"token"`
			Audiences []string `json:"audiences"`
		} `json:"spec"`
		Status struct {
			Authenticated bool                      `json:"authenticated"`
			User          struct{ Username string } `json:"user"`
			Audiences     []string                  `json:"audiences"`
			Error         string                    `json:"error"`
		} `json:"status"`
	}
	review.APIVersion, review.Kind = "authentication.k8s.io/v1", "TokenReview"
	review.Spec.Token, review.Spec.Audiences = token, []string{r.audience}
	body, err := json.Marshal(review)
	if err != nil {
		return err
	}
	own, err := os.ReadFile(serviceAccount + "token")
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://kubernetes.default.svc/apis/authentication.k8s.io/v1/tokenreviews", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+string(own))
	resp, err := r.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(&review); err != nil {
		return err
	}
	switch {
	case resp.StatusCode != http.StatusCreated:
		return fmt.Errorf("TokenReview: %s", resp.Status)
	case !review.Status.Authenticated:
		return fmt.Errorf("the token is not valid: %s", review.Status.Error)
	case !slices.Contains(review.Status.Audiences, r.audience):
		return fmt.Errorf("the token is for %q", review.Status.Audiences)
	case r.user != "" && review.Status.User.Username != r.user:
		return fmt.Errorf("the token is of %s", review.Status.User.Username)
	}
	return nil
}
