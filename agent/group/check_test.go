package group_test

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/istio"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// remoteWasm is a Wasm filter as istiod writes it, for pilot-agent to complete.
func remoteWasm() proto.Message {
	return &httpwasmv3.Wasm{Config: &wasmv3.PluginConfig{Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{
		Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
			HttpUri: &corev3.HttpUri{Uri: "oci://registry.example/m:1", HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}},
		}}},
	}}}}
}

func extensionConfig(name string, config proto.Message) proto.Message {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: xdstest.Pack(config)}
}

func listenerWith(name string, filter proto.Message) proto.Message {
	l := xdstest.Listener(name, 1, "r1")
	l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
		Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(&hcmv3.HttpConnectionManager{
			HttpFilters: []*hcmv3.HttpFilter{{Name: "f", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: xdstest.Pack(filter)}}},
		})},
	}}})
	return l
}

// nacks returns the reasons of the NACKs of a type.
func (r *rig) nacks(typeURL string) (reasons []string) {
	for _, e := range r.cp.Events() {
		if e.Kind == xdstest.Nack && e.Type == typeURL {
			reasons = append(reasons, e.Error.GetMessage())
		}
	}
	return reasons
}

// A Wasm module that pilot-agent would download is NACKed with the reason, Envoy keeps what it had, and the
// other resources of the response are used.
func TestAWasmModuleToDownloadIsNackedAndNeverReachesEnvoy(t *testing.T) {
	for _, tc := range []struct {
		typeURL      string
		good, bad    func(name string) proto.Message
		subscribesTo []string
	}{
		{xds.ExtensionConfigType, func(name string) proto.Message { return extensionConfig(name, &bufferv3.Buffer{}) },
			func(name string) proto.Message { return extensionConfig(name, remoteWasm()) }, []string{"kept", "new", "other"}},
		{xds.ListenerType, func(name string) proto.Message { return xdstest.Listener(name, 1, "r1") },
			func(name string) proto.Message { return listenerWith(name, remoteWasm()) }, nil},
	} {
		t.Run(xds.Short(tc.typeURL), func(t *testing.T) {
			inAllForms(t, xdstest.Config{}, func(r *rig) {
				r.restartAgentChecking(istio.CheckResource)
				r.mesh()
				r.cp.Remove(xds.ListenerType, "l1")
				r.cp.Set(tc.good("kept"))
				c := r.client(xdstest.ClientConfig{})
				r.envoy(c)
				c.Subscribe(tc.typeURL, tc.subscribesTo...)
				r.quiet()
				r.holds(c, tc.typeURL, "kept")
				before := c.Held(tc.typeURL)["kept"]

				r.cp.Set(tc.bad("kept"), tc.bad("new"), tc.good("other"))
				r.quiet()
				r.holds(c, tc.typeURL, "kept", "other")
				if after := c.Held(tc.typeURL)["kept"]; !proto.Equal(after, before) {
					t.Errorf("the client was sent another content of what it had: %v, then %v", before, after)
				}
				reasons := r.nacks(tc.typeURL)
				if len(reasons) != 1 || strings.Count(reasons[0], "holdfast does not download Wasm modules yet") != 2 {
					t.Errorf("the NACKs are %q, want one that names both resources", reasons)
				}
				for _, name := range []string{"kept", "new"} {
					if got := r.errorOf(tc.typeURL, name); !strings.Contains(got, "does not download Wasm modules") {
						t.Errorf("the dump says of %s: %q", name, got)
					}
				}

				r.cp.Set(tc.good("kept"), tc.good("new"))
				r.quiet()
				r.holds(c, tc.typeURL, "kept", "new", "other")
				if got := r.errorOf(tc.typeURL, "kept"); got != "" {
					t.Errorf("after a usable one the dump says %q", got)
				}
			})
		})
	}
}
