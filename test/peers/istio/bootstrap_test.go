package istio

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"
	"istio.io/istio/pilot/cmd/pilot-agent/config"
	pilot "istio.io/istio/pilot/pkg/model"
	pilotagent "istio.io/istio/pkg/bootstrap"
	"istio.io/istio/pkg/model"
	"sigs.k8s.io/yaml"
)

// injection is what the webhook tells a proxy.
type injection struct {
	role                string
	environ             []string
	cpus                int
	labels, annotations map[string]string
}

func injections() map[string]injection {
	environ := func(more ...string) []string {
		return append([]string{
			"PILOT_CERT_PROVIDER=istiod", "CA_ADDR=istiod.istio-system.svc:15012", "POD_NAME=web-7d9c-x2x", "POD_NAMESPACE=shop", "INSTANCE_IP=10.1.2.3",
			"SERVICE_ACCOUNT=web", "HOST_IP=10.0.0.9", "ISTIO_META_APP_CONTAINERS=app", "ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_NODE_NAME=node-1",
			"ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_NETWORK=network1", "ISTIO_META_WORKLOAD_NAME=web", "ISTIO_META_MESH_ID=cluster.local",
			"ISTIO_META_POD_PORTS=[\n{\"name\":\"http\",\"containerPort\":8080,\"protocol\":\"TCP\"}\n,{\"containerPort\":9090}\n]",
			"ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/shop/deployments/web", "TRUST_DOMAIN=cluster.local", "ISTIO_META_ISTIO_VERSION=1.31.0",
		}, more...)
	}
	labels := map[string]string{
		"app.kubernetes.io/name": "web", "pod-template-hash": "7d9c", "security.istio.io/tlsMode": "istio",
		"service.istio.io/canonical-name": "shop-web", "service.istio.io/canonical-revision": "v1", "istio-locality": "region.zone.rack",
	}
	return map[string]injection{
		"a sidecar": {role: "sidecar", environ: environ("PROXY_CONFIG={}\n"), labels: labels, annotations: map[string]string{"istio.io/rev": "default"}},
		"a sidecar with settings": {role: "sidecar", cpus: 2, labels: labels,
			environ: environ(`PROXY_CONFIG={"proxyMetadata":{"ISTIO_META_DNS_CAPTURE":"true","ISTIO_META_MESH_ID":"not this"},"concurrency":null,"statusPort":15025,"proxyHeaders":{"requestId":{"disabled":true}}}`,
				`ISTIO_METAJSON_LABELS={"tier":"front"}`, "ISTIO_META_DNS_AUTO_ALLOCATE=true", "ISTIO_META_HTTP10=1", "ISTIO_META_REQUESTED_NETWORK_VIEW=network1,network2"),
			annotations: map[string]string{
				"proxy.istio.io/config":                   "proxyMetadata: {ISTIO_META_IDLE_TIMEOUT: 10s}\nproxyHeaders: {attemptCount: {disabled: true}}\nextraStatTags: [team]\nruntimeValues: {a: b, c: 'true'}\ndrainDuration: 30s",
				"sidecar.istio.io/statsInclusionPrefixes": "cluster.outbound,http.{pod_ip}_", "sidecar.istio.io/discoveryAddress": "istiod-canary.istio-system.svc:15012",
				"sidecar.istio.io/interceptionMode": "REDIRECT",
			}},
		"a gateway": {role: "router", environ: environ(`PROXY_CONFIG={"tracingServiceName":"CANONICAL_NAME_AND_NAMESPACE","gatewayTopology":{"numTrustedProxies":2}}`, "ISTIO_META_UNPRIVILEGED_POD=true"),
			labels: map[string]string{"istio": "ingressgateway"}, annotations: map[string]string{"proxy.istio.io/config": "gatewayTopology: {numTrustedProxies: 1}"}},
		"a pod with little": {role: "sidecar", environ: []string{"POD_NAME=a", "POD_NAMESPACE=b", "INSTANCE_IP=10.0.0.1"}},
	}
}

// differences are those of the metadata that are meant, by their path.
var differences = map[string]string{
	"PROXY_CONFIG.configPath": "a directory of pilot-agent's",
	"PROXY_CONFIG.binaryPath": "the Envoy of pilot-agent's image",
	"METADATA_DISCOVERY":      "istiod does not read it; the extension that it configures is only in Istio's build of Envoy",
	"INTERCEPTION_MODE":       "pilot-agent leaves it out where the webhook did not set it; istiod takes that for REDIRECT, its default",
	"tier":                    "pilot-agent repeats the labels of ISTIO_METAJSON_LABELS as keys of their own",
	"ISTIO_VERSION":           "pilot-agent's own version where the environment has none",
}

// istiod decodes the metadata of holdfast's bootstrap, and finds in it what pilot-agent would have told it.
func TestTheNodeIsThatOfPilotAgent(t *testing.T) {
	met := make(map[string]bool)
	for name, in := range injections() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir) // pilot-agent looks for the files of the downward API below its directory
			in.writePodInfo(t, filepath.Join(dir, "etc/istio/pod"))
			want, typed := in.pilotAgent(t)
			got := in.holdfast(t, dir)
			for _, part := range []string{"id", "cluster"} {
				if !reflect.DeepEqual(at(got, "node", part), at(want, "node", part)) {
					t.Errorf("node.%s: %v, pilot-agent's %v", part, at(got, "node", part), at(want, "node", part))
				}
			}
			for _, part := range []string{"region", "zone", "sub_zone"} { // pilot-agent's is empty where there is none
				if mine, theirs := at(got, "node", "locality", part), at(want, "node", "locality", part); mine != theirs {
					t.Errorf("node.locality.%s: %v, pilot-agent's %v", part, mine, theirs)
				}
			}
			for path, pair := range compare("", at(got, "node", "metadata"), at(want, "node", "metadata")) {
				if differences[path] == "" {
					t.Errorf("metadata %s: %#v, pilot-agent's %#v", path, pair[0], pair[1])
				}
				met[path] = true
			}
			// As istiod does when Envoy's stream begins.
			metadata, err := structpb.NewStruct(at(got, "node", "metadata").(map[string]any))
			check(t, err)
			decoded, err := pilot.ParseMetadata(metadata)
			if err != nil {
				t.Fatalf("istiod cannot decode the metadata: %v\n%v", err, metadata)
			}
			proxy, err := pilot.ParseServiceNodeWithMetadata(at(got, "node", "id").(string), decoded)
			check(t, err)
			if string(proxy.Type) != in.role || proxy.IPAddresses[0] != in.value("INSTANCE_IP") || proxy.DNSDomain != in.value("POD_NAMESPACE")+".svc.cluster.local" {
				t.Errorf("istiod takes it for %s %v %s", proxy.Type, proxy.IPAddresses, proxy.DNSDomain)
			}
			if !reflect.DeepEqual(decoded.PodPorts, typed.PodPorts) || !slices.Equal(decoded.InstanceIPs, typed.InstanceIPs) || !maps.Equal(decoded.Labels, typed.Labels) ||
				decoded.EnvoyStatusPort != 15021 || decoded.EnvoyPrometheusPort != 15090 || decoded.DNSCapture != typed.DNSCapture {
				t.Errorf("decoded %+v\npilot-agent's %+v", decoded, typed)
			}
		})
	}
	for path := range differences {
		if !met[path] {
			t.Errorf("%s does not differ any more", path)
		}
	}
}

// What dashboards and istiod's resources rely on.
func TestTheRestOfTheBootstrapIsThatOfPilotAgentWhereItMatters(t *testing.T) {
	for name, in := range injections() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Chdir(dir)
			in.writePodInfo(t, filepath.Join(dir, "etc/istio/pod"))
			want, _ := in.pilotAgent(t)
			got := in.holdfast(t, dir)
			tags := func(b any) map[string]any { return byName(at(b, "stats_config", "stats_tags"), "tag_name", "regex") }
			if !reflect.DeepEqual(tags(got), tags(want)) {
				t.Errorf("tags %v\npilot-agent's %v", tags(got), tags(want))
			}
			have := patterns(got)
			for _, pattern := range patterns(want) {
				meant := map[string]string{
					"prefix cluster_manager": "prefix cluster_manager.", "prefix listener_manager": "prefix listener_manager.", "prefix server": "prefix server.",
					"prefix cluster.xds-grpc": "prefix cluster.xds.",
				}
				if !slices.Contains(have, pattern) && !slices.Contains(have, meant[pattern]) {
					t.Errorf("stats: no %s in %q", pattern, have)
				}
			}
			for key, value := range at(want, "layered_runtime", "layers").([]any)[0].(map[string]any)["static_layer"].(map[string]any) {
				mine := at(got, "layered_runtime", "layers").([]any)[0].(map[string]any)["static_layer"].(map[string]any)[key]
				known := !strings.Contains(key, "hidden_envoy_deprecated_use_original_dst") // Envoy has no such key since v2 of its API
				if known && mine != value && key != "re2.max_program_size.error_level" {    // a number here
					t.Errorf("runtime %s: %v, pilot-agent's %v", key, mine, value)
				}
			}
			if !slices.Contains(slices.Collect(maps.Keys(byName(at(got, "static_resources", "clusters"), "name", "type"))), model.SDSClusterName) {
				t.Errorf("no cluster %s", model.SDSClusterName)
			}
			if !reflect.DeepEqual(at(got, "admin", "address"), at(want, "admin", "address")) {
				t.Errorf("admin %v, pilot-agent's %v", at(got, "admin", "address"), at(want, "admin", "address"))
			}
		})
	}
}

func (in injection) writePodInfo(t *testing.T, dir string) {
	check(t, os.MkdirAll(dir, 0o700))
	for name, values := range map[string]map[string]string{"labels": in.labels, "annotations": in.annotations} {
		var text strings.Builder
		for _, key := range slices.Sorted(maps.Keys(values)) {
			quoted, err := json.Marshal(values[key])
			check(t, err)
			text.WriteString(key + "=" + string(quoted) + "\n")
		}
		check(t, os.WriteFile(filepath.Join(dir, name), []byte(text.String()), 0o600))
	}
}

// value returns a variable of the injection.
func (in injection) value(name string) string {
	for _, pair := range in.environ {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// pilotAgent returns the bootstrap that pilot-agent writes, and the metadata in it.
func (in injection) pilotAgent(t *testing.T) (any, *model.BootstrapNodeMetadata) {
	config.CPULimit = in.cpus // the variable ISTIO_CPU_LIMIT, which was read when the process began
	proxy, err := config.ConstructProxyConfig("", "istio-proxy", in.value("PROXY_CONFIG"), 0)
	check(t, err)
	node, err := pilotagent.GetNodeMetaData(pilotagent.MetadataOptions{
		ID:   in.role + "~" + in.value("INSTANCE_IP") + "~" + in.value("POD_NAME") + "." + in.value("POD_NAMESPACE") + "~" + in.value("POD_NAMESPACE") + ".svc.cluster.local",
		Envs: in.environ, InstanceIPs: []string{in.value("INSTANCE_IP")}, ProxyConfig: proxy, PilotSubjectAltName: []string{config.GetPilotSan(proxy.DiscoveryAddress)},
		EnvoyStatusPort: 15021, EnvoyPrometheusPort: 15090, WorkloadIdentitySocketFile: "",
	})
	check(t, err)
	root, err := exec.Command("go", "-C", moduleDir, "list", "-m", "-f", "{{.Dir}}", "istio.io/istio").Output()
	check(t, err)
	var text bytes.Buffer
	template := filepath.Join(strings.TrimSpace(string(root)), "tools/packaging/common/envoy_bootstrap.json")
	check(t, pilotagent.New(pilotagent.Config{Node: node}).WriteTo(template, &text))
	var made any
	check(t, yaml.Unmarshal(text.Bytes(), &made))
	return made, node.Metadata
}

// holdfast returns the bootstrap that `holdfast bootstrap --istio` writes.
func (in injection) holdfast(t *testing.T, dir string) any {
	cmd := exec.Command(agentBinary, "bootstrap", "--istio", "--out", "-", "--istio-role", in.role,
		"--pod-labels", filepath.Join(dir, "etc/istio/pod/labels"), "--pod-annotations", filepath.Join(dir, "etc/istio/pod/annotations"))
	cmd.Env = in.environ
	if in.cpus > 0 {
		cmd.Env = append(slices.Clone(in.environ), "ISTIO_CPU_LIMIT="+string(rune('0'+in.cpus)))
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	text, err := cmd.Output()
	if err != nil || complaints.Len() > 0 {
		t.Fatalf("holdfast bootstrap: %v\n%s", err, &complaints)
	}
	var made any
	check(t, yaml.Unmarshal(text, &made))
	return made
}

// at returns a value by the path of its keys, nil for none.
func at(tree any, path ...string) any {
	for _, key := range path {
		object, _ := tree.(map[string]any)
		tree = object[key]
	}
	return tree
}

// compare returns the pairs of values that differ, by their path.
func compare(path string, got, want any) map[string][2]any {
	g, isObject := got.(map[string]any)
	w, both := want.(map[string]any)
	if !isObject || !both {
		if reflect.DeepEqual(got, want) || equalJSON(got, want) {
			return nil
		}
		return map[string][2]any{path: {got, want}}
	}
	all := make(map[string][2]any)
	for _, key := range slices.Concat(slices.Collect(maps.Keys(g)), slices.Collect(maps.Keys(w))) {
		maps.Copy(all, compare(strings.TrimPrefix(path+"."+key, "."), g[key], w[key]))
	}
	return all
}

// equalJSON reports whether both are texts with the same JSON.
func equalJSON(a, b any) bool {
	textA, okA := a.(string)
	textB, okB := b.(string)
	var treeA, treeB any
	return okA && okB && json.Unmarshal([]byte(textA), &treeA) == nil && json.Unmarshal([]byte(textB), &treeB) == nil && reflect.DeepEqual(treeA, treeB)
}

// byName returns a field of the elements of a list, by another field.
func byName(list any, name, value string) map[string]any {
	all := make(map[string]any)
	elements, _ := list.([]any)
	for _, element := range elements {
		all[at(element, name).(string)] = at(element, value)
	}
	return all
}

// patterns returns the stats that a bootstrap includes, such as "prefix wasm".
func patterns(b any) (all []string) {
	for _, pattern := range at(b, "stats_config", "stats_matcher", "inclusion_list", "patterns").([]any) {
		for kind, value := range pattern.(map[string]any) {
			if kind == "safe_regex" {
				value = at(value, "regex")
			}
			all = append(all, kind+" "+value.(string))
		}
	}
	return all
}
