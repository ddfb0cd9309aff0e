package service

import (
	"cmp"
	"maps"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Health is the health of an endpoint as its registry says it.
type Health uint8

const (
	// Healthy endpoints take connections.
	Healthy Health = iota
	// UnHealthy endpoints are not ready.
	UnHealthy
	// Draining endpoints get no new sessions, only requests of persistent sessions that they have.
	Draining
	// Terminating endpoints are not sent.
	Terminating
)

var healthStatus = [...]corev3.HealthStatus{
	Healthy: corev3.HealthStatus_HEALTHY, UnHealthy: corev3.HealthStatus_UNHEALTHY, Draining: corev3.HealthStatus_DRAINING,
	Terminating: corev3.HealthStatus_UNHEALTHY,
}

// Endpoint is an address at which instances of a service are reached. It is immutable.
type Endpoint struct {
	// Address is an IP address, a DNS name, or the path of a Unix socket ("unix:///path"); "" for an
	// endpoint that is reached through the gateways of its network only.
	Address string
	// Port is the port of the address, 0 for a Unix socket; PortName is the name of the service's
	// port that it serves.
	Port     uint32
	PortName string
	// Labels are those of the workload, and Kubernetes' and Istio's labels for its region, zone,
	// subzone, network and cluster. Subsets select by them.
	Labels   map[string]string
	Locality string // region/zone/subzone
	Network  string
	// Cluster is the id of the cluster whose registry knows the endpoint.
	Cluster string
	// Node is the name of the Kubernetes node on which it runs, "" if that is not known.
	Node   string
	Weight uint32 // 0 is 1
	// ServiceAccount is the SPIFFE id of the endpoint, "" for none.
	ServiceAccount string
	Namespace      string
	Workload       string // the name of the workload, for messages and telemetry
	Health         Health
	// HasSidecar says that the endpoint accepts mesh mTLS.
	HasSidecar bool
	// Encoded is the endpoint as Envoy gets it, if mTLS is not disabled. It must not be changed.
	Encoded *endpointv3.LbEndpoint
}

// NewEndpoint returns an endpoint with its encoding.
func NewEndpoint(e Endpoint) *Endpoint {
	e.Encoded = e.Encode(true)
	return &e
}

// Equal reports whether two endpoints are the same in every field.
func (e *Endpoint) Equal(o *Endpoint) bool {
	if e == o {
		return true
	}
	return e.Address == o.Address && e.Port == o.Port && e.PortName == o.PortName &&
		e.Locality == o.Locality && e.Network == o.Network && e.Cluster == o.Cluster && e.Node == o.Node && e.Weight == o.Weight &&
		e.ServiceAccount == o.ServiceAccount && e.Namespace == o.Namespace && e.Workload == o.Workload &&
		e.Health == o.Health && e.HasSidecar == o.HasSidecar && maps.Equal(e.Labels, o.Labels)
}

// The names in an endpoint's metadata that Istio's transport socket matches and telemetry read.
const (
	transportSocketMatch = "envoy.transport_socket_match"
	istioMetadata        = "istio"
)

// Encode returns the endpoint as Envoy gets it, as Istio encodes it: its address, weight, health and
// metadata. With mTLS the metadata of an endpoint with a sidecar selects the transport socket for
// it. The labels by which subsets select are not part of it.
func (e *Endpoint) Encode(mTLS bool) *endpointv3.LbEndpoint {
	metadata := map[string]*structpb.Struct{istioMetadata: text("workload", e.telemetry())}
	if mTLS && e.HasSidecar {
		metadata[transportSocketMatch] = text("tlsMode", "istio")
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: e.address()}},
		HealthStatus:        healthStatus[e.Health],
		Metadata:            &corev3.Metadata{FilterMetadata: metadata},
		LoadBalancingWeight: wrapperspb.UInt32(max(e.Weight, 1)),
	}
}

func (e *Endpoint) address() *corev3.Address {
	if path, ok := strings.CutPrefix(e.Address, unixPrefix); ok {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: e.Address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: e.Port},
	}}}
}

// unixPrefix begins the address of a Unix socket.
const unixPrefix = "unix://"

// telemetry returns what a client's telemetry says of the endpoint's workload: its name, namespace,
// canonical service and revision, and cluster, with semicolons between them.
func (e *Endpoint) telemetry() string {
	name := cmp.Or(first(e.Labels, "service.istio.io/canonical-name", "app.kubernetes.io/name", "app"), e.Workload)
	revision := first(e.Labels, "service.istio.io/canonical-revision", "app.kubernetes.io/version", "version")
	if revision == "latest" {
		revision = ""
	}
	return strings.Join([]string{e.Workload, e.Namespace, name, revision, e.Cluster}, ";")
}

// first returns the value of the first of the labels that is set.
func first(labels map[string]string, names ...string) string {
	for _, name := range names {
		if value, ok := labels[name]; ok {
			return value
		}
	}
	return ""
}

func text(key, value string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}}
}
