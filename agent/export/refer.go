package export

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/walk"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxDepth bounds the nesting of messages.
const maxDepth = 100

// inlineAny inlines the references of the message in an Any. An unknown type stays unchanged.
func (w *writer) inlineAny(a *anypb.Any, depth int) error {
	inner, err := envoytypes.Unpack(a)
	if err != nil {
		if a.GetTypeUrl() != "" {
			w.addNote("the type %s is not known to this version: what it refers to is not looked for", strings.TrimPrefix(a.GetTypeUrl(), "type.googleapis.com/"))
		}
		return nil
	}
	if err := w.inline(inner.ProtoReflect(), depth+1); err != nil {
		return err
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(inner)
	if err != nil {
		return err
	}
	a.Value = value
	return nil
}

// inline replaces the references of a message by the stored resources.
func (w *writer) inline(m protoreflect.Message, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested more than %d deep", maxDepth)
	}
	if linked := envoytypes.Linked(m); linked != m {
		err := w.inline(linked, depth)
		proto.Reset(m.Interface())
		proto.Merge(m.Interface(), linked.Interface())
		return err
	}
	var err error
	switch body := m.Interface().(type) {
	case *anypb.Any:
		return w.inlineAny(body, depth)
	case *clusterv3.Cluster:
		err = w.inlineEndpoints(body)
	case *hcmv3.HttpConnectionManager:
		err = w.inlineRoutes(body)
	case *hcmv3.HttpFilter:
		if config, ok := w.extension(body.GetName(), body.GetConfigDiscovery()); ok {
			body.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}
		}
	case *listenerv3.Filter:
		if config, ok := w.extension(body.GetName(), body.GetConfigDiscovery()); ok {
			body.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
		}
	case *listenerv3.ListenerFilter:
		if config, ok := w.extension(body.GetName(), body.GetConfigDiscovery()); ok {
			body.ConfigType = &listenerv3.ListenerFilter_TypedConfig{TypedConfig: config}
		}
	case *tlsv3.SdsSecretConfig:
		switch {
		case references.NeedsControlPlane(body.GetSdsConfig()):
			w.secrets[body.GetName()] = struct{}{}
			body.SdsConfig = bootstrap.FileSource(w.cfg.Dir + "/" + w.secretFile(body.GetName()))
		case body.GetSdsConfig() == nil:
			w.needsOwn("the static secret %q", body.GetName())
		}
	case *corev3.EnvoyInternalAddress:
		w.needsOwn("the bootstrap extension envoy.bootstrap.internal_listener")
	case *listenerv3.Listener_InternalListenerConfig:
		w.needsOwn("the bootstrap extension envoy.bootstrap.internal_listener")
	case *corev3.ConfigSource:
		if references.NeedsControlPlane(body) {
			w.addMissing("it refers to a control plane in a field that the export cannot replace")
		}
		return nil
	case *corev3.GrpcService, *corev3.ApiConfigSource:
		return nil
	}
	if err != nil {
		return err
	}
	for inner := range walk.Messages(m) {
		if err := w.inline(inner, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// inlineEndpoints inlines the endpoints of an EDS cluster.
func (w *writer) inlineEndpoints(c *clusterv3.Cluster) error {
	if c.GetType() != clusterv3.Cluster_EDS || !references.NeedsControlPlane(c.GetEdsClusterConfig().GetEdsConfig()) {
		return nil
	}
	name := cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())
	c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	c.EdsClusterConfig = nil
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.GetName()}
	r := w.lookup(xds.EndpointType, name)
	if r == nil {
		return nil
	}
	if err := r.Body.UnmarshalTo(c.LoadAssignment); err != nil {
		return err
	}
	c.LoadAssignment.ClusterName = c.GetName()
	return nil
}

// inlineRoutes inlines the routes of a connection manager.
func (w *writer) inlineRoutes(m *hcmv3.HttpConnectionManager) error {
	if rds := m.GetRds(); rds != nil && references.NeedsControlPlane(rds.GetConfigSource()) {
		r, err := w.routeConfiguration(rds.GetRouteConfigName())
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: r}
		return err
	}
	scoped := m.GetScopedRoutes()
	if scoped == nil || !references.NeedsControlPlane(scoped.GetScopedRds().GetScopedRdsConfigSource()) {
		return nil
	}
	list := &hcmv3.ScopedRouteConfigurationsList{}
	scopes := w.stored[xds.ScopedRouteType]
	for _, name := range slices.Sorted(maps.Keys(scopes)) {
		var scope routev3.ScopedRouteConfiguration
		if err := scopes[name].Body.UnmarshalTo(&scope); err != nil {
			return err
		}
		if scope.GetRouteConfiguration() == nil {
			route, err := w.routeConfiguration(scope.GetRouteConfigurationName())
			if err != nil {
				return err
			}
			scope.RouteConfigurationName, scope.RouteConfiguration, scope.OnDemand = "", route, false
		}
		w.result.Counts[xds.ScopedRouteType]++
		list.ScopedRouteConfigurations = append(list.ScopedRouteConfigurations, &scope)
	}
	if len(list.GetScopedRouteConfigurations()) == 0 {
		w.addMissing("no scoped route is stored")
		return nil
	}
	scoped.RdsConfigSource = nil
	scoped.ConfigSpecifier = &hcmv3.ScopedRoutes_ScopedRouteConfigurationsList{ScopedRouteConfigurationsList: list}
	return nil
}

// routeConfiguration returns a stored route configuration with its on-demand virtual hosts
// inlined, as far as they are stored.
func (w *writer) routeConfiguration(name string) (*routev3.RouteConfiguration, error) {
	route := &routev3.RouteConfiguration{Name: name}
	if r := w.lookup(xds.RouteType, name); r != nil {
		if err := r.Body.UnmarshalTo(route); err != nil {
			return nil, err
		}
	}
	if route.GetValidateClusters() == nil {
		route.ValidateClusters = wrapperspb.Bool(false) // the default of RDS; inline it would be true, and a listener with a route to nowhere rejected
	}
	if route.GetVhds() == nil {
		return route, nil
	}
	route.Vhds = nil
	hosts := w.stored[xds.VirtualHostType]
	for _, full := range slices.Sorted(maps.Keys(hosts)) {
		if routeName, _, ok := strings.Cut(full, "/"); !ok || routeName != name {
			continue
		}
		var host routev3.VirtualHost
		if err := hosts[full].Body.UnmarshalTo(&host); err != nil {
			return nil, err
		}
		w.result.Counts[xds.VirtualHostType]++
		route.VirtualHosts = append(route.VirtualHosts, &host)
	}
	return route, nil
}

// extension returns the configuration that a filter would request.
func (w *writer) extension(name string, source *corev3.ExtensionConfigSource) (*anypb.Any, bool) {
	if source == nil || !references.NeedsControlPlane(source.GetConfigSource()) {
		return nil, false
	}
	fallback := source.GetDefaultConfig()
	r := w.take(xds.ExtensionConfigType, name)
	switch config := (&corev3.TypedExtensionConfig{}); {
	case r != nil && r.Body.UnmarshalTo(config) == nil:
		return config.GetTypedConfig(), true
	case fallback != nil: // as Envoy does
		w.addNote("ECDS %q is not stored: its default is used", name)
		return fallback, true
	}
	w.addMissing("ECDS %q is not stored", name)
	return nil, false
}
