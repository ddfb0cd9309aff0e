package istio

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

func TestTheProbeOfTheWorkloadIsThatOfTheProxyConfig(t *testing.T) {
	const inMetadata = `{"metadata": {"INSTANCE_IPS": "127.0.0.1,::1", "PROXY_CONFIG": {"readinessProbe": {"periodSeconds": 7, "httpGet": {"port": 8080, "path": "/ready"}}, "unknownField": 1}}}`
	for _, tc := range []struct {
		name, node string
		env        map[string]string
		want, err  string
	}{
		{"of the node", inMetadata, nil, "http://127.0.0.1:8080/ready 7s 1", ""},
		{"of the node, and not of the environment", inMetadata, map[string]string{"PROXY_CONFIG": "{readinessProbe: {tcpSocket: {port: 1}}}"}, "http://127.0.0.1:8080/ready 7s 1", ""},
		{"of the environment", "{}", map[string]string{"PROXY_CONFIG": "readinessProbe: {failureThreshold: 4, tcpSocket: {port: 5432}}", "INSTANCE_IP": "192.0.2.1"}, "tcp://192.0.2.1:5432 10s 4", ""},
		{"without an address", "{}", map[string]string{"PROXY_CONFIG": "readinessProbe: {grpc: {port: 9000}}"}, "grpc://localhost:9000 10s 1", ""},
		{"at localhost", inMetadata, map[string]string{"REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION": "true"}, "http://localhost:8080/ready 7s 1", ""},
		{"none", `{"metadata": {"PROXY_CONFIG": {"concurrency": 2}}}`, nil, "", ""},
		{"nothing at all", "{}", nil, "", ""},
		{"a wrong port", `{"metadata": {"PROXY_CONFIG": {"readinessProbe": {"httpGet": {}}}}}`, nil, "", "PROXY_CONFIG: readinessProbe: httpGet.port is 0: want a number from 1 to 65535"},
		{"no ProxyConfig", `{"metadata": {"PROXY_CONFIG": "x"}}`, nil, "", "PROXY_CONFIG: want Istio's ProxyConfig"},
		{"no YAML", "{}", map[string]string{"PROXY_CONFIG": "{"}, "", "PROXY_CONFIG: want Istio's ProxyConfig"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := &corev3.Node{}
			if err := protojson.Unmarshal([]byte(tc.node), node); err != nil {
				t.Fatal(err)
			}
			cfg, err := WorkloadProbe(node, func(name string) string { return tc.env[name] })
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Fatalf("error %v, want %q", err, tc.err)
			}
			got := ""
			if cfg != nil {
				got = fmt.Sprintf("%s %s %d", cfg.Check, cfg.Period, cfg.Failures)
			}
			if got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

func TestProbesOfTheWorkloadDoNotComeToEnvoy(t *testing.T) {
	none := func(string) string { return "" }
	for addresses, want := range map[string]string{"127.0.0.1": "127.0.0.6", " 127.0.0.2 ,::1": "127.0.0.6", "192.0.2.1": "invalid IP", "": "invalid IP"} {
		if _, from := probeDestination(addresses, none); from.String() != want {
			t.Errorf("%q: from %s, want %s", addresses, from, want)
		}
	}
	if _, from := probeDestination("::1", none); from.IsValid() != hasAddress(netip.MustParseAddr("::6")) {
		t.Errorf("IPv6: from %s", from)
	}
}
