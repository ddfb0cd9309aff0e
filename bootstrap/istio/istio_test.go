package istio

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aymanbagabas/go-udiff"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

var update = flag.Bool("update", false, "write the golden files in testdata instead of comparing with them")

// injected is the identity of a pod with the variables that the webhook of Istio 1.31 sets.
func injected() bootstrap.Identity {
	return bootstrap.Identity{
		Pod: bootstrap.Pod{Name: "web-7d9c-x2x", Namespace: "shop", ServiceAccount: "web", IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3")}, Family: bootstrap.V4},
		Environ: []string{
			"PILOT_CERT_PROVIDER=istiod", "CA_ADDR=istiod.istio-system.svc:15012", "POD_NAME=web-7d9c-x2x", "POD_NAMESPACE=shop", "INSTANCE_IP=10.1.2.3",
			"SERVICE_ACCOUNT=web", "HOST_IP=10.0.0.9", "ISTIO_CPU_LIMIT=2", "PROXY_CONFIG={\"proxyMetadata\":{\"ISTIO_META_DNS_CAPTURE\":\"true\"}}\n",
			"ISTIO_META_POD_PORTS=[\n{\"name\":\"http\",\"containerPort\":8080,\"protocol\":\"TCP\"}\n,{\"containerPort\":9090}\n]",
			"ISTIO_META_APP_CONTAINERS=app", "GOMEMLIMIT=1073741824", "ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_NODE_NAME=node-1",
			"ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_NETWORK=network1", "ISTIO_META_WORKLOAD_NAME=web",
			"ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/shop/deployments/web", "ISTIO_META_MESH_ID=cluster.local", "TRUST_DOMAIN=cluster.local",
		},
		Labels: map[string]string{
			"app": "web", "pod-template-hash": "7d9c", "security.istio.io/tlsMode": "istio", "service.istio.io/canonical-name": "web",
			"service.istio.io/canonical-revision": "v1", "istio-locality": "region.zone.rack",
		},
		Annotations: map[string]string{
			"istio.io/rev": "default", "kubernetes.io/config.source": "api", "prometheus.io/port": "15020", "sidecar.istio.io/interceptionMode": "REDIRECT",
		},
	}
}

// ready are the endpoints that --istio sets by default.
var ready = bootstrap.Endpoints{Ready: ":15021", Stats: ":15090"}

// made is a whole bootstrap with what it took.
type made struct {
	cfg       bootstrap.Config
	args      bootstrap.EnvoyArgs
	node      bootstrap.Node
	bootstrap *bootstrapv3.Bootstrap
	warnings  []string
}

func build(t *testing.T, role Role, id bootstrap.Identity, cfg bootstrap.Config) made {
	t.Helper()
	m, err := tryBuild(role, id, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func tryBuild(role Role, id bootstrap.Identity, cfg bootstrap.Config) (m made, err error) {
	p, err := Read(role, id)
	if err != nil {
		return m, err
	}
	m.warnings = p.Warnings()
	if m.cfg, m.args, err = p.Configure(cfg, bootstrap.EnvoyArgs{}); err != nil {
		return m, err
	}
	identity, err := p.Identity(m.cfg)
	if err != nil {
		return m, err
	}
	if m.node, err = identity.Node(); err != nil {
		return m, err
	}
	m.cfg.Node = m.node
	base, err := bootstrap.Build(m.cfg)
	if err != nil {
		return m, err
	}
	m.bootstrap, err = p.Complete(base)
	return m, err
}

// goldens are bootstraps by the name of their file.
func goldens(t *testing.T) map[string]*bootstrapv3.Bootstrap {
	gateway := injected()
	gateway.Pod.IPs = []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")}
	gateway.Environ = append(gateway.Environ, "ISTIO_META_UNPRIVILEGED_POD=true", "ISTIO_META_REQUESTED_NETWORK_VIEW=network1,network2")
	gateway.Annotations[configAnnotation] = `
concurrency: 4
proxyAdminPort: 15999
drainDuration: 30s
extraStatTags: [team]
statsdUdpAddress: $(HOST_IP):9125
proxyStatsMatcher:
  inclusionPrefixes: ["http.{pod_ip}_"]
  inclusionRegexps: ['.*upstream_rq_total']
runtimeValues: {a: "5", envoy.reloadable_features.http_reject_path_with_fragment: ""}
proxyMetadata: {ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS: "1000", ISTIO_META_ENABLE_HBONE: "true"}
tracingServiceName: CANONICAL_NAME_AND_NAMESPACE
`
	return map[string]*bootstrapv3.Bootstrap{
		"sidecar": build(t, Sidecar, injected(), bootstrap.Config{Endpoints: ready}).bootstrap,
		"gateway": build(t, Router, gateway, bootstrap.Config{Endpoints: ready, Family: bootstrap.Dual}).bootstrap,
		"nothing-but-the-pod": build(t, Sidecar, bootstrap.Identity{Pod: bootstrap.Pod{Name: "a", Namespace: "b", IPs: injected().Pod.IPs}},
			bootstrap.Config{Admin: "unix:/run/holdfast/envoy-admin.sock"}).bootstrap,
	}
}

func TestEveryBootstrapIsItsGoldenFileThatEnvoyAccepts(t *testing.T) {
	envoy := envoytest.Binary(t)
	all := goldens(t)
	for name, b := range all {
		t.Run(name, func(t *testing.T) {
			if err := bootstrap.Check(b); err != nil {
				t.Error(err)
			}
			got, err := bootstrap.Encode(b, bootstrap.YAML)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", "golden", name+".yaml")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("after looking at it, accept it with go test ./bootstrap/istio -update\n%s", udiff.Unified(golden, "built", string(want), string(got)))
			}
			again, err := bootstrap.Encode(goldens(t)[name], bootstrap.YAML)
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("not the same again: %v\n%s", err, udiff.Unified("first", "again", string(got), string(again)))
			}
			if err := bootstrap.CheckWithEnvoy(t.Context(), envoy, got, bootstrap.YAML, t.TempDir(), nil); err != nil {
				t.Error(err)
			}
		})
	}
	files, err := filepath.Glob(filepath.Join("testdata", "golden", "*"))
	if err != nil || len(files) != len(all) {
		t.Errorf("%d golden files for %d bootstraps: %q, %v", len(files), len(all), files, err)
	}
}

func TestMetadataHasTheTypesThatIstiodDecodes(t *testing.T) {
	for _, tc := range []struct {
		variable string
		key      string
		want     any
	}{
		{"ISTIO_META_ENVOY_STATUS_PORT=15021", "ENVOY_STATUS_PORT", int64(15021)},
		{`ISTIO_METAJSON_X={"ENVOY_PROMETHEUS_PORT": 15090}`, "ENVOY_PROMETHEUS_PORT", int64(15090)},
		{"ISTIO_META_DNS_CAPTURE=1", "DNS_CAPTURE", "true"},
		{`ISTIO_METAJSON_X={"ENABLE_HBONE": true}`, "ENABLE_HBONE", "true"},
		{`ISTIO_METAJSON_X={"HTTP10": 1}`, "HTTP10", "1"},
		{`ISTIO_METAJSON_X={"INSTANCE_IPS": ["10.0.0.1", "fd00::1"]}`, "INSTANCE_IPS", "10.0.0.1,fd00::1"},
		{"HOLDFAST_META_REQUESTED_NETWORK_VIEW=a,b", "REQUESTED_NETWORK_VIEW", "a,b"},
		{"ISTIO_META_POD_PORTS=[\n]", "POD_PORTS", "[]"},
		{"ISTIO_META_POD_PORTS=null", "POD_PORTS", "[]"},
		{`ISTIO_METAJSON_X={"POD_PORTS": [{"containerPort": 80, "hostPort": 1}]}`, "POD_PORTS", `[{"containerPort":80,"protocol":""}]`},
		{"ISTIO_META_PILOT_SAN=a,b", "PILOT_SAN", []any{"a", "b"}},
		{`ISTIO_METAJSON_LABELS={"a": 1}`, "STATIC_LABELS", map[string]any{"a": "1"}},
		{`ISTIO_METAJSON_PLATFORM={"PLATFORM_METADATA": {"gcp_project": 7}}`, "PLATFORM_METADATA", map[string]any{"gcp_project": "7"}},
		{`ISTIO_METAJSON_X={"OF_SOMEBODY": [1, true]}`, "OF_SOMEBODY", []any{int64(1), true}},
		{"ISTIO_META_ISTIO_VERSION=1.30.2", "ISTIO_VERSION", "1.30.2"},
		{"DNS_PROXY_ADDR=localhost:15053", "DNS_PROXY_ADDR", "localhost:15053"},
		{"A=", "ISTIO_VERSION", DefaultVersion},
	} {
		id := injected()
		id.Environ = append([]string{tc.variable}, slices.DeleteFunc(id.Environ, func(v string) bool { return strings.HasPrefix(v, "ISTIO_META_POD_PORTS") })...)
		if got := build(t, Sidecar, id, bootstrap.Config{}).node.Metadata[tc.key]; !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %s is %#v, want %#v", tc.variable, tc.key, got, tc.want)
		}
	}
}

func TestWhatIsWrongNamesItsPlace(t *testing.T) {
	for _, tc := range []struct {
		name, variable, annotation, value, want string
	}{
		{"no number", "ISTIO_META_ENVOY_STATUS_PORT=x", "", "", `istio: metadata ENVOY_STATUS_PORT: "x" is not a whole number`},
		{"a fraction", `ISTIO_METAJSON_X={"ENVOY_STATUS_PORT": 1.5}`, "", "", `istio: metadata ENVOY_STATUS_PORT: want a whole number`},
		{"no boolean", "ISTIO_META_ENABLE_HBONE=yes", "", "", `istio: metadata ENABLE_HBONE: "yes" is neither true nor false`},
		{"no text", `ISTIO_METAJSON_X={"MESH_ID": {}}`, "", "", "istio: metadata MESH_ID: want text"},
		{"no ports", "ISTIO_META_POD_PORTS=80", "", "", `istio: metadata POD_PORTS: want a list of ports in JSON, such as`},
		{"no object", "ISTIO_META_PLATFORM_METADATA=x", "", "", "istio: metadata PLATFORM_METADATA: want an object"},
		{"no YAML", "PROXY_CONFIG={", "", "", "istio: variable PROXY_CONFIG: want YAML or JSON of Istio's ProxyConfig: line 1"},
		{"no mapping", "PROXY_CONFIG=[1]", "", "", "istio: variable PROXY_CONFIG: want a mapping, such as {concurrency: 2}"},
		{"a wrong type", "", configAnnotation, "concurrency: many", "istio: annotation proxy.istio.io/config: want Istio's ProxyConfig: "},
		{"a wrong type beside an unknown field", "", configAnnotation, "{concurrency: many, nope: 1}", "istio: annotation proxy.istio.io/config: want Istio's ProxyConfig: "},
		{"no number of CPUs", "ISTIO_CPU_LIMIT=two", "", "", `istio: variable ISTIO_CPU_LIMIT: "two" is not a whole number of CPUs`},
		{"no port", "", "status.sidecar.istio.io/port", "x", `istio: annotation status.sidecar.istio.io/port: "x" is not a port`},
		{"no limit", "", configAnnotation, "runtimeValues: {overload.global_downstream_max_connections: x}", `istio: ProxyConfig: "x" is not a maximum number of connections`},
		{"no buckets", "", "sidecar.istio.io/statsHistogramBuckets", "x", "istio: annotation sidecar.istio.io/statsHistogramBuckets: want JSON such as"},
		{"no interval", "", "sidecar.istio.io/statsFlushInterval", "x", `istio: annotation sidecar.istio.io/statsFlushInterval: "x": want a duration`},
		{"no locality", "", "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id := injected()
			id.Environ = append([]string{tc.variable}, id.Environ...)
			if tc.variable != "" {
				id.Environ = slices.DeleteFunc(id.Environ, func(v string) bool {
					name, _, _ := strings.Cut(tc.variable, "=")
					return strings.HasPrefix(v, name+"=") && v != tc.variable
				})
			}
			id.Annotations[tc.annotation] = tc.value
			_, err := tryBuild(Sidecar, id, bootstrap.Config{Endpoints: ready})
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if err == nil || !strings.HasPrefix(err.Error(), tc.want) || strings.ContainsAny(err.Error(), "\n\u00a0") {
				t.Errorf("%v\nwant %s", err, tc.want)
			}
		})
	}
	if _, err := Read("waypoint", injected()); err == nil {
		t.Error("a role that is none was accepted")
	}
}

func TestTheNodeIsNamedAsPilotAgentNamesIt(t *testing.T) {
	for _, tc := range []struct {
		name, config  string
		labels        map[string]string
		without       string
		cluster, zone string
	}{
		{"the label app", "", map[string]string{"app": "a", "app.kubernetes.io/name": "b"}, "", "a.shop", ""},
		{"the name of Kubernetes", "", map[string]string{"app.kubernetes.io/name": "b", "service.istio.io/canonical-name": "c"}, "", "b.shop", ""},
		{"the canonical name", "", map[string]string{"service.istio.io/canonical-name": "c"}, "", "c.shop", ""},
		{"the workload", "", nil, "", "web.shop", ""},
		{"nothing", "", nil, "ISTIO_META_WORKLOAD_NAME", "istio-proxy.shop", ""},
		{"a service cluster", "serviceCluster: mine", map[string]string{"app": "a"}, "", "mine", ""},
		{"for tracing", "tracingServiceName: CANONICAL_NAME_ONLY", map[string]string{"app": "a", "app.kubernetes.io/name": "b"}, "", "b", ""},
		{"for tracing with the namespace", "tracingServiceName: CANONICAL_NAME_AND_NAMESPACE", nil, "", "web.shop", ""},
		{"for tracing by the label", "tracingServiceName: APP_LABEL_AND_NAMESPACE", map[string]string{"app": "a"}, "", "a.shop", ""},
		{"a locality", "", map[string]string{"istio-locality": "r.z.s"}, "", "web.shop", "r/z/s"},
		{"two localities", "", map[string]string{"istio-locality": "x", "topology.istio.io/locality": "r/z"}, "", "web.shop", "r/z"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			id := injected()
			id.Labels = tc.labels
			id.Environ = slices.DeleteFunc(id.Environ, func(v string) bool { return tc.without != "" && strings.HasPrefix(v, tc.without) })
			id.Annotations[configAnnotation] = tc.config
			for role, want := range map[Role]string{Sidecar: "sidecar", Router: "router"} {
				node := build(t, role, id, bootstrap.Config{}).node
				if node.ID != want+"~10.1.2.3~web-7d9c-x2x.shop~shop.svc.cluster.local" || node.Cluster != tc.cluster || node.Locality != tc.zone {
					t.Errorf("%+v, want cluster %s, locality %s", node, tc.cluster, tc.zone)
				}
			}
		})
	}
}

func TestWhatIsGivenByFlagsStays(t *testing.T) {
	id := injected()
	id.Given = bootstrap.Node{ID: "mine", Cluster: "c", Locality: "l", Metadata: map[string]any{"ENVOY_STATUS_PORT": "1", "MESH_ID": "m"}}
	id.Annotations[configAnnotation] = "{proxyAdminPort: 1, concurrency: 9, drainDuration: 9s, runtimeValues: {a: b, c: d}, proxyStatsMatcher: {inclusionPrefixes: [x]}}"
	cfg := bootstrap.Config{
		Admin: "127.0.0.1:2", Endpoints: ready, Runtime: bootstrap.Runtime{Values: map[string]any{"a": 1}}, Overload: bootstrap.Overload{MaxConnections: 5},
		Stats: bootstrap.Stats{Exclude: []bootstrap.Match{{Kind: bootstrap.Prefix, Value: "y"}}},
	}
	p, err := Read(Sidecar, id)
	if err != nil {
		t.Fatal(err)
	}
	got, args, err := p.Configure(cfg, bootstrap.EnvoyArgs{Concurrency: 3, DrainTime: time.Second})
	if err != nil || args != (bootstrap.EnvoyArgs{Concurrency: 3, DrainTime: time.Second}) {
		t.Errorf("%+v, %v", args, err)
	}
	if got.Admin != cfg.Admin || got.Overload != cfg.Overload || len(got.Stats.Include) > 0 || got.Runtime.Values["a"] != 1 || got.Runtime.Values["c"] != "d" {
		t.Errorf("%+v", got)
	}
	if len(cfg.Runtime.Values) != 1 {
		t.Errorf("the given values were changed: %v", cfg.Runtime.Values)
	}
	node := build(t, Sidecar, id, cfg).node
	if node.ID != "mine" || node.Cluster != "c" || node.Locality != "l" || node.Metadata["ENVOY_STATUS_PORT"] != int64(1) || node.Metadata["MESH_ID"] != "m" || node.Metadata["NAME"] != "web-7d9c-x2x" {
		t.Errorf("%+v", node)
	}
}

func TestAnnotationsConfigureStats(t *testing.T) {
	id := injected()
	id.Annotations["sidecar.istio.io/statsInclusionPrefixes"] = "cluster.outbound,,http.{pod_ip}_"
	id.Annotations["sidecar.istio.io/statsInclusionSuffixes"] = "upstream_rq_total"
	id.Annotations["sidecar.istio.io/extraStatTags"] = "team,(a+)+"
	id.Annotations["sidecar.istio.io/statsHistogramBuckets"] = `{"b": [5, 10], "a": [1]}`
	id.Annotations["sidecar.istio.io/statsFlushInterval"] = "10s"
	id.Annotations[configAnnotation] = "{extraStatTags: [team, zone], proxyStatsMatcher: {inclusionPrefixes: [replaced], inclusionRegexps: [kept]}}"
	stats := build(t, Sidecar, id, bootstrap.Config{}).cfg.Stats
	for _, want := range []bootstrap.Match{
		{Kind: bootstrap.Prefix, Value: "cluster.outbound"}, {Kind: bootstrap.Prefix, Value: "http.10.1.2.3_"},
		{Kind: bootstrap.Suffix, Value: "upstream_rq_total"}, {Kind: bootstrap.Regex, Value: "kept"}, {Kind: bootstrap.Prefix, Value: "reporter="},
	} {
		if !slices.Contains(stats.Include, want) {
			t.Errorf("no %v in %v", want, stats.Include)
		}
	}
	if slices.Contains(stats.Include, bootstrap.Match{Kind: bootstrap.Prefix, Value: "replaced"}) {
		t.Error("the prefixes of the ProxyConfig stay beside those of the annotation")
	}
	var names []string
	for _, tag := range stats.Tags[len(statsTags):] {
		names = append(names, tag.Name)
		if tag.Name == "(a+)+" && tag.Regex != `(\(a\+\)\+=\.=(.*?);\.;)` {
			t.Errorf("a name became a regular expression: %s", tag.Regex)
		}
	}
	if !slices.Equal(names, []string{"team", "zone", "(a+)+"}) {
		t.Errorf("extra tags %q", names)
	}
	if len(stats.Buckets) != 2 || stats.Buckets[0].Match.Value != "a" || stats.FlushInterval != 10*time.Second || !stats.NoDefaultTags {
		t.Errorf("%+v", stats)
	}
}

func TestVariablesNameThePorts(t *testing.T) {
	for _, tc := range []struct {
		environ []string
		family  bootstrap.Family
		want    bootstrap.Endpoints
		err     string
	}{
		{nil, bootstrap.V4, ready, ""},
		{[]string{"ENVOY_STATUS_PORT=1", "ENVOY_PROMETHEUS_PORT=2"}, bootstrap.V4, bootstrap.Endpoints{Ready: ":1", Stats: ":2"}, ""},
		{[]string{`PROXY_CONFIG={"proxyMetadata": {"METRICS_LOCALHOST_ACCESS_ONLY": "true"}}`}, bootstrap.V4, bootstrap.Endpoints{Ready: ":15021", Stats: "127.0.0.1:15090"}, ""},
		{[]string{"METRICS_LOCALHOST_ACCESS_ONLY=true"}, bootstrap.V6, bootstrap.Endpoints{Ready: ":15021", Stats: "[::1]:15090"}, ""},
		{[]string{"ENVOY_STATUS_PORT=0"}, bootstrap.V4, bootstrap.Endpoints{}, `istio: variable ENVOY_STATUS_PORT: "0" is not a port from 1 to 65535`},
	} {
		p, err := Read(Sidecar, bootstrap.Identity{Environ: tc.environ, Pod: bootstrap.Pod{Family: tc.family}})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Endpoints(); got != tc.want || (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
			t.Errorf("%v: %+v, %v", tc.environ, got, err)
		}
	}
}

func TestWhatChangesOnlyTheBootstrapOfPilotAgentIsNamed(t *testing.T) {
	p, err := Read(Sidecar, bootstrap.Identity{
		Environ: []string{"ISTIO_BOOTSTRAP_OVERRIDE=/x", "ENVOY_SECURE_METRICS_PORT=0", "ISTIO_META_ENABLE_SELF_DISCOVERY=false"}, Annotations: map[string]string{"sidecar.istio.io/statsEvictionInterval": "1m"},
	})
	want := []string{
		"annotation sidecar.istio.io/statsEvictionInterval has no effect with holdfast: use --overlay",
		"variable ISTIO_BOOTSTRAP_OVERRIDE has no effect with holdfast: use --template or --overlay",
	}
	if err != nil || !slices.Equal(p.Warnings(), want) {
		t.Errorf("%q, %v", p.Warnings(), err)
	}
}

func TestATemplateKeepsItsClusterOfSecrets(t *testing.T) {
	p, err := Read(Sidecar, injected())
	if err != nil {
		t.Fatal(err)
	}
	m := build(t, Sidecar, injected(), bootstrap.Config{})
	again, err := p.Complete(m.bootstrap)
	if err != nil || len(again.GetStaticResources().GetClusters()) != 2 || len(again.GetBootstrapExtensions()) != 1 {
		t.Errorf("%v, %v", again, err)
	}
	empty, err := p.Complete(&bootstrapv3.Bootstrap{}) // a template without a cluster of the agent
	if err != nil || len(empty.GetStaticResources().GetClusters()) != 0 {
		t.Errorf("%v, %v", empty, err)
	}
}
