package export

import (
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// own is a bootstrap that uses an agent, with much of its own.
const own = `{
	"node": {"id": "a", "cluster": "b"},
	"admin": {"address": {"pipe": {"path": "/run/envoy.sock"}}},
	"dynamic_resources": {
		"ads_config": {"api_type": "DELTA_GRPC", "grpc_services": [{"envoy_grpc": {"cluster_name": "agent"}}]},
		"cds_config": {"ads": {}}, "lds_config": {"ads": {}}
	},
	"default_config_source": {"ads": {}},
	"config_sources": [{"ads": {}, "authorities": [{"name": "x"}]}],
	"static_resources": {
		"clusters": [
			{"name": "agent", "type": "STATIC"}, {"name": "tracing", "type": "STATIC"},
			{"name": "dynamic", "type": "EDS", "eds_cluster_config": {"eds_config": {"ads": {}}}}
		],
		"secrets": [{"name": "static"}]
	},
	"layered_runtime": {"layers": [
		{"name": "first", "static_layer": {"a": 1}},
		{"name": "second", "rtds_layer": {"name": "layer", "rtds_config": {"ads": {}}}},
		{"name": "last", "admin_layer": {}}
	]},
	"bootstrap_extensions": [{"name": "envoy.bootstrap.internal_listener",
		"typed_config": {"@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener"}}]
}`

func ownBootstrap(t *testing.T) *bootstrapv3.Bootstrap {
	t.Helper()
	b := &bootstrapv3.Bootstrap{}
	if err := (protojson.UnmarshalOptions{Resolver: envoytypes.Resolver}).Unmarshal([]byte(own), b); err != nil {
		t.Fatal(err)
	}
	return b
}

func namesOf(clusters []*clusterv3.Cluster) (names []string) {
	for _, c := range clusters {
		names = append(names, c.GetName())
	}
	return names
}

func TestWhatIsInTheBootstrapAndNeedsNoAgentStays(t *testing.T) {
	base := ownBootstrap(t)
	values, err := structpb.NewStruct(map[string]any{"b": 2})
	if err != nil {
		t.Fatal(err)
	}
	res, _ := build(t, Config{Bootstrap: base, Own: true}, xdstest.CLA("dynamic", "127.0.0.1:1"), &runtimev3.Runtime{Name: "layer", Layer: values})
	if !proto.Equal(base, ownBootstrap(t)) {
		t.Error("the bootstrap that was given is modified")
	}
	b := res.Bootstrap
	if got := namesOf(b.GetStaticResources().GetClusters()); !slices.Equal(got, []string{"tracing", "dynamic"}) {
		t.Errorf("static clusters: %v", got)
	}
	if c := b.GetStaticResources().GetClusters()[1]; c.GetType() != clusterv3.Cluster_STATIC || len(c.GetLoadAssignment().GetEndpoints()) != 1 {
		t.Errorf("the static cluster with endpoints of the agent is %v", c)
	}
	layers := b.GetLayeredRuntime().GetLayers()
	if len(layers) != 3 || layers[1].GetName() != "second" || !proto.Equal(layers[1].GetStaticLayer(), values) {
		t.Errorf("the runtime is %v", layers)
	}
	d := b.GetDynamicResources()
	if d.GetAdsConfig() != nil || d.GetCdsConfig().GetPathConfigSource().GetPath() != "/lkg/clusters.json" || d.GetLdsConfig().GetPathConfigSource().GetPath() != "/lkg/listeners.json" {
		t.Errorf("the sources are %v", d)
	}
	if b.GetDefaultConfigSource() != nil || len(b.GetConfigSources()) != 0 || len(b.GetBootstrapExtensions()) != 1 || len(b.GetStaticResources().GetSecrets()) != 1 || b.GetAdmin() == nil {
		t.Errorf("the rest is %v", b)
	}
	if len(res.Missing)+len(res.Notes) > 0 || res.Secret {
		t.Errorf("missing %q, notes %q, secret %t", res.Missing, res.Notes, res.Secret)
	}
	// Without what is stored it is said what is not there.
	res, _ = build(t, Config{Bootstrap: base, Own: true})
	if !slices.Equal(res.Missing, []string{`bootstrap: EDS "dynamic" is not stored`, `runtime layer "second": RTDS "layer" is not stored`}) {
		t.Errorf("missing: %q", res.Missing)
	}
}

// Something else goes through the agent, as reports of load do.
func TestTheClusterOfTheAgentStaysIfSomethingElseUsesIt(t *testing.T) {
	base := ownBootstrap(t)
	base.HdsConfig = base.GetDynamicResources().GetAdsConfig()
	base.GetStaticResources().Clusters = base.GetStaticResources().GetClusters()[:2]
	base.LayeredRuntime = nil
	res, _ := build(t, Config{Bootstrap: base, Own: true})
	if got := namesOf(res.Bootstrap.GetStaticResources().GetClusters()); !slices.Contains(got, "agent") || len(res.Missing) > 0 || len(res.Notes) != 1 {
		t.Errorf("clusters %v, missing %q, notes %q", got, res.Missing, res.Notes)
	}
}

// A source of the user's own is not the agent's business.
func TestAFileOfClustersOfTheUserStays(t *testing.T) {
	base := &bootstrapv3.Bootstrap{DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{CdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: "/mine.yaml"}},
	}}}
	res, _ := build(t, Config{Bootstrap: base, Own: true}, xdstest.Listener("l", 1, "r"), xdstest.Route("r", "c"))
	if got := res.Bootstrap.GetDynamicResources(); got.GetCdsConfig().GetPathConfigSource().GetPath() != "/mine.yaml" || got.GetLdsConfig().GetPathConfigSource().GetPath() != "/lkg/listeners.json" {
		t.Errorf("the sources are %v", got)
	}
}

// With the node alone nobody knows what the Envoy has of its own: what only that can give is missing.
func TestWithoutTheBootstrapItIsSaidWhatIsNeededOfIt(t *testing.T) {
	internal := xdstest.StaticCluster("c", "127.0.0.1:1")
	internal.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].HostIdentifier = &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
		Address: &corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{EnvoyInternalAddress: &corev3.EnvoyInternalAddress{
			AddressNameSpecifier: &corev3.EnvoyInternalAddress_ServerListenerName{ServerListenerName: "inner"},
		}}},
	}}
	inner := &listenerv3.Listener{Name: "inner", ListenerSpecifier: &listenerv3.Listener_InternalListener{InternalListener: &listenerv3.Listener_InternalListenerConfig{}}}
	l := xdstest.Listener("l", 1, "r")
	l.GetFilterChains()[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: xdstest.Pack(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "static"}},
		}}),
	}}
	messages := []proto.Message{internal, inner, l, xdstest.Route("r", "elsewhere")}
	for _, known := range []bool{false, true} {
		res, _ := build(t, Config{Bootstrap: &bootstrapv3.Bootstrap{}, Own: known}, messages...)
		if known {
			if len(res.Missing) > 0 {
				t.Errorf("with Envoy's own bootstrap: %q", res.Missing)
			}
			continue
		}
		text := strings.Join(res.Missing, "\n")
		for _, want := range []string{`CDS "c": the bootstrap extension`, `LDS "inner": the bootstrap extension`, `LDS "l": the static secret "static"`, `LDS "l": the cluster "elsewhere"`} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in\n%s", want, text)
			}
		}
		if len(res.Missing) != 4 {
			t.Errorf("missing: %q", res.Missing)
		}
	}
}

// In a listener the default of validate_clusters is true, and from RDS false.
func TestARouteToNowhereIsNoReasonToRejectTheListener(t *testing.T) {
	_, files := build(t, Config{}, xdstest.Listener("l", 1, "r"), xdstest.Route("r", "nowhere"))
	if v := managerOf(t, files["listeners.json"][0]).GetRouteConfig().GetValidateClusters(); v == nil || v.GetValue() {
		t.Errorf("validate_clusters is %v", v)
	}
	scopes := withManager(t, func(m *hcmv3.HttpConnectionManager) {
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmv3.ScopedRoutes{
			Name: "s", RdsConfigSource: xdstest.ADS(),
			ConfigSpecifier: &hcmv3.ScopedRoutes_ScopedRds{ScopedRds: &hcmv3.ScopedRds{ScopedRdsConfigSource: xdstest.ADS()}},
		}}
	})
	_, files = build(t, Config{}, scopes, xdstest.Route("r", "nowhere"), &routev3.ScopedRouteConfiguration{Name: "b", RouteConfigurationName: "r"})
	list := managerOf(t, files["listeners.json"][0]).GetScopedRoutes().GetScopedRouteConfigurationsList().GetScopedRouteConfigurations()
	if v := list[0].GetRouteConfiguration().GetValidateClusters(); v == nil || v.GetValue() {
		t.Errorf("of a scope, validate_clusters is %v", v)
	}
}

func TestEnvoyCanBeAskedAboutAll(t *testing.T) {
	base := ownBootstrap(t)
	base.GetStaticResources().Clusters = base.GetStaticResources().GetClusters()[:2]
	base.LayeredRuntime = nil
	res, _ := build(t, Config{Bootstrap: base, Own: true}, xdstest.Listener("l", 1, "r"), xdstest.Route("r", "c"), xdstest.StaticCluster("c", "127.0.0.1:1"), xdstest.StaticCluster("tracing", "127.0.0.1:2"))
	whole, err := res.Static()
	if err != nil {
		t.Fatal(err)
	}
	if got := namesOf(whole.GetStaticResources().GetClusters()); !slices.Equal(got, []string{"tracing", "c"}) || len(whole.GetStaticResources().GetListeners()) != 1 || whole.GetDynamicResources() != nil {
		t.Errorf("it is %v", whole)
	}
	if res.Bootstrap.GetDynamicResources() == nil || len(res.Bootstrap.GetStaticResources().GetListeners()) != 0 {
		t.Error("the export itself is modified")
	}
}
