package istio

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// group is a YAML document of cases in a file: they share a pair of control planes, and an Envoy behind
// each.
type group struct {
	// Name is that of the file, and what the document adds to it.
	Name string `json:"group"`
	// Mesh is the MeshConfig, Networks the MeshNetworks, and Proxy what the Envoys say of themselves.
	Mesh     json.RawMessage `json:"mesh"`
	Networks json.RawMessage `json:"networks"`
	Proxy    proxyNode       `json:"proxy"`
	// Inbound says that the Envoys are servers: a case without a ServiceEntry has one with the ports PORT_own of HTTP and
	// PORT_tcp, and requests come from other machines to PORT_own.
	Inbound bool `json:"inbound"`
	// JWKSFetch is proxy if the Envoys get the keys of issuers themselves.
	JWKSFetch string `json:"jwksFetch"`
	Cases     []json.RawMessage

	first     bool // of its file
	cases     []*testCase
	documents []document
	ports     map[string]int
	backends  *backends
	issuer    *issuer
	addresses int
}

// proxyNode is what an Envoy says of itself.
type proxyNode struct {
	Type      string            `json:"type"` // sidecar, or router for a gateway
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	Locality  string            `json:"locality"` // region/zone/subzone
	Address   string            `json:"address"`  // with commas between several; "" for nodeAddress
	// Capture is how the connections of the workload come to the Envoy: REDIRECT, or "" for none.
	Capture string `json:"capture"`
	// Network is the network in which it is, and NetworkView the networks whose endpoints it wants.
	Network     string `json:"network"`
	NetworkView string `json:"networkView"`
	// Metadata are further metadata of the Node.
	Metadata map[string]any `json:"metadata"`
}

// testCase is a behaviour: documents and requests.
type testCase struct {
	Name string `json:"name"`
	// Differs is why holdfast-mesh differs from istiod; "" if it does not.
	Differs  string   `json:"differs"`
	Requests []string `json:"requests"`

	requests []*request
}

// document is a document of Kubernetes' form.
type document struct {
	of   string // the name of the case
	kind string
	core bool // of Kubernetes itself, not of Istio
	body map[string]any
}

// apiVersions are the kinds that a case may have.
var apiVersions = map[string]string{
	"VirtualService": "networking.istio.io/v1", "DestinationRule": "networking.istio.io/v1", "ServiceEntry": "networking.istio.io/v1",
	"Gateway": "networking.istio.io/v1", "Sidecar": "networking.istio.io/v1", "WorkloadEntry": "networking.istio.io/v1",
	"PeerAuthentication": "security.istio.io/v1", "RequestAuthentication": "security.istio.io/v1", "AuthorizationPolicy": "security.istio.io/v1", "EnvoyFilter": "networking.istio.io/v1alpha3",
	"Telemetry": "telemetry.istio.io/v1", "ProxyConfig": "networking.istio.io/v1beta1", "WorkloadGroup": "networking.istio.io/v1",
	"Service": "v1", "EndpointSlice": "discovery.k8s.io/v1", "Ingress": "networking.k8s.io/v1", "IngressClass": "networking.k8s.io/v1",
	"Pod": "v1", "Secret": "v1", "ConfigMap": "v1", "Namespace": "v1", "Node": "v1",
	"GatewayClass": "gateway.networking.k8s.io/v1", "KubernetesGateway": "gateway.networking.k8s.io/v1",
	"HTTPRoute": "gateway.networking.k8s.io/v1", "GRPCRoute": "gateway.networking.k8s.io/v1",
	"TLSRoute": "gateway.networking.k8s.io/v1", "TCPRoute": "gateway.networking.k8s.io/v1",
	"ReferenceGrant": "gateway.networking.k8s.io/v1beta1", "BackendTLSPolicy": "gateway.networking.k8s.io/v1",
}

var coreKinds = append([]string{"Service", "EndpointSlice", "Ingress", "IngressClass", "Pod", "Secret", "ConfigMap", "Namespace", "Node"}, gatewayAPIKinds...)

// clusterKinds are in no namespace.
var clusterKinds = []string{"IngressClass", "Namespace", "Node", "GatewayClass"}

// portToken is the name of a port in a document.
var (
	portToken       = regexp.MustCompile(`PORT_[A-Za-z0-9]+`)
	quotedPortToken = regexp.MustCompile(`"(PORT_[A-Za-z0-9]+)"([^:]|$)`)
	hashToken       = regexp.MustCompile(`(HASH|SPKI)_[a-z0-9]+`)
	keysToken       = regexp.MustCompile(`(JWKS|KEYS|ISSUER)_[abc]+`)
)

// readGroups reads a file of cases. In it, CASE stands for the name of the case, PORT_HTTP for the port
// of HTTP, PORT_v1 and so on for the ports of backends, other PORT_ names for a port of the case alone,
// and CERTS for the directory of certificates.
// LOGS stands for the directory of access logs.
// HASH_NAME and SPKI_NAME are the hashes of a certificate and of its public key.
// JWKS_ab stands for the public keys a and b, as a text in a document, KEYS_ab for the URL where they are, and ISSUER_ab
// for an issuer that has them.
func readGroups(t *testing.T, path string, backends *backends, issuer *issuer, certs string) (groups []*group) {
	t.Helper()
	b, err := os.ReadFile(path)
	check(t, err)
	text := hashToken.ReplaceAllStringFunc(strings.NewReplacer("CERTS", certs, "LOGS", logsBeside(certs)).Replace(string(b)), func(token string) string {
		kind, name, _ := strings.Cut(token, "_")
		return certificateHash(t, filepath.Join(certs, name+".pem"), kind == "SPKI")
	})
	for part := range strings.SplitSeq(text, "\n---\n") {
		part = keysToken.ReplaceAllStringFunc(part, func(token string) string {
			kind, names, _ := strings.Cut(token, "_")
			switch kind {
			case "JWKS":
				return strconv.Quote(issuer.jwks(names))
			case "KEYS":
				return issuer.url + "/" + names + ".jwks"
			}
			return issuer.url + "/" + names
		})
		groups = append(groups, readGroup(t, path, part, backends, issuer))
	}
	return groups
}

func readGroup(t *testing.T, path, text string, backends *backends, issuer *issuer) *group {
	t.Helper()
	g := &group{ports: map[string]int{"PORT_HTTP": freePort(t)}, backends: backends, issuer: issuer}
	for name, port := range backends.ports {
		g.ports["PORT_"+name] = port
	}
	if err := yaml.UnmarshalStrict([]byte(text), g); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	g.Name = strings.Trim(strings.TrimSuffix(filepath.Base(path), ".yaml")+"_"+g.Name, "_")
	if g.Proxy.Type == "" {
		g.Proxy.Type = "sidecar"
	}
	if g.Proxy.Namespace == "" {
		g.Proxy.Namespace = "default"
	}
	g.Mesh, g.Networks = g.resolve(t, "", g.Mesh), g.resolve(t, "", g.Networks)
	names := make(map[string]bool)
	for _, raw := range g.Cases {
		c, err := g.readCase(t, raw)
		if err != nil {
			t.Fatalf("%s: case %q: %v", path, c.Name, err)
		}
		if names[c.Name] || c.Name == "" {
			t.Fatalf("%s: a case has no name, or the name %q of another", path, c.Name)
		}
		names[c.Name] = true
		g.cases = append(g.cases, c)
	}
	if len(g.cases) == 0 {
		t.Fatalf("%s has a group without cases", path)
	}
	return g
}

// resolve puts numbers in the place of ports, and the case's name in the place of CASE.
func (g *group) resolve(t *testing.T, name string, raw json.RawMessage) json.RawMessage {
	t.Helper()
	number := func(token string) string {
		key := token
		if g.ports[token] == 0 {
			key = name + "/" + token
		}
		if kind := strings.TrimPrefix(token, "PORT_"); g.ports[key] == 0 && (kind == "own" || kind == "tcp") {
			g.ports[key] = g.backends.serveOwn(t, kind)
		}
		if g.ports[key] == 0 {
			g.ports[key] = freePort(t)
		}
		return strconv.Itoa(g.ports[key])
	}
	text := strings.ReplaceAll(string(raw), "CASE", name)
	text = quotedPortToken.ReplaceAllStringFunc(text, func(s string) string {
		token := portToken.FindString(s)
		return number(token) + strings.TrimPrefix(s, `"`+token+`"`)
	})
	return json.RawMessage(portToken.ReplaceAllStringFunc(text, number))
}

func (g *group) readCase(t *testing.T, raw json.RawMessage) (*testCase, error) {
	c := &testCase{}
	if err := json.Unmarshal(raw, c); err != nil {
		return c, err
	}
	raw = g.resolve(t, c.Name, raw)
	if err := json.Unmarshal(raw, c); err != nil {
		return c, err
	}
	var all map[string]any
	if err := json.Unmarshal(raw, &all); err != nil {
		return c, err
	}
	for _, key := range []string{"name", "differs", "requests"} {
		delete(all, key)
	}
	if _, ok := all["ServiceEntry"]; !ok {
		all["ServiceEntry"] = g.defaultService(c.Name)
		if g.Inbound {
			all["ServiceEntry"] = g.inboundService(t, c.Name)
		}
	}
	g.addGatewayAPI(c.Name, all)
	for _, kind := range slices.Sorted(maps.Keys(all)) {
		if apiVersions[kind] == "" {
			return c, fmt.Errorf("unknown key %q", kind)
		}
		list, ok := all[kind].([]any)
		if !ok && all[kind] != nil {
			list = []any{all[kind]}
		}
		for i, spec := range list {
			body, ok := spec.(map[string]any)
			if !ok {
				return c, fmt.Errorf("%s must be a mapping, or a list of them", kind)
			}
			g.documents = append(g.documents, newDocument(c.Name, kind, i, body, created.Add(time.Duration(len(g.documents))*time.Second)))
		}
	}
	for _, text := range c.Requests {
		r, err := parseRequest(text, c.Name, g.ports["PORT_HTTP"], g.issuer)
		if err != nil {
			return c, fmt.Errorf("request %q: %w", text, err)
		}
		if g.Inbound {
			r.toWorkload(g.ports[c.Name+"/PORT_own"])
		}
		c.requests = append(c.requests, r)
	}
	if len(c.requests) == 0 {
		return c, fmt.Errorf("it has no requests")
	}
	return c, nil
}

// defaultService is the ServiceEntry of a case that has none: CASE.test with the endpoints v1 and v2.
func (g *group) defaultService(name string) map[string]any {
	var endpoints []any
	for _, version := range []string{"v1", "v2"} {
		endpoints = append(endpoints, map[string]any{
			"address": "127.0.0.1", "labels": map[string]any{"version": version}, "ports": map[string]any{"http": g.ports["PORT_"+version]},
		})
	}
	return map[string]any{
		"hosts": []any{name + ".test"}, "location": "MESH_INTERNAL", "resolution": "STATIC", "endpoints": endpoints,
		"ports": []any{map[string]any{"name": "http", "number": g.ports["PORT_HTTP"], "protocol": "HTTP"}},
	}
}

// inboundService is the ServiceEntry of a case of an inbound group that has none: the Envoy is its endpoint.
func (g *group) inboundService(t *testing.T, name string) map[string]any {
	t.Helper()
	raw := `{"hosts": ["CASE.test"], "location": "MESH_INTERNAL", "resolution": "STATIC",
		"ports": [{"name": "http", "number": PORT_own, "protocol": "HTTP"}, {"name": "tcp", "number": PORT_tcp, "protocol": "TCP"}],
		"endpoints": [{"address": "` + nodeAddress + `", "labels": {"app": "server"}}]}`
	var out map[string]any
	check(t, json.Unmarshal(g.resolve(t, name, json.RawMessage(raw)), &out))
	return out
}

// created is when the first document of a group was created. The older of two has precedence.
var created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newDocument completes a document: its name is that of the case, and hosts and host are CASE.test,
// unless it says otherwise.
func newDocument(name, kind string, i int, body map[string]any, at time.Time) document {
	d := document{of: name, kind: kind, core: slices.Contains(coreKinds, kind)}
	meta, _ := body["metadata"].(map[string]any)
	delete(body, "metadata")
	if meta == nil {
		meta = make(map[string]any)
	}
	if meta["name"] == nil {
		meta["name"] = name
		if i > 0 {
			meta["name"] = name + "-" + strconv.Itoa(i)
		}
	}
	if meta["namespace"] == nil && !slices.Contains(clusterKinds, kind) {
		meta["namespace"] = "default"
	}
	if labels, ok := meta["labels"].(map[string]any); ok {
		for key, value := range labels {
			labels[key] = fmt.Sprint(value) // a port
		}
	}
	meta["creationTimestamp"] = at.Format(time.RFC3339)
	if kind == "VirtualService" && body["hosts"] == nil {
		body["hosts"] = []any{name + ".test"}
	}
	if kind == "VirtualService" && body["hosts"].([]any)[0] == "none" {
		delete(body, "hosts") // a delegate
	}
	if kind == "DestinationRule" && body["host"] == nil {
		body["host"] = name + ".test"
	}
	d.body = map[string]any{"spec": body}
	if d.core {
		d.body = body
	}
	if kind == "Secret" {
		encodeFiles(body["data"])
	}
	if kind == "ConfigMap" {
		readFiles(body["data"])
	}
	if kind == "AuthorizationPolicy" {
		d.body["spec"] = withTexts(body)
	}
	if slices.Contains(gatewayAPIKinds, kind) {
		d.body = map[string]any{"spec": body}
	}
	d.body["apiVersion"], d.body["kind"], d.body["metadata"] = apiVersions[kind], strings.TrimPrefix(kind, "Kubernetes"), meta
	return d
}

// withTexts puts texts in the place of numbers: an AuthorizationPolicy has ports as texts.
func withTexts(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = withTexts(v[key])
		}
	case []any:
		for i := range v {
			v[i] = withTexts(v[i])
		}
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return v
}

// encodeFiles puts the content of files in the place of their paths, in base64 as in a Secret. A path
// without a file stays: readCoveredCases has no certificates.
func encodeFiles(data any) {
	entries, _ := data.(map[string]any)
	for key, path := range entries {
		if content, err := os.ReadFile(fmt.Sprint(path)); err == nil {
			entries[key] = base64.StdEncoding.EncodeToString(content)
		}
	}
}

// readFiles puts the content of files in the place of their paths, as encodeFiles does, for a ConfigMap.
func readFiles(data any) {
	entries, _ := data.(map[string]any)
	for key, path := range entries {
		if content, err := os.ReadFile(fmt.Sprint(path)); err == nil {
			entries[key] = string(content)
		}
	}
}

// authenticates reports whether the Envoys must say with a certificate who they are: there is a Secret.
func (g *group) authenticates() bool {
	return slices.ContainsFunc(g.documents, func(d document) bool { return d.kind == "Secret" })
}

// workloadID is the SPIFFE ID of the Envoys.
func (g *group) workloadID() string {
	return "spiffe://cluster.local/ns/" + g.Proxy.Namespace + "/sa/default"
}

// yaml returns the documents, those of Kubernetes itself or those of Istio.
func (g *group) yaml(t *testing.T, core bool) string {
	t.Helper()
	var parts []string
	for _, d := range g.documents {
		if d.core == core {
			text, err := yaml.Marshal(d.body)
			check(t, err)
			parts = append(parts, string(text))
		}
	}
	return strings.Join(parts, "\n---\n")
}
