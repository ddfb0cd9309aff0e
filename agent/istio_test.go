package agent

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpwasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/wasm/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/istio"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// wasmPlugin is an extension configuration as istiod writes it, for pilot-agent to complete.
func wasmPlugin(name string) *corev3.TypedExtensionConfig {
	return &corev3.TypedExtensionConfig{Name: name, TypedConfig: xdstest.Pack(&httpwasmv3.Wasm{Config: &wasmv3.PluginConfig{
		Vm: &wasmv3.PluginConfig_VmConfig{VmConfig: &wasmv3.VmConfig{Code: &corev3.AsyncDataSource{Specifier: &corev3.AsyncDataSource_Remote{Remote: &corev3.RemoteDataSource{
			HttpUri: &corev3.HttpUri{Uri: "oci://registry.example/m:1", HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: "_"}},
		}}}}},
	}})}
}

// Only with Istio is a Wasm module to download rejected, and then the status says why.
func TestAWasmModuleToDownloadIsRejectedWithIstioOnly(t *testing.T) {
	for _, on := range []bool{false, true} {
		inBothForms(t, func(r *rig) {
			if on {
				r.cfg.Istio = &istio.Config{}
			}
			r.cp.Set(wasmPlugin("plugin"))
			r.start()
			c := r.client(xdstest.ClientConfig{Node: node("web-1")})
			c.Subscribe(xds.ExtensionConfigType, "plugin")
			r.quiet()
			if !on {
				r.holds(c, xds.ExtensionConfigType, "plugin")
				return
			}
			r.holds(c, xds.ExtensionConfigType)
			w := httptest.NewRecorder()
			r.agent.surface.Handler().ServeHTTP(w, httptest.NewRequestWithContext(r.Context(), "GET", "/", nil))
			if line := "ECDS: control plane did not provide 1 requested resource (plugin)"; !strings.Contains(w.Body.String(), line) || !strings.Contains(w.Body.String(), "does not download Wasm modules") {
				t.Errorf("the status does not name the plugin, and why it is rejected:\n%s", w.Body)
			}
			found := false
			for row := range r.agent.Resources(admin.Filter{Type: xds.ExtensionConfigType, Name: "plugin"}) {
				found = strings.Contains(row.Error, "does not download Wasm modules")
			}
			if !found {
				t.Error("the dump does not say why")
			}
		})
	}
}

// What is served in place of pilot-agent reaches the agent: its metrics, its end and its drain.
func TestTheAgentStandsInForPilotAgent(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Istio = &istio.Config{}
		r.cfg.Envoy.Admin = "unix:/does/not/exist"
		r.start()
		quits := 0
		mux := http.NewServeMux()
		r.agent.newIstio(r.Context(), func() { quits++ }).Register(mux)
		do := func(method, path string) *httptest.ResponseRecorder {
			w, req := httptest.NewRecorder(), httptest.NewRequestWithContext(r.Context(), method, path, nil)
			req.RemoteAddr = "127.0.0.1:1"
			mux.ServeHTTP(w, req)
			return w
		}
		// The answer itself says which part is missing.
		if got := do("GET", "/stats/prometheus"); got.Code != 200 || !strings.Contains(got.Body.String(), `holdfast_merged_scrapes_total{part="envoy",result="unreachable"} 1`) ||
			!strings.Contains(got.Body.String(), `holdfast_merged_scrapes_total{part="application",result="timeout"} 0`) {
			t.Errorf("%d\n%s", got.Code, got.Body)
		}
		if got := do("POST", "/quitquitquit"); got.Code != 200 || quits != 1 {
			t.Errorf("%d, %d quits", got.Code, quits)
		}
		if got := do("POST", "/drain"); got.Code != 200 || !r.agent.draining() {
			t.Errorf("%d, the agent drains: %t", got.Code, r.agent.draining())
		}
	})
}
