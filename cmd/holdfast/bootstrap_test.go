package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/aymanbagabas/go-udiff"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// bootstrapped runs `holdfast bootstrap` for a node with a few flags more.
func bootstrapped(t *testing.T, environ []string, args ...string) ran {
	t.Helper()
	return call(t, environ, append([]string{"bootstrap", "--node-id", "i", "--node-cluster", "c"}, args...)...)
}

// running is bootstrapped with time to run: a context that does not end at once.
func running(t *testing.T, args ...string) ran {
	t.Helper()
	var stdout, stderr strings.Builder
	all := append([]string{"bootstrap", "--node-id", "i", "--node-cluster", "c"}, args...)
	code := execute(t.Context(), process{stdout: &stdout, stderr: &stderr}, all)
	return ran{code, stdout.String(), stderr.String()}
}

func TestEveryFlagOfBootstrapReachesTheFile(t *testing.T) {
	got := bootstrapped(t, nil, "--print",
		"--ready-listen", ":15021", "--stats-listen", "127.0.0.1:15090", "--ip-family", "dual", "--envoy-admin", "127.0.0.1:15001",
		"--stats-tag", `svc=^cluster\.((.+?)\.)`, "--stats-tag", "pod:=web-0", "--stats-default-tags=false",
		"--stats-include", "prefix:http.", "--stats-include", "regex:a=b.*", "--histogram-buckets", "prefix:a=b=1,2.5", "--stats-flush-interval", "7s",
		"--runtime", "flag=false", "--runtime", "number=5", "--runtime", "text=5s", "--runtime", `fraction:={"numerator": 1}`, "--rtds-layer", "mesh",
		"--heap-limit", "64Mi", "--max-connections", "77", "--envoy-log-format", "json", "--xds-transport", "grpc", "--socket", "/x.sock")
	if got.code != 0 || got.errors != "" {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{
		`path: "/healthz/ready"`, `path: "/stats/prometheus"`, `address: "::"`, "port_value: 15001",
		`regex: "^cluster\\.((.+?)\\.)"`, `fixed_value: "web-0"`, "use_all_default_tags: false", `prefix: "http."`, `regex: "a=b.*"`,
		`prefix: "a=b"`, "- 2.5", `stats_flush_interval: "7s"`, "flag: false", "number: 5\n", `text: "5s"`, "numerator: 1", `name: "mesh"`,
		`max_heap_size_bytes: "67108864"`, `max_active_downstream_connections: "77"`, "json_format:", "lds_config:\n    api_config_source:", `path: "/x.sock"`,
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %s in\n%s", want, got.out)
		}
	}
	rest := bootstrapped(t, nil, "--print", "--xds-transport", "rest", "--xds-rest-refresh", "2s", "--xds-rest-timeout", "40s", "--stats-exclude", "suffix:x", "--ip-family", "v6")
	for _, want := range []string{`refresh_delay: "2s"`, `request_timeout: "40s"`, "exclusion_list:", `address: "::1"`} {
		if rest.code != 0 || !strings.Contains(rest.out, want) {
			t.Errorf("no %s in\n%+v", want, rest)
		}
	}
}

func TestTheNodeIsThatOfThePod(t *testing.T) {
	labels := write(t, "labels", "app=\"web\"\nversion=\"v1\"\nistio-locality=\"r.z\"\n")
	annotations := write(t, "annotations", "note=\"a\\nb\"\n")
	environ := []string{
		"POD_IP=10.0.0.1", "POD_NAME=web-0", "POD_NAMESPACE=shop", "SERVICE_ACCOUNT=sa", "HOLDFAST_META_OWNER=team", "ISTIO_META_MESH_ID=mesh",
		"HOLDFAST_POD_LABELS=" + labels,
	}
	got := call(t, environ, "bootstrap", "--print", "--pod-annotations", annotations, "--node-metadata", "X:=7")
	if got.code != 0 || got.errors != "" {
		t.Fatalf("%+v", got)
	}
	for _, want := range []string{
		`id: "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local"`, `cluster: "web.shop"`, `zone: "z"`, `"OWNER": "team"`, `"MESH_ID": "mesh"`,
		`"SERVICE_ACCOUNT": "sa"`, `note: "a\nb"`, `"X": 7`,
	} {
		if !strings.Contains(got.out, want) {
			t.Errorf("no %s in\n%s", want, got.out)
		}
	}
	flags := call(t, environ, "bootstrap", "--print", "--pod-ip", "10.0.0.2, fd00::2", "--ip-family", "v6", "--pod-name", "p", "--pod-namespace", "n", "--pod-domain", "d",
		"--node-id-template", "{ip}/{pod}/{namespace}/{domain}/{cluster}", "--node-cluster", "c")
	if !strings.Contains(flags.out, `id: "fd00::2/p/n/d/c"`) || !strings.Contains(flags.out, `"INSTANCE_IPS": "10.0.0.2,fd00::2"`) {
		t.Errorf("%+v", flags)
	}
}

func TestABootstrapIsPrintedComparedAndWritten(t *testing.T) {
	dir := t.TempDir()
	out, args := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "args")
	if got := bootstrapped(t, nil, "--diff", "--out", out); got.code != 1 || !strings.HasPrefix(got.out, "--- /dev/null\n+++ "+out+"\n@@ -0,0 +1,") || !strings.Contains(got.errors, out+" would change") {
		t.Errorf("compared with nothing: %+v", got)
	}
	if got := bootstrapped(t, nil, "--print", "--out", out); got.code != 0 || !strings.Contains(got.out, "node:") {
		t.Errorf("printed: %+v", got)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("something was written: %v, %v", entries, err)
	}
	if got := bootstrapped(t, nil, "--out", out, "--out-mode", "0600", "--args-out", args, "--cpu-limit", "1500m", "--envoy-drain-time", "90s", "--envoy-log-level", "error"); got.code != 0 || got.errors != "" {
		t.Errorf("written: %+v", got)
	}
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if text, err := os.ReadFile(args); err != nil || string(text) != "-c\n"+out+"\n--concurrency\n2\n--drain-time-s\n90\n--log-level\nerror\n" {
		t.Errorf("arguments %q, %v", text, err)
	}
	if got := bootstrapped(t, nil, "--diff", "--out", out); got != (ran{}) {
		t.Errorf("compared with the same: %+v", got)
	}
	got := bootstrapped(t, nil, "--diff", "--out", out, "--node-locality", "r")
	if got.code != 1 || !strings.Contains(got.out, "\n+  locality:\n+    region: \"r\"\n") {
		t.Errorf("compared with another: %+v", got)
	}
	if after := bootstrapped(t, nil, "--diff", "--out", out); after.code != 0 {
		t.Errorf("comparing has changed the file: %+v", after)
	}
}

func TestADiffShowsWhatWouldChangeWithThreeLinesAround(t *testing.T) {
	text := bootstrapped(t, nil, "--print").out
	for _, tc := range []struct{ name, before, want string }{
		{"a line that was changed by hand", strings.Replace(text, "  id: \"i\"\n", "  id: \"mine\"\n", 1),
			"-  id: \"mine\"\n+  id: \"i\"\n"},
		{"a line that was added by hand", strings.Replace(text, "  id: \"i\"\n", "  # mine\n  id: \"i\"\n", 1),
			"-  # mine\n   id: \"i\"\n"},
		{"no line break at the end", strings.TrimSuffix(text, "\n"), "\n\\ No newline at end of file\n+"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := os.WriteFile(out, []byte(tc.before), 0o600); err != nil {
				t.Fatal(err)
			}
			got := bootstrapped(t, nil, "--diff", "--out", out)
			if got.code != 1 || !strings.HasPrefix(got.out, "--- "+out+"\n+++ "+out+"\n@@ -") || !strings.Contains(got.out, tc.want) {
				t.Errorf("%+v", got)
			}
			_, hunk, _ := strings.Cut(got.out, " @@\n")
			before, _, _ := strings.Cut(hunk, "\n-")
			if strings.Count("\n"+before, "\n ") != 3 || strings.Contains(hunk, "\n@@") {
				t.Errorf("it is not one hunk that begins with three lines of context:\n%s", got.out)
			}
		})
	}
}

func TestOverlaysAndTemplatesChangeTheBootstrap(t *testing.T) {
	overlay := write(t, "a.yaml", "static_resources: {clusters: [{name: a}]}")
	patch := write(t, "b.patch.json", `[{"op": "replace", "path": "/static_resources/clusters/1/name", "value": "b"}]`)
	if got := bootstrapped(t, nil, "--print", "--overlay", overlay, "--overlay", patch); got.code != 0 || !strings.Contains(got.out, `- name: "b"`) {
		t.Errorf("%+v", got)
	}
	template := write(t, "t.yaml", "node: {id: its, cluster: its}\nadmin: {}")
	if got := call(t, nil, "bootstrap", "--print", "--template", template); got.code != 0 || !strings.Contains(got.out, `id: "its"`) || !strings.Contains(got.out, `name: "xds"`) {
		t.Errorf("%+v", got)
	}
	if got := call(t, nil, "bootstrap", "--print", "--template", template, "--template-only"); got.code != 0 || got.out != "admin: {}\nnode:\n  cluster: \"its\"\n  id: \"its\"\n" {
		t.Errorf("%+v", got)
	}
}

func TestASecretThatOthersMayReadIsWarnedOf(t *testing.T) {
	secret := write(t, "s.yaml", `static_resources: {clusters: [{name: a, transport_socket: {name: tls, typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, common_tls_context: {tls_certificates: [{private_key: {inline_string: hunter2}}]}}}}]}`)
	out := filepath.Join(t.TempDir(), "envoy.yaml")
	got := bootstrapped(t, nil, "--out", out, "--overlay", secret)
	if got.code != 0 || !strings.Contains(got.errors, "can be read by other users (--out-mode 0644)") || strings.Contains(got.errors, "hunter2") {
		t.Errorf("%+v", got)
	}
	if got := bootstrapped(t, nil, "--out", out, "--overlay", secret, "--out-mode", "0600"); got != (ran{}) {
		t.Errorf("%+v", got)
	}
}

func TestEnvoyIsAskedBeforeAnythingIsWritten(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	envoy, out := envoytest.Binary(t), filepath.Join(t.TempDir(), "envoy.yaml")
	validate := func(args ...string) ran { return running(t, append([]string{"--validate"}, args...)...) }
	if got := validate("--envoy-binary", envoy); got != (ran{}) {
		t.Errorf("%+v", got)
	}
	bad := write(t, "bad.yaml", "dynamic_resources: {ads_config: {grpc_services: [{envoy_grpc: {cluster_name: none}}]}}")
	if got := validate("--envoy-binary", envoy, "--overlay", bad, "--out", out); got.code != 1 || !strings.Contains(got.errors, "--mode validate: exit status 1\n") {
		t.Errorf("%+v", got)
	}
	if entries, err := os.ReadDir(filepath.Dir(out)); err != nil || len(entries) > 0 {
		t.Errorf("something was written: %v, %v", entries, err)
	}
	if got := validate("--out", out); got.code != 0 || !strings.Contains(got.errors, "there is no envoy in PATH") {
		t.Errorf("%+v", got)
	}
	if got := validate("--envoy-binary", "/does/not/exist"); got.code != 1 || !strings.Contains(got.errors, "--envoy-binary: ") {
		t.Errorf("%+v", got)
	}
}

func TestBootstrapWaitsForWhatItNeeds(t *testing.T) {
	dir, err := os.MkdirTemp("", "holdfast") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	token, socket := filepath.Join(dir, "token"), filepath.Join(dir, "s")
	args := []string{"--print", "--wait-for", "pod-ip,token=" + token, "--wait-for", "socket", "--socket", socket, "--pod-ip", "10.0.0.1"}
	got := bootstrapped(t, nil, args...)
	if got.code != 1 || got.out != "" || strings.Contains(got.errors, "pod-ip") ||
		strings.Count(got.errors, "holdfast: waiting for token="+token+": "+token+" does not exist\n") != 1 ||
		!strings.Contains(got.errors, "holdfast: interrupted while waiting for:\ntoken="+token+": "+token+" does not exist\nsocket: ") {
		t.Errorf("%+v", got)
	}
	late := running(t, append(args, "--wait-timeout", "1ms")...)
	if late.code != 1 || !strings.Contains(late.errors, "holdfast: still missing after 1ms (--wait-timeout):\ntoken="+token+": ") {
		t.Errorf("%+v", late)
	}
	if err := os.WriteFile(token, []byte("t"), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	if got := running(t, args...); got.code != 0 || got.errors != "" {
		t.Errorf("%+v", got)
	}
}

func TestAnAddressThatIsWaitedForMakesTheID(t *testing.T) {
	ips, err := interfaceIPs()
	if err != nil || len(ips) == 0 {
		t.Skipf("this machine has no address that others may reach: %v", err)
	}
	family := "v4"
	if ips[0].Is6() {
		family = "v6"
	}
	got := call(t, nil, "bootstrap", "--print", "--node-cluster", "c", "--node-id-template", "{ip}", "--wait-for", "pod-ip", "--ip-family", family)
	if want := `id: "` + ips[0].String() + `"`; got.code != 0 || !strings.Contains(got.out, want) {
		t.Errorf("no %s in %+v", want, got)
	}
}

func TestWhatIsWrongWithABootstrapIsSaid(t *testing.T) {
	bad := write(t, "bad.yaml", "node: {idd: x}")
	for _, tc := range []struct {
		name    string
		environ []string
		args    []string
		code    int
		want    string
	}{
		{"nothing to do", nil, nil, 2, "--out is missing"},
		{"print and compare", nil, []string{"--print", "--diff", "--out", "x.yaml"}, 2, "--print and --diff"},
		{"compare with nothing", nil, []string{"--diff", "--out", "-"}, 2, "--diff compares with a file"},
		{"arguments for no file", nil, []string{"--print", "--args-out", "x"}, 2, "--args-out needs --out"},
		{"only no template", nil, []string{"--print", "--template-only"}, 2, "--template-only needs --template"},
		{"an Envoy for nothing", nil, []string{"--print", "--envoy-binary", "x"}, 2, "--envoy-binary needs --validate"},
		{"a bad overlay", nil, []string{"--print", "--overlay", bad}, 2, "overlay " + bad + " (merge): line 1: field node.idd: unknown field"},
		{"no overlay", nil, []string{"--print", "--overlay", "/does/not/exist.yaml"}, 2, "--overlay: bootstrap: overlay: open /does/not/exist.yaml"},
		{"a bad template", nil, []string{"--print", "--template", bad}, 2, "template " + bad + ": line 1: field node.idd"},
		{"a name twice", nil, []string{"--print", "--overlay", write(t, "a.yaml", "static_resources: {clusters: [{name: xds}]}")}, 2, `static_resources.clusters: "xds" is there twice`},
		{"no condition", nil, []string{"--print", "--wait-for", "luck"}, 2, `--wait-for "luck": want pod-ip, token=FILE`},
		{"no file to wait for", nil, []string{"--print", "--wait-for", "file="}, 2, `--wait-for "file="`},
		{"no time to wait", nil, []string{"--print", "--wait-timeout", "0"}, 2, "--wait-timeout: 0s: want a positive"},
		{"no address", []string{"POD_IP=web"}, []string{"--print"}, 2, `POD_IP: "web" is not an IP address`},
		{"no address to wait for", []string{"INSTANCE_IP=fd00::1"}, []string{"--print", "--wait-for", "pod-ip"}, 1, "[fd00::1] has no address of the family v4 (--ip-family)"},
		{"no labels", nil, []string{"--print", "--pod-labels", "/does/not/exist"}, 2, "--pod-labels: bootstrap: open /does/not/exist"},
		{"no annotations", nil, []string{"--print", "--pod-annotations", bad}, 2, "--pod-annotations: bootstrap: " + bad + ": line 1"},
		{"no match", nil, []string{"--print", "--stats-include", "http."}, 2, `--stats-include: "http.": want prefix:TEXT`},
		{"no buckets", nil, []string{"--print", "--histogram-buckets", "prefix:a"}, 2, "want KIND:TEXT=BOUND"},
		{"no numbers", nil, []string{"--print", "--histogram-buckets", "prefix:a=b"}, 2, `"b" is not a number`},
		{"no tag", nil, []string{"--print", "--stats-tag", "a"}, 2, "want NAME=REGEX or NAME:=TEXT"},
		{"no heap", nil, []string{"--print", "--heap-limit", "much"}, 2, `--heap-limit: "much": want auto, none or a number of bytes`},
		{"no size", nil, []string{"--print", "--memory-limit", "1Pi"}, 2, `--memory-limit: "1Pi": want a number of bytes`},
		{"a size beyond all", nil, []string{"--print", "--memory-limit", "9223372036854775807Ki"}, 2, "want a number of bytes"},
		{"no processors", nil, []string{"--print", "--cpu-limit", "-1"}, 2, "want a number of processors"},
		{"no workers", nil, []string{"--print", "--envoy-concurrency", "0"}, 2, "want auto or a positive number"},
		{"too few connections", nil, []string{"--print", "--max-connections", "-1"}, 2, "--max-connections: -1: want 0 to"},
		{"a runtime key twice", nil, []string{"--print", "--runtime", "a=1", "--runtime", "a=2"}, 2, `"a" is given twice`},
		{"a runtime key without a value", nil, []string{"--print", "--runtime", "a"}, 2, `"a": want`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := bootstrapped(t, tc.environ, tc.args...)
			if text := strings.ReplaceAll(got.errors, "\u00a0", " "); got.code != tc.code || !strings.Contains(text, tc.want) || got.out != "" {
				t.Errorf("%+v\nwant %d %s", got, tc.code, tc.want)
			}
		})
	}
}

func TestTheHeapFollowsTheLimitThatIsGiven(t *testing.T) {
	got := bootstrapped(t, nil, "--print", "--heap-limit", "auto", "--memory-limit", "100")
	if got.code != 0 || got.errors != "" || !strings.Contains(got.out, `max_heap_size_bytes: "95"`) {
		t.Errorf("%+v", got)
	}
}

func TestMetadataOfTheEnvironmentIsNoUnknownSetting(t *testing.T) {
	got := bootstrapped(t, []string{"HOLDFAST_META_A=1", "HOLDFAST_MEAT_A=1"}, "--print")
	if got.code != 0 || strings.Contains(got.errors, "HOLDFAST_META_A") || !strings.Contains(got.errors, "HOLDFAST_MEAT_A is not a setting") {
		t.Errorf("%+v", got)
	}
}

// The names of both are in the help of the one and the documentation of the other.
func TestDefaultsOfBootstrapAreThoseOfThePackage(t *testing.T) {
	got := call(t, nil, "bootstrap", "--print", "--node-id", "i", "--node-cluster", "c")
	made, err := bootstrap.Build(bootstrap.Config{Node: bootstrap.Node{ID: "i", Cluster: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := bootstrap.Encode(made, bootstrap.YAML); err != nil || string(text) != got.out {
		t.Errorf("%v\n%s", err, udiff.Unified("package", "command", string(text), got.out))
	}
}

// --envoy-admin takes loopback only; a template or an overlay is the user's word.
func TestAnAdminThatOthersReachIsWarnedOf(t *testing.T) {
	for text, want := range map[string]string{
		"admin: {address: {socket_address: {address: 0.0.0.0, port_value: 15000}}}":   "puts Envoy's admin interface on 0.0.0.0:15000: everybody who can reach it can stop Envoy",
		"admin: {address: {socket_address: {address: '::', port_value: 1}}}":          "puts Envoy's admin interface on [::]:1",
		"admin: {address: {socket_address: {address: 127.0.0.1, port_value: 15002}}}": "",
		"admin: {address: {socket_address: null, pipe: {path: /x.sock}}}":             "",
	} {
		overlay := filepath.Join(t.TempDir(), "admin.merge.yaml")
		if err := os.WriteFile(overlay, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := running(t, "--print", "--overlay", overlay)
		if got.code != 0 || !strings.Contains(got.errors, want) || want == "" && strings.Contains(got.errors, "admin") {
			t.Errorf("%s: exit %d, %q, want %q", text, got.code, got.errors, want)
		}
	}
}

// Finding E8. An Envoy that does not ask the agent gets nothing of what that keeps.
func TestABootstrapThatLeadsPastTheAgentIsWarnedOf(t *testing.T) {
	for text, want := range map[string]string{
		`{dynamic_resources: {ads_config: {api_type: GRPC, grpc_services: [{envoy_grpc: {cluster_name: istiod}}]}},
			static_resources: {clusters: [{name: istiod, type: STRICT_DNS}]}}`: `dynamic_resources.ads_config is the cluster "istiod"`,
		`{dynamic_resources: {ads_config: {api_type: GRPC, grpc_services: [{google_grpc: {target_uri: "xds:15010", stat_prefix: x}}]}}}`:                                                              `dynamic_resources.ads_config is xds:15010`,
		`{dynamic_resources: {lds_config: {path_config_source: {path: /mine.yaml}}}}`:                                                                                                                 "dynamic_resources.lds_config is the file /mine.yaml, and not the socket ",
		`{dynamic_resources: {cds_config: {api_config_source: {api_type: DELTA_GRPC, grpc_services: [{envoy_grpc: {cluster_name: none}}]}}}}`:                                                         `dynamic_resources.cds_config is the cluster "none"`,
		`{dynamic_resources: {ads_config: {api_type: GRPC, grpc_services: [{google_grpc: {target_uri: "unix:/run/x.sock", stat_prefix: x}}]}}}`:                                                       "",
		`{static_resources: {clusters: [{name: xds, type: STATIC, load_assignment: {cluster_name: xds, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: /run/other.sock}}}}]}]}}]}}`:    `dynamic_resources.ads_config is the cluster "xds"`,
		`{static_resources: {clusters: [{name: xds, type: STATIC, load_assignment: {cluster_name: xds, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: /run/../run/x.sock}}}}]}]}}]}}`: "",
	} {
		got := running(t, "--print", "--socket", "/run/x.sock", "--template", write(t, "t.yaml", text))
		if got.code != 0 || !strings.Contains(got.errors, want) || want == "" && strings.Contains(got.errors, "past the agent") {
			t.Errorf("%s: exit %d, %q, want %q", text, got.code, got.errors, want)
		}
	}
}

// What the control plane changed last is used while it is away, and a file that is none is said to be none.
func TestTheLastChangesByTheControlPlaneAreUsedWhileItIsAway(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "envoy.json")
	kept := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.BootstrapType}
	for i, flush := range []string{"7s", "400s"} { // the second breaks a rule
		part := &bootstrapv3.Bootstrap{}
		if err := protojson.Unmarshal([]byte(`{"stats_flush_interval": "`+flush+`"}`), part); err != nil {
			t.Fatal(err)
		}
		body, err := anypb.New(part)
		if err != nil {
			t.Fatal(err)
		}
		kept.Resources = append(kept.Resources, &discoveryv3.Resource{Name: fmt.Sprintf("%04d EnvoyFilter a/%d", i, i), Resource: body})
	}
	text, err := proto.Marshal(kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(out+".upstream-overlay", text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "") // no envoy
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	flags := []string{"--out", out, "--upstream", silent.Addr().String(), "--upstream-plaintext", "--upstream-overlay", "require", "--upstream-overlay-timeout", "50ms"}
	got := running(t, flags...)
	if got.code != 0 || !strings.Contains(content(t, out), `"stats_flush_interval": "7s"`) {
		t.Errorf("%+v\n%s", got, content(t, out))
	}
	for _, want := range []string{"those of the last time are used", "EnvoyFilter a/1 is left out: bootstrap: stats_flush_interval: "} {
		if !strings.Contains(got.errors, want) {
			t.Errorf("no %q in\n%s", want, got.errors)
		}
	}
	if err := os.WriteFile(out+".upstream-overlay", []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	got = running(t, flags...)
	if got.code != 1 || !strings.Contains(got.errors, "is not a file that holdfast has written") || !strings.Contains(got.errors, "no control plane has answered within 50ms") {
		t.Errorf("%+v", got)
	}
}

// overlayServer is a control plane that changes bootstraps.
type overlayServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	resources []*discoveryv3.Resource
	answers   chan string // the NACKs, "" for an ACK
}

func (s *overlayServer) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: req.GetTypeUrl(), Nonce: "1", Resources: s.resources}); err != nil {
		return err
	}
	if req, err = stream.Recv(); err == nil {
		s.answers <- req.GetErrorDetail().GetMessage()
	}
	return err
}

// changing starts a control plane that changes bootstraps, and returns its flags. parts are in JSON, by their names.
func changing(t *testing.T, parts ...[2]string) (server *overlayServer, flags []string) {
	t.Helper()
	server = &overlayServer{answers: make(chan string, 10)}
	for i, p := range parts {
		part := &bootstrapv3.Bootstrap{}
		if err := protojson.Unmarshal([]byte(p[1]), part); err != nil {
			t.Fatal(err)
		}
		body, err := anypb.New(part)
		if err != nil {
			t.Fatal(err)
		}
		server.resources = append(server.resources, &discoveryv3.Resource{Name: fmt.Sprintf("%06d EnvoyFilter %s", i, p[0]), Resource: body})
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, server)
	go func() { _ = g.Serve(lis) }()
	t.Cleanup(g.Stop)
	return server, []string{"--upstream", lis.Addr().String(), "--upstream-plaintext", "--upstream-overlay", "require", "--upstream-overlay-timeout", "20s"}
}

// script writes a program.
func script(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// However long Envoy's reasons are, each change that is left out is named.
func TestEachChangeThatIsLeftOutIsNamed(t *testing.T) {
	_, flags := changing(t, [2]string{"a", `{"header_prefix": "x-a"}`}, [2]string{"b", `{"header_prefix": "x-b"}`}, [2]string{"c", `{"header_prefix": "x-c"}`})
	envoy := script(t, "envoy", "grep -q header_prefix $4 && echo "+strings.Repeat("x", 5000)+" && exit 1\nexit 0")
	got := running(t, append(flags, "--out", filepath.Join(t.TempDir(), "envoy.json"), "--envoy-binary", envoy)...)
	for _, name := range []string{"a", "b", "c"} {
		if got.code != 0 || !strings.Contains(got.errors, "EnvoyFilter "+name+" is left out: ") {
			t.Errorf("exit %d, %s is not named in\n%s", got.code, name, got.errors)
		}
	}
}

// A start that is ended while Envoy checks the changes has judged none of them: it writes nothing, and what was kept stays.
func TestAnInterruptedCheckOfChangesLosesNone(t *testing.T) {
	dir := t.TempDir()
	out, started := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "started")
	_, flags := changing(t, [2]string{"a", `{"stats_flush_interval": "7s"}`})
	envoy := script(t, "envoy", ": >"+started+"\nexec sleep 60")
	const kept = "what was kept"
	if err := errors.Join(os.WriteFile(out+".upstream-overlay", []byte(kept), 0o600), syscall.Mkfifo(started, 0o600)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(started) // until the check has begun
		cancel()
	}()
	var stdout, stderr strings.Builder
	code := execute(ctx, process{stdout: &stdout, stderr: &stderr}, append([]string{"bootstrap", "--node-id", "i", "--node-cluster", "c", "--out", out, "--envoy-binary", envoy}, flags...))
	if code != 1 || strings.Contains(stderr.String(), "left out") {
		t.Errorf("exit %d\n%s", code, stderr.String())
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a bootstrap was written: %v", err)
	}
	if got := content(t, out+".upstream-overlay"); got != kept {
		t.Errorf("kept %q, want %q", got, kept)
	}
}

// Changes are judged as the file will be: with the overlays, and by an Envoy that answers. Its environment is not for them.
func TestChangesAreJudgedWithTheOverlays(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const cluster = `{"static_resources": {"clusters": [{"name": "NAME", "type": "STATIC", "connect_timeout": "1s"}]}}`
	named := func(name string) [2]string { return [2]string{name, strings.Replace(cluster, "NAME", name, 1)} }
	overlay := file("mine.json", strings.Replace(cluster, "NAME", "mine", 1))
	out := filepath.Join(dir, "envoy.json")
	t.Setenv("SECRET_OF_THE_POD", "x")

	server, flags := changing(t, named("mine"), named("theirs"))
	got := running(t, append(flags, "--out", out, "--overlay", overlay, "--envoy-binary", script(t, "envoy", `test -z "$SECRET_OF_THE_POD"`))...)
	if text := content(t, out); got.code != 0 || strings.Count(text, `"mine"`) != 1 || !strings.Contains(text, `"theirs"`) {
		t.Errorf("%+v\n%s", got, text)
	}
	if nack := <-server.answers; !strings.Contains(nack, `EnvoyFilter mine is left out`) || !strings.Contains(nack, `"mine" is there twice`) {
		t.Errorf("answer %q", nack)
	}
	if info, err := os.Stat(out + ".upstream-overlay"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of the changes: %v, %v", info.Mode(), err)
	}

	// Without an answer of Envoy nothing is known, and what was kept is used.
	before := content(t, out+".upstream-overlay")
	_, flags = changing(t, named("new"))
	got = running(t, append(flags, "--out", out, "--overlay", overlay, "--envoy-binary", script(t, "envoy", "kill -9 $$"), "--upstream-overlay-timeout", "3s")...)
	if text := content(t, out); got.code != 0 || !strings.Contains(text, `"theirs"`) || strings.Contains(text, `"new"`) || !strings.Contains(got.errors, "the changes cannot be checked") || content(t, out+".upstream-overlay") != before {
		t.Errorf("%+v\n%s", got, text)
	}

	// An Envoy that rejects the bootstrap without the changes says nothing about them.
	_, flags = changing(t, named("new"))
	got = running(t, append(flags, "--out", out, "--overlay", overlay, "--envoy-binary", script(t, "envoy", "exit 1"))...)
	if text := content(t, out); got.code != 0 || !strings.Contains(text, `"new"`) || !strings.Contains(got.errors, "Envoy rejects the bootstrap also without the changes") {
		t.Errorf("%+v\n%s", got, text)
	}

	// An answer that cannot be read is none: the next control plane is asked.
	liar, lies := changing(t, named("a"))
	liar.resources[0].Resource.TypeUrl = "type.googleapis.com/google.protobuf.Duration"
	_, flags = changing(t, named("new"))
	got = running(t, append(append(lies[:2], flags...), "--out", out, "--overlay", overlay, "--envoy-binary", script(t, "envoy", "exit 0"))...)
	if text := content(t, out); got.code != 0 || !strings.Contains(text, `"new"`) {
		t.Errorf("%+v\n%s", got, text)
	}
}
