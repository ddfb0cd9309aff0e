package generate

import (
	"slices"
	"sync"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// The two sides of a request on which a proxy observes it. A gateway is a client.
const (
	client = telemetry.WorkloadMode_CLIENT
	server = telemetry.WorkloadMode_SERVER
)

// observed is what proxies of a class log and trace, and their ProxyConfig. It is made when it is asked for the first
// time: what is read of a proxy then follows from what was read before.
type observed struct {
	config func() *meshv1alpha1.ProxyConfig
	// logs returns the access logs, and tracing how requests are traced, nil for not, with whether the request id says
	// whether a request is.
	logs    func() []*accesslogv3.AccessLog
	tracing func() (*managerv3.HttpConnectionManager_Tracing, bool)
}

// of returns the generator for what proxies of a class do on one side of requests.
func (g *Generator) of(v *proxy.View, mode telemetry.WorkloadMode) *Generator {
	out := &Generator{snap: g.snap, endpoints: g.endpoints, pieces: g.pieces, observed: &observed{}}
	out.observed.config = sync.OnceValue(func() *meshv1alpha1.ProxyConfig {
		if own := v.Config(); own != nil {
			return own
		}
		return g.snap.Mesh.GetDefaultConfig()
	})
	out.observed.logs = sync.OnceValue(func() []*accesslogv3.AccessLog { return out.accessLogsOf(v, mode) })
	out.observed.tracing = sync.OnceValues(func() (*managerv3.HttpConnectionManager_Tracing, bool) { return out.tracingOf(v, mode) })
	return out
}

// observe makes an HTTP connection manager trace requests.
func (g *Generator) observe(m *managerv3.HttpConnectionManager) {
	tracing, sampledByID := g.tracing()
	if m.Tracing = tracing; tracing != nil && !sampledByID {
		m.RequestIdExtension = &managerv3.RequestIDExtension{
			TypedConfig: pack(&uuidv3.UuidRequestIdConfig{UseRequestIdForTraceSampling: truth(false)}),
		}
	}
}

// collector is a service that a proxy can reach, to which a provider sends what it collects.
type collector struct{ cluster, host string }

// collectorOf returns the collector of a provider; ok is false if the proxy has no cluster of it, or one that is another namespace's: Envoy
// rejects listeners with some tracers whose cluster is missing.
func (g *Generator) collectorOf(v *proxy.View, p *push.Provider) (c collector, ok bool) {
	name, port := push.CollectorOf(p)
	svc := g.snap.Collector(name)
	if svc == nil {
		return c, false
	}
	if v.Type() == proxy.Sidecar {
		scope := g.snap.Scope(v)
		if svc = scope.Service(svc.Hostname); !scope.MeansReferred(name) {
			svc = nil
		}
	} else if !slices.Contains(g.snap.Collectors(v.Namespace()), svc) {
		svc = nil
	}
	if svc == nil {
		return c, false
	}
	if _, has := svc.Port(port); !has {
		return c, false
	}
	return collector{ClusterName(port, "", svc.Hostname), string(svc.Hostname)}, true
}

// grpc returns how gRPC reaches the collector.
func (c collector) grpc() *corev3.GrpcService {
	return &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: c.cluster, Authority: c.host},
	}}
}
