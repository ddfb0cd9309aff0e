package bootstrap

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// forms are fields of a cluster, as YAML in flow style, in forms that people write.
var forms = []string{
	// Enums.
	"lb_policy: ROUND_ROBIN", "lb_policy: round_robin", "lb_policy: Random", "lb_policy: 2", `lb_policy: "2"`, "lb_policy: 2.0", "lb_policy: NONE_OF_THEM", "lb_policy: -1",
	// Durations.
	"dns_refresh_rate: 1.5s", "dns_refresh_rate: {seconds: 2}", "dns_refresh_rate: {nanos: 5000000}", "dns_refresh_rate: {seconds: 1, nanos: 500000000}", `dns_refresh_rate: {seconds: "3"}`,
	"dns_refresh_rate: 1", "dns_refresh_rate: {minutes: 1}", "dns_refresh_rate: 1m", "dns_refresh_rate: {seconds: 1.5}",
	// Wrappers, and numbers.
	"per_connection_buffer_limit_bytes: 5", "per_connection_buffer_limit_bytes: {value: 5}", "per_connection_buffer_limit_bytes: {}", `per_connection_buffer_limit_bytes: "5"`,
	`per_connection_buffer_limit_bytes: {value: "5"}`, "per_connection_buffer_limit_bytes: 5.0", "per_connection_buffer_limit_bytes: 5.5", "per_connection_buffer_limit_bytes: 0x10",
	"per_connection_buffer_limit_bytes: 010", "per_connection_buffer_limit_bytes: 08", "per_connection_buffer_limit_bytes: 1e3", "per_connection_buffer_limit_bytes: 1_000",
	"per_connection_buffer_limit_bytes: +5", "per_connection_buffer_limit_bytes: -5", "per_connection_buffer_limit_bytes: [5]", "per_connection_buffer_limit_bytes: ~",
	"per_connection_buffer_limit_bytes: 5000000000", `per_connection_buffer_limit_bytes: "0x10"`, `per_connection_buffer_limit_bytes: ""`, "per_connection_buffer_limit_bytes: {value: 5, other: 6}",
	"respect_dns_ttl: true", `respect_dns_ttl: "true"`, "respect_dns_ttl: yes", "respect_dns_ttl: on", "respect_dns_ttl: TRUE", `respect_dns_ttl: "True"`, "respect_dns_ttl: 1", `respect_dns_ttl: "1"`,
	"respect_dns_ttl: !!str true", "respect_dns_ttl: x", "respect_dns_ttl: off", `respect_dns_ttl: "no"`, "respect_dns_ttl: ~",
	"cleanup_interval: {seconds: 5}", "preconnect_policy: {per_upstream_preconnect_ratio: 1.5}", `preconnect_policy: {per_upstream_preconnect_ratio: "1.5"}`, "preconnect_policy: {per_upstream_preconnect_ratio: {value: 1.5}}",
	"preconnect_policy: {per_upstream_preconnect_ratio: 2}", "preconnect_policy: {per_upstream_preconnect_ratio: 1e0}",
	// Texts.
	"alt_stat_name: x", "alt_stat_name: 1", "alt_stat_name: 1.0", "alt_stat_name: true", "alt_stat_name: ~", "alt_stat_name: 2001-01-01", `alt_stat_name: "1"`, "alt_stat_name: !!str 1", "alt_stat_name: y", "alt_stat_name: 1_0",
	"alt_stat_name: 08", "alt_stat_name: 0x1g", "alt_stat_name: 9007199254740993",
	// Lists.
	"dns_resolvers: {socket_address: {address: 127.0.0.1, port_value: 53}}", `dns_resolvers: [{socket_address: {address: 127.0.0.1, port_value: "53"}}]`, "dns_resolvers: ~", "dns_resolvers: []", "dns_resolvers: 5",
	"dns_resolvers: [{socket_address: {address: 127.0.0.1, port_value: 53.0}}]", "dns_resolvers: [[{socket_address: {address: 127.0.0.1, port_value: 53}}]]", "upstream_bind_config: [{}]",
	// Metadata, in which anything is possible.
	"metadata: {filter_metadata: {envoy.lb: {version: 1.0, weight: 0.5, canary: on, n: 5}}}", "metadata: {filter_metadata: {x: {a: 1e3, b: 08, c: 1_000, d: 9007199254740993, e: 9007199254740992, f: .inf, g: .nan}}}",
	"metadata: {filter_metadata: {x: {a: 0x10, b: 010, c: +1, d: -1, e: -0, f: 0, g: 1., h: .5}}}", `metadata: {filter_metadata: {x: {a: "1", b: 'on', c: "~", d: "", e: ~, f: , g: null, h: Null, i: nULL}}}`,
	"metadata: {filter_metadata: {x: {a: y, b: N, c: yES, d: Off, e: TRUE, f: tRUE}}}", "metadata: {filter_metadata: {x: {a: [1, [on, {b: 2.5}]], c: {}, d: []}}}",
	"metadata: {filter_metadata: {x: {a: !!str 5, b: !!int 5, c: 2001-01-01, d: 12:30, e: 0o7, f: 0b1, g: !ignore 5}}}", "metadata: {filter_metadata: {!ignore x: {a: 1}, y: {}}}", "!ignore homes: [&home 7]\n    per_connection_buffer_limit_bytes: *home",
	"metadata: {typed_filter_metadata: {x: {\"@type\": type.googleapis.com/envoy.config.core.v3.Address, pipe: {path: /x, mode: \"5\"}}}}",
	"metadata: {typed_filter_metadata: {x: {\"@type\": type.googleapis.com/google.protobuf.UInt32Value, value: \"5\"}}}", "metadata: {typed_filter_metadata: {x: {\"@type\": type.googleapis.com/google.protobuf.Duration, value: 5s}}}",
}

// Files mean to holdfast what they mean to Envoy, form by form: it refuses what Envoy refuses, and reads the same values.
func TestEnvoyReadsTheseForms(t *testing.T) {
	envoy := envoytest.Binary(t)
	dir, err := os.MkdirTemp("", "holdfast") // short: a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	admin := filepath.Join(dir, "admin.sock")
	head := "node: {id: node, cluster: c}\nadmin: {address: {pipe: {path: " + admin + "}}}\nstatic_resources:\n  clusters:\n"
	cluster := func(i int) string {
		return fmt.Sprintf("  - name: c-%d\n    connect_timeout: 1s\n    type: LOGICAL_DNS\n    load_assignment: {cluster_name: x, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: localhost, port_value: 1}}}}]}]}\n    %s\n", i, forms[i])
	}
	write := func(text string) string {
		path := filepath.Join(dir, "envoy.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := make(map[string]*clusterv3.Cluster)
	accepted := head
	for i := range forms {
		path := write(head + cluster(i))
		b, ours := readFile("read", path, decodeBootstrap)
		if ours == nil {
			ours = Check(b)
		}
		out, theirs := validate(t, envoy, path)
		if (ours == nil) != (theirs == nil) {
			t.Errorf("%s\nEnvoy: %v %.400s\nholdfast: %v", forms[i], theirs, out, ours)
		}
		if ours == nil && theirs == nil {
			accepted += cluster(i)
			read[fmt.Sprintf("c-%d", i)] = b.GetStaticResources().GetClusters()[0]
		}
	}
	var dump struct{ Configs []json.RawMessage }
	if err := json.Unmarshal(askEnvoy(t, envoy, write(accepted), admin, "/config_dump?resource=static_clusters"), &dump); err != nil {
		t.Fatal(err)
	}
	for _, config := range dump.Configs {
		var whole anypb.Any
		if err := (protojson.UnmarshalOptions{Resolver: envoytypes.Resolver}).Unmarshal(config, &whole); err != nil {
			t.Fatal(err)
		}
		var is adminv3.ClustersConfigDump_StaticCluster
		if err := whole.UnmarshalTo(&is); err != nil {
			t.Fatal(err)
		}
		var theirs clusterv3.Cluster
		if err := is.GetCluster().UnmarshalTo(&theirs); err != nil {
			t.Fatal(err)
		}
		ours := read[theirs.GetName()]
		if delete(read, theirs.GetName()); !proto.Equal(ours, &theirs) {
			var i int
			_, _ = fmt.Sscanf(theirs.GetName(), "c-%d", &i)
			t.Errorf("%s\nEnvoy:    %v\nholdfast: %v", forms[i], &theirs, ours)
		}
	}
	for name := range read {
		t.Errorf("Envoy has no %s: %s", name, strings.TrimSpace(name))
	}
}
