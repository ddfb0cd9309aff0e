package server

import (
	"maps"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// pushed are the kinds of which each change of a document is pushed. The registries read the others.
var pushed = []config.Kind{
	config.VirtualService, config.DestinationRule, config.Gateway, config.Sidecar, config.PeerAuthentication,
	config.AuthorizationPolicy, config.EnvoyFilter, config.Telemetry, config.Ingress, config.Secret, config.MeshConfig, config.MeshNetworks, config.ConfigMap,
	config.GatewayClass, config.KubernetesGateway, config.HTTPRoute, config.GRPCRoute, config.TLSRoute, config.TCPRoute,
	config.ReferenceGrant, config.BackendTLSPolicy,
}

// Follow requests pushes of the documents of a cache that change. What a handler is called for is in the copy of the
// configuration, and in the registries, which must have been made of the cache before. tokens is called for changes of
// RequestAuthentications, which may have to wait for keys; nil pushes them like others.
func (s *Server) Follow(cache config.Cache, tokens func(config.Event)) {
	for _, kind := range pushed {
		cache.RegisterHandler(kind, s.ConfigChanged)
	}
	if tokens == nil {
		tokens = s.ConfigChanged
	}
	cache.RegisterHandler(config.RequestAuthentication, tokens)
	cache.RegisterHandler(config.Namespace, s.namespaceChanged)
	cache.RegisterHandler(config.Service, func(ev config.Event) { s.gatewayChanged(cache, ev) })
	cache.RegisterHandler(config.Node, func(ev config.Event) { s.nodeChanged(cache, ev) })
}

// namespaceChanged requests a push if a Namespace has other labels, which the mesh configuration
// selects by, or other annotations, which services inherit.
func (s *Server) namespaceChanged(ev config.Event) {
	if ev.Old == nil || ev.New == nil || !maps.Equal(ev.Old.Labels, ev.New.Labels) || !maps.Equal(ev.Old.Annotations, ev.New.Annotations) {
		s.ConfigChanged(ev)
	}
}

// gatewayChanged requests a push if the Service of a gateway of a network changed: other services' endpoints
// are reached by it.
func (s *Server) gatewayChanged(cache config.Reader, ev config.Event) {
	networks := cache.List(config.MeshNetworks, "")
	if push.IsNetworkGateway(ev.Old, networks, s.cfg.Domain) || push.IsNetworkGateway(ev.New, networks, s.cfg.Domain) {
		s.ConfigChanged(ev)
	}
}

// nodeChanged requests a push if a gateway of a network is reached at the address of a Node that changed. Registries read
// where endpoints on the Node are. Until the configuration was read once nobody is served, and the Services of gateways
// may still be missing.
func (s *Server) nodeChanged(cache config.Cache, ev config.Event) {
	if cache.HasSynced() && push.MovesGateways(ev.Old, ev.New, cache.List(config.Service, ""), cache.List(config.MeshNetworks, ""), s.cfg.Domain) {
		s.ConfigChanged(ev)
	}
}
