package group

import (
	"context"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/walk"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxPending bounds the resources whose routes have not been looked for yet. The routes of further
// resources are requested only when Envoy asks for them.
const maxPending = 4096

const prefetchDepth = 100 // of the messages that are searched

// references has what a listener or a scope refers to: names that its client is about to subscribe to.
type references struct {
	routes []string
	scopes bool // all of them
}

// look adds what a message refers to, also inside Anys.
func (refs *references) look(m protoreflect.Message, depth int) {
	if depth > prefetchDepth {
		return
	}
	m = envoytypes.Linked(m)
	switch body := m.Interface().(type) {
	case *anypb.Any:
		if inner, err := envoytypes.Unpack(body); err == nil {
			refs.look(inner.ProtoReflect(), depth+1)
		}
		return
	case *hcmv3.Rds:
		if body.GetRouteConfigName() != "" {
			refs.routes = append(refs.routes, body.GetRouteConfigName())
		}
		return
	case *hcmv3.ScopedRds:
		refs.scopes = true
		return
	case *routev3.ScopedRouteConfiguration:
		if body.GetRouteConfigurationName() != "" {
			refs.routes = append(refs.routes, body.GetRouteConfigurationName())
		}
	}
	for inner := range walk.Messages(m) {
		refs.look(inner, depth+1)
	}
}

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
		var refs references
		refs.look(r.Body.ProtoReflect(), 0)
		if len(refs.routes) > 0 {
			g.cache.Prefetch(xds.RouteType, refs.routes...)
		}
		if refs.scopes {
			g.cache.Prefetch(xds.ScopedRouteType, xds.Wildcard)
		}
	}
}
