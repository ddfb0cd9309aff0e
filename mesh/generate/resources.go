package generate

import (
	"slices"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/envoyfilter"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// Resources are what a class of proxies gets. Endpoints and secrets are made when they are asked for.
// VirtualHosts are those of the routes that name them only (VHDS), Extensions the configuration that
// filters get apart (ECDS), and Bootstrap what its agent merges into the bootstrap of an Envoy.
type Resources struct {
	Clusters, Listeners, Routes, VirtualHosts, Extensions, Bootstrap Set
	// Failures are the patches of EnvoyFilters that are left out.
	Failures []Failure
}

func newResources() *Resources {
	return &Resources{
		Clusters: make(Set), Listeners: make(Set), Routes: make(Set), VirtualHosts: make(Set), Extensions: make(Set), Bootstrap: make(Set),
	}
}

// Of returns the resources of a type.
func (r *Resources) Of(typeURL string) Set {
	switch typeURL {
	case xds.ClusterType:
		return r.Clusters
	case xds.ListenerType:
		return r.Listeners
	case xds.RouteType:
		return r.Routes
	case xds.ExtensionConfigType:
		return r.Extensions
	case xds.BootstrapType:
		return r.Bootstrap
	default:
		return r.VirtualHosts
	}
}

// Outbound returns what a proxy needs for connections that it opens: of a gateway everything. It is what
// OutboundClusters, OutboundListeners and OutboundRoutes return together.
func (g *Generator) Outbound(v *proxy.View) *Resources {
	clusters, listeners, routes := g.OutboundClusters(v), g.OutboundListeners(v), g.OutboundRoutes(v)
	return &Resources{
		Clusters: clusters.Clusters, Listeners: listeners.Listeners, Routes: routes.Routes, VirtualHosts: routes.VirtualHosts,
		Extensions: listeners.Extensions, Bootstrap: listeners.Bootstrap, Failures: slices.Concat(clusters.Failures, listeners.Failures, routes.Failures),
	}
}

// OutboundClusters returns the clusters of Outbound.
func (g *Generator) OutboundClusters(v *proxy.View) *Resources {
	g = g.of(v, client)
	if v.Proxyless() {
		out := newResources()
		g.grpcClusters(v, g.snap.Scope(v).Services, out.Clusters)
		return out
	}
	out := g.outboundClusterSink(v)
	out.others = func() []*sink { return []*sink{g.inboundSink(v)} }
	out.addOwn(xds.ClusterType, networking.EnvoyFilter_CLUSTER)
	return out.Resources
}

// outboundClusterSink returns the clusters of Outbound, without those that patches add. The generator is one of of.
func (g *Generator) outboundClusterSink(v *proxy.View) *sink {
	out := g.sinkOf(v, outboundContext(v), networking.EnvoyFilter_CLUSTER)
	g.addStandardClusters(v.Type() == proxy.Sidecar, out)
	if v.Type() != proxy.Sidecar {
		g.outboundClusters(v, g.gatewayServices(v), false, out)
		g.addServerNameClusters(v, out)
		return out
	}
	scope := g.snap.Scope(v)
	g.outboundClusters(v, scope.Services, false, out)
	if scope.OutboundDynamic {
		g.addDynamicCluster(v, out)
	}
	return out
}

// OutboundListeners returns the listeners of Outbound, the extensions, and what the bootstrap gets.
func (g *Generator) OutboundListeners(v *proxy.View) *Resources {
	g = g.of(v, client)
	if v.Proxyless() {
		out := newResources()
		g.addGRPCOutbound(v, g.snap.Scope(v), out.Listeners, nil)
		return out
	}
	out := g.outboundListenerSink(v)
	out.others = func() []*sink { return []*sink{g.inboundSink(v)} }
	out.addOwn(xds.ListenerType, networking.EnvoyFilter_LISTENER)
	out.addOwn(xds.ExtensionConfigType, networking.EnvoyFilter_EXTENSION_CONFIG)
	for _, part := range out.patches.Bootstrap() {
		out.Bootstrap.add(xds.BootstrapType, part.Name, part.Message)
	}
	return out.Resources
}

// outboundListenerSink returns the listeners of Outbound, without those that patches add. The generator is one of of.
func (g *Generator) outboundListenerSink(v *proxy.View) *sink {
	out := g.sinkOf(v, outboundContext(v), slices.Concat(envoyfilter.ListenerKinds, []envoyfilter.ApplyTo{networking.EnvoyFilter_EXTENSION_CONFIG, networking.EnvoyFilter_BOOTSTRAP})...)
	if v.Type() == proxy.Sidecar {
		g.addOutboundListeners(v, g.snap.Scope(v), out)
	} else {
		g.addGatewayListeners(v, out)
	}
	return out
}

// OutboundRoutes returns the routes and virtual hosts of Outbound.
func (g *Generator) OutboundRoutes(v *proxy.View) *Resources {
	g = g.of(v, client)
	if v.Proxyless() {
		out := newResources()
		g.addGRPCOutbound(v, g.snap.Scope(v), nil, out.Routes)
		return out
	}
	out := g.sinkOf(v, outboundContext(v), envoyfilter.RouteKinds...)
	if v.Type() == proxy.Sidecar {
		g.addOutboundRoutes(v, g.snap.Scope(v), out)
	} else {
		g.addGatewayRoutes(v, out)
	}
	return out.Resources
}

// Inbound returns what a sidecar needs for connections to its workload; nothing of a gateway.
func (g *Generator) Inbound(v *proxy.View) *Resources {
	g = g.of(v, server)
	switch {
	case v.Proxyless():
		out := newResources()
		g.addGRPCInbound(v, out.Listeners)
		return out
	case v.Type() != proxy.Sidecar:
		return newResources()
	}
	out := g.inboundSink(v)
	out.others = sync.OnceValue(func() []*sink { // clusters and listeners may both be added
		clusters, listeners := g.outboundClusterSink(v), g.outboundListenerSink(v)
		inbound := []*sink{g.inboundSink(v)}
		clusters.others, listeners.others = func() []*sink { return inbound }, func() []*sink { return inbound }
		clusters.addOwn(xds.ClusterType, networking.EnvoyFilter_CLUSTER)
		listeners.addOwn(xds.ListenerType, networking.EnvoyFilter_LISTENER)
		return []*sink{clusters, listeners}
	})
	out.addOwn(xds.ClusterType, networking.EnvoyFilter_CLUSTER)
	out.addOwn(xds.ListenerType, networking.EnvoyFilter_LISTENER)
	return out.Resources
}

// inboundSink returns what Inbound does for a sidecar, without what patches add; nothing of a gateway. The generator is one
// of of.
func (g *Generator) inboundSink(v *proxy.View) *sink {
	kinds := slices.Concat([]envoyfilter.ApplyTo{networking.EnvoyFilter_CLUSTER}, envoyfilter.ListenerKinds, envoyfilter.RouteKinds)
	out := g.sinkOf(v, networking.EnvoyFilter_SIDECAR_INBOUND, kinds...)
	if v.Type() == proxy.Sidecar {
		g.addInbound(v, g.snap.Scope(v), out, out)
	}
	return out
}

// Snapshot returns the snapshot of the generator.
func (g *Generator) Snapshot() *push.Snapshot { return g.snap }
