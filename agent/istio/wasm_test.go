package istio

import (
	"strings"
	"testing"

	udpatypev1 "github.com/cncf/xds/go/udpa/type/v1"
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/composite/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func remote(cluster string) *corev3.AsyncDataSource {
	return &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
		HttpUri: &corev3.HttpUri{Uri: "oci://user:hush@registry.example/m:1", HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: cluster}},
		Sha256:  "nil",
	}}}
}

func plugin(code *corev3.AsyncDataSource) *wasmv3.PluginConfig {
	return &wasmv3.PluginConfig{Name: "p", Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{Code: code}}}
}

func httpFilter(cluster string) *anypb.Any {
	return xdstest.Pack(&httpwasmv3.Wasm{Config: plugin(remote(cluster))})
}

func networkFilter(cluster string) *anypb.Any {
	return xdstest.Pack(&networkwasmv3.Wasm{Config: plugin(remote(cluster))})
}

// structure returns a filter as a Struct, with the placeholder.
func structure(t *testing.T, vmConfig, httpURI string) *structpb.Struct {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{"config": map[string]any{vmConfig: map[string]any{"code": map[string]any{
		"remote": map[string]any{httpURI: map[string]any{"uri": "https://x.example/m", "cluster": "_"}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func extension(config *anypb.Any) proto.Message {
	return &corev3.TypedExtensionConfig{Name: "r", TypedConfig: config}
}

func listener(filter *listenerv3.Filter) proto.Message {
	l := xdstest.Listener("r", 1, "route")
	l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{Filters: []*listenerv3.Filter{filter}})
	return l
}

func network(config *anypb.Any) *listenerv3.Filter {
	return &listenerv3.Filter{Name: "f", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config}}
}

func connectionManager(config *anypb.Any) *listenerv3.Filter {
	return network(xdstest.Pack(&hcmv3.HttpConnectionManager{HttpFilters: []*hcmv3.HttpFilter{
		{Name: "f", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: config}},
	}}))
}

func resource(m proto.Message) *xds.Resource {
	body := xdstest.Pack(m)
	return &xds.Resource{Type: body.GetTypeUrl(), Name: "r", Body: body}
}

func TestAModuleThatTheAgentIsExpectedToDownloadIsRejected(t *testing.T) {
	failOpen, policy := plugin(remote("_")), plugin(remote("_"))
	//lint:ignore SA1019 an istiod may still send it
	failOpen.FailOpen = true
	policy.FailurePolicy = wasmv3.FailurePolicy_FAIL_OPEN
	local := &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Local{Local: &corev3.DataSource{
		Specifier: &corev3.DataSource_Filename{Filename: "/m.wasm"},
	}}}
	const name = "type.googleapis.com/" + httpWasm
	fallback := xdstest.Listener("r", 1, "route")
	fallback.DefaultFilterChain = &listenerv3.FilterChain{Filters: []*listenerv3.Filter{connectionManager(httpFilter("_"))}}
	composite := xdstest.Pack(&compositev3.ExecuteFilterAction{TypedConfig: &corev3.TypedExtensionConfig{Name: "x", TypedConfig: httpFilter("_")}})
	for _, tc := range []struct {
		name     string
		resource proto.Message
		rejected bool
	}{
		{"an HTTP filter by ECDS", extension(httpFilter("_")), true},
		{"a network filter by ECDS", extension(networkFilter("_")), true},
		{"a failure policy that lets requests pass", extension(xdstest.Pack(&httpwasmv3.Wasm{Config: policy})), true},
		{"the deprecated fail_open", extension(xdstest.Pack(&httpwasmv3.Wasm{Config: failOpen})), true},
		{"a TypedStruct", extension(xdstest.Pack(&xdstypev3.TypedStruct{TypeUrl: name, Value: structure(t, "vm_config", "http_uri")})), true},
		{"an old TypedStruct with names as in JSON", extension(xdstest.Pack(&udpatypev1.TypedStruct{TypeUrl: name, Value: structure(t, "vmConfig", "httpUri")})), true},
		{"a filter in another one", extension(composite), true},
		{"an HTTP filter in a listener", listener(connectionManager(httpFilter("_"))), true},
		{"a network filter in a listener", listener(network(networkFilter("_"))), true},
		{"the default filter chain", fallback, true},
		{"a TypedStruct in a listener", listener(connectionManager(xdstest.Pack(&xdstypev3.TypedStruct{TypeUrl: name, Value: structure(t, "vm_config", "http_uri")}))), true},
		{"a module that Envoy fetches from a cluster", extension(httpFilter("modules")), false},
		{"such a module in a listener", listener(network(networkFilter("modules"))), false},
		{"a local module", extension(xdstest.Pack(&httpwasmv3.Wasm{Config: plugin(local)})), false},
		{"another type in a TypedStruct", extension(xdstest.Pack(&xdstypev3.TypedStruct{TypeUrl: "x/envoy.extensions.access_loggers.wasm.v3.WasmAccessLog", Value: structure(t, "vm_config", "http_uri")})), false},
		{"a listener without Wasm", xdstest.Listener("r", 1, "route"), false},
		{"a type that is not looked at", &listenerv3.Filter{Name: "f", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: networkFilter("_")}}, false},
		{"what cannot be decoded", extension(&anypb.Any{TypeUrl: name, Value: []byte("\xff.wasm.v3.Wasm")}), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := resource(tc.resource)
			err := CheckResource(r)
			if (err != nil) != tc.rejected {
				t.Fatalf("the error is %v", err)
			}
			if err == nil {
				return
			}
			for _, want := range []string{xds.Short(r.Type) + ` "r"`, "holdfast does not download Wasm modules yet", "remove the WasmPlugin"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q: %v", want, err)
				}
			}
			if strings.Contains(err.Error(), "hush") {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}

func TestAMessageThatNestsWithoutEndIsLeftToEnvoy(t *testing.T) {
	body := httpFilter("_")
	for range 1000 {
		body = xdstest.Pack(&compositev3.ExecuteFilterAction{TypedConfig: &corev3.TypedExtensionConfig{TypedConfig: body}})
	}
	if err := CheckResource(resource(extension(body))); err != nil {
		t.Error(err)
	}
}

func BenchmarkCheckResource(b *testing.B) {
	r := resource(listener(connectionManager(xdstest.Pack(&corev3.TypedExtensionConfig{Name: strings.Repeat("x", 10_000)}))))
	for b.Loop() {
		if err := CheckResource(r); err != nil {
			b.Fatal(err)
		}
	}
}

// A URL may have a signature in its query.
func TestTheReasonDoesNotShowTheQueryOfAModule(t *testing.T) {
	for uri, want := range map[string]string{
		"https://x.example/m.wasm":                            "https://x.example/m.wasm",
		"https://user:pw@x.example/m.wasm?token=secret&a=b?c": "https://[redacted]@x.example/m.wasm?[redacted]",
		"https://x.example/m.wasm#secret":                     "https://x.example/m.wasm#[redacted]",
		"https://user:hu?sh@x.example/m.wasm?token=secret":    "https://[redacted]@x.example/m.wasm?[redacted]",
	} {
		if got := withoutQuery(uri); got != want {
			t.Errorf("%s: %s, want %s", uri, got, want)
		}
	}
}
