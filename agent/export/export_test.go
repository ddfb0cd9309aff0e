package export

import (
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// resources converts messages to resources.
func resources(t *testing.T, messages ...proto.Message) (out []*xds.Resource) {
	t.Helper()
	for _, m := range messages {
		body, ok := m.(*anypb.Any)
		if !ok {
			body = xdstest.Pack(m)
		}
		r, err := xds.FromAny(body.GetTypeUrl(), "1", body, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// build builds an export, and decodes its resources by file.
func build(t *testing.T, cfg Config, messages ...proto.Message) (*Result, map[string][]*anypb.Any) {
	t.Helper()
	cfg.Dir = "/lkg"
	if cfg.Bootstrap == nil {
		cfg.Bootstrap = &bootstrapv3.Bootstrap{}
		cfg.Own = true
	}
	res, err := Build(resources(t, messages...), cfg)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]*anypb.Any)
	for _, f := range res.Files {
		var resp discoveryv3.DiscoveryResponse
		if strings.HasSuffix(f.Name, ".pb") {
			err = proto.Unmarshal(f.Data, &resp)
		} else {
			err = protojson.UnmarshalOptions{Resolver: envoytypes.Resolver}.Unmarshal(f.Data, &resp)
		}
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		if f.Secret != strings.HasPrefix(f.Name, "secrets/") {
			t.Errorf("%s is secret: %t", f.Name, f.Secret)
		}
		files[f.Name] = resp.GetResources()
	}
	return res, files
}

func as[M any, P interface {
	*M
	proto.Message
}](t *testing.T, a *anypb.Any) *M {
	t.Helper()
	var m M
	if err := a.UnmarshalTo(P(&m)); err != nil {
		t.Fatal(err)
	}
	return &m
}

// withManager builds a listener around a connection manager; managerOf returns the manager of one.
func withManager(t *testing.T, change func(*hcmv3.HttpConnectionManager)) *listenerv3.Listener {
	t.Helper()
	l := xdstest.Listener("l", 1, "r")
	filter := l.GetFilterChains()[0].GetFilters()[0]
	m := as[hcmv3.HttpConnectionManager](t, filter.GetTypedConfig())
	change(m)
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(m)}
	return l
}

func managerOf(t *testing.T, a *anypb.Any) *hcmv3.HttpConnectionManager {
	t.Helper()
	l := as[listenerv3.Listener](t, a)
	return as[hcmv3.HttpConnectionManager](t, l.GetFilterChains()[0].GetFilters()[0].GetTypedConfig())
}

func TestEndpointsArePutIntoTheirClusters(t *testing.T) {
	static := xdstest.Cluster("static", "")
	static.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	static.EdsClusterConfig = nil
	res, files := build(t, Config{},
		xdstest.Cluster("a", ""), xdstest.Cluster("b", "other"), xdstest.Cluster("c", ""), static,
		xdstest.CLA("a", "127.0.0.1:1"), xdstest.CLA("other", "127.0.0.1:2"), xdstest.CLA("unused", "127.0.0.1:3"))
	want := map[string]uint32{"a": 1, "b": 2, "c": 0, "static": 0}
	for _, body := range files["clusters.json"] {
		c := as[clusterv3.Cluster](t, body)
		var port uint32
		if e := c.GetLoadAssignment().GetEndpoints(); len(e) > 0 {
			port = e[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetPortValue()
		}
		if c.GetType() != clusterv3.Cluster_STATIC || c.GetEdsClusterConfig() != nil || port != want[c.GetName()] {
			t.Errorf("%s: %v, port %d", c.GetName(), c.GetType(), port)
		}
		delete(want, c.GetName())
	}
	if len(want) > 0 || res.Counts[xds.ClusterType] != 4 || res.Counts[xds.EndpointType] != 2 {
		t.Errorf("missing %v, counted %v", want, res.Counts)
	}
	if !slices.Equal(res.Missing, []string{`CDS "c": EDS "c" is not stored`}) {
		t.Errorf("missing: %q", res.Missing)
	}
}

func TestRoutesArePutIntoTheirListeners(t *testing.T) {
	onDemand := xdstest.Route("r", "c")
	onDemand.Vhds = &routev3.Vhds{ConfigSource: xdstest.ADS()}
	extra, err := anypb.New(&routev3.VirtualHost{Name: "r/more", Domains: []string{"more"}})
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := anypb.New(&routev3.VirtualHost{Name: "other/host", Domains: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	res, files := build(t, Config{}, xdstest.Listener("l", 1, "r"), onDemand, extra, stranger)
	route := managerOf(t, files["listeners.json"][0]).GetRouteConfig()
	if route.GetVhds() != nil || len(route.GetVirtualHosts()) != 2 || route.GetVirtualHosts()[1].GetName() != "r/more" {
		t.Errorf("the routes are %v", route)
	}
	if len(res.Missing) > 0 || res.Counts[xds.VirtualHostType] != 1 {
		t.Errorf("missing %q, counted %v", res.Missing, res.Counts)
	}
	res, _ = build(t, Config{}, xdstest.Listener("l", 1, "none"))
	if !slices.Equal(res.Missing, []string{`LDS "l": RDS "none" is not stored`}) {
		t.Errorf("missing: %q", res.Missing)
	}
}

func TestScopesAreWrittenOut(t *testing.T) {
	l := withManager(t, func(m *hcmv3.HttpConnectionManager) {
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmv3.ScopedRoutes{
			Name: "s", RdsConfigSource: xdstest.ADS(),
			ConfigSpecifier: &hcmv3.ScopedRoutes_ScopedRds{ScopedRds: &hcmv3.ScopedRds{ScopedRdsConfigSource: xdstest.ADS()}},
		}}
	})
	res, files := build(t, Config{}, l, xdstest.Route("r1", "c"),
		&routev3.ScopedRouteConfiguration{Name: "b", RouteConfigurationName: "r1"},
		&routev3.ScopedRouteConfiguration{Name: "a", RouteConfigurationName: "r1"})
	list := managerOf(t, files["listeners.json"][0]).GetScopedRoutes().GetScopedRouteConfigurationsList().GetScopedRouteConfigurations()
	if len(list) != 2 || list[0].GetName() != "a" || list[1].GetRouteConfiguration().GetName() != "r1" || len(res.Missing) > 0 {
		t.Errorf("scopes %v, missing %q", list, res.Missing)
	}
}

func TestFiltersGetTheirConfiguration(t *testing.T) {
	fetched := func(fallback *anypb.Any) proto.Message {
		return withManager(t, func(m *hcmv3.HttpConnectionManager) {
			m.RouteSpecifier = nil
			m.HttpFilters = []*hcmv3.HttpFilter{{Name: "f", ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
				ConfigDiscovery: &corev3.ExtensionConfigSource{ConfigSource: xdstest.ADS(), DefaultConfig: fallback},
			}}}
		})
	}
	router := xdstest.Pack(&routerv3.Router{SuppressEnvoyHeaders: true})
	for name, c := range map[string]struct {
		messages []proto.Message
		missing  int
		found    bool
	}{
		"stored":         {[]proto.Message{fetched(nil), &corev3.TypedExtensionConfig{Name: "f", TypedConfig: router}}, 0, true},
		"only a default": {[]proto.Message{fetched(router)}, 0, true},
		"nothing":        {[]proto.Message{fetched(nil)}, 2, false},
	} {
		res, files := build(t, Config{}, c.messages...)
		got := managerOf(t, files["listeners.json"][0]).GetHttpFilters()[0].GetTypedConfig()
		if proto.Equal(got, router) != c.found || len(res.Missing) != c.missing {
			t.Errorf("%s: %v, missing %q", name, got, res.Missing)
		}
	}
}

// A private key is only written on request, and to a file of its own.
func TestSecretsAreWrittenWhenAskedFor(t *testing.T) {
	const name = "../spiffe://a/b"
	l := xdstest.Listener("l", 1, "r")
	l.GetFilterChains()[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: xdstest.Pack(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: name, SdsConfig: xdstest.ADS()}},
		}}),
	}}
	messages := []proto.Message{l, xdstest.Route("r", "c"), xdstest.Secret(name, []byte("cert"), []byte("the-key"))}
	for _, with := range []bool{false, true} {
		res, files := build(t, Config{Secrets: with}, messages...)
		listener := as[listenerv3.Listener](t, files["listeners.json"][0])
		tls := as[tlsv3.DownstreamTlsContext](t, listener.GetFilterChains()[0].GetTransportSocket().GetTypedConfig())
		path := tls.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs()[0].GetSdsConfig().GetPathConfigSource().GetPath()
		if path != "/lkg/secrets/%2E.%2Fspiffe%3A%2F%2Fa%2Fb.json" {
			t.Errorf("the secret is expected in %q", path)
		}
		if n := len(files[strings.TrimPrefix(path, "/lkg/")]); (n == 1) != with || (len(res.Missing) == 0) != with {
			t.Errorf("asked for: %t, written: %d, missing %q", with, n, res.Missing)
		}
		if !with {
			for _, f := range res.Files {
				if strings.Contains(string(f.Data), "the-key") || strings.Contains(string(f.Data), "dGhlLWtleQ") {
					t.Errorf("%s has the key", f.Name)
				}
			}
		}
	}
}

// What verifies peers is no secret.
func TestACAIsWrittenInAnyCase(t *testing.T) {
	l := xdstest.Listener("l", 1, "r")
	l.GetFilterChains()[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: xdstest.Pack(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: "ca", SdsConfig: xdstest.ADS()}},
		}}),
	}}
	ca := &tlsv3.Secret{Name: "ca", Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{}}}
	res, files := build(t, Config{}, l, xdstest.Route("r", "c"), ca)
	if len(files["secrets/ca.json"]) != 1 || len(res.Missing) > 0 {
		t.Errorf("%d written, missing %q", len(files["secrets/ca.json"]), res.Missing)
	}
}

// The private key provider is of a type of contrib, and Envoy must find the file under its name.
func TestASecretOfAnUnknownTypeIsReadFromItsBinaryFile(t *testing.T) {
	unknown := &anypb.Any{TypeUrl: "type.googleapis.com/vendor.Keys", Value: []byte{0x0a, 1, 'x'}}
	secret := &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		PrivateKeyProvider: &tlsv3.PrivateKeyProvider{ProviderName: "p", ConfigType: &tlsv3.PrivateKeyProvider_TypedConfig{TypedConfig: unknown}},
	}}}
	l := xdstest.Listener("l", 1, "r")
	l.GetFilterChains()[0].TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: xdstest.Pack(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "s", SdsConfig: xdstest.ADS()}},
		}}),
	}}
	_, files := build(t, Config{Secrets: true}, l, xdstest.Route("r", "c"), secret)
	listener := as[listenerv3.Listener](t, files["listeners.json"][0])
	tls := as[tlsv3.DownstreamTlsContext](t, listener.GetFilterChains()[0].GetTransportSocket().GetTypedConfig())
	path := tls.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs()[0].GetSdsConfig().GetPathConfigSource().GetPath()
	if path != "/lkg/secrets/s.pb" || len(files["secrets/s.pb"]) != 1 {
		t.Errorf("the listener reads %q, and %d secrets are in secrets/s.pb", path, len(files["secrets/s.pb"]))
	}
}

// The filter is of a type that is not linked into this program, but it is known.
func TestWhatAFilterRefersToIsReplacedThoughItIsNotLinked(t *testing.T) {
	url := xdstest.Unlinked(t, "envoy.extensions.filters.http.oauth2.v3.OAuth2")
	var filter anypb.Any
	err := protojson.UnmarshalOptions{Resolver: envoytypes.Resolver}.Unmarshal([]byte(`{"@type": "`+url+`", "config": {
		"token_endpoint": {"uri": "https://a", "cluster": "b", "timeout": "1s"},
		"credentials": {"client_id": "c", "token_secret": {"name": "s", "sds_config": {"ads": {}}}}}}`), &filter)
	if err != nil {
		t.Fatal(err)
	}
	l := withManager(t, func(m *hcmv3.HttpConnectionManager) {
		m.HttpFilters = []*hcmv3.HttpFilter{{Name: "f", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: &filter}}}
	})
	res, files := build(t, Config{Secrets: true}, l, xdstest.Route("r", "c"), xdstest.Secret("s", []byte("cert"), []byte("key")))
	got := managerOf(t, files["listeners.json"][0]).GetHttpFilters()[0].GetTypedConfig()
	text := protojson.MarshalOptions{Resolver: envoytypes.Resolver}.Format(got)
	for _, want := range []string{`"/lkg/secrets/s.json"`, `"https://a"`, `"client`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
	if strings.Contains(text, `"ads"`) || len(files["secrets/s.json"]) != 1 || len(res.Missing) > 0 {
		t.Errorf("%s\n%d secrets, missing %q", text, len(files["secrets/s.json"]), res.Missing)
	}
}

// A message of an unknown type is copied unchanged, which JSON cannot represent.
func TestAnUnknownTypeMakesABinaryFile(t *testing.T) {
	l := xdstest.Listener("l", 1, "r")
	unknown := &anypb.Any{TypeUrl: "type.googleapis.com/vendor.Thing", Value: []byte{0x0a, 1, 'x'}}
	l.ListenerFilters = []*listenerv3.ListenerFilter{{Name: "f", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: unknown}}}
	res, files := build(t, Config{}, l, xdstest.Route("r", "c"))
	got := as[listenerv3.Listener](t, files["listeners.pb"][0])
	if !proto.Equal(got.GetListenerFilters()[0].GetTypedConfig(), unknown) || res.Listeners != "listeners.pb" {
		t.Errorf("%s: %v", res.Listeners, got)
	}
	if len(res.Missing) > 0 || len(res.Notes) != 1 || !strings.Contains(res.Notes[0], "vendor.Thing is not known to this version") {
		t.Errorf("missing: %q, notes: %q", res.Missing, res.Notes)
	}
}

func TestNothingMakesTwoEmptyFiles(t *testing.T) {
	res, files := build(t, Config{})
	if len(files) != 2 || res.Clusters != "clusters.json" || len(files["listeners.json"]) != 0 {
		t.Errorf("%+v", res)
	}
}

// Envoy needs the credential in a listener, so the export contains it, readable for its owner
// only.
func TestAFileWithACredentialIsForItsOwnerOnly(t *testing.T) {
	route := xdstest.Route("r", "c")
	route.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: "Bearer token-0123456789"}}}
	res, err := Build(resources(t, xdstest.StaticCluster("c", "127.0.0.1:1"), xdstest.Listener("l", 1, "r"), route), Config{Dir: "/lkg", Bootstrap: &bootstrapv3.Bootstrap{}, Own: true})
	if err != nil {
		t.Fatal(err)
	}
	secret := make(map[string]bool)
	for _, f := range res.Files {
		secret[f.Name] = f.Secret
		if f.Name == res.Listeners && !strings.Contains(string(f.Data), "Bearer token-0123456789") {
			t.Error("the credential is missing: Envoy could not start as it was")
		}
	}
	for name, want := range map[string]bool{res.Clusters: false, res.Listeners: true} {
		if secret[name] != want {
			t.Errorf("%s is secret: %v, want %v", name, !want, want)
		}
	}
}
