package references

import (
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// What is in the name of a field that may name a resource, and in that of a message whose field "name" may.
var (
	fieldWords   = []string{"cluster", "route_config", "secret", "listener", "layer", "runtime", "eds", "endpoint", "service_name", "scope", "discovery", "sds", "resource_name"}
	messageWords = []string{"Cluster", "Listener", "Layer", "Secret", "Route", "Endpoint"}
)

// notReferences says why a field, by its message, names no resource that a control plane is asked for.
var notReferences = map[string]string{
	"envoy.config.bootstrap.v3.Bootstrap.config_sources":              bootstrap,
	"envoy.config.bootstrap.v3.Bootstrap.default_config_source":       bootstrap,
	"envoy.config.bootstrap.v3.Bootstrap.DynamicResources.cds_config": bootstrap,
	"envoy.config.bootstrap.v3.Bootstrap.DynamicResources.lds_config": bootstrap,
	"envoy.config.bootstrap.v3.ClusterManager.local_cluster_name":     bootstrap,
	"envoy.config.bootstrap.v3.RuntimeLayer.name":                     bootstrap,
	"envoy.config.bootstrap.v3.RuntimeLayer.RtdsLayer.name":           bootstrap + ": runtime layers are named nowhere else",
	"envoy.config.bootstrap.v3.RuntimeLayer.RtdsLayer.rtds_config":    bootstrap,
	"envoy.config.core.v3.ApiConfigSource.cluster_names":              "a source of configuration must be in the bootstrap",
	"envoy.config.core.v3.ExtensionConfigSource.config_source":        "found with the field that has it",

	"envoy.config.cluster.v3.Cluster.name":                                               own,
	"envoy.config.cluster.v3.Cluster.CustomClusterType.name":                             "a type of cluster",
	"envoy.config.cluster.v3.Cluster.EdsClusterConfig.eds_config":                        "found with the type of the cluster",
	"envoy.config.cluster.v3.Cluster.EdsClusterConfig.service_name":                      "found with the type of the cluster",
	"envoy.config.cluster.v3.Cluster.lrs_server":                                         "where load is reported",
	"envoy.config.cluster.v3.Cluster.lrs_report_endpoint_metrics":                        "metrics",
	"envoy.config.endpoint.v3.ClusterLoadAssignment.cluster_name":                        own,
	"envoy.config.endpoint.v3.LbEndpoint.endpoint_name":                                  "a name in an endpoint set",
	"envoy.config.listener.v3.Listener.name":                                             own,
	"envoy.extensions.filters.http.lua.v3.LuaPerRoute.name":                              "a script of the listener",
	"envoy.extensions.http.injected_credentials.oauth2.v3.OAuth2.EndpointParameter.name": "of a request",
	"envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes.name":      own,
	"envoy.config.listener.v3.ListenerFilter.name":                                       "found with config_discovery",
	"envoy.config.listener.v3.Listener.FcdsConfig.config_source":                         hidden,
	"envoy.config.route.v3.RouteConfiguration.name":                                      own,
	"envoy.config.route.v3.Route.name":                                                   "for statistics",
	"envoy.config.route.v3.ScopedRouteConfiguration.name":                                own,
	"envoy.config.route.v3.VirtualCluster.name":                                          "for statistics",
	"envoy.extensions.transport_sockets.tls.v3.Secret.name":                              own,
	"envoy.extensions.filters.network.dubbo_proxy.v3.RouteConfiguration.name":            own,
	"envoy.extensions.filters.network.dubbo_proxy.v3.MultipleRouteConfiguration.name":    own,
	"envoy.extensions.filters.network.generic_proxy.v3.RouteConfiguration.name":          own,
	"envoy.extensions.filters.network.thrift_proxy.v3.RouteConfiguration.name":           own,
	"envoy.extensions.filters.network.generic_proxy.action.v3.RouteAction.name":          "for statistics",

	"envoy.config.route.v3.RouteAction.cluster_header":                                           atRuntime,
	"envoy.config.route.v3.RouteAction.cluster_specifier_plugin":                                 "in the same route configuration",
	"envoy.config.route.v3.RouteAction.RequestMirrorPolicy.cluster_header":                       atRuntime,
	"envoy.config.route.v3.WeightedCluster.ClusterWeight.cluster_header":                         atRuntime,
	"envoy.extensions.filters.network.thrift_proxy.v3.RouteAction.cluster_header":                atRuntime,
	"envoy.extensions.filters.http.on_demand.v3.OnDemandCds.source":                              atRuntime,
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.OnDemand.odcds_config":               atRuntime,
	"envoy.extensions.filters.network.http_connection_manager.v3.ScopedRoutes.rds_config_source": "of the routes that scopes name",

	"envoy.extensions.clusters.aggregate.v3.AggregateClusterResource.config_source":                                    hidden,
	"envoy.extensions.clusters.aggregate.v3.AggregateClusterResource.resource_name":                                    hidden,
	"envoy.extensions.clusters.dynamic_modules.v3.ClusterConfig.cluster_name":                                          "a name in a module",
	"envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute.per_route_config_name":               "a name in a module",
	"envoy.extensions.filters.http.fault.v3.HTTPFault.upstream_cluster":                                                "matches requests to a cluster, whether there is one",
	"envoy.extensions.filters.network.reverse_tunnel.v3.ReverseTunnel.required_cluster_name":                           "what a peer must say",
	"envoy.extensions.filters.network.reverse_tunnel.v3.Validation.cluster_id_format":                                  "what a peer must say",
	"envoy.extensions.filters.network.thrift_proxy.v3.RouteMatch.service_name":                                         "of requests",
	"envoy.extensions.filters.network.thrift_proxy.filters.payload_to_metadata.v3.PayloadToMetadata.Rule.service_name": "of requests",

	"envoy.config.core.v3.EnvoyInternalAddress.endpoint_id":                                     "tells endpoints of one internal listener apart",
	"envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.StsService.scope":              "of a token",
	"envoy.config.core.v3.HealthCheck.GrpcHealthCheck.service_name":                             "of a health check",
	"envoy.config.core.v3.Node.cluster":                                                         "of the proxy",
	"envoy.config.trace.v3.ClientConfig.service_name":                                           "of traces",
	"envoy.config.trace.v3.DatadogConfig.service_name":                                          "of traces",
	"envoy.config.trace.v3.OpenTelemetryConfig.service_name":                                    "of traces",
	"envoy.config.trace.v3.ZipkinConfig.collector_endpoint":                                     "a path",
	"envoy.extensions.common.aws.v3.InlineCredentialProvider.secret_access_key":                 aws,
	"envoy.extensions.filters.http.aws_lambda.v3.Credentials.secret_access_key":                 aws,
	"envoy.extensions.filters.http.aws_request_signing.v3.AwsRequestSigning.service_name":       aws,
	"envoy.extensions.filters.network.redis_proxy.v3.AwsIam.service_name":                       aws,
	"envoy.extensions.filters.http.gcp_authn.v3.Audience.AccessToken.scopes":                    "of a token",
	"envoy.extensions.filters.http.gcp_authn.v3.Audience.BoundAccessToken.scopes":               "of a token",
	"envoy.extensions.filters.http.gcp_authn.v3.Audience.IAMAccessToken.scopes":                 "of a token",
	"envoy.extensions.filters.http.oauth2.v3.OAuth2Config.auth_scopes":                          "of a token",
	"envoy.extensions.filters.http.oauth2.v3.OAuth2Config.authorization_endpoint":               "an address",
	"envoy.extensions.filters.http.oauth2.v3.OAuth2Config.end_session_endpoint":                 "an address",
	"envoy.extensions.grpc_service.call_credentials.sts_service.v3.StsServiceCredentials.scope": "of a token",
	"envoy.extensions.http.injected_credentials.oauth2.v3.OAuth2.scopes":                        "of a token",
	"envoy.extensions.wasm.v3.VmConfig.runtime":                                                 "an engine",
	"envoy.data.dns.v3.DnsTable.DnsService.service_name":                                        "a name of DNS",
}

const (
	own       = "its own name"
	bootstrap = "in the bootstrap only"
	atRuntime = "what is asked for is known at run time only"
	hidden    = "not implemented by Envoy (not-implemented-hide)"
	aws       = "of the cloud"
)

// apart are the packages of messages that are no configuration: what Envoy logs, reports and shows, and how it talks to a control plane.
var apart = []string{"envoy.admin.", "envoy.data.accesslog.", "envoy.data.cluster.", "envoy.data.core.", "envoy.service.", "envoy.config.core.v3.Runtime", "envoy.config.endpoint.v3.ClusterStats"}

// Finding T11: each field of Envoy's API that may name a resource is known, or is in the list above.
func TestEveryFieldThatNamesAResourceIsKnown(t *testing.T) {
	raw, err := os.ReadFile("../envoytypes/descriptors.binpb")
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(raw, &set); err != nil {
		t.Fatal(err)
	}
	files, err := protodesc.FileOptions{AllowUnresolvable: true}.NewFiles(&set)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	known := 0
	var look func(protoreflect.MessageDescriptors)
	look = func(messages protoreflect.MessageDescriptors) {
		for i := range messages.Len() {
			m := messages.Get(i)
			look(m.Messages())
			if slices.ContainsFunc(apart, func(pkg string) bool { return strings.HasPrefix(string(m.FullName()), pkg) }) || !strings.HasPrefix(string(m.FullName()), "envoy.") {
				continue
			}
			for j := range m.Fields().Len() {
				field := m.Fields().Get(j)
				switch name := string(field.FullName()); {
				case !mayName(field):
					continue
				case isKnown(field):
					known++
					if notReferences[name] != "" {
						t.Errorf("%s is a reference, and in the list of those that are not", name)
					}
				case notReferences[name] == "":
					t.Errorf("%s may name a resource: is it a reference? If not, say why in notReferences", name)
				}
				seen[string(field.FullName())] = true
			}
		}
	}
	files.RangeFiles(func(fd protoreflect.FileDescriptor) bool {
		look(fd.Messages())
		return true
	})
	for name := range notReferences {
		if !seen[name] {
			t.Errorf("%s is in the list, and there is no such field", name)
		}
	}
	if known < 50 {
		t.Errorf("%d fields are known as references", known)
	}
}

// mayName reports whether a field may name a resource, or has the source of one.
func mayName(field protoreflect.FieldDescriptor) bool {
	if m := field.Message(); m != nil && !field.IsMap() {
		return m.FullName() == "envoy.config.core.v3.ConfigSource" || m.FullName() == "envoy.config.core.v3.ExtensionConfigSource"
	}
	if field.Kind() != protoreflect.StringKind {
		return false
	}
	has := func(s string) func(string) bool { return func(word string) bool { return strings.Contains(s, word) } }
	return slices.ContainsFunc(fieldWords, has(string(field.Name()))) && !strings.HasSuffix(string(field.Name()), "_runtime") && !strings.HasPrefix(string(field.Name()), "runtime_key") ||
		field.Name() == "name" && slices.ContainsFunc(messageWords, has(string(field.ContainingMessage().Name())))
}

// isKnown reports whether references are found in a field.
func isKnown(field protoreflect.FieldDescriptor) bool {
	of, subscribes := subscriptions[field.ContainingMessage().FullName()]
	return namedType(field) != "" || field.Name() == discovery || subscribes && (field.Name() == of.name || field.Name() == of.source)
}
