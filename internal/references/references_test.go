package references

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest/fromyaml"
)

func TestReferencesAreFoundWithTheirFields(t *testing.T) {
	for _, tc := range []struct {
		name, typeURL, text string
		want                []string
	}{
		{"a cluster names its endpoints", xds.ClusterType, "name: a\ntype: EDS\neds_cluster_config: {eds_config: {ads: {}}}",
			[]string{"EDS a at eds_cluster_config"}},
		{"a cluster names its endpoints by another name", xds.ClusterType, "name: a\ntype: EDS\neds_cluster_config: {service_name: b, eds_config: {ads: {}}}",
			[]string{"EDS b at eds_cluster_config"}},
		{"the cluster of a control plane is in the bootstrap", xds.ClusterType,
			"name: a\ntype: EDS\neds_cluster_config: {eds_config: {api_config_source: {api_type: GRPC, grpc_services: [{envoy_grpc: {cluster_name: xds}}]}}}",
			[]string{"EDS a at eds_cluster_config"}},
		{"endpoints from a file are no reference", xds.ClusterType, "name: a\ntype: EDS\neds_cluster_config: {eds_config: {path_config_source: {path: /eds}}}", nil},
		{"a listener may have filter chains from everywhere", xds.ListenerType, "name: a\nfcds_config: {name: b, config_source: {ads: {}}}", []string{"envoy.config.listener.v3.FilterChain all at fcds_config"}},
		{"a static cluster names nothing", xds.ClusterType, "name: a\ntype: STATIC\nload_assignment: {cluster_name: b}", nil},
		{"an aggregate cluster names its clusters", xds.ClusterType,
			"name: a\ncluster_type:\n  name: x\n  typed_config: {\"@type\": type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig, clusters: [b, c]}",
			[]string{"CDS b at cluster_type.typed_config.clusters[0]", "CDS c at cluster_type.typed_config.clusters[1]"}},
		{"a cluster names its secrets", xds.ClusterType, `
name: a
transport_socket:
  name: tls
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    common_tls_context:
      tls_certificate_sds_secret_configs: [{name: own, sds_config: {ads: {}}}, {name: file, sds_config: {path_config_source: {path: /sds}}}, {name: static}]
      combined_validation_context: {default_validation_context: {}, validation_context_sds_secret_config: {name: roots, sds_config: {ads: {}}}}`,
			[]string{"SDS own at transport_socket.typed_config.common_tls_context.tls_certificate_sds_secret_configs[0].name",
				"SDS roots at transport_socket.typed_config.common_tls_context.combined_validation_context.validation_context_sds_secret_config.name"}},
		{"a listener names routes, filters' configurations and clusters", xds.ListenerType, `
name: a
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      rds: {route_config_name: r, config_source: {ads: {}}}
      http_filters:
      - name: ecds
        config_discovery: {config_source: {ads: {}}, type_urls: [x]}
      - name: with a default
        config_discovery: {config_source: {ads: {}}, type_urls: [x], default_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
      - name: authz
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
          grpc_service: {envoy_grpc: {cluster_name: authz}}
- filters:
  - name: tcp
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: x
      weighted_clusters: {clusters: [{name: t1, weight: 1}, {name: t2, weight: 2}]}`,
			[]string{"RDS r at filter_chains[0].filters[0].typed_config.rds.route_config_name",
				"ECDS ecds at filter_chains[0].filters[0].typed_config.http_filters[0].config_discovery",
				"ECDS with a default at filter_chains[0].filters[0].typed_config.http_filters[1].config_discovery (has a default)",
				"CDS authz at filter_chains[0].filters[0].typed_config.http_filters[2].typed_config.grpc_service.envoy_grpc.cluster_name",
				"CDS t1 at filter_chains[1].filters[0].typed_config.weighted_clusters.clusters[0].name",
				"CDS t2 at filter_chains[1].filters[0].typed_config.weighted_clusters.clusters[1].name"}},
		{"a listener with scopes names all of them", xds.ListenerType, `
name: a
filter_chains:
- filters:
  - name: http
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      scoped_routes: {name: s, scope_key_builder: {}, scoped_rds: {scoped_rds_config_source: {ads: {}}}}`,
			[]string{"SRDS all at filter_chains[0].filters[0].typed_config.scoped_routes.scoped_rds"}},
		{"a scope names its routes", xds.ScopedRouteType, "name: a\nroute_configuration_name: r", []string{"RDS r at route_configuration_name"}},
		{"a route names clusters, of mirrors too, and virtual hosts", xds.RouteType, `
name: a
vhds: {config_source: {ads: {}}}
virtual_hosts:
- name: v
  routes:
  - route: {cluster: b, request_mirror_policies: [{cluster: m}]}
  - route: {cluster_header: x}
  - route: {weighted_clusters: {clusters: [{name: w1}, {name: w2}]}}
  - direct_response: {status: 200}`,
			[]string{"CDS b at virtual_hosts[0].routes[0].route.cluster",
				"CDS m at virtual_hosts[0].routes[0].route.request_mirror_policies[0].cluster",
				"CDS w1 at virtual_hosts[0].routes[2].route.weighted_clusters.clusters[0].name",
				"CDS w2 at virtual_hosts[0].routes[2].route.weighted_clusters.clusters[1].name",
				"VHDS all at vhds"}},
		{"a typed configuration of a route names a cluster", xds.VirtualHostType, `
name: v
typed_per_filter_config:
  b: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute, check_settings: {grpc_service: {envoy_grpc: {cluster_name: b}}}}
  a: {"@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute, check_settings: {http_service: {server_uri: {uri: x, cluster: a, timeout: 1s}}}}`,
			[]string{`CDS a at typed_per_filter_config["a"].check_settings.http_service.server_uri.cluster`,
				`CDS b at typed_per_filter_config["b"].check_settings.grpc_service.envoy_grpc.cluster_name`}},
		{"the members of a composite cluster", xds.ClusterType, `
name: a
cluster_type:
  name: envoy.clusters.composite
  typed_config: {"@type": type.googleapis.com/envoy.extensions.clusters.composite.v3.ClusterConfig, clusters: [{name: b}, {name: c}]}`,
			[]string{"CDS b at cluster_type.typed_config.clusters[0].name", "CDS c at cluster_type.typed_config.clusters[1].name"}},
		{"a cluster with endpoints behind an internal listener, and a filter of its connections", xds.ClusterType, `
name: a
load_assignment: {cluster_name: a, endpoints: [{lb_endpoints: [{endpoint: {address: {envoy_internal_address: {server_listener_name: inner}}}}]}]}
filters: [{name: upstream, config_discovery: {config_source: {ads: {}}, type_urls: [x]}}]`,
			[]string{"LDS inner at load_assignment.endpoints[0].lb_endpoints[0].endpoint.address.envoy_internal_address.server_listener_name", "ECDS upstream at filters[0].config_discovery"}},
		{"a listener of Thrift, with certificates by the name of the server", xds.ListenerType, `
name: a
filter_chains:
- filters:
  - name: thrift
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.thrift_proxy.v3.ThriftProxy
      stat_prefix: x
      trds: {config_source: {ads: {}}, route_config_name: r}
  transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
      common_tls_context:
        custom_tls_certificate_selector:
          name: on-demand
          typed_config:
            "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.cert_selectors.on_demand_secret.v3.Config
            config_source: {ads: {}}
            certificate_mapper: {name: x, typed_config: {"@type": type.googleapis.com/google.protobuf.Empty}}
            prefetch_secret_names: [s1, s2]`,
			[]string{"TRDS r at filter_chains[0].filters[0].typed_config.trds.route_config_name",
				"SDS s1 at filter_chains[0].transport_socket.typed_config.common_tls_context.custom_tls_certificate_selector.typed_config.prefetch_secret_names[0]",
				"SDS s2 at filter_chains[0].transport_socket.typed_config.common_tls_context.custom_tls_certificate_selector.typed_config.prefetch_secret_names[1]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, r := range Of(fromyaml.Resource(t, tc.typeURL, tc.text)) {
				name := r.Name
				if name == "" {
					name = "all"
				}
				text := fmt.Sprintf("%s %s at %s", xds.Short(r.Type), name, r.Field)
				if r.HasDefault {
					text += " (has a default)"
				}
				got = append(got, text)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got\n%q\nwant\n%q", got, tc.want)
			}
		})
	}
}

func TestABodyOfAnUnknownTypeHasNoReferences(t *testing.T) {
	for _, body := range []*anypb.Any{nil, {}, {TypeUrl: "type.googleapis.com/no.Such", Value: []byte{1}}, {TypeUrl: xds.ClusterType, Value: []byte{1}}} {
		if found := Of(body); found != nil {
			t.Errorf("%v has %v", body, found)
		}
	}
}
