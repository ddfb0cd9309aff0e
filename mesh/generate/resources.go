package generate

import (
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// Resources are what a class of proxies gets. Endpoints and secrets are made when they are asked for.
type Resources struct{ Clusters, Listeners, Routes Set }

func newResources() *Resources {
	return &Resources{Clusters: make(Set), Listeners: make(Set), Routes: make(Set)}
}

// Outbound returns what a proxy needs for connections that it opens: of a gateway everything.
func (g *Generator) Outbound(v *proxy.View) *Resources {
	out := newResources()
	g.addStandardClusters(v.Type() == proxy.Sidecar, out.Clusters)
	if v.Type() != proxy.Sidecar {
		g.outboundClusters(v, g.gatewayServices(v), out.Clusters)
		g.addGateway(v, out.Listeners, out.Routes)
		return out
	}
	scope := g.snap.Scope(v)
	g.outboundClusters(v, scope.Services, out.Clusters)
	g.addOutboundListeners(v, scope, out.Listeners)
	g.addOutboundRoutes(v, scope, out.Routes)
	return out
}

// Inbound returns what a sidecar needs for connections to its workload; nothing of a gateway.
func (g *Generator) Inbound(v *proxy.View) *Resources {
	out := newResources()
	if v.Type() == proxy.Sidecar {
		g.addInbound(v, g.snap.Scope(v), out.Clusters, out.Listeners)
	}
	return out
}

// Snapshot returns the snapshot of the generator.
func (g *Generator) Snapshot() *push.Snapshot { return g.snap }
