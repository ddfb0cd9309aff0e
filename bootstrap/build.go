package bootstrap

import (
	"fmt"
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

// Defaults of Config.
const (
	DefaultSocket = "/run/holdfast/xds.sock"
	DefaultAdmin  = "127.0.0.1:15000"
)

// ClusterName is the name of the static cluster that leads to the agent. Resources of a control plane may refer to it.
const ClusterName = "xds"

// Mode is the form of xDS that Envoy speaks to the agent.
type Mode string

// The modes.
const (
	Delta Mode = "delta" // incremental, the default: a change costs its own size, and a removal is said explicitly
	SotW  Mode = "sotw"  // state of the world
)

const (
	// Envoy's own back-off, 500 ms to 30 s, is made for a distant control plane; it would keep Envoy away for seconds
	// after the agent is back (protocol.md V13).
	retryBase = 50 * time.Millisecond
	retryMax  = 250 * time.Millisecond

	// A socket that nobody serves any more, such as that of a frozen agent, is noticed within the sum of both. The server
	// must allow pings this often (grpc-go's keepalive.EnforcementPolicy.MinTime is 5 minutes unless set).
	keepaliveInterval = 30 * time.Second
	keepaliveTimeout  = 10 * time.Second

	connectTimeout = time.Second

	// Without ADS every EDS cluster and every secret is a stream of its own (protocol.md V10), and Envoy's default of 1024
	// requests to a cluster would leave the rest without configuration.
	maxStreams = 1 << 20
)

// Config is what a bootstrap is made from. Empty fields have the defaults named here.
type Config struct {
	Node Node

	// Socket is the absolute path, of at most 107 bytes, of the agent's Unix socket: DefaultSocket.
	Socket string

	// XDSMode is Delta (the default) or SotW.
	XDSMode Mode

	// Admin is the address of Envoy's admin: "unix:PATH" or "host:port" on loopback; DefaultAdmin. Port 0 lets the system
	// choose (Envoy tells it with --admin-address-path).
	Admin string
}

// Build returns the bootstrap for cfg: its node, one static cluster over the agent's socket, LDS and CDS from ADS on it,
// and the admin address. Envoy waits for both without a limit: what the agent does not know yet it does not answer, and
// an Envoy that gave up waiting would go live with nothing (protocol.md V7). The result is new at each call.
func Build(cfg Config) (*bootstrapv3.Bootstrap, error) {
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	if cfg.Admin == "" {
		cfg.Admin = DefaultAdmin
	}
	node, err := cfg.Node.Proto()
	if err != nil {
		return nil, err
	}
	if err := checkSocketPath(cfg.Socket); err != nil {
		return nil, fmt.Errorf("bootstrap: xDS %w", err)
	}
	admin, err := adminAddress(cfg.Admin)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: admin address %w", err)
	}
	if admin.GetPipe().GetPath() == cfg.Socket {
		return nil, fmt.Errorf("bootstrap: admin address and xDS socket are both %q", cfg.Socket)
	}
	ads, err := adsConfig(cfg.XDSMode)
	if err != nil {
		return nil, err
	}
	cluster, err := agentCluster(cfg.Socket)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{
		Node:  node,
		Admin: &bootstrapv3.Admin{Address: admin},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: ads,
			LdsConfig: overADS(),
			CdsConfig: overADS(),
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{cluster}},
	}
	if err := Validate(b); err != nil {
		return nil, err
	}
	return b, nil
}

func adsConfig(mode Mode) (*corev3.ApiConfigSource, error) {
	ads := &corev3.ApiConfigSource{
		TransportApiVersion: corev3.ApiVersion_V3,
		// A node is some 77 KB, most of it Envoy's list of extensions (protocol.md 8.10).
		SetNodeOnFirstMessageOnly: true,
		GrpcServices: []*corev3.GrpcService{{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
				ClusterName: ClusterName,
				RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
					BaseInterval: durationpb.New(retryBase),
					MaxInterval:  durationpb.New(retryMax),
				}},
			}},
		}},
	}
	switch mode {
	case Delta, "":
		ads.ApiType = corev3.ApiConfigSource_DELTA_GRPC
	case SotW:
		ads.ApiType = corev3.ApiConfigSource_GRPC
	default:
		return nil, fmt.Errorf("bootstrap: xDS mode %q is neither %s nor %s", mode, Delta, SotW)
	}
	return ads, nil
}

func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(0),
	}
}

// agentCluster is the static cluster whose one endpoint is the agent's socket.
func agentCluster(socket string) (*clusterv3.Cluster, error) {
	protocol := &httpv3.HttpProtocolOptions{
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
	}
	if err := Validate(protocol); err != nil { // inside an Any nothing is validated
		return nil, err
	}
	options, err := anypb.New(protocol)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: HTTP protocol options of cluster %s: %w", ClusterName, err)
	}
	endpoint := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
		Endpoint: &endpointv3.Endpoint{Address: pipeAddress(socket, 0)},
	}}
	return &clusterv3.Cluster{
		Name:                 ClusterName,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(connectTimeout),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options,
		},
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxRequests:        wrapperspb.UInt32(maxStreams),
			MaxPendingRequests: wrapperspb.UInt32(maxStreams),
		}}},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: ClusterName,
			Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{endpoint}}},
		},
	}, nil
}
