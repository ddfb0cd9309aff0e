package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/envoy"
)

// webhook are some variables of Istio's webhook.
func webhook(more ...string) []string {
	return append([]string{
		"POD_NAME=web-0", "POD_NAMESPACE=shop", "INSTANCE_IP=10.0.0.1", "SERVICE_ACCOUNT=web", "ISTIO_META_WORKLOAD_NAME=web", "ISTIO_META_CLUSTER_ID=Kubernetes",
		"ISTIO_CPU_LIMIT=3", `PROXY_CONFIG={"drainDuration": "20s", "terminationDrainDuration": "7s", "tracing": {}}`, "HOLDFAST_ISTIO=true",
	}, more...)
}

func TestIstioGivesTheBootstrapOfAnInjectedProxy(t *testing.T) {
	annotations := write(t, "annotations", "proxy.istio.io/config=\"proxyAdminPort: 15001\"\n")
	got := call(t, webhook(), "bootstrap", "--print", "--pod-annotations", annotations)
	if got.code != 0 || got.errors != "holdfast: warning: ProxyConfig: tracing has no effect with holdfast: name a provider in Istio's Telemetry API, or use an overlay\n" {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{
		`id: "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local"`, `cluster: "web.shop"`, `"ENVOY_STATUS_PORT": 15021`, `"ENVOY_PROMETHEUS_PORT": 15090`,
		`name: "sds-grpc"`, "use_all_default_tags: false", "port_value: 15001", `"CLUSTER_ID": "Kubernetes"`,
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %s in\n%s", want, got.out)
		}
	}
	moved := call(t, webhook("ENVOY_STATUS_PORT=16021"), "bootstrap", "--print")
	if moved.code != 0 || !strings.Contains(moved.out, `"ENVOY_STATUS_PORT": 16021`) || !strings.Contains(moved.out, "port_value: 16021") {
		t.Errorf("%+v", moved)
	}
	given := call(t, webhook("HOLDFAST_STATS_LISTEN="), "bootstrap", "--print", "--istio-role", "router", "--ready-listen", ":8000", "--stats-default-tags", "--pod-ip", "fd00::1")
	for _, want := range []string{`id: "router~fd00::1~`, `"ENVOY_STATUS_PORT": 8000`, `address: "::"`, `address: "::1"`} {
		if given.code != 0 || !strings.Contains(given.out, want) {
			t.Errorf("no %s in\n%+v", want, given)
		}
	}
	for _, other := range []string{"ENVOY_PROMETHEUS_PORT", "15090", "use_all_default_tags"} {
		if strings.Contains(given.out, other) {
			t.Errorf("%s in\n%s", other, given.out)
		}
	}
}

func TestWithoutIstioItsVariablesAreMetadataOnly(t *testing.T) {
	got := call(t, webhook("HOLDFAST_ISTIO=false"), "bootstrap", "--print", "--node-cluster", "c")
	if got.code != 0 || strings.Contains(got.out, "PROXY_CONFIG") || strings.Contains(got.out, "sds-grpc") || !strings.Contains(got.out, `"CLUSTER_ID": "Kubernetes"`) {
		t.Errorf("%+v", got)
	}
}

func TestRunTakesItsDrainFromTheProxyConfig(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want envoy.Draining
	}{
		{"by the ProxyConfig", nil, envoy.Draining{Timeout: 7 * time.Second, Min: 5 * time.Second}},
		{"by a flag", []string{"--drain-timeout", "1m"}, envoy.Draining{Timeout: time.Minute, Min: 5 * time.Second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &runFlags{}
			c := newCommand("run", "", "", "")
			f.add(c)
			f.written.add(c, process{stdout: &strings.Builder{}, stderr: &strings.Builder{}})
			c.finish(process{}, map[string]bool{})
			file := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := c.ParseFlags(append([]string{"--write-bootstrap", "--istio", "--out", file}, tc.args...)); err != nil {
				t.Fatal(err)
			}
			var log logFlags
			f.cfg.Log = log.logger(&strings.Builder{}, nil)
			c.child = []string{"envoy"}
			line, err := f.writeBootstrap(t.Context(), webhook(), c)
			if err != nil || f.cfg.Envoy.Draining != tc.want {
				t.Errorf("%+v, want %+v, %v", f.cfg.Envoy.Draining, tc.want, err)
			}
			if got := strings.Join(line, " "); got != "envoy -c "+file+" --concurrency 3 --drain-time-s 20" {
				t.Errorf("Envoy's command line: %s", got)
			}
		})
	}
}
