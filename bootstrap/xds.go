package bootstrap

import (
	"fmt"
	"slices"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// Envoy's default back-off of 500 ms to 30 s is meant for a remote control plane; it would delay the reconnection after
	// a restart of the agent by seconds (protocol.md V13).
	retryBase = 50 * time.Millisecond
	retryMax  = 250 * time.Millisecond

	// Envoy detects a socket whose server hangs, such as a frozen agent, within the sum of both. The server must permit
	// pings this often (grpc-go's keepalive.EnforcementPolicy.MinTime is 5 minutes by default).
	keepaliveInterval = 30 * time.Second
	keepaliveTimeout  = 10 * time.Second

	connectTimeout = time.Second

	// Without ADS every EDS cluster and every secret uses its own stream (protocol.md V10). Envoy's default limit of 1024
	// requests to a cluster would leave the rest without configuration.
	maxStreams = 1 << 20

	httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
)

// addXDS adds the sources of LDS and CDS, and the clusters of the agent. Secrets use the same cluster; the bootstrap itself
// needs none.
func addXDS(b *bootstrapv3.Bootstrap, cfg Config) error {
	if err := cfg.XDS.check(); err != nil {
		return err
	}
	lds, cds := cfg.XDS.source(), cfg.XDS.source()
	lds.InitialFetchTimeout, cds.InitialFetchTimeout = durationpb.New(0), durationpb.New(0)
	b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{LdsConfig: lds, CdsConfig: cds}
	if cfg.XDS.Transport == ADS {
		b.DynamicResources.AdsConfig = cfg.XDS.service()
	}
	agent, err := agentCluster(cfg.XDS.Socket)
	if err != nil {
		return err
	}
	b.StaticResources = &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{agent}}
	if cfg.XDS.Transport == REST {
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, staticCluster(RESTClusterName, pipeAddress(cfg.XDS.Socket, 0)))
	}
	return nil
}

// check returns an error for settings that source and service cannot express.
func (x XDS) check() error {
	if err := checkSocketPath(x.Socket); err != nil {
		return fmt.Errorf("xDS %w", err)
	}
	switch {
	case !slices.Contains([]Transport{ADS, PerType, REST}, x.Transport):
		return fmt.Errorf("xDS transport %q is none of %s, %s and %s", x.Transport, ADS, PerType, REST)
	case x.Transport == REST && min(x.RefreshDelay, x.RequestTimeout) < time.Millisecond:
		return fmt.Errorf("refresh delay %s and request timeout %s of REST: want at least 1ms", x.RefreshDelay, x.RequestTimeout)
	case x.Transport != REST && x.Mode != Delta && x.Mode != SotW:
		return fmt.Errorf("xDS mode %q is neither %s nor %s", x.Mode, Delta, SotW)
	}
	return nil
}

// source returns the source of one resource type.
func (x XDS) source() *corev3.ConfigSource {
	source := &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3}
	if x.Transport == ADS {
		source.ConfigSourceSpecifier = &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}
	} else {
		source.ConfigSourceSpecifier = &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: x.service()}
	}
	return source
}

// service returns the agent as the server of one type or, for ADS, of all types.
func (x XDS) service() *corev3.ApiConfigSource {
	if x.Transport == REST {
		return &corev3.ApiConfigSource{
			TransportApiVersion: corev3.ApiVersion_V3,
			ApiType:             corev3.ApiConfigSource_REST,
			ClusterNames:        []string{RESTClusterName},
			RefreshDelay:        durationpb.New(x.RefreshDelay),
			RequestTimeout:      durationpb.New(x.RequestTimeout),
		}
	}
	service := &corev3.ApiConfigSource{TransportApiVersion: corev3.ApiVersion_V3, ApiType: corev3.ApiConfigSource_DELTA_GRPC}
	if x.Mode == SotW {
		service.ApiType = corev3.ApiConfigSource_GRPC
	}
	// A node has about 77 KB, mostly Envoy's list of extensions (protocol.md 8.10).
	service.SetNodeOnFirstMessageOnly = true
	service.GrpcServices = []*corev3.GrpcService{{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
			ClusterName: ClusterName,
			RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
				BaseInterval: durationpb.New(retryBase),
				MaxInterval:  durationpb.New(retryMax),
			}},
		}},
	}}
	return service
}

// agentCluster returns the static HTTP/2 cluster whose only endpoint is the agent's socket.
func agentCluster(socket string) (*clusterv3.Cluster, error) {
	options, err := pack(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
						ConnectionKeepalive: &corev3.KeepaliveSettings{
							Interval: durationpb.New(keepaliveInterval),
							Timeout:  durationpb.New(keepaliveTimeout),
						},
					},
				},
			},
		},
	})
	if err != nil {
		return nil, err
	}
	cluster := staticCluster(ClusterName, pipeAddress(socket, 0))
	cluster.TypedExtensionProtocolOptions = map[string]*anypb.Any{httpOptions: options}
	cluster.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxRequests:        wrapperspb.UInt32(maxStreams),
		MaxPendingRequests: wrapperspb.UInt32(maxStreams),
	}}}
	return cluster, nil
}

// staticCluster returns an HTTP/1.1 cluster with one endpoint.
func staticCluster(name string, address *corev3.Address) *clusterv3.Cluster {
	endpoint := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}}
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{endpoint}}},
		},
	}
}
