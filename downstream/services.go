package downstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	runtimeservice "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"
	alphareflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// services are the discovery services, each with the only type that it serves, or "" for ADS.
// Their messages are the same, so that one implementation serves all of them; the generated
// descriptions contain the names of their methods.
var services = []struct {
	desc    *grpc.ServiceDesc
	typeURL string
}{
	{&discoveryv3.AggregatedDiscoveryService_ServiceDesc, ""},
	{&clusterservice.ClusterDiscoveryService_ServiceDesc, xds.ClusterType},
	{&endpointservice.EndpointDiscoveryService_ServiceDesc, xds.EndpointType},
	{&listenerservice.ListenerDiscoveryService_ServiceDesc, xds.ListenerType},
	{&routeservice.RouteDiscoveryService_ServiceDesc, xds.RouteType},
	{&routeservice.ScopedRoutesDiscoveryService_ServiceDesc, xds.ScopedRouteType},
	{&routeservice.VirtualHostDiscoveryService_ServiceDesc, xds.VirtualHostType},
	{&secretservice.SecretDiscoveryService_ServiceDesc, xds.SecretType},
	{&runtimeservice.RuntimeDiscoveryService_ServiceDesc, xds.RuntimeType},
	{&extensionservice.ExtensionConfigDiscoveryService_ServiceDesc, xds.ExtensionConfigType},
}

// register adds the discovery services, health, reflection, and Config.Register to a gRPC server.
func (s *Server) register(g *grpc.Server) {
	healthgrpc.RegisterHealthServer(g, health.NewServer()) // "" is SERVING
	// Like reflection.Register, but with all of Envoy's messages.
	known := reflection.ServerOptions{Services: g, DescriptorResolver: envoytypes.Resolver}
	reflectiongrpc.RegisterServerReflectionServer(g, reflection.NewServerV1(known))
	alphareflectiongrpc.RegisterServerReflectionServer(g, reflection.NewServer(known))
	if s.cfg.Register != nil {
		s.cfg.Register(g)
	}
	for _, service := range services {
		desc := *service.desc
		desc.HandlerType = (*any)(nil)
		desc.Streams = slices.Clone(desc.Streams)
		for i := range desc.Streams {
			desc.Streams[i].Handler = s.streamHandler(desc.Streams[i].StreamName, service.typeURL)
		}
		desc.Methods = slices.Clone(desc.Methods)
		for i := range desc.Methods {
			desc.Methods[i].Handler = s.fetchHandler(service.typeURL)
		}
		g.RegisterService(&desc, s)
	}
}

// streamHandler serves the streaming methods, which are named Delta… and Stream….
func (s *Server) streamHandler(method, typeURL string) grpc.StreamHandler {
	form := xds.SotW
	if strings.HasPrefix(method, "Delta") {
		form = xds.Delta
	}
	return func(_ any, g grpc.ServerStream) error { return s.serve(g, form, typeURL) }
}

// fetchHandler serves the unary methods.
func (s *Server) fetchHandler(typeURL string) grpc.MethodHandler {
	return func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var msg discoveryv3.DiscoveryRequest
		if err := decode(&msg); err != nil {
			return nil, err
		}
		resp, err := s.fetch(ctx, CredentialsOf(ctx), &msg, typeURL)
		if errors.Is(err, errCurrent) {
			err = status.Error(codes.Aborted, err.Error())
		}
		if err != nil {
			return nil, err
		}
		return resp.SotW(s.from)
	}
}

// implyType sets the type of a request on a service of a single type, where the client may leave
// it out, and rejects any other type.
func implyType(req *session.Request, typeURL string) error {
	switch {
	case typeURL == "" || req.Type == typeURL:
		return nil
	case req.Type == "":
		req.Type = typeURL
		return nil
	}
	return fmt.Errorf("request for %q on the service of %s", req.Type, xds.Short(typeURL))
}
