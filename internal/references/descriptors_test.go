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
	if known := checkFields(t, mayName, isKnown, notReferences); known < 50 {
		t.Errorf("%d fields are known as references", known)
	}
}

// checkFields looks at the fields of Envoy's API that may be of a sort: each is known, or is in the list of others, with a reason. It returns how
// many are known.
func checkFields(t *testing.T, mayBe, isKnown func(protoreflect.FieldDescriptor) bool, others map[string]string) (known int) {
	t.Helper()
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
				case !mayBe(field) && !isKnown(field):
					continue
				case isKnown(field):
					known++
					if others[name] != "" {
						t.Errorf("%s is known, and in the list of those that are something else", name)
					}
				case others[name] == "":
					t.Errorf("%s is not known: what is it? Add it to those that are known, or say in the list what else it is", name)
				}
				seen[string(field.FullName())] = true
			}
		}
	}
	files.RangeFiles(func(fd protoreflect.FileDescriptor) bool {
		look(fd.Messages())
		return true
	})
	for name := range others {
		if !seen[name] {
			t.Errorf("%s is in the list, and there is no such field", name)
		}
	}
	return known
}

// notReadFiles says what else a field, by its message, has in which a path may be.
var notReadFiles = map[string]string{
	"envoy.config.bootstrap.v3.Admin.access_log_path":                                                                                                      written,
	"envoy.config.bootstrap.v3.Admin.profile_path":                                                                                                         written,
	"envoy.config.bootstrap.v3.Bootstrap.flags_path":                                                                                                       bootstrap,
	"envoy.config.bootstrap.v3.Bootstrap.perf_tracing_file_path":                                                                                           written,
	"envoy.config.bootstrap.v3.ClusterManager.OutlierDetection.event_log_path":                                                                             written,
	"envoy.config.core.v3.HealthCheck.event_log_path":                                                                                                      written,
	"envoy.config.core.v3.HealthCheck.HttpHealthCheck.path":                                                                                                ofRequests,
	"envoy.config.core.v3.Pipe.path":                                                                                                                       "a socket",
	"envoy.config.core.v3.WatchedDirectory.path":                                                                                                           "a directory that is watched: what is read of it has fields of its own",
	"envoy.config.route.v3.RouteAction.HashPolicy.Cookie.path":                                                                                             ofRequests,
	"envoy.config.route.v3.RouteMatch.path":                                                                                                                ofRequests,
	"envoy.extensions.access_loggers.file.v3.FileAccessLog.path":                                                                                           written,
	"envoy.extensions.clusters.mcp_multicluster.v3.ClusterConfig.McpCluster.path":                                                                          ofRequests,
	"envoy.extensions.filters.http.file_server.v3.FileServerConfig.DirectoryBehavior.default_file":                                                         "a name in a directory that is served",
	"envoy.extensions.filters.http.file_server.v3.FileServerConfig.PathMapping.file_path_prefix":                                                           "a directory that is served, of which requests name the files",
	"envoy.extensions.filters.http.mcp.v3.ParserConfig.AttributeExtractionRule.path":                                                                       ofRequests,
	"envoy.extensions.filters.http.mcp_json_rest_bridge.v3.HttpRule.ParameterBinding.argument_path":                                                        ofRequests,
	"envoy.extensions.filters.http.mcp_json_rest_bridge.v3.McpServerInfo.path":                                                                             ofRequests,
	"envoy.extensions.filters.http.mcp_router.v3.McpRouter.McpCluster.path":                                                                                ofRequests,
	"envoy.extensions.filters.http.oauth2.v3.CookieConfig.path":                                                                                            ofRequests,
	"envoy.extensions.filters.network.reverse_tunnel.v3.ReverseTunnel.request_path":                                                                        ofRequests,
	"envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy.TunnelingConfig.post_path":                                                                     ofRequests,
	"envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig.UdpTunnelingConfig.post_path":                                                                ofRequests,
	"envoy.extensions.health_check.event_sinks.file.v3.HealthCheckEventFileSink.event_log_path":                                                            written,
	"envoy.extensions.http.cache.file_system_http_cache.v3.FileSystemHttpCacheConfig.cache_path":                                                           written,
	"envoy.extensions.http.cache_v2.file_system_http_cache.v3.FileSystemHttpCacheV2Config.cache_path":                                                      written,
	"envoy.extensions.key_value.file_based.v3.FileBasedKeyValueStoreConfig.filename":                                                                       written + " and may be missing",
	"envoy.extensions.network.socket_interface.sockmap.v3.Sockmap.bpf_program_path":                                                                        bootstrap,
	"envoy.extensions.network.socket_interface.sockmap.v3.Sockmap.cgroup_path":                                                                             bootstrap,
	"envoy.extensions.transport_sockets.tls.v3.TlsKeyLog.path":                                                                                             written,
	"envoy.extensions.watchdog.profile_action.v3.ProfileActionConfig.profile_path":                                                                         written,
	"envoy.extensions.bootstrap.reverse_tunnel.downstream_socket_interface.v3.DownstreamReverseConnectionSocketInterface.HttpHandshakeConfig.request_path": ofRequests,
	"envoy.type.http.v3.Cookie.path":                                                                                                                       ofRequests,
}

const (
	written    = "what Envoy writes"
	ofRequests = "of requests"
)

// Finding E7: each field of Envoy's API that may have the path of a file is known, or is in the list above.
func TestEveryFieldThatHasAPathIsKnown(t *testing.T) {
	isKnown := func(field protoreflect.FieldDescriptor) bool {
		return slices.Contains(readFiles[field.ContainingMessage().FullName()], field.Name())
	}
	mayBe := func(field protoreflect.FieldDescriptor) bool {
		name := string(field.Name())
		return field.Kind() == protoreflect.StringKind &&
			(strings.Contains(strings.ReplaceAll(name, "profile", ""), "file") || strings.HasSuffix(name, "path") || strings.HasSuffix(name, "_dir") || name == "library")
	}
	known, all := checkFields(t, mayBe, isKnown, notReadFiles), 0
	for _, fields := range readFiles {
		all += len(fields)
	}
	if known != all {
		t.Errorf("%d fields of the table are there, of %d", known, all)
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
