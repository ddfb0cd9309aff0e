// Package references finds which resources a resource names: a listener its routes, a route its
// clusters, a cluster its endpoints and secrets.
//
// It promises to find every reference in a field that it knows, also inside typed configurations whose
// type this build knows. A reference through a configuration source that needs no control plane (a file) is
// not one. It does not find clusters that are only named at run time: by a header, a plugin or a tree of
// matchers whose actions are of unknown types.
//
// All functions are pure and may be called concurrently.
package references

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Reference is a resource that another one names.
type Reference struct {
	// Type is a type URL.
	Type string
	// Name is the name of the resource; "" for all resources of the type, which is how a listener refers to
	// scopes and a route configuration to virtual hosts.
	Name string
	// Field is where the name is, as in "virtual_hosts[0].routes[1].route.cluster".
	Field string
	// HasDefault is set if Envoy has something to use without the resource.
	HasDefault bool
	// Source is where Envoy asks for the resource; nil if the field has only its name, as a route has that of a cluster.
	Source *corev3.ConfigSource
}

// maxDepth bounds the nesting of the messages that are searched.
const maxDepth = 100

// Of returns the references in the body of a resource, in the order in which the fields are declared. It returns none if
// the type of the body is not known to this build.
func Of(body *anypb.Any) []Reference {
	m, err := envoytypes.Unpack(body)
	if err != nil {
		return nil
	}
	f := finder{}
	f.message(m.ProtoReflect(), "", 0)
	return f.found
}

// Keys returns the names that a resource refers to; that of a type of which it needs everything is "".
func Keys(r *xds.Resource) (names []xds.Key) {
	for _, ref := range Of(r.Body) {
		names = append(names, xds.Key{Type: ref.Type, Name: ref.Name})
	}
	return names
}

type finder struct{ found []Reference }

func (f *finder) add(r Reference) {
	if r.Name != "" {
		f.found = append(f.found, r)
	}
}

// message finds the references in a message, whose field is at.
func (f *finder) message(m protoreflect.Message, at string, depth int) {
	if depth > maxDepth {
		return
	}
	m = envoytypes.Linked(m)
	switch body := m.Interface().(type) {
	case *corev3.ConfigSource:
		return // its cluster must be in the bootstrap
	case *anypb.Any:
		if inner, err := envoytypes.Unpack(body); err == nil {
			f.message(inner.ProtoReflect(), at, depth+1)
		}
		return
	case *clusterv3.Cluster:
		if source := body.GetEdsClusterConfig().GetEdsConfig(); body.GetType() == clusterv3.Cluster_EDS && needsControlPlane(source) {
			name := cmp.Or(body.GetEdsClusterConfig().GetServiceName(), body.GetName())
			f.add(Reference{Type: xds.EndpointType, Name: name, Field: join(at, "eds_cluster_config"), Source: source})
		}
	case *hcmv3.Rds:
		if needsControlPlane(body.GetConfigSource()) {
			f.add(Reference{Type: xds.RouteType, Name: body.GetRouteConfigName(), Field: join(at, "route_config_name"), Source: body.GetConfigSource()})
		}
	case *hcmv3.ScopedRds:
		if needsControlPlane(body.GetScopedRdsConfigSource()) {
			f.found = append(f.found, Reference{Type: xds.ScopedRouteType, Field: at, Source: body.GetScopedRdsConfigSource()})
		}
	case *routev3.ScopedRouteConfiguration:
		f.add(Reference{Type: xds.RouteType, Name: body.GetRouteConfigurationName(), Field: join(at, "route_configuration_name")})
	case *routev3.Vhds:
		if needsControlPlane(body.GetConfigSource()) {
			f.found = append(f.found, Reference{Type: xds.VirtualHostType, Field: at, Source: body.GetConfigSource()})
		}
	case *hcmv3.HttpFilter:
		f.extension(body.GetName(), body.GetConfigDiscovery(), at)
	case *listenerv3.Filter:
		f.extension(body.GetName(), body.GetConfigDiscovery(), at)
	case *listenerv3.ListenerFilter:
		f.extension(body.GetName(), body.GetConfigDiscovery(), at)
	case *tlsv3.SdsSecretConfig:
		if needsControlPlane(body.GetSdsConfig()) {
			f.add(Reference{Type: xds.SecretType, Name: body.GetName(), Field: join(at, "name"), Source: body.GetSdsConfig()})
		}
		return
	}
	f.fields(m, at, depth)
}

// extension adds the configuration that a filter requests.
func (f *finder) extension(name string, source *corev3.ExtensionConfigSource, at string) {
	if source != nil && needsControlPlane(source.GetConfigSource()) {
		f.add(Reference{
			Type: xds.ExtensionConfigType, Name: name, Field: join(at, "config_discovery"),
			HasDefault: source.GetDefaultConfig() != nil, Source: source.GetConfigSource(),
		})
	}
}

// fields finds the references in the fields of a message.
func (f *finder) fields(m protoreflect.Message, at string, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !m.Has(field) {
			continue
		}
		name, value := join(at, string(field.Name())), m.Get(field)
		switch {
		case namesCluster(field) && field.IsList():
			for i := range value.List().Len() {
				f.add(Reference{Type: xds.ClusterType, Name: value.List().Get(i).String(), Field: fmt.Sprintf("%s[%d]", name, i)})
			}
		case namesCluster(field):
			f.add(Reference{Type: xds.ClusterType, Name: value.String(), Field: name})
		case field.IsMap():
			if field.MapValue().Message() == nil {
				continue
			}
			for _, key := range sortedKeys(value.Map()) {
				f.message(value.Map().Get(key).Message(), fmt.Sprintf("%s[%q]", name, key.String()), depth+1)
			}
		case field.Message() == nil:
		case field.IsList():
			for i := range value.List().Len() {
				f.message(value.List().Get(i).Message(), fmt.Sprintf("%s[%d]", name, i), depth+1)
			}
		default:
			f.message(value.Message(), name, depth+1)
		}
	}
}

// namesCluster reports whether a field has the name of a cluster, or of several.
func namesCluster(field protoreflect.FieldDescriptor) bool {
	if field.Kind() != protoreflect.StringKind || field.IsMap() {
		return false
	}
	parent := field.ContainingMessage()
	switch field.Name() {
	case "cluster":
		return parent.FullName() != "envoy.config.core.v3.Node"
	case "collector_cluster", "default_cluster", "override_upstream_cluster":
		return true
	case "cluster_name":
		return parent.FullName() == "envoy.config.core.v3.GrpcService.EnvoyGrpc"
	case "clusters":
		return parent.FullName() == "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
	case "name":
		return parent.Name() == "ClusterWeight" // of the weighted clusters of routes, the TCP proxy, Thrift, …
	}
	return false
}

// needsControlPlane reports whether resources come from a control plane through a configuration source.
func needsControlPlane(s *corev3.ConfigSource) bool {
	switch s.GetConfigSourceSpecifier().(type) {
	case *corev3.ConfigSource_Ads, *corev3.ConfigSource_Self, *corev3.ConfigSource_ApiConfigSource:
		return true
	}
	return false
}

// sortedKeys returns the keys of a map in the order of their texts.
func sortedKeys(m protoreflect.Map) (keys []protoreflect.MapKey) {
	m.Range(func(key protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, key)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

func join(at, field string) string {
	if at == "" {
		return field
	}
	return at + "." + field
}
