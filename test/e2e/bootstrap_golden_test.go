package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Every bootstrap that holdfast makes is read by every Envoy of the matrix: those of bootstrap/testdata and of
// bootstrap/istio/testdata, which the tests of these packages hold to what they build, and the examples of overlays among them.
func TestEnvoyAcceptsEveryGoldenBootstrap(t *testing.T) {
	binary := envoytest.Binary(t)
	files, err := filepath.Glob(filepath.Join(envoytest.Root(t), "bootstrap", "testdata", "golden", "*.yaml"))
	injected, err2 := filepath.Glob(filepath.Join(envoytest.Root(t), "bootstrap", "istio", "testdata", "golden", "*.yaml"))
	if err != nil || err2 != nil || len(files) < 20 || len(injected) < 3 {
		t.Fatalf("only %d and %d golden bootstraps were found, %v, %v", len(files), len(injected), err, err2)
	}
	files = append(files, injected...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), binary, "--mode", "validate", "-c", file,
				"--disable-hot-restart", "--concurrency", "1", "--log-level", "warning").CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// A bootstrap of each transport, with an endpoint for the kubelet and a layer of the runtime, as flags make it: Envoy gets
// everything from the agent, and says so where the kubelet asks.
func TestEnvoyIsConfiguredOverEveryTransportOfTheBootstrap(t *testing.T) {
	for _, transport := range []string{"ads", "grpc", "rest"} {
		t.Run(transport, func(t *testing.T) {
			w := newWorld(t, xdstest.Delta, xdstest.Delta)
			source := map[string]*corev3.ConfigSource{"ads": xdstest.ADS(), "grpc": w.service(), "rest": rest()}[transport]
			layer, err := structpb.NewStruct(map[string]any{"mesh.flag": "on"})
			w.check(err)
			w.cp.Set(clusterFrom(source, "c1", ""), clusterFrom(source, "c2", "c2-endpoints"), w.ingressFrom(source), &runtimev3.Runtime{Name: "mesh", Layer: layer})
			w.startAgent()
			admin := net.JoinHostPort("127.0.0.1", strconv.Itoa(w.freePort()))
			ready := fmt.Sprintf("http://127.0.0.1:%d/healthz/ready", w.freePort())
			file := w.path("envoy.yaml")
			code, out := run(t, "bootstrap", "--out", file, "--node-id", "e2e", "--node-cluster", "e2e", "--socket", w.path("xds.sock"),
				"--xds-transport", transport, "--envoy-admin", admin, "--rtds-layer", "mesh", "--ready-listen", strings.TrimSuffix(ready[len("http://"):], "/healthz/ready"),
				"--validate", "--envoy-binary", envoytest.Binary(t), "--heap-limit", "1Gi", "--max-connections", "1000")
			if code != 0 || out != "" {
				t.Fatalf("bootstrap: %d\n%s", code, out)
			}
			w.envoy = w.runEnvoy(file, admin)
			w.serves("v1")
			w.check(w.envoy.Wait(limit, func() error {
				status, body, err := testbed.Get(ready)
				if err == nil && (status != http.StatusOK || body != "LIVE\n") {
					err = fmt.Errorf("%s answers %d %q", ready, status, body)
				}
				return err
			}))
			if _, body, err := testbed.Get("http://" + admin + "/runtime"); err != nil || !strings.Contains(body, `"mesh.flag"`) {
				t.Errorf("the layer of the control plane is missing: %v\n%s", err, body)
			}
			w.setRoute("v2")
			w.serves("v2")
			w.neverWaited()
		})
	}
}
