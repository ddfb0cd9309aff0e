package e2e

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/xds"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// A proxyless gRPC client and server take their configuration from the same agent
// as Envoy does, each as a client of its own kind.
func TestProxylessGRPCIsServedBesideEnvoy(t *testing.T) {
	for _, above := range xdstest.Protocols() {
		t.Run(string(above)+" above", func(t *testing.T) {
			w := newWorld(t, above, xdstest.Delta)
			w.start()
			grpcBootstrap := w.grpcBootstrap()

			server, err := xds.NewGRPCServer(xds.BootstrapContentsForTesting(grpcBootstrap))
			w.check(err)
			healthgrpc.RegisterHealthServer(server, health.NewServer())
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			w.check(err)
			w.cp.Set(
				serverListener(lis.Addr().(*net.TCPAddr)),
				xdstest.APIListener("echo", "echo-route"), grpcRoute("echo-route", "echo", "echo-cluster"),
				xdstest.Cluster("echo-cluster", "echo-endpoints"), xdstest.LocalizedCLA("echo-endpoints", lis.Addr().String()),
			)
			go func() { _ = server.Serve(lis) }()
			defer server.Stop()

			resolver, err := xds.NewXDSResolverWithConfigForTesting(grpcBootstrap)
			w.check(err)
			conn, err := grpc.NewClient("xds:///echo", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
			w.check(err)
			defer func() { _ = conn.Close() }()
			call := func() {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := healthgrpc.NewHealthClient(conn).Check(ctx, &healthgrpc.HealthCheckRequest{}, grpc.WaitForReady(true))
				w.check(err)
			}
			call()
			// gRPC is not Envoy, so that the agent speaks upstream for each.
			if now, _ := w.cp.Streams(); now != 2 {
				t.Errorf("%d streams upstream, want one for Envoy and one for gRPC", now)
			}
			// The control plane may go, and a new client still resolves.
			w.cp.Stop()
			time.Sleep(100 * time.Millisecond)
			again, err := grpc.NewClient("xds:///echo", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(insecure.NewCredentials()))
			w.check(err)
			defer func() { _ = again.Close() }()
			conn = again
			call()
			w.serves("v1")
		})
	}
}

// grpcBootstrap lets holdfast write the bootstrap of gRPC.
func (w *world) grpcBootstrap() []byte {
	w.Helper()
	file := w.path("grpc.json")
	out, err := exec.Command(holdfast(w.T), "bootstrap", "--grpc-out", file, "--node-id", "e2e", "--node-cluster", "e2e",
		"--socket", w.path("xds.sock")).CombinedOutput()
	if err != nil {
		w.Fatalf("holdfast bootstrap: %v\n%s", err, out)
	}
	b, err := os.ReadFile(file)
	w.check(err)
	return b
}

func grpcRoute(name, domain, cluster string) *routev3.RouteConfiguration {
	r := xdstest.Route(name, cluster)
	r.VirtualHosts[0].Domains = []string{domain}
	r.VirtualHosts[0].Routes[0].Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{}}
	return r
}

// serverListener is what a gRPC server asks for by its address.
func serverListener(addr *net.TCPAddr) *listenerv3.Listener {
	manager := &hcmv3.HttpConnectionManager{
		StatPrefix:  "inbound",
		HttpFilters: xdstest.RouterOnly(),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "inbound",
			VirtualHosts: []*routev3.VirtualHost{{
				Name: "all", Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
					Action: &routev3.Route_NonForwardingAction{NonForwardingAction: &routev3.NonForwardingAction{}},
				}},
			}},
		}},
	}
	name := bootstrap.ServerListenerTemplate[:len(bootstrap.ServerListenerTemplate)-len("%s")] + addr.String()
	return &listenerv3.Listener{
		Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: addr.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(addr.Port)},
		}}},
		FilterChains: []*listenerv3.FilterChain{{
			Name: "all",
			Filters: []*listenerv3.Filter{{
				Name:       "hcm",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(manager)},
			}},
		}},
	}
}
