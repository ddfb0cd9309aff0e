// Package references finds which resources a resource names: a listener its routes, a route its
// clusters, a cluster its endpoints and secrets.
//
// It promises to find every reference in a field of Envoy's API, also inside typed configurations whose
// type this build knows: a test looks through all messages of the API for fields that may name something. A reference through a configuration source that needs no control plane (a file) is
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
		if source := body.GetEdsClusterConfig().GetEdsConfig(); body.GetType() == clusterv3.Cluster_EDS && NeedsControlPlane(source) {
			name := cmp.Or(body.GetEdsClusterConfig().GetServiceName(), body.GetName())
			f.add(Reference{Type: xds.EndpointType, Name: name, Field: join(at, "eds_cluster_config"), Source: source})
		}
	}
	f.subscription(m, at)
	f.fields(m, at, depth)
}

// named says how a message names resources of a type: in a field, "" for all resources, and from the source in another.
type named struct {
	typeURL      string
	name, source protoreflect.Name
}

const (
	url    = "type.googleapis.com/"
	filter = "envoy.extensions.filters.network."
)

// subscriptions are the messages that make a subscription of their own.
var subscriptions = map[protoreflect.FullName]named{
	filter + "http_connection_manager.v3.Rds":                                          {xds.RouteType, "route_config_name", "config_source"},
	filter + "http_connection_manager.v3.ScopedRds":                                    {xds.ScopedRouteType, "", "scoped_rds_config_source"},
	filter + "thrift_proxy.v3.Trds":                                                    {xds.ThriftRouteType, "route_config_name", "config_source"},
	filter + "dubbo_proxy.v3.Drds":                                                     {url + filter + "dubbo_proxy.v3.MultipleRouteConfiguration", "route_config_name", "config_source"},
	filter + "generic_proxy.v3.GenericRds":                                             {url + filter + "generic_proxy.v3.RouteConfiguration", "route_config_name", "config_source"},
	"envoy.config.listener.v3.Listener.FcdsConfig":                                     {xds.FilterChainType, "", "config_source"},
	"envoy.config.route.v3.Vhds":                                                       {xds.VirtualHostType, "", "config_source"},
	"envoy.config.endpoint.v3.LedsClusterLocalityConfig":                               {url + "envoy.config.endpoint.v3.LbEndpoint", "leds_collection_name", "leds_config"},
	"envoy.extensions.transport_sockets.tls.v3.SdsSecretConfig":                        {xds.SecretType, "name", "sds_config"},
	"envoy.extensions.transport_sockets.tls.cert_selectors.on_demand_secret.v3.Config": {xds.SecretType, "prefetch_secret_names", "config_source"},
	"envoy.extensions.access_loggers.filters.process_ratelimit.v3.DynamicTokenBucket":  {url + "envoy.type.v3.TokenBucket", "resource_name", "config_source"},
}

// discovery is the field with the source of a filter's configuration, whose name is that of the filter.
const discovery = "config_discovery"

// subscription finds what a message subscribes to.
func (f *finder) subscription(m protoreflect.Message, at string) {
	fields := m.Descriptor().Fields()
	if field := fields.ByName(discovery); field != nil && m.Has(field) && field.Message() != nil {
		source, ok := envoytypes.Linked(m.Get(field).Message()).Interface().(*corev3.ExtensionConfigSource)
		if name := fields.ByName("name"); ok && name != nil && NeedsControlPlane(source.GetConfigSource()) {
			f.add(Reference{
				Type: xds.ExtensionConfigType, Name: m.Get(name).String(), Field: join(at, discovery),
				HasDefault: source.GetDefaultConfig() != nil, Source: source.GetConfigSource(),
			})
		}
	}
	of, subscribes := subscriptions[m.Descriptor().FullName()]
	if !subscribes {
		return
	}
	source, _ := envoytypes.Linked(m.Get(fields.ByName(of.source)).Message()).Interface().(*corev3.ConfigSource)
	if !NeedsControlPlane(source) {
		return
	}
	ref := Reference{Type: of.typeURL, Field: join(at, string(of.name)), Source: source}
	switch field := fields.ByName(of.name); {
	case of.name == "":
		ref.Field = at
		f.found = append(f.found, ref)
	case field.IsList():
		for i := range m.Get(field).List().Len() {
			one := ref
			one.Name, one.Field = m.Get(field).List().Get(i).String(), fmt.Sprintf("%s[%d]", ref.Field, i)
			f.add(one)
		}
	default:
		ref.Name = m.Get(field).String()
		f.add(ref)
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
		switch typeURL := namedType(field); {
		case typeURL != "" && field.IsList():
			for i := range value.List().Len() {
				f.add(Reference{Type: typeURL, Name: value.List().Get(i).String(), Field: fmt.Sprintf("%s[%d]", name, i)})
			}
		case typeURL != "":
			f.add(Reference{Type: typeURL, Name: value.String(), Field: name})
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

// namedType returns the type of the resources that a field names; "" if it names none. The source is not said there.
func namedType(field protoreflect.FieldDescriptor) string {
	if field.Kind() != protoreflect.StringKind || field.IsMap() {
		return ""
	}
	names := false
	switch parent := field.ContainingMessage(); field.Name() {
	case "cluster":
		names = parent.FullName() != "envoy.config.core.v3.Node"
	case "collector_cluster", "default_cluster", "override_upstream_cluster", "tcp_cluster_name":
		names = true
	case "cluster_name":
		switch parent.FullName() {
		case "envoy.config.core.v3.GrpcService.EnvoyGrpc", "envoy.data.dns.v3.DnsTable.DnsEndpoint", "envoy.data.dns.v3.DnsTable.DnsServiceTarget":
			names = true
		}
		names = names || parent.Name() == "ClusterWeight"
	case "clusters":
		names = parent.FullName() == "envoy.extensions.clusters.aggregate.v3.ClusterConfig"
	case "name":
		// Of the weighted clusters of routes, the TCP proxy, Thrift, …, and of the members of a composite cluster.
		names = parent.Name() == "ClusterWeight" || parent.FullName() == "envoy.extensions.clusters.composite.v3.ClusterConfig.ClusterEntry"
	case "server_listener_name":
		return xds.ListenerType // an internal listener
	case "route_configuration_name":
		return xds.RouteType
	}
	if names {
		return xds.ClusterType
	}
	return ""
}

// NeedsControlPlane reports whether resources come from a control plane through a configuration source.
func NeedsControlPlane(s *corev3.ConfigSource) bool {
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
