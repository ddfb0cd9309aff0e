package istio

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"istio.io/istio/pilot/pkg/config/kube/crd"
	"istio.io/istio/pilot/pkg/features"
	"istio.io/istio/pilot/pkg/networking/core"
	pilotxds "istio.io/istio/pilot/test/xds"
	"istio.io/istio/pkg/config"
	"istio.io/istio/pkg/config/mesh"
	"istio.io/istio/pkg/config/mesh/meshwatcher"
	"istio.io/istio/pkg/jwt"
	"istio.io/istio/pkg/security"
	"sigs.k8s.io/yaml"
)

// startIstiod serves the documents of a group by istiod, and returns the address of xDS.
func startIstiod(t *testing.T, g *group) string {
	t.Helper()
	text, err := yaml.JSONToYAML(g.Mesh)
	check(t, err)
	conf, err := mesh.ApplyMeshConfigDefaults(string(text))
	check(t, err)
	conf.EnableTracing = g.traces(t) // istiod's default is true
	var documents []config.Config
	for _, d := range g.documents {
		if d.core {
			continue
		}
		text, err := yaml.Marshal(d.body)
		check(t, err)
		parsed, _, err := crd.ParseInputs(string(text))
		if err != nil {
			t.Errorf("istiod rejects a %s of the case %s: %v", d.kind, d.of, err)
		}
		for _, c := range parsed {
			c.Domain = "cluster.local"
			documents = append(documents, c)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	features.EnableMultipleCustomAuthzProviders = true
	features.JwksFetchMode = jwt.Istiod
	if g.JWKSFetch == "proxy" {
		features.JwksFetchMode = jwt.Hybrid
	}
	networks := mesh.EmptyMeshNetworks()
	if isSet(g.Networks) {
		text, err := yaml.JSONToYAML(g.Networks)
		check(t, err)
		parsed, err := mesh.ParseMeshNetworks("networks:\n  " + strings.ReplaceAll(string(text), "\n", "\n  "))
		check(t, err)
		networks.Networks = parsed.GetNetworks()
	}
	// The access log of a mesh configuration is cached for the whole process, until the configuration changes.
	core.NewConfigGenerator(nil).MeshConfigChanged(conf)
	s := pilotxds.NewFakeDiscoveryServer(t, pilotxds.FakeOptions{
		NetworksWatcher: meshwatcher.NewFixedNetworksWatcher(&networks),
		Configs:         documents, KubernetesObjectString: g.kubernetesYAML(t), MeshConfig: conf, KubeClientModifier: withGatewayAPI(t),
		ListenerBuilder:            func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") },
		DisableSecretAuthorization: true,
	})
	security.AuthPlaintext = g.authenticates() // else istiod asks no authenticator without TLS
	if g.authenticates() {
		s.Discovery.Authenticators = []security.Authenticator{workload(g.workloadID())}
	}
	return s.Listener.Addr().String()
}

// workload is the authenticator of an istiod without TLS: each client has this SPIFFE ID.
type workload string

func (workload) AuthenticatorType() string { return "test" }

func (w workload) Authenticate(security.AuthContext) (*security.Caller, error) {
	return &security.Caller{Identities: []string{string(w)}}, nil
}

// startHoldfast serves the documents of a group by holdfast-mesh, and returns the address of xDS and that of its
// status. It fails the test if a document is not valid.
func startHoldfast(t *testing.T, g *group, dir, certs string) (listen, admin string) {
	t.Helper()
	documents := filepath.Join(dir, "documents")
	check(t, os.MkdirAll(documents, 0o700))
	all := g.yaml(t, false)
	if core := g.yaml(t, true); core != "" {
		all += "\n---\n" + core
	}
	all += configMap(t, g)
	check(t, os.WriteFile(filepath.Join(documents, "all.yaml"), []byte(all), 0o600))
	listen, admin = "127.0.0.1:"+strconv.Itoa(freePort(t)), "127.0.0.1:"+strconv.Itoa(freePort(t))
	args := []string{"serve", "--config", documents, "--admin", admin, "--cluster", "Kubernetes", "--jwks-allow-loopback"}
	if g.JWKSFetch != "" {
		args = append(args, "--jwks-fetch", g.JWKSFetch)
	}
	if g.authenticates() {
		args = append(args, "--listen", "", "--tls-listen", listen, "--tls-cert", filepath.Join(certs, "gateway.pem"),
			"--tls-key", filepath.Join(certs, "gateway.key"), "--tls-client-ca", filepath.Join(certs, "ca.pem"))
	} else {
		args = append(args, "--listen", listen)
	}
	p := start(t, "holdfast-mesh", filepath.Join(dir, "holdfast-mesh.log"), append([]string{holdfastBinary}, args...)...)
	p.wait(t, func() error { return ready(admin) })
	if log := tail(p.log, 1000); strings.Contains(log, "level=ERROR") || strings.Contains(log, "has problems") {
		validated := start(t, "holdfast-mesh validate", filepath.Join(dir, "validate.log"), holdfastBinary, "validate", documents)
		<-validated.exited
		for line := range strings.Lines(tail(validated.log, 1000)) {
			if strings.TrimSpace(line) != "" && !strings.Contains(line, ": warning: ") {
				t.Fatalf("a document is not valid: %s\n%s", log, line)
			}
		}
	}
	return listen, admin
}

// configMap returns the ConfigMap of the mesh configuration and the networks of a group; "" for none.
func configMap(t *testing.T, g *group) string {
	t.Helper()
	if !isSet(g.Mesh) && !isSet(g.Networks) {
		return ""
	}
	out := "\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n"
	key := func(name, head, indent string, value json.RawMessage) {
		if isSet(value) {
			text, err := yaml.JSONToYAML(value)
			check(t, err)
			out += "  " + name + ": |\n" + head + indent + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n"+indent) + "\n"
		}
	}
	key("mesh", "", "    ", g.Mesh)
	key("meshNetworks", "    networks:\n", "      ", g.Networks)
	return out
}

// isSet reports whether a group says something.
func isSet(value json.RawMessage) bool { return len(value) > 0 && string(value) != "null" }

// ready returns nil once the admin address of a program says that it is ready.
func ready(admin string) error {
	resp, err := http.Get("http://" + admin + "/ready")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if body := readAll(resp.Body); resp.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", strings.TrimSpace(body))
	}
	return nil
}

// bootstrap is that of an Envoy as Istio's agent would write it.
var bootstrap = template.Must(template.New("").Parse(`{
  "node": {{.Node}},
  "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": {{.Admin}}}}},
  "dynamic_resources": {
    "lds_config": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
    "cds_config": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
    "ads_config": {"api_type": "DELTA_GRPC", "set_node_on_first_message_only": true, "transport_api_version": "V3",
      "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}]}
  },
  "layered_runtime": {"layers": [{"name": "flush", "static_layer": {
    "tracing.zipkin.min_flush_spans": 1, "tracing.opentelemetry.min_flush_spans": 1, "tracing.opentelemetry.flush_interval_ms": 50}}]},
  "static_resources": {"clusters": [
    {"name": "xds-grpc", {{.TransportSocket}} {{template "address" .XDS}} }, {{template "sds" .Secrets}}
  ]}
}
{{define "sds"}}{"name": "sds-grpc", {{template "address" .}} }{{end}}
{{define "address"}}"type": "STATIC", "connect_timeout": "1s",
  "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
    "explicit_http_config": {"http2_protocol_options": {}}}},
  "load_assignment": {"cluster_name": "x", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address":
    {"address": "127.0.0.1", "port_value": {{.}}}}}}]}]}{{end}}`))

// xdsTransportSocket is that of xDS over TLS, with the certificate of the workload.
const xdsTransportSocket = `"transport_socket": {"name": "tls", "typed_config": {
  "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
  "common_tls_context": {"alpn_protocols": ["h2"],
    "tls_certificates": [{"certificate_chain": {"filename": "CERTS/workload.pem"}, "private_key": {"filename": "CERTS/workload.key"}}],
    "validation_context": {"trusted_ca": {"filename": "CERTS/ca.pem"}}}}},`

// envoy is a running Envoy.
type envoy struct {
	*process
	admin string
}

// nodeOf returns the Node of the Envoys of a group. Its address is not on loopback: endpoints there must
// not be taken for its own.
func nodeOf(p proxyNode) map[string]any {
	addresses := cmp.Or(p.Address, nodeAddress)
	ip, _, _ := strings.Cut(addresses, ",")
	metadata := map[string]any{
		"INTERCEPTION_MODE": cmp.Or(p.Capture, "NONE"), "NAMESPACE": p.Namespace, "CLUSTER_ID": "Kubernetes", "ISTIO_VERSION": "1.31.0",
		"INSTANCE_IPS": addresses, "LABELS": p.Labels, "SERVICE_ACCOUNT": "default",
	}
	if p.Network != "" {
		metadata["NETWORK"] = p.Network
	}
	if p.NetworkView != "" {
		metadata["REQUESTED_NETWORK_VIEW"] = p.NetworkView
	}
	node := map[string]any{
		"id":      p.Type + "~" + ip + "~test." + p.Namespace + "~" + p.Namespace + ".svc.cluster.local",
		"cluster": "test", "metadata": metadata,
	}
	maps.Copy(metadata, p.Metadata)
	if p.Locality != "" {
		parts := append(strings.Split(p.Locality, "/"), "", "")
		node["locality"] = map[string]any{"region": parts[0], "zone": parts[1], "sub_zone": parts[2]}
	}
	return node
}

// startEnvoy runs an Envoy behind a control plane until everything that it was given first is in use.
// It presents a certificate to the control plane if certs is the directory of one.
func startEnvoy(t *testing.T, g *group, dir, name, xds, secrets, certs string) *envoy {
	t.Helper()
	port := func(address string) string {
		_, p, _ := net.SplitHostPort(address)
		return p
	}
	node, err := json.Marshal(nodeOf(g.Proxy))
	check(t, err)
	admin, transportSocket := freePort(t), ""
	if certs != "" {
		transportSocket = strings.ReplaceAll(xdsTransportSocket, "CERTS", certs)
	}
	var b bytes.Buffer
	check(t, bootstrap.Execute(&b, map[string]any{"Node": string(node), "Admin": admin, "TransportSocket": transportSocket, "XDS": port(xds), "Secrets": port(secrets)}))
	file := filepath.Join(dir, name+".json")
	check(t, os.WriteFile(file, b.Bytes(), 0o600))
	e := &envoy{admin: "127.0.0.1:" + strconv.Itoa(admin)}
	e.process = start(t, "the Envoy of "+name, filepath.Join(dir, name+".log"), envoyBinary,
		"-c", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning", "--drain-time-s", "1", "--file-flush-interval-msec", "20")
	e.wait(t, func() error { return ready(e.admin) })
	e.wait(t, e.warm)
	dump := e.get(t, "/config_dump?include_eds")
	if *keep != "" {
		check(t, os.MkdirAll(filepath.Join(*keep, g.Name), 0o700))
		check(t, os.WriteFile(filepath.Join(*keep, g.Name, name+".dump.json"), []byte(dump), 0o600))
	}
	for _, stat := range []string{"cluster_manager.cds.update_rejected", "listener_manager.lds.update_rejected", "http.*rds.*update_rejected", "cluster.*update_rejected"} {
		for line := range strings.Lines(e.get(t, "/stats?filter="+stat)) {
			if _, value, _ := strings.Cut(strings.TrimSpace(line), ": "); value != "0" && value != "" {
				t.Errorf("Envoy has rejected what %s sent: %s\n%s", name, line, tail(e.log, 20))
			}
		}
	}
	return e
}

// warm returns nil once no listener and no cluster waits for anything.
func (e *envoy) warm() error {
	resp, err := http.Get("http://" + e.admin + "/stats?filter=^(listener_manager.total_listeners_(warming|active)|cluster_manager.warming_clusters)$")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text := readAll(resp.Body)
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if strings.Contains(name, "warming") != (value == "0") {
			return fmt.Errorf("%s is %s", name, value)
		}
	}
	if !strings.Contains(text, "active") {
		return fmt.Errorf("no listener: %q", text)
	}
	return nil
}

// propagated waits until the worker knows the hosts that earlier requests have added to ORIGINAL_DST clusters. A worker adds
// a host by the main thread, and until that has told it of the host, each request to the same address gets a host of its
// own, with connections of its own, which the circuit breakers count. The main thread answers the admin interface, too,
// after what it was told before.
func (e *envoy) propagated(t *testing.T) {
	t.Helper()
	e.get(t, "/ready")
}

func (e *envoy) get(t *testing.T, path string) string {
	t.Helper()
	client := http.Client{Timeout: 20 * time.Second}
	resp, err := client.Get("http://" + e.admin + path)
	check(t, err)
	defer resp.Body.Close()
	return readAll(resp.Body)
}
