package group

import (
	"context"

	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxPending bounds the resources whose routes have not been looked for yet. The routes of further
// resources are requested only when Envoy asks for them.
const maxPending = 4096

// queueRoutes passes a resource to prefetchRoutes, or drops it if there are too many.
func (g *Group) queueRoutes(r *xds.Resource) {
	if r.Type != xds.ListenerType && r.Type != xds.ScopedRouteType || r.Body == nil {
		return
	}
	select {
	case g.withRoutes <- r:
	default:
	}
}

// prefetchRoutes subscribes to the routes of listeners and scopes before a client does, so that a
// slow control plane costs its latency once and not once for each of Envoy's phases.
func (g *Group) prefetchRoutes(ctx context.Context) error {
	for {
		var r *xds.Resource
		select {
		case <-ctx.Done():
			return nil
		case r = <-g.withRoutes:
		}
		for _, ref := range references.Of(r.Body) {
			switch {
			case ref.Type == xds.RouteType:
				g.cache.Prefetch(ref.Type, ref.Name)
			case ref.Type == xds.ScopedRouteType && ref.Name == "":
				g.cache.Prefetch(ref.Type, xds.Wildcard)
			}
		}
	}
}
