package istio

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	internalv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// SecretsCluster is the cluster of which istiod's resources request certificates and roots. No other static cluster is
// referred to by the resources of istiod.
const SecretsCluster = "sds-grpc"

const internalListener = "envoy.bootstrap.internal_listener"

// Complete returns a copy of a bootstrap with what istiod's resources refer to: the cluster of the secrets, which leads to the
// agent as the cluster bootstrap.ClusterName does, and listeners inside of Envoy, for HBONE; and with the statsd sink of
// the ProxyConfig. What the bootstrap has already, from a template, stays.
func (p *Proxy) Complete(b *bootstrapv3.Bootstrap) (*bootstrapv3.Bootstrap, error) {
	b = proto.CloneOf(b)
	clusters := b.GetStaticResources().GetClusters()
	agent := slices.IndexFunc(clusters, func(c *clusterv3.Cluster) bool { return c.GetName() == bootstrap.ClusterName })
	secrets := slices.ContainsFunc(clusters, func(c *clusterv3.Cluster) bool { return c.GetName() == SecretsCluster })
	if agent >= 0 && !secrets {
		cluster := proto.CloneOf(clusters[agent])
		cluster.Name, cluster.AltStatName = SecretsCluster, SecretsCluster+";"
		cluster.GetLoadAssignment().ClusterName = SecretsCluster
		b.StaticResources.Clusters = append(clusters, cluster)
	}
	if !slices.ContainsFunc(b.GetBootstrapExtensions(), func(e *corev3.TypedExtensionConfig) bool { return e.GetName() == internalListener }) {
		config := &anypb.Any{}
		listener := &internalv3.InternalListener{BufferSizeKb: wrapperspb.UInt32(64)}
		if err := anypb.MarshalFrom(config, listener, proto.MarshalOptions{Deterministic: true}); err != nil {
			return nil, err
		}
		b.BootstrapExtensions = append(b.BootstrapExtensions, &corev3.TypedExtensionConfig{Name: internalListener, TypedConfig: config})
	}
	if p.statsd.IsValid() {
		sink, err := statsdSink(p.statsd)
		if err != nil {
			return nil, err
		}
		b.StatsSinks = append(b.StatsSinks, sink)
	}
	return b, nil
}

// statsdAddress returns the statsdUdpAddress of the ProxyConfig. Without one, or if Envoy cannot use it, it returns the zero
// value, and in the second case the reason.
func (p *Proxy) statsdAddress() (_ netip.AddrPort, why string) {
	address := p.config.GetStatsdUdpAddress()
	if address == "" {
		return netip.AddrPort{}, ""
	}
	address = strings.ReplaceAll(address, "$(HOST_IP)", variable(p.identity.Environ, "HOST_IP"))
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.AddrPort{}, fmt.Sprintf("ProxyConfig: statsdUdpAddress %q has no effect: Envoy resolves no name here: want IP:PORT, or $(HOST_IP):PORT with the variable HOST_IP", address)
	}
	return parsed, ""
}

func statsdSink(address netip.AddrPort) (*metricsv3.StatsSink, error) {
	config := &anypb.Any{}
	sink := &metricsv3.StatsdSink{StatsdSpecifier: &metricsv3.StatsdSink_Address{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
		SocketAddress: &corev3.SocketAddress{Address: address.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(address.Port())}},
	}}}}
	if err := anypb.MarshalFrom(config, sink, proto.MarshalOptions{Deterministic: true}); err != nil {
		return nil, err
	}
	return &metricsv3.StatsSink{Name: "envoy.stat_sinks.statsd", ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: config}}, nil
}
