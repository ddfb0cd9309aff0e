package server

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/downstream"
	_ "github.com/holdfast-xds/holdfast/internal/envoytypes" // JSON of extensions
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// TestReplicasGiveTheSameBytes starts replicas that get the documents of the golden files of package generate in
// different ways, and compares everything that they serve (mesh.md M4, M10). The first one has them when it starts. To the
// others they come one by one in random orders while proxies are connected, some after another content, some after
// they were deleted and created again, and beside documents that are gone at the end.
func TestReplicasGiveTheSameBytes(t *testing.T) {
	cases, err := filepath.Glob("../generate/testdata/*/config.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	var everything []*config.Config
	for _, path := range cases {
		everything = append(everything, read(t, path)...)
	}
	contradictions := filepath.Join(t.TempDir(), "contradictions", "config.yaml")
	if err := os.Mkdir(filepath.Dir(contradictions), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"config.yaml":    contradicting(),
		"web.node.yaml":  "id: sidecar~10.0.0.1~web.default~default.svc.cluster.local\nmetadata: {NAMESPACE: default, LABELS: {app: web}, INTERCEPTION_MODE: REDIRECT, DNS_CAPTURE: true}\n",
		"api.node.yaml":  "id: sidecar~10.0.1.2~api.shop~shop.svc.cluster.local\nmetadata: {NAMESPACE: shop, LABELS: {app: api}}\n",
		"edge.node.yaml": "id: router~10.0.0.9~edge.default~default.svc.cluster.local\nmetadata: {NAMESPACE: default, LABELS: {app: edge}}\n",
	} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(contradictions), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range append(cases, contradictions) {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			nodes, err := filepath.Glob(filepath.Dir(path) + "/*.node.yaml")
			if err != nil || len(nodes) == 0 {
				t.Fatalf("no nodes: %v", err)
			}
			documents := read(t, path)
			var want map[string]string
			on(t, "", func(r *rig) {
				for _, d := range documents {
					r.apply(d)
				}
				r.settle()
				r.server.Start() // as if everything had been there
				want = r.serves(nodes)
			})
			if len(want) < 5*len(nodes) {
				t.Fatalf("only %d resources: the test shows little", len(want))
			}
			for seed := range uint64(3) {
				on(t, "", func(r *rig) {
					r.live(rand.New(rand.NewPCG(seed, 3)), documents, everything, nodes)
					got := r.serves(nodes)
					for _, name := range slices.Sorted(maps.Keys(got)) {
						if _, ok := want[name]; !ok {
							t.Errorf("seed %d: it serves %s, too", seed, name)
						}
					}
					for _, name := range slices.Sorted(maps.Keys(want)) {
						if got[name] != want[name] {
							t.Errorf("seed %d: %s differs:\n%s\nwant\n%s", seed, name, text(got[name]), text(want[name]))
						}
					}
				})
				if t.Failed() {
					return
				}
			}
		})
	}
}

// contradicting returns documents that say different things of the same: hosts, subsets, modes, filters and servers that
// several of them name, created at the same time or not, and services without an address that want the same.
func contradicting() string {
	var b strings.Builder
	doc := func(api, kind, namespace, name string, created int, rest string) {
		at := ""
		if created > 0 {
			at = fmt.Sprintf(", creationTimestamp: '2026-01-0%dT00:00:00Z'", created)
		}
		fmt.Fprintf(&b, "---\napiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s%s}\n%s\n", api, kind, name, namespace, at, rest)
	}
	const networking, security, telemetry = "networking.istio.io/v1", "security.istio.io/v1", "telemetry.istio.io/v1"
	for i, name := range sameAddress(8) {
		doc(networking, "ServiceEntry", "many", fmt.Sprintf("s%d", i), i%3, fmt.Sprintf("spec: {hosts: [%s], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}", name))
	}
	for i, namespace := range []string{"default", "shop", "other", "default", "shop", "istio-system"} {
		name, created := fmt.Sprintf("n%d", i), i%3
		doc(networking, "ServiceEntry", namespace, name, created, fmt.Sprintf("spec: {hosts: [a.internal, h%d.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}, {number: 9%d, name: tcp, protocol: TCP}], endpoints: [{address: 10.1.0.%[1]d, labels: {v: v%[2]d}, locality: r%[2]d/z, weight: %[3]d}, {address: 10.2.0.%[1]d, serviceAccount: a%[1]d}]}", i, i%2, 1+i))
		doc(networking, "ServiceEntry", namespace, "w"+name, created, "spec: {hosts: [workloads.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: web}}}")
		doc(networking, "WorkloadEntry", namespace, "we"+name, created, fmt.Sprintf("spec: {address: 10.3.0.%d, labels: {app: web, v: v%d}, serviceAccount: w%d}", i%4, i%2, i))
		doc(networking, "VirtualService", namespace, name, created, fmt.Sprintf("spec: {hosts: [a.internal], gateways: [mesh, default/gw%d], http: [{match: [{uri: {prefix: /%d}}], timeout: %ds, route: [{destination: {host: a.internal, subset: s%d}}]}, {route: [{destination: {host: h%[1]d.internal, port: {number: 80}}}]}]}", i%2, i, 1+i, i%2))
		doc(networking, "VirtualService", namespace, "t"+name, created, fmt.Sprintf("spec: {hosts: [h%d.internal, '*.internal'], tcp: [{route: [{destination: {host: a.internal}}]}], http: [{route: [{destination: {host: a.internal}}]}]}", i%3))
		doc(networking, "DestinationRule", namespace, name, created, fmt.Sprintf("spec: {host: a.internal, exportTo: ['*'], subsets: [{name: s%d, labels: {v: v%d}}], trafficPolicy: {connectionPool: {tcp: {maxConnections: %d}}}}", i%2, i%2, i+1))
		doc(networking, "Gateway", "default", fmt.Sprintf("gw%d", i), created, fmt.Sprintf("spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http%d, protocol: HTTP}, hosts: ['*.internal', 'a.internal']}, {port: {number: 8080, name: p, protocol: %s}, hosts: ['*']}]}", i, []string{"HTTP", "TCP"}[i%2]))
		doc(security, "PeerAuthentication", namespace, name, created, fmt.Sprintf("spec: {mtls: {mode: %s}, selector: {matchLabels: {app: %s}}}", []string{"STRICT", "PERMISSIVE", "DISABLE"}[i%3], []string{"web", "api"}[i%2]))
		doc(security, "PeerAuthentication", namespace, "all"+name, created, fmt.Sprintf("spec: {mtls: {mode: %s}}", []string{"STRICT", "PERMISSIVE"}[i%2]))
		doc(security, "AuthorizationPolicy", namespace, name, created, fmt.Sprintf("spec: {action: %s, rules: [{from: [{source: {namespaces: [n%d]}}], to: [{operation: {paths: [/%d], methods: [GET, PUT]}}]}]}", []string{"ALLOW", "DENY"}[i%2], i, i))
		doc(security, "RequestAuthentication", namespace, name, created, fmt.Sprintf("spec: {jwtRules: [{issuer: i%d, jwks: '{\"keys\":[]}'}]}", i%4))
		doc("networking.istio.io/v1alpha3", "EnvoyFilter", namespace, name, created, fmt.Sprintf("spec: {priority: %d, configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {alt_stat_name: x%d}}}, {applyTo: HTTP_FILTER, match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}, patch: {operation: INSERT_FIRST, value: {name: f%[2]d, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: %[2]d}}}}]}", i%2, i+1))
		doc(telemetry, "Telemetry", namespace, name, created, fmt.Sprintf("spec: {accessLogging: [{providers: [{name: envoy}], disabled: %v}]}", i%2 == 0))
		doc("v1", "Service", namespace, fmt.Sprintf("svc%d", i/3), created, fmt.Sprintf("spec: {clusterIP: 10.9.0.%d, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: grpc, port: 81}]}", i))
		doc("v1", "Pod", namespace, "pod"+name, created, fmt.Sprintf("spec: {serviceAccountName: p%d}\nstatus: {podIP: 10.4.0.%d, phase: Running}", i, i%4))
		fmt.Fprintf(&b, "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: slice%s, namespace: %s, labels: {kubernetes.io/service-name: svc%d}}\naddressType: IPv4\nports: [{name: http, port: 8080}, {name: grpc, port: 81}]\nendpoints: [{addresses: [10.4.0.%d]}, {addresses: [10.4.0.%d], targetRef: {kind: Pod, name: pod%[1]s}}]\n", name, namespace, i/3, i%4, (i+1)%4)
	}
	return b.String()
}

// sameAddress returns hosts of the namespace many, of which two each are given the same address first: package service
// numbers addresses by FNV-1a modulo 65011.
func sameAddress(pairs int) (hosts []string) {
	seen := make(map[uint64]string)
	for i := 0; len(hosts) < 2*pairs; i++ {
		host := fmt.Sprintf("s%d.many", i)
		h := fnv.New64a()
		_, _ = h.Write([]byte(service.Key{Hostname: service.Hostname(host), Namespace: "many"}.String()))
		number := h.Sum64() % 65011
		if other, ok := seen[number]; ok {
			hosts = append(hosts, other, host)
			delete(seen, number)
			continue
		}
		seen[number] = host
	}
	return hosts
}

// read reads the documents of a file.
func read(t *testing.T, path string) (out []*config.Config) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	docs, broken := config.Read(path, text)
	if broken != nil {
		t.Fatal(broken)
	}
	for _, d := range docs {
		if d.Config != nil && !config.Invalid(d.Problems) {
			out = append(out, d.Config)
		}
	}
	return out
}

// apply creates or changes a document.
func (r *rig) apply(d *config.Config) {
	r.Helper()
	c := *d
	c.ResourceVersion = ""
	var err error
	if old := r.store.Get(c.Meta.Key); old == nil {
		_, err = r.store.Create(r.Context(), &c)
	} else {
		if c.Created.IsZero() && !old.Created.IsZero() { // it would keep that of the other content
			r.delete(c.Meta.Key)
			r.apply(d)
			return
		}
		c.ResourceVersion = old.ResourceVersion
		_, err = r.store.Update(r.Context(), &c)
	}
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) delete(key config.Key) {
	r.Helper()
	if err := r.store.Delete(r.Context(), key, ""); err != nil {
		r.Fatal(err)
	}
}

// live lets documents come in a random order and with a random history, while proxies are connected.
func (r *rig) live(random *rand.Rand, documents, others []*config.Config, nodes []string) {
	r.Helper()
	mine := make(map[config.Key]bool)
	byKind := make(map[config.Kind][]*config.Config)
	for _, d := range documents {
		mine[d.Meta.Key] = true
	}
	for _, d := range others {
		byKind[d.Kind] = append(byKind[d.Kind], d)
	}
	// Each document is a sequence of steps; the sequences are merged at random.
	var sequences [][]func()
	for _, d := range documents {
		key, steps := d.Meta.Key, []func(){}
		if random.IntN(3) == 0 { // with the content of another
			other := *byKind[d.Kind][random.IntN(len(byKind[d.Kind]))]
			other.Meta.Key = key
			steps = append(steps, func() { r.apply(&other) })
			if random.IntN(2) == 0 {
				steps = append(steps, func() { r.delete(key) })
			}
		}
		steps = append(steps, func() { r.apply(d) })
		if random.IntN(4) == 0 {
			steps = append(steps, func() { r.delete(key) }, func() { r.apply(d) })
		}
		sequences = append(sequences, steps)
	}
	for range 10 {
		if d := others[random.IntN(len(others))]; !mine[d.Meta.Key] {
			mine[d.Meta.Key] = true
			sequences = append(sequences, []func(){func() { r.apply(d) }, func() { r.delete(d.Meta.Key) }})
		}
	}
	for n := 0; len(sequences) > 0; n++ {
		i := random.IntN(len(sequences))
		sequences[i][0]()
		if sequences[i] = sequences[i][1:]; len(sequences[i]) == 0 {
			sequences = slices.Delete(sequences, i, i+1)
		}
		if n == 3 {
			for _, path := range nodes {
				r.attach(path)
			}
		}
		if random.IntN(8) == 0 {
			r.settle()
		}
	}
}

// attach connects the proxy of a file.
func (r *rig) attach(path string) *client {
	r.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		r.Fatal(err)
	}
	var node corev3.Node
	if err := protojson.Unmarshal(data, &node); err != nil {
		r.Fatal(err)
	}
	r.last++
	v, err := r.server.Attach(downstream.Client{Stream: r.last, Node: &node, Form: xds.Delta})
	if err != nil {
		r.Fatal(err)
	}
	if r.attached == nil {
		r.attached = make(map[string]*client)
	}
	r.attached[path] = &client{r, v.(*view)}
	return r.attached[path]
}

// serves returns everything that each proxy is served in the end, with versions, as text: to a proxy that has been
// connected from the beginning on, and the same to one that has just connected.
func (r *rig) serves(nodes []string) map[string]string {
	r.Helper()
	time.Sleep(time.Minute) // changes of modes go in steps
	synctest.Wait()
	out := make(map[string]string)
	for _, path := range nodes {
		old := r.attached[path]
		anew := r.served(path, r.attach(path))
		maps.Copy(out, anew)
		if old == nil {
			continue
		}
		was := r.served(path, old)
		for name := range maps.Keys(anew) {
			if was[name] != anew[name] {
				r.Errorf("%s of a proxy that was connected is\n%s\nand of one that connects\n%s", name, text(was[name]), text(anew[name]))
			}
		}
		if len(was) != len(anew) {
			r.Errorf("a proxy that was connected has %d resources, one that connects %d", len(was), len(anew))
		}
	}
	return out
}

// text returns what people can read of a served resource.
func text(served string) string {
	_, json, _ := strings.Cut(served, "\n")
	return json
}

func (r *rig) served(path string, c *client) map[string]string {
	out := make(map[string]string)
	add := func(res *xds.Resource) {
		text, err := protojson.Marshal(res.Body)
		if err != nil {
			r.Fatalf("%s: %v", res.Name, err)
		}
		// The bytes are compared, and the text is for whoever reads the difference.
		out[strings.TrimSuffix(filepath.Base(path), ".node.yaml")+" "+xds.Short(res.Type)+" "+res.Name] = fmt.Sprintf("%s %x\n%s", res.Version, res.Body.GetValue(), text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, half := range c.tables {
		for _, t := range half {
			for _, res := range t.Set {
				add(res)
				if res.EDSName != "" {
					if a := (state{c.view}).Lookup(xds.EndpointType, res.EDSName).Current; a != nil {
						add(a)
					}
				}
			}
		}
	}
	return out
}
