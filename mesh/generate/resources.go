package generate

import (
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// Resources are what a class of proxies gets. Endpoints and secrets are made when they are asked for.
// VirtualHosts are those of the routes that name them only (VHDS).
type Resources struct{ Clusters, Listeners, Routes, VirtualHosts Set }

func newResources() *Resources {
	return &Resources{Clusters: make(Set), Listeners: make(Set), Routes: make(Set), VirtualHosts: make(Set)}
}

// Outbound returns what a proxy needs for connections that it opens: of a gateway everything. It is what
// OutboundClusters, OutboundListeners and OutboundRoutes return together.
func (g *Generator) Outbound(v *proxy.View) *Resources {
	routes := g.OutboundRoutes(v)
	routes.Clusters, routes.Listeners = g.OutboundClusters(v).Clusters, g.OutboundListeners(v).Listeners
	return routes
}

// OutboundClusters returns the clusters of Outbound.
func (g *Generator) OutboundClusters(v *proxy.View) *Resources {
	g = g.of(v, client)
	out := newResources()
	g.addStandardClusters(v.Type() == proxy.Sidecar, out.Clusters)
	if v.Type() != proxy.Sidecar {
		g.outboundClusters(v, g.gatewayServices(v), out.Clusters)
		return out
	}
	scope := g.snap.Scope(v)
	g.outboundClusters(v, scope.Services, out.Clusters)
	if scope.OutboundDynamic {
		g.addDynamicCluster(v, out.Clusters)
	}
	return out
}

// OutboundListeners returns the listeners of Outbound.
func (g *Generator) OutboundListeners(v *proxy.View) *Resources {
	g = g.of(v, client)
	out := newResources()
	if v.Type() != proxy.Sidecar {
		g.addGateway(v, out.Listeners, make(Set))
		return out
	}
	g.addOutboundListeners(v, g.snap.Scope(v), out.Listeners)
	return out
}

// OutboundRoutes returns the routes and virtual hosts of Outbound.
func (g *Generator) OutboundRoutes(v *proxy.View) *Resources {
	g = g.of(v, client)
	out := newResources()
	if v.Type() != proxy.Sidecar {
		g.addGateway(v, make(Set), out.Routes)
		return out
	}
	g.addOutboundRoutes(v, g.snap.Scope(v), out)
	return out
}

// Inbound returns what a sidecar needs for connections to its workload; nothing of a gateway.
func (g *Generator) Inbound(v *proxy.View) *Resources {
	g = g.of(v, server)
	out := newResources()
	if v.Type() == proxy.Sidecar {
		g.addInbound(v, g.snap.Scope(v), out.Clusters, out.Listeners)
	}
	return out
}

// Snapshot returns the snapshot of the generator.
func (g *Generator) Snapshot() *push.Snapshot { return g.snap }
